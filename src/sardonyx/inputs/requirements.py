"""Read what a graph requires of the sizes of its inputs: windows that fit, operands that broadcast, exact reshapes.

A requirement is a condition on symbolic sizes that can be evaluated for concrete ones. `violated` counts the conditions
that do not hold, which a search for sizes minimizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import (
    ARITHMETIC,
    BROADCASTS,
    CASTS,
    COMPARISONS,
    CONVOLUTIONS,
    MOVES_DATA,
    POOLS,
    QUANTIZED_CONVOLUTIONS,
    READS_SHAPE,
    RECURRENT,
)
from sardonyx.ir.scopes import bodies, label, nested_graphs
from sardonyx.ir.shapes import Expr, Shape, Size, expr

_MOST_CONDITIONS = 400  # distinct requirements; more only make the search slower
_WINDOWS = CONVOLUTIONS | QUANTIZED_CONVOLUTIONS | POOLS | {"SpaceToDepth"}
_RESHAPES = frozenset(("Reshape", "Flatten", "SpaceToDepth", "DepthToSpace"))
_CHECKS: dict[str, Callable[[int, int], bool]] = {
    "at least": lambda one, other: one >= other,
    "at most": lambda one, other: one <= other,
    "same": lambda one, other: one == other,
}


# Dimensions that must be equal: (operand, axis) of one and of the other. Weights have constant sizes, so that most of
# these fix a dimension of an input.
_EQUAL: Mapping[str, tuple[tuple[int, int, int, int], ...]] = {
    **dict.fromkeys(
        ("BatchNormalization", "GroupNormalization", "InstanceNormalization"), ((0, 1, 1, 0), (0, 1, 2, 0))
    ),
    **dict.fromkeys(RECURRENT, ((0, 2, 1, 2), (0, 1, 4, 0), (0, 1, 5, 1), (5, 2, 2, 2), (0, 1, 6, 1))),
    "ConvTranspose": ((0, 1, 1, 0),),
    "MatMul": ((0, -1, 1, -2),),
    "MatMulInteger": ((0, -1, 1, -2),),
    "QLinearMatMul": ((0, -1, 3, -2),),
    "FusedMatMul": ((0, -1, 1, -2),),
    "Det": ((0, -1, 0, -2),),
    "GridSample": ((0, 0, 1, 0),),
    "RoiAlign": ((1, 0, 2, 0),),
    "SkipLayerNormalization": ((0, 0, 1, 0), (0, 1, 1, 1), (0, -1, 1, -1), (0, -1, 2, 0)),
    "SkipSimplifiedLayerNormalization": ((0, 0, 1, 0), (0, 1, 1, 1), (0, -1, 1, -1), (0, -1, 2, 0)),
}
_CONV_WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}  # the operand with the weights
_LAST_AXES = frozenset(("LayerNormalization", "PRelu", "RMSNormalization", "SimplifiedLayerNormalization"))
_PER_CHANNEL = frozenset(("DequantizeLinear", "QuantizeLinear"))


class Requirement(Struct, frozen=True):
    """A condition on two products of dimensions."""

    kind: str  # a key of _CHECKS
    one: Shape
    other: Shape

    def holds(self, sizes: Mapping[str, int], *, broadcasts: bool = False) -> bool:
        """Return whether it holds when the named dimensions have these sizes, or may hold because 1 broadcasts."""
        try:
            products = self._products(sizes)
        except ZeroDivisionError:
            return False
        return _CHECKS[self.kind](*products) or (broadcasts and self.kind == "same" and 1 in products)

    def root(self, sizes: Mapping[str, int], name: str) -> int | None:
        """Return the size of one dimension at which both products are equal, if they are linear in it."""
        try:
            ends = [self._products({**sizes, name: size}) for size in (0, 1)]
        except ZeroDivisionError:
            return None
        start, end = (one - other for one, other in ends)
        return -start // (end - start) if end != start and start % (end - start) == 0 else None

    def _products(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        one, other = (math.prod(expr.value_of(dim, sizes) for dim in dims) for dims in (self.one, self.other))
        return one, other


class Requirements(Struct):
    """All conditions of a model on the sizes of the dimensions with these names."""

    facts: Facts
    names: frozenset[str]
    numbers: set[int] = field(default_factory=set[int])  # constants that occur in the conditions
    _conditions: dict[Requirement, None] = field(default_factory=dict[Requirement, None])

    @classmethod
    def of(cls, facts: Facts, names: Iterable[str]) -> Requirements:
        """Read the requirements of every node whose shapes are known."""
        requirements = cls(facts, frozenset(atom_name(name) for name in names))
        for graph in nested_graphs(facts.model.graph) if requirements.names else ():
            for node in graph:
                requirements._read(node)
        return requirements

    def violated(self, sizes: Mapping[str, int]) -> int:
        """Return how many requirements do not hold."""
        values = {atom_name(name): size for name, size in sizes.items()}
        return sum(not requirement.holds(values) for requirement in self._conditions)

    def rejects(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the model certainly rejects these sizes; dimensions of 1 may broadcast."""
        values = {atom_name(name): size for name, size in sizes.items()}
        return any(not requirement.holds(values, broadcasts=True) for requirement in self._conditions)

    def solutions(self, sizes: Mapping[str, int], name: str) -> list[int]:
        """Return the sizes of one dimension that meet one of the requirements which do not hold, given the others."""
        values, atom = {atom_name(name): size for name, size in sizes.items()}, atom_name(name)
        broken = (requirement for requirement in self._conditions if not requirement.holds(values))
        roots = (requirement.root(values, atom) for requirement in broken)
        return sorted({root for root in roots if root is not None and 0 < root < _NO_LIMIT})

    def require(self, kind: str, one: Shape, other: Shape) -> None:
        """Add a requirement, unless it depends on no named dimension or on others too."""
        names = set(expr.names_in((*one, *other)))
        if one == other or not names or not names <= self.names or len(self._conditions) >= _MOST_CONDITIONS:
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
            axis = node.attributes.get_int("axis", 0)
            alike = [shape for shape in shapes if shape is not None and len(shape) == len(shapes[0] or ())]
            for shape in alike if shapes[0] else ():
                for place, (one, other) in enumerate(zip(shapes[0] or (), shape, strict=True)):
                    if place != axis % len(shape):
                        self.require("same", (one,), (other,))
        elif op == "Einsum":  # dimensions with the same letter are equal
            seen: dict[str, Size] = {}
            terms = node.attributes.get_string("equation", "").replace(" ", "").partition("->")[0].split(",")
            for term, shape in zip(terms, shapes, strict=False):
                if shape is not None and len(term) == len(shape) and term.isalpha():
                    for letter, dim in zip(term, shape, strict=True):
                        self.equal(seen.setdefault(letter, dim), dim)
        elif op in ("TopK", "Gather") and len(node.inputs) > 1:  # a constant index is within the dimension
            places = self.facts.ints(node.inputs[1])
            dim = _dim(shapes, 0, node.attributes.get_int("axis", -1 if op == "TopK" else 0))
            if places and dim is not None:
                least = places[:1] if op == "TopK" else [place + 1 if place >= 0 else -place for place in places]
                self.require("at least", (dim,), (max(least),))
        elif op in ("Squeeze", "Split"):
            name = "axes" if op == "Squeeze" else "split"
            stated = self.facts.ints(node.inputs[1]) if len(node.inputs) > 1 else node.attributes.get_ints(name, ())
            for axis in (stated or ()) if op == "Squeeze" else ():
                self.equal(_dim(shapes, 0, axis), 1)
            if op == "Split" and stated:
                self.equal(_dim(shapes, 0, node.attributes.get_int("axis", 0)), sum(stated))
        elif op == "Gemm":
            inner = [1 - node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)]
            self.equal(_dim(shapes, 0, inner[0]), _dim(shapes, 1, inner[1]))
            self._require_broadcast((result, *shapes[2:3]))
        elif op == "MatMul":
            self._require_broadcast([shape[:-2] for shape in shapes if shape])
        self._require_weights(node, shapes)

    def _require_weights(self, node: ir.Node, shapes: Sequence[Shape | None]) -> None:
        """Require the sizes that the weights of an operator have."""
        op = node.op_type
        for operand, axis, other, other_axis in _EQUAL.get(op, ()) if not node.attributes.get_int("layout", 0) else ():
            self.equal(_dim(shapes, operand, axis), _dim(shapes, other, other_axis))
        if op in _CONV_WEIGHTS:
            channels, group = _dim(shapes, _CONV_WEIGHTS[op], 1), node.attributes.get_int("group", 1)
            self.equal(_dim(shapes, 0, 1), None if channels is None else expr.multiply(channels, group))
        elif op in _LAST_AXES:
            self._require_broadcast(shapes[:2])
            self._require_broadcast((shapes[0], *shapes[2:3]) if op != "PRelu" else ())
        elif op in _PER_CHANNEL and len(shapes) > 1 and len(shapes[1] or ()) == 1:
            self.equal(_dim(shapes, 0, node.attributes.get_int("axis", 1)), _dim(shapes, 1, 0))

    def equal(self, one: Size | None, other: Size | None) -> None:
        """Require that two dimensions are equal, if both are known."""
        if one is not None and other is not None:
            self.require("same", (one,), (other,))

    def _require_broadcast(self, shapes: Iterable[Shape | None]) -> None:
        """Require equal dimensions, except constant ones of 1: a dynamic dimension should not broadcast by chance."""
        reversed_shapes = [shape[::-1] for shape in shapes if shape is not None]
        for first, second in itertools.pairwise(reversed_shapes):
            for one, other in zip(first, second, strict=False):
                if 1 not in (one, other):
                    self.require("same", (one,), (other,))


