"""Replaces an attention by one call of scaled_dot_product_attention: decides whether it can, then writes the call.

Deciding writes nothing. A reason against it is a sentence, which says if example inputs would help.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from msgspec import Struct, field
from torch import fx, nn

from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.decompositions import OPS, is_zero
from sardonyx.frontend.attention.graph_calls import (
    ARRANGING,
    Rank,
    dtype_of,
    has_overloads,
    insert,
    is_number,
    is_torch,
    rank_of,
    read,
    same_sizes,
    shape_of,
    writes_in_place,
)
from sardonyx.frontend.attention.recognizer import is_check, is_metadata
from sardonyx.frontend.attention.roles import AttentionMatch, Bias, Cast, Fill, Operand, Regroup, Scale

WRITTEN_FOR = "sardonyx_written_for"  # metadata of a new node during the rewrite: name of the node it belongs to
_MAX_MASK_FILL = -1e4  # scores filled with this or less have no weight compared with unmasked scores
_MASK_FILL = -1e30  # added to scores it makes them all equal; finite in every dtype except float16
_EXAMPLES = "example inputs are needed to decide"
_DIVIDE = cast(Any, operator).truediv  # its stub does not type the operands


class CannotFuse(Exception):
    """Why one call cannot replace an attention."""


class FusionPlan(Struct, eq=False):
    """The arguments of the call."""

    scales: list[Scale] = field(default_factory=list[Scale])  # by numbers
    tensor_scales: list[Scale] = field(default_factory=list[Scale])  # by tensors, applied to the queries
    masks: list[tuple[int, Bias | Fill | Scale]] = field(default_factory=list[tuple[int, Bias | Fill | Scale]])
    regroups: list[Regroup] = field(default_factory=list[Regroup])  # between the scores and the product with the values
    causal: Fill | None = None
    dropout_p: float = 0.0
    dropout_module: str | None = None
    notes: list[str] = field(default_factory=list[str])

    def mask(self, step: Bias | Fill | Scale) -> None:
        """Add a mask in the present grouping of the axes; a causal one before it becomes an ordinary mask."""
        if self.causal is not None:
            self.masks.insert(0, (0, self.causal))
            self.causal = None
        self.masks.append((len(self.regroups), step))


def plan_fusion(attention: AttentionMatch) -> FusionPlan:
    """Return the call that replaces the attention.

    Raises:
        CannotFuse: If there is none.
    """
    if attention.read_elsewhere:
        early = all(node < attention.softmax for node in attention.read_elsewhere)
        what, where = "scores" if early else "weights", attention.read_elsewhere[-1].name
        raise CannotFuse(f"its {what} are read elsewhere (`{where}`)")
    _require_intact_operands(attention)
    _require_one_dtype(attention)
    shapes = (shape_of(operand.node) for operand in (attention.query, attention.key, attention.value))
    if any(shape is not None and len(shape) < 2 for shape in shapes):
        raise CannotFuse("one of its operands is a vector")
    plan = FusionPlan()
    for step in attention.steps:
        match step:
            case Scale():
                _plan_scale(step, plan)
            case Bias():
                _plan_bias(step, plan)
            case Fill():
                _plan_fill(step, attention, plan)
            case Regroup():
                plan.regroups.append(step)
            case Cast():
                pass
    plan.regroups.extend(step for step in attention.after if isinstance(step, Regroup))
    infinite = any(not isinstance(mask, Fill) or mask.value == -math.inf for _, mask in plan.masks)
    if infinite and not attention.safe:
        plan.notes.append("a fully masked row is 0 instead of NaN")
    if (dropout := attention.dropout) is not None and dropout.p > 0 and dropout.training is not False:
        plan.dropout_p, plan.dropout_module = dropout.p, dropout.module
    if plan.regroups:
        _require_same_groups(attention, plan)
    return plan


def _require_intact_operands(attention: AttentionMatch) -> None:
    """Refuse operands that are overwritten between their first use and the product with the values."""
    operands = (attention.query.node, attention.key.node, attention.value.node)
    roots = {_root(node): node for node in operands}
    node = min(operands).next
    while node is not attention.mix:
        if writes_in_place(node) and node not in attention.core and node.all_input_nodes:
            operand = roots.get(_root(node.all_input_nodes[0]))
            if operand is not None and operand < node:
                raise CannotFuse(f"an operand is overwritten by `{node.name}` before the end")
        node = node.next


def _root(node: fx.Node) -> fx.Node:
    """Return the node whose memory this one may share."""
    while (call := read(node)) is not None:
        inner = call.get("x")
        aliases = call.name in ARRANGING or call.name == "cast" or writes_in_place(node)
        if not aliases or not isinstance(inner, fx.Node):
            break
        node = inner
    return node


def _require_one_dtype(attention: AttentionMatch) -> None:
    """Refuse operands that may differ in dtype. Casts inside the attention only affect rounding."""
    known = [dtype_of(operand.node) for operand in (attention.query, attention.key, attention.value)]
    if None not in known:
        if len(set(known)) > 1:
            raise CannotFuse(f"its operands have different dtypes: {', '.join(map(str, known))}")
        return
    casts = [step for step in (*attention.steps, *attention.after) if isinstance(step, Cast)]
    if not casts:
        return
    last = casts[-1].dtype
    sources = {_dtype_source(operand.node) for operand in (attention.query, attention.value)}
    if not isinstance(last, fx.Node) or (last not in attention.core and _dtype_source(last) not in sources):
        raise CannotFuse(f"its weights are cast to {last}, which may not be the dtype of the queries: {_EXAMPLES}")
    early = [step.node for step in attention.steps if isinstance(step, Cast) and step.node is not attention.softmax]
    for step in attention.steps:
        if not isinstance(step, Bias) or step.as_sdpa:
            continue
        is_own = getattr(step.term, "target", None) is opaque_ops.merged_mask  # in a dtype that the call accepts
        if not is_own and any(node < step.node for node in early):
            raise CannotFuse(f"a mask is added after a cast, and may be wider than the queries: {_EXAMPLES}")


def _dtype_source(node: fx.Node) -> fx.Node:
    """Return the node that determines the dtype: rearranging and projecting do not change it."""
    while (call := read(node, "linear", *ARRANGING)) is not None and isinstance(call.get("x"), fx.Node):
        node = call.get("x")
    return node


def _plan_scale(step: Scale, plan: FusionPlan) -> None:
    """Add a scale to the plan.

    A number after a mask m scales both: c (s + m) = c s + c m, which keeps m = -inf only if c > 0. A tensor t moves to
    the queries, t (q · k) = (t q) · k, if it is the same for all keys.
    """
    masked = bool(plan.masks) or plan.causal is not None
    if is_number(step.factor):
        if masked and (not isinstance(step.factor, (int, float)) or step.factor <= 0):
            raise CannotFuse("its masked scores are multiplied by a number that may not be positive")
        if plan.masks:  # a causal mask is -inf at any scale
            plan.mask(step)
        plan.scales.append(step)
        return
    shape = shape_of(step.factor)
    if masked or plan.regroups:
        raise CannotFuse("its masked or regrouped scores are multiplied by a tensor")
    if shape is None:
        raise CannotFuse(f"its scores are multiplied by a tensor that may differ from key to key: {_EXAMPLES}")
    if shape and not (isinstance(shape[-1], int) and shape[-1] == 1):  # it is 1 for every input
        raise CannotFuse("its scores are multiplied by a tensor that differs from key to key")
    plan.tensor_scales.append(step)


def _plan_bias(step: Bias, plan: FusionPlan) -> None:
    """Add a mask to the plan. A finite number is dropped: softmax(s + c) = softmax(s)."""
    if not isinstance(step.term, fx.Node):
        if step.term is not None and not math.isfinite(step.term):
            raise CannotFuse("an infinite number is added to its scores")
        return
    masks = [mask for _, mask in plan.masks]
    if any(isinstance(mask, Fill) and mask.value != -math.inf for mask in masks):
        raise CannotFuse("a mask is added to scores that were filled with a finite value")
    is_second = step.as_sdpa and (masks or plan.causal)
    if is_second or any(isinstance(mask, Bias) and mask.as_sdpa for mask in masks):
        raise CannotFuse("it has another mask in addition to that of the call")
    plan.mask(step)


def _plan_fill(step: Fill, attention: AttentionMatch, plan: FusionPlan) -> None:
    """Add a filled mask to the plan.

    Filling scores with a finite value becomes adding a large negative number. Both give the weight 0 beside an unmasked
    score and equal weights in a fully masked row, up to rounding.
    """
    if step.value > _MAX_MASK_FILL or math.isnan(step.value):
        raise CannotFuse(f"its scores are filled with {step.value:g}, which does not mask them")
    if step.value != -math.inf:
        if torch.float16 in (dtype_of(attention.query.node), dtype_of(step.node)):
            raise CannotFuse("its scores are filled with a finite value in float16, where adding cannot do the same")
        plan.notes.append("the scores of a fully masked row get gradients")
    if not plan.masks and plan.causal is None and not plan.regroups and _is_causal(step, attention):
        plan.causal = step
    else:
        plan.mask(step)


def _is_causal(step: Fill, attention: AttentionMatch) -> bool:
    """Return whether the condition is true exactly above the diagonal that begins at the top left of the scores."""
    call = read(step.condition, "triu" if step.where_true else "tril")
    if call is None or call.get("diagonal", 0) != int(step.where_true):
        return False
    ones = read(call.get("x"), "new_ones", "ones")
    if ones is None or step.value != -math.inf:
        return False
    shapes = shape_of(step.condition), shape_of(attention.scores)
    if shapes[0] is not None and shapes[1] is not None:
        return same_sizes(shapes[0], shapes[1][-2:])
    size: Any = ones.get("size")
    if not isinstance(size, (tuple, list)) or len(cast(Any, size)) != 2:
        return False
    return _is_length(size[0], attention.query) and _is_length(size[1], attention.key)


def _is_length(size: Any, operand: Operand) -> bool:
    """Return whether the node is the length of the operand, possibly before its heads are repeated."""
    call, repeat = read(size, "size"), read(operand.node, "repeat")
    measured = call.get("x") if call is not None and call.get("dim") == -2 else None
    before = repeat.get("x") if repeat is not None and repeat.get("dim") == -3 else None
    plain = operand.perm is None and not operand.swap
    return plain and measured is not None and measured in (operand.node, before)


def _require_same_groups(attention: AttentionMatch, plan: FusionPlan) -> None:
    """Refuse a regrouping of the scores' leading axes that cannot be done to the operands as well."""
    scores, weights = shape_of(attention.scores), shape_of(plan.regroups[-1].node)
    for operand, whole in ((attention.query, scores), (attention.key, scores), (attention.value, weights)):
        shape = shape_of(operand.node)
        if shape is not None and operand.perm is not None:
            shape = tuple(shape[axis] for axis in operand.perm)
        if shape is None or whole is None:
            raise CannotFuse(f"its scores are regrouped, and the sizes are unknown: {_EXAMPLES}")
        if not same_sizes(shape[:-2], whole[:-2]):
            raise CannotFuse("its scores are regrouped, and one of its operands is broadcast over them")
    if attention.result_perm is not None:
        raise CannotFuse("its scores are regrouped, and its result is permuted")


