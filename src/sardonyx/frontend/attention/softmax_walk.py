"""Walk from a softmax to the products on both sides of it: scores from queries and keys, and the mix of values."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from msgspec import Struct
from torch import fx

from sardonyx.frontend.attention import opaque_ops
from sardonyx.frontend.attention.graph_calls import (
    GraphCall,
    constant,
    example_of,
    is_number,
    rank_of,
    read,
    same_sizes,
    shape_of,
)
from sardonyx.frontend.attention.roles import Bias, Cast, Dropout, Fill, Operand, Regroup, Scale, Step

_ELLIPSIS = "*"


class Scores(Struct, frozen=True, eq=False):
    """query keyᵀ, and further steps of the same node."""

    query: Operand
    key: Operand
    steps: tuple[Step, ...] = ()


class Mix(Struct, frozen=True, eq=False):
    """weights value, and the permutation to the axes of the node."""

    value: Operand
    perm: tuple[int, ...] | None = None


def scores_of(call: GraphCall) -> Scores | str:
    """Read a node as the product of queries and keys whose last axis is the keys, or return why it is not."""
    if call.name == "matmul":
        return Scores(Operand(call.get("x")), keys_of(call.get("y")))
    if call.name == "baddbmm":
        alpha, beta = call.get("alpha", 1), call.get("beta", 1)
        if not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
            return "the product and the added term are scaled by computed numbers"
        scaled = (Scale(call.node, alpha),) if alpha != 1 else ()
        added = (Bias(call.node, call.get("x"), float(beta)),) if beta != 0 else ()
        return Scores(Operand(call.get("y")), keys_of(call.get("z")), (*scaled, *added))
    parsed = _equation(call)
    if isinstance(parsed, str):
        return parsed
    (left, right, result), (first, second) = parsed, call.get("operands")
    if result[-1] in left:
        left, right, first, second = right, left, second, first
    lead, row, column = result[:-2], result[-2:-1], result[-1:]
    shared = [label for label in left if label in right and label not in result]
    if len(shared) != 1 or column in left or row in right:
        return f"the equation {call.get('equation')!r} is not a product of queries and keys"
    query, key = _permuted(first, left, lead + row + shared[0]), _permuted(second, right, lead + column + shared[0])
    if query is None or key is None:
        return f"the equation {call.get('equation')!r} broadcasts an operand over axes that it does not have"
    return Scores(query, key)


def mix_of(call: GraphCall, weights: fx.Node) -> Mix | str:
    """Read a node as the product of weights and values over the weights' last axis, or return why it is not."""
    if call.name == "matmul":
        if call.get("y") is weights or call.get("x") is not weights:
            return "the weights are the right side of the product, so the softmax is over another axis than the values"
        return Mix(Operand(call.get("y")))
    if call.name != "einsum":
        return "the product of the weights has a third term"
    parsed = _equation(call)
    if isinstance(parsed, str):
        return parsed
    (left, right, result), (first, second) = parsed, call.get("operands")
    if first is not weights:
        left, right, first, second = right, left, second, first
    lead, row, column = left[:-2], left[-2:-1], left[-1:]
    features = [label for label in right if label not in left]
    mixes = column in right and column not in result and row in result and row not in right and len(features) == 1
    if second is weights or not mixes:
        return f"the equation {call.get('equation')!r} does not multiply values over the weights' last axis"
    value, labels = _permuted(second, right, lead + column + features[0]), lead + row + features[0]
    if value is None or sorted(labels) != sorted(result):
        return f"the equation {call.get('equation')!r} broadcasts or sums other axes"
    perm = tuple(labels.index(label) for label in result)
    if _ELLIPSIS in labels and perm != tuple(range(len(perm))):
        return f"the equation {call.get('equation')!r} permutes axes around an ellipsis"
    return Mix(value, None if perm == tuple(range(len(perm))) else perm)


