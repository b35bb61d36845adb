"""x * 1 => x, and likewise x / 1, x ** 1, x - 0, x & true, x | false, x ^ false, where(true, x, y).

Exact to the bit: x + 0 goes for whole numbers, and for floats only as x + (-0.0) or x - (+0.0), since -0.0 + 0.0 is
+0.0. Refuses where the constant's shape would enlarge the result, where(true, x, y) where x may be -0.0, of which ONNX
Runtime's Where loses the sign, and in half precision where the runtime rounds x only because of the node. Helps because
exporters write scales of one and masks that mask nothing, and each reads and writes a whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.passes._casts import FLOATS
from sardonyx.passes._half import is_rounded
from sardonyx.passes._matching import operand
from sardonyx.passes._zeros import may_be_negative_zero
from sardonyx.passes.base import Example, NodePass
from sardonyx.records.run import Accuracy

BROADCASTS = 7  # the opset from which on operands broadcast without being asked
ENLARGES = "the constant's shape could enlarge the result"
UNROUNDED = "the runtime would leave out a rounding to half precision"


def neutral_operand(
    node: ir.Node, graph: Facts, sides: tuple[int, ...], is_neutral: Callable[[np.ndarray], bool]
) -> ir.Value | Refused | None:
    """The other operand where the one on one of these sides is a constant without effect."""
    for side in sides:
        array, other = graph.array(node.inputs[side]), node.inputs[1 - side]
        if array is None or other is None or not is_neutral(array):
            continue
        if not _keeps_shape(array.shape, other, graph):
            return Refused(ENLARGES, (node,))
        return other if is_rounded(other, graph) else Refused(UNROUNDED, (node,))
    return None


def zeros(array: np.ndarray, *, negative: bool) -> bool:
    """Whether everything is zero, and for floats a zero of that sign. An empty array is not: it empties the result."""
    if array.size == 0 or array.dtype.kind == "b":
        return False
    if array.dtype.kind in "iu":
        return not array.any()
    numbers = array.astype(np.float64)
    return not numbers.any() and bool((np.signbit(numbers) == negative).all())


def _ones(array: np.ndarray) -> bool:
    return array.size > 0 and array.dtype.kind != "b" and bool((array == 1).all())


def _all(truth: bool) -> Callable[[np.ndarray], bool]:
    return lambda array: array.size > 0 and array.dtype.kind == "b" and bool((array == truth).all())


def _keeps_shape(constant: tuple[int, ...], value: ir.Value, graph: Facts) -> bool:
    """Whether broadcasting with the constant certainly leaves the value's shape as it is."""
    if not constant:
        return True
    shape = graph.shape(value)
    if shape is None or len(constant) > len(shape):
        return False
    own = shape[len(shape) - len(constant) :]
    return all(dim in (1, size) for dim, size in zip(constant, own, strict=True))


_BOTH, _RIGHT = (0, 1), (1,)
_NEUTRAL: Mapping[str, tuple[tuple[int, ...], Callable[[np.ndarray], bool]]] = MappingProxyType(
    {
        "Mul": (_BOTH, _ones),
        "Div": (_RIGHT, _ones),
        "Pow": (_RIGHT, _ones),
        "Add": (_BOTH, lambda array: zeros(array, negative=True)),
        "Sub": (_RIGHT, lambda array: zeros(array, negative=False)),
        "And": (_BOTH, _all(True)),
        "Or": (_BOTH, _all(False)),
        "Xor": (_BOTH, _all(False)),
    }
)


def _chosen(node: ir.Node, graph: Facts) -> ir.Value | Refused | None:
    """What a Where with a constant condition always takes, where that has the result's shape already."""
    condition = graph.array(node.inputs[0])
    if condition is None or condition.size == 0 or not (condition.all() or not condition.any()):
        return None
    chosen = operand(node, 1 if condition.all() else 2)
    if not graph.same_shape(chosen, node.outputs[0]):
        return Refused(ENLARGES, (node,))
    if condition.all() and may_be_negative_zero(chosen, graph):
        return Refused("the runtime's Where makes 0.0 of -0.0", (node,))
    return chosen


class EliminateNoopArithmetic(NodePass):
    """Arithmetic with a constant that changes nothing."""

    name = "eliminate-noop-arithmetic"
    accuracy = Accuracy.EXACT
    roots = (*_NEUTRAL, "Where")
    opset = BROADCASTS
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <float one = {1}, float[1, 4] zeros = {0, 0, 0, 0}> {
                a = Relu(x)  b = Mul(one, a)  c = Sub(b, zeros)  y = Neg(c)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 4] x) => (float[N, 4] y) <float one = {1}, float[1, 4] zeros = {0, 0, 0, 0}> {
                a = Relu(x)  y = Neg(a)
            }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[M, 4] y) <float[2, 4] ones = {1, 1, 1, 1, 1, 1, 1, 1}> {
                a = Relu(x)  b = Mul(a, ones)  y = Neg(b)
            }
        """,
        refusal=ENLARGES,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """A node with a neutral constant beside the value it passes on."""
        if node.op_type == "Where":
            found = _chosen(node, graph)
        else:
            found = neutral_operand(node, graph, *_NEUTRAL[node.op_type])
        if node.op_type == "Pow" and graph.dtype(node.inputs[0]) not in FLOATS:
            return None  # the runtime raises whole numbers as doubles, which do not hold all of them
        return Match((node,), {"source": found}) if isinstance(found, ir.Value) else found

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """The operand that passes through."""
        return match.found["source"]
