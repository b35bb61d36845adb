"""The verification on the page: from PyTorch over ONNX to the optimized file, and how each step was verified."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal

from msgspec import Struct

from sardonyx.records.export import Export
from sardonyx.records.run import Artifact, Counts, Run, Verdict
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting import verdict as verdicts
from sardonyx.reporting.export import unreached_line
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run import rollback_sentence
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.writers import html


class VerificationStep(Struct, frozen=True):
    """Two models of the chain, and whether the second was verified against the first."""

    title: str
    state: Literal["good", "bad", "unknown"]
    sentence: str
    verdict: Verdict | None = None

    @property
    def details(self) -> dict[str, Any]:
        """Everything about the verification, if there was one."""
        if (verdict := self.verdict) is None:
            return {}
        outputs = verdicts.output_table(verdict)
        return {
            "title": self.title,
            "verdict": verdict,
            "conditions": verdicts.conditions(verdict),
            "outputs": html.table(outputs, f"{self.title}, by output") if outputs.rows else "",
            "trials": html.table(verdicts.trial_table(verdict), f"{self.title}, by trial"),
            "generation": verdicts.generation_lines(verdict),
            "rewrites": verdicts.rewrite_lines(verdict, reasons=True),
            "notes": [*verdicts.notes(verdict), *verdicts.runtime_lines(verdict)],
            "gaps": verdicts.gaps(verdict),
        }


def section(bundle: RunBundle) -> Section:
    """Return the chain of models, the differences of each output, and what was rolled back."""
    run = bundle.run
    steps = (_exported(bundle.export, run), _between("ONNX and optimized", run.verdict))
    stations = (
        _pytorch(bundle.export),
        _file("ONNX", run.source, run.before),
        _file("optimized", run.result, run.after),
    )
    undone = [rollback_sentence(rollback) for rollback in run.rolled_back]
    shown = {"verifications": [step.details for step in steps if step.verdict], "verified": run.verdict is not None}
    markup = rendered("verification", stations=stations, steps=steps, undone=undone, **shown)
    return Section("verification", "Verification", markup)


def _pytorch(export: Export | None) -> dict[str, Any]:
    station: dict[str, Any] = {"role": "PyTorch", "known": export is not None}
    if export is None:
        return station | {"name": "not known", "facts": ["this run started from an ONNX file"], "sha256": None}
    module = export.module
    facts = [
        f"{fmt.name(module.class_name)}, {fmt.plural(module.modules, 'module')}",
        fmt.plural(module.parameters, "parameter"),
        *([unreached_line(export)] if export.unreached else []),
    ]
    return station | {"name": module.label, "facts": facts, "sha256": module.sha256}


def _file(role: str, artifact: Artifact, counts: Counts) -> dict[str, Any]:
    facts = (f"{fmt.size(artifact.bytes)}, {fmt.plural(counts.nodes, 'node')}", fmt.opset(artifact.opsets))
    name = PurePath(artifact.path).name if artifact.path else "model in memory"
    return {"role": role, "known": True, "name": name, "facts": facts, "sha256": artifact.sha256}


def _exported(export: Export | None, run: Run) -> VerificationStep:
    title = "PyTorch and ONNX"
    if export is None:
        return VerificationStep(title, "unknown", "no export record; sardonyx export writes one with --record")
    if export.result.sha256 is None or run.source.sha256 is None:
        return VerificationStep(title, "unknown", "whether this is the exported file is unknown: a hash is missing")
    if export.result.sha256 != run.source.sha256:
        other = f"the export wrote another file ({export.result.sha256[:12]}…) than was optimized"
        return VerificationStep(title, "bad", f"the chain is broken: {other}")
    return _between(title, export.verdict)


def _between(title: str, verdict: Verdict | None) -> VerificationStep:
    state = "unknown" if verdict is None else "good" if verdict.passed else "bad"
    return VerificationStep(title, state, verdicts.verification(verdict), verdict)
