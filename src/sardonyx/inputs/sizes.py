"""Choose sizes for dynamic dimensions: equal for equal names, distinct for unrelated ones, and several per dimension.

The first rule reads what the graph requires (`requirements`) and searches for the smallest sizes that meet it,
under a limit on elements. The other rules are guesses for models whose requirements cannot be read.

A dimension named "past + seq" is taken as that sum, to choose sizes only, if `past` and `seq` are dimensions
elsewhere in the inputs. All other names, such as "batch-size", are plain names.

The elements of the inputs together and of the largest value are limited, and the work: nine dynamic dimensions of 7
to 28 are 10¹⁰ elements, and an outer product of two inputs is far larger than both. The work is the number of
multiplications in products and convolutions, and of elements that other nodes compute; a body of Scan counts once for
every step. All follow from the symbolic shapes, before anything is run.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.inputs.requirements import Requirements, atom_name
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import bodies, declared_shape
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
    def of(cls, facts: Facts, inputs: Sequence[ir.Value], names: Sequence[str]) -> Footprint:
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
        largest = tuple(values[:_EVALUATED_SHAPES])
        unlimited = cls(tuple(known(map(facts.shape, inputs))), largest, tuple(loops.items()), ())
        least = unlimited._count(dict.fromkeys(names, 1))
        usual = (MOST_INPUT_ELEMENTS, MOST_VALUE_ELEMENTS, MOST_WORK)
        limits = tuple(max(most, count + min(count, most)) for most, count in zip(usual, least, strict=True))
        return replace(unlimited, limits=limits)

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a trial is within the limits if the dynamic dimensions have these sizes."""
        return all(count <= most for count, most in zip(self._count(sizes), self.limits, strict=True))

    def excess(self, sizes: Mapping[str, int]) -> str | None:
        """Return what is too large in a trial that would need gigabytes or hours, or None.

        A dimension of 0 counts as 1: numpy makes no array of 0 × 2⁶³ elements either.
        """
        pairs = zip(self._count(sizes, least=1), _HUGE, strict=True)
        return next((text.format(count) for count, (most, text) in pairs if count > most), None)

    def work(self, sizes: Mapping[str, int]) -> int:
        """Return the number of operations in a trial."""
        return self._count(sizes)[2]

    def _count(self, sizes: Mapping[str, int], least: int = 0) -> tuple[int, int, int]:
        sizes = {atom_name(name): size for name, size in sizes.items()}
        largest = max((_elements(shape, sizes, least) for shape in self.values), default=0)
        work = sum(count * _elements(shape, sizes, least) for shape, count in self.loops)
        return sum(_elements(shape, sizes, least) for shape in self.inputs), largest, work


_UNLIMITED = Footprint((), (), (), (0, 0, 0))


def _nodes(graph: ir.Graph | ir.Function, facts: Facts, steps: Shape = ()) -> Iterator[tuple[ir.Node, Shape]]:
    """Yield all nodes, also those in bodies, with the numbers of steps of the Scans around them, if they are known."""
    for node in graph:
        yield node, steps
        own, scanned = steps, node.attributes.get_int("num_scan_inputs", 0)
        if node.op_type == "Scan" and 0 < scanned <= len(node.inputs):
            axis = (node.attributes.get_ints("scan_input_axes") or [0])[0]
            shape = facts.shape(node.inputs[-scanned]) or ()
            own = (*steps, shape[axis]) if -len(shape) <= axis < len(shape) else steps
        for _, body in bodies(node):
            yield from _nodes(body, facts, own)


