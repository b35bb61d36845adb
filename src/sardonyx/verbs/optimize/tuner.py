"""Tune a verified result for this machine: a first race, a search over what could be undone, and a deciding race.

The search finds the changes that help with few measurements: it tries groups, and splits only groups that matter. A
unit is in its default state or flipped (undone, or added if it is off by default). A change away from the default needs
a measurement that says "faster"; a change back needs only one that does not say "slower". Noise therefore changes
nothing. If flipping a group is slower, something in it helps, but something else may still be harmful: such groups are
split last, if time is left.

Two models are in memory during the search, three in the last race. The result is never slower than the source beyond
the measured interval, because the source itself is one of the choices.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.inputs.generator import at_size, dynamic_dims
from sardonyx.passes import Pass
from sardonyx.records.run import Decision, RelativeTime, RewriteKind, Tuning, TuningMeasurement
from sardonyx.runtime import Feeds
from sardonyx.runtime.timed import Settings, TimedModel
from sardonyx.verbs.analyze.census import Census
from sardonyx.verbs.bench import machine
from sardonyx.verbs.bench.interleaving import MIN_ROUNDS, SLOT_SECONDS, Race, Run, race, slot
from sardonyx.verbs.bench.statistics import Comparison, Finding
from sardonyx.verbs.optimize.candidates import WHOLE_PASS, Candidate, Forbidden, Progress, RewriteJob, VerifiedCandidate
from sardonyx.verbs.optimize.options import TuneOptions
from sardonyx.verification.subject import Model, Subject

State = frozenset[str]  # names of the units that are flipped
Group = tuple[str, ...]


# Says whether the first is faster or slower than the second; None if no time is left.
Measure = Callable[[State, State], Finding | None]


class _OutOfTime(Exception):
    """No time is left for another measurement."""


def search(groups: Sequence[Group], measure: Measure, *, all_first: bool = False) -> State:
    """Return the units whose flipping makes the model faster, as far as time allows.

    Args:
        groups: Units that are tried together first, the most promising group first; no unit is in two groups.
        measure: Compares two states.
        all_first: Try all units at once before the groups, if there is reason to expect that it is faster.
    """
    search = _Search(measure)
    with contextlib.suppress(_OutOfTime):
        every = tuple(unit for group in groups for unit in group)
        if all_first and len(groups) > 1 and search.change(every, back=False) is Finding.FASTER:
            search.narrow(every)
            groups = ()
        search.flip(groups)
    return search.flipped


class _Search:
    def __init__(self, measure: Measure) -> None:
        self.flipped: State = frozenset()
        self._measure = measure
        self._later: deque[Group] = deque()

    def flip(self, groups: Sequence[Group]) -> None:
        """Flip each group if that is faster, and then only the members that are needed."""
        for waiting in (deque(groups), self._later):
            while waiting:
                group = waiting.popleft()
                effect = self.change(group, back=False)
                if effect is Finding.FASTER:
                    self.narrow(group)
                elif effect is Finding.SLOWER:
                    self._split_later(group)

    def narrow(self, group: Group) -> None:
        """Put back the members of a flipped group that do not contribute; the group as a whole must stay flipped."""
        if len(group) == 1:
            return
        first, second = _halves(group)
        if self._put_back(first):
            self.narrow(second)
            return
        self.narrow(first)
        if not self._put_back(second):
            self.narrow(second)

    def _put_back(self, group: Group) -> bool:
        effect = self.change(group, back=True)
        if effect is Finding.FASTER:  # something in it helps, but harmful members may have gone back with it
            self._split_later(group)
        return effect is not Finding.SLOWER

    def _split_later(self, group: Group) -> None:
        if len(group) > 1:
            self._later.extend(_halves(group))

    def change(self, group: Group, *, back: bool) -> Finding:
        """Measure a change of the current state, and make it if it is accepted."""
        changed = self.flipped ^ frozenset(group)
        effect = self._measure(changed, self.flipped)
        if effect is None:
            raise _OutOfTime
        if is_accepted(effect, back=back):
            self.flipped = changed
        return effect


def is_accepted(effect: Finding, *, back: bool) -> bool:
    """Return whether a change is made: a change back to the default also if it makes no difference."""
    return effect is Finding.FASTER or (back and effect is Finding.SAME)


def _halves(group: Group) -> tuple[Group, Group]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]


# The units that tuning chooses between: single fusions, and the clean-up passes of a family together.
#
# A pass that only drops, shares, folds or bypasses gives the runtime less to do and nothing new, so such passes of
# one family form one unit. A pass that replaces operators by others may be slower on some machine, so it is a unit of
# its own. Only passes that changed the model count.

OTHER = "other"  # family of passes from other packages
ADDED = "left out"  # family of the passes that are off by default
_PACKAGE = "sardonyx.passes."

# The order of the search: families first for which the runtime has special kernels or its own fusions.
_USUAL = ("ort", "attention", "products", "norms", "layout", OTHER, ADDED, "broadcasting", "folding", "cleanup")
_CONVOLUTIONAL = ("ort", "products", "layout", "norms", "attention", OTHER, ADDED, "broadcasting", "folding", "cleanup")


class Unit(Struct, frozen=True):
    """Passes that are chosen together."""

    name: str
    family: str
    passes: tuple[str, ...]
    rewrites: int
    nodes: int  # that its rewrites removed or added
    added: bool = False  # off by default, so that flipping it means to add it


def find_units(candidate: Candidate, passes: Sequence[Pass], left_out: Iterable[str] = ()) -> tuple[Unit, ...]:
    """Return the units of a result in the order of the passes, then those that are off by default."""
    kinds: dict[str, set[RewriteKind]] = defaultdict(set)
    touched: dict[str, int] = defaultdict(int)
    for event in candidate.log.events:
        kinds[event.pass_name].add(event.kind)
        touched[event.pass_name] += len(event.before) + len(event.after)
    fusions: list[Unit] = []
    cleaning: dict[str, list[str]] = defaultdict(list)
    for rule in passes:
        if not kinds[rule.name]:
            continue
        family, count = family_of(rule), candidate.log.tallies[rule.name].rewrites
        if RewriteKind.FUSE in kinds[rule.name]:
            fusions.append(Unit(rule.name, family, (rule.name,), count, touched[rule.name]))
        else:
            cleaning[family].append(rule.name)
    for family, names in cleaning.items():
        rewrites = sum(candidate.log.tallies[name].rewrites for name in names)
        nodes = sum(touched[name] for name in names)
        fusions.append(Unit(f"{family} passes", family, tuple(names), rewrites, nodes))
    return (*fusions, *(Unit(name, ADDED, (name,), 0, 0, added=True) for name in left_out))


def group_units(units: Sequence[Unit], *, convolutional: bool = False) -> list[tuple[str, ...]]:
    """Return the units by family, the most promising family first, and in it the unit that changed the most nodes."""
    by_family: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: (-unit.nodes, unit.name)):
        by_family[unit.family].append(unit)
    order = _CONVOLUTIONAL if convolutional else _USUAL
    ranked = sorted(by_family, key=lambda family: order.index(family) if family in order else order.index(OTHER))
    return [tuple(unit.name for unit in by_family[family]) for family in ranked]


def forbidden_passes(units: Iterable[Unit], flipped: frozenset[str]) -> Forbidden:
    """Return the passes not to run if these units are flipped."""
    return frozenset(
        (name, WHOLE_PASS) for unit in units if unit.added != (unit.name in flipped) for name in unit.passes
    )


def family_of(rule: Pass) -> str:
    """Return the family of a pass: the package below `sardonyx.passes` that it is in."""
    module = type(rule).__module__
    return module.removeprefix(_PACKAGE).partition(".")[0] if module.startswith(_PACKAGE) else OTHER


SOURCE, UNTUNED, TUNED = "source", "untuned", "tuned"
Rebuild = Callable[[Forbidden], VerifiedCandidate]  # builds a candidate without the forbidden passes, and verifies it


def choose(race: Race) -> tuple[str, str]:
    """Return the model to use, and why.

    The search already found each change faster, so the tuned result is used unless the last race finds it slower or
    leans that way. A result that is slower than the source is never used.
    """
    results = [name for name in (TUNED, UNTUNED) if name in race.seconds]
    why = "undoing rewrites does not make it faster"
    if TUNED in results:
        gain = race.comparison(TUNED, UNTUNED)
        better = gain.finding is Finding.FASTER or (gain.finding is Finding.SAME and gain.ratio < 1)
        why = "it is faster" if better else "the changes found by the search are not faster together"
        results = results if better else [UNTUNED, TUNED]
    for name in results:
        if race.comparison(name).finding is not Finding.SLOWER:
            return name, why if name == results[0] else f"the {results[0]} result is slower than the source"
    return SOURCE, "every result is slower than the source"


def decisions(units: Sequence[Unit], flipped: State, questions: Sequence[TuningMeasurement]) -> tuple[Decision, ...]:
    """Return the decision on each unit, with the index of the last question about it."""
    decided: list[Decision] = []
    for unit in units:
        indices = [index for index, question in enumerate(questions) if unit.name in question.units]
        choices = ("left out", "added") if unit.added else ("kept", "undone")
        choice = choices[unit.name in flipped] if indices else "not examined"
        last = indices[-1] if indices else None
        decided.append(Decision(unit.name, unit.passes, unit.family, unit.rewrites, choice, last))
    return tuple(decided)


SEARCH_LEVEL = 0.99  # of the interval in the search, which measures often and must rarely be wrong
SAME_KERNELS = "same kernels"
FAILS = "cannot run"
_BUSY_LOAD = 0.7  # load per core above which a machine counts as busy
_BUSY = "the machine was busy with other processes: on an idle one smaller differences can be seen"
_BEST, _OTHER = "best", "other"
_BUDGET_PARTS = 8  # the first and the last race get an eighth of the budget each, a question of the search half of that


class Tuner:
    """Tunes the result of one job for this machine, in an empty folder for the runtime's files.

    Passes that are `left_out`, off by default, may be added.

    Raises:
        UsageError: The budget is not positive, or a size is given for a dimension that is not dynamic.
    """

    def __init__(
        self, job: RewriteJob, options: TuneOptions, folder: Path, *, threads: int, seed: int, left_out: Forbidden
    ) -> None:
        if not options.seconds > 0:
            raise UsageError(f"a budget of {options.seconds:g} seconds is not positive")
        self._job, self._budget, self._left_out = job, options.seconds, left_out
        source = Subject(job.source)
        self._sizes = dynamic_dims(source.model, options.sizes, source.any_session)
        feeds = at_size(source.model, self._sizes, seed=seed)
        self._settings = Settings(threads=threads)
        self._ground = Ground(feeds, self._settings, folder, seed, job.progress)
        self._units: tuple[Unit, ...] = ()
        self._rolled_back: Forbidden = frozenset()  # what failed verification
        self._loaded: dict[State, Contender] = {}  # the best state, and the one compared with it last
        self._comparisons: dict[tuple[frozenset[tuple[str, int]], ...], Comparison] = {}  # by the kernels of both
        self._questions: list[TuningMeasurement] = []
        self._began = self._verifying = 0.0  # seconds of verification do not count against the budget
        self._last = 0.0  # seconds that the last race will need
        self._building = 0.0  # seconds of building and loading the last model of the search

    def run(
        self, untuned: VerifiedCandidate, rebuild: Rebuild, *, convolutional: bool = False
    ) -> tuple[VerifiedCandidate, Tuning]:
        """Return the fastest of the source, the untuned result, and the result without rewrites that are slower here.

        Args:
            untuned: The result before tuning.
            rebuild: Builds and verifies another result.
            convolutional: Whether the model is convolutional, which decides the order of the search.

        Raises:
            RuntimeFailure: The runtime cannot run the source or the result.
        """
        self._began, load = time.perf_counter(), machine.load()
        left_out = sorted(name for name, _ in self._left_out)
        self._units = find_units(untuned.candidate, self._job.passes, left_out)
        self._rolled_back = untuned.forbidden - self._left_out
        final = self._first_race(untuned)
        slower = final.comparison(UNTUNED).finding is Finding.SLOWER
        groups = group_units(self._units, convolutional=convolutional)
        flipped = search(groups, self._measure, all_first=slower)
        self._loaded.clear()
        results = {UNTUNED: untuned}
        if flipped:
            results[TUNED] = self._rebuild(rebuild, self._forbidden(flipped), untuned)
            contenders = {SOURCE: self._ground.load(self._job.source)}
            contenders |= {name: self._ground.load(result.candidate.model) for name, result in results.items()}
            final = self._race(contenders, "timing source, result and tuned result")
        chosen, why = choose(final)
        if chosen == SOURCE:
            every = frozenset((rule.name, WHOLE_PASS) for rule in self._job.passes)
            results[SOURCE] = self._rebuild(rebuild, every, None)
        nodes = {name: Census.of(verified.candidate.model).counts.nodes for name, verified in results.items()}
        nodes[SOURCE] = untuned.candidate.before.counts.nodes
        return results[chosen], Tuning(
            chosen=chosen,
            why=why,
            standing=tuple(_pace(final, name, nodes[name]) for name in final.seconds),
            gain=final.comparison(TUNED, UNTUNED).ratio if TUNED in final.seconds else None,
            floor=final.floor(),
            decisions=decisions(self._units, flipped, self._questions),
            questions=tuple(self._questions),
            sizes=self._sizes,
            threads=self._settings.threads,
            provider=self._settings.provider,
            clock=self._ground.clock,
            budget=self._budget,
            seconds=round(self._spent(), 3),
            load=load,
            notes=(_BUSY,) if load is not None and load > _BUSY_LOAD * (os.cpu_count() or 1) else (),
        )

    def _first_race(self, untuned: VerifiedCandidate) -> Race:
        contenders = {SOURCE: self._ground.load(self._job.source), UNTUNED: self._ground.load(untuned.candidate.model)}
        slowest = max(contender.once for contender in contenders.values())
        self._loaded[frozenset()] = contenders[UNTUNED]
        race = self._race(contenders, "timing source and result")
        self._last = max(self._budget / _BUDGET_PARTS, self._ground.least(3, slowest)) + 3 * contenders[SOURCE].load
        return race

    def _forbidden(self, state: State) -> Forbidden:
        return self._rolled_back | forbidden_passes(self._units, state)

    def _rebuild(self, rebuild: Rebuild, forbidden: Forbidden, before: VerifiedCandidate | None) -> VerifiedCandidate:
        """Build and verify a result; rewrites that were rolled back in `before` stay in the record."""
        began = time.perf_counter()
        result = rebuild(forbidden)
        self._verifying += time.perf_counter() - began
        earlier = before.rolled_back if before is not None else ()
        return structs.replace(result, rolled_back=earlier + result.rolled_back)

    def _spent(self) -> float:
        return time.perf_counter() - self._began - self._verifying

    def _affords(self, seconds: float) -> bool:
        """Return whether this many seconds can be spent before the last race."""
        return self._spent() + seconds + self._last <= self._budget

    def _race(self, contenders: Mapping[str, Contender], what: str) -> Race:
        return self._ground.race(contenders, seconds=self._budget / _BUDGET_PARTS, what=what)

    def _measure(self, changed: State, current: State) -> Finding | None:
        """Compare a state with the best one so far; return None if no time is left."""
        began, best, units = time.perf_counter(), self._loaded[current], changed ^ current
        if not self._affords(max(best.load, self._building)):
            return None
        self._loaded = {current: best}  # frees the other model before the next one is loaded
        back = len(changed) < len(current)
        self._job.progress(f"question {len(self._questions) + 1}: {', '.join(sorted(units))}", None)
        try:
            contender = self._ground.load(self._job.candidate(None, self._forbidden(changed)).model)
        except RuntimeFailure:
            self._add_question(units, FAILS, None, began, back=back, accepted=False)
            return Finding.SLOWER
        self._loaded[changed] = contender
        self._building = time.perf_counter() - began
        if contender.kernels == best.kernels:
            self._add_question(units, SAME_KERNELS, None, began, back=back, accepted=back)
            return Finding.SAME
        if not self._affords(self._ground.least(2, max(best.once, contender.once))):
            return None
        comparison = self._compare(contender, best)
        effect = comparison.finding
        self._add_question(units, effect.value, comparison, began, back=back, accepted=is_accepted(effect, back=back))
        return effect

    def _compare(self, contender: Contender, best: Contender) -> Comparison:
        """Race two contenders, or return the result of an earlier race between the same kernels."""
        pair = (frozenset(contender.kernels.items()), frozenset(best.kernels.items()))
        if pair not in self._comparisons:
            what = f"question {len(self._questions) + 1}"
            race = self._ground.race(
                {_BEST: best, _OTHER: contender}, seconds=self._budget / _BUDGET_PARTS / 2, what=what
            )
            self._comparisons[pair] = race.estimate(_OTHER).comparison(floor=race.floor(), level=SEARCH_LEVEL)
        return self._comparisons[pair]

    def _add_question(
        self, names: State, finding: str, measured: Comparison | None, began: float, *, back: bool, accepted: bool
    ) -> None:
        units = [unit for unit in self._units if unit.name in names]
        change = "restore" if back else "add" if all(unit.added for unit in units) else "undo"
        self._questions.append(
            TuningMeasurement(
                tuple(unit.name for unit in units),
                change,
                finding,
                *((measured.ratio, measured.low, measured.high, measured.floor) if measured else (None,) * 4),
                rounds=measured.rounds if measured else 0,
                seconds=round(time.perf_counter() - began, 3),
                accepted=accepted,
            )
        )


def _pace(race: Race, name: str, nodes: int) -> RelativeTime:
    milliseconds = 1000 * statistics.median(race.seconds[name])
    if name == race.reference:
        return RelativeTime(name, nodes, milliseconds, 1.0, 1.0, 1.0, Finding.SAME.value)
    change = race.comparison(name)
    return RelativeTime(name, nodes, milliseconds, change.ratio, change.low, change.high, change.finding.value)


# Load models and time them against each other on this machine, on the same inputs and with the same settings.
#
# Loading a model already shows which kernels the runtime uses. If two models use the same kernels on the same sizes,
# the runtime's own optimizations have removed the difference, and there is nothing to time.

WARM_UP_RUNS = 1  # runs between the first run and the first timed one
Kernels = Counter[str]
_KERNEL_KEYS = ("op_name", "provider", "input_type_shape", "output_type_shape")


class Contender(Struct, frozen=True, eq=False):
    """A model in the runtime, ready to run."""

    kernels: Kernels  # the kernels of one run
    once: float  # approximate seconds of one run
    load: float  # seconds of loading and warming up
    run: Run


class Ground:
    """Loads and times contenders on the same inputs and with the same settings, in an empty folder for profiles.

    A model with one CPU thread runs in the calling thread, so that its CPU time can be counted without the time of
    other processes. On a shared machine this gives much narrower intervals.
    """

    def __init__(self, feeds: Feeds, settings: Settings, folder: Path, seed: int, progress: Progress) -> None:
        self._feeds, self._settings, self._folder = feeds, settings, folder
        self._seed, self._progress = seed, progress
        single = settings.threads == 1 and settings.provider == "cpu"
        self._clock = time.thread_time if single else time.perf_counter
        self.clock = "cpu" if single else "wall"
        self._slot = SLOT_SECONDS  # seconds of one slot of a race, waiting included

    def load(self, model: Model) -> Contender:
        """Load a model into the runtime, run it and warm it up.

        Raises:
            RuntimeFailure: The runtime cannot load or run the model.
        """
        began = time.perf_counter()
        timed = Subject(model).open(lambda source: TimedModel(source, self._settings, profile=self._folder / "first"))
        run = timed.ready(self._feeds)
        run()
        profile = timed.end_profile()
        kernels = kernels_of(profile)
        profile.unlink()
        for _ in range(WARM_UP_RUNS):
            run()
        loaded = time.perf_counter()
        run()
        once = time.perf_counter() - loaded
        return Contender(kernels, once, loaded - began, slot(run, now=self._clock))

    def race(self, contenders: Mapping[str, Contender], *, seconds: float, what: str) -> Race:
        """Time contenders in turns; the first is the reference."""
        runs = {name: contender.run for name, contender in contenders.items()}

        def tell(_: str, fraction: float | None) -> None:
            self._progress(what, fraction)

        result = race(runs, seconds=seconds, seed=self._seed, progress=tell)
        self._slot = result.spent / _slots(len(runs), result.rounds)
        return result

    def least(self, contenders: int, once: float) -> float:
        """Return the seconds of the shortest race, estimated from the last one because a busy machine is slower."""
        return _slots(contenders, MIN_ROUNDS) * max(self._slot, once)


def _slots(contenders: int, rounds: int) -> int:
    """Return the slots of a race: two per round for the reference, one for the others, and one each to warm up."""
    return (rounds + 1) * (contenders + 1)


def kernels_of(profile: Path) -> Kernels:
    """Return the kernels of one run and the sizes they ran on, from the runtime's profile."""
    events: list[Any] = json.loads(profile.read_text(encoding="utf-8"))
    kernels: Kernels = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            kernels[json.dumps([event["args"].get(key) for key in _KERNEL_KEYS])] += 1
    return kernels
