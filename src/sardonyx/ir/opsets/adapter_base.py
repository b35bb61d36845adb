"""The common parts of the adapters of single operators.

A model is raised completely or not at all, so an adapter first checks its node and returns a rewrite, and no rewrite
runs before every node was checked. By then a node may read other values, so rewrites look up its inputs again.
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
    """The node has no equivalent in the newer operator set, or it is not certain."""


@dataclass(frozen=True, slots=True, eq=False)
class OpsetStep:
    """One node that is converted from one operator set to another."""

    node: ir.Node
    graph: Facts
    old: int
    new: int

    def passes(self, version: int) -> bool:
        """Return whether the conversion crosses this version."""
        return self.old < version <= self.new

    def reads(self, index: int) -> ir.Value | None:
        """Return an input as it is now, or None if it is omitted."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def returns(self, index: int) -> bool:
        """Return whether the node has this output and it is used."""
        if index >= len(self.node.outputs):
            return False
        output = self.node.outputs[index]
        return output.is_graph_output() or bool(output.uses())

    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of the first input, for constants that must have the same type."""
        dtype = self.graph.dtype(self.reads(0))
        if dtype is None:
            raise CannotRaise("the type of its constants is unknown")
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
    """Return a rewrite to the same node with attributes dropped or changed, and constants as inputs (None: omitted)."""
    node = step.node

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        inputs = list(node.inputs)
        for index, (hint, array) in (constants or {}).items():
            inputs += [None] * (index + 1 - len(inputs))
            inputs[index] = None if array is None else op.constant(array, hint)
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
    """Create a node like another one on other inputs; omitted outputs stay omitted."""
    attributes: dict[str, Any] = {**node.attributes, **changed}
    for name in drop:
        attributes.pop(name, None)
    values = op.node(op_type or node.op_type, tuple(inputs), attributes, outputs=len(node.outputs))
    for old, value in zip(node.outputs, values, strict=True):
        if not old.name:
            value.name = ""
    return values
