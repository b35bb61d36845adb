"""Decomposes torch's multi-head attention, for inputs with and without a batch.

The rank of the inputs is unknown in a symbolic trace, so every step counts axes from the end: the same nodes work for
(batch, length, width) and (length, width). Weights are slices of the module's own parameters. With `need_weights` torch
computes in the dtype of the model, and a fully masked row is NaN. Without, it calls `scaled_dot_product_attention`,
where such a row is 0 and half precision is computed in float32. Both behaviours are kept.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import fields, replace
from torch import fx, nn
from torch.nn import functional as F

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompositions import opaque_ops, sdpa
from sardonyx.frontend.attention.decompositions.graph_writer import AttentionWriter
from sardonyx.frontend.attention.roles import Role

_FUNCTION = inspect.signature(F.multi_head_attention_forward)


class Weights(Struct, frozen=True):
    """The parameters, as tensors or nodes: packed or separate; None if absent."""

    packed: Any
    query: Any
    key: Any
    value: Any
    bias: Any  # of the three projections, packed
    out: Any
    out_bias: Any
    appended_key: Any
    appended_value: Any


class Options(Struct, frozen=True):
    """The options of an attention."""

    width: int
    heads: int
    batch_first: bool
    append_zero: bool
    attn_mask: Any
    key_padding_mask: Any
    need_weights: bool
    average_weights: bool
    is_causal: bool
    halves: bool  # whether the model is in half precision
    dropout: str | float  # path of the dropout submodule, or a constant rate


class AttentionCall(Struct, frozen=True):
    """One multi-head attention to decompose."""

    query: Any
    key: Any
    value: Any
    weights: Weights
    options: Options


def write_multihead(writer: AttentionWriter, call: AttentionCall) -> tuple[fx.Node, fx.Node | None]:
    """Write a multi-head attention and return the nodes of its result and of its weights."""
    weights, options = call.weights, call.options
    wide = options.halves and not options.need_weights
    q = _split(writer, _project(writer, Role.PROJECT_Q, call.query, weights, options), options)
    k = _split(writer, _project(writer, Role.PROJECT_K, call.key, weights, options), options)
    v = _split(writer, _project(writer, Role.PROJECT_V, call.value, weights, options), options)
    k = _appended(writer, k, weights.appended_key, options)
    v = _appended(writer, v, weights.appended_value, options)
    scores = sdpa.write_scores(writer, q, k, 1.0 / math.sqrt(options.width // options.heads), wide=wide)
    scores, is_masked = _masked(writer, scores, q, k, weights, options, wide=wide)
    attention_weights = sdpa.write_softmax(writer, scores, rows_may_be_empty=is_masked and not options.need_weights)
    if isinstance(options.dropout, str):
        attention_weights = writer.write_module(Role.DROPOUT, options.dropout, attention_weights)
    elif options.dropout:
        attention_weights = writer.write(Role.DROPOUT, torch.dropout, attention_weights, options.dropout, True)
    merged = _merge(writer, sdpa.write_mix(writer, attention_weights, v, wide=wide), options)
    result = writer.write(Role.PROJECT_OUT, F.linear, merged, weights.out, weights.out_bias)
    if not options.need_weights:
        return result, None
    return result, writer.write(
        None, torch.mean, attention_weights, -3
    ) if options.average_weights else attention_weights


def _project(writer: AttentionWriter, role: Role, source: fx.Node, weights: Weights, options: Options) -> fx.Node:
    index = (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V).index(role)

    def part(packed: fx.Node) -> fx.Node:
        return writer.write(role, torch.narrow, packed, 0, index * options.width, options.width)

    own = (weights.query, weights.key, weights.value)[index]
    weight = part(weights.packed) if weights.packed is not None else own
    bias = part(weights.bias) if weights.bias is not None else None
    return writer.write(role, F.linear, source, weight, bias)


def _split(writer: AttentionWriter, projected: fx.Node, options: Options) -> fx.Node:
    """Reshape (…, width) to (…, heads, length, width of a head)."""
    shape = (options.heads, options.width // options.heads)
    split = writer.write(Role.SPLIT_HEADS, torch.unflatten, projected, -1, shape)
    if options.batch_first:
        return writer.write(Role.SPLIT_HEADS, torch.transpose, split, -3, -2)
    return writer.write(Role.SPLIT_HEADS, torch.movedim, split, 0, -2)


def _merge(writer: AttentionWriter, mixed: fx.Node, options: Options) -> fx.Node:
    """Reshape (…, heads, length, width of a head) to (…, width)."""
    if options.batch_first:
        transposed = writer.write(Role.MERGE_HEADS, torch.transpose, mixed, -3, -2)
    else:
        transposed = writer.write(Role.MERGE_HEADS, torch.movedim, mixed, -2, 0)
    return writer.write(Role.MERGE_HEADS, torch.flatten, transposed, -2)


def _appended(writer: AttentionWriter, keys: fx.Node, learned: fx.Node | None, options: Options) -> fx.Node:
    """Append the learned and the zero position to keys or values if the attention has them."""
    if learned is not None:
        shape = (options.heads, 1, options.width // options.heads)
        per_head = writer.write(Role.SPLIT_HEADS, torch.reshape, learned, shape)
        one = writer.write(Role.SPLIT_HEADS, torch.narrow, keys, -2, 0, 1)
        for_all = writer.write(Role.SPLIT_HEADS, "expand_as", per_head, one)
        keys = writer.write(Role.SPLIT_HEADS, torch.cat, [keys, for_all], -2)
    if options.append_zero:
        keys = writer.write(Role.SPLIT_HEADS, F.pad, keys, (0, 0, 0, 1))
    return keys


def _masked(
    writer: AttentionWriter, scores: fx.Node, q: fx.Node, k: fx.Node, weights: Weights, options: Options, *, wide: bool
) -> tuple[fx.Node, bool]:
    """Return the masked scores, and whether a row may be fully masked.

    As in torch, the hint `is_causal` replaces the mask only if it is the only one and no weights are requested.
    """
    attn_mask, padding = options.attn_mask, options.key_padding_mask
    hint = options.is_causal and not options.need_weights
    if hint and padding is None:
        return sdpa.write_causal_mask(writer, scores, q, k), False
    if attn_mask is None and padding is None:
        return scores, False
    appended = (weights.appended_key is not None) + options.append_zero
    mask = writer.write(Role.MASK, opaque_ops.merged_mask, q, k, attn_mask, padding, appended, hint, wide)
    return writer.write(Role.MASK, torch.add, scores, mask), True


def of_module(
    module: nn.MultiheadAttention, arguments: Mapping[str, Any], *, dropout: str | float, halves: bool
) -> AttentionCall:
    """Return the call of a module; `arguments` are all arguments of its forward by name."""
    own: Any = module  # some of its attributes have no types in torch
    options = Options(
        width=own.embed_dim,
        heads=own.num_heads,
        batch_first=own.batch_first,
        append_zero=own.add_zero_attn,
        dropout=dropout,
        halves=halves,
        **_options(arguments),
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
    return AttentionCall(arguments["query"], arguments["key"], arguments["value"], weights, options)


def of_function(location: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, halves: bool) -> AttentionCall:
    """Return the call of `F.multi_head_attention_forward`."""
    bound = _FUNCTION.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    for name in ("static_k", "static_v"):
        if arguments[name] is not None:
            raise ModelError(f"{location}: multi_head_attention_forward with {name} cannot be decomposed")
    for name in ("training", "add_zero_attn", "use_separate_proj_weight", "dropout_p"):
        sdpa.require_constant(location, **{name: arguments[name]})
    options = Options(
        width=arguments["embed_dim_to_check"],
        heads=arguments["num_heads"],
        batch_first=False,
        append_zero=arguments["add_zero_attn"],
        dropout=arguments["dropout_p"] if arguments["training"] else 0.0,
        halves=halves,
        **_options(arguments),
    )
    weights = Weights(
        packed=None if arguments["use_separate_proj_weight"] else arguments["in_proj_weight"],
        query=arguments["q_proj_weight"],
        key=arguments["k_proj_weight"],
        value=arguments["v_proj_weight"],
        bias=arguments["in_proj_bias"],
        out=arguments["out_proj_weight"],
        out_bias=arguments["out_proj_bias"],
        appended_key=arguments["bias_k"],
        appended_value=arguments["bias_v"],
    )
    return AttentionCall(arguments["query"], arguments["key"], arguments["value"], weights, options)


def checked(call: AttentionCall, location: str) -> AttentionCall:
    """Refuse what torch would refuse, as far as it is known at tracing time; return the call."""
    options = call.options
    sdpa.require_constant(
        location,
        need_weights=options.need_weights,
        average_attn_weights=options.average_weights,
        is_causal=options.is_causal,
    )
    if options.is_causal and options.attn_mask is None:
        raise ModelError(f"{location}: is_causal=True is only a hint about attn_mask, which is missing")
    _check_mask(location, "attn_mask", options.attn_mask, (2, 3))
    _check_mask(location, "key_padding_mask", options.key_padding_mask, (1, 2))
    return call


def as_nodes(call: AttentionCall, node_of: Callable[[Any], Any]) -> AttentionCall:
    """Return the call with nodes for its tensors."""
    weights = Weights(*(node_of(getattr(call.weights, field.name)) for field in fields(Weights)))
    attn_mask, padding = node_of(call.options.attn_mask), node_of(call.options.key_padding_mask)
    options = replace(call.options, attn_mask=attn_mask, key_padding_mask=padding)
    return AttentionCall(node_of(call.query), node_of(call.key), node_of(call.value), weights, options)


def _options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that module and function share."""
    return {
        "attn_mask": arguments["attn_mask"],
        "key_padding_mask": arguments["key_padding_mask"],
        "need_weights": arguments["need_weights"],
        "average_weights": arguments["average_attn_weights"],
        "is_causal": arguments["is_causal"],
    }


def _check_mask(location: str, name: str, mask: Any, ranks: tuple[int, int]) -> None:
    if not isinstance(mask, torch.Tensor):
        return
    if mask.dim() not in ranks:
        raise ModelError(f"{location}: {name} has {mask.dim()} axes, but must have {ranks[0]} or {ranks[1]}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ModelError(f"{location}: {name} is {mask.dtype}, but must be bool or of a float type")
