"""The sizes that an exported graph is for, as its metadata declares them."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

from sardonyx.ir import metadata


def model() -> ir.Model:
    return ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}), ir_version=10)


def test_limits_of_dimensions_and_sums_and_other_conditions_are_declared() -> None:
    made = model()
    notes = ("x:1 stays 8: torch fixes it", "batch at most 4", "past + sequence at most 16, according to the config")
    metadata.write_limits(made, (*notes, "batch at least 2", "exported for sizes with length != 9"))
    assert json.loads(made.metadata_props[metadata.LIMITS]) == {
        "limits": {"batch": {"max": 4, "min": 2}, "past + sequence": {"max": 16}},
        "conditions": ["length != 9"],
    }
    assert metadata.outside_limits(made, {"batch": 4, "past": 8, "sequence": 8}) is None
    assert metadata.outside_limits(made, {"batch": 5}) == "batch is 5, at most 4"
    assert metadata.outside_limits(made, {"batch": 1}) == "batch is 1, at least 2"
    assert metadata.outside_limits(made, {"past": 9, "sequence": 8}) == "past + sequence is 17, at most 16"
    assert metadata.outside_limits(made, {"past": 17}) is None  # the sum is not known


def test_a_graph_without_limits_declares_none() -> None:
    made = model()
    metadata.write_limits(made, ("x:1 stays 8: torch fixes it",))
    assert metadata.LIMITS not in made.metadata_props


@pytest.mark.parametrize("text", ["", "[]", "{", '{"limits": 3}', '{"limits": {"n": {"max": "4"}}}', "[" * 100_000])
def test_what_another_program_wrote_there_is_ignored(text: str) -> None:
    made = model()
    made.metadata_props[metadata.LIMITS] = text
    assert metadata.outside_limits(made, {"n": 5}) is None
