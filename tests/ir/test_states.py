"""A state that a model declares: its first value, and several runs in a row as one model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.util import graph_text
from sardonyx.ir import io
from sardonyx.ir.metadata import (
    declared_state,
    first_value,
    in_a_row,
    numbered,
    outside_limits,
    read_state,
    write_limits,
    write_state,
)
from sardonyx.runtime import Session

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("first", "initial"),
    [
        (np.zeros((2, 3), np.float32), 0.0),
        (np.zeros((0, 3), np.float32), 0),
        (np.full(3, NAN), "nan"),
        (np.full(3, -INF), "-inf"),
        (np.array([1, 2]), [1, 2]),
        (np.array([[1.5, INF]]), [[1.5, "inf"]]),
        (np.array([NAN, 1.0]), ["nan", 1.0]),
        (np.array([1.0, NAN]), [1.0, "nan"]),
        (np.array([True, True]), True),
        (np.array([True, False]), [True, False]),
        (np.array(2.5, np.float16), 2.5),
        (np.zeros(1 << 17), 0.0),
        (np.arange(1 << 16), list(range(1 << 16))),
        (np.arange((1 << 16) + 1), None),
    ],
)
def test_the_first_value_of_a_state_is_stored_and_read(first: np.ndarray, initial: Any) -> None:
    state = declared_state("s", "t", first)
    assert state.initial == initial
    wanted = np.zeros_like(first) if initial is None else first
    np.testing.assert_array_equal(first_value(state, np.ones_like(first)), wanted)
    if first.ndim and initial is not None and np.ndim(initial):
        np.testing.assert_array_equal(first_value(state, np.ones(7)), np.zeros(7))


COUNTER = graph_text("""agraph (float[N, 2] x, float[2] total, int64 count) =>
    (float[N, 2] y, float[2] total_after, float[2] half, int64 count_after)
    <int64[1] rows = {0}, float two = {2}, int64 one = {1}> {
        y = Add(x, total)
        sum = ReduceSum <keepdims = 0> (x, rows)
        total_after = Add(total, sum)
        half = Div(total, two)
        count_after = Add(count, one)
    }""")


def test_runs_in_a_row_continue_each_others_state() -> None:
    proto = onnx.parser.parse_model(COUNTER)
    model = io.from_proto(proto)
    first = {"total": np.array([1.0, 2.0], np.float32), "count": np.array(5)}
    names = {"total": "total_after", "count": "count_after"}
    write_state(model, tuple(declared_state(name, names[name], array) for name, array in first.items()))
    assert list(read_state(model)) == ["total", "count"]
    rng = np.random.default_rng(0)
    for calls in (1, 2, 3):
        xs = [rng.standard_normal((rows, 2)).astype(np.float32) for rows in (2, 1, 4)[:calls]]
        state, wanted = dict(first), list[np.ndarray]()
        single = Session(proto, threads=1)
        for x in xs:
            y, total, half, count = (np.asarray(each) for each in single.run({"x": x, **state}))
            state = {"total": total, "count": count}
            wanted += [y, half]
        whole = in_a_row(model, first, calls)
        assert [value.name for value in whole.graph.inputs] == [numbered("x", number) for number in range(calls)]
        feeds = {numbered("x", number): x for number, x in enumerate(xs)}
        results = Session(io.to_proto(whole), threads=1).run(feeds)
        for result, expected in zip(results, [*wanted, state["total"], state["count"]], strict=True):
            np.testing.assert_array_equal(np.asarray(result), expected)


def test_a_declaration_that_does_not_fit_is_none() -> None:
    model = io.from_proto(onnx.parser.parse_model(COUNTER))
    assert read_state(model) == {}
    write_state(model, ())
    assert "sardonyx.state" not in model.metadata_props
    states = tuple(declared_state(name, output, np.zeros(2)) for name, output in
                   (("total", "total_after"), ("nobody", "half"), ("count", "nobody")))  # fmt: skip
    write_state(model, states)
    assert list(read_state(model)) == ["total"]
    for text in ("[", "[]", "1", '{"total": 1}', '{"total": {}}'):
        model.metadata_props["sardonyx.state"] = text
        assert read_state(model) == {}


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ({"batch": 4}, None),
        ({"batch": 5}, "batch is 5, at most 4"),
        ({"batch": 0}, "batch is 0, at least 1"),
        ({"batch": 1}, None),
        ({"past": 6, "N": 2}, None),
        ({"past": 6, "N": 3}, "past + N is 9, at most 8"),
        ({"past": 9}, None),
        ({}, None),
    ],
)
def test_sizes_are_within_the_limits_or_not(sizes: dict[str, int], limit: str | None) -> None:
    model = io.from_proto(onnx.parser.parse_model(COUNTER))
    assert outside_limits(model, sizes) is None
    write_limits(model, ["batch at most 4", "batch at least 1", "past + N at most 8", "something else"])
    assert outside_limits(model, sizes) == limit
    model.metadata_props[next(name for name in model.metadata_props if "limit" in name or "size" in name)] = "no JSON"
    assert outside_limits(model, sizes) is None


def test_the_module_that_stands_in_for_sympy_defers_its_functions() -> None:
    import sardonyx.ir as package

    stand_in = package._StandIn("sympy")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(AttributeError):
        _ = stand_in.__path__
    assert isinstance(stand_in.gcd, package._Deferred)  # pyright: ignore[reportPrivateUsage]
    assert stand_in.gcd(4, 6) == 2
    stand_in.importing = False
    assert stand_in.gcd(4, 6) == 2
    assert not isinstance(stand_in.gcd, package._Deferred)  # pyright: ignore[reportPrivateUsage]
    finder = package._Deferring()  # pyright: ignore[reportPrivateUsage]
    assert finder.find_spec("onnx.helper", onnx.__path__) is None
    spec = finder.find_spec("onnx.parser", onnx.__path__)
    assert spec is not None
    assert type(spec.loader).__name__ == "LazyLoader"
    assert finder.find_spec("onnx.gen_proto", []) is None


CONTRIB = [
    ("y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, k, v)", ("B", "S", 6)),
    ("y = com.microsoft.MultiHeadAttention <num_heads = 2> (x4, k, v)", None),
    ("y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, k, x4)", None),
    ("y = com.microsoft.Attention <num_heads = 2> (x, packed)", ("B", "S", 4)),
    ("y = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [4, 4, 4]> (x, packed)", ("B", "S", 4)),
    ("y = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [5, 5, 2]> (x, packed)", ("B", "S", 2)),
    ("y = com.microsoft.Attention <num_heads = 2> (flat, packed)", None),
    ("y = com.microsoft.Attention <num_heads = 2> (x, v)", None),
    ("y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (x, k, v, p, p, i, i)", ("B", "S", 4)),
    ("y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (x, , , p, p, i, i)", None),
    ("y = com.microsoft.SkipLayerNormalization (x, x, w)", ("B", "S", 4)),
    ("y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, w)", ("B", "S", 4)),
    ("y = com.microsoft.MatMulNBits <K = 4, N = 10, bits = 4, block_size = 16> (x, bits, w)", ("B", "S", 10)),
    ("y = com.microsoft.GatherBlockQuantized <block_size = 16> (bits2, i, scales)", ("B", 48)),
    ("y = com.microsoft.GatherBlockQuantized <gather_axis = 1, block_size = 16> (bits2, i, scales)", None),
    ("y = com.microsoft.GatherBlockQuantized <quantize_axis = 0, block_size = 16> (bits2, i, scales)", None),
    ("y = com.microsoft.GatherBlockQuantized (bits2, i, x)", None),
    ("y = com.microsoft.FusedMatMul <transB = 1> (x, x)", ("B", "S", "S")),
    ("y = com.microsoft.FusedMatMul <transBatchA = 1> (x, x)", None),
    ("y = com.microsoft.BiasGelu (x, w)", ("B", "S", 4)),
    ("y = com.microsoft.QuickGelu (x)", ("B", "S", 4)),
    ("y = Attention <q_num_heads = 2, kv_num_heads = 2> (x, k, v)", ("B", "S", 6)),
    ("y = Attention <q_num_heads = 2, kv_num_heads = 2> (flat, k, v)", None),
    ("y = Attention <kv_num_heads = 2> (x, k, v)", None),
    ("y = RandomNormal <shape = [2, 3]> ()", (2, 3)),
    ("y = RandomUniform <shape = [2, 3], dtype = 11> ()", (2, 3)),
    ("y = MatMul(x, w)", ("B", "S")),
    ("y = MatMul(w, w)", ()),
    ("y = MatMul(one, x)", None),
    ("y = MatMul(x, one)", None),
]


@pytest.mark.parametrize(("body", "shape"), CONTRIB)
def test_the_shapes_of_the_runtimes_own_operators(body: str, shape: tuple[Any, ...] | None) -> None:
    from sardonyx.ir.facts import Facts
    from sardonyx.ir.shapes import expr

    text = f"""agraph (float[B, S, 4] x, float[B, T, 4] k, float[B, T, 6] v, float[B, S, 2, 2] x4, float[S, 4] flat,
        float[4, 12] packed, float[B, 1, 9, 4] p, int32[B] i, float[4] w, uint8[10, 1, 8] bits, uint8[100, 24] bits2,
        float[100, 3] scales, float one) => (float y) {{ {body} }}"""
    proto = onnx.parser.parse_model(graph_text(text, 23).replace("]>", ', "com.microsoft" : 1]>', 1))
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    graph = ir.from_proto(proto)
    facts = Facts(graph)
    facts.infer()
    found = facts.shape(graph.graph.outputs[0])
    wanted = None if shape is None else tuple(expr.symbol(dim) if isinstance(dim, str) else dim for dim in shape)
    assert found == wanted
    assert "Random" in body or facts.dtype(graph.graph.outputs[0]) is ir.DataType.FLOAT
