"""Decides whether one call of scaled_dot_product_attention can replace an attention, and with which arguments.

Nothing is written here. A plan that fails returns the reason as a sentence, which says if example inputs would help.
"""

from __future__ import annotations

import math
import operator
from typing import Any, cast

import torch
from msgspec import Struct, field
from torch import fx, nn

from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.graph_calls import (
    ARRANGING,
    dtype_of,
    is_number,
    is_one,
    rank_of,
    read,
    same_sizes,
    shape_of,
    writes_in_place,
)
from sardonyx.frontend.attention.roles import AttentionMatch, Bias, Cast, Fill, Operand, Regroup, Scale

LOW_ENOUGH = -1e4  # scores filled with this or less have no weight compared with unmasked scores
_EXAMPLES = "example inputs are needed to decide"


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


def plan_fusion(attention: AttentionMatch) -> FusionPlan | str:
    """Return the call that replaces the attention, or why there is none."""
    if attention.read_elsewhere:
        early = all(node < attention.softmax for node in attention.read_elsewhere)
        return f"its {'scores' if early else 'weights'} are read elsewhere (`{attention.read_elsewhere[-1].name}`)"
    if reason := _overwritten(attention) or _dtypes(attention):
        return reason
    shapes = (shape_of(operand.node) for operand in (attention.query, attention.key, attention.value))
    if any(shape is not None and len(shape) < 2 for shape in shapes):
        return "one of its operands is a vector"
    plan = FusionPlan()
    if reason := _steps(attention, plan):
        return reason
    if (dropout := attention.dropout) is not None and dropout.p > 0 and dropout.training is not False:
        plan.dropout_p, plan.dropout_module = dropout.p, dropout.module
    return _groups(attention, plan) or plan


def _overwritten(attention: AttentionMatch) -> str:
    """Return a reason if an operand is overwritten between its first use and the product with the values."""
    operands = (attention.query.node, attention.key.node, attention.value.node)
    roots = {_root(node): node for node in operands}
    node = min(operands).next
    while node is not attention.mix:
        if writes_in_place(node) and node not in attention.core and node.all_input_nodes:
            operand = roots.get(_root(node.all_input_nodes[0]))
            if operand is not None and operand < node:
                return f"an operand is overwritten by `{node.name}` before the end"
        node = node.next
    return ""


def _root(node: fx.Node) -> fx.Node:
    """Return the node whose memory this one may share."""
    while (call := read(node)) is not None:
        inner = call.get("x")
        aliases = call.name in ARRANGING or call.name == "cast" or writes_in_place(node)
        if not aliases or not isinstance(inner, fx.Node):
            break
        node = inner
    return node


def _dtypes(attention: AttentionMatch) -> str:
    """Return a reason if the operands may differ in dtype. Casts inside the attention only affect rounding."""
    known = [dtype_of(operand.node) for operand in (attention.query, attention.key, attention.value)]
    if None not in known:
        return "" if len(set(known)) == 1 else f"its operands have different dtypes: {', '.join(map(str, known))}"
    casts = [step for step in (*attention.steps, *attention.after) if isinstance(step, Cast)]
    if not casts:
        return ""
    last = casts[-1].dtype
    sources = {_dtype_source(operand.node) for operand in (attention.query, attention.value)}
    if isinstance(last, fx.Node) and (last in attention.core or _dtype_source(last) in sources):
        early = [step for step in attention.steps if isinstance(step, Cast) and step.node is not attention.softmax]
        masks = [step for step in attention.steps if isinstance(step, Bias) and not step.as_sdpa]
        late = [  # masks of torch's own attentions are in a dtype that the call accepts
            step
            for step in masks
            if getattr(step.term, "target", None) is not opaque_ops.merged_mask
            and any(cast.node < step.node for cast in early)
        ]
        return f"a mask is added after a cast, and may be wider than the queries: {_EXAMPLES}" if late else ""
    return f"its weights are cast to {last}, which may not be the dtype of the queries: {_EXAMPLES}"


def _dtype_source(node: fx.Node) -> fx.Node:
    """Return the node that determines the dtype: rearranging and projecting do not change it."""
    while (call := read(node)) is not None:
        if (call.name not in ARRANGING and call.name != "linear") or not isinstance(call.get("x"), fx.Node):
            break
        node = call.get("x")
    return node


