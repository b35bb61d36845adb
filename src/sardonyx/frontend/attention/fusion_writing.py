"""Writes one call of scaled_dot_product_attention in place of an attention, and removes nodes that are left unused."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.decompositions import OPS, is_zero
from sardonyx.frontend.attention.fusion_plan import FusionPlan, is_default_scale, shared_heads
from sardonyx.frontend.attention.graph_calls import (
    EXAMPLE,
    Rank,
    dialect_of,
    dtype_of,
    is_torch,
    rank_of,
    read,
    same_sizes,
    shape_of,
    writes_in_place,
)
from sardonyx.frontend.attention.roles import AttentionMatch, Bias, Cast, Fill, Operand, Scale
from sardonyx.frontend.attention.softmax_walk import is_check, is_metadata

WRITTEN_FOR = "sardonyx_written_for"  # metadata of a new node during the rewrite: name of the node it belongs to
_MASKED = -1e30  # added to scores it makes them all equal; finite in every dtype except float16
_DIVIDE = cast(Any, operator).truediv  # its stub does not type the operands


class Writer:
    """Writes nodes at one position of a graph, with their values if those of their operands are known."""

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        """Write before this node, with its module stack."""
        self._graph, self._before = graph, before
        self._aten = dialect_of(graph) == "aten"

    def write(self, op: str, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node for an operation of the table."""
        target = OPS[op][self._aten]
        return self.call(target, *args, **kwargs)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node for any function."""
        with self._graph.inserting_before(self._before):
            kind = "call_method" if isinstance(target, str) else "call_function"
            node = self._graph.create_node(kind, target, args, kwargs)
        origin = ("nn_module_stack", "stack_trace", "source_fn_stack")
        node.meta = {key: self._before.meta[key] for key in origin if key in self._before.meta}
        node.meta[WRITTEN_FOR] = self._before.meta.get(WRITTEN_FOR, self._before.name)
        self._propagate(node)
        return node

    def _propagate(self, node: fx.Node) -> None:
        """Compute the node's value if the values of all operands are known."""
        for key in ("val", EXAMPLE):
            if not all(key in operand.meta for operand in node.all_input_nodes):
                continue
            values: Any = fx.map_arg((node.args, node.kwargs), lambda operand, key=key: operand.meta[key])
            modes = [leaf.fake_mode for leaf in tree_leaves(values) if hasattr(leaf, "fake_mode")]
            if modes:
                target = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
                with modes[0]:
                    node.meta[key] = target(*values[0], **values[1])

    def size(self, tensor: fx.Node, axis: int) -> Any:
        """Return the size as a number, or as a node that computes it."""
        shape = shape_of(tensor)
        fixed = shape is not None and isinstance(shape[axis], int) and (self._aten or tensor.op == "get_attr")
        return shape[axis] if shape is not None and fixed else self.write("size", tensor, axis)

    def regrouped(self, tensor: fx.Node, lead: Sequence[Any]) -> fx.Node:
        """Reshape the axes before the last two."""
        return self.write("reshape", tensor, [*lead, self.size(tensor, -2), self.size(tensor, -1)])

    def at_least_matrix(self, tensor: fx.Node) -> fx.Node:
        """Add leading axes until there are two."""
        rank = rank_of(tensor)
        if rank.least >= 2:
            return tensor
        if not rank.exact:
            return self.call(getattr(torch, "atleast_2d"), tensor)  # noqa: B009  # torch leaves it untyped
        for _ in range(2 - rank.least):
            tensor = self.write("unsqueeze", tensor, 0)
        return tensor


def write_call(graph: fx.Graph, attention: AttentionMatch, plan: FusionPlan, dropout_p: Any) -> tuple[fx.Node, fx.Node]:
    """Write the call and its arguments; return the call, and the node that replaces the old result."""
    writer = Writer(graph, attention.mix)
    groups = _Groups(writer, attention, plan)
    operands = (
        _permuted(writer, attention.query),
        _permuted(writer, attention.key),
        _permuted(writer, attention.value),
    )
    options: dict[str, Any] = {}
    mask = _mask(writer, operands[0], plan, groups)
    if plan.causal is not None:
        options["is_causal"] = True
    elif mask is not None:
        options["attn_mask"] = mask
    if not is_zero(dropout_p):
        options["dropout_p"] = dropout_p
    if not is_default_scale(plan, operands[0]):
        options["scale"] = _scale(writer, plan)
    query, key, value = operands
    if (groups.lead is None) and (shared := shared_heads(query, key, value)) is not None:
        key, value, options["enable_gqa"] = *shared, True
    for step in plan.tensor_scales:  # the queries keep their dtype
        scaled = writer.write("div" if step.divides else "mul", query, step.factor)
        same = dtype_of(scaled) is not None and dtype_of(scaled) == dtype_of(query)
        query = scaled if same else writer.write("type_as", scaled, query)
    query, key, value = groups.regroup(query), groups.regroup(key), groups.regroup(value)
    call, result = _call(writer, (query, key, value), options)
    result = groups.restore(result)
    if attention.result_perm is not None:
        result = writer.write("permute", result, attention.result_perm)
    return call, result


