"""Open dims: tensors whose sizes are symbols, and what torch says of those symbols as sizes of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, larger, multiply, remainder, smaller, symbol, unknown

Axes = Mapping[str, Mapping[int, str]]  # input -> axis -> name of the dim
_SMALLEST = 2  # torch takes sizes 0 and 1 for special: an example of these sizes stands for all others too
_PRETENDED = 5  # what such an example is recorded with
_OPERATORS: Mapping[str, Callable[[Size, Size], Size]] = {  # as sympy and torch call them
    "Add": add,
    "Mul": multiply,
    "FloorDiv": floor_quotient,
    "CleanDiv": floor_quotient,
    "Mod": remainder,
    "PythonMod": remainder,
    "Max": larger,
    "Min": smaller,
}


class OpenDims:
    """The dims that were asked to stay open, as symbols of torch."""

    def __init__(self, axes: Axes, tensors: Mapping[str, torch.Tensor]) -> None:
        """A dim goes by its name: all axes of one name are one size.

        Raises:
            UsageError: where an axis is not there, or two axes of one name have different sizes.
        """
        self.env = ShapeEnv(duck_shape=False)
        self.examples: dict[str, int] = {}
        self._sizes: dict[str, Any] = {}  # torch.SymInt, whose insides are untyped
        self._axes = axes
        for name, opened in axes.items():
            if name not in tensors:
                raise UsageError(f"no input is called {name!r}", hint=f"inputs: {', '.join(tensors)}")
            for axis, dim in opened.items():
                self._open(name, tensors[name], axis, dim)
        self._serials: dict[str, Size] = {}
        self._known: dict[Any, Size] = {}

    def _open(self, name: str, tensor: torch.Tensor, axis: int, dim: str) -> None:
        if not -tensor.dim() <= axis < tensor.dim():
            raise UsageError(f"{name} has no axis {axis}", hint=f"it has {tensor.dim()}")
        size = tensor.shape[axis]
        if self.examples.setdefault(dim, size) != size:
            raise UsageError(
                f"{dim} is {self.examples[dim]} in one input and {size} in {name}", hint="give them different names"
            )
        if dim not in self._sizes:
            shown = size if size >= _SMALLEST else _PRETENDED
            source = ConstantSource(dim)
            made = self.env.create_symbol(shown, source, DimDynamic.DYNAMIC, None)
            self._sizes[dim] = self.env.create_symintnode(made, hint=shown, source=source)

    @property
    def is_vague(self) -> bool:
        """Whether some size could not be said in terms of the open dims."""
        return bool(self._serials)

    def shape_of(self, name: str, tensor: torch.Tensor) -> list[int | torch.SymInt]:
        """The tensor's shape with its open dims in it."""
        shape: list[int | torch.SymInt] = list(tensor.shape)
        for axis, dim in self._axes.get(name, {}).items():
            shape[axis] = self._sizes[dim]
        return shape

    def settled(self) -> tuple[dict[str, int], list[str]]:
        """The dims that stayed open with their example sizes, and what is to be said of the others."""
        notes: list[str] = []
        firsts: dict[Any, str] = {}
        still: dict[str, int] = {}
        for name, size in self._sizes.items():
            found = self.env.simplify(size.node.expr)
            if found.is_number:
                notes.append(f"{name} is not open: the model insists on {found}")
            elif found in firsts:
                notes.append(f"{name} is always equal to {firsts[found]}, and goes by that name")
            else:
                firsts[found] = name
                still[name] = self.examples[name]
        return still, notes

    def sized(self, size: Any) -> Size:
        """A size of torch as one of ours."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._known:
            self._known[expression] = self._translated(self.env.simplify(expression))
        return self._known[expression]

    def _translated(self, expression: Any) -> Size:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._named(expression)
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return reduce(multiply, [self._translated(expression.base)] * int(expression.exp))
        made = _OPERATORS.get(expression.func.__name__)
        if made is None:
            return self._unknown(expression)
        parts = [self._translated(argument) for argument in expression.args]
        return reduce(made, parts)

    def _named(self, found: Any) -> Size:
        for name, size in self._sizes.items():
            if self.env.simplify(size.node.expr) == found:
                return symbol(name)
        return self._unknown(found)

    def _unknown(self, expression: Any) -> Size:
        return self._serials.setdefault(str(expression), unknown(len(self._serials)))
