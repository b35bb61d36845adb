"""The decompositions of `scaled_dot_product_attention` and `nn.MultiheadAttention`, written into a torch.fx graph."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec import Struct, field
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn import functional as F

from sardonyx.errors import ModelError
from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.roles import Primitive, Role

Op = Callable[..., Any] | str  # a function, a name in the table below, or the name of a method
Create = Callable[..., fx.Node]  # (kind, target, args, kwargs), as `create_node` of a graph and of a tracer take them
_aten = torch.ops.aten
OPS: dict[str, tuple[Op, Op]] = {  # the torch function or method, and the aten overload, which take the same arguments
    "sdpa": (F.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default),
    "matmul": (torch.matmul, _aten.matmul.default),
    "transpose": (torch.transpose, _aten.transpose.int),
    "permute": (torch.permute, _aten.permute.default),
    "reshape": (torch.reshape, _aten.reshape.default),
    "expand": ("expand", _aten.expand.default),
    "unsqueeze": (torch.unsqueeze, _aten.unsqueeze.default),
    "squeeze": (torch.squeeze, _aten.squeeze.dim),
    "mul": (torch.mul, _aten.mul.Tensor),
    "div": (torch.div, _aten.div.Tensor),
    "add": (torch.add, _aten.add.Tensor),
    "not": (torch.logical_not, _aten.logical_not.default),
    "and": (torch.logical_and, _aten.logical_and.default),
    "keep_where": (torch.where, _aten.where.ScalarOther),  # (condition, tensor, number)
    "fill_where": (torch.where, _aten.where.ScalarSelf),  # (condition, number, tensor)
    "masked_fill": (torch.masked_fill, _aten.masked_fill.Scalar),
    "softmax": (torch.softmax, _aten.softmax.int),
    # rows that are -inf throughout become 0; torch's function of this name stops torch.compile
    "safe_softmax": (_aten._safe_softmax.default, _aten._safe_softmax.default),
    "dropout": (torch.dropout, _aten.dropout.default),
    "repeat_interleave": (torch.repeat_interleave, _aten.repeat_interleave.self_int),
    "triu": (torch.triu, _aten.triu.default),
    "new_ones": ("new_ones", _aten.new_ones.default),
    "size": ("size", _aten.sym_size.int),
    "type_as": ("type_as", _aten.type_as.default),
    "cat": (torch.cat, _aten.cat.default),
    "linear": (F.linear, _aten.linear.default),
    "split": (torch.split, _aten.split_with_sizes.default),
    "narrow": (torch.narrow, _aten.narrow.default),
}


class AttentionWriter(Struct):
    """Writes one attention at a graph's insertion point."""

    create: Create
    aten: bool  # whether the graph has aten overloads
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
        target = OPS[op][self.aten] if isinstance(op, str) and op in OPS else op
        kind = "call_method" if isinstance(target, str) else "call_function"
        return self._record(role, self.create(kind, target, args, kwargs))

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
        halves: Whether tensors of unknown dtype may be in half precision.
    """
    require_constant(writer.location, is_causal=is_causal, enable_gqa=enable_gqa)
    if is_causal and attn_mask is not None:
        raise ModelError(f"{writer.location}: scaled_dot_product_attention takes attn_mask or is_causal=True, not both")
    rows, columns = query, key
    if enable_gqa:
        key, value = _shared_heads(writer, query, key), _shared_heads(writer, query, value)
    tensor = known(query)
    wide = halves if tensor is None else tensor.dtype in opaque_ops.HALVES
    if scale is None and tensor is not None and _known_size(query, -1) is not None:
        scale = opaque_ops.default_scale(tensor)
    elif scale is None:
        scale = writer.write(None, opaque_ops.default_scale, query)
    scores = write_scores(writer, query, key, scale, wide=wide)
    if is_causal:
        scores = write_causal_mask(writer, scores, rows, columns)
    elif attn_mask is not None:
        scores = _masked(writer, scores, attn_mask, query, wide=wide)
    weights = write_softmax(writer, scores, rows_may_be_empty=attn_mask is not None)
    if not is_zero(dropout_p):
        weights = writer.write(Role.DROPOUT, "dropout", weights, dropout_p, True)
    return write_mix(writer, weights, value, wide=wide)


def require_constant(location: str, **options: Any) -> None:
    """Refuse options that are computed at run time: the decomposition depends on them."""
    for name, value in options.items():
        if isinstance(value, fx.Node | fx.Proxy):
            raise TraceError(f"{location}: {name} is computed at run time, but the decomposition depends on it")


def write_scores(writer: AttentionWriter, query: fx.Node, key: fx.Node, scale: Any, *, wide: bool) -> fx.Node:
    """Write the scaled scores of every query and key."""
    if wide:
        query, key = _widened(writer, query), _widened(writer, key)
    transposed = writer.write(Role.SCORES, "transpose", key, -2, -1)
    product = writer.write(Role.SCORES, "matmul", query, transposed)
    return writer.write(Role.SCALE, "mul", product, scale)


def write_softmax(writer: AttentionWriter, scores: fx.Node, *, rows_may_be_empty: bool) -> fx.Node:
    """Write the softmax over the keys; a fully masked row becomes 0 if `rows_may_be_empty`, otherwise NaN."""
    return writer.write(Role.SOFTMAX, "safe_softmax" if rows_may_be_empty else "softmax", scores, -1)


def write_mix(writer: AttentionWriter, weights: fx.Node, value: fx.Node, *, wide: bool) -> fx.Node:
    """Write the product of weights and values."""
    if wide:
        weights = writer.write(Role.MIX, "type_as", weights, value)
    return writer.write(Role.MIX, "matmul", weights, value)


def write_causal_mask(writer: AttentionWriter, scores: fx.Node, query: fx.Node, key: fx.Node) -> fx.Node:
    """Mask the scores above the diagonal that begins at the top left."""
    shape = [_size(writer, tensor, -2) for tensor in (query, key)]
    everywhere = writer.write(Role.MASK, "new_ones", scores, shape, dtype=torch.bool)
    later = writer.write(Role.MASK, "triu", everywhere, 1)
    return writer.write(Role.MASK, "masked_fill", scores, later, -math.inf)


def _widened(writer: AttentionWriter, tensor: fx.Node) -> fx.Node:
    if writer.aten:
        return writer.write(Role.SCORES, torch.ops.aten.to.dtype, tensor, torch.float32)
    return writer.write(Role.SCORES, opaque_ops.widen, tensor)


def _masked(writer: AttentionWriter, scores: fx.Node, mask: Any, query: fx.Node, *, wide: bool) -> fx.Node:
    value = known(mask)
    if value is not None and value.dtype == torch.bool:
        return writer.write(Role.MASK, "keep_where", mask, scores, -math.inf)
    if value is None or not writer.aten:  # a float mask may be wider than the scores
        mask = writer.write(Role.MASK, opaque_ops.additive_mask, mask, query, wide)
    return writer.write(Role.MASK, "add", scores, mask)


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
    return writer.write(Role.SPLIT_HEADS, "repeat_interleave", tensor, times, -3)


def known(argument: Any) -> torch.Tensor | None:
    """Return a tensor with the dtype, rank and sizes of an argument if the graph has them, or None."""
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    return value if isinstance(value, torch.Tensor) else None


def _size(writer: AttentionWriter, tensor: fx.Node, axis: int) -> Any:
    size = _known_size(tensor, axis)
    return writer.write(None, "size", tensor, axis) if size is None else size


def _known_size(tensor: fx.Node, axis: int) -> int | None:
    value = known(tensor)
    size: Any = value.shape[axis] if value is not None else None
    return size if isinstance(size, int) else None


def is_zero(number: Any) -> bool:
    """Return whether an argument is the number 0, and not a node."""
    return isinstance(number, int | float) and number == 0


_FUNCTION = inspect.signature(F.multi_head_attention_forward)


class AttentionCall(Struct, frozen=True):
    """One multi-head attention to decompose, under torch's names; parameters and masks are None if absent."""

    query: Any
    key: Any
    value: Any
    in_proj_weight: Any  # packed; None if the three are separate
    q_proj_weight: Any
    k_proj_weight: Any
    v_proj_weight: Any
    in_proj_bias: Any  # of the three projections, packed
    bias_k: Any  # a learned position that is appended
    bias_v: Any
    out_proj_weight: Any
    out_proj_bias: Any
    attn_mask: Any
    key_padding_mask: Any
    embed_dim_to_check: int
    num_heads: int
    batch_first: bool
    add_zero_attn: bool
    need_weights: bool
    average_attn_weights: bool
    is_causal: bool
    halves: bool  # whether the model is in half precision
    dropout: str | float  # path of the dropout submodule, or a constant rate

    @property
    def width(self) -> int:
        """The width of a head."""
        return self.embed_dim_to_check // self.num_heads


