"""Choose the precision of every module: the fastest or smallest model within a budget of loss.

Groups are measured alone (`sensitivity`), shapes are timed (`timing`), and `front` gives the order in which groups are
quantized. A bisection along it measures whole models; among those within the budget, the best is timed against the
source. Predictions only order the work: what is returned was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import GateNotMet, VerificationFailed
from sardonyx.quantization.budget import Budget, Objective, loss_measures
from sardonyx.quantization.front import Option, pareto, predicted_loss, sweep
from sardonyx.quantization.groups import Group, find_groups, shape_classes
from sardonyx.quantization.precisions import Assignment, Plan, Precision
from sardonyx.quantization.recipe import Selection, Simulated
from sardonyx.quantization.sensitivity import Single, Trial, Trials
from sardonyx.quantization.timing import Timer
from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.expressions import Number
from sardonyx.records.progress import Clock
from sardonyx.records.quantization import FLOAT32, Choice, FrontPoint, GroupPrecision, ModuleGroup

_MOST_SINGLES = 96  # models with one quantized group
_FEWEST_GROUPS = 4  # even if that takes more models
_MOST_POINTS = 8  # whole models of the front whose loss is measured
_TIMED = 3  # whole models that are timed at once
_NOT_FASTER = ("not faster", "slower")  # why a precision is no option
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
    budget: Budget  # without what the outputs do not have


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
        GateNotMet: No measured model meets the budget, or none is faster than the source.
        NothingQuantized: No product can be quantized.
    """
    return _Chooser(request, trials, timer, clock).chosen()