def _loops(node: ir.Node, facts: Facts) -> list[Shape]:
    """Return all dimensions that a node runs over: those of its results, and those that are summed."""
    shapes, results = [facts.shape(value) for value in node.inputs], [facts.shape(value) for value in node.outputs]
    first, second = [*shapes, None, None][:2]
    result = results[0] if results else None
    if first is not None and second is not None and result is not None:
        match node.op_type:
            case "MatMul" | "MatMulInteger" | "FusedMatMul" | "Gemm":
                summed = -2 if node.attributes.get_int("transA", 0) and len(first) > 1 else -1
                return [(*result, *first[summed:][:1])]
            case "Conv" | "ConvInteger":
                return [(*result, *second[1:])]
            case "ConvTranspose":
                return [(*first, *second[1:])]
            case "Einsum":  # every dimension once, as far as its terms have no ellipsis
                terms = node.attributes.get_string("equation", "").replace(" ", "").partition("->")[0].split(",")
                labelled: dict[str, Size] = {}
                for term, shape in zip(terms, shapes, strict=False):
                    if shape is not None and len(term) == len(shape):
                        labelled.update(zip(term, shape, strict=True))
                return [tuple(labelled.values())]
            case "Attention":  # queries × keys, and as many × values
                return [(2, *first, *second[-2:-1])]
            case _:
                pass
    return [shape or () for shape in results]


def _elements(shape: Shape, sizes: Mapping[str, int], least: int = 0) -> int:
    try:
        return math.prod(max(expr.value_of(dim, sizes), least) for dim in shape)
    except ZeroDivisionError:  # the model does not accept these sizes
        return 0


_SYMBOLIC: dict[type[ast.operator], Callable[[Size, Size], Size]] = {
    ast.Add: expr.add,
    ast.Sub: expr.subtract,
    ast.Mult: expr.multiply,
    ast.FloorDiv: expr.floor_quotient,
    ast.Mod: expr.remainder,
}
_BATCH_SIZES = (2, 1, 3, 4)  # the size of the first batch, by round
_LENGTHS = ((7, 3), (16, 1), (11, 2), (4, 1))  # the first size and the step to the next symbol's size, by round
_COMPACT = ((2, 3, 4), (2, 3), (1, 2), (1,))  # sizes taken in turn, if the usual ones have too many elements
_RANKS = (2, 3, 4, 1)  # tried in turn if the rank is not declared
_LONGEST_FORMULA = 200  # characters of a name that is read as a formula

_POWER_SIZES = tuple(8 << step for step in range(15))  # searched upward
_LAST_RESORT_SIZES = (16, 32, 512, 1024, 16000)  # the same for all lengths, if nothing else was accepted
_MAX_PAIRED_SIZES = 16  # sizes of other dimensions whose sums and differences are tried
_SWEEPS = 3  # rounds of adjusting every dimension in turn

Sizes = Mapping[str, int]
_NONE: Sizes = {}
SizeRule = Callable[[int, Sizes], dict[str, int]]  # from a round, and pinned sizes, to the size of every symbol