_FIELDS = AttentionCall.__struct_fields__


def write_multihead(writer: AttentionWriter, call: AttentionCall) -> tuple[fx.Node, fx.Node | None]:
    """Write a multi-head attention and return the nodes of its result and of its weights."""
    wide = call.halves and not call.need_weights
    q, k, v = (_split(writer, _project(writer, index, call), call) for index in range(3))
    k, v = _appended(writer, k, call.bias_k, call), _appended(writer, v, call.bias_v, call)
    scores = write_scores(writer, q, k, 1.0 / math.sqrt(call.width), wide=wide)
    scores, is_masked = _with_masks(writer, scores, q, k, call, wide=wide)
    weights = write_softmax(writer, scores, rows_may_be_empty=is_masked and not call.need_weights)
    if isinstance(call.dropout, str):
        weights = writer.write_module(Role.DROPOUT, call.dropout, weights)
    elif call.dropout:
        weights = writer.write(Role.DROPOUT, "dropout", weights, call.dropout, True)
    mixed = write_mix(writer, weights, v, wide=wide)  # (…, heads, length, width of a head)
    if call.batch_first:
        transposed = writer.write(Role.MERGE_HEADS, "transpose", mixed, -3, -2)
    else:
        transposed = writer.write(Role.MERGE_HEADS, torch.movedim, mixed, -2, 0)
    merged = writer.write(Role.MERGE_HEADS, torch.flatten, transposed, -2)
    result = writer.write(Role.PROJECT_OUT, "linear", merged, call.out_proj_weight, call.out_proj_bias)
    if not call.need_weights:
        return result, None
    return result, writer.write(None, torch.mean, weights, -3) if call.average_attn_weights else weights