def _steps(attention: AttentionMatch, plan: FusionPlan) -> str:
    """Add the steps between the scores and the softmax to the plan, or return a reason against one of them."""
    for step in attention.steps:
        reason = ""
        match step:
            case Scale():
                reason = _scale(step, plan)
            case Bias():
                reason = _bias(step, plan)
            case Fill():
                reason = _fill(step, attention, plan)
            case Regroup():
                plan.regroups.append(step)
            case Cast():
                pass
        if reason:
            return reason
    plan.regroups.extend(step for step in attention.after if isinstance(step, Regroup))
    infinite = any(not isinstance(mask, Fill) or mask.value == -math.inf for _, mask in plan.masks)
    if infinite and not attention.safe:
        plan.notes.append("a fully masked row is 0 instead of NaN")
    return ""


def _scale(step: Scale, plan: FusionPlan) -> str:
    """Add a scale to the plan, or return a reason.

    A number after a mask m scales both: c (s + m) = c s + c m, which keeps m = -inf only if c > 0. A tensor t moves to
    the queries, t (q · k) = (t q) · k, if it is the same for all keys.
    """
    masked = bool(plan.masks) or plan.causal is not None
    if is_number(step.factor):
        if masked and (not isinstance(step.factor, (int, float)) or step.factor <= 0):
            return "its masked scores are multiplied by a number that may not be positive"
        if plan.masks:  # a causal mask is -inf at any scale
            plan.masks.append((len(plan.regroups), step))
        plan.scales.append(step)
        return ""
    shape = shape_of(step.factor)
    if masked or plan.regroups:
        return "its masked or regrouped scores are multiplied by a tensor"
    if shape is None:
        return f"its scores are multiplied by a tensor that may differ from key to key: {_EXAMPLES}"
    if shape and not is_one(shape[-1]):
        return "its scores are multiplied by a tensor that differs from key to key"
    plan.tensor_scales.append(step)
    return ""


def _bias(step: Bias, plan: FusionPlan) -> str:
    """Add a mask to the plan, or return a reason. A finite number is dropped: softmax(s + c) = softmax(s)."""
    if not isinstance(step.term, fx.Node):
        return "" if step.term is None or math.isfinite(step.term) else "an infinite number is added to its scores"
    if any(isinstance(mask, Fill) and mask.value != -math.inf for _, mask in plan.masks):
        return "a mask is added to scores that were filled with a finite value"
    if step.as_sdpa and (plan.masks or plan.causal):
        return "it has another mask in addition to that of the call"
    if any(isinstance(mask, Bias) and mask.as_sdpa for _, mask in plan.masks):
        return "it has another mask in addition to that of the call"
    _demote_causal(plan)
    plan.masks.append((len(plan.regroups), step))
    return ""


def _fill(step: Fill, attention: AttentionMatch, plan: FusionPlan) -> str:
    """Add a filled mask to the plan, or return a reason.

    Filling scores with a finite value becomes adding a large negative number. Both give the weight 0 beside an unmasked
    score and equal weights in a fully masked row, up to rounding.
    """
    if step.value > LOW_ENOUGH or math.isnan(step.value):
        return f"its scores are filled with {step.value:g}, which does not mask them"
    if step.value != -math.inf:
        if torch.float16 in (dtype_of(attention.query.node), dtype_of(step.node)):
            return "its scores are filled with a finite value in float16, where adding cannot do the same"
        plan.notes.append("the scores of a fully masked row get gradients")
    if not plan.masks and plan.causal is None and not plan.regroups and _is_causal(step, attention):
        plan.causal = step
        return ""
    _demote_causal(plan)
    plan.masks.append((len(plan.regroups), step))
    return ""


def _demote_causal(plan: FusionPlan) -> None:
    """Make the causal mask an ordinary one, because there is another mask."""
    if plan.causal is not None:
        plan.masks.insert(0, (0, plan.causal))
        plan.causal = None


def _is_causal(step: Fill, attention: AttentionMatch) -> bool:
    """Return whether the condition is true exactly above the diagonal that begins at the top left of the scores."""
    call, expected = read(step.condition), "triu" if step.where_true else "tril"
    if call is None or call.name != expected or call.get("diagonal", 0) != (1 if step.where_true else 0):
        return False
    ones = read(call.get("x"))
    if ones is None or ones.name not in ("new_ones", "ones") or step.value != -math.inf:
        return False
    shapes = shape_of(step.condition), shape_of(attention.scores)
    if shapes[0] is not None and shapes[1] is not None:
        return same_sizes(shapes[0], shapes[1][-2:])
    size: Any = ones.get("size")
    if not isinstance(size, (tuple, list)):
        return False
    return len(cast(Any, size)) == 2 and _is_length(size[0], attention.query) and _is_length(size[1], attention.key)


def _is_length(size: Any, operand: Operand) -> bool:
    """Return whether the node is the length of the operand, possibly before its heads are repeated."""
    call, repeat = read(size), read(operand.node)
    measured = call.get("x") if call is not None and call.name == "size" and call.get("dim") == -2 else None
    before = repeat.get("x") if repeat is not None and repeat.name == "repeat" and repeat.get("dim") == -3 else None
    plain = operand.perm is None and not operand.swap
    return plain and measured is not None and measured in (operand.node, before)


