"""The source, and the models that plans make of it. Every one is built from the source again."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.ir import io
from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import label
from sardonyx.ir.tagged_model import Source
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import Candidate, RewriteJob
from sardonyx.passes import Pass
from sardonyx.passes.cleanup import UNUSED
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.provenance import module_of
from sardonyx.quantization.merge_products import MergeProducts
from sardonyx.quantization.precisions import Plan, Recipes, simulated
from sardonyx.quantization.recipe import Simulated
from sardonyx.records.run import Artifact, PassRecord


class NothingQuantized(UsageError):
    """No product of the selected modules can be quantized."""


class Job:
    """The source and the recipes that are applied to it."""

    def __init__(self, source: Source, recipes: Recipes) -> None:
        self.source = Path(source) if isinstance(source, (str, os.PathLike)) else source
        self._recipes = recipes
        self._first = self._job(())
        unchanged = self._first.candidate()
        self.before = unchanged.before.counts
        self.labels = [label(node) for node in unchanged.model.graph]  # in the order in which they run
        self.owners = [module_of(owner(node)) or label(node) for node in unchanged.model.graph]
        self.opsets = self._first.opsets

    def quantized(self, plan: Plan) -> tuple[Candidate, tuple[PassRecord, ...]]:
        """Return the source after the passes of a plan, and what each did.

        Raises:
            NothingQuantized: No product can be quantized.
        """
        passes = self._recipes.of(plan)
        job = self._job((*passes, EliminateDeadNodes()))  # weights of Constant nodes are dead once they are replaced
        candidate = job.candidate()
        recipes = [each.name for each in passes if not isinstance(each, MergeProducts)]
        if not any(candidate.log.tallies[name].rewrites for name in recipes):
            reasons = [refusal.reason for refusal in candidate.log.refusals]
            raise NothingQuantized(
                "nothing can be quantized" + (f": {reasons[0]}" if reasons else ""),
                hint="products of activations with constant float32 weights can be; check `keep` and `only`",
            )
        return candidate, run_tables.pass_records(job.passes, candidate.log)

    def simulated(self, plan: Plan) -> tuple[ir.Model, list[Simulated]]:
        """Return the result of a plan with the simulation of every product beside it."""
        passes = self._recipes.of(plan, simulate=True)
        model = self._job(passes).candidate().model
        return model, simulated(passes)

    def artifact(self) -> Artifact:
        """Return the source as an artifact of the record."""
        path = self._first.path
        return self._first.artifact(None if path is None else io.sha256_of(path))

    def opset_changes(self, model: ir.Model) -> dict[str, tuple[int, int]]:
        """Return the old and new versions of the operator sets that changed."""
        changed = model.opset_imports.items() - self.opsets.items()
        return {domain: (self._first.opset_of(domain), version) for domain, version in sorted(changed)}

    def _job(self, passes: tuple[Pass, ...]) -> RewriteJob:
        # A weight is replaced product by product, so that the model grows until the last one; the result is smaller.
        return RewriteJob(
            self.source,
            (*passes, *UNUSED),
            self._recipes.target,
            lambda _phase, _fraction: None,
            allow_growth=True,
        )
