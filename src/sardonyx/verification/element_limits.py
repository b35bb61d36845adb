"""Limit the elements of a trial: of its inputs together, and of the largest value that the graph computes from them.

Nine dynamic dimensions of 7 to 28 are 10¹⁰ elements, and an outer product of two inputs is far larger than both. The
elements follow from the symbolic shapes, before anything is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import nested_graphs
from sardonyx.ir.shapes import Shape, expr
from sardonyx.verification.size_requirements import atom_name

MOST_INPUT_ELEMENTS = 1 << 22
MOST_VALUE_ELEMENTS = 1 << 24
HUGE = 1 << 28  # input elements of a trial that is never run
_KEPT = 64  # shapes that are evaluated for every choice of sizes: the largest ones
_TYPICAL = 8  # the size at which they are compared


class Footprint(Struct, frozen=True):
    """The shapes that decide how many elements a trial has, and the limits for them.

    If the smallest sizes have more than half of the usual limit, one dimension of 2 must fit too.
    """

    inputs: tuple[Shape, ...]
    values: tuple[Shape, ...]
    limits: tuple[int, int]

    @classmethod
    def of(cls, facts: Facts, inputs: Sequence[ir.Value], names: Iterable[str]) -> Footprint:
        """Read the shapes of a model whose dynamic dimensions have these names."""
        atoms = frozenset(atom_name(name) for name in names)

        def known(values: Iterable[ir.Value]) -> list[Shape]:
            """Return the shapes without the dimensions that depend on values."""
            shapes = (facts.shape(value) or () for value in values)
            return [tuple(dim for dim in shape if atoms.issuperset(expr.names_in((dim,)))) for shape in shapes]

        computed = (value for graph in nested_graphs(facts.model.graph) for node in graph for value in node.outputs)
        typical = dict.fromkeys(atoms, _TYPICAL)
        shapes = sorted(dict.fromkeys(known(computed)), key=lambda shape: _elements(shape, typical), reverse=True)
        unlimited = cls(tuple(known(inputs)), tuple(shapes[:_KEPT]), (0, 0))
        least = unlimited._count(dict.fromkeys(atoms, 1))
        usual = (MOST_INPUT_ELEMENTS, MOST_VALUE_ELEMENTS)
        limits = [max(most, count + min(count, most)) for most, count in zip(usual, least, strict=True)]
        return cls(unlimited.inputs, unlimited.values, (limits[0], limits[1]))

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a trial is within the limits if the dynamic dimensions have these sizes."""
        counts = self._count({atom_name(name): size for name, size in sizes.items()})
        return all(count <= most for count, most in zip(counts, self.limits, strict=True))

    def _count(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        largest = max((_elements(shape, sizes) for shape in self.values), default=0)
        return sum(_elements(shape, sizes) for shape in self.inputs), largest


def _elements(shape: Shape, sizes: Mapping[str, int]) -> int:
    try:
        return math.prod(max(expr.value_of(dim, sizes), 0) for dim in shape)
    except ZeroDivisionError:  # the model does not accept these sizes
        return 0