def _groups(attention: AttentionMatch, plan: FusionPlan) -> str:
    """Return a reason if the scores' leading axes are regrouped and the same cannot be done to the operands."""
    if not plan.regroups:
        return ""
    scores, weights = shape_of(attention.scores), shape_of(plan.regroups[-1].node)
    for operand, whole in ((attention.query, scores), (attention.key, scores), (attention.value, weights)):
        shape = shape_of(operand.node)
        if shape is not None and operand.perm is not None:
            shape = tuple(shape[axis] for axis in operand.perm)
        if shape is None or whole is None:
            return f"its scores are regrouped, and the sizes are unknown: {_EXAMPLES}"
        if not same_sizes(shape[:-2], whole[:-2]):
            return "its scores are regrouped, and one of its operands is broadcast over them"
    return "" if attention.result_perm is None else "its scores are regrouped, and its result is permuted"


def is_default_scale(plan: FusionPlan, query: fx.Node) -> bool:
    """Return whether the only scale is the default of the call."""
    scales = plan.scales
    if len(scales) != 1 or not isinstance(scales[0].factor, fx.Node):
        return False
    return scales[0].factor.target is opaque_ops.default_scale and scales[0].factor.args == (query,)


def shared_heads(query: fx.Node, key: fx.Node, value: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return keys and values before their heads are repeated for the queries (`enable_gqa`), or None."""
    keys, values = _unrepeated(query, key), _unrepeated(query, value)
    if keys is None or values is None or keys[1] != values[1]:
        return None
    return keys[0], values[0]


def _unrepeated(query: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """Return the tensor whose heads are repeated, and how often; None if they are not."""
    call = read(node)
    if call is None:
        return None
    dim, rank = call.get("dim"), rank_of(node)
    is_repeat = call.name == "repeat" and call.node.target != "repeat" and isinstance(dim, int)
    if is_repeat and (dim == -3 or (rank.exact and dim % rank.least == rank.least - 3)):
        times, inner = call.get("repeats"), call.get("x")
        if isinstance(times, fx.Node) and times.target is opaque_ops.heads_per_group and times.args == (query, inner):
            return inner, "heads_per_group"
        return _if_multiple(query, inner, node) if isinstance(times, int) else None
    inner = _before_expansion(node)
    return None if inner is None else _if_multiple(query, inner, node)


def _if_multiple(query: fx.Node, inner: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """Return the inner tensor and the number of repetitions if all sizes are known and the batch is the same."""
    queries, before, after = shape_of(query), shape_of(inner), shape_of(node)
    if queries is None or before is None or after is None or {len(queries), len(before), len(after)} != {4}:
        return None
    heads, groups = queries[1], before[1]
    is_multiple = isinstance(heads, int) and isinstance(groups, int) and heads == after[1] and heads % groups == 0
    return (inner, heads // groups) if is_multiple and same_sizes(queries[:1], before[:1]) else None


def _before_expansion(node: fx.Node) -> fx.Node | None:
    """Return x of x[:, :, None].expand(b, groups, times, n, d).reshape(b, groups * times, n, d), or None."""
    call = read(_skip_same(node))
    merged = call if call is not None and call.name == "view" else None
    expanded = _skip_same(merged.get("x")) if merged is not None else None
    call = read(expanded)
    if merged is None or call is None or call.name != "expand":
        return None
    last, wide, thin = shape_of(merged.node), shape_of(call.node), shape_of(call.get("x"))
    if last is None or wide is None or thin is None:
        return None
    if len(last) != 4 or len(wide) != 5 or not same_sizes((*wide[:2], 1, *wide[3:]), thin):
        return None
    if not same_sizes((wide[0], wide[3], wide[4]), (last[0], last[2], last[3])):
        return None
    return _before_new_axis(call.get("x"), (*wide[:2], *wide[3:]))


def _skip_same(node: Any) -> Any:
    while (call := read(node)) is not None and call.name == "same":
        node = call.get("x")
    return node


def _before_new_axis(node: Any, shape: tuple[Any, ...]) -> fx.Node | None:
    """Walk back through full slices to the tensor without the axis of the repetition."""
    while isinstance(node, fx.Node) and (call := read(node)) is not None and call.name in ("unsqueeze", "part", "same"):
        index = call.get("index")
        parts = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
        is_full = all(part is None or part is Ellipsis or part == slice(None) for part in parts)
        if node.target is operator.getitem and not is_full:
            return None
        node = call.get("x")
        if same_sizes(shape_of(node), shape):
            return node
    return None


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
