"""Choose the precision of every module: the fastest or smallest model within a budget of loss.

Groups are measured alone and shapes are timed (`sensitivity`); a front gives the order in which groups are quantized. A
bisection along it measures whole models; among those within the budget, the best is timed against the source.
Predictions only order the work: what is returned was measured.

The front is ordered by gain for each unit of loss (a sweep of a Lagrange multiplier). The losses of modules that are
quantized alone add in squares, as a first prediction. For a multiplier λ, every group takes the option with the largest
gain - λ · loss²; as λ falls, groups change along the convex hulls of their options.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import GateNotMet, VerificationFailed
from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.expressions import Number
from sardonyx.records.progress import Clock
from sardonyx.records.quantization import FLOAT32, Choice, FrontPoint, GroupPrecision, ModuleGroup
from sardonyx.verbs.quantize.budget import Budget, Objective, loss_measures
from sardonyx.verbs.quantize.loss import size_of_loss
from sardonyx.verbs.quantize.precisions import Assignment, NothingQuantized, Plan, Precision
from sardonyx.verbs.quantize.recipe import Selection, Simulated
from sardonyx.verbs.quantize.sensitivity import (
    BRIEF,
    SECONDS,
    Group,
    Single,
    Timer,
    Trial,
    Trials,
    find_groups,
    shape_classes,
)


class Option(Struct, frozen=True):
    """A precision of a group."""

    precision: Precision
    gain: float  # milliseconds or bytes
    loss: float  # relative L2 of the model in which this group alone is quantized


class _Step(Struct, frozen=True):
    rate: float  # gain for each unit of squared loss
    group: int
    precision: Precision


def sweep(groups: Sequence[Sequence[Option]]) -> list[tuple[Precision | None, ...]]:
    """Return the precisions of all groups along the front, from none quantized (None) to the largest gain."""
    steps = [step for number, options in enumerate(groups) for step in _hull(number, options)]
    steps.sort(key=lambda step: -step.rate)  # stable: the steps of a hull have falling rates and stay in order
    state: list[Precision | None] = [None] * len(groups)
    plans = [tuple(state)]
    for step in steps:
        state[step.group] = step.precision
        plans.append(tuple(state))
    return plans


def _hull(group: int, options: Sequence[Option]) -> list[_Step]:
    """Return the steps from float32 along the upper hull of gain over squared loss."""
    gain, loss, steps = 0.0, 0.0, list[_Step]()
    while better := [option for option in options if option.gain > gain]:
        best = max(better, key=lambda option: (_rate(option, gain, loss), option.gain))
        steps.append(_Step(_rate(best, gain, loss), group, best.precision))
        gain, loss = best.gain, max(loss, best.loss**2)
    return steps


def _rate(option: Option, gain: float, loss: float) -> float:
    more = option.loss**2 - loss
    return (option.gain - gain) / more if more > 0 else math.inf


def predicted_loss(groups: Sequence[Sequence[Option]], plan: Sequence[Precision | None]) -> float:
    """Return the loss of a plan if the losses of its groups add in squares."""
    losses = [
        option.loss
        for options, precision in zip(groups, plan, strict=True)
        for option in options
        if option.precision == precision
    ]
    return math.sqrt(sum(loss * loss for loss in losses))


def pareto(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each pair of costs whether no other pair is lower in one and not higher in the other."""
    return [not any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in points) for a in points]


_HALF: Precision = "fp16"
_MOST_SINGLES = 96  # models with one quantized group
_FEWEST_GROUPS = 4  # even if that takes more models
_MOST_POINTS = 8  # whole models of the front whose loss is measured
_TIMED = 8  # whole models that are timed at once
_FASTER, _SMALLER = 0.95, 0.9  # a result takes at most so much of the source's time, or of its bytes
_BYTES_SHARE = 0.05  # of the time: what all bytes of the source are worth if time is the objective
_TOGETHER = 1 << 28  # bytes of constants up to which several models are timed at once


class Request(Struct, frozen=True):
    """What to choose from, and what to reach."""

    precisions: tuple[Precision, ...]
    selection: Selection
    budget: Budget
    objective: Objective


class Chosen(Struct, frozen=True):
    """The chosen plan, and how it was chosen."""

    plan: Plan
    choice: Choice
    budget: Budget
    refusal: GateNotMet | None  # why the model is only the nearest to what was asked for, and is not to be written


