"""The queries that inference rules make; `engine.Shapes` implements them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from sardonyx.ir.shapes.expr import Atom, Expr, Size

Shape = tuple[Size, ...]
Contents = tuple[Size | None, ...]  # the elements in row-major order; None for unknown ones
Typed = tuple[ir.DataType | None, Shape | None]


class ShapeQueries(Protocol):
    """Queries about values. None means that the answer is unknown."""

    opset: Callable[[ir.Node], int]
    loops: int  # the number of loops whose bodies are being inferred

    def typed(self, value: ir.Value) -> Typed:
        """Return the element type and the shape."""
        ...

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the dimensions."""
        ...

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type."""
        ...

    def declared(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type that the file declares if it holds for every run."""
        ...

    def contents(self, value: ir.Value | None) -> Contents | None:
        """Return the elements of a small integer tensor."""
        ...

    def ints(self, node: ir.Node, name: str, index: int) -> Sequence[int] | None:
        """Return numbers that older opsets pass as an attribute and newer ones as an input."""
        ...

    def small_array(self, value: ir.Value) -> np.ndarray | None:
        """Return the constant contents of a small tensor."""
        ...

    def unknown(self) -> Expr:
        """Return a new unknown dimension."""
        ...

    def resolve(self, node: ir.Node, atom: Atom, size: Size) -> None:
        """Record that the node can only run if the atom equals this size."""
        ...

    def assume(self, graph: ir.Graph, types: Sequence[Typed]) -> None:
        """Infer a body again, with these types for its inputs."""
        ...
