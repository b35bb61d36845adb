"""A call of `nn.MultiheadAttention` or `F.multi_head_attention_forward`, brought into one form and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from sardonyx.attention.spelled import sdpa
from sardonyx.attention.spelled.multihead import Call, Options, Weights
from sardonyx.errors import ModelError

_FUNCTION = inspect.signature(F.multi_head_attention_forward)


def of_module(module: nn.MultiheadAttention, given: Mapping[str, Any], *, dropout: str | float, halves: bool) -> Call:
    """The call of a module; `given` is what its forward was given, by name, without gaps."""
    own: Any = module  # some of its attributes have no types in torch
    options = Options(
        width=own.embed_dim,
        heads=own.num_heads,
        batch_first=own.batch_first,
        append_zero=own.add_zero_attn,
        dropout=dropout,
        halves=halves,
        **_options(given),
    )
    weights = Weights(
        packed=own.in_proj_weight,
        query=own.q_proj_weight,
        key=own.k_proj_weight,
        value=own.v_proj_weight,
        bias=own.in_proj_bias,
        out=own.out_proj.weight,
        out_bias=own.out_proj.bias,
        appended_key=own.bias_k,
        appended_value=own.bias_v,
    )
    return Call(given["query"], given["key"], given["value"], weights, options)


def of_function(place: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, halves: bool) -> Call:
    """The call of the function."""
    bound = _FUNCTION.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    for name in ("static_k", "static_v"):
        if given[name] is not None:
            raise ModelError(f"{place}: multi_head_attention_forward with {name} is not spelled out")
    for name in ("training", "add_zero_attn", "use_separate_proj_weight", "dropout_p"):
        sdpa.decided_now(place, **{name: given[name]})
    options = Options(
        width=given["embed_dim_to_check"],
        heads=given["num_heads"],
        batch_first=False,
        append_zero=given["add_zero_attn"],
        dropout=given["dropout_p"] if given["training"] else 0.0,
        halves=halves,
        **_options(given),
    )
    weights = Weights(
        packed=None if given["use_separate_proj_weight"] else given["in_proj_weight"],
        query=given["q_proj_weight"],
        key=given["k_proj_weight"],
        value=given["v_proj_weight"],
        bias=given["in_proj_bias"],
        out=given["out_proj_weight"],
        out_bias=given["out_proj_bias"],
        appended_key=given["bias_k"],
        appended_value=given["bias_v"],
    )
    return Call(given["query"], given["key"], given["value"], weights, options)


def checked(call: Call, place: str) -> Call:
    """Refuse what torch would refuse, as far as it is known before the run."""
    options = call.options
    sdpa.decided_now(
        place,
        need_weights=options.need_weights,
        average_attn_weights=options.average_weights,
        is_causal=options.is_causal,
    )
    if options.is_causal and options.attn_mask is None:
        raise ModelError(f"{place}: is_causal=True is only a hint about attn_mask, which is missing")
    _check_mask(place, "attn_mask", options.attn_mask, (2, 3))
    _check_mask(place, "key_padding_mask", options.key_padding_mask, (1, 2))
    return call


def as_nodes(call: Call, node_of: Callable[[Any], Any]) -> Call:
    """The call with nodes for its tensors."""
    weights = Weights(*(node_of(getattr(call.weights, field.name)) for field in fields(Weights)))
    attn_mask, padding = node_of(call.options.attn_mask), node_of(call.options.key_padding_mask)
    options = replace(call.options, attn_mask=attn_mask, key_padding_mask=padding)
    return Call(node_of(call.query), node_of(call.key), node_of(call.value), weights, options)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What module and function call by the same names."""
    return {
        "attn_mask": given["attn_mask"],
        "key_padding_mask": given["key_padding_mask"],
        "need_weights": given["need_weights"],
        "average_weights": given["average_attn_weights"],
        "is_causal": given["is_causal"],
    }


def _check_mask(place: str, name: str, mask: Any, ranks: tuple[int, int]) -> None:
    if not isinstance(mask, torch.Tensor):
        return
    if mask.dim() not in ranks:
        raise ModelError(f"{place}: {name} has {mask.dim()} axes, but must have {ranks[0]} or {ranks[1]}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ModelError(f"{place}: {name} is {mask.dtype}, but must be bool or of a float type")
