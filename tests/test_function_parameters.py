"""Functions whose nodes take attributes from parameters, `Softmax <axis = @axis>`: every operator, every attribute."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from backend.cases import Case, node_cases
from backend.harness import wrong_values
from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.scopes import UnknownAttribute
from sardonyx.runtime import Session

SOFTMAX = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[N, 4] x) => (float[N, 4] y) { y = Softmax <axis = 1> (x) }"""
DOMAIN = "test.functions"
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
VALUES = ("f", "i", "s", "t", "floats", "ints", "strings", "tensors")


@functools.cache
def wrapped_cases() -> tuple[Case, ...]:
    """One case for each operator and set of attributes: a function with a node that takes all of them as parameters."""
    kept: dict[tuple[str, ...], Case] = {}
    for case in node_cases():
        nodes = case.model.graph.node
        attributes = nodes[0].attribute
        if len(nodes) == 1 and attributes and not any(attribute.HasField("g") for attribute in attributes):
            key = (nodes[0].op_type, *sorted(attribute.name for attribute in attributes))
            if key not in kept:
                kept[key] = Case(case.name, wrapped(case.model), case.data, case.rtol, case.atol)
    return tuple(kept.values())


def wrapped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its node in a function, between nodes that passes remove: x + 0 before it, Identity after it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (node,) = copy.graph.node
    call = onnx.NodeProto()
    call.CopyFrom(node)
    call.domain, call.op_type = DOMAIN, "Wrapped"
    types = {info.name: info.type.tensor_type.elem_type for info in copy.graph.input}
    inner, before = onnx.NodeProto(), list[onnx.NodeProto]()
    inner.CopyFrom(node)
    inputs = [f"in{index}" for index in range(len(node.input))]
    for index, name in enumerate(node.input):
        inner.input[index] = inputs[index] if name else ""
        if types.get(name) in FLOATS:
            before += _plus_zero(index, types[name])
            inner.input[index] = f"sum{index}"
    for attribute in inner.attribute:
        for field in VALUES:
            attribute.ClearField(field)
        attribute.ref_attr_name = attribute.name
    after = [helper.make_node("Identity", [f"raw{i}"], [f"out{i}"]) for i, name in enumerate(node.output) if name]
    for index, name in enumerate(node.output):
        inner.output[index] = f"raw{index}" if name else ""
    body = [*before, inner, *after]
    names = [attribute.name for attribute in node.attribute]
    outputs = [f"out{index}" for index in range(len(node.output))]
    function = helper.make_function(DOMAIN, "Wrapped", inputs, outputs, body, copy.opset_import, names)
    copy.opset_import.add(domain=DOMAIN, version=1)
    copy.functions.append(function)
    node.CopyFrom(call)
    return copy


def _plus_zero(index: int, kind: int) -> Iterator[onnx.NodeProto]:
    zero = onnx.numpy_helper.from_array(np.zeros((), helper.tensor_dtype_to_np_dtype(kind)))
    yield helper.make_node("Constant", [], [f"zero{index}"], value=zero)
    yield helper.make_node("Add", [f"in{index}", f"zero{index}"], [f"sum{index}"])


def check(step: int, verify: str) -> int:
    """Optimize some of the cases that the runtime computes, and return how many there were."""
    checked = 0
    for case in wrapped_cases()[::step]:
        if wrong_values(case, case.model, Session):
            continue
        checked += 1
        try:
            made = sardonyx.optimize(case.model, verify=verify)  # pyright: ignore[reportArgumentType]  # a literal
        except RuntimeFailure as failure:
            if "none of the generated inputs" not in failure.message:
                raise
            continue
        assert not wrong_values(case, made.to_proto(), Session), case.name
        if made.verdict is not None and made.verdict.rewrites is not None:
            assert not made.verdict.rewrites.failed, made.verdict.rewrites.error
    return checked


@pytest.mark.slow
@pytest.mark.parametrize(("step", "verify"), [(5, "off"), (40, "end")])
def test_some_operators(step: int, verify: str) -> None:
    assert check(step, verify) > 120 // step


@pytest.mark.campaign
@pytest.mark.parametrize("verify", ["off", "end"])
def test_all_operators(verify: str) -> None:
    assert check(1, verify) > 120


def test_reading_a_parameter_is_an_error_and_never_a_default() -> None:
    """In all the ways in which onnx-ir reads attributes, also from a copy."""
    model = io.from_proto(wrapped(onnx.parser.parse_model(SOFTMAX))).clone()
    (function,) = model.functions.values()
    node = next(node for node in function if node.op_type == "Softmax")
    for read in (lambda: node.attributes.get_int("axis", -1), lambda: node.attributes["axis"].as_int()):
        with pytest.raises(UnknownAttribute, match="axis is a parameter of the function"):
            read()
    assert io.to_proto(model).functions[0].node[2].attribute[0].ref_attr_name == "axis"
