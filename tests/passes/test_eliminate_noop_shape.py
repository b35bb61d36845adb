"""Operators that rearrange nothing are removed, unless that is so only for one possible size."""

from __future__ import annotations

import onnx
import pytest

from passes.util import assert_same, graph_text, op_types, parse, run_passes
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes.cleanup.eliminate_noop_shape import EliminateNoopShape

PASSES = (EliminateNoopShape(),)
CONSTANTS = """<
    int64[0] none = {}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] minus = {-1},
    int64[1] big = {9223372036854775807}, int64[2] zeros = {0, 0}, int64[2] ones = {1, 1},
    int64[1] low = {-100}, int64[2] bigs = {2147483647, 2147483647},
    int64[4] nopads = {0, 0, 0, 0}, int64[4] pads = {0, 1, 0, -1}, int64[2] keep = {0, 4}, int64[2] infer = {-1, 4},
    int64[2] copy = {0, -1}, int64[2] swap = {4, -1}, int64[2] both = {2, 4}, int64[3] more = {1, 1, 4}, float f = {0}
>"""

# The call, the type of x, the opset, and whether it is removed.
CALLS = [
    ("Cast <to = 1> (a)", "float[N, 4]", 18, True),
    ("Cast <to = 11> (a)", "float[N, 4]", 18, False),
    ("CastLike(a, f)", "float[N, 4]", 18, True),
    ("Reshape(a, keep)", "float[N, 4]", 18, True),
    ("Reshape(a, infer)", "float[N, 4]", 18, True),
    ("Reshape(a, copy)", "float[N, 4]", 18, True),
    ("Reshape(a, copy)", "float[N, M]", 18, True),
    ("Reshape(a, zeros)", "float[N, M]", 18, True),
    ("Reshape(a, infer)", "float[N, M]", 18, False),
    ("Reshape(a, swap)", "float[N, 4]", 18, False),
    ("Reshape(a, swap)", "float[4, 4]", 18, True),
    ("Reshape(a, both)", "float[2, 4]", 18, True),
    ("Reshape(a, both)", "float[4, 2]", 18, False),
    ("Reshape <allowzero = 1> (a, keep)", "float[0, 4]", 18, True),
    ("Reshape <allowzero = 1> (a, zeros)", "float[N, M]", 18, False),
    ("Reshape(a, more)", "float[1, 4]", 18, False),
    ("Transpose <perm = [0, 1]> (a)", "float[N, 4]", 18, True),
    ("Transpose <perm = [1, 0]> (a)", "float[4, 4]", 18, False),
    ("Transpose(a)", "float[N]", 18, True),
    ("Transpose(a)", "float[N, N]", 18, False),
    ("Expand(a, four)", "float[N, 4]", 18, True),
    ("Expand(a, ones)", "float[N, M]", 18, True),
    ("Expand(a, four)", "float[N, M]", 18, False),
    ("Expand(a, both)", "float[2, 4]", 18, True),
    ("Expand(a, both)", "float[1, 4]", 18, False),
    ("Expand(a, more)", "float[1, 4]", 18, False),
    ("Slice(a, zero, big, one)", "float[N, M]", 18, True),
    ("Slice(a, zeros, bigs)", "float[N, M]", 18, True),
    ("Slice(a, zero, four, one)", "float[N, 4]", 18, True),
    ("Slice(a, zero, four, minus)", "float[N, 4]", 18, True),
    ("Slice(a, zero, four, zero)", "float[N, 4]", 18, False),
    ("Slice(a, zero, minus, one)", "float[N, 4]", 18, False),
    ("Slice(a, one, big, one)", "float[N, 4]", 18, False),
    ("Slice(a, minus, big, one)", "float[N, 1]", 18, True),
    ("Slice(a, minus, low, one, minus)", "float[N, 4]", 18, False),  # the same shape, reversed
    ("Slice <starts = [0], ends = [4], axes = [1]> (a)", "float[N, 4]", 9, True),
    ("Slice <starts = [0], ends = [3], axes = [1]> (a)", "float[N, 4]", 9, False),
    ("Pad(a, nopads)", "float[N, 4]", 18, True),
    ('Pad <mode = "reflect"> (a, nopads)', "float[3, 4]", 18, True),
    ("Pad(a, pads)", "float[N, 4]", 18, False),
    ("Pad <pads = [0, 0, 0, 0]> (a)", "float[N, 4]", 10, True),
    ("Tile(a, ones)", "float[N, 4]", 18, True),
    ("Tile(a, both)", "float[N, 4]", 18, False),
    ("Squeeze(a)", "float[2, 4]", 18, True),
    ("Squeeze(a)", "float[N, 4]", 18, False),
    ("Squeeze(a)", "float[1, 4]", 18, False),
    ("Unsqueeze(a, none)", "float[N, 4]", 18, True),
    ("Unsqueeze(a, zero)", "float[N, 4]", 18, False),
    ("Unsqueeze <axes = [0]> (a)", "float[N, 4]", 11, False),
    ("Flatten(a)", "float[N, 4]", 18, True),
    ("Flatten <axis = -1> (a)", "float[N, 4]", 18, True),
    ("Flatten <axis = 0> (a)", "float[1, 4]", 18, False),
    ("Flatten(a)", "float[N, 4, 1]", 18, False),
    ("Split <num_outputs = 1> (a)", "float[N, 4]", 18, True),
    ("Concat <axis = 1> (a)", "float[N, 4]", 18, True),
    ("Concat <axis = 1> (a, a)", "float[N, 4]", 18, False),
    ("Sum(a)", "float[N, 4]", 18, True),
    ("Max(a)", "float[N, 4]", 18, True),
    ("Min(a)", "float[N, 4]", 18, True),
    ("Mean(a)", "float[N, 4]", 18, True),
    ("Mean(a, f)", "float[N, 4]", 18, False),
]


