"""Find the first value at a module border that differs in two models, and the share of the error of each part.

The border values p0 … pn are in the order in which the second model computes them. The cut after pi is the set of the
values up to pi that are needed later. Two questions are asked about a cut:

    values        do the values of both models agree there, within the tolerance of `verify`?
    substitution  how large is the error of the outputs if the rest of the second model gets the first model's values?

The first cut whose values differ is found by search with several cuts a run. With the error E(i) of a substitution at
cut i, the nodes between the cuts i and j cause the share (E(i)² - E(j)²) / E² of the squared error E² of the outputs.
A border that differs without an effect is not the cause: a few elements round differently than the tolerance, which
is made for outputs, allows, or a mask hides with another number. The effect of a substitution is the change D(i) of
the second model's outputs. The first cut with an effect is then searched instead.

The other direction is a transplant: the first model computes the part between two cuts from the second model's
values, and the second model goes on with the results. It shows what one module alone contributes.

A border value is read by another module than the one that computes it, or is an output of the model. Two border
values correspond if they have the same name and module, or if they are the only remaining outputs (or inputs) of a
module that both models have, or the only ones that the same other module computes. If a model has no modules, all
values of the same name correspond.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import module_region
from sardonyx.ir.module_region import Flow
from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.scopes import is_constant
from sardonyx.records.provenance import ROOT, is_within, lineage, lowest_common, merge, module_of, owner_of
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Array, Value
from sardonyx.verification.output_comparison import OutputComparer, Precise
from sardonyx.verification.tolerance import REASSOCIATED_RMS, epsilon, is_float, limit


class BorderPair(Struct, frozen=True, eq=False):
    """A value of the first model and the value of the second model that corresponds to it."""

    first: ir.Value | None  # None: the first model is no graph
    second: ir.Value
    named: bool  # both have the same name


class ModuleBorder(Struct, frozen=True, eq=False):
    """The data that enters and leaves one call of a module, without sizes and constants."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


class Borders(Struct, frozen=True, eq=False):
    """All borders of one model: calls of modules by path, and modules whose border a fused node crosses."""

    calls: Mapping[str, ModuleBorder]
    crossed: tuple[str, ...]


def is_data(flow: Flow, value: ir.Value) -> bool:
    """Return whether a value is worth comparing: computed from data, or from sizes but no size itself, as a mask is."""
    producer = value.producer()
    if producer is None or not value.name or is_constant(producer):
        return False
    if not flow.is_size(value):
        return True
    kind = flow.facts.dtype(value)
    return kind is not None and not kind.is_integer()


def module_borders(flow: Flow) -> Borders:
    """Return the borders of all calls of modules."""
    paths = {path for origins in flow.origins.values() for origin in origins for path in lineage(origin)[1:]}
    calls: dict[str, ModuleBorder] = {}
    crossed: list[str] = []
    for path in sorted(paths):
        inside, straddling = module_region.members(flow, path)
        if straddling:
            crossed.append(path)
        else:
            calls[path] = _border(flow, inside)
    return Borders(calls, tuple(crossed))


def _border(flow: Flow, inside: frozenset[ir.Node]) -> ModuleBorder:
    ordered = [node for node in flow.nodes if node in inside]
    produced = [value for node in ordered for value in node.outputs]
    own = set(produced)
    read = dict.fromkeys(value for node in ordered for value in flow.reads[node] if value not in own)
    leaving = [
        value
        for value in produced
        if value in flow.outputs or any(reader not in inside for reader in flow.readers.get(value, ()))
    ]
    return ModuleBorder(
        tuple(value for value in read if is_data(flow, value)),
        tuple(value for value in leaving if is_data(flow, value)),
    )


