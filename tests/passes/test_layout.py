"""Axes traced through views: the conversion is checked by applying it to numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sardonyx.ir.facts import Facts
from sardonyx.passes._layout import (
    Axes,
    AxisPart,
    Conversion,
    conversion,
    flat,
    new_axes,
    regroup,
    same_axes,
    sizes,
    trace,
)


def chain_model(
    shape: tuple[int, ...], steps: Sequence[tuple[str, Any]], dims: list[Any] | None = None
) -> onnx.ModelProto:
    """A model of Reshape, Transpose, Expand and Gather nodes on x, with a final Relu."""
    nodes, constants, value = [], [], "x"
    for index, (kind, numbers) in enumerate(steps):
        if kind == "Transpose":
            nodes.append(helper.make_node("Transpose", [value], [f"v{index}"], perm=numbers))
        elif kind == "Mul":
            constants.append(numpy_helper.from_array(np.array(numbers, np.float32), f"c{index}"))
            nodes.append(helper.make_node("Mul", [f"c{index}", value], [f"v{index}"]))
        elif kind == "Gather":
            axis, place = numbers
            constants.append(numpy_helper.from_array(np.array(place, np.int64), f"c{index}"))
            nodes.append(helper.make_node("Gather", [value, f"c{index}"], [f"v{index}"], axis=axis))
        else:
            constants.append(numpy_helper.from_array(np.array(numbers, np.int64), f"c{index}"))
            nodes.append(helper.make_node(kind, [value, f"c{index}"], [f"v{index}"]))
        value = f"v{index}"
    nodes.append(helper.make_node("Relu", [value], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims or shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def traced(proto: onnx.ModelProto) -> Any:
    """The trail of the operand of the last node."""
    model = ir.from_proto(proto)
    facts = Facts(model)
    facts.infer()
    last = list(model.graph)[-1]
    value = last.inputs[0]
    assert value is not None
    trail = trace(value, facts, node=last, scales=True)
    assert trail is not None
    return trail


def applied(steps: Conversion, array: np.ndarray) -> np.ndarray:
    """Apply the steps to numbers."""
    for step in steps:
        if step.operator == "Transpose":
            array = array.transpose(step.numbers)
        else:
            target = [array.shape[index] if dim == 0 else dim for index, dim in enumerate(step.numbers)]
            array = array.reshape(target)
        assert array.shape == step.shape
    return array


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    """A shape and steps that only move elements."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    steps: list[tuple[str, Any]] = []
    now = list(shape)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            perm = draw(st.permutations(range(len(now))))
            steps.append(("Transpose", perm))
            now = [now[axis] for axis in perm]
        else:
            now = _other_shape(draw, math.prod(now))
            steps.append(("Reshape", now))
    return shape, steps


def _other_shape(draw: st.DrawFn, count: int) -> list[int]:
    factors: list[int] = []
    while count > 1 and len(factors) < 4:
        factor = draw(st.sampled_from([each for each in range(1, count + 1) if count % each == 0]))
        factors.append(factor)
        count //= factor
    return [*factors, count]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(chains())
def test_the_conversion_from_the_source_equals_the_chain(chain: tuple[tuple[int, ...], list[tuple[str, Any]]]) -> None:
    shape, steps = chain
    trail = traced(chain_model(shape, steps))
    x = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    wanted = x
    for kind, numbers in steps:
        wanted = wanted.transpose(numbers) if kind == "Transpose" else wanted.reshape(numbers)
    if trail.source.value.name == "x":  # a Reshape across parts that do not divide each other ends the trail
        there = conversion(trail.source.axes, trail.axes)
        assert there is not None
        assert len(there) <= 3
        np.testing.assert_array_equal(applied(there, x), wanted)
        back = conversion(trail.axes, trail.source.axes)
        assert back is not None
        np.testing.assert_array_equal(applied(back, wanted), x)


def test_splitting_and_merging_heads_needs_nothing() -> None:
    steps = [
        ("Reshape", [2, 5, 3, 4]),
        ("Transpose", [0, 2, 1, 3]),
        ("Transpose", [0, 2, 1, 3]),
        ("Reshape", [2, 5, 12]),
    ]
    trail = traced(chain_model((2, 5, 12), steps))
    assert trail.source.value.name == "x"
    assert same_axes(trail.axes, trail.source.axes)


def test_named_dims_are_followed_through_a_flattened_batch() -> None:
    """[S, B, E] as [S, B * heads, width], transposed, and split again."""
    steps = [("Reshape", [0, -1, 4]), ("Transpose", [1, 0, 2]), ("Reshape", [-1, 3, 7, 4])]
    trail = traced(chain_model((7, 2, 12), steps, [7, "B", 12]))
    assert trail.source.value.name == "x"
    converted = conversion(trail.source.axes, trail.axes)
    assert converted is not None
    x = np.arange(7 * 2 * 12, dtype=np.float32).reshape(7, 2, 12)
    want = x.reshape(7, 6, 4).transpose(1, 0, 2).reshape(2, 3, 7, 4)
    for step in converted:
        x = (
            x.transpose(step.numbers)
            if step.operator == "Transpose"
            else x.reshape([x.shape[i] if d == 0 else d for i, d in enumerate(step.numbers)])
        )
    np.testing.assert_array_equal(x, want)


def test_factors_selections_and_repetitions_are_reported() -> None:
    steps = [
        ("Mul", [[0.5]]),
        ("Reshape", [2, 5, 3, 4, 2]),
        ("Transpose", [2, 0, 3, 1, 4]),
        ("Gather", (0, -2)),
        ("Reshape", [2, 4, 1, 5, 2]),
        ("Expand", [2, 4, 3, 5, 2]),
        ("Reshape", [2, 12, 5, 2]),
    ]
    trail = traced(chain_model((2, 5, 24), steps))
    assert trail.source.value.name == "x"
    assert trail.source.factor == 0.5
    assert [part.picked for part in flat(trail.source.axes) if part.picked is not None] == [1]
    heads = flat([trail.axes[1]])
    assert [(part.size, part.repeats) for part in heads] == [(4, False), (3, True)]


def test_a_trail_ends_at_a_product_with_a_vector() -> None:
    trail = traced(chain_model((2, 3), [("Mul", [1.0, 2.0, 3.0])]))
    assert trail.source.value.name == "v0"


def test_shapes_that_do_not_divide_have_no_trail() -> None:
    assert regroup(flat(new_axes((6, 6))), (4, 9)) is None
    assert regroup(flat(new_axes((6, 6))), (3, 12)) is not None


def test_dims_of_one_need_no_extra_reshape() -> None:
    h, s, d = AxisPart(3), AxisPart(5), AxisPart(4)
    have: Axes = [[], [s], [h, d]]
    want: Axes = [[], [h], [s], [d]]
    steps = conversion(have, want)
    assert steps is not None
    assert [step.operator for step in steps] == ["Reshape", "Transpose"]
    assert steps[-1].shape == sizes(want)
