"""Verify candidates against the source, and roll back exactly the failing rewrites.

Each rewrite is first checked where it happens, then the whole candidate. If the whole candidate fails, bisection finds
the first rewrite after which it does; that rewrite is forbidden and the candidate is built again.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.errors import VerificationFailed
from sardonyx.ir import io
from sardonyx.ir.rewriter import Observer
from sardonyx.records.run import Event, RolledBack, Verdict
from sardonyx.verbs.optimize import run_tables
from sardonyx.verbs.optimize.candidates import WHOLE_PASS, Candidate, Forbidden, RewriteJob, VerifiedCandidate
from sardonyx.verbs.optimize.options import OptimizeOptions

if TYPE_CHECKING:
    from sardonyx.verification import Oracle
    from sardonyx.verification.rewrite_check import Findings, LocalChecks

Inputs = str | Path | Mapping[str, np.ndarray] | None
MOST_FAILURES = 3  # failing rewrites of one pass after which the whole pass is rolled back


class _Failures(Struct):
    """The rewrites and passes that failed so far."""

    forbidden: set[tuple[str, str]]
    rolled_back: list[RolledBack] = field(default_factory=list[RolledBack])
    rounds: Counter[str] = field(default_factory=Counter[str])  # by pass: rounds in which a rewrite of it failed


class Verifier:
    """Verifies candidates of one job; the outputs of the source are computed once for all of them."""

    def __init__(
        self,
        job: RewriteJob,
        options: OptimizeOptions,
        inputs: Inputs = None,
        seed: int = 0,
        threads: int | None = None,
        *,
        force: bool = False,
    ) -> None:
        self._job, self._options, self._force = job, options, force  # force: overwrite files of a reproducer
        self._inputs, self._seed, self._threads = inputs, seed, threads
        self.seconds: dict[str, float] = {"passes": 0.0, "verification": 0.0}

    @property
    def feeds(self) -> list[Mapping[str, Any]]:
        """The inputs of the trials so far; none if verification was off."""
        return [answer.inputs.feeds for answer in self._oracle.answers()] if "_oracle" in self.__dict__ else []

    @property
    def copies(self) -> io.Copies | None:
        """Tensors of the last candidate that the trials have written to a file."""
        return self._oracle.copies if "_oracle" in self.__dict__ else None

    def verified(self, mode: str, without: Forbidden = frozenset()) -> VerifiedCandidate:
        """Return the candidate with the most rewrites that passes verification, built without those in `without`.

        Raises:
            VerificationFailed: The source differs from itself without any rewrite.
        """
        if mode == "off":
            return VerifiedCandidate(self._candidate(None, without), None, (), without)
        failures = _Failures(set(without))
        while True:
            forbidden = frozenset(failures.forbidden)
            candidate, failing = self._locally_checked(forbidden)
            if failing:
                self._roll_back(failing, failures)
                continue
            good, bad, verdict = self._check(candidate, mode, forbidden)
            if bad is None:
                verdict = replace(verdict, rewrites=self._local.findings.record())
                return VerifiedCandidate(candidate, verdict, tuple(failures.rolled_back), forbidden)
            if bad == 0:
                raise VerificationFailed(
                    f"the model does not compute the same as itself: {verdict.failures[0]}",
                    hint='its results may depend on something outside it; `verify="off"` writes it unverified',
                )
            event, verdict = self._first_failing(candidate, good, bad, verdict, forbidden)
            why = verdict.failures[0]
            if self._local.findings.proven:  # equal in exact arithmetic, so that it is how the runtime computes it
                kinds = ", ".join(dict.fromkeys(node.op_type for node in event.after)) or "the operators around it"
                why = f"equal in exact arithmetic, but not as {verdict.reference} computes {kinds}: {why}"
            self._roll_back([RolledBack(event.pass_name, event.root, event.owner, why)], failures)

    def _roll_back(self, failing: Sequence[RolledBack], failures: _Failures) -> None:
        """Forbid failing rewrites, and the whole pass if its rewrites failed in several rounds."""
        for rewrite in failing:
            self._job.progress(f"rolled back {rewrite.pass_name} at {rewrite.root}", None)
        failures.rolled_back += failing
        failures.forbidden.update((rewrite.pass_name, rewrite.root) for rewrite in failing)
        for name in dict.fromkeys(rewrite.pass_name for rewrite in failing):
            failures.rounds[name] += 1
            if failures.rounds[name] == MOST_FAILURES:
                first = next(rewrite for rewrite in failing if rewrite.pass_name == name)
                failures.rolled_back = [rewrite for rewrite in failures.rolled_back if rewrite.pass_name != name]
                failures.rolled_back.append(_whole(first))
                failures.forbidden.add((name, WHOLE_PASS))

    def _locally_checked(self, forbidden: Forbidden) -> tuple[Candidate, list[RolledBack]]:
        """Build a candidate, checking each rewrite where it happens; return it with the rewrites that failed."""
        checks = self._local
        checks.begin()
        spent = checks.seconds
        candidate = self._candidate(None, forbidden, checks.observe)
        spent = checks.seconds - spent
        self.seconds["passes"] -= spent
        self.seconds["verification"] += spent
        return candidate, _failing(checks.findings)

    def _candidate(self, limit: int | None, forbidden: Forbidden, observe: Observer | None = None) -> Candidate:
        began = time.perf_counter()
        candidate = self._job.candidate(limit, forbidden, observe)
        self.seconds["passes"] += time.perf_counter() - began
        return candidate

    def _check(self, candidate: Candidate, mode: str, forbidden: Forbidden) -> tuple[int, int | None, Verdict]:
        """Verify the candidate; return a number of rewrites that pass, and one that fails or None, with the verdict."""
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

    def _first_failing(
        self, candidate: Candidate, good: int, bad: int, verdict: Verdict, forbidden: Forbidden
    ) -> tuple[Event, Verdict]:
        """Bisect between `good` rewrites, which pass, and `bad` rewrites, which fail; return the rewrite that fails."""
        failed = verdict
        while bad - good > 1:
            self._job.progress(f"looking for the failing rewrite among {bad - good}", None)
            middle = (good + bad) // 2
            probe = self._verdict(self._candidate(middle, forbidden), failed)
            if probe.passed:
                good = middle
            else:
                bad, verdict = middle, probe
        return candidate.log.events[bad - 1], verdict

    @functools.cached_property
    def _oracle(self) -> Oracle:
        from sardonyx.verification import Oracle, seeds_from  # imported here: runs without verification do not load it

        return Oracle(
            self._job.source,
            inputs=self._inputs,
            seeds=seeds_from(self._seed),
            seconds=self._options.verify_seconds,
            runtimes=tuple(self._options.runtimes),
            threads=self._threads,
            progress=lambda text: self._job.progress(f"verification, {text}", None),
        )

    @functools.cached_property
    def _local(self) -> LocalChecks:
        from sardonyx.verification.rewrite_check import LocalChecks
        from sardonyx.verification.rewrite_models import Reproducers

        folder = self._options.reproducer
        return LocalChecks(None if folder is None else Reproducers(folder, force=self._force))

    def _verdict(self, candidate: Candidate, failed: Verdict | None = None) -> Verdict:
        """Verify a candidate; after a verdict that failed, on the trials that failed only."""
        began = time.perf_counter()
        if self._local.findings.proven_for_all_values:
            self._oracle.leave_out_values()
        accuracy = run_tables.loosest(candidate.log.events, self._job.passes)
        verdict = self._oracle.check(candidate.model, accuracy, failed=failed, proven=self._local.findings.proven)
        self.seconds["verification"] += time.perf_counter() - began
        return verdict


def _failing(findings: Findings) -> list[RolledBack]:
    """Return the failing rewrites; the whole pass if several of its rewrites fail and none holds."""
    counts = Counter(rewrite.pass_name for rewrite in findings.failing)
    whole = {name for name, count in counts.items() if count >= MOST_FAILURES and name not in findings.holding}
    last = {rewrite.pass_name: rewrite for rewrite in findings.failing}
    single = [rewrite for rewrite in findings.failing if rewrite.pass_name not in whole]
    return single + [_whole(last[name]) for name in whole]


def _whole(rewrite: RolledBack) -> RolledBack:
    """Return the rollback of the whole pass, for the reason of one of its rewrites."""
    return replace(rewrite, root=WHOLE_PASS, owner="")
