"""Numbers of a value: casts that preserve them, rounding to half precision, where the sign of a zero shows.

A pass may look through a cast that preserves every value; any other cast is a computation.

ONNX Runtime computes an operator that has no half-precision kernel in single precision, between Casts that it inserts.
If two such operators follow each other it removes the Casts between them, even a Cast of the model itself, and with it
the rounding to half precision. A node between them that does nothing can therefore be what preserves the rounding,
overflow included.

1 / 0.0 and 1 / -0.0 are infinities of different sign, and -0.0 as text is "-0". A pass that may change the sign of a
zero asks where the value comes from and where it goes. Both questions visit a few nodes around the value; beyond that
the conservative answer is returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import PREDICATES, READS_SHAPE
from sardonyx.ir.scopes import operand
from sardonyx.ir.support import IN_HALF

_D = ir.DataType
# Bits of magnitude that a type represents exactly, and whether it is signed.
INTEGERS: Mapping[ir.DataType, tuple[int, bool]] = MappingProxyType(
    {
        _D.BOOL: (1, False), _D.UINT8: (8, False), _D.UINT16: (16, False), _D.UINT32: (32, False),
        _D.UINT64: (64, False), _D.INT8: (7, True), _D.INT16: (15, True), _D.INT32: (31, True), _D.INT64: (63, True),
    }
)  # fmt: skip
FLOATS: Mapping[ir.DataType, int] = MappingProxyType(
    {_D.FLOAT16: 11, _D.BFLOAT16: 8, _D.FLOAT: 24, _D.DOUBLE: 53}  # bits of the significand
)


def preserves_values(source: ir.DataType | None, to: ir.DataType | int | None) -> bool:
    """Return whether a Cast from `source` to `to` preserves every value.

    False for unknown types, and for every cast that rounds, truncates or wraps: float to integer or bool, double to
    half, int64 to float.
    """
    if source is None or to is None or source == to:
        return source is not None and source == to
    if source in FLOATS:
        return to in (_D.FLOAT, _D.DOUBLE) and FLOATS[source] < FLOATS[_D(to)]
    if source not in INTEGERS or (to not in INTEGERS and to not in FLOATS):
        return False
    bits, is_signed = INTEGERS[source]
    width, has_sign = INTEGERS.get(_D(to)) or (FLOATS[_D(to)], True)
    return bits <= width and (has_sign or not is_signed)


def is_rounded(value: ir.Value | None, graph: Facts) -> bool:
    """Return whether the runtime certainly rounds the value to its own type."""
    if value is None or graph.dtype(value) != ir.DataType.FLOAT16:
        return True
    node = value.producer()
    return node is None or node.op_type in IN_HALF


_MAX_VISITED_NODES = 32  # nodes that are visited

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
        node = current.producer()
        if current.is_graph_output() and node is not None and node.graph is not graph.model.graph:
            return unless_known  # it is used outside of its body or function
        for use in current.uses():
            results = _through(use.node, use.idx, graph)
            if results is None:
                return True
            fresh = [result for result in results if result not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
        if len(seen) > _MAX_VISITED_NODES:
            return unless_known
    return False


def may_flip(scale: np.ndarray, shift: np.ndarray, value: ir.Value, graph: Facts) -> bool:
    """Return whether scaling before a sum of products instead of after it may visibly flip the sign of a zero.

    A sum of zeros is 0.0 whatever the signs of its factors; scaled by a negative number afterwards it becomes -0.0.
    """
    return bool(((scale < 0) & (shift == 0)).any()) and shows_sign(value, graph, unless_known=False)


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