class DynamicDims:
    """The symbols in the shapes of a model's inputs and the rules that assign sizes to them.

    Args:
        inputs: The inputs of the model.
        formulas: Take names such as "past + seq" as formulas; otherwise they are symbols like all others.
    """

    def __init__(self, inputs: Sequence[ir.Value], *, formulas: bool = True) -> None:
        self._shapes: dict[str, tuple[int | str, ...] | None] = {}
        self._requirements: Requirements | None = None
        self.footprint = _UNLIMITED
        self._solved: dict[tuple[int, tuple[tuple[str, int], ...]], dict[str, int]] = {}
        self.batch: list[str] = []
        self.others: list[str] = []
        for value in inputs:
            name, declared = value.name or "", declared_shape(value)
            # some exporters write -1 for "any size"
            self._shapes[name] = (
                None
                if declared is None
                else tuple(
                    f"{name}[{axis}]" if dim is None or dim == "" or (isinstance(dim, int) and dim < 0) else dim
                    for axis, dim in enumerate(declared)
                )
            )
        shapes = [shape for shape in self._shapes.values() if shape is not None]
        dims = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
        self.formulas = _formulas(dims) if formulas else {}
        for shape in shapes:
            for axis, dim in enumerate(shape):
                if isinstance(dim, str) and dim not in self.formulas and dim not in self.names:
                    (self.batch if axis == 0 and len(shape) > 1 else self.others).append(dim)

    @property
    def names(self) -> list[str]:
        """Every symbol, batch-like ones first."""
        return self.batch + self.others

    def shape(self, name: str, sizes: Mapping[str, int], attempt: int = 0) -> tuple[int, ...]:
        """Return the shape of an input for these sizes; every attempt guesses another rank if none is declared."""
        declared = self._shapes[name]
        if declared is None:
            return (2, 3, 4, 5)[: _RANKS[attempt % len(_RANKS)]]
        # a formula may be pinned
        numbers = (dim if isinstance(dim, int) else sizes.get(dim) for dim in declared)
        pairs = zip(declared, numbers, strict=True)
        return tuple(_compute(self.formulas[str(dim)], sizes) if size is None else max(size, 0) for dim, size in pairs)

    def broken_formulas(self, sizes: Sizes) -> list[tuple[str, int]]:
        """Return a size other than its formula gives for each dimension with a name such as "past + seq"."""
        return [(name, _compute(formula, sizes) + 1) for name, formula in self.formulas.items()]

    def symbolic(self, name: str) -> tuple[Size, ...] | None:
        """Return the shape of an input as symbolic sizes, or None if the rank is not declared."""
        declared = self._shapes[name]
        if declared is None:
            return None
        return tuple(dim if isinstance(dim, int) else self.formulas.get(dim, expr.symbol(dim)) for dim in declared)

    def declared(self, name: str) -> tuple[int | str, ...] | None:
        """Return the dimensions of an input, each a size, a name or a formula; None if the rank is not declared."""
        return self._shapes[name]

    def sizes_in(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Return the size that every symbol has in inputs of these shapes."""
        declared = {name: self._shapes.get(name) or () for name in shapes}
        pairs = [pair for name, shape in shapes.items() for pair in zip(declared[name], shape, strict=False)]
        return {dim: size for dim, size in pairs if isinstance(dim, str) and dim in self.names}

    def meet(self, requirements: Requirements, footprint: Footprint) -> None:
        """Let the first rule search for sizes that meet these requirements and are within the limits on elements."""
        self._requirements, self.footprint = requirements, footprint
        self._solved.clear()

    def near(self, sizes: Sizes, pinned: Sizes) -> dict[str, int]:
        """Return these sizes if the model may accept them, otherwise the next ones found that differ in few dimensions.

        The pinned ones stay.
        """
        requirements = self._requirements
        if requirements is None or not requirements.rejects(sizes):
            return dict(sizes)
        changed, _ = self._climb([dict(sizes)], pinned, requirements, self.footprint.fits)
        found = (choice for choice in (changed, self._required(0, pinned)) if choice is not None)
        return next((choice for choice in found if not requirements.rejects(choice | dict(pinned))), dict(sizes))

    @property
    def reduced(self) -> bool:
        """Whether the usual sizes exceed the limits on elements, so that smaller ones are chosen."""
        return not all(self.footprint.fits(self._independent(round_)) for round_ in range(len(_LENGTHS)))

    def rules(self) -> Iterator[SizeRule]:
        """Yield the rules, the most informative first."""
        yield self._required
        if not self.names and None not in self._shapes.values():
            return
        yield self._independent
        yield self._equal_lengths
        for total, first, second in itertools.islice(itertools.permutations(self.others, 3), 12):
            if first < second:
                yield functools.partial(self._summed, total=total, parts=(first, second))
        guesses = [((2, 64), (1, 96), (1, 128)), ((1, 224), (2, 256)), ((4, 4), (8, 8), (6, 6)), ((1, 1), (2, 2))]
        guesses += [((1, length), (2, length + length // 4)) for length in _LAST_RESORT_SIZES]
        fixed = [functools.partial(self._fixed, rounds=rounds) for rounds in guesses]
        if states := self.batches_of(self._shapes.keys()):
            for rule in (self._independent, *fixed):
                yield functools.partial(self._with_states, rule=rule, states=states)
        yield from fixed

    def batches_of(self, states: Set[str]) -> list[str]:
        """Return the dimensions that may be the batch of a recurrent state among these inputs: the middle of three."""
        shapes = [
            shape for name, shape in self._shapes.items() if name in states and shape is not None and len(shape) == 3
        ]
        middle = {dim for layers, dim, size in shapes if isinstance(layers, int) and isinstance(size, int)}
        return [name for name in self.others if name in middle and self.batch]

    def _with_states(
        self, round_: int, pinned: Sizes = _NONE, *, rule: SizeRule, states: Sequence[str]
    ) -> dict[str, int]:
        """Return the sizes of another rule in which the batch of every state is that of the first input with one."""
        sizes = rule(round_, pinned)
        return sizes | dict.fromkeys(states, sizes[self.batch[0]]) | dict(pinned)

    def _required(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        """Return sizes that violate the fewest requirements of the graph."""
        if self._requirements is None:
            return self._independent(round_, pinned)
        key = (round_, tuple(sorted(pinned.items())))
        if key not in self._solved:
            sizes = self._search(round_, pinned, self._requirements)
            while len(pinned) > 1 and self._requirements.violated(sizes):  # the pinned sizes contradict each other
                pinned = dict(list(pinned.items())[:-1])
                sizes = self._search(round_, pinned, self._requirements)
            self._solved[key] = sizes
        return dict(self._solved[key])

    def _search(self, round_: int, pinned: Sizes, requirements: Requirements) -> dict[str, int]:
        """Return sizes that violate the fewest requirements within the limits, or beyond them if that violates none."""
        starts = list(self._starts(round_, pinned))
        within, blocked = self._climb(starts, pinned, requirements, self.footprint.fits)
        if within is not None and not (blocked and requirements.violated(within)):
            return within
        *larger, small, ones = self._compact(round_, pinned)
        least = small if round_ else ones
        for chosen in ([least], [*reversed(larger), *starts]):  # first only what the smallest sizes need
            beyond = self._climb(chosen, pinned, requirements, lambda _: True)[0] or {}
            if not requirements.violated(beyond):
                return beyond
        return within if within is not None else beyond

    def _climb(
        self, starts: Sequence[dict[str, int]], pinned: Sizes, requirements: Requirements, fits: Callable[[Sizes], bool]
    ) -> tuple[dict[str, int] | None, bool]:
        """Take the best of the starts that fit, then improve one dimension at a time until nothing is violated.

        Returns:
            The best sizes, None if no start fits, and whether sizes that do not fit violate fewer requirements.
        """
        best: dict[str, int] | None = None
        fewest, blocked = sys.maxsize, False

        def choices() -> Iterator[dict[str, int]]:
            yield from starts
            for _ in range(_SWEEPS if best is not None else 0):
                before = fewest
                for name in [name for name in self.names if name not in pinned]:
                    for size in self._candidates(best or {}, name, requirements):
                        yield (best or {}) | {name: size}
                if fewest == before:
                    return

        for choice in choices():
            count = requirements.violated(choice)
            if count < fewest and not fits(choice):
                blocked = True
            elif count < fewest:
                best, fewest = choice, count
            if fewest == 0:
                break
        return best, blocked

    def _starts(self, round_: int, pinned: Sizes) -> Iterator[dict[str, int]]:
        """Yield independent sizes first, then lengths that are all equal and grow."""
        usual = self._independent(round_, pinned)
        yield usual
        if not self.footprint.fits(usual):
            yield from self._compact(round_, pinned)
        yield self._equal_lengths(round_) | dict(pinned)
        batch = dict.fromkeys(self.batch, _BATCH_SIZES[round_ % len(_BATCH_SIZES)])
        for size in (size * (4 + round_ % 4) // 4 for size in _POWER_SIZES):
            yield batch | {name: size + i * (size // 4) for i, name in enumerate(self.others)} | dict(pinned)
            yield batch | dict.fromkeys(self.others, size) | dict(pinned)
        yield self._equal_lengths(round_, pinned)

    def _compact(self, round_: int, pinned: Sizes) -> Iterator[dict[str, int]]:
        """Yield ever smaller sizes, other ones for neighbouring dimensions and for each dimension in the next round."""
        for cycle in _COMPACT:
            yield {name: cycle[(i + round_) % len(cycle)] for i, name in enumerate(self.names)} | dict(pinned)

    def _candidates(self, sizes: Sizes, name: str, requirements: Requirements) -> Iterable[int]:
        """Return sizes to try for one dimension: of the others, sums and differences, solutions, and constants."""
        others = list(dict.fromkeys(size for other, size in sizes.items() if other != name))[:_MAX_PAIRED_SIZES]
        pairs = [one + other for one, other in itertools.combinations(others, 2)]
        pairs += [abs(one - other) for one, other in itertools.combinations(others, 2)]
        named = [times * number for number in sorted(requirements.numbers) for times in (1, 2, 3) if number <= 1 << 16]
        solved = requirements.solutions(sizes, name)
        return dict.fromkeys([*others, *solved, *pairs, *range(1, 18), *named, *_POWER_SIZES])

    def _independent(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        first, step = _LENGTHS[round_ % len(_LENGTHS)]
        sizes = {name: _BATCH_SIZES[round_ % len(_BATCH_SIZES)] + 2 * i for i, name in enumerate(self.batch)}
        return sizes | {name: first + step * i for i, name in enumerate(self.others)} | dict(pinned)

    def _equal_lengths(self, round_: int, pinned: Sizes = _NONE) -> dict[str, int]:
        """Return one batch size and one length for all dimensions; a pinned size is used for all of its group."""
        batch = next((pinned[name] for name in self.batch if name in pinned), _BATCH_SIZES[round_ % len(_BATCH_SIZES)])
        lengths = (pinned[name] for name in self.others if name in pinned)
        length = next(lengths, _LENGTHS[round_ % len(_LENGTHS)][0])
        return dict.fromkeys(self.batch, batch) | dict.fromkeys(self.others, length) | dict(pinned)

    def _summed(self, round_: int, pinned: Sizes = _NONE, *, total: str, parts: tuple[str, str]) -> dict[str, int]:
        """Return independent sizes in which one dimension is the sum of two others."""
        sizes = (
            self._independent(round_)
            | dict.fromkeys(self.batch, _BATCH_SIZES[round_ % len(_BATCH_SIZES)])
            | dict(pinned)
        )
        if total in pinned and not any(part in pinned for part in parts):
            return sizes
        return sizes | {total: sum(sizes[part] for part in parts)}

    def _fixed(self, round_: int, pinned: Sizes = _NONE, *, rounds: Sequence[tuple[int, int]]) -> dict[str, int]:
        """Return the same batch size and length for all dimensions, by round."""
        batch, length = rounds[round_ % len(rounds)]
        return dict.fromkeys(self.batch, batch) | dict.fromkeys(self.others, length) | dict(pinned)


def _parse(text: str) -> ast.expr | None:
    """Return the arithmetic expression in the name of a dimension, or None if it is a plain name."""
    if len(text) > _LONGEST_FORMULA:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.BinOp) and _is_arithmetic(tree) and _symbols(tree) else None


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _SYMBOLIC and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and isinstance(node.value, int))


def _formulas(names: Set[str]) -> dict[str, Size]:
    """Return the names that are formulas of other names among them, as symbolic sizes."""
    trees = {name: tree for name in sorted(names) if (tree := _parse(name)) is not None}
    plain = names - trees.keys()
    return {name: _symbolic(tree) for name, tree in trees.items() if _symbols(tree) <= plain}


def with_formulas(sizes: Sizes) -> dict[str, int]:
    """Return sizes in which a dimension named as a formula of others, such as "past + seq", has the size of it."""
    plain = {name.strip("'"): size for name, size in sizes.items()}  # names that are no identifiers are quoted
    formulas = _formulas(plain.keys())
    return {
        name: _compute(formulas[name.strip("'")], plain) if name.strip("'") in formulas else size
        for name, size in sizes.items()
    }


def _symbols(tree: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _symbolic(node: ast.expr) -> Size:
    if isinstance(node, ast.BinOp):
        return _SYMBOLIC[type(node.op)](_symbolic(node.left), _symbolic(node.right))
    if isinstance(node, ast.Name):
        return expr.symbol(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0


def _compute(formula: Size, sizes: Mapping[str, int]) -> int:
    try:
        return max(expr.value_of(formula, sizes), 0)
    except ZeroDivisionError:
        return 0