def _call(
    writer: Writer, operands: tuple[fx.Node, fx.Node, fx.Node], options: dict[str, Any]
) -> tuple[fx.Node, fx.Node]:
    """Write the call and return it and its result. Torch has fast kernels for four axes only: one is added to three."""
    if any(rank_of(operand) != Rank(3, exact=True) for operand in operands):
        call = writer.write("sdpa", *operands, **options)
        return call, call
    mask = options.get("attn_mask")
    if mask is not None and rank_of(mask) == Rank(3, exact=True):
        options = {**options, "attn_mask": writer.write("unsqueeze", mask, 0)}
    call = writer.write("sdpa", *(writer.write("unsqueeze", operand, 0) for operand in operands), **options)
    return call, writer.write("squeeze", call, 0)


def _permuted(writer: Writer, operand: Operand) -> fx.Node:
    node = operand.node
    if operand.perm is not None:
        node = writer.write("permute", node, operand.perm)
    return writer.write("transpose", node, -2, -1) if operand.swap else node


def _scale(writer: Writer, plan: FusionPlan) -> Any:
    numbers = [step for step in plan.scales if isinstance(step.factor, (int, float))]
    computed = [step for step in plan.scales if not isinstance(step.factor, (int, float))]
    known = math.prod(1.0 / step.factor if step.divides else float(step.factor) for step in numbers)
    if not computed:
        return known
    result: Any = computed[0].factor
    if computed[0].divides:
        result = writer.call(_DIVIDE, 1.0, result)
    for step in computed[1:]:
        result = writer.call(_DIVIDE if step.divides else operator.mul, result, step.factor)
    return result if known == 1.0 else writer.call(operator.mul, result, known)


def _mask(writer: Writer, query: fx.Node, plan: FusionPlan, groups: _Groups) -> fx.Node | None:
    """Return all masks as one: a boolean mask (True keeps a score) if possible, otherwise one to add."""
    if len(plan.masks) == 1 and isinstance(plan.masks[0][1], Bias) and plan.masks[0][1].as_sdpa:
        return plan.masks[0][1].term
    fills = [mask for _, mask in plan.masks if isinstance(mask, Fill) and mask.value == -math.inf]
    if fills and len(fills) == len([mask for _, mask in plan.masks if not isinstance(mask, Scale)]):
        conditions = [(space, mask.condition, mask.where_true) for space, mask in plan.masks if isinstance(mask, Fill)]
        kept = [groups.mask(writer.write("not", c) if negated else c, space) for space, c, negated in conditions]
        merged = functools.reduce(lambda left, right: writer.write("and", left, right), kept)
        return writer.at_least_matrix(merged)
    added: fx.Node | None = None
    for space, mask in plan.masks:
        added = _with_mask(writer, query, added, mask, functools.partial(groups.mask, space=space))
    if added is None:
        return None
    own, other = dtype_of(added), dtype_of(query)  # float32 is kept with half precision, so that it stays finite
    fits = own is not None and (own == other or (own is torch.float32 and other in opaque_ops.HALVES))
    return writer.at_least_matrix(added if fits else writer.write("type_as", added, query))


def _with_mask(
    writer: Writer, query: fx.Node, added: fx.Node | None, mask: Bias | Fill | Scale, regroup: Any
) -> fx.Node:
    match mask:
        case Scale():
            assert added is not None, "a scale is among the masks only after a mask"
            return writer.write("div" if mask.divides else "mul", added, mask.factor)
        case Bias():
            term = mask.term if mask.times == 1 else writer.write("mul", mask.term, mask.times)
            return regroup(term) if added is None else writer.write("add", added, regroup(term))
        case Fill():
            value = max(mask.value, _MASKED) if mask.value != -math.inf else -math.inf
            masked = mask.condition if mask.where_true else writer.write("not", mask.condition)
            if added is None:
                zeros = writer.write("mul", writer.write("type_as", regroup(masked), query), 0.0)
                return writer.write("fill_where", regroup(masked), value, zeros)
            return writer.write("fill_where", regroup(masked), value, added)