class _Point(Struct, frozen=True, eq=False):
    """A whole model."""

    label: str
    precisions: tuple[Precision | None, ...]  # by group
    plan: Plan
    trial: Trial
    predicted_l2: float
    saved: float  # predicted milliseconds
    time: Comparison | None = None


def choose(request: Request, trials: Trials, timer: Timer, clock: Clock) -> Chosen:
    """Return the best plan within the budget.

    Raises:
        GateNotMet: Every model has NaN or infinities.
        NothingQuantized: No product can be quantized.
    """
    return _Chooser(request, trials, timer, clock).chosen()


class _Chooser:
    def __init__(self, request: Request, trials: Trials, timer: Timer, clock: Clock) -> None:
        self._request, self._trials, self._timer, self._clock = request, trials, timer, clock
        self._budget = request.budget
        self._precisions: tuple[Precision, ...] = request.precisions  # that are tried for every group
        self._groups: list[Group] = []
        self._classes: list[int] = []
        self._singles: dict[tuple[int, Precision], Single] = {}
        self._times: dict[tuple[int, Precision], Comparison] = {}  # by class of shapes and precision
        self._milliseconds: float | None = None  # of the source
        self._sizes: dict[str, int] = {}
        self._points: list[_Point] = []

    def chosen(self) -> Chosen:
        with self._clock.phase("measuring modules"):
            self._find_groups()
            self._try_half()
            for single in self._trials.singles(self._groups, self._precisions, self._clock.tell):
                self._singles[single.group, single.precision] = single
        if self._request.objective == "time":
            with self._clock.phase("timing shapes"):
                self._time_classes()
        with self._clock.phase("measuring the front"):
            self._measure_front()
        with self._clock.phase("timing the choice"):
            best = self._best() or self._smallest()
        refusal = None
        if best is None:
            best, refusal = self._nearest()
        return Chosen(best.plan, self._record(best), self._budget, refusal)

    def _find_groups(self) -> None:
        selection, job = self._request.selection, self._trials.job
        # Conversion to float16 also has a simulation of each sum and activation, which are no groups of their own.
        precisions = self._without_half() or self._precisions
        found = [job.simulated((Assignment(precision, selection),))[1] for precision in precisions]
        order = {name: at for at, name in enumerate(job.labels)}
        every = sorted((product for each in found for product in each), key=lambda each: order.get(each.node, -1))
        products: dict[tuple[str, str], Simulated] = {}
        for product in every:
            products.setdefault((product.module, product.node), product)
        if not products:
            job.quantized((Assignment(precisions[0], selection),))  # raises with the reason
        self._groups = find_groups(list(products.values()), max(_FEWEST_GROUPS, _MOST_SINGLES // len(precisions)))
        self._classes = shape_classes(self._groups)

    def _without_half(self) -> tuple[Precision, ...]:
        return tuple(each for each in self._precisions if each != _HALF)

    def _try_half(self) -> None:
        """Number and time the model in float16; without a gain, it is tried for no module alone.

        CPUs without arithmetic in float16 are slower with it, and integers are smaller.
        """
        if _HALF not in self._precisions or self._precisions == (_HALF,):
            return
        try:
            self._measure(f"all {_HALF}", (_HALF,) * len(self._groups))
        except NothingQuantized:
            self._precisions = self._without_half()
            return
        if self._request.objective == "time":
            self._time(self._points, BRIEF)
        if not any(point.time is not None and point.time.finding is Finding.FASTER for point in self._points):
            self._precisions = self._without_half()

    # Gain

    def _time_classes(self) -> None:
        """Time the models in which all groups of one class of shapes are quantized, for each class and precision."""
        shapes = sorted(set(self._classes))
        for at, shape in enumerate(shapes):
            self._clock.tell(f"timing shape {at + 1} of {len(shapes)}", at / len(shapes))
            numbers = [number for number, each in enumerate(self._classes) if each == shape]
            members = [self._groups[number] for number in numbers]
            precisions: list[Precision] = [
                precision
                for precision in self._precisions
                if any(self._excluded(self._singles[number, precision]) is None for number in numbers)
            ]
            at_once = len(precisions) if self._trials.job.before.bytes <= _TOGETHER else 1
            for first in range(0, len(precisions), max(1, at_once)):
                batch: list[Precision] = precisions[first : first + at_once]
                timed = self._timer.time({each: self._whole(each, members) for each in batch}, BRIEF)
                self._milliseconds, self._sizes = timed.milliseconds, timed.sizes
                for precision in batch:
                    self._times[shape, precision] = timed.comparisons[precision]

    def _whole(self, precision: Precision, groups: Sequence[Group]) -> ir.Model:
        return self._trials.model(self._trials.plan({precision: groups}))

    def _saved(self, group: int, precision: Precision) -> float | None:
        """Return the milliseconds that a group in this precision saves; None: not timed."""
        comparison = self._times.get((self._classes[group], precision))
        if comparison is None or self._milliseconds is None:
            return None
        together = sum(
            each.elements
            for each, shape in zip(self._groups, self._classes, strict=True)
            if shape == self._classes[group]
        )
        return self._milliseconds * (1 - comparison.ratio) * self._groups[group].elements / max(1, together)

    def _excluded(self, single: Single) -> str | None:
        """Return why a precision is no option for a group."""
        if single.trial is None or single.failure is not None:
            return single.failure
        is_smaller = single.trial.bytes < self._trials.job.before.bytes
        if self._request.objective == "bytes":
            return None if is_smaller else "not smaller"
        comparison = self._times.get((self._classes[single.group], single.precision))
        if comparison is None or comparison.finding is Finding.FASTER:
            return None
        if comparison.finding is Finding.SLOWER:
            return "slower"
        return None if is_smaller else "neither faster nor smaller"

    def _options(self, group: int, *, every: bool = False) -> list[Option]:
        """Return the options of a group for the sweep; `every`: also those that were excluded."""
        options: list[Option] = []
        for precision in self._precisions:
            single = self._singles[group, precision]
            if single.trial is None or (not every and self._excluded(single) is not None):
                continue
            gain = self._gain(group, precision, self._trials.job.before.bytes - single.trial.bytes)
            options.append(Option(precision, gain, size_of_loss(single.trial.scores)))
        return options

    def _gain(self, group: int, precision: Precision, fewer_bytes: int) -> float:
        """Return the bytes, or the milliseconds, that a group saves in a precision; where both matter, as one."""
        if self._request.objective == "bytes":
            return fewer_bytes
        comparison = self._times.get((self._classes[group], precision))
        is_faster = comparison is not None and comparison.finding is Finding.FASTER
        saved = (self._saved(group, precision) or 0.0) if is_faster else 0.0
        share = fewer_bytes / max(1, self._trials.job.before.bytes)
        return saved + _BYTES_SHARE * share * (self._milliseconds or 1.0)

    # Whole models

    def _measure_front(self) -> None:
        """Number the uniform models, and points of the front: a bisection for the budget, then evenly."""
        for precision in self._precisions:
            usable: tuple[Precision | None, ...] = tuple(
                precision if self._singles[number, precision].trial is not None else None
                for number in range(len(self._groups))
            )
            if any(usable):
                self._measure(f"all {precision}", usable)
        front = sweep([self._options(number) for number in range(len(self._groups))])
        last = len(front) - 1
        if last == 0:
            return
        visited: dict[int, bool] = {0: True}
        low, high = 0, last + 1
        middle = last
        while len(visited) <= _MOST_POINTS and high - low > 1:
            visited[middle] = self._measure(f"mixed {middle}", front[middle])
            low, high = (middle, high) if visited[middle] else (low, middle)
            middle = (low + high) // 2
        for at in range(1, _MOST_POINTS):
            step = round(at * last / (_MOST_POINTS - 1))
            if step not in visited and len(visited) <= _MOST_POINTS:
                visited[step] = self._measure(f"mixed {step}", front[step])

    def _measure(self, label: str, precisions: tuple[Precision | None, ...]) -> bool:
        """Number a whole model, and return whether its loss is within the budget."""
        known = next((point for point in self._points if point.precisions == precisions), None)
        if known is not None:
            return not self._broken(known, surely=True)
        self._clock.tell(f"measuring {label}", None)
        plan = self._plan(precisions)
        try:
            trial = self._trials.measured(plan)
        except VerificationFailed:
            return False
        self._budget.check_rows(trial.scores)
        saved = sum(
            self._saved(group, precision) or 0.0 for group, precision in enumerate(precisions) if precision is not None
        )
        predicted = size_of_loss(trial.scores)
        if self._singles:
            every = [self._options(number, every=True) for number in range(len(self._groups))]
            predicted = predicted_loss(every, precisions)
        point = _Point(label, precisions, plan, trial, predicted, saved)
        self._points.append(point)
        return not self._broken(point, surely=True)

    def _plan(self, precisions: Sequence[Precision | None]) -> Plan:
        chosen: dict[Precision, list[Group]] = {precision: [] for precision in self._request.precisions}
        for group, precision in zip(self._groups, precisions, strict=True):
            if precision is not None:
                chosen[precision].append(group)
        owned = {module for group in self._groups for module in group.modules}
        between = tuple(dict.fromkeys(each for each in self._trials.job.owners if each not in owned))
        return self._trials.plan(chosen, between)

    def _measures(self, point: _Point) -> dict[str, Number]:
        ratio = point.trial.bytes / self._trials.job.before.bytes
        timed = {} if point.time is None else {"time": Number(point.time.ratio, 1.0)}
        losses = loss_measures(point.trial.scores)
        if (top1 := losses.get("top1")) is not None and point.trial.expected_top1 is not None:
            losses["top1"] = Number(min(top1.value, point.trial.expected_top1), 1.0)
        return losses | {"bytes": Number(ratio, 1.0)} | timed

    def _broken(self, point: _Point, *, surely: bool) -> list[str]:
        return self._budget.broken(self._measures(point), surely=surely)

    # The best

    def _best(self) -> _Point | None:
        """Return the point within the budget that costs least, if it is faster or smaller by a margin."""
        within = [point for point in self._points if not self._broken(point, surely=True)]
        within.sort(key=self._cost)
        uniform = [point for point in self._points if point.label in (f"all {each}" for each in self._precisions)]
        at_once = _TIMED if self._trials.job.before.bytes <= _TOGETHER else 1
        for first in range(0, len(within), at_once):
            batch = within[first : first + at_once]
            self._time([*batch, *(point for point in uniform[:1] if point not in batch)])
            for point in sorted((self._current(point) for point in batch), key=self._cost):
                is_small = self._request.objective == "bytes" and self._is_small(point)
                if not self._broken(point, surely=True) and (is_small or self._is_fast(point)):
                    return point
        return None

    def _smallest(self) -> _Point | None:
        """Return the smallest point within the budget that is not slower, if it is smaller by a margin."""
        timed = sorted(map(self._current, self._points), key=lambda point: point.trial.bytes)
        for point in timed:
            is_slower = point.time is not None and point.time.finding is Finding.SLOWER
            if self._is_small(point) and not is_slower and not self._broken(point, surely=True):
                return point
        return None

    def _is_fast(self, point: _Point) -> bool:
        """Return whether a model is faster than the source by a margin."""
        return point.time is not None and point.time.finding is Finding.FASTER and point.time.ratio <= _FASTER

    def _is_small(self, point: _Point) -> bool:
        """Return whether a model is smaller than the source by a margin."""
        return point.trial.bytes <= _SMALLER * self._trials.job.before.bytes

    def _nearest(self) -> tuple[_Point, GateNotMet]:
        """Return the point that is nearest to the budget, and the error that says why it is not written.

        Raises:
            GateNotMet: There is none.
        """
        if not self._points:
            raise GateNotMet("nothing can be quantized without NaN or infinities", hint="nothing was written")
        points, wanted = [self._current(point) for point in self._points], ", ".join(self._budget.texts)
        within = [point for point in points if not self._broken(point, surely=True)]
        if within:
            best = min(within, key=self._cost)
            gains = f"faster by {1 - _FASTER:.0%} or smaller by {1 - _SMALLER:.0%}"
            why = f"nothing within the budget {wanted} is {gains}; nearest: {self._described(best)}"
            return best, GateNotMet(why, hint="nothing was written")
        nearest = min(points, key=lambda point: self._budget.excess(self._measures(point)))
        self._time([nearest])
        nearest = self._current(nearest)
        why = f"nothing meets the budget {wanted}; nearest: {self._described(nearest)}"
        wider = ", ".join(self._budget.widened(self._measures(nearest)))
        return nearest, GateNotMet(why, hint=f"nothing was written; the budget {wider!r} is met by {nearest.label!r}")

    def _described(self, point: _Point) -> str:
        scores = point.trial.scores
        loss = scores.relative_l2
        parts = [point.label, f"relative_l2 {loss.value:.2g} [{loss.low:.2g}, {loss.high:.2g}]"]
        parts += [f"cosine {scores.cosine.value:.6g}"] if self._budget.bounds("cosine") else []
        parts += [f"top1 {scores.top1.value:.4g}"] if scores.top1 is not None else []
        parts += [f"metric drop {scores.metric.value:.3g}"] if scores.metric is not None else []
        parts.append(f"bytes {point.trial.bytes / self._trials.job.before.bytes:.2f}")
        parts += [f"time {point.time.ratio:.2f}"] if point.time is not None else []
        return ", ".join(parts)

    def _time(self, points: Sequence[_Point], seconds: float = SECONDS) -> None:
        untimed = [point for point in map(self._current, points) if point.time is None]
        if not untimed:
            return
        timed = self._timer.time({point.label: self._trials.model(point.plan) for point in untimed}, seconds)
        self._milliseconds, self._sizes = timed.milliseconds, timed.sizes
        self._points = [replace(point, time=timed.comparisons.get(point.label, point.time)) for point in self._points]

    def _current(self, point: _Point) -> _Point:
        return next(each for each in self._points if each.label == point.label)

    def _cost(self, point: _Point) -> float:
        if self._request.objective == "bytes":
            return point.trial.bytes
        time = self._predicted_time(point) if point.time is None else point.time.ratio
        return time + _BYTES_SHARE * point.trial.bytes / max(1, self._trials.job.before.bytes)

    def _predicted_time(self, point: _Point) -> float:
        return 1 - point.saved / self._milliseconds if self._milliseconds else 1.0

    # The record

    def _record(self, best: _Point) -> Choice:
        points = sorted(map(self._current, self._points), key=lambda point: point.trial.scores.relative_l2.value)
        front = pareto([(point.trial.scores.relative_l2.value, self._cost(point)) for point in points])
        return Choice(
            objective=self._request.objective,
            budget=self._budget.texts,
            is_default=self._budget.is_default,
            precisions=self._request.precisions,
            sizes=self._sizes,
            source_milliseconds=self._milliseconds,
            groups=tuple(self._group(number, best) for number in range(len(self._groups))),
            points=tuple(self._front_point(point, on) for point, on in zip(points, front, strict=True)),
            chosen=[point.label for point in points].index(best.label),
            models=self._trials.models,
        )

    def _front_point(self, point: _Point, on_front: bool) -> FrontPoint:
        return FrontPoint(
            label=point.label,
            groups=dict(Counter(precision or FLOAT32 for precision in point.precisions)),
            predicted_l2=point.predicted_l2,
            scores=point.trial.scores,
            bytes=point.trial.bytes,
            bytes_ratio=point.trial.bytes / self._trials.job.before.bytes,
            predicted_time=self._predicted_time(point) if self._times else None,
            time=point.time,
            within=not self._broken(point, surely=True),
            on_front=on_front,
        )

    def _group(self, number: int, best: _Point) -> ModuleGroup:
        group = self._groups[number]
        singles = [self._singles[number, precision] for precision in self._precisions]
        options = tuple(
            GroupPrecision(
                single.precision,
                single.trial.scores,
                single.trial.bytes,
                self._saved(number, single.precision),
                self._times.get((self._classes[number], single.precision)),
                self._excluded(single),
            )
            for single in singles
            if single.trial is not None
        )
        chosen = best.precisions[number] or FLOAT32
        return ModuleGroup(
            group.name,
            group.modules,
            group.products,
            4 * group.elements,
            self._classes[number],
            options,
            chosen,
            self._reason(number, chosen),
        )

    def _reason(self, number: int, chosen: str) -> str:
        if chosen != FLOAT32:
            return "within the budget"
        reasons: Mapping[str, str | None] = {
            precision: self._excluded(self._singles[number, precision]) for precision in self._precisions
        }
        if all(reasons.values()):
            return ", ".join(dict.fromkeys(reason for reason in reasons.values() if reason))
        losses = [option.loss for option in self._options(number)]
        return f"relative L2 {min(losses):.2g} alone" if losses else "not measured"
