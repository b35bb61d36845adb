"""The few things that only the run can decide, as functions which stay single nodes when a graph is traced.

A symbolic trace knows neither ranks nor dtypes. Where a primitive for all of them does not exist, the decision is put
into the graph as one of these, instead of being guessed. Like torch's own functions they stay whole under symbolic
tracing, also when a decomposed module is traced again, as loading one from a file does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

HALVES = (torch.float16, torch.bfloat16)


def additive_mask(mask: torch.Tensor | None, scores: torch.Tensor) -> Any:
    """What to add to the scores for a mask of `scaled_dot_product_attention`, in which `True` keeps a score."""
    if has_torch_function((mask, scores)):
        return handle_torch_function(additive_mask, (mask, scores), mask, scores)
    if mask is None:
        return scores.new_zeros(())
    if mask.dim() > scores.dim():
        raise RuntimeError(f"a mask of shape {tuple(mask.shape)} does not fit scores of shape {tuple(scores.shape)}")
    if mask.dtype == torch.bool:
        return torch.where(mask, 0.0, -torch.inf).to(scores.dtype)
    return _same_float(mask, scores)


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


def widen(tensor: torch.Tensor) -> Any:
    """Half precision as float32, in which attention compares and weighs; wider tensors as they are."""
    if has_torch_function((tensor,)):
        return handle_torch_function(widen, (tensor,), tensor)
    return tensor.float() if tensor.dtype in HALVES else tensor


def _same_float(mask: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A float mask in the dtype of the scores; torch takes float32 everywhere, and else no wider one than they are."""
    fits = mask.dtype == torch.float32 or torch.promote_types(mask.dtype, scores.dtype) == scores.dtype
    if not (mask.is_floating_point() and fits):
        raise RuntimeError(f"a mask must be bool, float32 or of the dtype of the query, not {mask.dtype}")
    return mask.to(scores.dtype)
