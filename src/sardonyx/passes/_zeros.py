"""Where the sign of a zero is visible: 1 / 0.0 and 1 / -0.0 are infinities of different sign, and -0.0 as text is "-0".

A pass that may change the sign of a zero asks where the value comes from and where it goes. Both questions visit a few
nodes around the value; beyond that the conservative answer is returned.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import PREDICATES, READS_SHAPE
from sardonyx.ir.scopes import operand
from sardonyx.passes._dtypes import INTEGERS

_NEARBY = 32  # nodes that are visited

# Operators that never return -0.0, and those that return the same for both zeros. Relu is neither: what it returns for
# -0.0 depends on the position of the element.
_POSITIVE = frozenset({"Abs", "Cos", "Cosh", "Exp", "ReduceL1", "ReduceL2", "Sigmoid", "Softmax", "Softplus"})
_SAME = _POSITIVE | PREDICATES | READS_SHAPE | {
    "ArgMax", "ArgMin", "Attention", "LogSoftmax", "NonZero", "ReduceLogSumExp", "ReduceSumSquare",
}  # fmt: skip


def may_be_negative_zero(value: ir.Value | None, graph: Facts) -> bool:
    """Return whether an element of a value may be -0.0, judged by its producer."""
    dtype = graph.dtype(value)
    if dtype in INTEGERS:
        return False
    array = graph.array(value)
    if array is not None:
        numbers = array.astype(np.float64)
        return bool(((numbers == 0) & np.signbit(numbers)).any())
    node = None if value is None else value.producer()
    if node is None or node.domain:
        return True
    if node.op_type == "Cast":
        return may_be_negative_zero(operand(node, 0), graph)
    return node.op_type not in _POSITIVE


def shows_sign(value: ir.Value, graph: Facts, *, unless_known: bool = True) -> bool:
    """Return whether the sign of a zero of the value may be visible: something is divided by it, or it becomes text.

    The same for a zero that takes its sign from one of the value.

    `unless_known` is the answer if more nodes would have to be visited.
    """
    waiting, seen = deque([value]), {value}
    while waiting:
        current = waiting.popleft()
        if _leaves_a_body(current, graph):
            return unless_known
        for use in current.uses():
            results = _through(use.node, use.idx, graph)
            if results is None:
                return True
            fresh = [result for result in results if result not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
        if len(seen) > _NEARBY:
            return unless_known
    return False


def may_flip(scale: np.ndarray, shift: np.ndarray, value: ir.Value, graph: Facts) -> bool:
    """Return whether scaling before a sum of products instead of after it may visibly flip the sign of a zero.

    A sum of zeros is 0.0 whatever the signs of its factors; scaled by a negative number afterwards it becomes -0.0.
    """
    return bool(((scale < 0) & (shift == 0)).any()) and shows_sign(value, graph, unless_known=False)


def _leaves_a_body(value: ir.Value, graph: Facts) -> bool:
    """Return whether the value is an output of a body or function, so that it is used outside of its graph."""
    node = value.producer()
    return value.is_graph_output() and node is not None and node.graph is not graph.model.graph


def _through(node: ir.Node, place: int, graph: Facts) -> tuple[ir.Value, ...] | None:
    """Return the results whose zeros take their sign from this operand, or None if it may be visible in them."""
    if node.domain or any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        return None
    outputs = tuple(node.outputs)
    match node.op_type:
        case "Reciprocal" | "BitCast":
            return None
        case "Div":
            return outputs if place == 0 else None
        case "Pow":
            exponent = graph.scalar(operand(node, 1))
            if place == 1:
                return ()
            return None if exponent is None or exponent < 0 else outputs
        case "Cast" | "CastLike":
            to = graph.dtype(node.outputs[0])
            return None if to in (None, ir.DataType.STRING) else () if to in INTEGERS else outputs
        case "Add" | "Sub":
            other = graph.array(node.inputs[1 - place])
            return () if other is not None and other.size and (other != 0).all() else outputs
        case "Mul" if node.inputs[0] is node.inputs[1]:
            return ()
        case op_type:
            return () if op_type in _SAME else outputs