def pair_borders(
    first: Flow, second: Flow, outputs: Iterable[tuple[ir.Value, ir.Value]]
) -> tuple[list[BorderPair], list[str]]:
    """Return the corresponding border values in the order of the second model, and the modules without such a border.

    Args:
        first: The first model.
        second: The second model.
        outputs: The outputs of the models, which correspond by position.
    """
    a, b = module_borders(first), module_borders(second)
    pairs: dict[ir.Value, BorderPair] = {}
    taken: set[ir.Value] = set()

    def add(one: ir.Value, other: ir.Value) -> None:
        if other not in pairs and one not in taken:
            pairs[other] = BorderPair(one, other, one.name == other.name)
            taken.add(one)

    for one, other in outputs:
        if is_data(first, one) and is_data(second, other):
            add(one, other)
    has_owners = has_modules(first) and has_modules(second)  # tools that drop the tags keep most of the names
    known, others = _by_name(first), _by_name(second)
    for name in dict.fromkeys(value.name for value in (*_values(a), *_values(b))) if has_owners else others:
        one, other = known.get(name), others.get(name)
        if one is not None and other is not None and (not has_owners or owner(first, one) == owner(second, other)):
            add(one, other)
    for path in sorted(a.calls.keys() & b.calls.keys(), key=lambda path: -path.count(".")):
        one, other = a.calls[path], b.calls[path]
        for values, candidates in ((one.outputs, other.outputs), (one.inputs, other.inputs)):
            left = [value for value in values if value not in taken]
            right = [value for value in candidates if value not in pairs]
            if len(left) == len(right) == 1:
                add(left[0], right[0])
                continue
            by_owner = _by_owner(second, right)
            for module, own in _by_owner(first, left).items():
                if len(own) == len(by_owner.get(module, ())) == 1:
                    add(own[0], by_owner[module][0])
    missing = {*a.crossed, *b.crossed, *(a.calls.keys() ^ b.calls.keys())} & (owning(first) | owning(second))
    return in_order(second, pairs.values()), sorted(missing)


def _by_owner(flow: Flow, values: Iterable[ir.Value]) -> dict[str, list[ir.Value]]:
    found: dict[str, list[ir.Value]] = {}
    for value in values:
        found.setdefault(owner(flow, value), []).append(value)
    return found


def owning(flow: Flow) -> frozenset[str]:
    """Return the modules that have nodes of their own, not only those of modules below."""
    return merge(flow.origins.values())


def has_modules(flow: Flow) -> bool:
    """Return whether some node of a model belongs to a module."""
    return any(module_of(path) for origins in flow.origins.values() for path in origins)


def _values(borders: Borders) -> Iterable[ir.Value]:
    return (value for border in borders.calls.values() for value in (*border.inputs, *border.outputs))


def _by_name(flow: Flow) -> dict[str | None, ir.Value]:
    return {value.name: value for node in flow.nodes for value in node.outputs if is_data(flow, value)}


def owner(flow: Flow, value: ir.Value) -> str:
    """Return the module that computes a value."""
    producer = value.producer()
    return ROOT if producer is None else owner_of(flow.origins[producer])


def in_order(flow: Flow, pairs: Iterable[BorderPair]) -> list[BorderPair]:
    """Return pairs in the order in which the second model computes them."""
    position = {value: index for index, value in enumerate(value for node in flow.nodes for value in node.outputs)}
    return sorted(pairs, key=lambda pair: position[pair.second])


class Between(Struct, frozen=True, eq=False):
    """The nodes that compute a value from the nearest border values before it."""

    nodes: tuple[ir.Node, ...]
    after: frozenset[ir.Node]  # those that depend on one of these border values
    borders: frozenset[ir.Value]

    def modules(self, flow: Flow) -> list[str]:
        """Return the modules of the nodes that compute data, or numbers such as masks from sizes, in order."""
        computing = {*_computing(flow, self.nodes), *_numbers(flow, self.nodes)}
        return list(dict.fromkeys(owner_of(flow.origins[node]) for node in self.nodes if node in computing))

    def module(self, flow: Flow) -> str:
        """Return the lowest common module of the nodes that depend on a border value, or of all if none does."""
        return lowest_common(owner_of(flow.origins[node]) for node in _computing(flow, self.after or self.nodes))

    def side_nodes(self, flow: Flow) -> list[ir.Node]:
        """Return the nodes of other modules whose numbers, such as masks and angles, enter without a common border."""
        path = self.module(flow)
        return [node for node in _numbers(flow, self.nodes) if not is_within(owner_of(flow.origins[node]), path)]


def _computing(flow: Flow, nodes: Collection[ir.Node]) -> list[ir.Node]:
    """Return the nodes that compute data; if none does, those of numbers such as masks; otherwise all but constants."""
    numbers = _numbers(flow, nodes)
    data = [node for node in numbers if not flow.only_sizes(node)]
    return data or numbers or [node for node in nodes if not is_constant(node)]


