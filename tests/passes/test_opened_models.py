"""Passes meet examples with values from outside, values without a shape, and operators that they do not know.

The models are not run: for some of them, the shape inference of onnx ends the process.
"""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from passes.near_models import foreign_models, opened_models
from passes.test_near_models import rewritten
from sardonyx.ir import io
from sardonyx.passes import ALL, Pass


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_values_from_outside_and_unknown_shapes_are_no_errors(one: Pass) -> None:
    for text in (one.example.before, one.example.near_miss):
        for _, proto in opened_models(onnx.parser.parse_model(text)):
            rewritten(one, io.from_proto(proto))


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_an_operator_of_another_domain_is_no_operator_of_the_standard(one: Pass) -> None:
    for what, proto in foreign_models(onnx.parser.parse_model(one.example.before)):
        after = rewritten(one, io.from_proto(proto))
        assert after is None or any(node.domain == "org.else" for node in after.graph.node), what
