"""Gates on the real command: which verbs have them, their messages and exit codes, and the CI summary."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Result
from reporting.gate.sample_records import write_model
from sardonyx.cli.main import VERBS
from sardonyx.reporting import record_kinds

Command = Callable[..., Result]
GATES_PAGE = Path(__file__).parents[2] / "docs" / "gates.md"
KINDS = {
    "export": (record_kinds.EXPORT,),
    "optimize": (record_kinds.RUN, record_kinds.FLEET),
    "quantize": (record_kinds.QUANTIZATION, record_kinds.FLEET),
    "verify": (record_kinds.VERDICT, record_kinds.FLEET),
    "bench": (record_kinds.BENCHMARK,),
    "profile": (record_kinds.PROFILE,),
    "inspect": (record_kinds.INSPECTION, record_kinds.MODULE, record_kinds.OPPORTUNITIES, record_kinds.FLEET),
    "extract": (record_kinds.EXTRACTION,),
    "decompose": (record_kinds.DECOMPOSED,),
    "analyze": (record_kinds.ANALYSIS,),
    "adopt": (record_kinds.ADOPTION,),
    "placement": (record_kinds.PLACEMENT,),
    "compare": (record_kinds.COMPARISON,),
    "locate": (record_kinds.LOCATION,),
    "study": (record_kinds.STUDY,),
}
WITHOUT = {
    "dag",
    "passes",
    "report",
    "completion",
    "demo",
    "chat",
    "attest",
    "rederive",
    "mcp",
}  # they write documents or text, and have no numbers


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_with_numbers_takes_gates_and_lists_their_names(verb: str, command: Command) -> None:
    output = " ".join(command(verb, "--help").out.split())
    assert ("--fail-if" in output) is (verb not in WITHOUT)
    if verb in WITHOUT:
        return
    assert all(option in output for option in ("--baseline", "--summary"))
    assert "4 gate not met" in output
    listed = set(re.findall(r"`([\w.]+)`", GATES_PAGE.read_text(encoding="utf-8")))
    assert [name for kind in KINDS[verb] for name in kind.names if name not in listed] == []


def test_a_gate_that_is_true_exits_4_after_the_result_was_shown(command: Command, model: Path) -> None:
    passed = command(
        "inspect", model, "-q", "--fail-if", "nodes>3", "--fail-if", "coverage<100%", "--fail-if", "bytes>1MB"
    )
    assert (passed.code, passed.err) == (0, "")
    failed = command(
        "inspect", model, "-q", "--fail-if", "nodes>2", "--fail-if", "parameters != 16", "--fail-if", "bytes>8"
    )
    assert (failed.code, failed.out) == (4, passed.out)
    assert failed.err.splitlines() == [
        "error: gate not met: nodes>2 (nodes is 3)",
        "error: gate not met: bytes>8 (bytes is 64)",
    ]


def test_json_stays_alone_on_standard_output(command: Command, model: Path) -> None:
    failed = command("inspect", model, "--json", "--fail-if", "nodes>2")
    assert failed.code == 4
    assert json.loads(failed.out)["counts"]["nodes"] == 3


def test_json_has_the_gates_whether_or_not_they_are_met(command: Command, model: Path) -> None:
    done = command("inspect", model, "--json", "--fail-if", "nodes>2", "--fail-if", "bytes > 1 MB")
    assert done.code == 4
    nodes, size = json.loads(done.out)["gates"]
    assert nodes == {"fail_if": "nodes>2", "met": False, "name": "nodes", "value": 3, "limit": "2", "baseline": None}
    assert (size["met"], size["fail_if"], size["value"]) == (True, "bytes > 1 MB", 64)
    assert "gates" not in json.loads(command("inspect", model, "--json").out)
    Path("baseline.json").write_text(done.out, encoding="utf-8")  # such a record is a baseline too
    compared = command("inspect", model, "--json", "--baseline", "baseline.json", "--fail-if", "nodes>baseline")
    assert [(gate["met"], gate["baseline"]) for gate in json.loads(compared.out)["gates"]] == [(True, 3)]


@pytest.mark.medium
def test_json_of_several_models_has_the_gates_of_each(command: Command, model: Path) -> None:
    shutil.copy(model, "other.onnx")
    done = command("inspect", model, "other.onnx", "--json", "--fail-if", "nodes>2")
    assert done.code == 4
    assert [[gate["met"] for gate in each["gates"]] for each in json.loads(done.out)] == [[False], [False]]


@pytest.mark.parametrize(
    ("arguments", "failing"),
    [
        (["compare", "m.onnx", "small.onnx"], "removed>1"),
        (["adopt", "m.onnx"], "placed<200%"),
        (["extract", "m.onnx", "-m", "layer", "-o", "layer.onnx"], "nodes>2"),
        (["verify", "m.onnx", "small.onnx"], "max_err<1"),
        (["analyze", "m.onnx"], "operations>1"),
        (["inspect", "m.onnx", "--module", "layer"], "nodes>=3"),
        (["inspect", "m.onnx", "--opportunities"], "nodes_after<3"),
        (["optimize", "m.onnx", "-o", "again.onnx"], "nodes_removed>=60%"),
    ],
)
def test_each_verb_evaluates_its_gates(command: Command, model: Path, arguments: list[str], failing: str) -> None:
    assert command("optimize", model, "-o", "small.onnx", "-q").code == 0
    result = command(*arguments, "-q", "--summary", "page.md", "--fail-if", failing)
    assert (result.code, result.err.count("\n")) == (4, 1)
    assert f"gate not met: {failing}" in result.err
    assert ": 1 of 1 gate not met\n" in Path("page.md").read_text(encoding="utf-8")


def test_an_earlier_record_is_the_baseline(command: Command, model: Path) -> None:
    assert command("optimize", model, "-o", "a.onnx", "--record", "run.json", "-q").code == 0
    gates = [
        "--fail-if",
        "nodes > baseline",
        "--fail-if",
        "file_bytes > baseline + 1%",
        "--fail-if",
        "max_err>baseline",
    ]
    same = command("optimize", model, "-o", "b.onnx", "-q", "--baseline", "run.json", *gates)
    assert (same.code, same.err) == (0, "")
    worse = command(
        "optimize", model, "-o", "c.onnx", "-q", "--skip", "eliminate-identity", "--baseline", "run.json", *gates
    )
    assert worse.code == 4
    assert "error: gate not met: nodes > baseline (nodes is 2, limit 1, baseline 1)\n" in worse.err


def test_each_command_appends_a_section_to_the_ci_summary(command: Command, model: Path) -> None:
    page = Path("page.md")
    page.write_text("# Job\n", encoding="utf-8")
    Path("looked.json").write_text(command("inspect", model, "--json").out, encoding="utf-8")
    command("inspect", model, "-q", "--summary", page, "--baseline", "looked.json")
    command("inspect", model, "-q", "--summary", page, "--fail-if", "nodes>3", "--fail-if", "bytes > 8")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Job\n\n### ✅ Inspection: done\n")
    assert "| nodes | 3 | 3 | · |" in text
    assert "### ❌ Inspection: 1 of 2 gates not met" in text
    assert "| nodes>3 | 3 | 3 |  | ok |" in text
    assert "| bytes > 8 | 64 | 8 |  | ❌ not met |" in text


def test_the_ci_summary_reports_a_failed_verification(command: Command, model: Path) -> None:
    write_model(Path("other.onnx"), scale=2.0)
    failed = command("verify", model, "other.onnx", "-q", "--summary", "page.md", "--fail-if", "max_err>1e9")
    assert failed.code == 3
    text = Path("page.md").read_text(encoding="utf-8")
    assert text.startswith("### ❌ Verdict: failed\n")
    assert "max\\_err" in text or "max_err" in text


@pytest.mark.parametrize("option", [["--summary", "page.md"], ["--summary=page.md"]])
def test_the_ci_summary_reports_why_a_command_failed(command: Command, model: Path, option: list[str]) -> None:
    assert command("inspect", "missing.onnx", *option).code == 2
    text = Path("page.md").read_text(encoding="utf-8")
    assert text.startswith("### ❌ sardonyx inspect: failed\n\n")
    assert "missing.onnx" in text
    before = model.read_bytes()
    assert command("inspect", "missing.onnx", "--summary", model).code == 2
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--fail-if", "nodes>baseline"], 2, "needs a baseline"),
        (["--baseline", "none.json", "--fail-if", "nodes>baseline"], 2, "cannot be read"),
        (["--baseline", "m.onnx", "--fail-if", "nodes>baseline"], 2, "is not JSON"),
        (["--baseline", "verdict.json", "--fail-if", "nodes>baseline"], 2, "is a verdict and has no nodes"),
        (["--baseline", "run.json"], 2, "is not used"),
        (["--summary", "m.onnx"], 2, "uses otherwise"),
        (["--summary", "run.json", "--baseline", "run.json"], 2, "uses otherwise"),
        (["--summary", "other.onnx"], 1, "is not a text file"),
        (["--summary", "nowhere/page.md"], 1, "in a folder that does not exist"),
        (["--summary", "."], 1, "a folder"),
        (["--fail-if", "max_err>1", "--verify", "off"], 2, "needs a verification"),
    ],
)
def test_invalid_requests_are_refused_before_any_work(
    command: Command, model: Path, options: list[str], code: int, message: str
) -> None:
    write_model(Path("other.onnx"))
    assert command("optimize", model, "-o", "a.onnx", "--record", "run.json", "-q").code == 0
    Path("verdict.json").write_text(command("verify", model, "a.onnx", "--json").out, encoding="utf-8")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    refused = command("optimize", model, "-o", "b.onnx", *options)
    assert (refused.code, refused.out) == (code, "")
    assert message in refused.err.splitlines()[0]
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


FACTORY = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(2, 4)
"""


def test_verbs_that_take_torch_models_evaluate_their_gates(command: Command, model: Path) -> None:
    Path("net.py").write_text(FACTORY, encoding="utf-8")
    made = command("export", "net.py:build", "-o", "net.onnx", "-q", "--record", "export.json", "--fail-if", "placed<1")
    assert (made.code, made.err) == (0, "")
    gates = ["--fail-if", "nodes > baseline", "--fail-if", "max_err>=0", "--fail-if", "coverage < baseline"]
    again = command("export", "net.py:build", "-o", "again.onnx", "-q", "--baseline", "export.json", *gates)
    assert again.code == 4
    assert again.err.startswith("error: gate not met: max_err>=0 (max_err is ")
    assert again.err.count("\n") == 1
    unproven = command("export", "net.py:build", "-o", "no.onnx", "--verify", "off", "--fail-if", "max_err>1")
    assert (unproven.code, Path("no.onnx").exists()) == (2, False)
    assert command("decompose", "net.py:build", "-q", "--fail-if", "attentions<1").code == 4
