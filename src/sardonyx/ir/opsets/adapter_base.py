"""What the adapters of single operators have in common.

An adapter looks first and writes later: all of a model can be raised or none of it is, so nothing is written before
every node has been looked at. By then a node may read other values than it did, so rewrites ask for its inputs anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts

Rewrite = Callable[[Builder], Sequence[ir.Value]]


class CannotRaise(Exception):
    """The node has no equal in the newer operator set, or not surely."""


@dataclass(frozen=True, slots=True, eq=False)
class OpsetStep:
    """One node on its way from one operator set to another."""

    node: ir.Node
    graph: Facts
    old: int
    new: int

    def passes(self, version: int) -> bool:
        """Whether this version lies on the way."""
        return self.old < version <= self.new

    def reads(self, index: int) -> ir.Value | None:
        """An input as it is now; None where left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def returns(self, index: int) -> bool:
        """Whether the node has this output and somebody reads it."""
        if index >= len(self.node.outputs):
            return False
        output = self.node.outputs[index]
        return output.is_graph_output() or bool(output.uses())

    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the first input, for constants that must have the same."""
        dtype = self.graph.dtype(self.reads(0))
        if dtype is None:
            raise CannotRaise("it is not known which type its constants must have")
        return dtype.numpy()


Adapter = Callable[[OpsetStep], Rewrite | None]  # None: the node may stay as it is


def rewritten(
    step: OpsetStep,
    constants: Mapping[int, tuple[str, np.ndarray | None]] | None = None,
    *,
    drop: Sequence[str] = (),
    op_type: str | None = None,
    **changed: Any,
) -> Rewrite:
    """The same node with attributes dropped or changed, and constants read at some places (None: left out)."""
    node = step.node

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = list(node.inputs)
        for place, (hint, array) in (constants or {}).items():
            inputs += [None] * (place + 1 - len(inputs))
            inputs[place] = None if array is None else op.constant(array, hint)
        return rebuilt(op, node, inputs, drop=drop, op_type=op_type, **changed)

    return rewrite


def rebuilt(
    op: Builder,
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    *,
    drop: Sequence[str] = (),
    op_type: str | None = None,
    **changed: Any,
) -> tuple[ir.Value, ...]:
    """A node like another on other inputs; outputs that were left out stay so."""
    attributes: dict[str, Any] = {**node.attributes, **changed}
    for name in drop:
        attributes.pop(name, None)
    values = op.node(op_type or node.op_type, tuple(inputs), attributes, outputs=len(node.outputs))
    for old, value in zip(node.outputs, values, strict=True):
        if not old.name:
            value.name = ""
    return values
