"""Multi-head attention as torch defines it, step by step, for inputs with and without a batch.

The rank of the inputs is not known when a model is traced symbolically, so every step counts its axes from the end:
the same nodes serve (batch, length, width) and (length, width). Weights are read as slices of the module's own
parameters. With `need_weights` torch works in the dtype of the model and a row that is masked whole is NaN; without,
it calls `scaled_dot_product_attention`, where it is 0 and half precision is weighed in float32. Both are kept.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompositions import opaque_ops, sdpa
from sardonyx.frontend.attention.decompositions.graph_writer import Spelling
from sardonyx.frontend.attention.roles import Role


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters, as nodes once they are written: packed into one, or one of each; None where there is none."""

    packed: Any
    query: Any
    key: Any
    value: Any
    bias: Any  # of the three projections, packed
    out: Any
    out_bias: Any
    appended_key: Any
    appended_value: Any


@dataclass(frozen=True, slots=True)
class Options:
    """How the attention is to be done."""

    width: int
    heads: int
    batch_first: bool
    append_zero: bool
    attn_mask: Any
    key_padding_mask: Any
    need_weights: bool
    average_weights: bool
    is_causal: bool
    halves: bool  # the model is of half precision
    dropout: str | float  # the submodule that does it, or the share that is always dropped


@dataclass(frozen=True, slots=True)
class Call:
    """One multi-head attention that is to be written."""

    query: Any
    key: Any
    value: Any
    weights: Weights
    options: Options


def spell_out(spelling: Spelling, call: Call) -> tuple[fx.Node, fx.Node | None]:
    """Write a multi-head attention and return the nodes with its result and its weights."""
    weights, options = call.weights, call.options
    wide = options.halves and not options.need_weights
    q = _split(spelling, _project(spelling, Role.PROJECT_Q, call.query, weights, options), options)
    k = _split(spelling, _project(spelling, Role.PROJECT_K, call.key, weights, options), options)
    v = _split(spelling, _project(spelling, Role.PROJECT_V, call.value, weights, options), options)
    k = _appended(spelling, k, weights.appended_key, options)
    v = _appended(spelling, v, weights.appended_value, options)
    scores = sdpa.compare(spelling, q, k, 1.0 / math.sqrt(options.width // options.heads), wide=wide)
    scores, masked = _masked(spelling, scores, q, k, weights, options, wide=wide)
    shares = sdpa.weigh(spelling, scores, rows_may_be_empty=masked and not options.need_weights)
    if isinstance(options.dropout, str):
        shares = spelling.write_module(Role.DROPOUT, options.dropout, shares)
    elif options.dropout:
        shares = spelling.write(Role.DROPOUT, torch.dropout, shares, options.dropout, True)
    merged = _merge(spelling, sdpa.mix(spelling, shares, v, wide=wide), options)
    result = spelling.write(Role.PROJECT_OUT, F.linear, merged, weights.out, weights.out_bias)
    if not options.need_weights:
        return result, None
    return result, spelling.write(None, torch.mean, shares, -3) if options.average_weights else shares


def _project(spelling: Spelling, role: Role, source: fx.Node, weights: Weights, options: Options) -> fx.Node:
    place = (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V).index(role)

    def part(packed: fx.Node) -> fx.Node:
        return spelling.write(role, torch.narrow, packed, 0, place * options.width, options.width)

    own = (weights.query, weights.key, weights.value)[place]
    weight = part(weights.packed) if weights.packed is not None else own
    bias = part(weights.bias) if weights.bias is not None else None
    return spelling.write(role, F.linear, source, weight, bias)


def _split(spelling: Spelling, projected: fx.Node, options: Options) -> fx.Node:
    """(…, width) as (…, heads, length, width of a head)."""
    shape = (options.heads, options.width // options.heads)
    split = spelling.write(Role.SPLIT_HEADS, torch.unflatten, projected, -1, shape)
    if options.batch_first:
        return spelling.write(Role.SPLIT_HEADS, torch.transpose, split, -3, -2)
    return spelling.write(Role.SPLIT_HEADS, torch.movedim, split, 0, -2)


def _merge(spelling: Spelling, mixed: fx.Node, options: Options) -> fx.Node:
    """The way back."""
    if options.batch_first:
        turned = spelling.write(Role.MERGE_HEADS, torch.transpose, mixed, -3, -2)
    else:
        turned = spelling.write(Role.MERGE_HEADS, torch.movedim, mixed, -2, 0)
    return spelling.write(Role.MERGE_HEADS, torch.flatten, turned, -2)


def _appended(spelling: Spelling, keys: fx.Node, learned: fx.Node | None, options: Options) -> fx.Node:
    """Keys (or values) with the learned one and the zero one at their end, where the attention has them."""
    if learned is not None:
        shape = (options.heads, 1, options.width // options.heads)
        per_head = spelling.write(Role.SPLIT_HEADS, torch.reshape, learned, shape)
        one = spelling.write(Role.SPLIT_HEADS, torch.narrow, keys, -2, 0, 1)
        for_all = spelling.write(Role.SPLIT_HEADS, "expand_as", per_head, one)
        keys = spelling.write(Role.SPLIT_HEADS, torch.cat, [keys, for_all], -2)
    if options.append_zero:
        keys = spelling.write(Role.SPLIT_HEADS, F.pad, keys, (0, 0, 0, 1))
    return keys


def _masked(
    spelling: Spelling, scores: fx.Node, q: fx.Node, k: fx.Node, weights: Weights, options: Options, *, wide: bool
) -> tuple[fx.Node, bool]:
    """The scores after all masks, and whether a row may have lost all of them.

    As in torch, the hint `is_causal` replaces the mask only where there is no other and no weights are asked for.
    """
    attn_mask, padding = options.attn_mask, options.key_padding_mask
    hint = options.is_causal and not options.need_weights
    if hint and padding is None:
        return sdpa.causal(spelling, scores, q, k), False
    if attn_mask is None and padding is None:
        return scores, False
    appended = (weights.appended_key is not None) + options.append_zero
    mask = spelling.write(Role.MASK, opaque_ops.merged_mask, q, k, attn_mask, padding, appended, hint, wide)
    return spelling.write(Role.MASK, torch.add, scores, mask), True


# A call of `nn.MultiheadAttention` or `F.multi_head_attention_forward`, brought into one form and checked.

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
