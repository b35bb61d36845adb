"""Decides, of an attention that was found, whether one call of scaled_dot_product_attention is the same, and with what.

Nothing is written here. Each reason against it is a sentence; where only facts are missing it says so.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx, nn

from sardonyx.frontend.attention.decompositions import opaque_ops
from sardonyx.frontend.attention.recognition.facts import dtype_of, is_number, is_one, rank_of, same_sizes, shape_of
from sardonyx.frontend.attention.recognition.matches import Bias, Cast, Fill, Operand, Recognised, Regroup, Scale
from sardonyx.frontend.attention.recognition.vocabulary import ARRANGING, read, writes_in_place

LOW_ENOUGH = -1e4  # scores that are filled with this or less weigh nothing beside a score that is not
_EXAMPLES = "example inputs would tell"


@dataclass(slots=True, eq=False)
class Plan:
    """What the call is made of."""

    scales: list[Scale] = field(default_factory=list[Scale])  # by numbers
    tensor_scales: list[Scale] = field(default_factory=list[Scale])  # into the queries
    masks: list[tuple[int, Bias | Fill | Scale]] = field(default_factory=list[tuple[int, Bias | Fill | Scale]])
    regroups: list[Regroup] = field(default_factory=list[Regroup])  # up to the weights that are mixed
    causal: Fill | None = None
    dropout_p: float = 0.0
    dropout_module: str | None = None
    notes: list[str] = field(default_factory=list[str])


def plan(found: Recognised) -> Plan | str:
    """The call that replaces the attention, or why none does."""
    made = Plan()
    reason = _read_elsewhere(found) or _overwritten(found) or _dtypes(found) or _ranks(found) or _steps(found, made)
    if reason:
        return reason
    if (dropout := found.dropout) is not None and dropout.p > 0 and dropout.training is not False:
        made.dropout_p, made.dropout_module = dropout.p, dropout.module
    return _groups(found, made) or made


def _read_elsewhere(found: Recognised) -> str:
    if not found.read_elsewhere:
        return ""
    early = all(node < found.softmax for node in found.read_elsewhere)
    return f"its {'scores' if early else 'weights'} are read elsewhere (`{found.read_elsewhere[-1].name}`)"


def _overwritten(found: Recognised) -> str:
    """An operand must still be the same where the one call reads it."""
    operands = (found.query.node, found.key.node, found.value.node)
    roots = {_root(node): node for node in operands}
    node = min(operands).next
    while node is not found.mix:
        if writes_in_place(node) and node not in found.core and node.all_input_nodes:
            operand = roots.get(_root(node.all_input_nodes[0]))
            if operand is not None and operand < node:
                return f"an operand is overwritten by `{node.name}` before the end"
        node = node.next
    return ""


def _root(node: fx.Node) -> fx.Node:
    """The node whose memory this one may lie in."""
    while (call := read(node)) is not None:
        inner = call.get("x")
        aliases = call.does in ARRANGING or call.does == "cast" or writes_in_place(node)
        if not aliases or not isinstance(inner, fx.Node):
            break
        node = inner
    return node


def _dtypes(found: Recognised) -> str:
    """All three operands must be of one dtype; casts between are as good as the call's own accuracy."""
    known = [dtype_of(operand.node) for operand in (found.query, found.key, found.value)]
    if None not in known:
        return "" if len(set(known)) == 1 else f"its operands are of different dtypes: {', '.join(map(str, known))}"
    casts = [step for step in (*found.steps, *found.after) if isinstance(step, Cast)]
    if not casts:
        return ""
    last = casts[-1].dtype
    kin = {_dtype_source(operand.node) for operand in (found.query, found.value)}
    if isinstance(last, fx.Node) and (last in found.core or _dtype_source(last) in kin):
        early = [step for step in found.steps if isinstance(step, Cast) and step.node is not found.softmax]
        masks = [step for step in found.steps if isinstance(step, Bias) and not _is_of_sdpa(step)]
        late = [step for step in masks if any(cast.node < step.node for cast in early)]
        return f"a mask is added after a cast, and may be wider than the queries: {_EXAMPLES}" if late else ""
    return f"its weights are cast to {last}, which may not be the dtype of the queries: {_EXAMPLES}"


def _is_of_sdpa(step: Bias) -> bool:
    """Whether the mask came from a call that takes it as it is, or in the dtype of the queries."""
    return step.as_sdpa or (isinstance(step.term, fx.Node) and step.term.target is opaque_ops.merged_mask)


def _dtype_source(node: fx.Node) -> fx.Node:
    """The node that decides the dtype, as far as it is certain: arranging and projecting do not change it."""
    while (call := read(node)) is not None:
        if (call.does not in ARRANGING and call.does != "linear") or not isinstance(call.get("x"), fx.Node):
            break
        node = call.get("x")
    return node


