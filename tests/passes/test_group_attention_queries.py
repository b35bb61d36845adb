"""Queries that share a key head become rows of one head, at every length of the past and of the prompt."""

from __future__ import annotations

import pytest

from passes.util import assert_same, draw, graph_text, op_types, parse, reasons, run_passes
from sardonyx.passes.ort.group_attention_queries import GroupAttentionQueries

STATE = "float[B, 2, T, 4] all_k, float[B, 2, T, 6] all_v"
COLUMNS = ", ".join(str((7 * number) % 23 - 11) for number in range(8 * 24))
ROWS = ", ".join(str((5 * number) % 19 - 9) for number in range(36 * 8))
WEIGHTS = f"float[8, 24] wq = {{{COLUMNS}}}, float[36, 8] wo = {{{ROWS}}}"
HEADS = "q_num_heads = 6, kv_num_heads = 2"
PLAIN = f"q = MatMul(x, wq)  a, all_k, all_v = Attention <{HEADS}> (q, k, v, mask, past_k, past_v)  y = MatMul(a, wo)"


def decoder(body: str, mask: str = "float[B, 1, S, T] mask", results: str = "", constants: str = "") -> str:
    """Two key heads of width 4, values of width 6, and three queries for each key head."""
    inputs = f"float[B, S, 8] x, float[B, S, 8] k, float[B, S, 12] v, {mask}, float[B, S, 2] cos, float[B, S, 2] sin"
    past = "float[B, 2, P, 4] past_k, float[B, 2, P, 6] past_v"
    return graph_text(
        f"agraph ({inputs}, {past}) => (float[B, S, 8] y, {STATE}{results}) <{WEIGHTS}{constants}> {{ {body} }}", 23
    )


@pytest.mark.parametrize("sizes", [{"P": 0, "S": 3}, {"P": 5, "S": 1}, {"P": 4, "S": 3}])
def test_a_bias_and_a_rotation_follow_the_product(sizes: dict[str, int]) -> None:
    bias = ", ".join(map(str, range(24)))
    text = decoder(
        f"""p = MatMul(x, wq)  s = Add(b, p)  q = RotaryEmbedding <num_heads = 6> (s, cos, sin)
        a, all_k, all_v = Attention <{HEADS}, softcap = 4.0> (q, k, v, mask, past_k, past_v)  y = MatMul(a, wo)""",
        constants=f", float[24] b = {{{bias}}}",
    )
    after, log = run_passes(text, [GroupAttentionQueries()], target="ort")
    attention = next(node for node in after.graph if node.op_type == "Attention")
    assert attention.attributes.get_int("q_num_heads", 0) == 2, reasons(log)
    assert_same(text, after, exact=False, feeds=draw(parse(text), 0, {**sizes, "B": 2, "T": sizes["P"] + sizes["S"]}))


def test_a_condition_masks_the_same_rows() -> None:
    text = decoder(PLAIN, "bool[B, 1, S, T] mask")
    after, _ = run_passes(text, [GroupAttentionQueries()], target="ort")
    assert "Tile" in op_types(after)
    assert_same(text, after, exact=False, feeds=draw(parse(text), 1, {"B": 2, "S": 3, "P": 2, "T": 5}))


REFUSED = {
    "causal": (decoder(PLAIN.replace(HEADS, f"{HEADS}, is_causal = 1")), "is_causal"),
    "masks of heads": (decoder(PLAIN, "float[B, 6, S, T] mask"), "differ between heads"),
    "a mask without rows": (decoder(PLAIN, "float[S, T] mask"), "no row for each query"),
    "a row for all queries": (decoder(PLAIN, "float[B, 1, 1, T] mask"), "no row for each query"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_it_refuses(text: str, reason: str) -> None:
    after, log = run_passes(text, [GroupAttentionQueries()], target="ort")
    assert op_types(after) == ["MatMul", "Attention", "MatMul"]
    assert any(reason in given for given in reasons(log))


LEFT_ALONE = {
    "shared weight": decoder(f"{PLAIN}  z = Add(wq, wq)", results=", float[8, 24] z"),
    "queries read elsewhere": decoder(f"{PLAIN}  z = Neg(q)", results=", float[B, S, 24] z"),
    "result read elsewhere": decoder(f"{PLAIN}  z = Neg(a)", results=", float[B, S, 36] z"),
}


@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_it_leaves_alone(text: str) -> None:
    after, _ = run_passes(text, [GroupAttentionQueries()], target="ort")
    assert "Tile" not in op_types(after)
