"""scaled_dot_product_attention(q, k, v) = dropout(softmax(mask(q kᵀ · scale))) v, step by step.

Three things are kept as torch does them (measured on torch 2.13, all dtypes and kernels): a row that is masked whole
becomes 0, not NaN; `is_causal` is aligned at the top left; float16 and bfloat16 are compared and weighed in float32,
where the graph or the caller knows that they are. Scores are scaled after the product, so that `scale` is a step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import TraceError

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompositions import opaque_ops
from sardonyx.frontend.attention.decompositions.graph_writer import ATEN, Spelling
from sardonyx.frontend.attention.roles import Role


def spell_out(
    spelling: Spelling,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    *,
    scale: Any = None,
    enable_gqa: Any = False,
    halves: bool = False,
) -> fx.Node:
    """Write `F.scaled_dot_product_attention` with these arguments, and return the node with its result.

    Args:
        spelling: Where to write it.
        query: And key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa: as torch takes them.
        key: See query.
        value: See query.
        attn_mask: See query.
        dropout_p: See query.
        is_causal: See query.
        scale: See query.
        enable_gqa: See query.
        halves: The tensors may be of half precision, though the graph does not say it.
    """
    decided_now(spelling.place, is_causal=is_causal, enable_gqa=enable_gqa)
    if is_causal and attn_mask is not None:
        raise ModelError(f"{spelling.place}: scaled_dot_product_attention takes attn_mask or is_causal=True, not both")
    rows, columns = query, key
    if enable_gqa:
        key, value = _shared_heads(spelling, query, key), _shared_heads(spelling, query, value)
    wide = is_half(query, halves)
    scores = compare(spelling, query, key, _default_scale(spelling, query) if scale is None else scale, wide=wide)
    if is_causal:
        scores = causal(spelling, scores, rows, columns)
    elif attn_mask is not None:
        scores = _masked(spelling, scores, attn_mask, query, wide=wide)
    weights = weigh(spelling, scores, rows_may_be_empty=attn_mask is not None)
    if not _is_zero(dropout_p):
        weights = spelling.write(Role.DROPOUT, spelling.words.dropout, weights, dropout_p, True)
    return mix(spelling, weights, value, wide=wide)


def decided_now(place: str, **options: Any) -> None:
    """Refuse options whose value only the run would tell: what is written depends on them."""
    for name, value in options.items():
        if isinstance(value, fx.Node | fx.Proxy):
            raise TraceError(f"{place}: {name} is computed, but decides which operations the attention has")


def compare(spelling: Spelling, query: fx.Node, key: fx.Node, scale: Any, *, wide: bool) -> fx.Node:
    """Scores of every query and key, scaled."""
    words = spelling.words
    if wide:
        query, key = _widened(spelling, query), _widened(spelling, key)
    turned = spelling.write(Role.SCORES, words.transpose, key, -2, -1)
    product = spelling.write(Role.SCORES, words.matmul, query, turned)
    return spelling.write(Role.SCALE, words.mul, product, scale)


def weigh(spelling: Spelling, scores: fx.Node, *, rows_may_be_empty: bool) -> fx.Node:
    """Softmax over the keys; a row in which all is masked becomes 0 where asked, else NaN."""
    words = spelling.words
    return spelling.write(Role.SOFTMAX, words.safe_softmax if rows_may_be_empty else words.softmax, scores, -1)


def mix(spelling: Spelling, weights: fx.Node, value: fx.Node, *, wide: bool) -> fx.Node:
    """The values, weighted."""
    words = spelling.words
    if wide:
        weights = spelling.write(Role.MIX, words.type_as, weights, value)
    return spelling.write(Role.MIX, words.matmul, weights, value)


def causal(spelling: Spelling, scores: fx.Node, query: fx.Node, key: fx.Node) -> fx.Node:
    """Take away the scores above the diagonal that begins at the top left."""
    words = spelling.words
    shape = [_size(spelling, tensor, -2) for tensor in (query, key)]
    everywhere = spelling.write(Role.MASK, words.new_ones, scores, shape, dtype=torch.bool)
    later = spelling.write(Role.MASK, words.triu, everywhere, 1)
    return spelling.write(Role.MASK, words.masked_fill, scores, later, -math.inf)


def _widened(spelling: Spelling, tensor: fx.Node) -> fx.Node:
    if spelling.words is ATEN:
        return spelling.write(Role.SCORES, torch.ops.aten.to.dtype, tensor, torch.float32)
    return spelling.write(Role.SCORES, opaque_ops.widen, tensor)


def _default_scale(spelling: Spelling, query: fx.Node) -> Any:
    fact = known(query)
    if fact is not None and _known_size(query, -1) is not None:
        return opaque_ops.default_scale(fact)
    return spelling.write(None, opaque_ops.default_scale, query)


def _masked(spelling: Spelling, scores: fx.Node, mask: Any, query: fx.Node, *, wide: bool) -> fx.Node:
    words, fact = spelling.words, known(mask)
    if fact is not None and fact.dtype == torch.bool:
        return spelling.write(Role.MASK, words.where, mask, scores, -math.inf)
    if fact is None or words is not ATEN:  # a float mask may be wider than the scores: only the run tells
        mask = spelling.write(Role.MASK, opaque_ops.additive_mask, mask, query, wide)
    return spelling.write(Role.MASK, words.add, scores, mask)


def _shared_heads(spelling: Spelling, query: fx.Node, tensor: fx.Node) -> fx.Node:
    """Repeat the heads of key or value for the heads of the query that share them."""
    heads, groups = _known_size(query, -3), _known_size(tensor, -3)
    if heads is not None and groups is not None:
        if heads % groups:
            raise ModelError(f"{spelling.place}: enable_gqa: {heads} heads cannot share {groups} evenly")
        times: Any = heads // groups
        if times == 1:
            return tensor
    else:
        times = spelling.write(None, opaque_ops.heads_per_group, query, tensor)
    return spelling.write(Role.SPLIT_HEADS, spelling.words.repeat_interleave, tensor, times, -3)


def known(argument: Any) -> torch.Tensor | None:
    """A tensor with the same dtype, rank and sizes, where the graph says them."""
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    return value if isinstance(value, torch.Tensor) else None


def _size(spelling: Spelling, tensor: fx.Node, axis: int) -> Any:
    size = _known_size(tensor, axis)
    return spelling.write(None, spelling.words.size, tensor, axis) if size is None else size


def _known_size(tensor: fx.Node, axis: int) -> int | None:
    fact = known(tensor)
    size: Any = fact.shape[axis] if fact is not None else None
    return size if isinstance(size, int) else None


def is_half(query: fx.Node, halves: bool) -> bool:
    """Whether the attention computes in half precision; `halves` where the graph does not say."""
    fact = known(query)
    return halves if fact is None else fact.dtype in opaque_ops.HALVES


def _is_zero(number: Any) -> bool:
    return isinstance(number, int | float) and number == 0