def _project(writer: AttentionWriter, index: int, call: AttentionCall) -> fx.Node:
    """Write the projection of queries, keys or values; their weights and biases may be packed into one tensor."""
    role, width = (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V)[index], call.embed_dim_to_check
    source = (call.query, call.key, call.value)[index]
    weight, bias = (call.q_proj_weight, call.k_proj_weight, call.v_proj_weight)[index], None
    if call.in_proj_weight is not None:
        weight = writer.write(role, "narrow", call.in_proj_weight, 0, index * width, width)
    if call.in_proj_bias is not None:
        bias = writer.write(role, "narrow", call.in_proj_bias, 0, index * width, width)
    return writer.write(role, "linear", source, weight, bias)


def _split(writer: AttentionWriter, projected: fx.Node, call: AttentionCall) -> fx.Node:
    """Reshape (…, width) to (…, heads, length, width of a head)."""
    split = writer.write(Role.SPLIT_HEADS, torch.unflatten, projected, -1, (call.num_heads, call.width))
    if call.batch_first:
        return writer.write(Role.SPLIT_HEADS, "transpose", split, -3, -2)
    return writer.write(Role.SPLIT_HEADS, torch.movedim, split, 0, -2)


def _appended(writer: AttentionWriter, keys: fx.Node, learned: fx.Node | None, call: AttentionCall) -> fx.Node:
    """Append the learned and the zero position to keys or values if the attention has them."""
    if learned is not None:
        per_head = writer.write(Role.SPLIT_HEADS, "reshape", learned, (call.num_heads, 1, call.width))
        one = writer.write(Role.SPLIT_HEADS, "narrow", keys, -2, 0, 1)
        for_all = writer.write(Role.SPLIT_HEADS, "expand_as", per_head, one)
        keys = writer.write(Role.SPLIT_HEADS, "cat", [keys, for_all], -2)
    return writer.write(Role.SPLIT_HEADS, F.pad, keys, (0, 0, 0, 1)) if call.add_zero_attn else keys