# Heads of keys and values that several heads of the queries share


def _shared_heads(query: fx.Node, key: fx.Node, value: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return keys and values before their heads are repeated for the queries (`enable_gqa`), or None."""
    keys, values = _unrepeated(query, key), _unrepeated(query, value)
    return (keys[0], values[0]) if keys is not None and values is not None and keys[1] == values[1] else None


def _unrepeated(query: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """Return the tensor whose heads are repeated, and how often; None if they are not."""
    call, rank = read(node, "repeat"), rank_of(node)
    dim = call.get("dim") if call is not None and call.node.target != "repeat" else None
    times: Any = None
    if call is not None and isinstance(dim, int) and (dim == -3 or (rank.exact and dim - rank.least == -3)):
        inner, times = call.get("x"), call.get("repeats")
        if isinstance(times, fx.Node) and times.target is opaque_ops.heads_per_group and times.args == (query, inner):
            return inner, "heads_per_group"
        if not isinstance(times, int):
            return None
    elif (inner := _before_expansion(node)) is None:
        return None
    queries, before, after = shape_of(query), shape_of(inner), shape_of(node)
    if queries is None or before is None or after is None or {len(queries), len(before), len(after)} != {4}:
        return None
    heads, groups = queries[1], before[1]
    is_multiple = isinstance(heads, int) and isinstance(groups, int) and heads == after[1] and heads % groups == 0
    return (inner, heads // groups) if is_multiple and same_sizes(queries[:1], before[:1]) else None


def _before_expansion(node: fx.Node) -> fx.Node | None:
    """Return x of x[:, :, None].expand(b, groups, times, n, d).reshape(b, groups * times, n, d), or None."""
    merged = read(_skip_same(node), "view")
    expanded = read(_skip_same(merged.get("x")), "expand") if merged is not None else None
    if merged is None or expanded is None:
        return None
    last, wide, thin = shape_of(merged.node), shape_of(expanded.node), shape_of(expanded.get("x"))
    if last is None or wide is None or thin is None:
        return None
    if len(last) != 4 or len(wide) != 5 or not same_sizes((*wide[:2], 1, *wide[3:]), thin):
        return None
    if not same_sizes((wide[0], wide[3], wide[4]), (last[0], last[2], last[3])):
        return None
    node = expanded.get("x")  # walk back through full slices to the tensor without the axis of the repetition
    while (call := read(node, "unsqueeze", "part", "same")) is not None:
        index = call.get("index")
        parts = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
        is_full = all(part is None or part is Ellipsis or part == slice(None) for part in parts)
        if node.target is operator.getitem and not is_full:
            return None
        node = call.get("x")
        if same_sizes(shape_of(node), (*wide[:2], *wide[3:])):
            return node
    return None


def _skip_same(node: Any) -> Any:
    while (call := read(node, "same")) is not None:
        node = call.get("x")
    return node


class DropoutRate(nn.Module):
    """Returns the dropout rate in training mode, otherwise 0: it follows `.train()` and `.eval()`."""

    def __init__(self, p: float, training: bool) -> None:
        """Start in the mode of the dropout module that it replaces."""
        super().__init__()
        self.p = p
        self.training = training

    def forward(self) -> float:
        """Return the current rate."""
        return self.p if self.training else 0.0

    def extra_repr(self) -> str:
        """Return the rate in training mode for `repr`."""
        return f"p={self.p}"


# Writing the call


class Writer:
    """Writes nodes at one position of a graph, with their values if those of their operands are known."""

    def __init__(self, graph: fx.Graph, before: fx.Node) -> None:
        """Write before this node, with its module stack."""
        self._before, self._aten = before, has_overloads(graph)

    def write(self, op: str, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node for an operation of the table."""
        return self.call(OPS[op][self._aten], *args, **kwargs)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node for any function."""
        node = insert(self._before, target, args, kwargs)
        node.meta[WRITTEN_FOR] = self._before.meta.get(WRITTEN_FOR, self._before.name)
        return node

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
    query, key, value = (_permuted(writer, each) for each in (attention.query, attention.key, attention.value))
    options: dict[str, Any] = {}
    mask = _mask(writer, query, plan, groups)
    if plan.causal is not None:
        options["is_causal"] = True
    elif mask is not None:
        options["attn_mask"] = mask
    if not is_zero(dropout_p):
        options["dropout_p"] = dropout_p
    only: Any = plan.scales[0].factor if len(plan.scales) == 1 else None
    if not (isinstance(only, fx.Node) and only.target is opaque_ops.default_scale and only.args == (query,)):
        options["scale"] = _scale(writer, plan)
    if groups.lead is None and (shared := _shared_heads(query, key, value)) is not None:
        key, value, options["enable_gqa"] = *shared, True
    for step in plan.tensor_scales:  # the queries keep their dtype
        scaled = writer.write("div" if step.divides else "mul", query, step.factor)
        same = dtype_of(scaled) is not None and dtype_of(scaled) == dtype_of(query)
        query = scaled if same else writer.write("type_as", scaled, query)
    operands = [groups.regroup(each) for each in (query, key, value)]
    rank_3 = Rank(3, exact=True)
    is_batched = any(rank_of(operand) != rank_3 for operand in operands)
    if not is_batched:  # torch has fast kernels for four axes only
        if mask is not None and rank_of(mask) == rank_3:
            options["attn_mask"] = writer.write("unsqueeze", mask, 0)
        operands = [writer.write("unsqueeze", operand, 0) for operand in operands]
    call = writer.write("sdpa", *operands, **options)
    result = groups.restore(call if is_batched else writer.write("squeeze", call, 0))
    if attention.result_perm is not None:
        result = writer.write("permute", result, attention.result_perm)
    return call, result


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
    fills = [(space, mask) for space, mask in plan.masks if isinstance(mask, Fill)]
    others = [mask for _, mask in plan.masks if isinstance(mask, Bias)]
    if fills and not others and all(mask.value == -math.inf for _, mask in fills):
        kept = [
            groups.mask(writer.write("not", mask.condition) if mask.where_true else mask.condition, space)
            for space, mask in fills
        ]
        return writer.at_least_matrix(functools.reduce(lambda left, right: writer.write("and", left, right), kept))
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
            value = max(mask.value, _MASK_FILL) if mask.value != -math.inf else -math.inf
            masked = mask.condition if mask.where_true else writer.write("not", mask.condition)
            if added is None:
                added = writer.write("mul", writer.write("type_as", regroup(masked), query), 0.0)
            return writer.write("fill_where", regroup(masked), value, added)


class _Groups:
    """The axes before the last two. If steps regroup them, the call uses the finest grouping of a mask."""

    def __init__(self, writer: Writer, attention: AttentionMatch, plan: FusionPlan) -> None:
        self._writer, self._attention = writer, attention
        self._spaces = [attention.scores, *(step.node for step in plan.regroups)]
        self._shapes = [shape_of(node) or () for node in self._spaces]
        masked = {space for space, _ in plan.masks}
        self._space = max(masked, key=lambda space: len(self._shapes[space]), default=0) if plan.regroups else 0
        self.lead = self._sizes(self._space) if plan.regroups else None

    def _sizes(self, space: int) -> list[Any]:
        """Return the sizes of the leading axes, each a number or a node."""
        shape, call = self._shapes[space][:-2], read(self._spaces[space], "view")
        written: Any = call.get("shape") if call is not None else None
        if written is not None and len(written) == len(shape) + 2:
            return [*written[:-2]]
        query = self._attention.query
        axes = query.perm or range(len(shape) + 2)
        if space == 0:
            return [self._writer.size(query.node, axes[index]) for index in range(len(shape))]
        return [size if isinstance(size, int) else -1 for size in shape]

    def _is_call(self, shape: tuple[Any, ...]) -> bool:
        """Return whether a shape has the grouping of the call."""
        return same_sizes(shape[:-2], self._shapes[self._space][:-2])

    def regroup(self, operand: fx.Node) -> fx.Node:
        """Return an operand in the grouping of the call."""
        if self.lead is None or self._is_call(shape_of(operand) or ()):
            return operand
        return self._writer.regrouped(operand, self.lead)

    def restore(self, result: fx.Node) -> fx.Node:
        """Return the result in its original grouping."""
        if self.lead is None or self._is_call(self._shapes[-1]):
            return result
        return self._writer.regrouped(result, self._sizes(len(self._spaces) - 1))

    def mask(self, mask: fx.Node, space: int) -> fx.Node:
        """Return a mask of one grouping in that of the call."""
        shape = shape_of(mask)
        if self.lead is None or space == self._space or (shape is not None and len(shape) <= 2):
            return mask
        if self._is_call(self._shapes[space]):
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
