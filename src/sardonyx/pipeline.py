"""Passes in order, proven, rolled back where a proof fails, recorded."""

from __future__ import annotations

import difflib
import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx_ir as ir

from sardonyx import ledger
from sardonyx.candidates import WHOLE_PASS, Candidate, Forbidden, Job, Progress, Source
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.graph import io
from sardonyx.graph.io import check_free
from sardonyx.graph.opsets.raising import HIGHEST
from sardonyx.passes import ALL, Pass
from sardonyx.record import Event, RolledBack, Run, Verdict

if TYPE_CHECKING:
    from sardonyx.proof import Oracle

Inputs = str | Path | Mapping[str, np.ndarray] | None
PATIENCE = 3  # wrong rewrites of one pass after which the whole pass is rolled back


@dataclass(frozen=True)
class Optimized(Run):
    """A Run together with the model it made."""

    model: ir.Model | None = None


def optimize(
    source: Source,
    output: str | Path | None = None,
    *,
    target: Literal["portable", "ort"] = "portable",
    verify: Literal["each", "end", "off"] = "end",
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    fewest_nodes: bool = False,
    max_opset: int | None = None,
    keep_opset: bool = False,
    inputs: Inputs = None,
    seed: int = 0,
    threads: int | None = None,
    force: bool = False,
    external: bool | None = None,
    hashes: bool | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Optimized:
    """Make a graph smaller and prove that it computes the same.

    Args:
        source: a path, a ModelProto or an onnx-ir Model; never changed.
        output: where to write the result; nothing is written where None.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        verify: prove after each pass, at the end, or not at all.
        only: names of the passes to run; all of the target's where None.
        skip: names of passes to leave out.
        fewest_nodes: run those passes too that make a graph smaller but measured slower.
        max_opset: how far the opset may be raised where a fusion needs it; as far as any does where None.
        keep_opset: never raise it.
        inputs: an .npz file or arrays by name to prove on, besides the drawn ones.
        seed: of the drawn inputs.
        threads: of the runtime.
        force: overwrite an existing output.
        external: weights in a file of their own or inside; as in the source where None.
        hashes: put SHA-256 sums of both files into the record; by default where the result is proven.
        dry_run: say what would apply; prove and write nothing.
        progress: told the phase, and how far it is where that is known.

    Returns:
        The record of the run, with the optimized model as `.model`.

    Raises:
        VerificationFailed: where the models differ and no rewrite is to blame.
    """
    began = time.perf_counter()
    hashed = (verify != "off" if hashes is None else hashes) and not dry_run
    if output is not None and not dry_run:
        check_free(os.fspath(output), force=force)
    passes, bound = select(target, only, skip, fewest_nodes=fewest_nodes), _opset_bound(max_opset, keep=keep_opset)
    job = Job(source, passes, target, progress or (lambda _phase, _fraction: None), max_opset=bound)
    prover = _Prover(job, inputs=inputs, seed=seed, threads=threads)
    with ThreadPoolExecutor(1) as pool:
        source_hash = pool.submit(io.sha256_of, job.path) if hashed and job.path is not None else None
        candidate, verdict, rolled_back = prover.settle("off" if dry_run else verify)
        digest = source_hash.result() if source_hash is not None else None
    if output is not None and not dry_run:
        job.tell("writing", None)
        io.save(candidate.model, output, force=force, external=external)
    after = ledger.census(candidate.model)
    changed = candidate.model.opset_imports.items() - job.opsets.items()
    return Optimized(
        status="done",
        environment=ledger.environment(),
        options={
            "target": target,
            "verify": verify,
            "only": only,
            "skip": skip,
            "max_opset": max_opset,
            "keep_opset": keep_opset,
            "seed": seed,
            "dry_run": dry_run,
        },
        source=job.artifact(digest),
        result=ledger.artifact(candidate.model, None if dry_run else output, hashed=hashed),
        opset_changes={domain: (job.opset_of(domain), version) for domain, version in sorted(changed)},
        before=candidate.before.counts,
        after=after.counts,
        ops=ledger.op_counts(candidate.before, after),
        modules=ledger.module_counts(candidate.before, after, candidate.hierarchy),
        passes=ledger.pass_records(job.passes, candidate.log),
        events=tuple(candidate.log.events),
        rolled_back=rolled_back,
        verdict=verdict,
        seconds={**prover.seconds, "total": time.perf_counter() - began},
        notes=job.notes,
        model=candidate.model,
    )


def _opset_bound(most: int | None, *, keep: bool) -> int:
    if keep and most is not None:
        raise UsageError("max_opset and keep_opset contradict each other", hint="give one of them")
    return 0 if keep else HIGHEST if most is None else most


def select(
    target: str,
    only: Iterable[str] | None = None,
    skip: Iterable[str] | None = None,
    *,
    fewest_nodes: bool = False,
) -> tuple[Pass, ...]:
    """The passes of a target, narrowed by name; one that measured slower only where asked for.

    Raises:
        UsageError: for a name that no pass has.
    """
    known = [each.name for each in ALL]
    for name in (*(only or ()), *(skip or ())):
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "`sardonyx passes` lists them"
            raise UsageError(f"there is no pass {name!r}", hint=hint)
    usual = (each.name for each in ALL if fewest_nodes or not each.slower)
    wanted = set(usual if only is None else only) - set(skip or ())
    return tuple(each for each in ALL if each.name in wanted and target in each.targets)


class _Prover:
    """Proves candidates against the source, and finds what to undo where one fails."""

    def __init__(self, job: Job, *, inputs: Inputs, seed: int, threads: int | None) -> None:
        self._job = job
        self._inputs = inputs
        self._seed = seed
        self._threads = threads
        self.seconds: dict[str, float] = {"passes": 0.0, "proof": 0.0}

    def settle(self, mode: str) -> tuple[Candidate, Verdict | None, tuple[RolledBack, ...]]:
        """The furthest candidate that holds, its verdict, and what had to be undone on the way.

        Raises:
            VerificationFailed: where even no rewrite at all gives a different function.
        """
        forbidden: set[tuple[str, str]] = set()
        undone: list[RolledBack] = []
        while True:
            candidate = self._candidate(None, frozenset(forbidden))
            if mode == "off":
                return candidate, None, ()
            good, bad, verdict = self._check(candidate, mode, frozenset(forbidden))
            if bad is None:
                return candidate, verdict, tuple(undone)
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
            inputs=self._inputs,
            seeds=seeds_from(self._seed),
            threads=self._threads,
            progress=lambda text: self._job.tell(text, None),
        )

    def _verdict(self, candidate: Candidate) -> Verdict:
        began = time.perf_counter()
        verdict = self._oracle.check(candidate.model, ledger.loosest(candidate.log.events, self._job.passes))
        self.seconds["proof"] += time.perf_counter() - began
        return verdict