def _dim(shapes: Sequence[Shape | None], operand: int, axis: int) -> Size | None:
    """Return one dimension of an operand, or None if there is none or it is not known."""
    shape = shapes[operand] if operand < len(shapes) else None
    if not shape:
        return None
    if len(shape) == 1 and axis == -2:
        axis = 0  # the second operand of a product may be a vector
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def atom_name(name: str) -> str:
    """Return the name of a dimension as symbolic sizes write it."""
    return repr(expr.symbol(name))


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


# Find the numbers that a graph compares its own sizes with: attention windows, position tables, limits, crops.
#
# A sliding window of 32 has no effect on sequences of up to 32. The trials need lengths on both sides of each such
# number. The walk follows values computed from shapes to where they meet a constant.

_COMPARES = COMPARISONS | {"Clip", "Div", "Max", "Min", "Mod", "Trilu"}
_MOVES = MOVES_DATA | CASTS  # their results hold elements of the first operand only
# Operators after which a number is still a position or a size, or a difference of them.
_PASSES = _MOVES | ARITHMETIC | {
    "Abs", "Ceil", "Clip", "Concat", "ConstantOfShape", "CumSum", "Floor", "If", "Loop", "Max", "Min", "Mod", "Neg",
    "NonZero", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Where",
}  # fmt: skip
_KEEPS = _MOVES | {"Range", "Concat"}  # after these a position is still the same position
_NO_LIMIT = 1 << 24  # a larger number means "no limit"
_READ_ELEMENTS = 64  # larger constants are not read


