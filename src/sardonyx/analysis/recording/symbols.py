"""Dynamic dimensions of a recording: tensors with symbolic sizes, and the conversion of torch's sizes to `Size`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, larger, multiply, remainder, smaller, symbol, unknown

Axes = Mapping[str, Mapping[int, str]]  # input -> axis -> name of the dimension
_SMALLEST = 2  # torch specializes on sizes 0 and 1: an example of such a size cannot be traced as dynamic
_REPLACEMENT = 5  # the size that such an example is recorded with
_OPERATORS: Mapping[str, Callable[[Size, Size], Size]] = {  # by their names in sympy and torch
    "Add": add,
    "Mul": multiply,
    "FloorDiv": floor_quotient,
    "CleanDiv": floor_quotient,
    "Mod": remainder,
    "PythonMod": remainder,
    "Max": larger,
    "Min": smaller,
}


class DynamicDims:
    """The requested dynamic dimensions as symbols of torch."""

    def __init__(self, axes: Axes, tensors: Mapping[str, torch.Tensor]) -> None:
        """Create one symbol for each name: axes with the same name have the same size.

        Raises:
            UsageError: If an axis does not exist, or two axes with one name have different sizes.
        """
        self.env = ShapeEnv(duck_shape=False)
        self.examples: dict[str, int] = {}
        self._sizes: dict[str, Any] = {}  # torch.SymInt, whose node is untyped
        self._axes = axes
        for name, names in axes.items():
            if name not in tensors:
                raise UsageError(f"there is no input {name!r}", hint=f"inputs: {', '.join(tensors)}")
            for axis, dim in names.items():
                self._add(name, tensors[name], axis, dim)
        self._unknowns: dict[str, Size] = {}
        self._converted: dict[Any, Size] = {}

    def _add(self, name: str, tensor: torch.Tensor, axis: int, dim: str) -> None:
        if not -tensor.dim() <= axis < tensor.dim():
            raise UsageError(f"{name} has no axis {axis}", hint=f"its rank is {tensor.dim()}")
        size = tensor.shape[axis]
        if self.examples.setdefault(dim, size) != size:
            raise UsageError(
                f"{dim} is {self.examples[dim]} in one input and {size} in {name}", hint="give them different names"
            )
        if dim not in self._sizes:
            hint = size if size >= _SMALLEST else _REPLACEMENT
            source = ConstantSource(dim)
            created = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, None)
            self._sizes[dim] = self.env.create_symintnode(created, hint=hint, source=source)

    @property
    def is_vague(self) -> bool:
        """Whether some size could not be expressed in the dynamic dimensions."""
        return bool(self._unknowns)

    def shape_of(self, name: str, tensor: torch.Tensor) -> list[int | torch.SymInt]:
        """Return the shape of a tensor with its dynamic dimensions as symbols."""
        shape: list[int | torch.SymInt] = list(tensor.shape)
        for axis, dim in self._axes.get(name, {}).items():
            shape[axis] = self._sizes[dim]
        return shape

    def settled(self) -> tuple[dict[str, int], list[str]]:
        """Return the dimensions that are dynamic after the run with their example sizes, and notes on the others."""
        notes: list[str] = []
        names: dict[Any, str] = {}
        dynamic: dict[str, int] = {}
        for name, size in self._sizes.items():
            expression = self.env.simplify(size.node.expr)
            if expression.is_number:
                notes.append(f"{name} is not dynamic: the model requires {expression}")
            elif expression in names:
                notes.append(f"{name} is always equal to {names[expression]}, and is replaced by it")
            else:
                names[expression] = name
                dynamic[name] = self.examples[name]
        return dynamic, notes

    def convert(self, size: Any) -> Size:
        """Convert a size of torch."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._converted:
            self._converted[expression] = self._translated(self.env.simplify(expression))
        return self._converted[expression]

    def _translated(self, expression: Any) -> Size:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._named(expression)
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return reduce(multiply, [self._translated(expression.base)] * int(expression.exp))
        operator = _OPERATORS.get(expression.func.__name__)
        if operator is None:
            return self._unknown(expression)
        return reduce(operator, [self._translated(argument) for argument in expression.args])

    def _named(self, expression: Any) -> Size:
        for name, size in self._sizes.items():
            if self.env.simplify(size.node.expr) == expression:
                return symbol(name)
        return self._unknown(expression)

    def _unknown(self, expression: Any) -> Size:
        return self._unknowns.setdefault(str(expression), unknown(len(self._unknowns)))
