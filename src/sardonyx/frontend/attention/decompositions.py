"""The decompositions of `scaled_dot_product_attention` and `nn.MultiheadAttention`, written into a torch.fx graph."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec import Struct, field
from msgspec.structs import fields, replace
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn import functional as F

from sardonyx.common.errors import ModelError
from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.roles import Primitive, Role

Op = Callable[..., Any] | str  # a function, or the name of a method
Create = Callable[..., fx.Node]  # (kind, target, args, kwargs), as `create_node` of a graph and of a tracer take them


class OpTable(Struct, frozen=True):
    """The operations of a kind of graph. An operation takes the same arguments in every table."""

    matmul: Op
    transpose: Op
    mul: Op
    add: Op
    where: Op  # (condition, tensor, number)
    masked_fill: Op
    softmax: Op
    safe_softmax: Op  # rows that are -inf throughout become 0
    dropout: Op
    repeat_interleave: Op
    triu: Op
    new_ones: Op
    size: Op
    type_as: Op


_aten = torch.ops.aten

TORCH = OpTable(
    matmul=torch.matmul,
    transpose=torch.transpose,
    mul=torch.mul,
    add=torch.add,
    where=torch.where,
    masked_fill=torch.masked_fill,
    softmax=torch.softmax,
    safe_softmax=_aten._safe_softmax.default,  # torch's function of this name stops torch.compile
    dropout=torch.dropout,
    repeat_interleave=torch.repeat_interleave,
    triu=torch.triu,
    new_ones="new_ones",
    size="size",
    type_as="type_as",
)

ATEN = OpTable(
    matmul=_aten.matmul.default,
    transpose=_aten.transpose.int,
    mul=_aten.mul.Tensor,
    add=_aten.add.Tensor,
    where=_aten.where.ScalarOther,
    masked_fill=_aten.masked_fill.Scalar,
    softmax=_aten.softmax.int,
    safe_softmax=_aten._safe_softmax.default,
    dropout=_aten.dropout.default,
    repeat_interleave=_aten.repeat_interleave.self_int,
    triu=_aten.triu.default,
    new_ones=_aten.new_ones.default,
    size=_aten.sym_size.int,
    type_as=_aten.type_as.default,
)


class AttentionWriter(Struct):
    """Writes one attention at a graph's insertion point."""

    create: Create
    ops: OpTable
    attention: int  # its number among the attentions of the model
    primitives: dict[str, Primitive]  # roles by node name; extended with every node
    module: str = ""  # its path, for error messages
    nodes: list[fx.Node] = field(default_factory=list[fx.Node])  # the written nodes in order

    @property
    def location(self) -> str:
        """The module's path for error messages."""
        return self.module or "the model"

    def write(self, role: Role | None, op: Op, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node; without a role if it only computes an argument of a step."""
        kind = "call_method" if isinstance(op, str) else "call_function"
        return self._record(role, self.create(kind, op, args, kwargs))

    def write_module(self, role: Role, target: str, argument: fx.Node) -> fx.Node:
        """Add a node that calls a submodule."""
        return self._record(role, self.create("call_module", target, (argument,), {}))

    def _record(self, role: Role | None, node: fx.Node) -> fx.Node:
        self.nodes.append(node)
        if role is not None:
            self.primitives[node.name] = Primitive(self.attention, role)
        return node


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
    scores = write_scores(writer, q, k, 1.0 / math.sqrt(options.width // options.heads), wide=wide)
    scores, is_masked = _with_masks(writer, scores, q, k, weights, options, wide=wide)
    attention_weights = write_softmax(writer, scores, rows_may_be_empty=is_masked and not options.need_weights)
    if isinstance(options.dropout, str):
        attention_weights = writer.write_module(Role.DROPOUT, options.dropout, attention_weights)
    elif options.dropout:
        attention_weights = writer.write(Role.DROPOUT, torch.dropout, attention_weights, options.dropout, True)
    merged = _merge(writer, write_mix(writer, attention_weights, v, wide=wide), options)
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


def _with_masks(
    writer: AttentionWriter, scores: fx.Node, q: fx.Node, k: fx.Node, weights: Weights, options: Options, *, wide: bool
) -> tuple[fx.Node, bool]:
    """Return the masked scores, and whether a row may be fully masked.

    As in torch, the hint `is_causal` replaces the mask only if it is the only one and no weights are requested.
    """
    attn_mask, padding = options.attn_mask, options.key_padding_mask
    hint = options.is_causal and not options.need_weights
    if hint and padding is None:
        return write_causal_mask(writer, scores, q, k), False
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
        require_constant(location, **{name: arguments[name]})
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
    require_constant(
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
