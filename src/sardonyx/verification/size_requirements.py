"""What a graph requires of the sizes of its inputs: windows that fit, operands that broadcast, reshapes that divide.

The symbolic shapes say which sizes meet where. A requirement is a condition on them that can be evaluated for given
sizes; `violated` counts those that do not hold, so that a search knows when it gets closer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import BROADCASTS, CONVOLUTIONS, POOLS, QUANTIZED_CONVOLUTIONS
from sardonyx.ir.scopes import bodies
from sardonyx.ir.shapes import Expr, Shape, Size, expr

_MOST = 400  # distinct requirements; more do not make the search better, only slower
_WINDOWS = CONVOLUTIONS | QUANTIZED_CONVOLUTIONS | POOLS | {"SpaceToDepth"}
_RESHAPES = frozenset(("Reshape", "Flatten", "SpaceToDepth", "DepthToSpace"))
_CHECKS: dict[str, Callable[[int, int], bool]] = {
    "at least": lambda one, other: one >= other,
    "at most": lambda one, other: one <= other,
    "same": lambda one, other: one == other,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on two products of dims."""

    kind: str  # a key of _CHECKS
    one: Shape
    other: Shape

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds when the named dims have these sizes."""
        try:
            one, other = (math.prod(expr.value_of(dim, sizes) for dim in dims) for dims in (self.one, self.other))
        except ZeroDivisionError:
            return False
        return _CHECKS[self.kind](one, other)


@dataclass(slots=True)
class Requirements:
    """All conditions of a model on the sizes of the dims with these names."""

    facts: Facts
    names: frozenset[str]
    numbers: set[int] = field(default_factory=set[int])  # that sizes are held against
    _found: dict[Requirement, None] = field(default_factory=dict[Requirement, None])

    @classmethod
    def of(cls, facts: Facts, names: Iterable[str]) -> Requirements:
        """Read them off every node whose shapes are known."""
        made = cls(facts, frozenset(atom_name(name) for name in names))
        for graph in _graphs(facts.model.graph):
            for node in graph:
                made._read(node)
        return made

    def violated(self, sizes: Mapping[str, int]) -> int:
        """How many do not hold."""
        known = {atom_name(name): size for name, size in sizes.items()}
        return sum(not requirement.holds(known) for requirement in self._found)

    def require(self, kind: str, one: Shape, other: Shape) -> None:
        """Add one, unless it says nothing about the named dims."""
        asked = {name for dim in (*one, *other) for name in names_in(dim)}
        if one == other or not asked or not asked <= self.names or len(self._found) >= _MOST:
            return
        self._found[Requirement(kind, one, other)] = None
        for dim in (*one, *other):
            self.numbers.update(numbers_in(dim))

    def _read(self, node: ir.Node) -> None:
        op, shapes = node.op_type, [self.facts.shape(value) for value in node.inputs]
        made = self.facts.shape(node.outputs[0]) if node.outputs else None
        if op in _WINDOWS and made is not None:
            for dim in made[2:]:
                self.require("at least", (dim,), (1,))
        if op in BROADCASTS:
            self._require_broadcast(shapes)
        elif op in _RESHAPES and made is not None and shapes[0] is not None:
            self.require("same", shapes[0], made)
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
        """The same dims, but for those that are always 1: a dim that is 1 by chance is none that a caller relies on."""
        known = [shape[::-1] for shape in shapes if shape is not None]
        for first, second in itertools.pairwise(known):
            for one, other in zip(first, second, strict=False):
                if 1 not in (one, other):
                    self.require("same", (one,), (other,))

    def _require_alike(self, node: ir.Node, shapes: list[Shape | None]) -> None:
        first = shapes[0]
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        for shape in shapes[1:]:
            if first is None or shape is None or len(shape) != len(first):
                continue
            for place, (one, other) in enumerate(zip(first, shape, strict=True)):
                if place != axis % len(first) and one != other:
                    self.require("same", (one,), (other,))

    def _require_enough(self, node: ir.Node, shape: Shape | None) -> None:
        count = self.facts.ints(node.inputs[1]) if len(node.inputs) > 1 else None
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
        if shape and count and -len(shape) <= axis < len(shape):
            self.require("at least", (shape[axis],), (count[0],))

    def _require_reached(self, node: ir.Node, shape: Shape | None) -> None:
        """A constant index is within the dim it picks from."""
        places = self.facts.ints(node.inputs[1])
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if shape and places and -len(shape) <= axis < len(shape):
            self.require("at least", (shape[axis],), (max(place + 1 if place >= 0 else -place for place in places),))


def atom_name(name: str) -> str:
    """How the symbolic sizes write a dim's name."""
    return repr(expr.symbol(name))


def names_in(size: Size) -> Iterator[str]:
    """The named dims it depends on; what is not known counts as a name too."""
    if isinstance(size, Expr):
        for atom in {atom for atoms, _ in size.terms for atom in atoms}:
            if not atom.args:
                yield str(atom)
            for arg in atom.args:
                yield from names_in(arg)


def numbers_in(size: Size) -> Iterator[int]:
    """The numbers that occur in it."""
    if isinstance(size, int):
        yield size
        return
    for atoms, factor in size.terms:
        yield abs(factor)
        for atom in atoms:
            for arg in atom.args:
                yield from numbers_in(arg)


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    yield graph
    for node in graph:
        for _, body in bodies(node):
            yield from _graphs(body)
