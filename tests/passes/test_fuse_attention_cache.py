"""Past keys and values become the past of Attention, which returns them appended."""

from __future__ import annotations

import pytest

from passes.util import assert_same, draw, graph_text, op_types, parse, reasons, run_passes
from sardonyx.passes.attention.fuse_attention_cache import FuseAttentionCache
from sardonyx.passes.attention.merge_attention_heads import MergeAttentionHeads

SWAP = "Transpose <perm = [0, 2, 1, 3]>"
PAST = "float[B, 2, P, 8] past_k, float[B, 2, P, 8] past_v"
APPEND = "all_k = Concat <axis = -2> (past_k, k)  all_v = Concat <axis = 2> (past_v, v)"
STATE = "float[B, 2, T, 8] all_k, float[B, 2, T, 8] all_v"


def split(body: str, results: str, constants: str = "float zero = {0}", inputs: str = PAST) -> str:
    """A graph whose inputs are queries, keys and values with separate heads."""
    given = f"float[B, 4, S, 8] q, float[B, 2, S, 8] k, float[B, 2, S, 8] v, {inputs}"
    return graph_text(f"agraph ({given}) => ({results}) <{constants}> {{ {body} }}", 23)


@pytest.mark.parametrize("sizes", [{"P": 0, "S": 3}, {"P": 5, "S": 1}, {"P": 4, "S": 3}, {"P": 1, "S": 1}])
def test_rows_are_inputs_and_the_cache_is_an_output(sizes: dict[str, int]) -> None:
    body = f"""qr = Reshape(x, four)  q = {SWAP} (qr)  kr = Reshape(y, two)  k = {SWAP} (kr)
        vr = Reshape(z, two)  v = {SWAP} (vr)  {APPEND}
        a = Attention(q, all_k, all_v, mask)  t = {SWAP} (a)  r = Reshape(t, rows)"""
    inputs = f"float[B, S, 32] x, float[B, S, 16] y, float[B, S, 16] z, {PAST}, float[B, 1, S, T] mask"
    constants = "int64[4] four = {0, 0, 4, 8}, int64[4] two = {0, 0, 2, 8}, int64[3] rows = {0, 0, 32}"
    text = graph_text(f"agraph ({inputs}) => (float[B, S, 32] r, {STATE}) <{constants}> {{ {body} }}", 23)
    after, log = run_passes(text, [FuseAttentionCache(), MergeAttentionHeads()])
    assert op_types(after) == ["Attention"], reasons(log)
    feeds = draw(parse(text), 0, {**sizes, "B": 2, "T": sizes["P"] + sizes["S"]})
    assert_same(text, after, exact=False, feeds=feeds)


def test_a_window_of_the_cache_is_an_output() -> None:
    window = "old = Slice(all_k, start, end, axis)"
    body = f"{APPEND}  {window}  y = Attention(q, all_k, all_v)"
    constants = "int64[1] start = {-3}, int64[1] end = {9223372036854775807}, int64[1] axis = {2}"
    text = split(body, "float[B, 4, S, 8] y, float[B, 2, W, 8] old", constants)
    after, _ = run_passes(text, [FuseAttentionCache()])
    assert op_types(after) == ["Attention", "Slice"]
    assert_same(text, after, exact=False, feeds=draw(parse(text), 0, {"B": 1, "S": 2, "P": 4}))


def test_the_cache_may_be_read_after_the_attention() -> None:
    text = split(f"{APPEND}  y = Attention(q, all_k, all_v)  n = Neg(all_k)", f"float[B, 4, S, 8] y, {STATE}, float n")
    text = text.replace("float n)", "float[B, 2, T, 8] n)")
    after, _ = run_passes(text, [FuseAttentionCache()])
    assert op_types(after) == ["Attention", "Neg"]
    assert_same(text, after, exact=False, feeds=draw(parse(text), 0, {"B": 1, "S": 2, "P": 4}))


LEFT_ALONE = {
    "causal": (f"{APPEND}  y = Attention <is_causal = 1> (q, all_k, all_v)", "is_causal"),
    "keys only": ("all_k = Concat <axis = 2> (past_k, k)  y = Attention(q, all_k, past_v)", "only its keys"),
    "three pieces": (
        "all_k = Concat <axis = 2> (past_k, k, k)  all_v = Concat <axis = 2> (past_v, v, v)  "
        "y = Attention(q, all_k, all_v)",
        "more than two pieces",
    ),
    "one cache": ("all_k = Concat <axis = 2> (past_k, k)  y = Attention(q, all_k, all_k)", "are the same value"),
    "given out": (f"{APPEND}  y, pk = Attention(q, all_k, all_v)  z = Neg(pk)", "are outputs already"),
    "for the mask": (
        f"{APPEND}  n = Shape <start = 2, end = 3> (all_k)  m = Expand(zero, n)  y = Attention(q, all_k, all_v, m)",
        "read before the attention",
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_other_caches_stay(case: str) -> None:
    body, reason = LEFT_ALONE[case]
    results = "float[B, 4, S, 8] y" + (", float[B, 2, T, 8] z" if "z =" in body else "")
    _, log = run_passes(split(body, results), [FuseAttentionCache()])
    assert not log.events
    assert any(reason in each for each in reasons(log))


def test_a_concat_along_heads_is_not_a_cache() -> None:
    body = "all_k = Concat <axis = 1> (k, k)  all_v = Concat <axis = 1> (v, v)  y = Attention(q, all_k, all_v)"
    _, log = run_passes(split(body, "float[B, 4, S, 8] y"), [FuseAttentionCache()])
    assert not log.events