def keys_of(node: Any) -> Operand:
    """Return the keys of a node that has their last two axes swapped."""
    call = read(node)
    while call is not None and call.name == "same":
        call = read(call.get("x"))
    if call is None:
        return Operand(node, swap=True)
    if call.name == "permute" and isinstance(call.get("dims"), (tuple, list)):
        dims = call.get("dims")
        perm = tuple(axis % len(dims) for axis in (*dims[:-2], dims[-1], dims[-2]))
        return Operand(call.get("x"), None if perm == tuple(range(len(perm))) else perm)
    if swaps_last_two(call):
        return Operand(call.get("x"))
    return Operand(node, swap=True)


def swaps_last_two(call: GraphCall) -> bool:
    """Return whether the call certainly swaps the last two axes and nothing else."""
    if call.name == "swap_last":
        return True
    rank = rank_of(call.node)
    if call.name == "transpose_matrix":
        return rank_of(call.get("x")).exact and rank_of(call.get("x")).least == 2
    axes = (call.get("a"), call.get("b"))
    if call.name != "transpose" or not all(isinstance(axis, int) for axis in axes):
        return False
    if all(axis < 0 for axis in axes):
        return sorted(axes) == [-2, -1]
    return rank.exact and sorted(axis % rank.least for axis in axes) == [rank.least - 2, rank.least - 1]


def _equation(call: GraphCall) -> tuple[str, str, str] | str:
    """Return the labels of both operands and of the result, or why the equation cannot be read."""
    equation = call.get("equation")
    if call.name != "einsum" or not isinstance(equation, str) or len(call.get("operands")) != 2:
        return "the product is not one of two operands"
    sides = equation.replace(" ", "").replace("...", _ELLIPSIS).split("->")
    labels = (*sides[0].split(","), *sides[1:])
    if len(labels) != 3 or any(len(set(part)) != len(part) or len(part) < 2 for part in labels):
        return f"the equation {equation!r} is not a plain product of two operands"
    if any(_ELLIPSIS in part[1:] for part in labels) or len({_ELLIPSIS in part for part in labels}) != 1:
        return f"the equation {equation!r} has an ellipsis that is not in front"
    return labels[0], labels[1], labels[2]


def _permuted(node: fx.Node, labels: str, target: str) -> Operand | None:
    if sorted(labels) != sorted(target):
        return None
    perm = tuple(labels.index(label) for label in target)
    count = len(perm)
    if perm == tuple(range(count)):
        return Operand(node)
    if perm == (*range(count - 2), count - 1, count - 2):
        return Operand(node, swap=True)
    return None if _ELLIPSIS in labels else Operand(node, perm)


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
    if call.name == "same":
        return _extended(call, call.get("x"))
    if call.name in _GROUPINGS:
        return _changes_rows(call) or _extended(call, call.get("x"), Regroup(call.node))
    if call.name == "cast":
        if (dtype := cast_to(call)) is None:
            return f"the scores go through {_describe(call.node)}, which is more than a change of dtype"
        return _extended(call, call.get("x"), Cast(call.node, dtype))
    reader = _READERS.get(call.name)
    if reader is None:
        return f"the scores come from {_describe(node)}, not from a product of queries and keys"
    return reader(call)


def _extended(call: GraphCall, main: Any, *steps: Step) -> ScoresPath | str:
    path = trace_scores(main)
    if isinstance(path, str):
        return path
    return ScoresPath(path.product, path.scores, (*path.steps, *steps), (*path.nodes, call.node))


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
    "mul": _scale,
    "div": _scale,
    "add": _bias,
    "sub": _bias,
    "masked_fill": _fill,
    "where": _fill,
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
        p, training = call.get("p", 0.5), call.get("training", call.node.op == "call_function")
        is_known = isinstance(p, (int, float)) and isinstance(training, (bool, type(None)))
        if dropout is not None or not is_known:
            return "the dropout of the weights depends on values at run time"
        module = str(call.node.target) if call.node.op == "call_module" else None
        dropout = Dropout(call.node, float(p), training, module)
    return WeightsPath(path.mix, path.product, (*steps, *path.steps), dropout, (call.node, *path.nodes))


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
