"""Which nodes may be evaluated ahead of time, and how many bytes folding them may add to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MAKES_SEQUENCE, OPTIONALS, QUANTIZES, RANDOM
from sardonyx.ir.rules import Replacement

LARGE = 1 << 20  # bytes; larger constants are not kept in memory
# Bytes that one folded node may add to the model: the larger of PER_NODE and the model's size / PART_PER_NODE. The same
# for all folded nodes together.
PER_NODE = 1 << 16
PART_PER_NODE = 128
PER_MODEL = 1 << 20
PART_PER_MODEL = 32
MANY = 256  # a constant with more uses than this is assumed to stay

GROWS = "folding it would grow the model past its budget"
OUTPUT = "the graph's output would lose its name"
UNSIZED = "the size of its result is unknown until it is computed"
FAILED = "no available engine can evaluate it"

_NEVER = RANDOM | QUANTIZES | MAKES_SEQUENCE | OPTIONALS | {"Constant", "Dropout"}
_A = ir.AttributeType
# Attribute types other than bodies, types and sparse tensors.
PLAIN_ATTRIBUTES = frozenset({_A.INT, _A.INTS, _A.STRING, _A.STRINGS, _A.FLOAT, _A.FLOATS, _A.TENSOR})
_GIVEN_UP = "sardonyx.cannot-be-evaluated"
_GROWTH = "sardonyx.growth"


def is_foldable(node: ir.Node, graph: Facts) -> bool:
    """Return whether the node may be evaluated ahead of time."""
    if node.domain != "" or node.op_type in _NEVER or _GIVEN_UP in node.meta or not any(node.inputs):
        return False
    if any(attribute.is_ref() or attribute.type not in PLAIN_ATTRIBUTES for attribute in node.attributes.values()):
        return False
    return "seed" not in node.attributes and node.op_identifier() not in graph.model.functions


def give_up(node: ir.Node) -> None:
    """Record that no engine can evaluate a node, since it would fail again in every sweep."""
    node.meta[_GIVEN_UP] = True


def grown_constants(tensors: Sequence[ir.TensorProtocol], growth: int, op: Builder) -> Replacement:
    """Return constants that record by how much they grew the model, so that all sweeps share one budget."""
    values = [op.constant(tensor) for tensor in tensors]
    values[0].meta[_GROWTH] = max(growth, 0)
    return values


def divides_safely(node: ir.Node, graph: Facts) -> bool:
    """Return whether an integer division cannot trap: x / 0 and lowest / -1 may end the process."""
    if node.op_type not in ("Div", "Mod"):
        return True
    divisor = node.inputs[1]
    dtype = graph.dtype(divisor)
    if dtype is not None and dtype.is_floating_point():
        return True
    array = graph.array(divisor)
    return array is not None and not np.isin(array.astype(np.int64), (0, -1)).any()


def freed_bytes(value: ir.Value | None, readers: set[ir.Node], graph: Facts) -> int:
    """Return the bytes of a constant if nothing but `readers` uses it, divided by the number of its users."""
    tensor = graph.tensor(value)
    if value is None or tensor is None or value.is_graph_output() or len(value.uses()) > MANY:
        return 0
    users = {use.node for use in value.uses()}
    return tensor.nbytes // len(users) if users <= readers else 0


class Budget(Struct):
    """The number of bytes that folding may still add."""

    per_node: int
    left: int

    @classmethod
    def of(cls, graph: Facts) -> Budget:
        """Return the budget of a model of this size."""
        values = [value for scope in graph.live_scopes() for value in scope.graph.initializers.values()]
        size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
        spent = sum(cast("Mapping[str, int]", value.meta).get(_GROWTH, 0) for value in values)
        left, remaining = max(PER_MODEL, size // PART_PER_MODEL) - spent, graph.growth.remaining
        return cls(max(PER_NODE, size // PART_PER_NODE), left if remaining is None else min(left, remaining))

    def take(self, growth: int) -> bool:
        """Return whether the model may grow by that many bytes, and spend them. Shrinking is always allowed."""
        if growth > max(min(self.per_node, self.left), 0):
            return False
        self.left -= max(growth, 0)
        return True
