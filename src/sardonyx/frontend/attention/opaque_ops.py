"""Functions that depend on ranks or dtypes at run time and stay single nodes in a traced graph.

A symbolic trace knows neither ranks nor dtypes. If no primitive works for all of them, one of these functions makes the
decision at run time. Like torch's own functions they stay single nodes under symbolic tracing, also when a decomposed
module is traced again, which happens when it is unpickled.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

HALVES = (torch.float16, torch.bfloat16)


def widen(tensor: torch.Tensor) -> Any:
    """Convert half precision to float32, in which attention computes scores and weights; keep wider tensors."""
    if has_torch_function((tensor,)):
        return handle_torch_function(widen, (tensor,), tensor)
    return tensor.float() if tensor.dtype in HALVES else tensor


def default_scale(query: torch.Tensor) -> Any:
    """Return 1 / sqrt(width of a head)."""
    if has_torch_function((query,)):
        return handle_torch_function(default_scale, (query,), query)
    width = query.shape[-1]
    return 1.0 / math.sqrt(width) if width else 1.0  # products over an empty axis are 0 at any scale


def heads_per_group(query: torch.Tensor, key: torch.Tensor) -> Any:
    """Return the number of query heads that share a key head (`enable_gqa`)."""
    if has_torch_function((query, key)):
        return handle_torch_function(heads_per_group, (query, key), query, key)
    heads, groups = query.shape[-3], key.shape[-3]
    if heads % groups:
        raise RuntimeError(f"the {heads} heads of the query cannot share the {groups} heads of the key evenly")
    return heads // groups


def additive_mask(mask: torch.Tensor | None, query: torch.Tensor, wide: bool) -> Any:
    """Return what a mask of `scaled_dot_product_attention` adds to the scores; `True` keeps a score.

    Args:
        query: The query, for the dtype of the scores.
        wide: Whether the scores are in float32.
    """
    if has_torch_function((mask, query)):
        return handle_torch_function(additive_mask, (mask, query), mask, query, wide)
    if mask is None:
        return query.new_zeros(())
    masked = torch.logical_not(mask) if mask.dtype == torch.bool else mask
    return _added(masked, _dtype_of_scores(query, wide))


def merged_mask(
    query: torch.Tensor,
    key: torch.Tensor,
    attn_mask: torch.Tensor | None,
    key_padding_mask: torch.Tensor | None,
    appended: int,
    hint: bool,
    wide: bool,
) -> Any:
    """Return what the two masks of a multi-head attention add to the scores; `True` removes a score.

    Args:
        query: Split into heads: (batch, heads, length, width), or without the batch.
        key: As the query.
        attn_mask: (length, keys), or (batch * heads, length, keys).
        key_padding_mask: (batch, keys), or without the batch.
        appended: The number of keys that the attention appends itself; masks do not cover them.
        hint: Whether attn_mask is declared causal: torch does not read it then if it is the only mask.
        wide: Whether the scores are in float32.
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
        shape, is_shared = (query.shape[-2], keys), attn_mask.dim() == 2
        _expect("attn_mask", attn_mask, shape if is_shared else (math.prod(query.shape[:-2]), *shape))
        parts.append(_added(attn_mask if is_shared else attn_mask.reshape(*query.shape[:-2], *shape), dtype))
    if key_padding_mask is not None:
        _expect("key_padding_mask", key_padding_mask, (*query.shape[:-3], keys))
        parts.append(_added(key_padding_mask[..., None, None, :], dtype))
    if not parts:
        return query.new_zeros(())
    merged = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return F.pad(merged, (0, appended)) if appended else merged


def _expect(name: str, mask: torch.Tensor, shape: tuple[int, ...]) -> None:
    if mask.shape != shape:
        raise RuntimeError(f"{name} has the shape {tuple(mask.shape)}, but must have {tuple(shape)}")


def _dtype_of_scores(query: torch.Tensor, wide: bool) -> torch.dtype:
    return torch.promote_types(query.dtype, torch.float32) if wide else query.dtype


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask (`True` removes) as -inf and 0, and a float mask in the dtype of the scores."""
    if mask.dtype == torch.bool:
        return torch.where(mask, -torch.inf, 0.0).to(dtype)
    fits = mask.dtype == torch.float32 or torch.promote_types(mask.dtype, dtype) == dtype
    if not (mask.is_floating_point() and fits):
        raise RuntimeError(f"a mask must be bool, float32 or of the dtype of the query, not {mask.dtype}")
    return mask.to(dtype)
