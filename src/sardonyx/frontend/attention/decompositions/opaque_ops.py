"""The few things that only the run can decide, as functions which stay single nodes when a graph is traced.

A symbolic trace knows neither ranks nor dtypes. Where no primitive fits all of them, the decision is put into the graph
as one of these, instead of being guessed. Like torch's own functions they stay whole under symbolic tracing, also when
a decomposed module is traced again, as loading one from a file does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

HALVES = (torch.float16, torch.bfloat16)


def widen(tensor: torch.Tensor) -> Any:
    """Half precision as float32, in which attention compares and weighs; wider tensors as they are."""
    if has_torch_function((tensor,)):
        return handle_torch_function(widen, (tensor,), tensor)
    return tensor.float() if tensor.dtype in HALVES else tensor


def default_scale(query: torch.Tensor) -> Any:
    """One over the root of the width of a head."""
    if has_torch_function((query,)):
        return handle_torch_function(default_scale, (query,), query)
    width = query.shape[-1]
    return 1.0 / math.sqrt(width) if width else 1.0  # products over nothing are 0 whatever they are scaled with


def heads_per_group(query: torch.Tensor, key: torch.Tensor) -> Any:
    """How many heads of the query share one head of the key (`enable_gqa`)."""
    if has_torch_function((query, key)):
        return handle_torch_function(heads_per_group, (query, key), query, key)
    heads, groups = query.shape[-3], key.shape[-3]
    if heads % groups:
        raise RuntimeError(f"the {heads} heads of the query cannot share the {groups} heads of the key evenly")
    return heads // groups


def additive_mask(mask: torch.Tensor | None, query: torch.Tensor, wide: bool) -> Any:
    """What to add to the scores for a mask of `scaled_dot_product_attention`, in which `True` keeps a score.

    Args:
        mask: The mask, or None where the caller leaves it out.
        query: Tells the dtype of the scores.
        wide: Whether the scores were widened.
    """
    if has_torch_function((mask, query)):
        return handle_torch_function(additive_mask, (mask, query), mask, query, wide)
    if mask is None:
        return query.new_zeros(())
    kept = torch.logical_not(mask) if mask.dtype == torch.bool else mask
    return _added(kept, _dtype_of_scores(query, wide))


def merged_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
    appended: int,
    hint: bool,
    wide: bool,
) -> Any:
    """What to add to the scores for the two masks of a multi-head attention, in which `True` takes a score away.

    Args:
        query: Split into heads: (batch, heads, length, width), or without the batch.
        key: The same.
        attn_mask: (length, keys), or (batch * heads, length, keys).
        key_padding_mask: (batch, keys), or without the batch.
        appended: How many of the keys were put at the end by the attention itself; no mask speaks of these.
        hint: Whether attn_mask is said to be causal: torch then does not read it where it is the only mask.
        wide: Whether the scores were widened.
    """
    tensors = (query, key, attn_mask, key_padding_mask)
    if has_torch_function(tensors):
        return handle_torch_function(merged_mask, tensors, *tensors, appended, hint, wide)
    dtype, keys = _dtype_of_scores(query, wide), key.shape[-2] - appended
    if hint and key_padding_mask is None:
        later = query.new_ones((query.shape[-2], key.shape[-2]), dtype=torch.bool).triu(1)
        return _added(later, dtype)
    parts: list[torch.Tensor] = []
    if attn_mask is not None:
        parts.append(_added(_per_head(attn_mask, query, keys), dtype))
    if key_padding_mask is not None:
        _expect("key_padding_mask", key_padding_mask, (*query.shape[:-3], keys))
        parts.append(_added(key_padding_mask[..., None, None, :], dtype))
    if not parts:
        return query.new_zeros(())
    merged = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return F.pad(merged, (0, appended)) if appended else merged


def _per_head(mask: torch.Tensor, query: torch.Tensor, keys: int) -> torch.Tensor:
    length = query.shape[-2]
    if mask.dim() == 2:
        _expect("attn_mask", mask, (length, keys))
        return mask
    _expect("attn_mask", mask, (math.prod(query.shape[:-2]), length, keys))
    return mask.reshape(*query.shape[:-2], length, keys)


def _expect(name: str, mask: torch.Tensor, shape: tuple[int, ...]) -> None:
    if mask.shape != shape:
        raise RuntimeError(f"{name} has the shape {tuple(mask.shape)}, but must have {tuple(shape)}")


def _dtype_of_scores(query: torch.Tensor, wide: bool) -> torch.dtype:
    return torch.promote_types(query.dtype, torch.float32) if wide else query.dtype


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask in which `True` takes away as -inf and 0; a float mask as it is, float32 at most wider than the scores."""
    if mask.dtype == torch.bool:
        return torch.where(mask, -torch.inf, 0.0).to(dtype)
    fits = mask.dtype == torch.float32 or torch.promote_types(mask.dtype, dtype) == dtype
    if not (mask.is_floating_point() and fits):
        raise RuntimeError(f"a mask must be bool, float32 or of the dtype of the query, not {mask.dtype}")
    return mask.to(dtype)