def _ranks(found: Recognised) -> str:
    for operand in (found.query, found.key, found.value):
        shape = shape_of(operand.node)
        if shape is not None and len(shape) < 2:
            return "one of its operands is a vector"
    return ""


def _steps(found: Recognised, made: Plan) -> str:
    """Sort the steps between the scores and the softmax, or say which of them the call has no place for."""
    for step in found.steps:
        reason = ""
        match step:
            case Scale():
                reason = _scale(step, made)
            case Bias():
                reason = _bias(step, made)
            case Fill():
                reason = _fill(step, found, made)
            case Regroup():
                made.regroups.append(step)
            case Cast():
                pass
        if reason:
            return reason
    made.regroups.extend(step for step in found.after if isinstance(step, Regroup))
    if made.masks and not found.safe and any(_may_be_infinite(mask) for _, mask in made.masks):
        made.notes.append("a row of which the mask leaves nothing is 0, where it was NaN")
    return ""


def _may_be_infinite(mask: Bias | Fill | Scale) -> bool:
    return not isinstance(mask, Fill) or mask.value == -math.inf


def _scale(step: Scale, made: Plan) -> str:
    masked = bool(made.masks) or made.causal is not None
    if is_number(step.factor):
        if masked:
            if not isinstance(step.factor, (int, float)) or step.factor <= 0:
                return "its masked scores are multiplied by a number that may not be positive"
            made.masks.append((len(made.regroups), step))
        made.scales.append(step)
        return ""
    shape = shape_of(step.factor)
    if masked or made.regroups:
        return "its masked or regrouped scores are multiplied by a tensor"
    if shape is None:
        return f"its scores are multiplied by a tensor that may differ from key to key: {_EXAMPLES}"
    if shape and not is_one(shape[-1]):
        return "its scores are multiplied by a tensor that differs from key to key"
    made.tensor_scales.append(step)
    return ""


def _bias(step: Bias, made: Plan) -> str:
    if not isinstance(step.term, fx.Node):
        return "" if step.term is None or math.isfinite(step.term) else "something infinite is added to its scores"
    if any(isinstance(mask, Fill) and mask.value != -math.inf for _, mask in made.masks):
        return "a mask is added to scores that were filled with a finite value"
    if step.as_sdpa and (made.masks or made.causal):
        return "it has another mask beside that of the call"
    if any(isinstance(mask, Bias) and mask.as_sdpa for _, mask in made.masks):
        return "it has another mask beside that of the call"
    _no_longer_causal(made)
    made.masks.append((len(made.regroups), step))
    return ""


def _fill(step: Fill, found: Recognised, made: Plan) -> str:
    if step.value > LOW_ENOUGH or math.isnan(step.value):
        return f"its scores are filled with {step.value:g}, which does not mask them"
    if step.value != -math.inf:
        if torch.float16 in (dtype_of(found.query.node), dtype_of(step.node)):
            return "its scores are filled with a finite value in float16, where adding cannot do the same"
        made.notes.append("a row of which the mask leaves nothing lets gradients through to its scores")
    if not made.masks and made.causal is None and not made.regroups and _is_later(step, found):
        made.causal = step
        return ""
    _no_longer_causal(made)
    made.masks.append((len(made.regroups), step))
    return ""


def _no_longer_causal(made: Plan) -> None:
    """With a second mask, the causal one is a mask like any other."""
    if made.causal is not None:
        made.masks.insert(0, (0, made.causal))
        made.causal = None


def _is_later(step: Fill, found: Recognised) -> bool:
    """Whether the condition is true exactly above the diagonal that begins at the top left of these scores."""
    call, wanted = read(step.condition), "triu" if step.where_true else "tril"
    if call is None or call.does != wanted or call.get("diagonal", 0) != (1 if step.where_true else 0):
        return False
    ones = read(call.get("x"))
    if ones is None or ones.does not in ("new_ones", "ones") or step.value != -math.inf:
        return False
    shapes = shape_of(step.condition), shape_of(found.scores)
    if shapes[0] is not None and shapes[1] is not None:
        return same_sizes(shapes[0], shapes[1][-2:])
    size: Any = ones.get("size")
    if not isinstance(size, (tuple, list)):
        return False
    return len(cast(Any, size)) == 2 and _is_length(size[0], found.query) and _is_length(size[1], found.key)


def _is_length(size: Any, operand: Operand) -> bool:
    """Whether the node is the length of the operand, also before its heads were repeated."""
    call, repeat = read(size), read(operand.node)
    measured = call.get("x") if call is not None and call.does == "size" and call.get("dim") == -2 else None
    before = repeat.get("x") if repeat is not None and repeat.does == "repeat" and repeat.get("dim") == -3 else None
    plain = operand.turn is None and not operand.swap
    return plain and measured is not None and measured in (operand.node, before)