@pytest.mark.parametrize(("call", "kind", "opset", "goes"), CALLS)
def test_it_is_removed_exactly_if_nothing_changes(call: str, kind: str, opset: int, goes: bool) -> None:
    rank = _rank_after(call, kind)
    result = "double" if "to = 11" in call else "float"
    dims = ", ".join(f"D{axis}" for axis in range(rank))
    text = graph_text(
        f"agraph ({kind} x) => ({result}[{dims}] y) {CONSTANTS} {{ a = Neg(x)  b = {call}  y = Abs(b) }}", opset
    )
    model, _ = run_passes(text, PASSES)
    assert (op_types(model) == ["Neg", "Abs"]) == goes
    if goes:
        assert_same(text, model)


def _rank_after(call: str, kind: str) -> int:
    rank = kind.count(",") + 1
    if call.startswith(("Reshape(a, more", "Expand(a, more")):
        return 3
    if call.startswith("Unsqueeze") and "none" not in call:
        return rank + 1
    if call.startswith("Squeeze") and "1, 4" in kind:
        return 1
    return 2 if call.startswith("Flatten") else rank


def test_a_wrong_shape_annotation_is_ignored() -> None:
    """The file declares that b has the shape of a; the inferred shape is used instead."""
    body = "{ a = Neg(x)  b = Reshape(a, s)  y = Abs(b) }"
    proto = parse(graph_text(f"agraph (float[2, 3] x) => (float[A, B] y) <int64[2] s = {{3, 2}}> {body}"))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2, 3]))
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    model = io.from_proto(copy)
    Rewriter(Facts(model), PASSES).run()
    assert op_types(model) == ["Neg", "Reshape", "Abs"]


@pytest.mark.parametrize("call", ["Reshape(a, s)", "Expand(a, s)"])
def test_a_view_to_its_own_computed_shape_is_removed(call: str) -> None:
    text = graph_text(
        f"agraph (float[N, M] x) => (float[N, M] y) {{ a = Neg(x)  s = Shape(x)  b = {call}  y = Abs(b) }}"
    )
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Neg", "Shape", "Abs"]
    assert_same(text, model)


def test_an_omitted_optional_input_does_not_count() -> None:
    text = graph_text("""
        agraph (float[N, 4] x) => (float[N, 4] y)
        <int64[2] z = {0, 0}, int64[2] e = {2147483647, 2147483647}, int64[2] s = {1, 1}> {
            a = Slice(x, z, e, , s)  y = Abs(a)
        }""")
    model, _ = run_passes(text, PASSES)
    assert op_types(model) == ["Abs"]
    assert_same(text, model)
