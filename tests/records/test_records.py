"""Every kind of record has its tag in JSON, is read back equal, and is refused with another tag or version."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

import sardonyx
from reporting.gate.sample_records import records, write_model
from reporting.sample_run import sample_run
from sardonyx.cli import main
from sardonyx.errors import UsageError
from sardonyx.records import reading
from sardonyx.records.base import SCHEMA_VERSION, Record
from sardonyx.records.export import Export
from sardonyx.records.run import Run

TAGS = list(reading.kinds())


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """One record of every kind, by its tag."""
    folder = tmp_path_factory.mktemp("records")
    made: list[Record] = [*records(folder).values(), sardonyx.dag(folder / "m.onnx")]
    return {each.record_tag(): each for each in made}


def changed(record: Record, path: Path, /, **fields: object) -> Path:
    """The file of a record with some fields replaced, or removed if the new value is None."""
    document = json.loads(record.to_json()) | fields
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
    return path


@pytest.mark.parametrize("tag", TAGS)
def test_every_kind_is_read_back_equal(tag: str, every: dict[str, Record], tmp_path: Path) -> None:
    record = every[tag].plain()
    document = json.loads(record.to_json())
    assert (document["record"], document["schema_version"]) == (tag, SCHEMA_VERSION)
    jsonschema.validate(document, type(record).json_schema())
    path = tmp_path / "r.json"
    path.write_bytes(record.to_json())
    back = reading.read_file(path, "r.json", "")
    assert type(back) is reading.kinds()[tag]
    assert back.to_json() == record.to_json()  # `options` may hold tuples, which JSON reads back as lists
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("tag", TAGS)
def test_every_kind_is_refused_in_another_version_or_without_one(
    tag: str, every: dict[str, Record], tmp_path: Path
) -> None:
    for version in (99, 0, "1", None):
        path = changed(every[tag], tmp_path / "r.json", schema_version=version)
        refused = f"is {kind_of(tag).title} of schema version {version}, and this sardonyx reads version 1$"
        with pytest.raises(UsageError, match="^r.json " + refused):
            reading.read_file(path, "r.json", "")
        with pytest.raises(UsageError, match="^the text " + refused):
            kind_of(tag).from_json(path.read_bytes())


@pytest.mark.parametrize("tag", TAGS)
def test_every_kind_is_refused_without_its_tag_or_with_another(
    tag: str, every: dict[str, Record], tmp_path: Path
) -> None:
    path = changed(every[tag], tmp_path / "r.json", record=None)
    with pytest.raises(UsageError, match="no record of sardonyx: it has no field 'record'"):
        reading.read_file(path, "r.json", "")
    with pytest.raises(UsageError, match=f"the text is no '{tag}' record: its field 'record' is None"):
        kind_of(tag).from_json(path.read_bytes())
    path = changed(every[tag], tmp_path / "r.json", record="graph")
    with pytest.raises(UsageError, match="a record of an unknown kind: 'graph'"):
        reading.read_file(path, "r.json", "")
    with pytest.raises(UsageError, match=f"the text is no '{tag}' record: its field 'record' is 'graph'"):
        kind_of(tag).from_json(path.read_bytes())


def kind_of(tag: str) -> type[Record]:
    return reading.kinds()[tag]


def test_the_tag_decides_and_not_the_fields(every: dict[str, Record], tmp_path: Path) -> None:
    path = changed(every["run"], tmp_path / "r.json", record="export")
    with pytest.raises(UsageError, match="not a complete record of an export: "):
        reading.read_file(path, "r.json", "")


def test_the_version_of_a_nested_record_is_checked_too(every: dict[str, Record]) -> None:
    export = every["export"]
    assert isinstance(export, Export)
    document = json.loads(replace(export, optimized=sample_run()).to_json())
    assert document["optimized"]["record"] == "run"
    document["optimized"]["schema_version"] = 99
    with pytest.raises(UsageError, match=r"not a complete record of an export: .*optimized\.schema_version"):
        Export.from_json(json.dumps(document))


def test_what_a_verb_adds_to_its_record_is_not_in_the_json(tmp_path: Path) -> None:
    run = sardonyx.optimize(write_model(tmp_path / "m.onnx"))
    assert type(run) is not Run
    assert run.model is not None
    assert "model" not in json.loads(run.to_json())
    assert type(run.plain()) is Run
    assert Run.from_json(run.to_json()).to_json() == run.plain().to_json()


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        sample_run().status = "failed"  # pyright: ignore[reportAttributeAccessIssue]
    assert replace(sample_run(), status="failed").status == "failed"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"record": None}, "it has no field 'record'"),
        ({"record": "graph"}, "a record of an unknown kind: 'graph'"),
        ({"schema_version": 99}, "an optimization of schema version 99, and this sardonyx reads version 1"),
    ],
)
def test_the_command_line_gives_one_line_and_exit_code_2(
    fields: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(sample_run(), tmp_path / "r.json", **fields)
    model = write_model(tmp_path / "m.onnx")
    for words in (("report", path), ("inspect", model, "--baseline", path, "--fail-if", "nodes > baseline")):
        assert main.run([str(word) for word in words]) == 2
        first, *others = capsys.readouterr().err.splitlines()
        assert message in first
        assert [line.split(":")[0].strip() for line in others] == ["hint"]


def test_records_of_a_newer_sardonyx_may_have_more_fields(tmp_path: Path) -> None:
    path = changed(sample_run(), tmp_path / "r.json", novelty=1)
    assert reading.read_file(path, "r.json", "") == sample_run()
    assert msgspec.json.decode(path.read_bytes())["novelty"] == 1
