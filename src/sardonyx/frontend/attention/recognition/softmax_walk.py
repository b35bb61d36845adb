"""Walks from a softmax back to the product of queries and keys, and on to the product of weights and values."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from msgspec import Struct
from torch import fx

from sardonyx.frontend.attention.decompositions import opaque_ops
from sardonyx.frontend.attention.recognition.calls import GraphCall, read
from sardonyx.frontend.attention.recognition.facts import constant, example_of, is_number, rank_of, same_sizes, shape_of
from sardonyx.frontend.attention.recognition.matches import Bias, Cast, Dropout, Fill, Regroup, Scale, Step
from sardonyx.frontend.attention.recognition.products import Mix, Scores, mix_of, scores_of

_PRODUCTS = frozenset({"matmul", "baddbmm", "einsum"})
_GROUPINGS = frozenset({"view", "expand", "unflatten", "flatten", "unsqueeze", "squeeze"})
_METADATA = frozenset({"size", "new_ones", "prototype"})


class ScoresPath(Struct, frozen=True, eq=False):
    """The nodes and steps from the scores to the softmax."""

    product: fx.Node
    scores: Scores
    steps: tuple[Step, ...]
    nodes: tuple[fx.Node, ...]


class WeightsPath(Struct, frozen=True, eq=False):
    """The nodes and steps from the softmax to the product with the values."""

    mix: fx.Node
    product: Mix
    steps: tuple[Step, ...]
    dropout: Dropout | None
    nodes: tuple[fx.Node, ...]


def trace_scores(node: Any) -> ScoresPath | str:
    """Walk back from the operand of a softmax to the scores, or return why there are none."""
    call = read(node)
    if call is None:
        return f"the scores come from {_describe(node)}, not from a product of queries and keys"
    if call.name in _PRODUCTS:
        scores = scores_of(call)
        return scores if isinstance(scores, str) else ScoresPath(call.node, scores, scores.steps, (call.node,))
    reader = _READERS.get(call.name)
    if reader is None:
        return f"the scores come from {_describe(node)}, not from a product of queries and keys"
    return reader(call)


def _extended(call: GraphCall, main: Any, *steps: Step) -> ScoresPath | str:
    path = trace_scores(main)
    if isinstance(path, str):
        return path
    return ScoresPath(path.product, path.scores, (*path.steps, *steps), (*path.nodes, call.node))


def _cast(call: GraphCall) -> ScoresPath | str:
    dtype = cast_to(call)
    if dtype is None:
        return f"the scores go through {_describe(call.node)}, which is more than a change of dtype"
    return _extended(call, call.get("x"), Cast(call.node, dtype))


def _scale(call: GraphCall) -> ScoresPath | str:
    left, right = call.get("x"), call.get("y")
    if call.name == "div":
        if "rounding_mode" in call.arguments:
            return "the scores are divided with rounding"
        return _extended(call, left, Scale(call.node, right, divides=True))
    if not isinstance(left, fx.Node) or is_number(left):
        return _extended(call, right, Scale(call.node, left))
    path = _extended(call, left, Scale(call.node, right))
    return (
        _extended(call, right, Scale(call.node, left)) if isinstance(path, str) and isinstance(right, fx.Node) else path
    )


def _bias(call: GraphCall) -> ScoresPath | str:
    left, right, alpha = call.get("x"), call.get("y"), call.get("alpha", 1)
    if not isinstance(alpha, (int, float)):
        return "what is added to the scores is scaled by a computed number"
    times = float(-alpha if call.name == "sub" else alpha)
    if isinstance(right, fx.Node) and right.target is opaque_ops.additive_mask and times == 1:
        return _extended(call, left, Bias(call.node, right.args[0], as_sdpa=True))
    path = _extended(call, left, Bias(call.node, right, times)) if isinstance(left, fx.Node) else "a number is no score"
    if isinstance(path, str) and isinstance(right, fx.Node) and times == 1:
        other = _extended(call, right, Bias(call.node, left))
        return path if isinstance(other, str) else other
    return path


def _fill(call: GraphCall) -> ScoresPath | str:
    if call.name == "masked_fill":
        choices = [(call.get("x"), call.get("value"), True)]
    else:
        choices = [(call.get("x"), call.get("y"), False), (call.get("y"), call.get("x"), True)]
    for main, filling, where_true in choices:
        value = constant(filling)
        if value is not None and isinstance(main, fx.Node):
            return _extended(call, main, Fill(call.node, call.get("mask"), value, where_true))
    return "the scores are filled with a value that is not a constant"


def _same(call: GraphCall) -> ScoresPath | str:
    return _extended(call, call.get("x"))


def _regroup(call: GraphCall) -> ScoresPath | str:
    reason = _changes_rows(call)
    return reason or _extended(call, call.get("x"), Regroup(call.node))


def _changes_rows(call: GraphCall) -> str:
    """Return why a regrouping may change the last two axes, or an empty string."""
    old, new = shape_of(call.get("x")), shape_of(call.node)
    if old is None or new is None:
        return f"{_describe(call.node)} may regroup rows and columns of the scores: example inputs are needed to decide"
    if len(old) < 2 or len(new) < 2 or not same_sizes(old[-2:], new[-2:]):
        return f"{_describe(call.node)} regroups rows or columns of the scores"
    repeats = call.name == "expand" and not same_sizes(old, new)
    return f"{_describe(call.node)} repeats the scores" if repeats else ""


_READERS: dict[str, Callable[[GraphCall], ScoresPath | str]] = {
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


def trace_weights(node: fx.Node, live: Set[fx.Node]) -> WeightsPath | str:
    """Walk on from the weights to their product with the values, or return why there is none."""
    reason = ""
    for user in node.users:
        call = read(user)
        if user not in live or call is None or is_metadata(user, node):
            continue
        path = _trace_use(call, node, live)
        if isinstance(path, WeightsPath):
            return path
        reason = reason or path
    return reason or "the weights are not multiplied with values"


def _trace_use(call: GraphCall, weights: fx.Node, live: Set[fx.Node]) -> WeightsPath | str:
    if call.name in _PRODUCTS:
        mix = mix_of(call, weights)
        return mix if isinstance(mix, str) else WeightsPath(call.node, mix, (), None, (call.node,))
    if call.get("x") is not weights:
        return f"the weights are read by {_describe(call.node)}"
    steps: tuple[Step, ...] = ()
    if call.name == "cast":
        dtype = cast_to(call)
        if dtype is None:
            return f"the weights go through {_describe(call.node)}, which is more than a change of dtype"
        steps = (Cast(call.node, dtype),)
    elif call.name in _GROUPINGS:
        if reason := _changes_rows(call):
            return reason
        steps = (Regroup(call.node),)
    elif call.name not in ("same", "dropout"):
        return f"the weights go through {_describe(call.node)} before they are multiplied with values"
    path = trace_weights(call.node, live)
    if isinstance(path, str):
        return path
    dropout = path.dropout
    if call.name == "dropout":
        dropout = _dropout(call)
        if dropout is None or path.dropout is not None:
            return "the dropout of the weights depends on values at run time"
    return WeightsPath(path.mix, path.product, (*steps, *path.steps), dropout, (call.node, *path.nodes))


def _dropout(call: GraphCall) -> Dropout | None:
    p, default = call.get("p", 0.5), call.node.op == "call_function"
    training = call.get("training", default)
    if not isinstance(p, (int, float)) or not isinstance(training, (bool, type(None))):
        return None
    return Dropout(call.node, float(p), training, str(call.node.target) if call.node.op == "call_module" else None)


def cast_to(call: GraphCall) -> Any:
    """Return the dtype of a cast, or the node whose dtype it uses; None if it does more, such as moving devices."""
    value = example_of(call.get("x"))
    if "dtype" in call.arguments and isinstance(call.get("dtype"), torch.dtype):
        device = call.get("device")
        same_device = device is None or (isinstance(value, torch.Tensor) and value.device == device)
        return call.get("dtype") if same_device else None
    for argument in (*call.node.args[1:], *call.node.kwargs.values()):
        if isinstance(argument, torch.dtype):
            return argument
        if isinstance(argument, fx.Node) and argument.target is getattr:
            return argument.args[0] if argument.args[1] == "dtype" else None
        if isinstance(argument, fx.Node):
            return argument
    return None


def is_metadata(node: fx.Node, of: fx.Node | None = None) -> bool:
    """Return whether the node reads only sizes, dtype or device of its argument (of this one, if given)."""
    call = read(node)
    if call is None:
        return (node.target is getattr and node.args[1] in ("shape", "dtype", "device")) or is_check(node)
    takes_dtype = call.name == "cast" and of is not None and call.get("x") is not of
    return takes_dtype or call.name in _METADATA


def is_check(node: fx.Node) -> bool:
    """Return whether the node only checks a tensor's metadata against that of the traced one."""
    return node.target is torch.ops.aten._assert_tensor_metadata.default


def softmax_axis(call: GraphCall) -> str:
    """Return why the softmax may not be over the last axis, or an empty string."""
    dim = call.get("dim")
    if dim == -1:
        return ""
    rank = rank_of(call.node)
    if not isinstance(dim, int):
        return "the axis of the softmax is not written in the graph"
    if not rank.exact:
        return f"the softmax is over axis {dim}, which may not be the last: example inputs are needed to decide"
    return "" if dim % rank.least == rank.least - 1 else f"the softmax is over axis {dim}, not over the keys"


def _describe(node: Any) -> str:
    target: Any = getattr(node, "target", node)
    return f"`{target if isinstance(target, str) else getattr(target, '__name__', target)}`"