def _numbers(flow: Flow, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    return [
        node for node in nodes if node.op_type not in KEEPS_ORDER and any(is_data(flow, out) for out in node.outputs)
    ]


def between(flow: Flow, value: ir.Value, borders: frozenset[ir.Value]) -> Between:
    """Return the nodes between a value and the nearest border values that it depends on."""
    nodes: dict[ir.Node, None] = {}
    reached: set[ir.Value] = set()
    producer = value.producer()
    pending = [] if producer is None else [producer]
    while pending:
        node = pending.pop()
        if node in nodes:
            continue
        nodes[node] = None
        for read in flow.reads[node]:
            source = read.producer()
            if read in borders:
                reached.add(read)
            elif source is not None:
                pending.append(source)
    ordered = [node for node in flow.nodes if node in nodes] if len(nodes) > 1 else list(nodes)
    after: set[ir.Node] = set()
    for node in ordered:
        if any(read in reached or read.producer() in after for read in flow.reads[node]):
            after.add(node)
    return Between(tuple(ordered), frozenset(after), frozenset(reached))


_FIRST_CUTS = 4  # of the first run; later runs compare as many as fit the memory
_MOST_CUTS = 64  # compared in one run
_HELD_BYTES = 1 << 26  # border values of one model that are held at a time, unless single ones are larger
_BEYOND_ROUNDING = 0.05  # a relative error that rounding does not explain
_OTHER_MEANING = 2.0  # a substitution that multiplies the error by this shows that the values mean different things
_LITTLE_EFFECT = 0.1  # of the error, below which a difference of the size of rounding is not the cause
_NO_EFFECT = REASSOCIATED_RMS * 2.0**-23  # a relative change of the outputs below which no difference is the cause
_UNDIVIDED_SHARE = 0.05  # a share of the error that is not divided further


class FirstModel(Protocol):
    """The model whose values are right by definition; values are those at some borders."""

    def values_from(self, given: Mapping[int, Array] | None, places: Sequence[int]) -> Mapping[int, Value]:
        """Return the values at some borders if those at earlier ones are replaced."""
        ...


class SecondModel(FirstModel, Protocol):
    """The model that is compared with it."""

    def outputs_after(self, values: Mapping[int, Array]) -> list[Value]:
        """Return the outputs if the values at some borders are replaced."""
        ...


# Returns the values at borders, and those in double precision; None if the model does not run in it.
Rounded: TypeAlias = Callable[[Sequence[int]], tuple[Mapping[int, Value], Mapping[int, Value]] | None]


class Border(Struct, frozen=True):
    """A border value: its name, its module, and the index of the last border that is computed from it."""

    name: str
    module: str
    last_use: int
    named: bool


class Finding(Struct, frozen=True):
    """The first border that differs."""

    index: int
    error: float
    reason: str
    is_rounding: bool  # the error as a whole is that of rounding; only single elements differ more


class Interval(Struct, frozen=True):
    """The part of the model between two cuts, and its share of the squared error."""

    start: int  # the cut before it; -1: the inputs
    end: int
    share: float


class ModuleSearch:
    """The search over the borders of one pair of models on one set of inputs."""

    def __init__(
        self,
        borders: Sequence[Border],
        first: FirstModel,
        second: SecondModel,
        expected: Sequence[Value],
        results: Sequence[Value],
        rounded: Rounded,
    ) -> None:
        self.borders, self._first, self._second = borders, first, second
        self._expected, self._results, self._rounded = expected, results, rounded
        self._total = relative_error(expected, results)
        self._differs: dict[int, Finding | None] = {}
        self._left_out: set[int] = set()  # borders whose values mean different things in the two models
        self._errors: dict[int, float | None] = {-1: self._total, len(borders) - 1: 0.0}
        self._effects: dict[int, float] = {}
        self._cuts = _FIRST_CUTS
        self.harmless: Finding | None = None  # a first difference without an effect on the outputs

    def first_difference(self) -> Finding | None:
        """Return the first border whose values differ, or None if no border before the outputs can be compared.

        A border that differs without an effect on the outputs is not returned if a later one has an effect.
        """
        while True:
            finding = self._search()
            if finding is None:
                return None
            if self._is_other_meaning(finding.index):
                self._leave_out(finding.index)
                continue
            self.error_after(finding.index)
            effect = self._effects.get(finding.index, math.inf)
            is_harmless = effect < max(_NO_EFFECT, _LITTLE_EFFECT * self._total if finding.is_rounding else 0.0)
            cause = self._first_effect(finding.index) if is_harmless else None
            if cause is None:
                return finding
            self.harmless = finding
            return cause

    def _leave_out(self, index: int) -> None:
        """Leave out a border; the errors after cuts are those of other cuts then."""
        self._left_out.add(index)
        self._errors = {-1: self._total, len(self.borders) - 1: 0.0}

    def _first_effect(self, start: int) -> Finding | None:
        """Return the first border after one at which a substitution has an effect, by binary search."""
        places = self._kept(start, len(self.borders))
        low, high = 0, len(places) - 1
        while high - low > 1:
            middle = (low + high) // 2
            error = self.error_after(places[middle])
            if error is None or error > _OTHER_MEANING * self._total:
                self._leave_out(places.pop(middle))
                high -= 1
            elif self._effects[places[middle]] >= _LITTLE_EFFECT * self._total:
                high = middle
            else:
                low = middle
        self._compare([places[high]])
        return self._differs[places[high]]

    def share_of(self, finding: Finding) -> float | None:
        """Return the share of the squared error that the nodes before the first differing border cause."""
        before, after = self.error_after(self._before(finding.index)), self.error_after(finding.index)
        return None if before is None or after is None else self._share(before, after)

    @property
    def left_out(self) -> list[int]:
        """Borders that were left out because their values mean different things."""
        return sorted(self._left_out)

    def _kept(self, start: int, end: int) -> list[int]:
        """Return the borders of a range that are compared."""
        return [index for index in range(start, end) if index not in self._left_out]

    def _before(self, index: int) -> int:
        return max(self._kept(0, index), default=-1)

    def _is_other_meaning(self, index: int) -> bool:
        """Return whether the second model cannot use the first model's value, such as a transposed one."""
        if index == len(self.borders) - 1:
            return False
        before, after = self.error_after(self._before(index)), self.error_after(index)
        return after is None or (before is not None and after > _OTHER_MEANING * before)

    def _live(self, index: int) -> list[int]:
        """Return the borders whose values form the cut after one."""
        kept = self._kept(0, index + 1)
        return [other for other in kept if other == index or self.borders[other].last_use > index]

    def _search(self) -> Finding | None:
        """Return the first border whose cut differs, by a search with several cuts a run."""
        places = self._kept(0, len(self.borders))
        low, high = -1, len(places) - 1  # cuts that agree and that differ
        while high - low > 1:
            steps = _between(low, high, min(self._cuts, high - low - 1))
            self._compare(sorted({index for step in steps for index in self._live(places[step])}))
            bad = next((step for step in steps if any(self._differs[j] for j in self._live(places[step]))), high)
            low, high = max((step for step in steps if step < bad), default=low), bad
        if not places:
            return None
        live = [places[high], *self._live(places[high])]
        self._compare(live)
        return next((finding for index in live if (finding := self._differs[index]) is not None), None)

    def _compare(self, places: Sequence[int]) -> None:
        """Compare the values at some borders; results are kept."""
        places = [index for index in places if index not in self._differs]
        if not places:
            return
        one, other = self._first.values_from(None, places), self._second.values_from(None, places)
        held = max(sum(array.nbytes for array in _arrays(values).values()) for values in (one, other))
        self._cuts = max(2, min(_MOST_CUTS, int(_HELD_BYTES / max(held / len(places), 1))))
        rounded = functools.cache(lambda: self._rounded(places))
        for index in places:
            self._differs[index] = self._difference(index, one[index], other[index], rounded)

    def _difference(
        self,
        index: int,
        one: Value,
        other: Value,
        rounded: Callable[[], tuple[Mapping[int, Value], Mapping[int, Value]] | None],
    ) -> Finding | None:
        border = self.borders[index]
        comparable = comparable_arrays(one, other)
        if comparable is None:
            self._left_out.add(index)
            return None
        a, b = comparable
        if a.shape != b.shape:
            if not border.named:
                self._left_out.add(index)
                return None
            return Finding(index, 1.0, f"shape {list(b.shape)} instead of {list(a.shape)}", False)
        error = relative_error([a], [b])

        def precise() -> Precise | None:
            values = rounded() if error < _BEYOND_ROUNDING else None
            return None if values is None else Precise(roundings=lambda: [([values[0][index]], [values[1][index]])])

        lines = OutputComparer([border.name], Accuracy.REASSOCIATES, frozenset()).compare([a], [b], precise)
        if not lines:
            return None
        rounding = is_float(a.dtype) and error <= limit(a.dtype, Accuracy.REASSOCIATES).rms
        return Finding(index, error, lines[0].partition(": ")[2], rounding)

    def error_after(self, index: int) -> float | None:
        """Return the error of the outputs with the first model's values at a cut; None: the second one does not run."""
        if index not in self._errors:
            live = self._live(index)
            values = _arrays(self._first.values_from(None, live))
            try:
                outputs = self._second.outputs_after(values)
            except RuntimeFailure:
                self._errors[index] = None
            else:
                self._errors[index] = relative_error(self._expected, outputs)
                self._effects[index] = relative_error(self._results, outputs)
        return self._errors[index]

    @property
    def errors(self) -> list[tuple[int, float]]:
        """The cuts whose substitution was measured, in order, and the errors that are left; -1: the inputs."""
        return [(index, error) for index in sorted(self._errors) if (error := self._errors[index]) is not None]

    def alone(self, start: int, end: int) -> float | None:
        """Return the share of the squared error that goes away if only the part between two cuts is the first model's.

        None: one of the models does not run on the values of the other one.
        """
        inputs: Mapping[int, Value] = self._second.values_from(None, self._live(start)) if start >= 0 else {}
        try:
            values = self._first.values_from(_arrays(inputs), [place for place in self._live(end) if place > start])
            error = relative_error(self._expected, self._second.outputs_after(_arrays(values)))
        except RuntimeFailure:
            return None
        return self._share(self._total, error)

    def _share(self, before: float, after: float) -> float:
        return (before**2 - after**2) / self._total**2 if self._total else 0.0

    def intervals(self, most_runs: int) -> list[Interval]:
        """Divide the model into intervals of one module where their share is large.

        Args:
            most_runs: The largest number of further runs.
        """
        known = [index for index in sorted(self._errors) if self._errors[index] is not None]
        done: list[Interval] = []
        pending: list[tuple[float, int, int]] = []
        for start, end in itertools.pairwise(known):
            self._queue(pending, done, start, end)
        for _ in range(most_runs):
            if not pending:
                break
            _, start, end = heapq.heappop(pending)
            middle = self._middle(start, end)
            if middle is None:
                done.append(self._interval(start, end))
                continue
            self._queue(pending, done, start, middle)
            self._queue(pending, done, middle, end)
        done += [self._interval(start, end) for _, start, end in pending]
        return sorted(done, key=lambda interval: interval.start)

    def _interval(self, start: int, end: int) -> Interval:
        return Interval(start, end, self._share(self._errors[start] or 0.0, self._errors[end] or 0.0))

    def _queue(self, pending: list[tuple[float, int, int]], done: list[Interval], start: int, end: int) -> None:
        interval = self._interval(start, end)
        modules = {self.borders[index].module for index in self._kept(start + 1, end + 1)}
        if len(modules) > 1 and interval.share > _UNDIVIDED_SHARE:
            heapq.heappush(pending, (-interval.share, start, end))
        else:
            done.append(interval)

    def _middle(self, start: int, end: int) -> int | None:
        """Return the cut nearest to the middle at which the substitution runs, from a few."""
        inner = sorted(self._kept(start + 1, end), key=lambda index: abs(2 * index - start - end))
        return next((index for index in inner[:3] if self.error_after(index) is not None), None)

    def module_error(self, index: int) -> float | None:
        """Return the relative error of the values at a border, or None if they cannot be compared."""
        if index < 0 or index in self._left_out:
            return None
        one, other = (model.values_from(None, [index])[index] for model in (self._first, self._second))
        comparable = comparable_arrays(one, other)
        return None if comparable is None else relative_error([comparable[0]], [comparable[1]])


def _between(low: int, high: int, count: int) -> list[int]:
    """Return up to so many numbers between two, at equal distances."""
    return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low, high})