def _groups(found: Recognised, made: Plan) -> str:
    """Where leading dims are regrouped on the way, all sizes must be known well enough to do it to the operands."""
    if not made.regroups:
        return ""
    scores, weights = shape_of(found.scores), shape_of(made.regroups[-1].node)
    for operand, whole in ((found.query, scores), (found.key, scores), (found.value, weights)):
        shape = _turned_shape(operand)
        if shape is None or whole is None:
            return f"its scores are regrouped, and the sizes are not known: {_EXAMPLES}"
        if not same_sizes(shape[:-2], whole[:-2]):
            return "its scores are regrouped, and one of its operands is spread over them"
    return "" if found.result_turn is None else "its scores are regrouped, and its result is turned"


def _turned_shape(operand: Operand) -> tuple[Any, ...] | None:
    shape = shape_of(operand.node)
    return shape if shape is None or operand.turn is None else tuple(shape[axis] for axis in operand.turn)


def is_default_scale(plan_made: Plan, query: fx.Node) -> bool:
    """Whether the one scale is what the call does by itself."""
    scales = plan_made.scales
    if len(scales) != 1 or not isinstance(scales[0].factor, fx.Node):
        return False
    return scales[0].factor.target is opaque_ops.default_scale and scales[0].factor.args == (query,)


# Keys and values whose heads are repeated for several heads of the queries: the call can share them (`enable_gqa`).


def shared_heads(query: fx.Node, key: fx.Node, value: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Keys and values before both were repeated alike, where the heads of the queries are then a multiple of theirs."""
    keys, values = _unrepeated(query, key), _unrepeated(query, value)
    if keys is None or values is None or keys[1] != values[1]:
        return None
    return keys[0], values[0]


def _unrepeated(query: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """What is repeated, and how often."""
    call = read(node)
    if call is None:
        return None
    if call.does == "repeat" and call.node.target != "repeat" and _is_heads(call.get("dim"), node):
        times, inner = call.get("repeats"), call.get("x")
        if isinstance(times, fx.Node) and times.target is opaque_ops.heads_per_group and times.args == (query, inner):
            return inner, "as many as it takes"
        return _if_it_fits(query, inner, node) if isinstance(times, int) else None
    inner = _before_expansion(node)
    return None if inner is None else _if_it_fits(query, inner, node)


def _is_heads(dim: Any, node: fx.Node) -> bool:
    rank = rank_of(node)
    return isinstance(dim, int) and (dim == -3 or (rank.exact and dim % rank.least == rank.least - 3))


def _if_it_fits(query: fx.Node, inner: fx.Node, node: fx.Node) -> tuple[fx.Node, Any] | None:
    """Only where the sizes are known, and every dim but the heads is the same for all."""
    asking, few, many = shape_of(query), shape_of(inner), shape_of(node)
    if asking is None or few is None or many is None or {len(asking), len(few), len(many)} != {4}:
        return None
    heads, groups = asking[1], few[1]
    whole = isinstance(heads, int) and isinstance(groups, int) and heads == many[1] and heads % groups == 0
    return (inner, heads // groups) if whole and same_sizes(asking[:1], few[:1]) else None


def _before_expansion(node: fx.Node) -> fx.Node | None:
    """x of x[:, :, None].expand(b, groups, times, n, d).reshape(b, groups * times, n, d)."""
    call = read(node)
    while call is not None and call.does == "same":
        call = read(call.get("x"))
    merged = call if call is not None and call.does == "view" else None
    spread = _skip_same(merged.get("x")) if merged is not None else None
    call = read(spread)
    if merged is None or call is None or call.does != "expand":
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
    while (call := read(node)) is not None and call.does == "same":
        node = call.get("x")
    return node


def _before_new_axis(node: Any, shape: tuple[Any, ...]) -> fx.Node | None:
    """Walk back through slices that take everything, to the tensor that has no axis for the repetition yet."""
    while isinstance(node, fx.Node) and (call := read(node)) is not None and call.does in ("unsqueeze", "part", "same"):
        if node.target is operator.getitem and not _takes_everything(call.get("index")):
            return None
        node = call.get("x")
        if same_sizes(shape_of(node), shape):
            return node
    return None


def _takes_everything(index: Any) -> bool:
    parts = cast("tuple[Any, ...]", index) if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or part == slice(None) for part in parts)


# The rate of a dropout that follows `.train()` and `.eval()`, as a number for a call that takes one.


class DropoutRate(nn.Module):
    """Gives the rate while training, else 0."""

    def __init__(self, p: float, training: bool) -> None:
        """Start in the mode of the dropout that it stands for."""
        super().__init__()
        self.p = p
        self.training = training

    def forward(self) -> float:
        """The rate now."""
        return self.p if self.training else 0.0

    def extra_repr(self) -> str:
        """The rate while training."""
        return f"p={self.p}"
