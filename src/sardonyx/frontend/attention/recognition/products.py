"""Reads the two products of an attention, query with key and weights with value, as (…, rows, features)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from torch import fx

from sardonyx.frontend.attention.recognition.calls import GraphCall, read
from sardonyx.frontend.attention.recognition.facts import rank_of
from sardonyx.frontend.attention.recognition.matches import Bias, Operand, Scale, Step

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
