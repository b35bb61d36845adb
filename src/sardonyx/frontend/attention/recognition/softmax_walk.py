"""From a softmax back to the product of queries and keys, and on to the product of weights and values."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from sardonyx.frontend.attention.decompositions import opaque_ops
from sardonyx.frontend.attention.recognition.facts import constant, example_of, is_number, rank_of, same_sizes, shape_of
from sardonyx.frontend.attention.recognition.matches import Bias, Cast, Dropout, Fill, Regroup, Scale, Step
from sardonyx.frontend.attention.recognition.products import Mix, Scores, mix_of, scores_of
from sardonyx.frontend.attention.recognition.vocabulary import Call, read

_PRODUCTS = frozenset({"matmul", "baddbmm", "einsum"})
_GROUPINGS = frozenset({"view", "expand", "unflatten", "flatten", "unsqueeze", "squeeze"})
_METADATA = frozenset({"size", "new_ones", "prototype"})


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The way from the scores to the softmax."""

    product: fx.Node
    scores: Scores
    steps: tuple[Step, ...]
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class After:
    """The way from the softmax to the mix."""

    mix: fx.Node
    product: Mix
    steps: tuple[Step, ...]
    dropout: Dropout | None
    nodes: tuple[fx.Node, ...]


def before(node: Any) -> Before | str:
    """Walk back from what the softmax reads, or say why the way ends elsewhere."""
    call = read(node)
    if call is None:
        return f"the scores come from {_words(node)}, not from a product of queries and keys"
    if call.does in _PRODUCTS:
        scores = scores_of(call)
        return scores if isinstance(scores, str) else Before(call.node, scores, scores.steps, (call.node,))
    reader = _READERS.get(call.does)
    if reader is None:
        return f"the scores come from {_words(node)}, not from a product of queries and keys"
    return reader(call)


def _on(call: Call, main: Any, *steps: Step) -> Before | str:
    way = before(main)
    if isinstance(way, str):
        return way
    return Before(way.product, way.scores, (*way.steps, *steps), (*way.nodes, call.node))


def _cast(call: Call) -> Before | str:
    dtype = cast_to(call)
    if dtype is None:
        return f"the scores go through {_words(call.node)}, which is more than a change of dtype"
    return _on(call, call.get("x"), Cast(call.node, dtype))


def _scale(call: Call) -> Before | str:
    left, right = call.get("x"), call.get("y")
    if call.does == "div":
        if "rounding_mode" in call.given:
            return "the scores are divided with rounding"
        return _on(call, left, Scale(call.node, right, divides=True))
    if not isinstance(left, fx.Node) or is_number(left):
        return _on(call, right, Scale(call.node, left))
    way = _on(call, left, Scale(call.node, right))
    return _on(call, right, Scale(call.node, left)) if isinstance(way, str) and isinstance(right, fx.Node) else way


def _bias(call: Call) -> Before | str:
    left, right, alpha = call.get("x"), call.get("y"), call.get("alpha", 1)
    if not isinstance(alpha, (int, float)):
        return "what is added to the scores is weighed by a computed number"
    times = float(-alpha if call.does == "sub" else alpha)
    if isinstance(right, fx.Node) and right.target is opaque_ops.additive_mask and times == 1:
        return _on(call, left, Bias(call.node, right.args[0], as_sdpa=True))
    way = _on(call, left, Bias(call.node, right, times)) if isinstance(left, fx.Node) else "a number is no score"
    if isinstance(way, str) and isinstance(right, fx.Node) and times == 1:
        other = _on(call, right, Bias(call.node, left))
        return way if isinstance(other, str) else other
    return way


def _fill(call: Call) -> Before | str:
    if call.does == "masked_fill":
        choices = [(call.get("x"), call.get("value"), True)]
    else:
        choices = [(call.get("x"), call.get("y"), False), (call.get("y"), call.get("x"), True)]
    for main, filling, where_true in choices:
        value = constant(filling)
        if value is not None and isinstance(main, fx.Node):
            return _on(call, main, Fill(call.node, call.get("mask"), value, where_true))
    return "the scores are filled with a value that is no constant"


def _same(call: Call) -> Before | str:
    return _on(call, call.get("x"))


def _regroup(call: Call) -> Before | str:
    reason = _moves_rows(call)
    return reason or _on(call, call.get("x"), Regroup(call.node))


def _moves_rows(call: Call) -> str:
    """Why the regrouping may touch the last two axes; empty where it does not."""
    old, new = shape_of(call.get("x")), shape_of(call.node)
    if old is None or new is None:
        return f"{_words(call.node)} may regroup rows and columns of the scores: example inputs would tell"
    if len(old) < 2 or len(new) < 2 or not same_sizes(old[-2:], new[-2:]):
        return f"{_words(call.node)} regroups rows or columns of the scores"
    repeats = call.does == "expand" and not same_sizes(old, new)
    return f"{_words(call.node)} repeats the scores" if repeats else ""


