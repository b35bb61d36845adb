"""The metadata that says how a model was made."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

from sardonyx.ir import metadata


def _model() -> ir.Model:
    return ir.Model(ir.Graph((), (), nodes=(), opset_imports={"": 20}), ir_version=10)


def test_options_that_were_not_given_are_left_out_and_earlier_commands_stay() -> None:
    model = _model()
    metadata.write_options(model, "export", {"seed": 0, "opset": None, "with_past": False})
    metadata.write_options(model, "optimize", {"target": "ort", "keep_modules": (), "skip": ["a"]})
    options = json.loads(model.metadata_props[metadata.OPTIONS])
    assert options == {"export": {"seed": 0}, "optimize": {"target": "ort", "skip": ["a"]}}


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000])
def test_what_another_program_wrote_there_is_replaced(text: str) -> None:
    model = _model()
    model.metadata_props[metadata.OPTIONS] = text
    metadata.write_options(model, "optimize", {"target": "ort"})
    assert json.loads(model.metadata_props[metadata.OPTIONS]) == {"optimize": {"target": "ort"}}