class Bounds(Struct, frozen=True):
    """The numbers that one dimension is compared with."""

    compared: tuple[int, ...] = ()  # numbers that its positions are compared with
    rows: tuple[int, ...] = ()  # sizes of the tables that its positions index, which the dimension cannot exceed
    exact: tuple[int, ...] = ()  # numbers that it is compared with for equality, or divided by for a remainder
    window: int | None = None  # a length at which the windows of convolutions and pools along it fit

    @property
    def limit(self) -> int | None:
        """The largest size that the tables allow; None without tables."""
        return min(self.rows, default=None)

    @property
    def test_lengths(self) -> list[int]:
        """Sizes beyond each compared number and window, as far as the tables allow, and the limit itself, in order."""
        limit = [] if self.limit is None else [self.limit]
        window = [] if self.window is None else [self.window]
        return sorted({min([number, *limit]) for number in (*(n + 3 for n in self.compared), *window)} | set(limit))


class _Walk(Struct):
    """Visits every node in order and collects what sizes are compared with."""

    facts: Facts
    names: dict[str, str]  # the name in symbolic sizes → the name declared by the inputs
    found: dict[tuple[str, str], set[int]] = field(default_factory=dict[tuple[str, str], set[int]])  # by kind and name
    # the dimensions that a value is computed from, and whether it is an unchanged position
    of: dict[ir.Value, tuple[frozenset[str], bool]] = field(default_factory=dict[ir.Value, tuple[frozenset[str], bool]])

    def visit(self, graph: ir.Graph) -> None:
        for node in graph:
            self._visit(node)
            for _, body in bodies(node):
                if node.op_type == "Loop" and node.inputs[0] is not None and node.inputs[0] in self.of:
                    self.of[body.inputs[0]] = self.of[node.inputs[0]]  # counts up to it
                self.visit(body)

    def _visit(self, node: ir.Node) -> None:
        op, shape = node.op_type, (self.facts.shape(node.inputs[0]) if node.inputs else None) or ()
        operands = node.inputs[:1] if op in _MOVES else node.inputs
        sized = [self.of[value] for value in operands if value is not None and value in self.of]
        if op in READS_SHAPE or (op == "CumSum" and not sized):
            if op == "CumSum":  # a running sum of a mask counts positions
                axes = self.facts.ints(node.inputs[1]) or ()
                names = self._named(shape[axis] for axis in axes[:1] if -len(shape) <= axis < len(shape))
            else:
                names = self._contained(node.outputs[0]) or self._named(shape)
            if names:
                self.of[node.outputs[0]] = (names, True)
            return
        if op == "Slice" and shape:
            self._crop(node, shape)
        if op == "Trilu":
            self._compare(node, self._named(shape[-2:]))
        if op == "GroupQueryAttention" and "local_window_size" in node.attributes:
            self._note("compared", self._named(shape[1:]), [node.attributes["local_window_size"].as_int()])
        if op in ("Gather", "GatherElements"):
            self._look_up(node, shape)
        dims = frozenset[str]().union(*(names for names, _ in sized))
        if sized and op in _COMPARES:
            self._compare(node, dims)
        if sized and op in _PASSES:
            plain = op in _KEEPS and all(unchanged for _, unchanged in sized)
            for output in node.outputs:
                self.of[output] = (self._contained(output) or dims, plain)

    def _contained(self, value: ir.Value) -> frozenset[str]:
        """Return the dimensions in a small tensor of sizes, which are fewer than all of the shape it came from.

        The number of a size that is a minimum or maximum with a number is recorded.
        """
        sizes = [size for size in self.facts.contents(value) or () if size is not None]
        monomials = [atoms for size in sizes if isinstance(size, Expr) for atoms, _ in size.terms]
        for atom in {atom for atoms in monomials for atom in atoms if atom.kind in ("min", "max")}:
            numbers = [number for arg in atom.args for number in numbers_in(arg)]
            self._note("compared", self._named(atom.args), numbers)
        return self._named(sizes)

    def _named(self, sizes: Iterable[Size]) -> frozenset[str]:
        return frozenset(self.names[name] for name in expr.names_in(sizes) if name in self.names)

    def _note(self, kind: str, dims: Iterable[str], numbers: Iterable[float]) -> None:
        sizes = {abs(int(number)) for number in numbers if abs(number) < _NO_LIMIT}
        for dim in dims:
            self.found.setdefault((kind, dim), set()).update(size for size in sizes if size > 1)

    def _compare(self, node: ir.Node, dims: frozenset[str]) -> None:
        numbers: list[float] = []
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            array = self.facts.array(
                producer.inputs[0] if producer is not None and producer.op_type == "Cast" else value
            )
            if array is not None and 0 < array.size <= _READ_ELEMENTS and array.dtype.kind in "iuf":
                numbers += map(float, array.reshape(-1))
        self._note("compared", dims, numbers)
        if node.op_type in ("Equal", "Mod"):
            self._note("exact", dims, numbers)

    def _crop(self, node: ir.Node, shape: Shape) -> None:
        """Record a slice of a dynamic axis with constant bounds, or of a constant table with dynamic bounds."""
        if len(node.inputs) < 3:
            return
        axes = self.facts.contents(node.inputs[3]) if len(node.inputs) > 3 else tuple(range(len(shape)))
        ends, starts = (self.facts.contents(value) for value in (node.inputs[2], node.inputs[1]))
        for place, axis in enumerate(axes or ()):
            if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
                continue
            size = shape[axis]
            for bound in (bounds[place] for bounds in (starts, ends) if bounds and place < len(bounds)):
                if isinstance(bound, int):
                    self._note("compared", self._named((size,)), [bound])
                elif bound is not None and isinstance(size, int) and self.facts.tensor(node.inputs[0]) is not None:
                    self._note("rows", self._named((bound,)), [size])

    def _look_up(self, node: ir.Node, table: Shape) -> None:
        """Record a lookup of positions in a table of constant size."""
        index, axis = node.inputs[1] if len(node.inputs) > 1 else None, node.attributes.get_int("axis", 0)
        rows = table[axis] if -len(table) <= axis < len(table) else None
        if index is not None and index in self.of and isinstance(rows, int):
            dims, plain = self.of[index]
            self._note("rows" if plain else "compared", dims, [rows])


