"""Fits a proven result to this machine: races, a search over what could be undone, and a last race that decides.

Two models are in memory while it searches, three in the last race. What it returns is never slower than the source
beyond the interval, since the source itself is among those it chooses from.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sardonyx.analysis.census import Census
from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.measurement.feeds import at_size, open_dims
from sardonyx.measurement.interleaving import Race
from sardonyx.measurement.statistics import Comparison, Finding
from sardonyx.optimizer.candidates import WHOLE_PASS, Forbidden, RewriteJob, VerifiedCandidate
from sardonyx.optimizer.tuning import units as choosing
from sardonyx.optimizer.tuning.options import Settle, TuningOptions
from sardonyx.optimizer.tuning.race import Contender, Ground
from sardonyx.optimizer.tuning.search import Effect, Found, State, search
from sardonyx.optimizer.tuning.units import Unit
from sardonyx.records.tuning import Decision, Pace, Question, Tuning
from sardonyx.runtime.timed import Settings
from sardonyx.verification.subject import Subject

# What measurements decide: which of the raced models is the result, and what became of each unit.

SOURCE, UNTUNED, TUNED = "source", "untuned", "tuned"


def choose(race: Race) -> tuple[str, str]:
    """The model to return, and why.

    What was undone was found faster before, so that a last race that cannot tell is no reason against it, unless it
    leans the other way. A result that is slower than the source is not returned.
    """
    results = [name for name in (TUNED, UNTUNED) if name in race.seconds]
    why = "nothing that could be undone is faster undone"
    if TUNED in results:
        gain = race.comparison(TUNED, UNTUNED)
        better = gain.finding is Finding.FASTER or (gain.finding is Finding.SAME and gain.ratio < 1)
        why = "it is the faster one" if better else "what the search undid is not faster all together"
        results = results if better else [UNTUNED, TUNED]
    for name in results:
        if race.comparison(name).finding is not Finding.SLOWER:
            return name, why if name == results[0] else f"the {results[0]} result is slower than the source"
    return SOURCE, "every result is slower than the source"


def decisions(units: Sequence[Unit], found: Found, questions: Sequence[Question]) -> tuple[Decision, ...]:
    """What became of each unit, and the last question that was about it."""
    decided: list[Decision] = []
    for unit in units:
        asked = [place for place, question in enumerate(questions) if unit.name in question.units]
        flipped = unit.name in found.flipped
        if not asked:
            choice = "not examined"
        elif unit.added:
            choice = "added" if flipped else "left out"
        else:
            choice = "undone" if flipped else "kept"
        place = asked[-1] if asked else None
        decided.append(Decision(unit.name, unit.passes, unit.family, unit.rewrites, choice, place))
    return tuple(decided)


LEVEL = 0.99  # of the interval that an answer of the search needs: it asks often, and must not be fooled once
SAME_KERNELS = "same kernels"
FAILS = "cannot run"
_MANY = 0.7  # processes a core from which on a machine is busy
_BUSY = "the machine was busy with something else: on a quiet one smaller differences are seen"
_BEST, _OTHER = "best", "other"
_SHARES = 8  # parts of the budget: the first and the last race get one each, a question of the search half of one
_EFFECTS = {Finding.FASTER: Effect.FASTER, Finding.SLOWER: Effect.SLOWER, Finding.SAME: Effect.NONE}


class Tuner:
    """Fits one job's result to this machine.

    Args:
        job: the source and all passes that may be chosen.
        wish: how long, on which sizes, with how many threads.
        folder: empty, for what the runtime writes.

    Raises:
        UsageError: for a budget that is none, or a size of a dim that is not open.
    """

    def __init__(self, job: RewriteJob, wish: TuningOptions, folder: Path) -> None:
        if not wish.budget > 0:
            raise UsageError(f"a budget of {wish.budget:g} seconds is none")
        self._job = job
        self._wish = wish
        source = Subject(job.source).model
        self._sizes = open_dims(source) | dict(wish.sizes or {})
        self._settings = Settings(threads=wish.threads)
        self._ground = Ground(at_size(source, wish.sizes, seed=wish.seed), self._settings, folder, wish.seed, job.tell)
        self._units: tuple[Unit, ...] = ()
        self._rolled_back: Forbidden = frozenset()  # what a proof has ruled out
        self._loaded: dict[State, Contender] = {}  # the best state, and the one held against it last
        self._answers: dict[tuple[frozenset[tuple[str, int]], ...], Comparison] = {}
        self._questions: list[Question] = []
        self._began = self._elsewhere = 0.0  # the latter: seconds in proofs, which the budget is not meant for
        self._last = 0.0  # seconds that the last race is sure to need
        self._making = 0.0  # seconds that it took to make and load the last model that was asked about

    def run(
        self, untuned: VerifiedCandidate, settle: Settle, *, convolutional: bool = False
    ) -> tuple[VerifiedCandidate, Tuning]:
        """The fastest of the source, the result as it is, and the result without what does not pay.

        Args:
            untuned: the result as it is.
            settle: makes and proves another.
            convolutional: what the model looks like, which tells where to begin.

        Raises:
            RuntimeFailure: where the runtime cannot run the source or the result.
        """
        self._began, load = time.perf_counter(), os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._units = choosing.units(
            untuned.candidate, self._job.passes, sorted(name for name, _ in self._wish.left_out)
        )
        self._rolled_back = untuned.forbidden - self._wish.left_out
        final = self._first_race(untuned)
        slower = final.comparison(UNTUNED).finding is Finding.SLOWER
        found = search(choosing.groups(self._units, convolutional=convolutional), self._answer, all_first=slower)
        self._loaded.clear()
        settled = {UNTUNED: untuned}
        if found.flipped:
            settled[TUNED] = self._settle(settle, self._forbidden(found.flipped), untuned)
            final = self._last_race(settled)
        chosen, why = choose(final)
        if chosen == SOURCE:
            every = frozenset((each.name, WHOLE_PASS) for each in self._job.passes)
            settled[SOURCE] = self._settle(settle, every, None)
        nodes = {name: Census.of(each.candidate.model).counts.nodes for name, each in settled.items()}
        nodes[SOURCE] = untuned.candidate.before.counts.nodes
        decided = decisions(self._units, found, self._questions)
        return settled[chosen], self._told(chosen, why, final, nodes, decided, load)

    def _told(
        self,
        chosen: str,
        why: str,
        final: Race,
        nodes: Mapping[str, int],
        decided: tuple[Decision, ...],
        load: float | None,
    ) -> Tuning:
        return Tuning(
            chosen=chosen,
            why=why,
            standing=tuple(_pace(final, name, nodes[name]) for name in final.seconds),
            gain=final.comparison(TUNED, UNTUNED).ratio if TUNED in final.seconds else None,
            floor=final.floor(),
            decisions=decided,
            questions=tuple(self._questions),
            sizes=self._sizes,
            threads=self._settings.threads,
            provider=self._settings.provider,
            clock=self._ground.clock,
            budget=self._wish.budget,
            seconds=round(self._spent(), 3),
            load=load,
            notes=(_BUSY,) if load is not None and load > _MANY * (os.cpu_count() or 1) else (),
        )

    def _first_race(self, untuned: VerifiedCandidate) -> Race:
        contenders = {SOURCE: self._ground.load(self._job.source), UNTUNED: self._ground.load(untuned.candidate.model)}
        slowest = max(contender.once for contender in contenders.values())
        self._loaded[frozenset()] = contenders[UNTUNED]
        race = self._race(contenders, "racing source and result")
        self._last = max(self._wish.budget / _SHARES, self._ground.least(3, slowest)) + 3 * contenders[SOURCE].load
        return race

    def _last_race(self, settled: Mapping[str, VerifiedCandidate]) -> Race:
        contenders = {SOURCE: self._ground.load(self._job.source)}
        contenders |= {name: self._ground.load(each.candidate.model) for name, each in settled.items()}
        return self._race(contenders, "racing source, result and tuned result")

    def _forbidden(self, state: State) -> Forbidden:
        return self._rolled_back | choosing.forbidden(self._units, state)

    def _settle(self, settle: Settle, forbidden: Forbidden, before: VerifiedCandidate | None) -> VerifiedCandidate:
        """Made and proven; what a proof rolled back before stays told."""
        began = time.perf_counter()
        settled = settle(forbidden)
        self._elsewhere += time.perf_counter() - began
        known = before.rolled_back if before is not None else ()
        return dataclasses.replace(settled, rolled_back=known + settled.rolled_back)

    def _spent(self) -> float:
        return time.perf_counter() - self._began - self._elsewhere

    def _affords(self, seconds: float) -> bool:
        """Whether so much can be spent and the last race still be run."""
        return self._spent() + seconds + self._last <= self._wish.budget

    def _race(self, contenders: Mapping[str, Contender], what: str) -> Race:
        return self._ground.race(contenders, seconds=self._wish.budget / _SHARES, what=what)

    def _answer(self, then: State, now: State) -> Effect | None:
        """What the search asks: is one state faster than the best so far."""
        began, best = time.perf_counter(), self._loaded[now]
        if not self._affords(max(best.load, self._making)):
            return None
        self._loaded = {now: best}  # the other one goes before the next one comes
        back = len(then) < len(now)
        self._job.tell(f"question {len(self._questions) + 1}: {', '.join(sorted(then ^ now))}", None)
        try:
            contender = self._loaded[then] = self._ground.load(self._job.candidate(None, self._forbidden(then)).model)
        except RuntimeFailure:
            self._keep(then ^ now, FAILS, None, began, back=back, accepted=False)
            return Effect.SLOWER
        self._making = time.perf_counter() - began
        if contender.kernels == best.kernels:
            self._keep(then ^ now, SAME_KERNELS, None, began, back=back, accepted=back)
            return Effect.NONE
        if not self._affords(self._ground.least(2, max(best.once, contender.once))):
            return None
        comparison = self._compared(contender, best)
        effect = _EFFECTS[comparison.finding]
        accepted = effect is Effect.FASTER or (back and effect is Effect.NONE)
        self._keep(then ^ now, comparison.finding.value, comparison, began, back=back, accepted=accepted)
        return effect

    def _compared(self, contender: Contender, best: Contender) -> Comparison:
        """A race, or what an earlier one between the same kernels gave."""
        pair = (frozenset(contender.kernels.items()), frozenset(best.kernels.items()))
        if pair not in self._answers:
            what = f"question {len(self._questions) + 1}"
            race = self._ground.race(
                {_BEST: best, _OTHER: contender}, seconds=self._wish.budget / _SHARES / 2, what=what
            )
            self._answers[pair] = race.estimate(_OTHER).comparison(floor=race.floor(), level=LEVEL)
        return self._answers[pair]

    def _keep(
        self, names: State, finding: str, measured: Comparison | None, began: float, *, back: bool, accepted: bool
    ) -> None:
        asked = [unit for unit in self._units if unit.name in names]
        does = "restore" if back else "add" if all(unit.added for unit in asked) else "undo"
        self._questions.append(
            Question(
                tuple(unit.name for unit in asked),
                does,
                finding,
                *((measured.ratio, measured.low, measured.high, measured.floor) if measured else (None,) * 4),
                rounds=measured.rounds if measured else 0,
                seconds=round(time.perf_counter() - began, 3),
                accepted=accepted,
            )
        )


def _pace(race: Race, name: str, nodes: int) -> Pace:
    milliseconds = 1000 * statistics.median(race.seconds[name])
    if name == race.reference:
        return Pace(name, nodes, milliseconds, 1.0, 1.0, 1.0, Finding.SAME.value)
    found = race.comparison(name)
    return Pace(name, nodes, milliseconds, found.ratio, found.low, found.high, found.finding.value)
