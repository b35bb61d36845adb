"""The verification on the page: from PyTorch over ONNX to the optimized file, and how each step was verified."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from msgspec import Struct

from sardonyx.records.export import Export
from sardonyx.records.run import Artifact, Counts, Run, Verdict
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.export import unreached_line
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run import rollback_sentence
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import (
    conditions,
    gaps,
    generation_lines,
    notes,
    output_table,
    rewrite_lines,
    runtime_lines,
    trial_table,
    verification,
)
from sardonyx.reporting.writers import html


class Station(Struct, frozen=True):
    """A model in the chain."""

    role: str
    name: str
    facts: tuple[str, ...] = ()
    sha256: str | None = None
    known: bool = True


class VerificationStep(Struct, frozen=True):
    """Two stations, and whether the second was verified against the first."""

    title: str
    state: str  # "good" | "bad" | "unknown"
    sentence: str
    verdict: Verdict | None = None


def _details(step: VerificationStep) -> dict[str, Any] | None:
    verdict = step.verdict
    if verdict is None:
        return None
    outputs = output_table(verdict)
    return {
        "title": step.title,
        "verdict": verdict,
        "conditions": conditions(verdict),
        "outputs": html.table(outputs, f"{step.title}, by output") if outputs.rows else "",
        "trials": html.table(trial_table(verdict), f"{step.title}, by trial"),
        "generation": generation_lines(verdict),
        "rewrites": rewrite_lines(verdict, reasons=True),
        "notes": [*notes(verdict), *runtime_lines(verdict)],
        "gaps": gaps(verdict),
    }


def section(bundle: RunBundle) -> Section:
    """Return the chain of models, the differences of each output, and what was rolled back."""
    run = bundle.run
    steps = (_exported(bundle.export, run), _between("ONNX and optimized", run.verdict))
    markup = rendered(
        "verification",
        stations=(
            _pytorch(bundle.export),
            _file("ONNX", run.source, run.before),
            _file("optimized", run.result, run.after),
        ),
        steps=steps,
        verifications=list(filter(None, map(_details, steps))),
        undone=[rollback_sentence(rollback) for rollback in run.rolled_back],
        verified=run.verdict is not None,
    )
    return Section("verification", "Verification", markup)


def _pytorch(export: Export | None) -> Station:
    if export is None:
        return Station("PyTorch", "not known", ("this run started from an ONNX file",), known=False)
    module = export.module
    facts = (
        f"{fmt.name(module.class_name)}, {fmt.plural(module.modules, 'module')}",
        fmt.plural(module.parameters, "parameter"),
        *([unreached_line(export)] if export.unreached else []),
    )
    return Station("PyTorch", module.label, facts, module.sha256)


def _file(role: str, artifact: Artifact, counts: Counts) -> Station:
    facts = (f"{fmt.size(artifact.bytes)}, {fmt.plural(counts.nodes, 'node')}", fmt.opset(artifact.opsets))
    name = PurePath(artifact.path).name if artifact.path else "model in memory"
    return Station(role, name, facts, artifact.sha256)


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
    return VerificationStep(title, state, verification(verdict), verdict)
