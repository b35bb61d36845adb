"""Fixtures for every test: small real models, exported once per session and shared by all its processes.

`pytest --quick` leaves out tests that take long, and runs two cases of each test that has many. A test that loads torch
or opens a browser is skipped automatically; one that takes long for another reason is marked `medium` or `slow`.
`--all-cases` adds the other cases and the medium tests.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import settings

import chromium
import models

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No deadline: machines may be busy. Every run generates the same cases, so that what passed here passes in CI;
# `--all-examples` generates new ones.
settings.register_profile("all", deadline=None)
settings.register_profile("project", settings.get_profile("all"), derandomize=True, max_examples=20)
OWN_SETTINGS = "_hypothesis_internal_use_settings"  # where Hypothesis keeps the settings of a test
if "PYTEST_XDIST_WORKER" in os.environ:  # two threads of torch in each of several processes mostly wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # set in processes of pytest-xdist; commands would wrap their output at it

NODE_CASES = "onnx.backend.test.case.node"  # computes its 1,884 cases on import, which takes 10 s
LEFT_OUT = ("torch", "transformers", "openvino", "playwright", NODE_CASES)  # by --quick: each takes seconds to load


def pytest_addoption(parser: pytest.Parser) -> None:
    left_out = f"leave out tests marked slow or medium or using {', '.join(LEFT_OUT)}, and most cases of a test"
    parser.addoption("--quick", action="store_true", help=left_out)
    parser.addoption("--all-cases", action="store_true", help="with --quick, all cases and the tests marked medium")
    parser.addoption(
        "--all-examples", action="store_true", help="run property tests as often as they say, or 100 times"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(profile(config))
    if config.getoption("quick"):
        sys.meta_path.insert(0, SkippingImporter())


def profile(config: pytest.Config) -> str:
    """The profile of Hypothesis for this run."""
    return "all" if config.getoption("all_examples") else "project"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        kept = list(quick(items, all_cases=bool(config.getoption("all_cases"))))
        config.hook.pytest_deselected(items=[*dict.fromkeys(items).keys() - set(kept)])
        items[:] = kept
    if not config.getoption("all_examples"):
        for item in items:
            limit_examples(getattr(item, "function", None), settings.get_profile(profile(config)).max_examples)


def quick(items: Sequence[pytest.Item], *, all_cases: bool) -> Iterator[pytest.Item]:
    """Yield the tests for the inner loop: of one with many cases the first and the last, unless all are wanted."""
    marks = ("slow",) if all_cases else ("slow", "medium")
    for _, group in itertools.groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        cases = [item for item in group if not any(map(item.get_closest_marker, marks))]
        yield from cases if all_cases else dict.fromkeys([*cases[:1], *cases[-1:]])


def limit_examples(test: object, most: int) -> None:
    """Limit the examples of a property test that sets a larger number than the profile."""
    own = getattr(test, OWN_SETTINGS, None)
    if isinstance(own, settings) and own.max_examples > most:
        setattr(test, OWN_SETTINGS, settings(own, max_examples=most))


def pytest_runtest_setup() -> None:
    """Turn oneDNN on: torch turns it off for the process after a product in bfloat16 on a CPU that has none."""
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.set_flags(True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, and exempt all modules and tests from later ones: both cost seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000)  # torch is loaded later, and its objects are looked at in every full collection
        gc.enable()


class SkippingImporter(MetaPathFinder, Loader):
    """Skips a test that imports a module left out by `--quick`; `importlib.util.find_spec` still works."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in LEFT_OUT else None

    def exec_module(self, module: ModuleType) -> None:
        pytest.skip(f"needs {module.__name__}, which --quick leaves out", allow_module_level=True)


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """One browser for all tests of a process, which cannot have two drivers."""
    playwright, required = importlib.util.find_spec("playwright"), os.environ.get("SARDONYX_BROWSER") == "required"
    if chromium.path() is None or playwright is None:
        missing = "no browser to open pages in, or no playwright; make browser and make setup install them"
        pytest.fail(missing) if required else pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        launched = chromium.launch(driver)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, str], Path]:
    """`small_model("bert", "dynamo")` returns the path of that model's raw export. Do not write to it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "small-models"
    folder.mkdir(exist_ok=True)

    def exported(name: str, exporter: str) -> Path:
        path = folder / f"{name}.{exporter}.onnx"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                unfinished = path.with_suffix(".part")
                models.export(name, exporter, unfinished)
                unfinished.rename(path)
        return path

    return exported
