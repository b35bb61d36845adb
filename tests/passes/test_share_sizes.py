"""Equal sizes are computed once, in any form; others stay."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, run_passes
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.share_sizes import ShareSizes

PASSES = (ShareSizes(), EliminateDeadNodes())
CONSTANTS = """<int64 first = {0}, int64 second = {1}, int64[1] a0 = {0}, int64[1] a1 = {1}, int64[1] two = {2},
    int64[1] minus = {-1}, int64 zero = {0}>"""

# Another form of the first dim of float[N, M, 2], and whether it is recognized as the same scalar.
WAYS = [
    ("t = Shape(x)  b = Gather(t, first)", True),
    ("r = Relu(x)  t = Shape(r)  b = Gather(t, first)", True),
    ("p = Transpose <perm = [1, 0, 2]> (x)  t = Shape(p)  b = Gather(t, second)", True),
    ("t = Shape <start = 0, end = 1> (x)  b = Squeeze(t, a0)", True),
    ("c = Concat <axis = 0> (x, x)  t = Shape(c)  d = Gather(t, first)  w = Squeeze(two, a0)  b = Div(d, w)", True),
    ("t = Shape(x)  d = Gather(t, first)  b = Add(d, zero)", True),
    ("t = Shape(x)  b = Gather(t, second)", False),
    ("c = Concat <axis = 0> (x, x)  t = Shape(c)  b = Gather(t, first)", False),
    ("k = NonZero(x)  t = Shape(k)  b = Gather(t, second)", False),
]


@pytest.mark.parametrize(("way", "same"), WAYS)
def test_equal_sizes_are_shared(way: str, same: bool) -> None:
    text = graph_text(f"""agraph (float[N, M, 2] x) => (int64 y, int64 z) {CONSTANTS} {{
        s = Shape(x)  a = Gather(s, first)  y = Neg(a)  {way}  z = Abs(b) }}""")
    model, _ = run_passes(text, PASSES)
    left = op_types(model)
    assert (sorted(left) == ["Abs", "Gather", "Neg", "Shape"]) == same
    assert_same(text, model)


def test_a_list_is_not_shared_with_a_scalar_and_types_are_kept() -> None:
    text = graph_text(f"""agraph (float[N, 2] x) => (int64 y, int64[1] z, int32 w) {CONSTANTS} {{
        s = Shape(x)  a = Gather(s, first)  y = Neg(a)  b = Gather(s, a0)  z = Neg(b)
        c = Cast <to = 6> (a)  w = Neg(c) }}""")
    model, log = run_passes(text, PASSES)
    assert not log.events
    assert_same(text, model)


def test_an_output_keeps_its_name_and_its_producer() -> None:
    text = graph_text(f"""agraph (float[N, 2] x) => (int64 y, int64 b) {CONSTANTS} {{
        s = Shape(x)  a = Gather(s, first)  y = Neg(a)  r = Relu(x)  t = Shape(r)  b = Gather(t, first) }}""")
    model, _ = run_passes(text, PASSES)
    assert [value.name for value in model.graph.outputs] == ["y", "b"]
    assert_same(text, model)
