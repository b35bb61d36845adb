"""Heads that are split only for Attention are split by the operator, for every form of reshapes and transposes."""

from __future__ import annotations

import pytest

from passes.util import assert_same, draw, graph_text, op_types, parse, reasons, run_passes
from sardonyx.passes.attention.fuse_attention import FuseAttention
from sardonyx.passes.attention.merge_attention_heads import MergeAttentionHeads

SWAP = "Transpose <perm = [0, 2, 1, 3]>"


def model(body: str, inputs: str, constants: str, result: str = "float[2, 5, 8] y") -> str:
    """A graph at the first opset with Attention."""
    return graph_text(f"agraph ({inputs}) => ({result}) <{constants}> {{ {body} }}", 23)


def merged(text: str) -> tuple[list[str], dict[str, int]]:
    """The operators and numbers of heads afterwards."""
    after, log = run_passes(text, [MergeAttentionHeads()])
    assert log.events, reasons(log)
    assert_same(text, after, exact=False)
    node = next(node for node in after.graph if node.op_type == "Attention")
    return op_types(after), {name: node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads")}


HEADS = "int64[4] heads = {0, 0, 2, 4}, int64[3] rows = {0, 0, 8}"
SPLIT = f"qr = Reshape(x, heads)  q = {SWAP} (qr)  kr = Reshape(z, heads)  k = {SWAP} (kr)  v = Tanh(k)"
MERGE = f"t = {SWAP} (a)  y = Reshape(t, rows)"


@pytest.mark.parametrize("dims", [("2", "5", "3"), ("B", "S", "T"), ("B", "S", "S"), ("1", "5", "3")])
def test_inputs_and_outputs_are_rows(dims: tuple[str, str, str]) -> None:
    batch, queries, keys = dims
    inputs = f"float[{batch}, {queries}, 8] x, float[{batch}, {keys}, 8] z, float[{queries}, {keys}] m"
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  kr = Reshape(z, heads)  k = {SWAP} (kr)
        n = Tanh(z)  vr = Reshape(n, heads)  v = {SWAP} (vr)  a = Attention <scale = 0.4> (q, k, v, m)  {MERGE}"""
    ops, heads = merged(model(body, inputs, HEADS, f"float[{batch}, {queries}, 8] y"))
    assert ops == ["Tanh", "Attention"]
    assert heads == {"q_num_heads": 2, "kv_num_heads": 2}


def test_groups_of_queries_share_heads() -> None:
    body = f"""qr = Reshape(x, six)  q = {SWAP} (qr)  kr = Reshape(z, two)  k = {SWAP} (kr)
        n = Tanh(z)  vr = Reshape(n, two)  v = {SWAP} (vr)  a = Attention (q, k, v)
        t = {SWAP} (a)  y = Reshape(t, rows)"""
    constants = "int64[4] six = {0, 0, 6, 4}, int64[4] two = {0, 0, 2, 4}, int64[3] rows = {0, 0, -1}"
    ops, heads = merged(model(body, "float[2, 5, 24] x, float[2, 3, 8] z", constants, "float[2, 5, 24] y"))
    assert ops == ["Tanh", "Attention"]
    assert heads == {"q_num_heads": 6, "kv_num_heads": 2}


EXTRA = {
    "present": ("pk, pv", "float[2, 2, 3, 4] pk, float[2, 2, 3, 4] pv"),
    "scores": (", , qk", "float[2, 2, 5, 3] qk"),
    "all": ("pk, pv, qk", "float[2, 2, 3, 4] pk, float[2, 2, 3, 4] pv, float[2, 2, 5, 3] qk"),
    "unused": ("pk, pv", ""),
}


@pytest.mark.parametrize("extra", EXTRA)
def test_further_outputs_stay(extra: str) -> None:
    """A prefill returns its keys and values, with separate heads in both forms."""
    names, typed = EXTRA[extra]
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  kr = Reshape(z, heads)  k = {SWAP} (kr)
        n = Tanh(z)  vr = Reshape(n, heads)  v = {SWAP} (vr)
        a, {names} = Attention <qk_matmul_output_mode = 3> (q, k, v)  {MERGE}"""
    result = ", ".join(filter(None, ("float[2, 5, 8] y", typed)))
    ops, _ = merged(model(body, "float[2, 5, 8] x, float[2, 3, 8] z", HEADS, result))
    assert ops == ["Tanh", "Attention"]


def test_keys_may_be_read_before_the_result() -> None:
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  kr = Reshape(z, heads)  k = {SWAP} (kr)
        n = Tanh(z)  vr = Reshape(n, heads)  v = {SWAP} (vr)
        a, pk, pv = Attention (q, k, v)  w = Neg(pk)  {MERGE}"""
    text = model(body, "float[2, 5, 8] x, float[2, 3, 8] z", HEADS, "float[2, 5, 8] y, float[2, 2, 3, 4] w")
    assert merged(text)[0] == ["Tanh", "Attention", "Neg"]


PICKS = "int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}"


@pytest.mark.parametrize("batch", ["2", "B", "1"])
def test_packed_operands_are_split_once(batch: str) -> None:
    body = f"""r = Reshape(x, apart)  tt = Transpose <perm = [2, 0, 3, 1, 4]> (r)
        q = Gather <axis = 0> (tt, i0)  k = Gather <axis = 0> (tt, i1)  v = Gather <axis = 0> (tt, i2)
        a = Attention (q, k, v)  {MERGE}"""
    constants = f"int64[5] apart = {{-1, 5, 3, 2, 4}}, int64[3] rows = {{-1, 5, 8}}, {PICKS}"
    ops, _ = merged(model(body, f"float[{batch}, 5, 24] x", constants, f"float[{batch}, 5, 8] y"))
    assert ops == ["Split", "Attention"]


def test_packed_operands_in_another_order_are_selected_correctly() -> None:
    """Values first, then queries, then keys."""
    body = f"""r = Reshape(x, apart)  tt = Transpose <perm = [2, 0, 3, 1, 4]> (r)
        q = Gather <axis = 0> (tt, i1)  k = Gather <axis = 0> (tt, i2)  v = Gather <axis = 0> (tt, i0)
        a = Attention (q, k, v)  {MERGE}"""
    constants = f"int64[5] apart = {{2, 5, 3, 2, 4}}, int64[3] rows = {{0, 0, 8}}, {PICKS}"
    ops, _ = merged(model(body, "float[2, 5, 24] x", constants))
    assert ops == ["Split", "Attention"]


def test_length_as_the_first_axis() -> None:
    """[length, batch, width] with the heads merged into the batch, and a result reshaped to a matrix."""
    body = """
        qr = Reshape(x, flat)  qt = Transpose <perm = [1, 0, 2]> (qr)  q = Reshape(qt, apart)
        kx = Tanh(x)  kr = Reshape(kx, flat)  kt = Transpose <perm = [1, 0, 2]> (kr)  k = Reshape(kt, apart)
        a = Attention (q, k, k)  t = Transpose <perm = [2, 0, 1, 3]> (a)  y = Reshape(t, matrix)"""
    constants = "int64[3] flat = {5, 4, 4}, int64[4] apart = {2, 2, 5, 4}, int64[2] matrix = {10, 8}"
    ops, _ = merged(model(body, "float[5, 2, 8] x", constants, "float[10, 8] y"))
    assert ops.count("Transpose") == 3
    assert len(ops) == 6


def test_operands_split_before_a_norm_are_merged_by_a_view() -> None:
    """The number of nodes is the same, but copies are avoided."""
    body = (
        f"""q = {SWAP} (x)  k = {SWAP} (z)  vr = Reshape(w, heads)  v = {SWAP} (vr)  a = Attention (q, k, v)  {MERGE}"""
    )
    inputs = "float[2, 5, 2, 4] x, float[2, 3, 2, 4] z, float[2, 3, 8] w"
    ops, _ = merged(model(body, inputs, HEADS))
    assert sorted(ops) == ["Attention", "Reshape", "Reshape"]


def test_it_follows_the_fusion() -> None:
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  kr = Reshape(x, heads)  k = Transpose <perm = [0, 2, 3, 1]> (kr)
        vr = Reshape(x, heads)  v = {SWAP} (vr)  qs = Mul(q, c)
        s = MatMul(qs, k)  p = Softmax(s)  a = MatMul(p, v)  {MERGE}"""
    text = model(body, "float[B, S, 8] x", f"{HEADS}, float c = {{0.5}}", "float[B, S, 8] y")
    after, _ = run_passes(text, [FuseAttention(), MergeAttentionHeads()])
    assert op_types(after) == ["Attention"]
    assert_same(text, after, exact=False)


def test_values_that_others_read_stay() -> None:
    body = f"{SPLIT.replace('v = Tanh(k)', '')} a = Attention (q, k, k)  {MERGE}"
    text = model(body, "float[2, 5, 8] x, float[2, 3, 8] z", HEADS, "float[2, 5, 8] y, float[2, 2, 3, 4] k")
    after, _ = run_passes(text, [MergeAttentionHeads()])
    assert sorted(op_types(after)) == ["Attention", "Reshape", "Transpose"]
    assert_same(text, after, exact=False)


NEAR_MISSES = {
    "takes as many nodes as it saves": (
        f"{SPLIT}  a = Attention (q, k, v)  y = Identity(a)",
        ("float[2, 5, 8] x, float[2, 3, 8] z", HEADS, "float[2, 2, 5, 4] y"),
    ),
    "the number of heads is unknown": (
        f"q = {SWAP} (x)  a = Attention (q, q, q)  t = {SWAP} (a)  y = Relu(t)",
        ("float[2, 5, H, 4] x", HEADS, "float[2, 5, H, 4] y"),
    ),
}


@pytest.mark.parametrize("reason", NEAR_MISSES)
def test_near_misses_have_reasons(reason: str) -> None:
    body, rest = NEAR_MISSES[reason]
    text = model(body, *rest)
    after, log = run_passes(text, [MergeAttentionHeads()])
    assert not log.events
    assert any(reason in each for each in reasons(log))
    assert "Attention" in op_types(after)


def test_a_cache_keeps_its_heads() -> None:
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  a, pk, pv = Attention (q, q, q, , oldk, oldv)  {MERGE}"""
    inputs = "float[2, 5, 8] x, float[2, 2, 3, 4] oldk, float[2, 2, 3, 4] oldv"
    result = "float[2, 5, 8] y, float[2, 2, 8, 4] pk, float[2, 2, 8, 4] pv"
    assert merged(model(body, inputs, HEADS, result)) == (["Attention"], {"q_num_heads": 2, "kv_num_heads": 2})


def test_lengths_of_one_and_more_give_the_same_rows() -> None:
    """The same rows for sizes of one and of more than one."""
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  a = Attention (q, q, q)  {MERGE}"""
    text = model(body, "float[B, S, 8] x", HEADS, "float[B, S, 8] y")
    after, _ = run_passes(text, [MergeAttentionHeads()])
    for sizes in ({"B": 1, "S": 1}, {"B": 3, "S": 1}, {"B": 1, "S": 6}):
        assert_same(text, after, exact=False, feeds=draw(parse(text), 0, sizes))


CUTS = {
    "split and squeezed": """s0, s1, s2 = Split <axis = 0, num_outputs = 3> (tt)
        q = Squeeze(s0, i0)  k = Squeeze(s1, i0)  v = Squeeze(s2, i0)""",
    "sliced and squeezed": """s0 = Slice(tt, i0, i1, i0)  s1 = Slice(tt, i1, i2, i0)  s2 = Slice(tt, last, end, i0)
        q = Squeeze(s0, i0)  k = Squeeze(s1, i0)  v = Squeeze(s2, i0)""",
}


@pytest.mark.parametrize("cut", CUTS)
def test_packed_operands_split_in_other_ways(cut: str) -> None:
    body = f"""r = Reshape(x, apart)  tt = Transpose <perm = [2, 0, 3, 1, 4]> (r)  {CUTS[cut]}
        a = Attention (q, k, v)  {MERGE}"""
    constants = """int64[5] apart = {-1, 5, 3, 2, 4}, int64[3] rows = {-1, 5, 8}, int64[1] i0 = {0}, int64[1] i1 = {1},
        int64[1] i2 = {2}, int64[1] last = {-1}, int64[1] end = {9}"""
    ops, _ = merged(model(body, "float[B, 5, 24] x", constants, "float[B, 5, 8] y"))
    assert ops == ["Split", "Attention"]


def test_rows_already_split_are_not_split_again() -> None:
    body = f"""s0, s1, s2 = Split <axis = 2, num_outputs = 3> (x)
        qr = Reshape(s0, heads)  q = {SWAP} (qr)  kr = Reshape(s1, heads)  k = {SWAP} (kr)
        vr = Reshape(s2, heads)  v = {SWAP} (vr)  a = Attention (q, k, v)  {MERGE}"""
    text = model(body, "float[2, 5, 24] x", HEADS)
    after, log = run_passes(text, [MergeAttentionHeads()])
    assert op_types(after) == ["Split", "Attention"]
    assert len(log.events) == 1
    assert_same(text, after, exact=False)


def test_uneven_parts_are_not_heads() -> None:
    """Queries are wider than keys: there are four parts, and the first two are the queries."""
    body = f"""s0, s1, s2 = Split <axis = 2> (x, uneven)
        qr = Reshape(s0, four)  q = {SWAP} (qr)  kr = Reshape(s1, heads)  k = {SWAP} (kr)
        vr = Reshape(s2, heads)  v = {SWAP} (vr)  a = Attention (q, k, v)  t = {SWAP} (a)  y = Reshape(t, wide)"""
    constants = f"{HEADS}, int64[4] four = {{0, 0, 4, 4}}, int64[3] uneven = {{16, 8, 8}}, int64[3] wide = {{0, 0, 16}}"
    ops, heads = merged(model(body, "float[2, 5, 32] x", constants, "float[2, 5, 16] y"))
    assert ops == ["Split", "Attention"]
    assert heads == {"q_num_heads": 4, "kv_num_heads": 2}


def test_splits_with_other_uses_stay() -> None:
    body = f"""qr = Reshape(x, heads)  q = {SWAP} (qr)  kr = Reshape(z, heads)  k = {SWAP} (kr)
        a = Attention (q, k, k)  y = Relu(a)"""
    result = "float[2, 2, 5, 4] y, float[2, 2, 5, 4] q, float[2, 2, 3, 4] k"
    _, log = run_passes(model(body, "float[2, 5, 8] x, float[2, 3, 8] z", HEADS, result), [MergeAttentionHeads()])
    assert not log.events


def test_a_single_head_of_dynamic_length_stays() -> None:
    """From [B, S, 8] back to [B, 1, S, 8] both the batch and the length would have to be inferred."""
    text = """
        <ir_version: 11, opset_import: ["" : 23]>
        agraph (float[B, 1, S, 8] q, float[B, 1, S, 8] k, float[B, 1, S, 8] v) => (float[B, 1, S, 8] y) {
            y = Attention(q, k, v)
        }
    """
    after, log = run_passes(text, [MergeAttentionHeads()])
    assert not log.events
    assert op_types(after) == ["Attention"]
