"""`attest` writes an in-toto statement about the files of a run; `rederive` gives the same bytes, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.cli.main import run as run_command
from sardonyx.errors import UsageError

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N,64] x) => (float[N,64] y) <float[64,64] w> {
  a = Identity (x) b = MatMul (a, w) c = Sigmoid (b) d = Mul (b, c) e = Transpose (d) y = Transpose (e)
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, its result, a certificate and a record, each model with a data file."""
    folder = tmp_path_factory.mktemp("made")
    model = onnx.parser.parse_model(MODEL)
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.data")
    run = sardonyx.optimize(
        folder / "model.onnx",
        folder / "small.onnx",
        skip=["merge-reshapes"],
        certificate=folder / "certificate.json.gz",
    )
    (folder / "run.json").write_bytes(run.to_json())
    return folder


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder, whose record names the files of the original, which are gone for it."""
    for path in made.iterdir():
        text = path.read_bytes()
        (tmp_path / path.name).write_bytes(
            text.replace(str(made).encode(), b"/gone") if path.suffix == ".json" else text
        )
    return tmp_path


def digest(path: Path) -> dict[str, str]:
    return {"sha256": sha256(path.read_bytes()).hexdigest()}


def test_a_statement_names_every_file_with_its_digest_and_how_it_was_made(copied: Path) -> None:
    statement = sardonyx.attest(copied)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert [set(each) for each in statement["subject"]] == [{"name", "digest"}] * 2
    predicate = statement["predicate"]
    for files, names in (
        (statement["subject"], ["small.onnx", "small.onnx.data"]),
        (predicate["source"], ["model.onnx", "model.data"]),
        ([predicate["certificate"]], ["certificate.json.gz"]),
    ):
        assert files == [{"name": name, "digest": digest(copied / name)} for name in names]
    assert predicate["version"] == sardonyx.__version__
    assert (
        predicate["options"].items()
        >= {"target": "portable", "verify": "end", "seed": 0, "skip": ["merge-reshapes"]}.items()
    )
    without = sardonyx.attest(copied / "small.onnx", source=copied / "model.onnx")
    assert without["subject"] == statement["subject"]
    assert without["predicate"]["source"] == predicate["source"]
    given = {"source": copied / "model.onnx", "certificate": copied / "certificate.json.gz"}
    assert sardonyx.attest(copied / "small.onnx", **given)["predicate"]["certificate"] == predicate["certificate"]


def test_the_same_bytes_from_the_record_a_statement_and_the_metadata(copied: Path, capsys: Any) -> None:
    statement = copied / "statement.json"
    assert run_command(["attest", str(copied), "-o", str(statement)]) == 0
    assert json.loads(statement.read_text()) == sardonyx.attest(copied)
    assert run_command(["attest", str(copied), "-o", str(statement)]) == 1  # it exists
    assert run_command(["attest", str(copied)]) == 0
    assert capsys.readouterr().out == statement.read_text()
    assert run_command(["rederive", str(copied)]) == 0
    assert capsys.readouterr().out == f"the same bytes: {copied / 'small.onnx'} from {copied / 'model.onnx'}\n"
    assert sardonyx.rederive(statement).same
    assert sardonyx.rederive(copied / "small.onnx", source=copied / "model.onnx").same


def test_a_file_for_a_device_is_made_again(copied: Path) -> None:
    run = sardonyx.optimize(copied / "model.onnx", copied / "gpu.onnx", target="webgpu", verify="off")
    assert any(node.op_type == "QuickGelu" for node in run.to_proto().graph.node)  # ONNX Runtime's own
    assert (
        sardonyx.attest(copied / "gpu.onnx", source=copied / "model.onnx")["predicate"]["options"]["target"] == "webgpu"
    )
    assert sardonyx.rederive(copied / "gpu.onnx", source=copied / "model.onnx").same


def edited(path: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def _version(model: onnx.ModelProto) -> None:
    next(entry for entry in model.metadata_props if entry.key == "sardonyx.version").value = "0.0.1"


def _node(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Tanh"


def _constant(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].doc_string = "changed"


DIFFERENT: dict[str, tuple[Callable[[onnx.ModelProto], None], str]] = {
    "version": (_version, f"made with version 0.0.1, and this is {sardonyx.__version__}"),
    "node": (_node, "Tanh '' in the file, Sigmoid '' when made again"),
    "constant": (_constant, "constant 'w' in the file, another one when made again"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_the_first_difference_is_named(what: str, copied: Path, capsys: Any) -> None:
    change, reason = DIFFERENT[what]
    edited(copied / "small.onnx", change)
    assert run_command(["rederive", str(copied / "small.onnx"), "--source", str(copied / "model.onnx")]) == 3
    assert reason in capsys.readouterr().out


def test_options_that_were_changed_in_the_record_are_named(copied: Path) -> None:
    content = json.loads((copied / "run.json").read_bytes())
    content["options"]["skip"] = ["merge-casts"]
    (copied / "run.json").write_text(json.dumps(content))
    found = sardonyx.rederive(copied)
    assert not found.same
    assert found.difference.startswith("sardonyx.options ")
    assert "merge-reshapes" in found.difference
    assert "merge-casts" in found.difference


@pytest.mark.parametrize("name", ["small.onnx", "small.onnx.data", "model.onnx", "model.data", "certificate.json.gz"])
def test_a_file_that_is_not_the_recorded_one_is_refused(name: str, copied: Path) -> None:
    """The record has no digest of data files, the statement has."""
    statement = copied / "statement.json"
    statement.write_bytes(msgspec.json.encode(sardonyx.attest(copied)))
    data = bytearray((copied / name).read_bytes())
    data[-40 if name.endswith(".data") else 3] ^= 1
    if name == "certificate.json.gz":
        (copied / name).write_text("{}")
        with pytest.raises(UsageError, match="is no certificate of these files"):
            sardonyx.attest(copied)
        return
    (copied / name).write_bytes(data)
    found = sardonyx.rederive(statement)
    assert not found.same
    assert f"{copied / name} is not the" in found.difference
    if name.endswith(".onnx"):
        with pytest.raises(UsageError, match="that was recorded"):
            sardonyx.attest(copied)


BAD: dict[str, tuple[str, str]] = {
    "a source that is missing": ("small.onnx --source none.onnx", "none.onnx cannot be read: there is no such file"),
    "a source that is not named": ("small.onnx", "does not say where its source is"),
    "a file of another program": ("model.onnx", "was not written by `sardonyx optimize`"),
    "no such file": ("nothing", "nothing cannot be read: there is no such file"),
    "another statement": ("other.json", "is not a statement of `sardonyx attest`"),
    "another record": ("record.json", "is no 'run' record"),
    "no JSON": ("broken.json", "is no JSON object"),
    "wrong options": ("options.json", "the options in"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("verb", ["attest", "rederive"])
def test_bad_input_is_one_line_and_a_hint(
    verb: str, case: str, copied: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied)
    statement = sardonyx.attest(copied)
    Path("other.json").write_text(json.dumps(statement | {"predicate": {"builder": 1}}))
    statement["predicate"]["options"]["target"] = "moon"
    Path("options.json").write_text(json.dumps(statement))
    Path("broken.json").write_text("{")
    Path("record.json").write_text('{"record": "verdict", "schema_version": 1}')
    arguments, message = BAD[case]
    assert run_command([verb, *arguments.split()]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert message in error
    assert hint.startswith("hint: ")


def test_a_tuned_result_cannot_be_made_again(copied: Path) -> None:
    content = json.loads((copied / "run.json").read_bytes())
    content["options"]["tune"] = True
    (copied / "run.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="was tuned"):
        sardonyx.rederive(copied)
