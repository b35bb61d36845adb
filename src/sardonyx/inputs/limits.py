"""Limit the elements of a trial, of its inputs together and of the largest value, and its work.

Nine dynamic dimensions of 7 to 28 are 10¹⁰ elements, and an outer product of two inputs is far larger than both. The
work is the number of multiplications in products and convolutions, and of elements that other nodes compute; a body of
Scan counts once for every step. All follow from the symbolic shapes, before anything is run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.inputs.requirements import atom_name
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import bodies
from sardonyx.ir.shapes import Shape, Size, expr

MOST_INPUT_ELEMENTS = 1 << 22  # of all inputs of a trial together
MOST_VALUE_ELEMENTS = 1 << 24  # of the largest value
MOST_WORK = 1 << 36  # operations: some seconds
_HUGE = (  # of a trial that is never run
    (1 << 28, "an input of {:.1e} elements"),
    (1 << 29, "a value of {:.1e} elements"),
    (1 << 40, "a run of {:.1e} operations"),
)
_EVALUATED_SHAPES = 64  # shapes of values that are evaluated for every choice of sizes: the largest ones
_TYPICAL_SIZE = 8  # the size at which they are compared


class Footprint(Struct, frozen=True):
    """The shapes that decide how many elements and how much work a trial has, and the limits for them.

    If the smallest sizes have more than half of the usual limit, one dimension of 2 must fit too.
    """

    inputs: tuple[Shape, ...]
    values: tuple[Shape, ...]
    loops: tuple[tuple[Shape, int], ...]  # the dimensions that nodes run over, with the number of such nodes
    limits: tuple[int, ...]

    @classmethod
    def of(cls, facts: Facts, inputs: Sequence[ir.Value], names: Iterable[str]) -> Footprint:
        """Read the shapes of a model whose dynamic dimensions have these names."""
        atoms = frozenset(atom_name(name) for name in names)

        def known(shapes: Iterable[Shape | None]) -> list[Shape]:
            """Return the shapes without the dimensions that depend on values."""
            return [tuple(dim for dim in shape or () if atoms.issuperset(expr.names_in((dim,)))) for shape in shapes]

        nodes = list(_nodes(facts.model.graph, facts))
        typical = dict.fromkeys(atoms, _TYPICAL_SIZE)
        computed = dict.fromkeys(known(facts.shape(value) for node, _ in nodes for value in node.outputs))
        values = sorted(computed, key=lambda shape: _elements(shape, typical), reverse=True)
        loops = Counter(known((*steps, *shape) for node, steps in nodes for shape in _loops(node, facts)))
        unlimited = cls(
            tuple(known(map(facts.shape, inputs))), tuple(values[:_EVALUATED_SHAPES]), tuple(loops.items()), ()
        )
        least = unlimited._count(dict.fromkeys(atoms, 1))
        usual = (MOST_INPUT_ELEMENTS, MOST_VALUE_ELEMENTS, MOST_WORK)
        limits = tuple(max(most, count + min(count, most)) for most, count in zip(usual, least, strict=True))
        return cls(unlimited.inputs, unlimited.values, unlimited.loops, limits)

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a trial is within the limits if the dynamic dimensions have these sizes."""
        return all(count <= most for count, most in zip(self._counted(sizes), self.limits, strict=True))

    def excess(self, sizes: Mapping[str, int]) -> str | None:
        """Return what is too large in a trial that would need gigabytes or hours, or None.

        A dimension of 0 counts as 1: numpy makes no array of 0 × 2⁶³ elements either.
        """
        pairs = zip(self._counted(sizes, least=1), _HUGE, strict=True)
        return next((text.format(count) for count, (most, text) in pairs if count > most), None)

    def work(self, sizes: Mapping[str, int]) -> int:
        """Return the number of operations in a trial."""
        return self._counted(sizes)[2]

    def _counted(self, sizes: Mapping[str, int], least: int = 0) -> tuple[int, int, int]:
        return self._count({atom_name(name): size for name, size in sizes.items()}, least)

    def _count(self, sizes: Mapping[str, int], least: int = 0) -> tuple[int, int, int]:
        largest = max((_elements(shape, sizes, least) for shape in self.values), default=0)
        work = sum(count * _elements(shape, sizes, least) for shape, count in self.loops)
        return sum(_elements(shape, sizes, least) for shape in self.inputs), largest, work


def _nodes(graph: ir.Graph | ir.Function, facts: Facts, steps: Shape = ()) -> Iterator[tuple[ir.Node, Shape]]:
    """Yield all nodes, also those in bodies, with the numbers of steps of the Scans around them."""
    for node in graph:
        yield node, steps
        for _, body in bodies(node):
            yield from _nodes(body, facts, (*steps, *_steps(node, facts)))


def _steps(node: ir.Node, facts: Facts) -> Shape:
    """Return the number of steps of a Scan, and nothing for other nodes and unknown numbers."""
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    if node.op_type != "Scan" or not 0 < scanned <= len(node.inputs):
        return ()
    axis = (node.attributes.get_ints("scan_input_axes") or [0])[0]
    shape = facts.shape(node.inputs[-scanned]) or ()
    return (shape[axis],) if -len(shape) <= axis < len(shape) else ()


def _loops(node: ir.Node, facts: Facts) -> Iterator[Shape]:
    """Yield all dimensions that a node runs over: those of its results, and those that are summed."""
    shapes = [facts.shape(value) for value in node.inputs]
    first, second = [*shapes, None, None][:2]
    result = facts.shape(node.outputs[0]) if node.outputs else None
    if first is None or second is None or result is None:
        yield from (facts.shape(value) or () for value in node.outputs)
        return
    match node.op_type:
        case "MatMul" | "MatMulInteger" | "FusedMatMul" | "Gemm":
            summed = -2 if node.attributes.get_int("transA", 0) and len(first) > 1 else -1
            yield (*result, *first[summed:][:1])
        case "Conv" | "ConvInteger":
            yield (*result, *second[1:])
        case "ConvTranspose":
            yield (*first, *second[1:])
        case "Einsum":
            yield from _einsum_product(node.attributes.get_string("equation", ""), shapes)
        case "Attention":  # queries × keys, and as many × values
            yield (2, *first, *second[-2:-1])
        case _:
            yield from (facts.shape(value) or () for value in node.outputs)


def _einsum_product(equation: str, shapes: Sequence[Shape | None]) -> Iterator[Shape]:
    """Yield every dimension of an Einsum once, as far as its terms have no ellipsis."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    labelled: dict[str, Size] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if shape is not None and len(term) == len(shape):
            labelled.update(zip(term, shape, strict=True))
    yield tuple(labelled.values())


def _elements(shape: Shape, sizes: Mapping[str, int], least: int = 0) -> int:
    try:
        return math.prod(max(expr.value_of(dim, sizes), least) for dim in shape)
    except ZeroDivisionError:  # the model does not accept these sizes
        return 0
