"""What an export fixes: dimensions that cannot stay dynamic, and branches that other inputs take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from sardonyx.errors import SardonyxError, VerificationFailed
from sardonyx.frontend.inputs.dynamic import dim_terms, places_of, refusal, resized
from sardonyx.frontend.inputs.examples import DynamicDims
from sardonyx.frontend.tracing.adapter import Call, Feeds
from sardonyx.frontend.tracing.fixed_values import Fixed, Place, Traced, trace
from sardonyx.frontend.tracing.graph_names import Axes, FixedDim
from sardonyx.frontend.tracing.traced import NotExportable, traceable_experts, without_checks

Result = TypeVar("Result")


def with_fewer_dims(
    call: Call, dims: DynamicDims, attempt: Callable[[DynamicDims], Result]
) -> tuple[Result, DynamicDims]:
    """Return the result of an attempt with as many dynamic dimensions as possible, and those dimensions.

    Raises:
        SardonyxError: If the attempt fails even without the dimensions that `auto` found.
    """
    while True:
        try:
            return attempt(dims), dims
        except FixedDim as error:
            fixed = dim_terms(error.dim)
            if not _detected(dims) >= set(fixed):
                raise
            dims = _without(call, dims, fixed, error.why)
        except NotExportable as error:
            return _with_one_fewer(call, dims, attempt, error, f"torch cannot export it dynamic: {error.why}")
        except VerificationFailed as error:
            return _with_one_fewer(call, dims, attempt, error, "exported dynamic, the graph fails at other sizes")


def _with_one_fewer(
    call: Call, dims: DynamicDims, attempt: Callable[[DynamicDims], Result], error: SardonyxError, why: str
) -> tuple[Result, DynamicDims]:
    """Drop the first dimension without which the attempt succeeds, otherwise all; raise `error` if that fails too."""
    candidates = [dim for dim in _sizes(call, dims.axes) if dim in _detected(dims)]
    if not candidates:
        raise error
    static = _without(call, dims, candidates, why)
    try:
        result = attempt(static)
    except (NotExportable, VerificationFailed):
        raise error from None
    for dim in candidates if len(candidates) > 1 else ():
        fewer = _without(call, dims, [dim], why)
        try:
            return attempt(fewer), fewer
        except (FixedDim, NotExportable, VerificationFailed):
            continue
    return result, static


def _detected(dims: DynamicDims) -> set[str]:
    """Return the dimensions that only `auto` found."""
    return _names(dims.axes) - _names(dims.named)


def _names(axes: Axes) -> set[str]:
    return {term for _, dim in places_of(axes) for term in dim_terms(dim)}


def _sizes(call: Call, axes: Axes) -> dict[str, int]:
    leaves = call.feeds
    return {dim: leaves[name].shape[axis] for (name, axis), dim in places_of(axes) if dim_terms(dim) == [dim]}


def _without(call: Call, dims: DynamicDims, fixed: Collection[str], why: str) -> DynamicDims:
    """Make some dimensions static; in a sum their sizes are substituted."""
    sizes = {dim: size for dim, size in _sizes(call, dims.axes).items() if dim in fixed}
    axes: dict[str, dict[int, str]] = {name: {} for name in dims.axes}
    for (name, axis), dim in places_of(dims.axes):
        if not _names({name: {axis: dim}}) <= set(fixed):
            axes[name][axis] = " + ".join(str(sizes.get(term, term)) for term in dim_terms(dim))
    notes = [f"{dim} stays {size}: {why}" for dim, size in sizes.items()]
    return replace(dims, axes=axes, notes=(*dims.notes, *notes))


_MOST_TRIES = 40  # runs of the tracer
_OVERSHOOTS = (0.01, 0.05, 0.25, 1.0)  # of the way to where the compared numbers are equal, one step after the other
_LONGEST = 2100  # of a dimension
_MOST_WORK = 1e11  # input elements times parameters
_GROWTH = 4  # input elements that are always tried, as a multiple of the example's
_LONGEST_TEXT = 40  # of a result


class Branch(Struct, frozen=True):
    """A Python value that the tracer fixed although inputs decide it."""

    place: Place
    result: str  # that the graph keeps
    trial: Feeds | None  # inputs with another result; None if none were found

    @property
    def other_side(self) -> str:
        """The condition under which the trial differs from the example."""
        if self.place.number is not None:
            return f"{self.place} is on the other side of {self.place.number:g} than while tracing"
        return f"{self.place} is not {self.result}, as it was while tracing"

    def __str__(self) -> str:
        tried = "no input was found that changes it: not" if self.trial is None else "inputs that change it were"
        return f"{self.place} is always {self.result} in the file; {tried} compared"


class _Line(Struct, frozen=True):
    """Inputs along one parameter: the size of a dimension, a factor or an offset of values."""

    start: float  # of the example
    probe: float
    at: Callable[[float], Feeds | None]
    whole: bool = False


def find_branches(call: Call, axes: Axes, first: Iterable[Feeds] = (), *, search: bool = True) -> list[Branch]:
    """Return the Python values that the tracer fixes and that inputs of these dynamic dimensions decide.

    Args:
        first: Inputs to try before any others.
        search: Search for inputs on the other side; otherwise only values that depend on more than sizes are found.
    """
    with traceable_experts(call.module), without_checks():
        found = _Search(call, axes)
        if search:
            found.run(first)
    refused = {id(feeds) for feeds in found.trials.values() if refusal(call.run, feeds) is not None}  # by its checks
    return [replace(each, trial=None) if id(each.trial) in refused else each for each in found.branches()]


class _Search:
    """A search from the example to the other sides of all branches."""

    def __init__(self, call: Call, axes: Axes) -> None:
        self._call, self._axes = call, axes
        self._example = call.feeds
        self._traced = trace(call, list(self._example.values()))
        self._first = dict.fromkeys(self._traced.fixed, self._traced)  # the first run that reached a place
        self._pending = list(self._first)
        self._varying: set[Place] = set()  # places whose compared numbers depend on sizes
        self.trials: dict[Place, Feeds] = {}
        self._tries = 0

    def run(self, first: Iterable[Feeds]) -> None:
        """Try other sizes and, for branches that read values of inputs, other values."""
        for feeds in first:
            self._try(feeds)
        for line in self._sizes():
            self._follow(line, lambda place: not self._read(place))
        for feeds in self._fills():
            self._try(feeds)
        for line in (*self._values(), *self._sizes()):
            self._follow(line, lambda place: bool(self._read(place)))

    def branches(self) -> list[Branch]:
        """Return what was found, in the order of the run."""
        left = {place for place in self._pending if place.number is None}
        known = {place for place in left if place in self._varying or self._read(place)} | self.trials.keys()
        found = [place for place in self._first if place in known]
        branches: list[Branch] = []
        for place in found:
            texts = list(dict.fromkeys(map(str, self._first[place].results(place))))
            text = texts[0] if len(texts) == 1 else "several values"
            shown = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
            branches.append(Branch(place, shown, self.trials.get(place)))
        return branches

    def _read(self, place: Place) -> frozenset[int]:
        return frozenset[int]().union(*(each.inputs for each in self._first[place].fixed[place]))

    def _try(self, feeds: Feeds | None) -> Traced | None:
        """Trace the module on other inputs and keep them for the branches that they change; None if it refuses them."""
        if feeds is None or not self._pending or self._tries >= _MOST_TRIES:
            return None
        self._tries += 1
        traced = trace(self._call, list(feeds.values()))
        for place in list(self._pending):
            before, now = self._first[place].decisions(place), traced.decisions(place)
            # two names of one size are always equally far apart
            if traced.error is None and any(abs(_gap(a) - _gap(b)) > 0 for a, b in zip(before, now, strict=False)):
                self._varying.add(place)
            changed = bool(now) and self._first[place].results(place)[: len(now)] != traced.results(place)
            if changed and traced.error is None:
                self.trials[place] = feeds
            if changed and (traced.error is None or traced.refuses_at(place)):  # a check raises on the other side
                self._pending.remove(place)
        if traced.error is not None:
            return None
        reached = [place for place in traced.fixed if place not in self._first]
        self._pending += reached
        self._first |= dict.fromkeys(reached, traced)
        return traced

    def _follow(self, line: _Line, chosen: Callable[[Place], bool]) -> None:
        """Try inputs along a line, beyond the places where the compared numbers of some branches are equal."""
        if not any(map(chosen, self._pending)) or (probed := self._try(line.at(line.probe))) is None:
            return
        points, done = [(line.start, self._traced), (line.probe, probed)], set[Place]()
        while place := next((each for each in self._pending if each not in done and chosen(each)), None):
            done.add(place)
            for overshoot in _OVERSHOOTS:
                reached = [point for point in points if place in point[1].fixed]
                for parameter in _beyond(_crossing(place, line.start, reached), line, overshoot):
                    traced = self._try(line.at(parameter)) if place in self._pending else None
                    if traced is not None:
                        points.append((parameter, traced))

    def _sizes(self) -> Iterator[_Line]:
        named = [(place, dim_terms(dim)) for place, dim in places_of(self._axes)]
        for dim in dict.fromkeys(term for _, terms in named for term in terms):
            places = [place for place, terms in named if dim in terms]
            alone = [place for place, terms in named if terms == [dim]]
            size = self._example[alone[0][0]].shape[alone[0][1]] if alone else 0
            if size == 0 or not self._pending:
                continue

            def at(other: float, places: list[tuple[str, int]] = places, size: int = size) -> Feeds | None:
                return resized(self._example, places, int(other) - size) if self._fits(other / size) else None

            yield _Line(size, size + 1, at, whole=True)

    def _fits(self, growth: float) -> bool:
        """Return whether inputs that are this many times as large take little enough work."""
        elements = sum(tensor.numel() for tensor in self._example.values())
        parameters = sum(parameter.numel() for parameter in self._call.module.parameters())
        longest = max((size for tensor in self._example.values() for size in tensor.shape), default=1)
        most = max(_GROWTH * elements, _MOST_WORK / max(parameters, 1))
        return growth > 0 and growth * elements <= most and (growth <= _GROWTH or growth * longest <= _LONGEST)

    def _inputs_read(self) -> list[str]:
        """Return the inputs whose values decide the branches that are left."""
        return [self._call.inputs[index] for index in sorted({i for place in self._pending for i in self._read(place)})]

    def _fills(self) -> Iterator[Feeds]:
        """Yield the example with ones, or ones and a last zero in every row, in one input of integers or flags."""
        for name in self._inputs_read():
            if not self._example[name].is_floating_point():
                ones = torch.ones_like(self._example[name])
                padded = ones.clone()
                (padded if padded.dim() else padded.view(1))[..., -1:] = 0
                yield from ({**self._example, name: filled} for filled in (ones, padded))

    def _values(self) -> Iterator[_Line]:
        """Yield factors and offsets of the floats together, and offsets of every input of integers."""

        def changed(names: list[str], change: Callable[[Tensor], Tensor]) -> Feeds:
            values = self._example.items()
            return {name: change(value).to(value.dtype) if name in names else value for name, value in values}

        floats = [name for name in self._inputs_read() if self._example[name].is_floating_point()]
        if floats:
            yield _Line(1.0, 0.0, lambda factor: changed(floats, lambda value: value * factor))
            yield _Line(0.0, 1.0, lambda offset: changed(floats, lambda value: value + offset))
        for name in self._inputs_read():
            tensor = self._example[name]
            is_mask = bool(((tensor == 0) | (tensor == 1)).all())
            if not tensor.is_floating_point() and tensor.dtype is not torch.bool and not is_mask:

                def at(offset: float, name: str = name) -> Feeds | None:
                    fits = abs(offset) < torch.iinfo(torch.int32).max
                    return changed([name], lambda value: value + int(offset)) if fits else None

                yield _Line(0, 1, at, whole=True)
                yield _Line(0, -1, at, whole=True)


def _gap(value: Fixed) -> float:
    return value.compared[0] - value.compared[1] if value.compared is not None else math.nan


def _crossing(place: Place, start: float, points: Sequence[tuple[float, Traced]]) -> float | None:
    """Return the parameter nearest to the start at which the compared numbers would be equal, on a straight line."""
    *_, (a, before), (b, after) = (points[0], *points) if points else ((start, None), (start, None))
    if before is None or after is None:
        return None
    found: list[float] = []
    for one, other in zip(before.decisions(place), after.decisions(place), strict=False):
        if a == b or one.step != other.step:  # one more point shows where a comparison goes that was reached just now
            return b + 0.1 * (b - start) if b != start else None
        low, high = _gap(one), _gap(other)
        target = b - high * (b - a) / (high - low) if high != low else math.nan
        found += [target] if math.isfinite(target) else []
    return min(found, key=lambda target: abs(target - start), default=None)


def _beyond(target: float | None, line: _Line, overshoot: float) -> list[float]:
    if target is None:
        return []
    if line.whole:
        return [float(round(target) + step) for step in (0, 1, -1)]
    return [target + overshoot * ((target - line.start) or 1.0)]
