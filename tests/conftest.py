"""Fixtures every test may use: small real models, exported once a session and shared by all its processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

import models

# A busy machine is no failure. What lands must not depend on luck: CI draws the same cases every time; people explore.
settings.register_profile("project", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("project")


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, str], Path]:
    """`small_model("bert", "dynamo")` is the path of that model's raw export. Do not write to it."""
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
