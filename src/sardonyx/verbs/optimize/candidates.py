"""Candidates: the source model after some rewrites. Every candidate is built from the source again.

The rewriter is deterministic, so the state after k rewrites is built by limiting a run to k rewrites, and a rewrite is
undone by a run that forbids it. This is slower than an undo log in the few runs that need it, and simpler in all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.ir import io, origins
from sardonyx.ir.device import Kernels, Profile, cost, opset_without_loss, target_named
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.opset_raising import HIGHEST, RAISE
from sardonyx.ir.rewriter import Log, Observer, Rewriter, Tally
from sardonyx.ir.size_budget import Growth, allowance
from sardonyx.passes import Pass
from sardonyx.passes.installed import outside_failure
from sardonyx.records.progress import Progress
from sardonyx.records.provenance import Hierarchy
from sardonyx.records.run import Artifact, Refusal, RolledBack, Verdict
from sardonyx.runtime import remote
from sardonyx.verbs.optimize import run_tables

if TYPE_CHECKING:
    from sardonyx.verbs.optimize.certificate import Recorder

Source = str | Path | onnx.ModelProto | ir.Model | io.LoadedFile
Forbidden = frozenset[tuple[str, str]]  # (name of a pass, root of a rewrite or WHOLE_PASS)
WHOLE_PASS = "*"
_NOT_REWRITTEN = "not rewritten: the model has training info, which may refer to anything in it by name"
_UNSORTED = "the nodes of the source were in no topological order, which ONNX requires; those of the result are"


class Candidate(Struct, frozen=True, eq=False):
    """The source after some rewrites, and the log of them."""

    model: ir.Model
    log: Log
    hierarchy: Hierarchy
    facts: Facts  # shapes and types of the model
    before: run_tables.GraphSnapshot  # of the source
    recorder: Recorder | None  # of the rewrites, if there will be a certificate


class VerifiedCandidate(Struct, frozen=True, eq=False):
    """The candidate with the most rewrites that passed verification."""

    candidate: Candidate
    verdict: Verdict | None  # None if verification was off
    rolled_back: tuple[RolledBack, ...]  # rewrites that failed and were undone
    forbidden: Forbidden  # passes and rewrites that it was built without


class RewriteJob:
    """The source and the passes to run on it."""

    def __init__(
        self,
        source: Source,
        passes: tuple[Pass, ...],
        target: str,
        progress: Progress,
        *,
        max_opset: int = HIGHEST,
        allow_growth: bool = False,
        keep_modules: Sequence[str] = (),
        certifies: bool = False,
    ) -> None:
        self.source, self.passes, self.progress = source, passes, progress
        path = source.path if isinstance(source, io.LoadedFile) else source
        self.path = Path(path) if isinstance(path, (str, Path)) else None
        self._target = target_named(target)
        self._is_opset_chosen = False
        self._unfit: dict[tuple[str, str], Refusal] = {}  # rewrites whose nodes the device does not run
        self._max_opset, self._allow_growth = max_opset, allow_growth
        self._keep_modules, self._certifies = keep_modules, certifies
        self.notes: tuple[str, ...] = ()
        self._before: run_tables.GraphSnapshot | None = None
        self._file = io.ModelFile.open(source) if isinstance(source, (str, Path)) else None
        self.opsets: dict[str, int] = {}  # of the source; known once a candidate was built, as is the next
        self._ir_version = 0

    def _fresh(self) -> ir.Model:
        return fresh(self.source) if self._file is None else self._file.graph()

    def source_facts(self) -> Facts:
        """Return the facts about the source itself, whose nodes have their origins."""
        with gc_pause.paused():
            model = self._fresh()
            origins.attach(model)
            return Facts(model, target=self._target.operators)

    def candidate(
        self, limit: int | None = None, forbidden: Forbidden = frozenset(), observe: Observer | None = None
    ) -> Candidate:
        """Return the source after its first `limit` rewrites; `observe` is called with each, and none is forbidden."""
        with gc_pause.paused():
            if self._target.device is not None and not self._is_opset_chosen:
                self._choose_opset(self._target.device)
            return self._candidate(limit, forbidden, observe)

    def _choose_opset(self, device: Profile) -> None:
        """Keep the opset low if nodes that leave the device in a newer one cost more than fusions into it save."""
        self._is_opset_chosen, highest = True, self._max_opset
        facts = self.source_facts()
        facts.infer()
        lowest = opset_without_loss(device, facts, min(highest, HIGHEST))
        if lowest < highest:
            costs: dict[int, float] = {}
            for self._max_opset in (highest, lowest):
                self._unfit.clear()
                costs[self._max_opset] = cost(device, self._candidate(None, frozenset(), None).facts)
            self._max_opset = min(costs, key=costs.__getitem__)
            self._unfit.clear()

    def _candidate(self, limit: int | None, forbidden: Forbidden, observe: Observer | None) -> Candidate:
        """Return a candidate without the rewrites whose nodes the device does not run, which only a whole run shows."""
        device = self._target.device
        while limit is None and device is not None:
            kernels = Kernels(device)
            self._built(None, forbidden | self._unfit.keys(), kernels.observe)
            if not (found := kernels.unfit()):
                break
            self._unfit |= found
        made = self._built(limit, forbidden | self._unfit.keys(), observe)
        made.log.refusals.extend(self._unfit.values())
        return made

    def _built(self, limit: int | None, forbidden: Forbidden, observe: Observer | None) -> Candidate:
        model = self._fresh()
        self.opsets, self._ir_version = dict(model.opset_imports), model.ir_version
        self.notes = (_UNSORTED,) if io.forget_unsorted(model) else ()
        hierarchy = origins.attach(model)
        recorder = _recorder(model) if self._certifies else None
        growth = Growth(None if self._allow_growth else allowance(model))
        facts = Facts(model, target=self._target.operators, evaluate=remote.evaluate, growth=growth)
        self._before = before = self._before or run_tables.snapshot(facts)
        if io.has_training_info(model):
            passes, self.notes = [], (*self.notes, _NOT_REWRITTEN)
        else:
            passes = [rule for rule in self.passes if (rule.name, WHOLE_PASS) not in forbidden]
        rewriter = Rewriter(
            facts,
            passes,
            limit=limit,
            forbidden=forbidden,
            max_opset=0 if (RAISE.name, WHOLE_PASS) in forbidden else self._max_opset,
            progress=lambda name: self.progress(f"pass {name}", None),
            observe=observe if recorder is None else recorder.observing(observe),
            borders=Borders.of(model, hierarchy, self._keep_modules),
        )
        try:
            log = rewriter.run()
        except Exception as error:
            failure = outside_failure(rewriter.running, error)
            if failure is None:
                raise
            raise failure from error
        for rule in self.passes:
            log.tallies.setdefault(rule.name, Tally())
        origins.write(model, hierarchy)
        return Candidate(model, log, hierarchy, facts, before, recorder)

    def opset_of(self, domain: str) -> int:
        """Return the version that the source imports, or 0; "ai.onnx" is another name of the standard domain ""."""
        return self.opsets.get(domain, 0) or (0 if domain else self.opsets.get("ai.onnx", 0))

    def artifact(self, digest: str | None) -> Artifact:
        """Return the source as an artifact of the record."""
        size = os.path.getsize(self.path) if self.path is not None else 0
        return Artifact(str(self.path) if self.path else None, digest, size, self._ir_version, self.opsets)


def _recorder(model: ir.Model) -> Recorder:
    from sardonyx.verbs.optimize.certificate import Recorder  # slow to import, and few runs need it

    return Recorder(model)


def fresh(source: Source) -> ir.Model:
    """Return another graph of a source."""
    match source:
        case onnx.ModelProto():
            return io.from_proto(source)
        case ir.Model():
            return source.clone()
        case io.LoadedFile():
            return source.model.clone()
        case _:
            return io.load(source)
