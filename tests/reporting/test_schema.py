"""The published JSON Schemas match the code, and records pass through JSON unchanged."""

from __future__ import annotations

import importlib.resources
import json
from collections import Counter

import jsonschema
import pytest

import schemas
from reporting.sample_run import sample_run
from sardonyx.errors import UsageError
from sardonyx.records.run import Run

PACKAGED = importlib.resources.files("sardonyx.records") / "schemas"


@pytest.mark.parametrize("name", list(schemas.SCHEMAS))
def test_the_published_schema_is_current(name: str) -> None:
    text = (PACKAGED / name).read_text(encoding="utf-8")
    assert text == schemas.published(name), "run: python tests/schemas.py"
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_every_field_of_a_run_is_in_the_schema() -> None:
    schema = json.loads((PACKAGED / "run.schema.json").read_text(encoding="utf-8"))
    fields = schema["$defs"]["Run"]["properties"]
    assert set(json.loads(sample_run().to_json())) == set(fields)


def test_a_run_reads_back_equal() -> None:
    assert Run.from_json(sample_run().to_json()) == sample_run()


def test_a_run_with_a_wrong_field_is_refused() -> None:
    broken = json.loads(sample_run().to_json())
    broken["before"]["nodes"] = "many"
    with pytest.raises(UsageError, match=r"before\.nodes"):
        Run.from_json(json.dumps(broken))


def test_the_sample_adds_up() -> None:
    run = sample_run()
    assert sum(module.before for module in run.modules) == run.before.nodes
    assert sum(module.after for module in run.modules) == run.after.nodes
    assert sum(module.bytes_before for module in run.modules) == run.before.bytes
    assert sum(module.bytes_after for module in run.modules) == run.after.bytes
    assert sum(record.nodes for record in run.passes) == run.after.nodes - run.before.nodes
    for record in run.passes:
        assert Counter(event.owner for event in run.events if event.pass_name == record.name) == record.modules
