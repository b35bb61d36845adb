"""Proves candidates against the source, and rolls back what fails: exactly the rewrites that are to blame."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from sardonyx.errors import VerificationFailed
from sardonyx.ir.rewriter import Observer
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import WHOLE_PASS, Candidate, Forbidden, RewriteJob, VerifiedCandidate
from sardonyx.records.run import Event, RolledBack, Verdict

if TYPE_CHECKING:
    from sardonyx.verification import Oracle
    from sardonyx.verification.rewrite_check import Findings, LocalChecks

Inputs = str | Path | Mapping[str, np.ndarray] | None
PATIENCE = 3  # wrong rewrites of one pass after which the whole pass is rolled back
_SHARE = 0.6  # of the time that the reference takes, for checking single rewrites: less than a third of all
_LEAST = 1.0  # seconds that these checks may take in any case


@dataclass(slots=True)
class _Undone:
    """What must not be done again."""

    forbidden: set[tuple[str, str]]
    rolled_back: list[RolledBack] = field(default_factory=list[RolledBack])
    rounds: Counter[str] = field(default_factory=Counter[str])  # in which a rewrite of the pass had to be undone


@dataclass(frozen=True, slots=True)
class Verification:
    """How candidates are verified."""

    inputs: Inputs
    seed: int
    threads: int | None
    seconds: float  # about how long models may run
    runtimes: tuple[str, ...]


class Verifier:
    """Verifies candidates of one job; the source's answers are computed once for all of them."""

    def __init__(self, job: RewriteJob, how: Verification) -> None:
        self._job = job
        self._how = how
        self.seconds: dict[str, float] = {"passes": 0.0, "proof": 0.0}

    def settle(self, mode: str, without: Forbidden = frozenset()) -> VerifiedCandidate:
        """The furthest candidate that holds, made without what is forbidden from the start.

        Raises:
            VerificationFailed: where even no rewrite at all gives a different function.
        """
        if mode == "off":
            return VerifiedCandidate(self._candidate(None, without), None, (), without)
        undone = _Undone(set(without))
        while True:
            forbidden = frozenset(undone.forbidden)
            candidate, failing = self._locally_checked(forbidden)
            if failing:
                self._roll_back(failing, undone)
                continue
            good, bad, verdict = self._check(candidate, mode, forbidden)
            if bad is None:
                verdict = replace(verdict, rewrites=self._local.findings.record())
                return VerifiedCandidate(candidate, verdict, tuple(undone.rolled_back), forbidden)
            if bad == 0:
                raise VerificationFailed(
                    f"the model does not compute the same as itself: {verdict.failures[0]}",
                    hint='its results may depend on something outside it; `verify="off"` writes it unverified',
                )
            guilty, verdict = self._guilty(candidate, good, bad, verdict, forbidden)
            failing = [RolledBack(guilty.pass_name, guilty.root, guilty.owner, verdict.failures[0])]
            self._roll_back(failing, undone)

    def _roll_back(self, failing: Sequence[RolledBack], state: _Undone) -> None:
        """Forbid failing rewrites; of a pass that fails round after round, all of them."""
        for each in failing:
            self._job.tell(f"rolled back {each.pass_name} at {each.root}", None)
        state.rolled_back += failing
        state.forbidden.update((each.pass_name, each.root) for each in failing)
        for name in dict.fromkeys(each.pass_name for each in failing):
            state.rounds[name] += 1
            if state.rounds[name] == PATIENCE:
                reason = next(each.reason for each in failing if each.pass_name == name)
                state.rolled_back = [each for each in state.rolled_back if each.pass_name != name]
                state.rolled_back.append(RolledBack(name, WHOLE_PASS, "", reason))
                state.forbidden.add((name, WHOLE_PASS))

    def _locally_checked(self, forbidden: Forbidden) -> tuple[Candidate, list[RolledBack]]:
        """A candidate each of whose rewrites was also checked where it happened, and the rewrites that failed there."""
        checks = self._local
        checks.begin()
        spent = checks.seconds
        candidate = self._candidate(None, forbidden, checks.observe)
        spent = checks.seconds - spent
        self.seconds["passes"] -= spent
        self.seconds["proof"] += spent
        return candidate, _failing(checks.findings)

    def _candidate(self, limit: int | None, forbidden: Forbidden, observe: Observer | None = None) -> Candidate:
        began = time.perf_counter()
        candidate = self._job.candidate(limit, forbidden, observe)
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
        from sardonyx.verification import Oracle, seeds_from  # only here: a run without proof need not load it

        return Oracle(
            self._job.source,
            inputs=self._how.inputs,
            seeds=seeds_from(self._how.seed),
            seconds=self._how.seconds,
            runtimes=self._how.runtimes,
            threads=self._how.threads,
            progress=lambda text: self._job.tell(text, None),
        )

    @functools.cached_property
    def _local(self) -> LocalChecks:
        from sardonyx.verification.rewrite_check import LocalChecks

        began = time.perf_counter()
        self._oracle.answers()
        seconds = time.perf_counter() - began
        self.seconds["proof"] += seconds
        return LocalChecks(max(_SHARE * seconds, _LEAST))

    def _verdict(self, candidate: Candidate) -> Verdict:
        began = time.perf_counter()
        verdict = self._oracle.check(candidate.model, run_tables.loosest(candidate.log.events, self._job.passes))
        self.seconds["proof"] += time.perf_counter() - began
        return verdict


def _failing(found: Findings) -> list[RolledBack]:
    """The failing rewrites; for a pass of which several fail and none holds, the pass."""
    counts = Counter(each.pass_name for each in found.failing)
    whole = {name for name, count in counts.items() if count >= PATIENCE and name not in found.holding}
    named = {each.pass_name: RolledBack(each.pass_name, WHOLE_PASS, "", each.reason) for each in found.failing}
    return [each for each in found.failing if each.pass_name not in whole] + [named[name] for name in whole]
