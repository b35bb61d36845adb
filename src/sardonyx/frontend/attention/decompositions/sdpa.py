"""Decomposes scaled_dot_product_attention(q, k, v) = dropout(softmax(mask(q kᵀ · scale))) v.

Three behaviours of torch are kept (measured on torch 2.13, all dtypes and kernels): a fully masked row becomes 0, not
NaN; `is_causal` is aligned at the top left; scores and weights of float16 and bfloat16 are computed in float32, if the
dtype is known. Scores are scaled after the product, so that `scale` is a step of its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import TraceError

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompositions import opaque_ops
from sardonyx.frontend.attention.decompositions.graph_writer import ATEN, AttentionWriter
from sardonyx.frontend.attention.roles import Role


def write_sdpa(
    writer: AttentionWriter,
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
    """Write `F.scaled_dot_product_attention` with these arguments, and return the node of its result.

    Args:
        writer: Writes the nodes.
        query: As in torch.
        key: As in torch.
        value: As in torch.
        attn_mask: As in torch.
        dropout_p: As in torch.
        is_causal: As in torch.
        scale: As in torch.
        enable_gqa: As in torch.
        halves: Whether tensors of unknown dtype may be in half precision.
    """
    require_constant(writer.location, is_causal=is_causal, enable_gqa=enable_gqa)
    if is_causal and attn_mask is not None:
        raise ModelError(f"{writer.location}: scaled_dot_product_attention takes attn_mask or is_causal=True, not both")
    rows, columns = query, key
    if enable_gqa:
        key, value = _shared_heads(writer, query, key), _shared_heads(writer, query, value)
    wide = is_half(query, halves)
    scores = write_scores(writer, query, key, _default_scale(writer, query) if scale is None else scale, wide=wide)
    if is_causal:
        scores = write_causal_mask(writer, scores, rows, columns)
    elif attn_mask is not None:
        scores = _masked(writer, scores, attn_mask, query, wide=wide)
    weights = write_softmax(writer, scores, rows_may_be_empty=attn_mask is not None)
    if not is_zero(dropout_p):
        weights = writer.write(Role.DROPOUT, writer.ops.dropout, weights, dropout_p, True)
    return write_mix(writer, weights, value, wide=wide)


def require_constant(location: str, **options: Any) -> None:
    """Refuse options that are computed at run time: the decomposition depends on them."""
    for name, value in options.items():
        if isinstance(value, fx.Node | fx.Proxy):
            raise TraceError(f"{location}: {name} is computed at run time, but the decomposition depends on it")


def write_scores(writer: AttentionWriter, query: fx.Node, key: fx.Node, scale: Any, *, wide: bool) -> fx.Node:
    """Write the scaled scores of every query and key."""
    ops = writer.ops
    if wide:
        query, key = _widened(writer, query), _widened(writer, key)
    transposed = writer.write(Role.SCORES, ops.transpose, key, -2, -1)
    product = writer.write(Role.SCORES, ops.matmul, query, transposed)
    return writer.write(Role.SCALE, ops.mul, product, scale)


def write_softmax(writer: AttentionWriter, scores: fx.Node, *, rows_may_be_empty: bool) -> fx.Node:
    """Write the softmax over the keys; a fully masked row becomes 0 if `rows_may_be_empty`, otherwise NaN."""
    ops = writer.ops
    return writer.write(Role.SOFTMAX, ops.safe_softmax if rows_may_be_empty else ops.softmax, scores, -1)


def write_mix(writer: AttentionWriter, weights: fx.Node, value: fx.Node, *, wide: bool) -> fx.Node:
    """Write the product of weights and values."""
    ops = writer.ops
    if wide:
        weights = writer.write(Role.MIX, ops.type_as, weights, value)
    return writer.write(Role.MIX, ops.matmul, weights, value)


def write_causal_mask(writer: AttentionWriter, scores: fx.Node, query: fx.Node, key: fx.Node) -> fx.Node:
    """Mask the scores above the diagonal that begins at the top left."""
    ops = writer.ops
    shape = [_size(writer, tensor, -2) for tensor in (query, key)]
    everywhere = writer.write(Role.MASK, ops.new_ones, scores, shape, dtype=torch.bool)
    later = writer.write(Role.MASK, ops.triu, everywhere, 1)
    return writer.write(Role.MASK, ops.masked_fill, scores, later, -math.inf)


def _widened(writer: AttentionWriter, tensor: fx.Node) -> fx.Node:
    if writer.ops is ATEN:
        return writer.write(Role.SCORES, torch.ops.aten.to.dtype, tensor, torch.float32)
    return writer.write(Role.SCORES, opaque_ops.widen, tensor)


def _default_scale(writer: AttentionWriter, query: fx.Node) -> Any:
    value = known(query)
    if value is not None and _known_size(query, -1) is not None:
        return opaque_ops.default_scale(value)
    return writer.write(None, opaque_ops.default_scale, query)


def _masked(writer: AttentionWriter, scores: fx.Node, mask: Any, query: fx.Node, *, wide: bool) -> fx.Node:
    ops, value = writer.ops, known(mask)
    if value is not None and value.dtype == torch.bool:
        return writer.write(Role.MASK, ops.where, mask, scores, -math.inf)
    if value is None or ops is not ATEN:  # a float mask may be wider than the scores
        mask = writer.write(Role.MASK, opaque_ops.additive_mask, mask, query, wide)
    return writer.write(Role.MASK, ops.add, scores, mask)


def _shared_heads(writer: AttentionWriter, query: fx.Node, tensor: fx.Node) -> fx.Node:
    """Repeat the heads of key or value for the query heads that share them."""
    heads, groups = _known_size(query, -3), _known_size(tensor, -3)
    if heads is not None and groups is not None:
        if heads % groups:
            raise ModelError(f"{writer.location}: enable_gqa: {heads} heads cannot share {groups} evenly")
        times: Any = heads // groups
        if times == 1:
            return tensor
    else:
        times = writer.write(None, opaque_ops.heads_per_group, query, tensor)
    return writer.write(Role.SPLIT_HEADS, writer.ops.repeat_interleave, tensor, times, -3)


def known(argument: Any) -> torch.Tensor | None:
    """Return a tensor with the dtype, rank and sizes of an argument if the graph has them, or None."""
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    return value if isinstance(value, torch.Tensor) else None


def _size(writer: AttentionWriter, tensor: fx.Node, axis: int) -> Any:
    size = _known_size(tensor, axis)
    return writer.write(None, writer.ops.size, tensor, axis) if size is None else size


def _known_size(tensor: fx.Node, axis: int) -> int | None:
    value = known(tensor)
    size: Any = value.shape[axis] if value is not None else None
    return size if isinstance(size, int) else None


def is_half(query: fx.Node, halves: bool) -> bool:
    """Return whether the attention computes in half precision; `halves` if the dtype is unknown."""
    value = known(query)
    return halves if value is None else value.dtype in opaque_ops.HALVES


def is_zero(number: Any) -> bool:
    """Return whether an argument is the number 0, and not a node."""
    return isinstance(number, int | float) and number == 0