def find_bounds(facts: Facts, names: Iterable[str]) -> dict[str, Bounds]:
    """Return the numbers that each of these dimensions is compared with."""
    walk = _Walk(facts, {atom_name(name): name for name in names})
    walk.visit(facts.model.graph)

    def numbers(kind: str, name: str) -> tuple[int, ...]:
        return tuple(sorted(walk.found.get((kind, name), ())))

    return {
        name: Bounds(numbers("compared", name), numbers("rows", name), numbers("exact", name))
        for name in walk.names.values()
    }


# The windows of convolutions and pools along dynamic axes, and the lengths at which a whole window fits. On a shorter
# axis the outer taps of a window only meet padding, so that their weights have no effect.

_HAS_TAPS = CONVOLUTIONS - {"ConvTranspose"} | QUANTIZED_CONVOLUTIONS | POOLS
# Tried in turn; models that halve an axis accept these.
_WINDOW_LENGTHS = (*range(32, 1025, 32), *(1024 << step for step in range(1, 9)))


class Window(Struct, frozen=True):
    """A window along one axis of a node."""

    node: str  # the operator and the label
    reach: int  # positions from the first tap to the last
    axis: Size  # the size of the axis

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the axis is at least as long as the window, for these sizes of the named dimensions."""
        return self.length(sizes) >= self.reach

    def length(self, sizes: Mapping[str, int]) -> int:
        """Return the size of the axis, or 0 if it has none for these sizes."""
        try:
            return expr.value_of(self.axis, {atom_name(name): size for name, size in sizes.items()})
        except (KeyError, ZeroDivisionError):
            return 0


def find_windows(facts: Facts, names: Iterable[str]) -> list[Window]:
    """Return the windows of more than one tap along axes whose size depends only on the named dimensions."""
    atoms = frozenset(atom_name(name) for name in names)
    found: dict[tuple[int, Size], Window] = {}  # one of several equal ones
    for graph in nested_graphs(facts.model.graph):
        for node in graph:
            for window in _windows(facts, node) if node.op_type in _HAS_TAPS else ():
                used = set(expr.names_in((window.axis,)))
                if used and used <= atoms and window.reach > 1:
                    found.setdefault((window.reach, window.axis), window)
    return list(found.values())


def _windows(facts: Facts, node: ir.Node) -> Iterator[Window]:
    shape = facts.shape(node.inputs[0])
    kernel: Sequence[Size | None] | None = node.attributes.get_ints("kernel_shape")
    if kernel is None and node.op_type not in POOLS:
        weight = facts.shape(node.inputs[_CONV_WEIGHTS.get(node.op_type, 1)])
        kernel = weight[2:] if weight is not None else None
    if shape is None or kernel is None or len(kernel) != len(shape) - 2:
        return
    dilations = node.attributes.get_ints("dilations") or (1,) * len(kernel)
    for axis, taps, dilation in zip(shape[2:], kernel, dilations, strict=False):
        if isinstance(taps, int):
            yield Window(f"{node.op_type} '{label(node)}'", (taps - 1) * dilation + 1, axis)


def fitting_length(windows: Iterable[Window], names: Sequence[str], name: str, usual: int) -> int | None:
    """Return a length of one dimension at which every window along it fits; None if all fit at the usual length.

    All dimensions are taken to have the same length.
    """
    atom = atom_name(name)
    wide = [window for window in windows if atom in expr.names_in((window.axis,))]
    for length in (usual, *_WINDOW_LENGTHS):
        wide = [window for window in wide if not window.fits(dict.fromkeys(names, length))]
        if not wide:
            return length if length != usual else None
    return None


def window_notes(windows: Iterable[Window], trials: Sequence[Mapping[str, int]]) -> list[str]:
    """Return a note about the windows that were longer than their axis in every trial, the largest as an example."""
    wide = [window for window in windows if not any(window.fits(sizes) for sizes in trials)]
    if not wide:
        return []
    window = max(wide, key=lambda window: window.reach)
    longest = max((window.length(sizes) for sizes in trials), default=0)
    others = f" (and {len(wide) - 1} more of this kind)" if len(wide) > 1 else ""
    return [f"the window of {window.node} spans {window.reach}; its axis was tried up to {longest}{others}"]