class _Groups:
    """The axes before the last two. If steps regroup them, the call uses the finest grouping of a mask."""

    def __init__(self, writer: Writer, attention: AttentionMatch, plan: FusionPlan) -> None:
        self._writer, self._attention = writer, attention
        self._spaces = [attention.scores, *(step.node for step in plan.regroups)]
        masked = {space for space, _ in plan.masks}
        self._space = max(masked, key=lambda space: len(self._shape(space)), default=0) if plan.regroups else 0
        self.lead = self._sizes(self._space) if plan.regroups else None

    def _shape(self, space: int) -> tuple[Any, ...]:
        return shape_of(self._spaces[space]) or ()

    def _sizes(self, space: int) -> list[Any]:
        """Return the sizes of the leading axes, each a number or a node."""
        shape, call = self._shape(space)[:-2], read(self._spaces[space])
        written: Any = call.get("shape") if call is not None and call.name == "view" else None
        if written is not None and len(written) == len(shape) + 2:
            return [*written[:-2]]
        query = self._attention.query
        axes = query.perm or range(len(shape) + 2)
        if space == 0:
            return [self._writer.size(query.node, axes[index]) for index in range(len(shape))]
        return [size if isinstance(size, int) else -1 for size in shape]

    def regroup(self, operand: fx.Node) -> fx.Node:
        """Return an operand in the grouping of the call."""
        if self.lead is None or same_sizes((shape_of(operand) or ())[:-2], self._shape(self._space)[:-2]):
            return operand
        return self._writer.regrouped(operand, self.lead)

    def restore(self, result: fx.Node) -> fx.Node:
        """Return the result in its original grouping."""
        last = len(self._spaces) - 1
        if self.lead is None or same_sizes(self._shape(self._space)[:-2], self._shape(last)[:-2]):
            return result
        return self._writer.regrouped(result, self._sizes(last))

    def mask(self, mask: fx.Node, space: int) -> fx.Node:
        """Return a mask of one grouping in that of the call."""
        shape, here = shape_of(mask), self._shape(space)
        if self.lead is None or space == self._space or (shape is not None and len(shape) <= 2):
            return mask
        if same_sizes(here[:-2], self._shape(self._space)[:-2]):
            return mask
        whole = self._writer.write("expand", mask, [*self._sizes(space), -1, -1])
        return self._writer.regrouped(whole, self.lead)


# Removes unused nodes, and makes nodes that read metadata of the scores read it from queries and keys.

_KINDS = (("dtype",), ("device",))  # attributes that queries share with their scores


def prune(graph: fx.Graph) -> None:
    """Erase unused operations of torch without side effects."""
    for node in reversed(graph.nodes):
        if not node.users and _is_pure(node):
            graph.erase_node(node)


def erase_unread(graph: fx.Graph, node: fx.Node) -> None:
    """Erase an unused node, and recursively the operands that only it used."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not node.users and node in graph.nodes and (_is_pure(node) or node.op in ("call_module", "get_attr")):
            inputs = node.all_input_nodes
            graph.erase_node(node)
            waiting.extend(inputs)


def _is_pure(node: fx.Node) -> bool:
    return is_torch(node) and not writes_in_place(node) and not node.is_impure(impure_random=False)


def redirect_metadata(attention: AttentionMatch) -> None:
    """Make nodes that read sizes, dtype or device of the scores read those of queries and keys."""
    is_plain = all(operand.perm is None and not operand.swap for operand in (attention.query, attention.key))
    has_cast = any(isinstance(step, Cast) for step in (*attention.steps, *attention.after))
    for node in attention.core[:-1]:
        for user in [user for user in node.users if user not in attention.core and is_metadata(user, node)]:
            call = read(user)
            if is_check(user):
                user.graph.erase_node(user)
            elif call is not None and call.name == "size" and is_plain and call.get("dim") in (-1, -2):
                source = attention.query.node if call.get("dim") == -2 else attention.key.node
                user.args = (source, -2)
                user.kwargs = {}
            elif not has_cast and ((call is not None and call.name != "size") or user.args[1:] in _KINDS):
                user.replace_input_with(node, attention.query.node)
