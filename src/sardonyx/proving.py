"""Proves candidates against the source, and rolls back what fails: exactly the rewrites that are to blame."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sardonyx import ledger
from sardonyx.candidates import WHOLE_PASS, Candidate, Forbidden, Job, Settled
from sardonyx.errors import VerificationFailed
from sardonyx.record import Event, RolledBack, Verdict

if TYPE_CHECKING:
    from sardonyx.proof import Oracle

Inputs = str | Path | Mapping[str, np.ndarray] | None
PATIENCE = 3  # wrong rewrites of one pass after which the whole pass is rolled back


@dataclass(frozen=True, slots=True)
class Verification:
    """How candidates are verified."""

    inputs: Inputs
    seed: int
    threads: int | None
    seconds: float  # about how long models may run
    runtimes: tuple[str, ...]


class Prover:
    """Verifies candidates of one job; the source's answers are computed once for all of them."""

    def __init__(self, job: Job, how: Verification) -> None:
        self._job = job
        self._how = how
        self.seconds: dict[str, float] = {"passes": 0.0, "proof": 0.0}

    def settle(self, mode: str, without: Forbidden = frozenset()) -> Settled:
        """The furthest candidate that holds, made without what is forbidden from the start.

        Raises:
            VerificationFailed: where even no rewrite at all gives a different function.
        """
        forbidden = set(without)
        undone: list[RolledBack] = []
        while True:
            candidate = self._candidate(None, frozenset(forbidden))
            if mode == "off":
                return Settled(candidate, None, (), without)
            good, bad, verdict = self._check(candidate, mode, frozenset(forbidden))
            if bad is None:
                return Settled(candidate, verdict, tuple(undone), frozenset(forbidden))
            if bad == 0:
                raise VerificationFailed(
                    f"the model does not compute the same as itself: {verdict.failures[0]}",
                    hint="its results may depend on something outside it; --verify off writes it unproven",
                )
            guilty, verdict = self._guilty(candidate, good, bad, verdict, frozenset(forbidden))
            self._job.tell(f"rolled back {guilty.pass_name} at {guilty.root}", None)
            undone.append(RolledBack(guilty.pass_name, guilty.root, guilty.owner, verdict.failures[0]))
            forbidden.add((guilty.pass_name, guilty.root))
            if sum(each.pass_name == guilty.pass_name for each in undone) >= PATIENCE:
                undone = [each for each in undone if each.pass_name != guilty.pass_name]
                undone.append(RolledBack(guilty.pass_name, WHOLE_PASS, "", verdict.failures[0]))
                forbidden.add((guilty.pass_name, WHOLE_PASS))

    def _candidate(self, limit: int | None, forbidden: Forbidden) -> Candidate:
        began = time.perf_counter()
        candidate = self._job.candidate(limit, forbidden)
        self.seconds["passes"] += time.perf_counter() - began
        return candidate

    def _check(self, candidate: Candidate, mode: str, forbidden: Forbidden) -> tuple[int, int | None, Verdict]:
        """Prove the candidate; the number of rewrites that hold, and a number known not to."""
        events, good = candidate.log.events, 0
        if mode == "each":
            for stop in range(1, len(events)):
                if events[stop - 1].pass_name == events[stop].pass_name:
                    continue
                verdict = self._verdict(self._candidate(stop, forbidden))
                if not verdict.passed:
                    return good, stop, verdict
                good = stop
        verdict = self._verdict(candidate)
        return good, None if verdict.passed else len(events), verdict

    def _guilty(
        self, candidate: Candidate, good: int, bad: int, verdict: Verdict, forbidden: Forbidden
    ) -> tuple[Event, Verdict]:
        """The one rewrite between a state that holds and one that does not, by halving."""
        while bad - good > 1:
            self._job.tell(f"looking for the wrong rewrite among {bad - good}", None)
            middle = (good + bad) // 2
            probe = self._verdict(self._candidate(middle, forbidden))
            if probe.passed:
                good = middle
            else:
                bad, verdict = middle, probe
        return candidate.log.events[bad - 1], verdict

    @functools.cached_property
    def _oracle(self) -> Oracle:
        from sardonyx.proof import Oracle, seeds_from  # only here: a run without proof need not load it

        return Oracle(
            self._job.source,
            inputs=self._how.inputs,
            seeds=seeds_from(self._how.seed),
            seconds=self._how.seconds,
            runtimes=self._how.runtimes,
            threads=self._how.threads,
            progress=lambda text: self._job.tell(text, None),
        )

    def _verdict(self, candidate: Candidate) -> Verdict:
        began = time.perf_counter()
        verdict = self._oracle.check(candidate.model, ledger.loosest(candidate.log.events, self._job.passes))
        self.seconds["proof"] += time.perf_counter() - began
        return verdict
