"""x * 1 => x, and likewise x / 1, x ** 1, x - 0, x & true, x | false, x ^ false, where(true, x, y).

Exact to the bit: x + 0 is removed for integers, and for floats only x + (-0.0) and x - (+0.0), since -0.0 + 0.0 is
+0.0. Refuses if the constant's shape would enlarge the result, for where(true, x, y) if x may be -0.0, whose sign ONNX
Runtime's Where loses, and in half precision if the runtime rounds x only because of the node. Helps because exporters
write scales of one and masks that mask nothing, and each reads and writes a whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.ir.support import INTEGER_POWER, WHERE_SIGN
from sardonyx.passes._numbers import is_rounded, may_be_negative_zero
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, NoMatch, require, required

BROADCASTS = 7  # the first opset in which operands broadcast without an attribute
UNROUNDED = "the runtime would skip a rounding to half precision"
ENLARGES = "the constant's shape could enlarge the result"


def neutral_operand(
    node: ir.Node, graph: Facts, sides: tuple[int, ...], is_neutral: Callable[[np.ndarray], bool]
) -> ir.Value:
    """Return the other operand if the one on one of these sides is a neutral constant; otherwise there is no match."""
    for side in sides:
        array, other = graph.array(node.inputs[side]), node.inputs[1 - side]
        if array is not None and other is not None and is_neutral(array):
            require(not array.shape or graph.same_shape(other, node.outputs[0]), ENLARGES)
            require(is_rounded(other, graph), UNROUNDED)
            return other
    raise NoMatch


def zeros(array: np.ndarray, *, negative: bool) -> bool:
    """Return whether all elements are zero, and for floats of that sign. An empty array is not neutral."""
    if array.size == 0 or array.dtype.kind == "b":
        return False
    if array.dtype.kind in "iu":
        return not array.any()
    numbers = array.astype(np.float64)
    return not numbers.any() and bool((np.signbit(numbers) == negative).all())


def _ones(array: np.ndarray) -> bool:
    return array.size > 0 and array.dtype.kind != "b" and bool((array == 1).all())


def _all_equal(truth: bool) -> Callable[[np.ndarray], bool]:
    return lambda array: array.size > 0 and array.dtype.kind == "b" and bool((array == truth).all())


_BOTH, _RIGHT = (0, 1), (1,)
_NEUTRAL: Mapping[str, tuple[tuple[int, ...], Callable[[np.ndarray], bool]]] = MappingProxyType(
    {
        "Mul": (_BOTH, _ones),
        "Div": (_RIGHT, _ones),
        "Pow": (_RIGHT, _ones),
        "Add": (_BOTH, lambda array: zeros(array, negative=True)),
        "Sub": (_RIGHT, lambda array: zeros(array, negative=False)),
        "And": (_BOTH, _all_equal(True)),
        "Or": (_BOTH, _all_equal(False)),
        "Xor": (_BOTH, _all_equal(False)),
    }
)


def _chosen(node: ir.Node, graph: Facts) -> ir.Value:
    """Return the branch that a Where with a constant condition always takes, if it has the shape of the result."""
    condition = required(graph.array(node.inputs[0]))
    require(condition.size > 0 and bool(condition.all() or not condition.any()))
    chosen = required(node.inputs[1 if condition.all() else 2])
    require(graph.same_shape(chosen, node.outputs[0]), ENLARGES)
    loses_sign = bool(condition.all()) and may_be_negative_zero(chosen, graph)
    require(not loses_sign, WHERE_SIGN.fact)
    return chosen


class EliminateNoopArithmetic(NodePass):
    """Arithmetic with a neutral constant."""

    accuracy = Accuracy.EXACT
    roots = (*_NEUTRAL, "Where")
    opset = BROADCASTS
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 4] y) <float one = {1}, float[1, 4] zeros = {0, 0, 0, 0}>
            { a = Relu(x)  b = Mul(one, a)  c = Sub(b, zeros)  y = Neg(c) }
        """,
        after="{ a = Relu(x)  y = Neg(a) }",
        near_miss="""
            (float[N] x) => (float[M, 4] y)
            <float[2, 4] ones = {1, 1, 1, 1, 1, 1, 1, 1}> { a = Relu(x)  b = Mul(a, ones)  y = Neg(b) }
        """,
        refusal=ENLARGES,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        require(not INTEGER_POWER.concerns(node.op_type, graph.dtype(node.inputs[0])))
        is_choice = node.op_type == "Where"
        source = _chosen(node, graph) if is_choice else neutral_operand(node, graph, *_NEUTRAL[node.op_type])
        return Match((node,), build=lambda _: source)