def comparable_arrays(one: Value, other: Value) -> tuple[Array, Array] | None:
    """Return two tensors in the narrower of their floating-point types, or None if their types do not compare."""
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return None
    if one.dtype == other.dtype:
        return one, other
    if not is_float(one.dtype) or not is_float(other.dtype):
        return None
    narrow = max((one.dtype, other.dtype), key=epsilon)
    return one.astype(narrow), other.astype(narrow)


def relative_error(expected: Sequence[Value], results: Sequence[Value]) -> float:
    """Return the root mean square over the outputs of their relative errors; NaN and other shapes count as 1."""
    errors = [_relative(one, other) for one, other in zip(expected, results, strict=False)]
    return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0


def _relative(one: Value, other: Value) -> float:
    comparable = comparable_arrays(one, other)
    if comparable is None or comparable[0].shape != comparable[1].shape:
        return 1.0
    a, b = comparable
    if a.size == 0:
        return 0.0
    if not is_float(a.dtype):
        return math.sqrt(float(np.mean(np.asarray(a != b))))
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    size = math.sqrt(float(np.mean(np.square(a[finite])))) if finite.any() else 1.0
    same = np.isnan(a) & np.isnan(b) | (a == b)
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.where(finite, np.abs(a - b), size or 1.0))
    error = math.sqrt(float(np.mean(np.square(gaps))))
    return error / size if size else (1.0 if error else 0.0)


def _arrays(values: Mapping[int, Value]) -> dict[int, Array]:
    return {place: value for place, value in values.items() if isinstance(value, np.ndarray)}