def _with_masks(
    writer: AttentionWriter, scores: fx.Node, q: fx.Node, k: fx.Node, call: AttentionCall, *, wide: bool
) -> tuple[fx.Node, bool]:
    """Return the masked scores, and whether a row may be fully masked.

    As in torch, the hint `is_causal` replaces the mask only if it is the only one and no weights are requested.
    """
    attn_mask, padding = call.attn_mask, call.key_padding_mask
    hint = call.is_causal and not call.need_weights
    if hint and padding is None:
        return write_causal_mask(writer, scores, q, k), False
    if attn_mask is None and padding is None:
        return scores, False
    appended = (call.bias_k is not None) + call.add_zero_attn
    mask = writer.write(Role.MASK, opaque_ops.merged_mask, q, k, attn_mask, padding, appended, hint, wide)
    return writer.write(Role.MASK, "add", scores, mask), True


def of_module(
    module: nn.MultiheadAttention, arguments: Mapping[str, Any], *, dropout: str | float, halves: bool
) -> AttentionCall:
    """Return the call of a module; `arguments` are all arguments of its forward by name."""
    own: Any = module  # some of its attributes have no types in torch
    known: dict[str, Any] = {**arguments, "halves": halves, "dropout": dropout, "embed_dim_to_check": own.embed_dim}
    known |= {"out_proj_weight": own.out_proj.weight, "out_proj_bias": own.out_proj.bias}
    return AttentionCall(*(known[name] if name in known else getattr(own, name) for name in _FIELDS))


def of_function(location: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, halves: bool) -> AttentionCall:
    """Return the call of `F.multi_head_attention_forward`."""
    bound = _FUNCTION.bind(*args, **kwargs)
    bound.apply_defaults()
    known: dict[str, Any] = bound.arguments
    for name in ("static_k", "static_v"):
        if known[name] is not None:
            raise ModelError(f"{location}: multi_head_attention_forward with {name} cannot be decomposed")
    for name in ("training", "add_zero_attn", "use_separate_proj_weight", "dropout_p"):
        require_constant(location, **{name: known[name]})
    known |= {"batch_first": False, "halves": halves, "dropout": known["dropout_p"] if known["training"] else 0.0}
    if known["use_separate_proj_weight"]:
        known["in_proj_weight"] = None
    return AttentionCall(*(known[name] for name in _FIELDS))


def checked(call: AttentionCall, location: str, node_of: Callable[[Any], Any]) -> AttentionCall:
    """Refuse what torch would refuse, as far as it is known at tracing time; return the call with nodes for tensors."""
    for name in ("need_weights", "average_attn_weights", "is_causal"):
        require_constant(location, **{name: getattr(call, name)})
    if call.is_causal and call.attn_mask is None:
        raise ModelError(f"{location}: is_causal=True is only a hint about attn_mask, which is missing")
    _check_mask(location, "attn_mask", call.attn_mask, (2, 3))
    _check_mask(location, "key_padding_mask", call.key_padding_mask, (1, 2))
    return AttentionCall(*(node_of(getattr(call, name)) for name in _FIELDS))


def _check_mask(location: str, name: str, mask: Any, ranks: tuple[int, int]) -> None:
    if not isinstance(mask, torch.Tensor):
        return
    if mask.dim() not in ranks:
        raise ModelError(f"{location}: {name} has {mask.dim()} axes, but must have {ranks[0]} or {ranks[1]}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ModelError(f"{location}: {name} is {mask.dtype}, but must be bool or of a float type")
