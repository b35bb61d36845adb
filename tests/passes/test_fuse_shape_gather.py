"""Parts of a shape are read by one node, and views that only insert axes become one Unsqueeze."""

from __future__ import annotations

import pytest

from passes.util import assert_same_on_uneven_sizes, constant_of, graph_text, op_types, run_passes
from sardonyx.passes.broadcasting.fuse_shape_gather import FuseShapeGather
from sardonyx.passes.broadcasting.merge_reshapes_into_unsqueeze import MergeReshapesIntoUnsqueeze
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes

CONSTANTS = """<int64 at = {1}, int64 end = {-1}, int64[1] list = {1}, int64[2] two = {1, 2}, int64[2] gap = {0, 2},
    int64[1] zero = {0}, int64[1] far = {99}, int64[2] back = {2, 1}, int64[1] by_two = {2}>"""


def text(body: str) -> str:
    """Sizes of a value [B, S, N] as a list."""
    return graph_text(f"agraph (float[B, S, N] x) => (int64[K] y) {CONSTANTS} {{ s = Shape(x)  {body} }}")


@pytest.mark.parametrize(
    "body",
    [
        "g = Gather(s, at)  y = Unsqueeze(g, zero)",
        "g = Gather(s, end)  y = Unsqueeze(g, zero)",
        "y = Gather(s, list)",
        "y = Gather(s, two)",
        "y = Slice(s, list, far)",
        "y = Slice(s, zero, list, zero)",
    ],
)
def test_neighbouring_dims_are_read_at_once(body: str) -> None:
    model, _ = run_passes(text(body), [FuseShapeGather(), EliminateDeadNodes()])
    assert op_types(model) == ["Shape"]
    assert_same_on_uneven_sizes(text(body), model)


@pytest.mark.parametrize("body", ["y = Gather(s, gap)", "y = Gather(s, back)", "y = Slice(s, zero, far, zero, by_two)"])
def test_other_dims_are_not(body: str) -> None:
    model, log = run_passes(text(body), [FuseShapeGather()])
    assert not log.events
    assert_same_on_uneven_sizes(text(body), model)


def test_axes_inserted_one_after_the_other() -> None:
    body = graph_text("""
        agraph (float[B, S] x) => (float[B, 1, S, 1] y, float[1, B, S] z)
        <int64[1] zero = {0}, int64[2] more = {2, 4}, int64[4] shape = {0, 1, -1, 1}> {
            a = Tanh(x)  z = Unsqueeze(a, zero)  b = Unsqueeze(z, more)  y = Squeeze(b, zero)
        }""")
    model, _ = run_passes(body, [MergeReshapesIntoUnsqueeze()])
    assert_same_on_uneven_sizes(body, model)
    assert [tuple(constant_of(n.inputs[1])) for n in model.graph if n.op_type == "Unsqueeze"] == [
        (0,),
        (0, 2, 4),
    ]


def test_a_reshape_that_moves_an_axis_stays() -> None:
    body = graph_text("""
        agraph (float[B, S] x) => (float[S, B] y) <int64[1] flat = {-1}, int64[1] list = {1}, int64[1] zero = {0}> {
            a = Tanh(x)  s = Shape(x)  n = Gather(s, list)  b = Gather(s, zero)  t = Concat <axis = 0> (n, b)
            f = Reshape(a, flat)  y = Reshape(f, t)
        }""")
    model, log = run_passes(body, [MergeReshapesIntoUnsqueeze()])
    assert not log.events
    assert_same_on_uneven_sizes(body, model)