_READERS: dict[str, Callable[[Call], Before | str]] = {
    "cast": _cast,
    "mul": _scale,
    "div": _scale,
    "add": _bias,
    "sub": _bias,
    "masked_fill": _fill,
    "where": _fill,
    "same": _same,
    **dict.fromkeys(_GROUPINGS, _regroup),
}


def after(node: fx.Node, live: Set[fx.Node]) -> After | str:
    """Walk on from the weights to where they are multiplied with values, or say why they are not."""
    reason = ""
    for user in node.users:
        call = read(user)
        if user not in live or call is None or is_metadata(user, node):
            continue
        way = _onward(call, node, live)
        if isinstance(way, After):
            return way
        reason = reason or way
    return reason or "the weights are not multiplied with values"


def _onward(call: Call, weights: fx.Node, live: Set[fx.Node]) -> After | str:
    if call.does in _PRODUCTS:
        mix = mix_of(call, weights)
        return mix if isinstance(mix, str) else After(call.node, mix, (), None, (call.node,))
    if call.get("x") is not weights:
        return f"the weights are read by {_words(call.node)}"
    steps: tuple[Step, ...] = ()
    if call.does == "cast":
        dtype = cast_to(call)
        if dtype is None:
            return f"the weights go through {_words(call.node)}, which is more than a change of dtype"
        steps = (Cast(call.node, dtype),)
    elif call.does in _GROUPINGS:
        if reason := _moves_rows(call):
            return reason
        steps = (Regroup(call.node),)
    elif call.does not in ("same", "dropout"):
        return f"the weights go through {_words(call.node)} before they are multiplied with values"
    way = after(call.node, live)
    if isinstance(way, str):
        return way
    dropout = way.dropout
    if call.does == "dropout":
        dropout = _dropout(call)
        if dropout is None or way.dropout is not None:
            return "the weights are dropped out in a way that only the run decides"
    return After(way.mix, way.product, (*steps, *way.steps), dropout, (call.node, *way.nodes))


def _dropout(call: Call) -> Dropout | None:
    p, default = call.get("p", 0.5), call.node.op == "call_function"
    training = call.get("training", default)
    if not isinstance(p, (int, float)) or not isinstance(training, (bool, type(None))):
        return None
    return Dropout(call.node, float(p), training, str(call.node.target) if call.node.op == "call_module" else None)


def cast_to(call: Call) -> Any:
    """The dtype that the call gives, or the node whose dtype it takes; None where it does more, as moving devices."""
    known = example_of(call.get("x"))
    if "dtype" in call.given and isinstance(call.get("dtype"), torch.dtype):
        device = call.get("device")
        here = device is None or (isinstance(known, torch.Tensor) and known.device == device)
        return call.get("dtype") if here else None
    for argument in (*call.node.args[1:], *call.node.kwargs.values()):
        if isinstance(argument, torch.dtype):
            return argument
        if isinstance(argument, fx.Node) and argument.target is getattr:
            return argument.args[0] if argument.args[1] == "dtype" else None
        if isinstance(argument, fx.Node):
            return argument
    return None


def is_metadata(node: fx.Node, of: fx.Node | None = None) -> bool:
    """Whether the node reads sizes, dtype or device of its argument (or of this one of them), and no element."""
    call = read(node)
    if call is None:
        return (node.target is getattr and node.args[1] in ("shape", "dtype", "device")) or is_check(node)
    takes_dtype = call.does == "cast" and of is not None and call.get("x") is not of
    return takes_dtype or call.does in _METADATA


def is_check(node: fx.Node) -> bool:
    """Whether the node only checks that a tensor is of the kind it was when the graph was made."""
    return node.target is torch.ops.aten._assert_tensor_metadata.default


def softmax_axis(call: Call) -> str:
    """Why the softmax is not known to be over the last axis; empty where it is."""
    dim = call.get("dim")
    if dim == -1:
        return ""
    rank = rank_of(call.node)
    if not isinstance(dim, int):
        return "the axis of the softmax is not written in the graph"
    if not rank.exact:
        return f"the softmax is over axis {dim}, which may not be the last: example inputs would tell"
    return "" if dim % rank.least == rank.least - 1 else f"the softmax is over axis {dim}, not over the keys"


def _words(node: Any) -> str:
    target: Any = getattr(node, "target", node)
    return f"`{target if isinstance(target, str) else getattr(target, '__name__', target)}`"
