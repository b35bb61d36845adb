"""The GitHub Action: its steps run as they stand, with the environment that GitHub would set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from reporting.gate.sample_records import write_model

ROOT = Path(__file__).parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ *(.+?) *\}\}")


class Job:
    """A job whose only step is the action."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary, self.output = folder / "summary.md", folder / "output"

    def run(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run the last step with these inputs, as GitHub runs `shell: bash`."""
        given = {name: about.get("default", "") for name, about in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        step = STEPS[-1]
        variables = {
            name: EXPRESSION.sub(lambda match: given[match[1].removeprefix("inputs.")], value)
            for name, value in step["env"].items()
        }
        script = self.folder / "script.sh"
        script.write_text(step["run"])
        self.output.unlink(missing_ok=True)
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder,
            env=os.environ
            | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
            | {"GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_OUTPUT": str(self.output)}
            | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def outputs(self) -> dict[str, str]:
        """Return the outputs of the last run."""
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "models").mkdir()
    write_model(tmp_path / "models" / "one.onnx")
    return Job(tmp_path)


def test_expressions_are_in_no_script() -> None:
    """An expression in a script would run what an input contains."""
    assert [step["name"] for step in STEPS if EXPRESSION.search(step.get("run", ""))] == []


def test_every_input_is_used_and_every_expression_has_its_input_or_step() -> None:
    used = [value for step in STEPS for part in ("env", "with") for value in step.get(part, {}).values()]
    assert sorted(EXPRESSION.findall("".join(used))) == sorted(f"inputs.{name}" for name in ACTION["inputs"])
    written = set(re.findall(r'"([\w-]+)=\$', STEPS[-1]["run"]))
    wanted = [EXPRESSION.findall(output["value"])[0] for output in ACTION["outputs"].values()]
    assert sorted(wanted) == sorted(f"steps.{STEPS[-1]['id']}.outputs.{name}" for name in written)


def test_the_default_python_is_supported() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert f"Programming Language :: Python :: {ACTION['inputs']['python-version']['default']}" in classifiers


@pytest.mark.slow
def test_the_action_installs_the_checkout_it_is_part_of() -> None:
    """The requirement is resolved; nothing is downloaded or installed."""
    pytest.importorskip("hatchling", reason="make setup installs it")
    script = STEPS[1]["run"].replace("pip install", "pip install --dry-run --no-index --no-deps --no-build-isolation")
    done = subprocess.run(
        ["bash", "-c", script.replace("python", sys.executable, 1)],
        env=os.environ | {"GITHUB_ACTION_PATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Would install sardonyx-" in done.stdout


@pytest.mark.slow
def test_gates_that_hold(job: Job) -> None:
    done = job.run(model="models/one.onnx", fail_if="nodes > 1\nmax_err > 1e-3\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert job.outputs() == {"comment": "sardonyx-results/comment.md", "exit-code": "0"}
    comment = (job.folder / job.outputs()["comment"]).read_text()
    assert "2 gates met" in comment
    assert "3 → 1 nodes" in comment
    assert "By pass" in comment, "the report is part of it"
    assert job.summary.read_text() == comment
    assert (job.folder / "sardonyx-results" / "models-one.onnx").is_file()


@pytest.mark.slow
def test_a_gate_that_fails_on_one_of_two_models(job: Job) -> None:
    write_model(job.folder / "models" / "two.onnx", scale=2.0)
    job.run(model="models/*.onnx", results="gates", comment="first.md")
    record = job.folder / "gates" / "models-two.json"
    earlier = json.loads(record.read_text())
    earlier["after"]["nodes"] = 0
    record.write_text(json.dumps(earlier))
    done = job.run(model="models/*.onnx", baseline="gates", fail_if="nodes > baseline", comment="out/comment.md")
    assert done.returncode == 4
    assert done.stderr == "error: gate not met: nodes > baseline (nodes is 1, limit 0, baseline 0)\n"
    assert job.outputs() == {"comment": "out/comment.md", "exit-code": "4"}
    comment = (job.folder / "out" / "comment.md").read_text()
    assert "1 gate met" in comment
    assert "1 of 1 gate not met" in comment
    assert "All models" in comment


@pytest.mark.slow
def test_a_model_that_cannot_be_read_stops_no_other(job: Job) -> None:
    done = job.run(model="absent.onnx\nmodels/one.onnx", fail_if="nodes > 0")
    assert done.returncode == 2
    assert "absent.onnx cannot be read" in done.stderr
    assert "absent.onnx cannot be read" in job.summary.read_text()
    assert "3 → 1 nodes" in job.summary.read_text()
    assert job.outputs()["exit-code"] == "2"


def test_without_a_model_the_action_fails(job: Job) -> None:
    done = job.run(model="")
    assert (done.returncode, done.stderr) == (2, "error: the input 'model' is empty\n")
    assert job.outputs()["exit-code"] == "2"


@pytest.mark.slow
def test_inputs_are_never_run_as_code(job: Job) -> None:
    attack = "$(touch attacked)`touch attacked`; touch attacked; '\""
    write_model(job.folder / "a $(touch attacked); b.onnx")
    done = job.run(model="a $(touch attacked); b.onnx", fail_if=f"nodes > 1\n{attack}", options=f"--seed={attack}")
    assert done.returncode == 2
    done = job.run(model="a $(touch attacked); b.onnx", fail_if="nodes > 1", comment=f"{attack[:20]}.md")
    assert done.returncode == 0
    assert not list(job.folder.rglob("attacked"))
