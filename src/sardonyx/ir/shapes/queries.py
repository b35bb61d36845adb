"""What a rule may ask about the values a node reads; the engine answers, and no rule needs to know how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from sardonyx.ir.shapes.expr import Atom, Expr, Size

Shape = tuple[Size, ...]
Contents = tuple[Size | None, ...]  # the elements in order; None for one that is not known
Typed = tuple[ir.DataType | None, Shape | None]


class Ask(Protocol):
    """Questions; an answer of None means that it is not known."""

    opset: Callable[[ir.Node], int]
    loops: int  # within whose bodies the question is asked

    def typed(self, value: ir.Value) -> Typed:
        """Element type and shape."""
        ...

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The dims."""
        ...

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type."""
        ...

    def declared(self, value: ir.Value) -> ir.DataType | None:
        """The element type that the file states, where it holds for every run."""
        ...

    def contents(self, value: ir.Value | None) -> Contents | None:
        """The elements of a small tensor of integers."""
        ...

    def ints(self, node: ir.Node, name: str, index: int) -> Sequence[int] | None:
        """Numbers that are an attribute in older opsets and an input in newer ones."""
        ...

    def small_array(self, value: ir.Value) -> np.ndarray | None:
        """What a small tensor certainly holds."""
        ...

    def unknown(self) -> Expr:
        """A dim of which nothing is known."""
        ...

    def settle(self, node: ir.Node, atom: Atom, size: Size) -> None:
        """Take note that a node could not run if an atom were not this size."""
        ...

    def assume(self, graph: ir.Graph, types: Sequence[Typed]) -> None:
        """Look at a body anew, with these types of its inputs."""
        ...
