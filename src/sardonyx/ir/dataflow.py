"""What values depend on: constants alone, the sizes of other values, or the data of the model's inputs.

The classification does not change when constants are folded (a transposed weight is a constant like the weight), and a
mask that is computed from sizes does not depend on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import onnx_ir as ir

from sardonyx.ir.ops import RANDOM, READS_SHAPE, READS_SHAPE_AND_TYPE, READS_TYPE_OF_SECOND
from sardonyx.ir.scopes import has_bodies


class Dependence(IntEnum):
    """What a value depends on; a greater member includes the smaller ones."""

    CONSTANT = 0
    SIZE = 1  # constants and the sizes of other values
    DATA = 2  # inputs, random numbers, and what bodies compute


def dependence(op_type: str, operands: Dependence, *, has_bodies: bool) -> Dependence:
    """Return what the results of an operator depend on; `operands` is the greatest dependence of its operands."""
    if op_type in READS_SHAPE:
        return Dependence.SIZE
    return Dependence.DATA if has_bodies or op_type in RANDOM else operands


class Dataflow:
    """The dependences of the values of one model, whose nodes are visited in order.

    Results of nodes that were not visited count as data.
    """

    def __init__(self, *, defaults_are_constants: bool = False, types_are_data: bool = False) -> None:
        """Start with no node visited.

        Args:
            defaults_are_constants: An input with a default value counts as the constant that it is until a caller
                overrides it. Before IR version 4 all weights were such inputs.
            types_are_data: A result that depends on data by its element type alone (CastLike, EyeLike) counts as data.
        """
        self._results: dict[ir.Value, Dependence] = {}
        self._defaults_are_constants = defaults_are_constants
        self._types_are_data = types_are_data

    def visit(self, node: ir.Node, *, op_type: str | None = None) -> Dependence:
        """Record and return what the results of a node depend on; `op_type` is "" if its meaning is unknown."""
        name = node.op_type if op_type is None else op_type
        result = self._result(node, name)
        for output in node.outputs:
            self._results[output] = result
        return result

    def _result(self, node: ir.Node, name: str) -> Dependence:
        if name in READS_SHAPE_AND_TYPE and not self._types_are_data:
            return Dependence.SIZE
        if not node.inputs and node.domain:  # the source of its result is unknown
            return Dependence.DATA
        most = Dependence.CONSTANT
        for value in self.operands(node, name):
            if value is not None and (operand := self.of(value)) > most:
                most = operand
        return dependence(name, most, has_bodies=has_bodies(node))

    def operands(self, node: ir.Node, name: str) -> Sequence[ir.Value | None]:
        """Return the operands whose values the results of a node depend on."""
        return node.inputs[:1] if name in READS_TYPE_OF_SECOND and not self._types_are_data else node.inputs

    def of(self, value: ir.Value) -> Dependence:
        """Return what a value depends on."""
        result = self._results.get(value)
        if result is None:
            is_constant = value.is_initializer() and (self._defaults_are_constants or not value.is_graph_input())
            result = self._results[value] = Dependence.CONSTANT if is_constant else Dependence.DATA
        return result
