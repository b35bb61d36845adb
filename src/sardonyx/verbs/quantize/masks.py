"""Constants that only mask attention scores, such as the lowest float32 number, and what replaces them in float16.

softmax(s + m) with m = -3.4e38 is 0 where it masks. Any number far below the scores does the same, and -3.4e38 would
become -inf in float16, where a row that is masked everywhere gives NaN. Such a constant becomes -30000: two of them can
be added to scores, and the sum is still finite. A constant counts as a mask if everything that is computed from it is
read by a Softmax, through Where, Add, Mul, Max and operators that move data.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MOVES_DATA, attention_operands
from sardonyx.ir.scopes import Scope, is_constant
from sardonyx.ir.storage import Array

MASK = -30000.0
_FROM = -16384.0  # constants below this are replaced
_LARGEST = 1 << 24  # bytes of a constant that is read
_FIRST = MOVES_DATA | {"Cast", "Sub"}  # pass on their first operand
_ALL = frozenset({"Add", "Concat", "Max", "Mul"})


class Masks(Struct, frozen=True, eq=False):
    """The constants that mask, and all values that contain their numbers, up to the Softmax."""

    constants: frozenset[ir.Value]
    values: frozenset[ir.Value]


def find_masks(graph: Facts) -> Masks:
    """Return the masks of the main graph."""
    main = graph.scopes[graph.model.graph]
    nodes = list(main.graph)
    ends: dict[ir.Value, bool] = {}

    def only_masks(value: ir.Value) -> bool:
        if value not in ends:
            uses = value.uses()
            ends[value] = bool(uses) and not value.is_graph_output()
            ends[value] &= all(_masks(use.node, use.idx, main, ends) for use in uses)
        return ends[value]

    for node in reversed(nodes):  # consumers first, so that each lookup is of a known value
        for value in node.outputs:
            only_masks(value)
    stored = [*main.graph.initializers.values(), *(node.outputs[0] for node in nodes if is_constant(node))]
    constants = frozenset(value for value in stored if _is_low(value, graph) and only_masks(value))
    masked = set(constants)
    for node in nodes if constants else ():
        if _passes_on(node, {index for index, value in enumerate(node.inputs) if value in masked}):
            masked.update(node.outputs)
    return Masks(constants, frozenset(masked))


def replaced(array: Array) -> Array:
    """Return a mask whose finite numbers are at least -30000."""
    return np.where(np.isfinite(array), np.maximum(array, np.float32(MASK)), array).astype(np.float32)


def _is_low(value: ir.Value, graph: Facts) -> bool:
    tensor = graph.tensor(value)
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.nbytes > _LARGEST or not tensor.size:
        return False
    array = tensor.numpy()
    return bool(((array < _FROM) & np.isfinite(array)).any())


def _masks(node: ir.Node, index: int, main: Scope, ends: dict[ir.Value, bool]) -> bool:
    """Return whether the operand of a node ends in a Softmax and nowhere else."""
    if node.graph is not main.graph:
        return False
    operands = attention_operands(node)
    if operands is not None:
        return index == operands.bias
    if node.op_type == "Softmax" and not node.domain:
        return True
    return _passes_on(node, {index}) and ends.get(node.outputs[0], False)


def _passes_on(node: ir.Node, indices: set[int]) -> bool:
    """Return whether the result of a node contains the numbers of one of these operands."""
    if node.domain or not indices:
        return False
    if node.op_type == "Where":
        return bool(indices & {1, 2})
    return node.op_type in _ALL or (node.op_type in _FIRST and 0 in indices)