class _Chooser:
    def __init__(self, request: Request, trials: Trials, timer: Timer, clock: Clock) -> None:
        self._request, self._trials, self._timer, self._clock = request, trials, timer, clock
        self._budget = request.budget
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
            for single in self._trials.singles(self._groups, self._request.precisions, self._clock.tell):
                self._singles[single.group, single.precision] = single
        self._fit_budget()
        if self._request.objective == "time":
            with self._clock.phase("timing shapes"):
                self._time_classes()
        with self._clock.phase("measuring the front"):
            self._measure_front()
        with self._clock.phase("timing the choice"):
            best = self._best()
        return Chosen(best.plan, self._record(best), self._budget)

    def _find_groups(self) -> None:
        precisions, selection, job = self._request.precisions, self._request.selection, self._trials.job
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

    def _fit_budget(self) -> None:
        trial = next((single.trial for single in self._singles.values() if single.trial is not None), None)
        if trial is not None and trial.scores.top1 is None:
            self._budget = self._budget.without_rows()

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
                for precision in self._request.precisions
                if any(self._excluded(self._singles[number, precision]) is None for number in numbers)
            ]
            at_once = len(precisions) if self._trials.job.before.bytes <= _TOGETHER else 1
            for first in range(0, len(precisions), max(1, at_once)):
                batch: list[Precision] = precisions[first : first + at_once]
                timed = self._timer.time({each: self._whole(each, members) for each in batch})
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
        if self._request.objective == "bytes":
            return None if single.trial.bytes < self._trials.job.before.bytes else "not smaller"
        comparison = self._times.get((self._classes[single.group], single.precision))
        if comparison is None or comparison.finding is Finding.FASTER:
            return None
        return _NOT_FASTER[comparison.finding is Finding.SLOWER]

    def _options(self, group: int, *, every: bool = False) -> list[Option]:
        """Return the options of a group for the sweep; `every`: also those that were excluded."""
        options: list[Option] = []
        for precision in self._request.precisions:
            single = self._singles[group, precision]
            if single.trial is None or (not every and self._excluded(single) is not None):
                continue
            saved = self._saved(group, precision) or 0.0
            gain = saved if self._request.objective == "time" else self._trials.job.before.bytes - single.trial.bytes
            options.append(Option(precision, gain, single.trial.scores.relative_l2.value))
        return options

    # Whole models

    def _measure_front(self) -> None:
        """Measure the uniform models, and points of the front: a bisection for the budget, then evenly."""
        for precision in self._request.precisions:
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
        """Measure a whole model, and return whether its loss is within the budget."""
        known = next((point for point in self._points if point.precisions == precisions), None)
        if known is not None:
            return not self._broken(known, surely=True)
        self._clock.tell(f"measuring {label}", None)
        plan = self._plan(precisions)
        try:
            trial = self._trials.measured(plan)
        except VerificationFailed:
            return False
        every = [self._options(number, every=True) for number in range(len(self._groups))]
        saved = sum(
            self._saved(group, precision) or 0.0 for group, precision in enumerate(precisions) if precision is not None
        )
        point = _Point(label, precisions, plan, trial, predicted_loss(every, precisions), saved)
        self._points.append(point)
        return not self._broken(point, surely=True)

    def _plan(self, precisions: Sequence[Precision | None]) -> Plan:
        chosen: dict[Precision, list[Group]] = {precision: [] for precision in self._request.precisions}
        for group, precision in zip(self._groups, precisions, strict=True):
            if precision is not None:
                chosen[precision].append(group)
        return self._trials.plan(chosen)

    def _measures(self, point: _Point) -> dict[str, Number]:
        ratio = point.trial.bytes / self._trials.job.before.bytes
        timed = {} if point.time is None else {"time": Number(point.time.ratio, 1.0)}
        return loss_measures(point.trial.scores) | {"bytes": Number(ratio, 1.0)} | timed

    def _broken(self, point: _Point, *, surely: bool) -> list[str]:
        return self._budget.broken(self._measures(point), surely=surely)

    # The best

    def _best(self) -> _Point:
        within = [point for point in self._points if not self._broken(point, surely=True)]
        if not within:
            raise self._unmet()
        within.sort(key=self._cost)
        uniform = [point for point in self._points if point.label.startswith("all ")]
        at_once = _TIMED if self._trials.job.before.bytes <= _TOGETHER else 1
        while within:
            batch = within[:at_once]
            self._time([*batch, *(point for point in uniform[:1] if point not in batch)])
            for point in sorted((self._current(point) for point in batch), key=self._cost):
                if not self._broken(point, surely=True) and self._is_fast(point):
                    return point
            within = within[at_once:]
        raise self._unmet()

    def _is_fast(self, point: _Point) -> bool:
        """Return whether a model is not slower than the source, and faster if some of its modules alone are not."""
        if self._request.objective == "bytes" or point.time is None:
            return True
        singles = [self._singles[group, each] for group, each in enumerate(point.precisions) if each is not None]
        if any(self._excluded(single) in _NOT_FASTER for single in singles):
            return point.time.finding is Finding.FASTER
        return point.time.finding is not Finding.SLOWER

    def _time(self, points: Sequence[_Point]) -> None:
        untimed = [point for point in map(self._current, points) if point.time is None]
        if not untimed:
            return
        timed = self._timer.time({point.label: self._trials.model(point.plan) for point in untimed})
        self._milliseconds, self._sizes = timed.milliseconds, timed.sizes
        self._points = [replace(point, time=timed.comparisons.get(point.label, point.time)) for point in self._points]

    def _current(self, point: _Point) -> _Point:
        return next(each for each in self._points if each.label == point.label)

    def _cost(self, point: _Point) -> float:
        if self._request.objective == "bytes":
            return point.trial.bytes
        return self._predicted_time(point) if point.time is None else point.time.ratio

    def _predicted_time(self, point: _Point) -> float:
        return 1 - point.saved / self._milliseconds if self._milliseconds else 1.0

    def _unmet(self) -> GateNotMet:
        if not self._points:
            return GateNotMet("nothing can be quantized without NaN or infinities", hint="nothing was written")
        nearest = min(self._points, key=lambda point: self._budget.excess(self._measures(point)))
        broken = self._broken(nearest, surely=True)
        scores = nearest.trial.scores
        loss = scores.relative_l2
        parts = [f"relative_l2 {loss.value:.2g} [{loss.low:.2g}, {loss.high:.2g}]"]
        parts += [f"top1 {scores.top1.value:.4g}"] if scores.top1 is not None else []
        parts += [f"metric drop {scores.metric.value:.3g}"] if scores.metric is not None else []
        parts.append(f"bytes {nearest.trial.bytes / self._trials.job.before.bytes:.2f}")
        parts += [f"time {nearest.time.ratio:.2f}"] if nearest.time is not None else []
        why = (
            f"nothing meets the budget {', '.join(self._budget.texts)}"
            if broken
            else "nothing within the budget is faster than float32"
        )
        return GateNotMet(f"{why}; nearest: {nearest.label}, {', '.join(parts)}", hint="nothing was written")

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
        singles = [self._singles[number, precision] for precision in self._request.precisions]
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
            precision: self._excluded(self._singles[number, precision]) for precision in self._request.precisions
        }
        if all(reasons.values()):
            return ", ".join(dict.fromkeys(reason for reason in reasons.values() if reason))
        losses = [option.loss for option in self._options(number)]
        return f"relative L2 {min(losses):.2g} alone" if losses else "not measured"
