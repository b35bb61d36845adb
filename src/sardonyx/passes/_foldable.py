"""What may be evaluated ahead of time, and how many bytes that may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MAKES_SEQUENCE, OPTIONALS, QUANTIZES, RANDOM
from sardonyx.ir.rules import Replacement

LARGE = 1 << 20  # constants from this size on are not held in memory
PER_NODE = 1 << 16  # bytes one folded node may add to the model, or this part of the model where that is more:
PART_PER_NODE = 128
PER_MODEL = 1 << 20  # bytes all of them may add, or this part of the model where that is more:
PART_PER_MODEL = 32
MANY = 256  # readers from which on a constant is not followed

GROWS = "would grow the model past its budget"
OUTPUT = "the graph's output would lose its name"
UNSIZED = "the size of its result is not known before it is computed"
FAILED = "no engine here can evaluate it"

_NEVER = RANDOM | QUANTIZES | MAKES_SEQUENCE | OPTIONALS | {"Constant", "Dropout"}
_A = ir.AttributeType
_PLAIN = frozenset({_A.INT, _A.INTS, _A.STRING, _A.STRINGS, _A.FLOAT, _A.FLOATS, _A.TENSOR})
_GIVEN_UP = "sardonyx.cannot-be-evaluated"
_GROWTH = "sardonyx.growth"


def is_foldable(node: ir.Node, graph: Facts) -> bool:
    """Whether the operator is one that may be evaluated ahead of time."""
    if node.domain != "" or node.op_type in _NEVER or _GIVEN_UP in node.meta or not any(node.inputs):
        return False
    if any(attribute.is_ref() or attribute.type not in _PLAIN for attribute in node.attributes.values()):
        return False
    return "seed" not in node.attributes and node.op_identifier() not in graph.model.functions


def give_up(node: ir.Node) -> None:
    """Remember that no engine can evaluate a node: it would fail again in every sweep."""
    node.meta[_GIVEN_UP] = True


def grown_constants(tensors: Sequence[ir.TensorProtocol], growth: int, op: Builder) -> Replacement:
    """Constants that remember by how much they grew the model, so that every sweep spends from the same budget."""
    values = [op.constant(tensor) for tensor in tensors]
    values[0].meta[_GROWTH] = max(growth, 0)
    return values


def divides_safely(node: ir.Node, graph: Facts) -> bool:
    """Whether an integer division cannot trap: a processor may end the process at x / 0 and at lowest / -1."""
    if node.op_type not in ("Div", "Mod"):
        return True
    divisor = node.inputs[1]
    dtype = graph.dtype(divisor)
    if dtype is not None and dtype.is_floating_point():
        return True
    array = graph.array(divisor)
    return array is not None and not np.isin(array.astype(np.int64), (0, -1)).any()


def freed_bytes(value: ir.Value | None, readers: set[ir.Node], graph: Facts) -> int:
    """The bytes of a constant that nothing but `readers` reads; counted in parts where several do."""
    tensor = graph.tensor(value)
    if value is None or tensor is None or value.is_graph_output() or len(value.uses()) > MANY:
        return 0
    users = {use.node for use in value.uses()}
    return tensor.nbytes // len(users) if users <= readers else 0


@dataclass(slots=True)
class Budget:
    """How many bytes folding may still add."""

    per_node: int
    left: int

    @classmethod
    def of(cls, graph: Facts) -> Budget:
        """What a model of this size can spend."""
        values = [value for scope in graph.live_scopes() for value in scope.graph.initializers.values()]
        size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
        spent = sum(cast("Mapping[str, int]", value.meta).get(_GROWTH, 0) for value in values)
        left, remaining = max(PER_MODEL, size // PART_PER_MODEL) - spent, graph.growth.remaining
        return cls(max(PER_NODE, size // PART_PER_NODE), left if remaining is None else min(left, remaining))

    def take(self, growth: int) -> bool:
        """Whether that many more bytes are allowed; they are then spent. Fewer always are."""
        if growth > max(min(self.per_node, self.left), 0):
            return False
        self.left -= max(growth, 0)
        return True
