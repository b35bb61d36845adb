"""Every flag reaches the verb, every outcome has its exit code, and standard output has the result alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reporting.sample_run import failed_verdict, sample_run, sample_verdict
from sardonyx.errors import ModelError, OutputError, RuntimeFailure, UsageError, VerificationFailed
from sardonyx.records.run import Run
from sardonyx.verbs.optimize.options import OptimizeOptions

Command = Callable[..., Any]


def options(**given: Any) -> OptimizeOptions:
    """The options of a command; files are hashed only for a record."""
    return OptimizeOptions(hashes=False, **given)


DEFAULTS = {
    "target": "portable",
    "verify": "end",
    "only": None,
    "skip": None,
    "inputs": None,
    "seed": 0,
    "threads": None,
    "force": False,
    "dry_run": False,
    "certificate": None,
    "tune": False,
    "options": options(),
    "progress": None,
}


def test_optimize_uses_the_defaults_and_derives_the_output_name(stage: Any, command: Command) -> None:
    assert command("optimize", "dir.v1/model.onnx", "--dry-run").code == 0
    assert stage.asked == [((Path("dir.v1/model.onnx"), None), DEFAULTS | {"dry_run": True})]


def test_without_an_output_the_result_is_beside_the_source(stage: Any, command: Command, tmp_path: Path) -> None:
    command("optimize", tmp_path / "model.onnx")
    assert stage.asked[0][0] == (tmp_path / "model.onnx", tmp_path / "model.optimized.onnx")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--target", "ort"], {"target": "ort"}),
        (["--verify", "each"], {"verify": "each"}),
        (["--verify", "off"], {"verify": "off"}),
        (["--verify-seconds", "90"], {"options": options(verify_seconds=90.0)}),
        (["--runtime", "ort", "--runtime", "openvino"], {"options": options(runtimes=("ort", "openvino"))}),
        (["--only", "a", "--only", "b"], {"only": ["a", "b"]}),
        (["--skip", "a"], {"skip": ["a"]}),
        (["--fewest-nodes"], {"options": options(fewest_nodes=True)}),
        (["--max-opset", "20"], {"options": options(max_opset=20)}),
        (["--keep-opset"], {"options": options(keep_opset=True)}),
        (["--allow-growth"], {"options": options(allow_growth=True)}),
        (["--inputs", "x.npz"], {"inputs": Path("x.npz")}),
        (["--seed", "7"], {"seed": 7}),
        (["--threads", "2"], {"threads": 2}),
        (["--force"], {"force": True}),
        (["-f"], {"force": True}),
        (["--external-data"], {"options": options(external=True)}),
        (["--inline"], {"options": options(external=False)}),
        (["--reproducer", "wrong"], {"options": options(reproducer="wrong")}),
    ],
)
def test_optimize_passes_every_flag_on(
    stage: Any, command: Command, tmp_path: Path, flags: list[str], expected: dict[str, object]
) -> None:
    output = tmp_path / "small.onnx"
    assert command("optimize", "model.onnx", "-o", output, *flags).code == 0
    assert stage.asked == [((Path("model.onnx"), output), DEFAULTS | expected)]


def test_files_are_hashed_where_a_record_holds_the_hashes(stage: Any, command: Command, tmp_path: Path) -> None:
    for flags in (["--record", tmp_path / "record.json"], ["--json"]):
        command("optimize", "model.onnx", "-o", tmp_path / "small.onnx", *flags)
    assert [given["options"].hashes for _, given in stage.asked] == [True, True]


def test_verify_passes_every_flag_on(stage: Any, command: Command) -> None:
    flags = ["--inputs", "x.npz", "--seed", 3, "--threads", 1, "--verify-seconds", 5, "--runtime", "reference"]
    assert command("verify", "a", "b", *flags, "--rtol", "1e-3", "--atol", 0).code == 0
    asked = {
        "rtol": 1e-3,
        "atol": 0.0,
        "inputs": Path("x.npz"),
        "seeds": (3, 4, 5, 6),
        "seconds": 5.0,
        "runtimes": ["reference"],
        "threads": 1,
        "progress": None,
    }
    assert stage.asked == [((Path("a"), Path("b")), asked)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["optimize"],
        ["optimize", "a", "b"],
        ["optimise", "a"],
        ["optimize", "a", "--target", "gpu"],
        ["optimize", "a", "--verify", "sometimes"],
        ["optimize", "a", "--seed", "x"],
        ["optimize", "a", "--seed", "-1"],
        ["optimize", "a", "--threads", "0"],
        ["optimize", "a", "-q", "-v"],
        ["optimize", "a", "--dry-run", "--record", "r.json"],
        ["optimize", "a", "--keep-opset", "--max-opset", "20"],
        ["optimize", "a", "-o", "same", "--record", "./same"],
        ["optimize", "a", "--fail-if", "nodes"],
        ["optimize", "a", "--fail-if", "node>3"],
        ["optimize", "a", "--verify", "off", "--fail-if", "max_abs>1"],
        ["optimize", "a", "--dry-run", "--fail-if", "max_abs>1"],
        ["verify", "a"],
        ["verify", "a", "b", "--fail-if", "nodes>3"],
        ["inspect", "a", "--depth", "-1"],
        ["inspect", "a", "--dept", "3"],
        [],
    ],
)
def test_invalid_options_exit_2_before_any_work(stage: Any, command: Command, arguments: list[str]) -> None:
    result = command(*arguments)
    assert (result.code, result.out, stage.asked) == (2, "", [])
    error, hint = result.err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("there is no pass 'x'", hint="did you mean y?"), 2),
        (ModelError("not a model", hint="export it again"), 1),
        (OutputError("disk full", hint="free some space"), 1),
        (RuntimeFailure("no kernel", hint="another build"), 1),
        (VerificationFailed("they differ", hint="look at -v"), 3),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",), ("-q",)])
def test_user_errors_are_one_line_and_a_hint(
    stage: Any, command: Command, error: Any, code: int, flags: tuple[str, ...]
) -> None:
    stage.error = error
    result = command("optimize", "nowhere.onnx", *flags)
    assert (result.code, result.out) == (code, "")
    assert result.err == f"error: {error.message}\nhint: {error.hint}\n"


def test_debug_shows_the_traceback_too(stage: Any, command: Command) -> None:
    stage.error = ModelError("not a model")
    result = command("optimize", "nowhere.onnx", "--debug")
    assert result.code == 1
    assert "Traceback" in result.err
    assert result.err.endswith("error: not a model\n")


def test_internal_errors_are_one_line_that_names_debug(stage: Any, command: Command) -> None:
    stage.error = ZeroDivisionError("oh\nno \x1b[31m")
    result = command("optimize", "nowhere.onnx")
    assert (result.code, result.out) == (1, "")
    error, hint = result.err.splitlines()
    assert error == r"error: unexpected failure: ZeroDivisionError: oh no \x1b[31m"
    assert "--debug" in hint
    assert "Traceback" in command("optimize", "nowhere.onnx", "--debug").err


def test_interruption_exits_130_quietly(stage: Any, command: Command) -> None:
    stage.error = KeyboardInterrupt()
    result = command("optimize", "nowhere.onnx")
    assert (result.code, result.out, result.err) == (130, "", "interrupted\n")


def test_a_run_that_failed_verification_exits_3_and_is_still_shown(stage: Any, command: Command) -> None:
    stage.run = replace(sample_run(), status="verification-failed", verdict=failed_verdict())
    result = command("optimize", "model.onnx", "--fail-if", "nodes>1")
    assert result.code == 3
    assert "pooler_output differs by 0.5" in result.out
    in_json = command("optimize", "model.onnx", "--json")
    assert (in_json.code, json.loads(in_json.out)["status"]) == (3, "verification-failed")


def test_models_that_differ_exit_3(stage: Any, command: Command) -> None:
    stage.verdict = failed_verdict()
    result = command("verify", "a.onnx", "b.onnx", "--fail-if", "max_abs>0.1")
    assert (result.code, result.err) == (3, "")
    assert "DIFFERS" in result.out
    assert result.out.splitlines()[-1].startswith("verification failed: pooler_output differs by 0.5")
    in_json = command("verify", "a.onnx", "b.onnx", "--json")
    assert (in_json.code, json.loads(in_json.out)["passed"]) == (3, False)
    assert in_json.err == "error: the two models do not compute the same\n"


def test_gates_exit_4_after_the_result_was_shown(stage: Any, command: Command) -> None:
    result = command("optimize", "model.onnx", "--fail-if", "nodes>500", "--fail-if", "nodes>120")
    assert result.code == 4
    assert result.err == "error: gate not met: nodes>120 (nodes is 187)\n"
    assert result.out.rstrip().endswith("→ small.onnx")
    assert command("optimize", "model.onnx", "--fail-if", "nodes>500").code == 0
    assert command("verify", "a.onnx", "b.onnx", "--fail-if", "max_abs>1e-9").code == 4
    assert command("verify", "a.onnx", "b.onnx", "--fail-if", "max_abs>1e-3").code == 0


def test_json_is_the_record_alone(stage: Any, command: Command) -> None:
    result = command("optimize", "model.onnx", "--json")
    assert Run.from_json(result.out) == stage.run
    assert result.err == ""
    assert json.loads(command("verify", "a", "b", "--json").out)["trials"]


def test_quiet_is_one_line_and_verbose_is_more(stage: Any, command: Command) -> None:
    quiet, plain, verbose = (command("optimize", "model.onnx", *flag).out for flag in (["-q"], [], ["-v"]))
    assert quiet.count("\n") == 1
    assert plain.endswith(quiet)
    assert "skipped 3×" not in plain
    assert "skipped 3×" in verbose
    assert command("verify", "a.onnx", "b.onnx", "-q").out == (
        "same outputs on 12 trials (12 % of the tolerance used): b.onnx against a.onnx\n"
    )


def test_the_record_is_written_and_never_overwrites_another(stage: Any, command: Command, tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    output = tmp_path / "small.onnx"
    words = ("optimize", "model.onnx", "-o", output, "--record", record)
    assert command(*words).code == 0
    assert Run.from_json(record.read_bytes()) == stage.run
    assert list(tmp_path.iterdir()) == [record]
    record.write_text("mine")
    result = command("optimize", "model.onnx", "-o", output, "--record", record)
    assert (result.code, record.read_text(), len(stage.asked)) == (1, "mine", 1)
    assert "--force" in result.err
    assert command(*words, "-f").code == 0
    assert Run.from_json(record.read_bytes()) == stage.run


@pytest.mark.parametrize("flag", ["-o", "--record"])
def test_an_invalid_destination_is_refused_before_any_work(
    stage: Any, command: Command, tmp_path: Path, flag: str
) -> None:
    for impossible in (tmp_path, tmp_path / "no" / "such" / "folder"):
        result = command("optimize", "model.onnx", flag, impossible)
        assert (result.code, result.out, stage.asked) == (1, "", [])
        assert result.err.count("\n") == 2


def test_a_path_with_odd_bytes_is_shown_and_does_not_crash(stage: Any, command: Command) -> None:
    stage.verdict = sample_verdict()
    result = command("verify", "a\udcff.onnx", "b\x1b[31m.onnx")
    assert result.code == 0
    assert r"b\x1b[31m.onnx against a\udcff.onnx" in result.out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("opt", "m.onnx"), "did you mean optimize?"),
        (("ex",), "did you mean export or extract?"),
        (("qqq",), "there are export, optimize, verify"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(arguments: Sequence[str], hint: str, command: Command) -> None:
    result = command(*arguments)
    assert (result.code, result.out) == (2, "")
    assert f"there is no command '{arguments[0]}'" in result.err
    assert hint in result.err


@pytest.mark.parametrize(
    "verb", ["optimize", "inspect", "extract", "adopt", "dag", "bench", "profile", "verify", "compare"]
)
def test_a_missing_model_is_reported_before_an_existing_output(verb: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").touch()
    second = [tmp_path / "tiny.onnx"] if verb in ("verify", "compare") else []
    output = ["-o", tmp_path / "tiny.onnx"] if verb in ("optimize", "extract", "adopt", "dag") else []
    result = command(verb, tmp_path / "tyny.onnx", *second, *output)
    assert (result.code, result.out) == (2, "")
    assert "tyny.onnx cannot be read: there is no such file" in result.err
    assert "did you mean tiny.onnx?" in result.err
