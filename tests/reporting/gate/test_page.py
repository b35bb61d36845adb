"""docs/gates.md is correct: its table is checked, and its workflow is run. tests/test_readme.py runs its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gates_page
from reporting.gate.sample_records import write_model
from sardonyx.cli.main import VERBS
from sardonyx.reporting import record_kinds

TEXT = gates_page.PAGE.read_text(encoding="utf-8")
STEP = re.compile(r"^ +run: \|\n((?: {10}.*\n)+)", re.MULTILINE)


def test_every_name_is_in_the_table_with_its_meaning() -> None:
    assert gates_page.listed(TEXT) == gates_page.rows(), "run python tests/gates_page.py"


def test_every_kind_of_record_belongs_to_a_command() -> None:
    assert set(gates_page.VERBS.values()) == set(record_kinds.kinds())
    assert {verb.split()[0] for verb in gates_page.VERBS} <= set(VERBS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gates")
    write_model(place / "model.onnx")
    return place


@pytest.mark.slow
def test_the_steps_of_the_workflow_run(folder: Path) -> None:
    (folder / "gates").mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "sardonyx", "optimize", "model.onnx", "-o", "first.onnx", "-f", "-q", "--record",
         "gates/model.json"],
        cwd=folder, check=False, capture_output=True,
    )  # fmt: skip
    page = folder / "summary.md"
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(page)}
    steps = STEP.findall(TEXT.split("Other commands")[1])
    assert len(steps) == 4
    for step in steps:
        timed = "sardonyx bench" in step
        script = step.replace("--seconds 60", "--seconds 1 --starts 0")  # the gate on it may trip on a busy machine
        done = subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=os.environ | tools, capture_output=True)
        assert done.returncode in ((0, 4) if timed else (0,)), done.stderr.decode()
    assert page.read_text(encoding="utf-8").count("### ") == len(steps)
