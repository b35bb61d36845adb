"""`sardonyx MODEL.onnx`: the page of any file, without a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from cli.conftest import Result
from reporting.gate.sample_records import write_model

Command = Callable[..., Result]
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOREIGN = [
    *(f"light/light_{name}.onnx" for name in ("squeezenet", "zfnet512", "shufflenet", "inception_v1", "resnet50")),
    *(f"pytorch-operator/test_operator_{name}/model.onnx" for name in ("conv", "repeat")),
    *(f"pytorch-converted/test_{name}/model.onnx" for name in ("BatchNorm2d_eval", "Embedding", "GLU_dim")),
]  # ten files that others exported, of the package onnx


NAMES = ("file", "graph", "modules", "devices", "costs", "rewrites", "attention")


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_others_exported_get_a_page(command: Command, tmp_path: Path, name: str) -> None:
    page = tmp_path / "page.html"
    done = command(_DATA / name, "-o", page)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{(_DATA / name).stem} → {page} (")
    text = page.read_text("utf-8")
    sections = [f'data-section="{name}"' for name in NAMES]
    assert [each for each in sections if each not in text] == []
    assert "Optimizing would give " in text
    assert not list(page.parent.glob("*.onnx"))


def test_the_page_is_written_beside_the_model_and_not_over_another(command: Command, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    assert command(model).code == 0
    again = command("report", model)
    assert (again.code, again.err.splitlines()[0]) == (1, f"error: {tmp_path / 'model.html'} exists")
    assert command("report", model, "-f").code == 0


def test_what_is_no_model_is_one_line(command: Command, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_text("this is not a model")
    record = tmp_path / "run.json"
    record.write_text("{}")
    for arguments, code, message in (
        (["missing.onnx"], 2, "missing.onnx cannot be read: there is no such file"),
        ([broken], 1, f"{broken} is not a readable ONNX model"),
        (["report", model, record], 2, "about models or about records"),
        (["report", model, "--baseline", record], 2, "--baseline is for records"),
        (["report", model, "--format", "markdown"], 2, "the report of a model is a page"),
        (["modle"], 2, "there is no command 'modle'"),
    ):
        done = command(*arguments)
        assert (done.code, done.out) == (code, ""), arguments
        assert message in done.err.splitlines()[0]
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.slow
def test_a_browser_is_started_only_if_asked(tmp_path: Path) -> None:
    model, seen = write_model(tmp_path / "model.onnx"), tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {seen}\n')
    browser.chmod(0o755)
    for options in ([], ["--open"]):
        assert not seen.exists()
        words = [sys.executable, "-m", "sardonyx", str(model), "-f", *options]
        subprocess.run(words, check=True, capture_output=True, env={**os.environ, "BROWSER": f"{browser} %s"})
    assert seen.read_text().split() == [(tmp_path / "model.html").as_uri()]
