"""The source after some rewrites: every candidate is made from the source anew.

The driver is deterministic, so the state after k rewrites is had by asking for k, and a rewrite is undone by asking for
the same without it. That is slower than keeping an undo log for the one run in a thousand that needs it, and cannot go
wrong in the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx import runtime
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.opsets.raising import HIGHEST, RAISE
from sardonyx.ir.rewriter import Log, Observer, Rewriter, Tally
from sardonyx.ir.scopes import is_sorted
from sardonyx.ir.size_budget import Growth, allowance
from sardonyx.optimizer import run_tables
from sardonyx.passes import Pass
from sardonyx.provenance import Hierarchy
from sardonyx.records import gc_pause
from sardonyx.records.run import Artifact, RolledBack, Verdict

Source = str | Path | onnx.ModelProto | ir.Model | io.LoadedFile
Progress = Callable[[str, float | None], None]
Forbidden = frozenset[tuple[str, str]]
WHOLE_PASS = "*"
_LEFT_ALONE = "left as it is: its training info may refer to anything in it by name"


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A model some rewrites further than the source, and how it got there."""

    model: ir.Model
    log: Log
    hierarchy: Hierarchy
    facts: Facts  # of the model, with what rewrites made known
    before: run_tables.GraphSnapshot  # of the source


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedCandidate:
    """The furthest candidate that a proof let stand."""

    candidate: Candidate
    verdict: Verdict | None  # None: nothing was proven
    rolled_back: tuple[RolledBack, ...]  # what had to be undone on the way
    forbidden: Forbidden  # what it was made without


class RewriteJob:
    """The source and the passes to run on it."""

    def __init__(
        self,
        source: Source,
        passes: tuple[Pass, ...],
        target: str,
        tell: Progress,
        *,
        max_opset: int = HIGHEST,
        allow_growth: bool = False,
        keep_modules: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.path: Path | None = None
        if isinstance(source, io.LoadedFile):
            self.path = source.path
        elif isinstance(source, (str, Path)):
            self.path = Path(source)
        self.passes = passes
        self.tell = tell
        self._target = target
        self._max_opset = max_opset
        self._allow_growth = allow_growth
        self._keep_modules = keep_modules
        self.notes: tuple[str, ...] = ()
        self._before: run_tables.GraphSnapshot | None = None
        self._first: ir.Model | None = self._fresh()
        self.opsets = dict(self._first.opset_imports)
        self._ir_version = self._first.ir_version

    def _fresh(self) -> ir.Model:
        with gc_pause.paused():
            match self.source:
                case onnx.ModelProto():
                    return io.from_proto(self.source)
                case ir.Model():
                    return self.source.clone()
                case io.LoadedFile():
                    return self.source.model.clone()
                case path:
                    return io.load(path)

    def candidate(
        self, limit: int | None = None, forbidden: Forbidden = frozenset(), observe: Observer | None = None
    ) -> Candidate:
        """The source after its first `limit` rewrites, none of them forbidden, each of them shown to `observe`."""
        with gc_pause.paused():
            return self._candidate(limit, forbidden, observe)

    def _candidate(self, limit: int | None, forbidden: Forbidden, observe: Observer | None) -> Candidate:
        model, self._first = self._first or self._fresh(), None
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            if not is_sorted(graph):
                graph.sort()
        hierarchy = origins.attach(model)
        growth = Growth(None if self._allow_growth else allowance(model))
        facts = Facts(model, target=self._target, evaluate=runtime.evaluate, growth=growth)
        self._before = before = self._before or run_tables.snapshot(facts)
        if io.has_training_info(model):
            passes, self.notes = [], (_LEFT_ALONE,)
        else:
            passes = [each for each in self.passes if (each.name, WHOLE_PASS) not in forbidden]
        tell = self.tell
        log = Rewriter(
            facts,
            passes,
            limit=limit,
            forbidden=forbidden,
            max_opset=0 if (RAISE.name, WHOLE_PASS) in forbidden else self._max_opset,
            progress=lambda name: tell(name, None),
            observe=observe,
            borders=Borders.of(model, hierarchy, self._keep_modules),
        ).run()
        for each in self.passes:
            log.tallies.setdefault(each.name, Tally())
        origins.write(model, hierarchy)
        return Candidate(model, log, hierarchy, facts, before)

    def opset_of(self, domain: str) -> int:
        """The version the source imports; 0 where it imports none. The standard domain has two spellings."""
        return self.opsets.get(domain, 0) or (0 if domain else self.opsets.get("ai.onnx", 0))

    def artifact(self, digest: str | None) -> Artifact:
        """The source as it was found."""
        size = os.path.getsize(self.path) if self.path is not None else 0
        return Artifact(str(self.path) if self.path else None, digest, size, self._ir_version, self.opsets)
