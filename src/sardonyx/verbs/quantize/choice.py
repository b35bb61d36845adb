"""Choose the precision of every module: the fastest or smallest model within a budget of loss.

All modules in each precision are measured first, and timed in one set of turns; then groups of equal shapes are. The
model in which each group has the precision with the largest gain follows. If it is within the budget, the choice is
made. Otherwise groups are measured alone (`sensitivity`), and a front gives the order in which they are quantized. A
bisection along it measures whole models; among those within the budget, the best is timed against the source.
Predictions only order the work: what is returned was measured.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import GateNotMet, VerificationFailed
from sardonyx.records.bench import Comparison, Finding
from sardonyx.records.expressions import Number
from sardonyx.records.progress import Clock
from sardonyx.records.provenance import module_of
from sardonyx.records.quantization import FLOAT32, Choice, FrontPoint, GroupPrecision, ModuleGroup
from sardonyx.verbs.quantize.budget import Budget, Objective, loss_measures
from sardonyx.verbs.quantize.loss import size_of_loss
from sardonyx.verbs.quantize.precisions import Assignment, NothingQuantized, Plan, Precision
from sardonyx.verbs.quantize.recipe import Selection, Simulated
from sardonyx.verbs.quantize.sensitivity import (
    BRIEF_SECONDS,
    PATIENT_SECONDS,
    SECONDS,
    Group,
    Option,
    Trial,
    Trials,
    find_groups,
    pareto,
    sweep,
)

_HALF: Precision = "fp16"
_STATIC: Precision = "int8-static"
_ALL = "all "  # before the precision of a uniform model
_MOST_SINGLES = 96  # models with one quantized group
_FEWEST_GROUPS = 4  # even if that takes more models
# Samples for one quantized group: its loss orders the search, and is not compared with the budget.
_SENSITIVITY_SAMPLES = 4
_MOST_POINTS = 8  # whole models of the front whose loss is measured
_MAX_TIMED_MODELS = 3  # whole models that may be the result and are timed at once
# Of the source's time: a precision that is slower by so much for all modules is timed for none alone.
_HOPELESS_TIME = 2.0
_MAX_TIME_IF_SMALLER = 1.02  # of the source's time: what a result that is only smaller may take
_BITS: Mapping[Precision, float] = {"int4": 5, "fp16": 16, "bf16": 16}  # of an element with its scale; 8 for others
_ABOUT_EQUAL_FACTOR = 1.1  # of a loss or of bytes: what counts as about the same
_FASTER_SHARE, _SMALLER_SHARE = 0.95, 0.9  # a result takes at most so much of the source's time, or of its bytes
_BYTES_SHARE = 0.05  # of the time: what all bytes of the source are worth if time is the objective

_Key = tuple[int, Precision]  # a group, or a class of shapes
_Precisions = tuple[Precision | None, ...]  # by group; None: float32


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


class _Point(Struct, eq=False):
    """A whole model."""

    label: str
    precisions: _Precisions
    plan: Plan
    trial: Trial
    model: ir.Model
    time: Comparison | None = None

    @property
    def loss(self) -> float:
        return size_of_loss(self.trial.scores)

    @property
    def uniform(self) -> str:
        """The precision of a uniform model."""
        return self.label.removeprefix(_ALL)


class Chooser:
    """Searches for the best plan within a budget."""

    def __init__(self, request: Request, trials: Trials, clock: Clock) -> None:
        self._request, self._trials, self._clock = request, trials, clock
        self._budget, self._by_bytes = request.budget, request.objective == "bytes"
        self._source_bytes = trials.job.before.bytes
        self._precisions: tuple[Precision, ...] = request.precisions  # that are tried for every group
        self._groups: list[Group] = []
        self._failures: dict[_Key, str] = {}  # why a precision is no option of a group
        self._same: dict[_Key, Precision] = {}  # the precision with the same form
        self._singles: dict[_Key, Trial] = {}  # that were measured
        self._times: dict[_Key, Comparison] = {}  # by class of shapes and precision
        self._points: list[_Point] = []

    def chosen(self) -> Chosen:
        """Return the best plan within the budget.

        Raises:
            GateNotMet: Every model has NaN or infinities.
            NothingQuantized: No product can be quantized.
        """
        with self._clock.phase("measuring uniform models"):
            self._find_groups()
            self._measure_uniform()
            self._compare_scales()
        if not self._by_bytes:
            with self._clock.phase("timing shapes"):
                self._time_uniform()
                self._time_classes()
        self._compare_ranges()
        largest: _Precisions = tuple(self._largest_gain(number) for number in range(len(self._groups)))
        if any(largest):
            with self._clock.phase("measuring the front"):
                mixed = self._measure("mixed", largest)
            if not self._is_within(mixed):
                with self._clock.phase("measuring modules"):
                    self._measure_singles()
                with self._clock.phase("measuring the front"):
                    self._measure_front()
        with self._clock.phase("timing the choice"):
            best, refusal = self._best() or self._smallest(), None
            if best is None:
                best, refusal = self._nearest()
            else:
                best = self._with_one_scale(best)
        return Chosen(best.plan, self._record(best), self._budget, refusal)

    def _find_groups(self) -> None:
        selection, job = self._request.selection, self._trials.job
        # Conversion to float16 also has a simulation of each sum and activation, which are no groups of their own.
        others: tuple[Precision, ...] = tuple(each for each in self._precisions if each != _HALF)
        precisions = others or self._precisions
        found: dict[Precision, list[Simulated]] = {
            precision: job.simulated((Assignment(precision, selection),))[1] for precision in precisions
        }
        order = {name: at for at, name in enumerate(job.labels)}
        every = [product for each in found.values() for product in each]
        products: dict[tuple[str, str], Simulated] = {}
        for product in sorted(every, key=lambda each: order.get(each.node, -1)):
            products.setdefault((product.module, product.node), product)
        if not products:
            job.quantized((Assignment(precisions[0], selection),))  # raises with the reason
        self._groups = find_groups(list(products.values()), max(_FEWEST_GROUPS, _MOST_SINGLES // len(precisions)))
        self._compare_forms(found)

    def _compare_forms(self, found: Mapping[Precision, Sequence[Simulated]]) -> None:
        """Find the groups without a form in some precision, or with the same in several, as filters in 4 bits."""
        group_of = {module: number for number, group in enumerate(self._groups) for module in group.modules}
        known: dict[tuple[int, frozenset[tuple[str, str]]], Precision] = {}
        for precision, products in found.items():
            forms: dict[int, set[tuple[str, str]]] = {number: set() for number in range(len(self._groups))}
            for product in products:
                number = group_of.get(module_of(product.module) or product.node)
                if number is not None:
                    forms[number].add((product.node, product.recipe))
            for number, form in forms.items():
                first = known.setdefault((number, frozenset(form)), precision)
                if not form:
                    self._failures[number, precision] = "no such form"
                elif first != precision:
                    self._failures[number, precision] = f"as {first}"
                    self._same[number, precision] = first

    def _form(self, group: int, precision: Precision) -> Precision | None:
        """Return the precision that a group has in the model with all modules in one; None for float32."""
        is_option = (group, precision) not in self._failures
        return precision if is_option else self._same.get((group, precision))

    def _measure_uniform(self) -> None:
        """Measure the models with all modules in one precision."""
        for precision in self._precisions:
            usable: _Precisions = tuple(self._form(number, precision) for number in range(len(self._groups)))
            try:
                if any(usable):
                    self._measure(f"{_ALL}{precision}", usable)
            except NothingQuantized:
                self._precisions = tuple(each for each in self._precisions if each != precision)

    def _compare_scales(self) -> None:
        """Leave out the scales of rows if the loss stays within the budget, or as it is: this always saves time."""
        rows = next((point for point in self._points if point.uniform == "int8"), None)
        if rows is not None and not self._by_bytes:
            self._replaced(
                rows, lambda one: self._is_within(one) or one.loss <= _ABOUT_EQUAL_FACTOR * rows.loss, by_rows=False
            )

    def _with_one_scale(self, best: _Point) -> _Point:
        """Return the best model with one scale for each weight of `int8`, if it is within the budget and faster."""

        def is_better(one: _Point) -> bool:
            if one.trial.bytes >= best.trial.bytes or not self._is_within(one):
                return False  # it has no products of int8, or loses too much
            times = self._trials.compared({"one scale": one.model}, PATIENT_SECONDS, best.model)
            return times["one scale"].finding is Finding.FASTER

        if self._by_bytes or "int8" not in best.precisions:
            return best
        found = self._replaced(best, is_better, by_columns=False)
        self._time([found] if found.time is None else [], PATIENT_SECONDS)
        return found

    def _replaced(self, old: _Point, is_better: Callable[[_Point], bool], **scales: bool) -> _Point:
        """Use other scales in `int8` from now on if a model is better with them; return it with those that are used."""
        job, points = self._trials.job, self._points
        recipes, job.recipes = job.recipes, replace(job.recipes, **scales)
        self._points = [point for point in points if point is not old]
        new = self._measure(old.label, old.precisions)
        if new is not None and is_better(new):
            return new
        job.recipes, self._points = recipes, points
        return old

    # Gain

    def _is_stored(self, precision: str | None) -> bool:
        """Return whether weights are only stored in a precision, and computed in float32 as in the source."""
        return precision == "int8-weights" and self._trials.job.recipes.target == "portable"

    def _time_uniform(self) -> None:
        """Time the uniform models; a precision that is slower for all modules by far is tried for none alone.

        So is float16 if it is not faster: integers are smaller, and CPUs without arithmetic in it are slower.
        """
        self._time([point for point in self._points if not self._is_stored(point.uniform)], BRIEF_SECONDS)
        for point in self._points:
            precision, time = point.uniform, point.time
            is_slower = time is not None and time.finding is not Finding.FASTER
            if time is not None and (time.ratio > _HOPELESS_TIME or (precision == _HALF and is_slower)):
                for number, each in itertools.product(range(len(self._groups)), self._precisions):
                    if each == precision:
                        self._failures.setdefault((number, each), "slower")

    def _compare_ranges(self) -> None:
        """Use the best static ranges, if some group may get them; which they are makes no difference in time."""
        groups = range(len(self._groups))
        if _STATIC not in self._precisions or all(self._excluded(group, _STATIC) for group in groups):
            return
        with self._clock.phase("calibrating"):
            self._trials.use_best_ranges()
        old = next((point for point in self._points if point.uniform == _STATIC), None)
        if old is not None:
            self._points.remove(old)
            if (new := self._measure(old.label, old.precisions)) is not None:
                new.time = old.time

    def _time_classes(self) -> None:
        """Time the models in which all groups of one class of shapes are quantized, for each class and precision."""
        shapes, models = sorted({group.number for group in self._groups}), dict[str, ir.Model]()
        of_label: dict[str, tuple[int, Precision]] = {}
        uniform = {point.uniform: point.time for point in self._points}
        for shape, precision in itertools.product(shapes, self._precisions):
            numbers = [number for number, group in enumerate(self._groups) if group.number == shape]
            if self._is_stored(precision) or all((number, precision) in self._failures for number in numbers):
                continue
            if len(shapes) == 1 and (time := uniform.get(precision)) is not None:
                self._times[shape, precision] = time
                continue
            label = f"{precision}/{shape}"
            of_label[label] = shape, precision
            plan = self._trials.plan({precision: [self._groups[number] for number in numbers]})
            try:
                models[label] = self._trials.job.quantized(plan)[0].model
            except NothingQuantized:  # float16 saves no casts
                self._failures |= {(number, precision): "no such form" for number in numbers}
        for label, comparison in self._trials.compared(models, BRIEF_SECONDS).items():
            self._times[of_label[label]] = comparison

    def _saved(self, group: int, precision: Precision) -> float | None:
        """Return the milliseconds that a group in this precision saves; None: not timed."""
        one, comparison, milliseconds = self._groups[group], self._compared(group, precision), self._trials.milliseconds
        if comparison is None or milliseconds is None:
            return None
        together = sum(each.elements for each in self._groups if each.number == one.number)
        return milliseconds * (1 - comparison.ratio) * one.elements / max(1, together)

    def _compared(self, group: int, precision: Precision) -> Comparison | None:
        """Return the time of the model in which all groups of these shapes are in a precision."""
        return self._times.get((self._groups[group].number, precision))

    def _excluded(self, group: int, precision: Precision) -> str | None:
        """Return why a precision is no option for a group."""
        failure = self._failures.get((group, precision))
        single = self._singles.get((group, precision))
        if failure is not None:
            return failure
        is_smaller = single is None or single.bytes < self._source_bytes
        if self._by_bytes:
            return None if is_smaller else "not smaller"
        comparison = self._compared(group, precision)
        if comparison is None or comparison.finding is Finding.FASTER:
            return None
        if comparison.finding is Finding.SLOWER:
            return "slower"
        return None if is_smaller else "neither faster nor smaller"

    def _usable(self, group: int) -> list[Precision]:
        return [precision for precision in self._precisions if self._excluded(group, precision) is None]

    def _options(self, group: int) -> list[Option]:
        """Return the options of a group for the sweep."""
        return [
            Option(precision, self._gain(group, precision), size_of_loss(single.scores))
            for precision in self._usable(group)
            if (single := self._singles.get((group, precision))) is not None
        ]

    def _largest_gain(self, group: int) -> Precision | None:
        """Return the precision of a group that gains most."""
        gains: dict[Precision, float] = {precision: self._gain(group, precision) for precision in self._usable(group)}
        best = max(gains, key=gains.__getitem__, default=None)
        return best if best is not None and gains[best] > 0 else None

    def _gain(self, group: int, precision: Precision) -> float:
        """Return the bytes, or the milliseconds, that a group saves in a precision; where both matter, as one."""
        before, single = self._source_bytes, self._singles.get((group, precision))
        fewer = self._groups[group].elements * (32 - _BITS.get(precision, 8)) / 8
        if single is not None:
            fewer = before - single.bytes
        if self._by_bytes:
            return fewer
        comparison = self._compared(group, precision)
        is_faster = comparison is not None and comparison.finding is Finding.FASTER
        saved = (self._saved(group, precision) or 0.0) if is_faster else 0.0
        return saved + _BYTES_SHARE * fewer / max(1, before) * (self._trials.milliseconds or 1.0)

    # Whole models

    def _measure_singles(self) -> None:
        """Measure the groups alone, in the precisions that are options."""
        wanted: list[_Key] = [(number, each) for number in range(len(self._groups)) for each in self._usable(number)]
        for at, (number, precision) in enumerate(wanted):
            told = f"measuring module {number + 1} of {len(self._groups)}"
            self._clock.tell(told, at / len(wanted))
            plan = self._trials.plan({precision: (self._groups[number],)})
            try:
                self._singles[number, precision] = self._trials.measured(plan, _SENSITIVITY_SAMPLES)[0]
            except VerificationFailed:
                self._failures[number, precision] = "NaN or infinities"
            except NothingQuantized:
                self._failures[number, precision] = "no such form"

    def _measure_front(self) -> None:
        """Measure points of the front: a bisection for the last one within the budget."""
        front = sweep([self._options(number) for number in range(len(self._groups))])
        low, high = 0, len(front)
        middle = high - 1
        for _ in range(_MOST_POINTS):
            if high - low <= 1:
                break
            point = self._measure(f"mixed {middle}", front[middle])
            low, high = (middle, high) if self._is_within(point) else (low, middle)
            middle = (low + high) // 2

    def _measure(self, label: str, precisions: _Precisions) -> _Point | None:
        """Measure a whole model, unless it is known; None if it has NaN or infinities."""
        known = next((point for point in self._points if point.precisions == precisions), None)
        if known is not None:
            return known
        self._clock.tell(f"measuring {label}", None)
        chosen: dict[Precision, list[Group]] = {precision: [] for precision in self._request.precisions}
        for group, precision in zip(self._groups, precisions, strict=True):
            if precision is not None:
                chosen[precision].append(group)
        owned = {module for group in self._groups for module in group.modules}
        between = tuple(dict.fromkeys(each for each in self._trials.job.owners if each not in owned))
        plan = self._trials.plan(chosen, between)
        try:
            trial, model = self._trials.measured(plan)
        except VerificationFailed:
            return None
        self._budget.check_rows(trial.scores)
        self._points.append(_Point(label, precisions, plan, trial, model))
        return self._points[-1]

    def _measures(self, point: _Point) -> dict[str, Number]:
        timed = {} if point.time is None else {"time": Number(point.time.ratio, 1.0)}
        losses = loss_measures(point.trial.scores)
        if (top1 := losses.get("top1")) is not None:  # without an interval: that of a few rows is wide
            expected = point.trial.expected_top1
            losses["top1"] = Number(top1.value if expected is None else min(top1.value, expected), 1.0)
        return losses | {"bytes": Number(self._bytes_ratio(point), 1.0)} | timed

    def _bytes_ratio(self, point: _Point) -> float:
        return point.trial.bytes / self._source_bytes

    def _is_within(self, point: _Point | None) -> bool:
        """Return whether a model is within the budget for other samples of the same kind as well."""
        return point is not None and not self._budget.broken(self._measures(point), self._trials.margin)

    # The best

    def _best(self) -> _Point | None:
        """Return the point within the budget that costs least, if it is faster or smaller by a margin."""
        hopeful = [point for point in self._points if self._is_within(point)]
        hopeful = [point for point in hopeful if self._by_bytes or self._expected_time(point) < 1]
        # Some seem to be faster by a margin, and other processes leave them within the noise.
        for batch in self._timed(hopeful, self._cost, lambda point, time: time.ratio <= _FASTER_SHARE):
            for point in sorted(batch, key=self._cost):
                time = point.time
                is_fast = time is not None and time.finding is Finding.FASTER and time.ratio <= _FASTER_SHARE
                if self._is_within(point) and (is_fast or (self._by_bytes and self._is_small(point))):
                    return point
        return None

    def _smallest(self) -> _Point | None:
        """Return the point with the least loss among the smallest that are smaller by a margin, and not slower."""
        small = [point for point in self._points if self._is_small(point) and self._is_within(point)]
        for batch in self._timed(small, lambda point: point.trial.bytes, lambda point, _: self._is_slow(point)):
            usable = [point for point in batch if not self._is_slow(point) and self._is_within(point)]
            near = [point for point in usable if point.trial.bytes <= _ABOUT_EQUAL_FACTOR * usable[0].trial.bytes]
            if near:
                return min(near, key=lambda point: point.loss)
        return None

    def _timed(
        self,
        points: list[_Point],
        cost: Callable[[_Point], float],
        matters: Callable[[_Point, Comparison], bool],
    ) -> Iterator[list[_Point]]:
        """Yield points by their cost, a few at a time, timed; for longer if it is unclear and matters."""
        points.sort(key=cost)
        for first in range(0, len(points), _MAX_TIMED_MODELS):
            batch = points[first : first + _MAX_TIMED_MODELS]
            self._time([point for point in batch if point.time is None])
            unclear = [(point, point.time) for point in batch if point.time is not None]
            unclear = [(point, time) for point, time in unclear if time.finding is Finding.SAME]
            self._time([point for point, time in unclear if matters(point, time)], PATIENT_SECONDS)
            yield batch

    def _is_slow(self, point: _Point) -> bool:
        """Return whether a model may be slower than the source."""
        if point.time is None or point.time.finding is Finding.SLOWER:
            return point.time is not None
        only_stored = all(each is None or self._is_stored(each) for each in point.precisions)
        return point.time.ratio > _MAX_TIME_IF_SMALLER and not only_stored

    def _is_small(self, point: _Point) -> bool:
        """Return whether a model is smaller than the source by a margin."""
        return point.trial.bytes <= _SMALLER_SHARE * self._source_bytes

    def _nearest(self) -> tuple[_Point, GateNotMet]:
        """Return the point that is nearest to the budget, and the error that says why it is not written.

        Raises:
            GateNotMet: There is none.
        """
        if not self._points:
            raise GateNotMet("nothing can be quantized without NaN or infinities", hint="nothing was written")
        wanted, within = ", ".join(self._budget.texts), [point for point in self._points if self._is_within(point)]
        if within:
            best = min(within, key=self._cost)
            self._time([best] if best.time is None else [])
            gains = f"faster by {1 - _FASTER_SHARE:.0%} or smaller by {1 - _SMALLER_SHARE:.0%}"
            why = f"nothing within the budget {wanted} is {gains}; nearest: {self._described(best)}"
            return best, GateNotMet(why, hint="nothing was written")
        nearest = min(self._points, key=lambda point: self._budget.excess(self._measures(point)))
        self._time([nearest] if nearest.time is None else [])
        why = f"nothing meets the budget {wanted}; nearest: {self._described(nearest)}"
        wider = ", ".join(self._budget.widened(self._measures(nearest), self._trials.margin))
        return nearest, GateNotMet(why, hint=f"nothing was written; the budget {wider!r} is met by {nearest.label!r}")

    def _described(self, point: _Point) -> str:
        scores = point.trial.scores
        loss = scores.relative_l2
        parts = [point.label, f"relative_l2 {loss.value:.2g} [{loss.low:.2g}, {loss.high:.2g}]"]
        parts += [f"cosine {scores.cosine.value:.6g}"] if self._budget.bounds("cosine") else []
        parts += [f"top1 {scores.top1.value:.4g}"] if scores.top1 is not None else []
        parts += [f"metric drop {scores.metric.value:.3g}"] if scores.metric is not None else []
        parts.append(f"bytes {self._bytes_ratio(point):.2f}")
        parts += [f"time {point.time.ratio:.2f}"] if point.time is not None else []
        return ", ".join(parts)

    def _time(self, points: Sequence[_Point], seconds: float = SECONDS) -> None:
        found = self._trials.compared({point.label: point.model for point in points}, seconds)
        for point in points:
            point.time = found.get(point.label, point.time)

    def _cost(self, point: _Point) -> float:
        if self._by_bytes:
            return point.trial.bytes
        return self._expected_time(point) + _BYTES_SHARE * point.trial.bytes / max(1, self._source_bytes)

    def _expected_time(self, point: _Point) -> float:
        return self._predicted_time(point) if point.time is None else point.time.ratio

    def _predicted_time(self, point: _Point) -> float:
        saved = sum(self._saved(*each) or 0.0 for each in _chosen(point))
        return 1 - saved / self._trials.milliseconds if self._trials.milliseconds else 1.0

    # The record

    def _record(self, best: _Point) -> Choice:
        points = sorted(self._points, key=lambda point: point.trial.scores.relative_l2.value)
        front = pareto([(point.trial.scores.relative_l2.value, self._cost(point)) for point in points])
        return Choice(
            objective=self._request.objective,
            budget=self._budget.texts,
            is_default=self._budget.is_default,
            precisions=self._request.precisions,
            sizes=self._trials.sizes,
            source_milliseconds=self._trials.milliseconds,
            groups=tuple(self._group(number, best) for number in range(len(self._groups))),
            points=tuple(self._front_point(point, on) for point, on in zip(points, front, strict=True)),
            chosen=points.index(best),
            models=self._trials.models,
        )

    def _front_point(self, point: _Point, on_front: bool) -> FrontPoint:
        chosen, predicted_l2 = _chosen(point), None
        if all(each in self._singles for each in chosen):  # the losses of groups alone add in squares
            predicted_l2 = math.sqrt(sum(size_of_loss(self._singles[each].scores) ** 2 for each in chosen))
        return FrontPoint(
            label=point.label,
            groups=dict(Counter(precision or FLOAT32 for precision in point.precisions)),
            predicted_l2=predicted_l2,
            scores=point.trial.scores,
            bytes=point.trial.bytes,
            bytes_ratio=self._bytes_ratio(point),
            predicted_time=self._predicted_time(point) if self._times else None,
            time=point.time,
            within=self._is_within(point),
            on_front=on_front,
        )

    def _group(self, number: int, best: _Point) -> ModuleGroup:
        group = self._groups[number]
        options = tuple(
            GroupPrecision(
                precision,
                single.scores,
                single.bytes,
                self._saved(number, precision),
                self._compared(number, precision),
                self._excluded(number, precision),
            )
            for precision in self._precisions
            if (single := self._singles.get((number, precision))) is not None
        )
        chosen = best.precisions[number] or FLOAT32
        return ModuleGroup(
            group.name,
            group.modules,
            group.products,
            4 * group.elements,
            group.number,
            options,
            chosen,
            self._reason(number, chosen),
        )

    def _reason(self, number: int, chosen: str) -> str:
        if chosen != FLOAT32:
            return "within the budget"
        reasons = {self._excluded(number, precision): None for precision in self._precisions}
        if None not in reasons:
            return ", ".join(reason for reason in reasons if reason)
        losses = [option.loss for option in self._options(number)]
        return f"relative L2 {min(losses):.2g} alone" if losses else "not measured"


def _chosen(point: _Point) -> list[_Key]:
    """Return the groups in a lower precision, with it."""
    return [(number, each) for number, each in enumerate(point.precisions) if each is not None]
