"""Read what a graph requires of the sizes of its inputs: windows that fit, operands that broadcast, exact reshapes.

A requirement is a condition on symbolic sizes that can be evaluated for concrete ones. `violated` counts the conditions
that do not hold, which a search for sizes minimizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import BROADCASTS, CONVOLUTIONS, POOLS, QUANTIZED_CONVOLUTIONS
from sardonyx.ir.scopes import nested_graphs
from sardonyx.ir.shapes import Expr, Shape, Size, expr

_MOST = 400  # distinct requirements; more only make the search slower
_WINDOWS = CONVOLUTIONS | QUANTIZED_CONVOLUTIONS | POOLS | {"SpaceToDepth"}
_RESHAPES = frozenset(("Reshape", "Flatten", "SpaceToDepth", "DepthToSpace"))
_CHECKS: dict[str, Callable[[int, int], bool]] = {
    "at least": lambda one, other: one >= other,
    "at most": lambda one, other: one <= other,
    "same": lambda one, other: one == other,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on two products of dimensions."""

    kind: str  # a key of _CHECKS
    one: Shape
    other: Shape

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return whether it holds when the named dimensions have these sizes."""
        try:
            one, other = (math.prod(expr.value_of(dim, sizes) for dim in dims) for dims in (self.one, self.other))
        except ZeroDivisionError:
            return False
        return _CHECKS[self.kind](one, other)


@dataclass(slots=True)
class Requirements:
    """All conditions of a model on the sizes of the dimensions with these names."""

    facts: Facts
    names: frozenset[str]
    numbers: set[int] = field(default_factory=set[int])  # constants that occur in the conditions
    _conditions: dict[Requirement, None] = field(default_factory=dict[Requirement, None])

    @classmethod
    def of(cls, facts: Facts, names: Iterable[str]) -> Requirements:
        """Read the requirements of every node whose shapes are known."""
        requirements = cls(facts, frozenset(atom_name(name) for name in names))
        for graph in nested_graphs(facts.model.graph):
            for node in graph:
                requirements._read(node)
        return requirements

    def violated(self, sizes: Mapping[str, int]) -> int:
        """Return how many requirements do not hold."""
        values = {atom_name(name): size for name, size in sizes.items()}
        return sum(not requirement.holds(values) for requirement in self._conditions)

    def require(self, kind: str, one: Shape, other: Shape) -> None:
        """Add a requirement, unless it depends on no named dimension or on others too."""
        names = {name for dim in (*one, *other) for name in names_in(dim)}
        if one == other or not names or not names <= self.names or len(self._conditions) >= _MOST:
            return
        self._conditions[Requirement(kind, one, other)] = None
        for dim in (*one, *other):
            self.numbers.update(numbers_in(dim))

    def _read(self, node: ir.Node) -> None:
        op, shapes = node.op_type, [self.facts.shape(value) for value in node.inputs]
        result = self.facts.shape(node.outputs[0]) if node.outputs else None
        if op in _WINDOWS and result is not None:
            for dim in result[2:]:
                self.require("at least", (dim,), (1,))
        if op in BROADCASTS:
            self._require_broadcast(shapes)
        elif op in _RESHAPES and result is not None and shapes[0] is not None:
            self.require("same", shapes[0], result)
        elif op == "Concat":
            self._require_alike(node, shapes)
        elif op == "MatMul" and shapes[0] and shapes[1]:
            self.require("same", (shapes[0][-1],), (shapes[1][-2 if len(shapes[1]) > 1 else 0],))
            self._require_broadcast([shape[:-2] for shape in shapes if shape])
        elif op == "TopK":
            self._require_enough(node, shapes[0])
        elif op == "Gather":
            self._require_reached(node, shapes[0])

    def _require_broadcast(self, shapes: Iterable[Shape | None]) -> None:
        """Require equal dimensions, except constant ones of 1: a dynamic dimension should not broadcast by chance."""
        reversed_shapes = [shape[::-1] for shape in shapes if shape is not None]
        for first, second in itertools.pairwise(reversed_shapes):
            for one, other in zip(first, second, strict=False):
                if 1 not in (one, other):
                    self.require("same", (one,), (other,))

    def _require_alike(self, node: ir.Node, shapes: list[Shape | None]) -> None:
        first = shapes[0]
        axis = node.attributes.get_int("axis", 0)
        for shape in shapes[1:]:
            if first is None or shape is None or len(shape) != len(first):
                continue
            for place, (one, other) in enumerate(zip(first, shape, strict=True)):
                if place != axis % len(first) and one != other:
                    self.require("same", (one,), (other,))

    def _require_enough(self, node: ir.Node, shape: Shape | None) -> None:
        count = self.facts.ints(node.inputs[1]) if len(node.inputs) > 1 else None
        axis = node.attributes.get_int("axis", -1)
        if shape and count and -len(shape) <= axis < len(shape):
            self.require("at least", (shape[axis],), (count[0],))

    def _require_reached(self, node: ir.Node, shape: Shape | None) -> None:
        """Require that a constant index is within the dimension it selects from."""
        places = self.facts.ints(node.inputs[1])
        axis = node.attributes.get_int("axis", 0)
        if shape and places and -len(shape) <= axis < len(shape):
            self.require("at least", (shape[axis],), (max(place + 1 if place >= 0 else -place for place in places),))


def atom_name(name: str) -> str:
    """Return the name of a dimension as symbolic sizes write it."""
    return repr(expr.symbol(name))


def names_in(size: Size) -> Iterator[str]:
    """Yield the names of the dimensions that a size depends on; unknown sizes have names too."""
    if isinstance(size, Expr):
        for atom in {atom for atoms, _ in size.terms for atom in atoms}:
            if not atom.args:
                yield str(atom)
            for arg in atom.args:
                yield from names_in(arg)


def numbers_in(size: Size) -> Iterator[int]:
    """Yield the constants that occur in a size."""
    if isinstance(size, int):
        yield size
        return
    for atoms, factor in size.terms:
        yield abs(factor)
        for atom in atoms:
            for arg in atom.args:
                yield from numbers_in(arg)
