"""The proof on the page: from PyTorch over ONNX to the optimized file, station by station, and what holds between."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from sardonyx.records.export import Export
from sardonyx.records.run import Artifact, Counts, Run, Verdict
from sardonyx.reporting import formatting
from sardonyx.reporting.export import unreached_line
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run import undone_sentence
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import (
    OUTPUTS,
    TRIALS,
    conditions,
    gaps,
    generation_lines,
    notes,
    output_cells,
    output_groups,
    proof,
    rewrite_lines,
    runtime_lines,
    trial_cells,
)


@dataclass(frozen=True, slots=True)
class Station:
    """A model on the way."""

    role: str
    name: str
    facts: tuple[str, ...] = ()
    sha256: str | None = None
    known: bool = True


@dataclass(frozen=True, slots=True)
class VerificationStep:
    """What is known of two stations side by side."""

    title: str
    state: str  # "good" | "bad" | "unknown"
    sentence: str
    verdict: Verdict | None = None

    @property
    def conditions(self) -> str:
        """How much was tried."""
        return "" if self.verdict is None else conditions(self.verdict)

    @property
    def notes(self) -> list[str]:
        """What a reader should know besides, and what further runtimes computed."""
        return [] if self.verdict is None else [*notes(self.verdict), *runtime_lines(self.verdict)]

    @property
    def outputs(self) -> list[tuple[str, ...]]:
        """A row for each output."""
        return [] if self.verdict is None else [output_cells(each) for each in output_groups(self.verdict)]

    @property
    def differing(self) -> list[int]:
        """Which of them differ."""
        groups = [] if self.verdict is None else output_groups(self.verdict)
        return [i for i, each in enumerate(groups) if not each.passed]

    @property
    def gaps(self) -> list[str]:
        """What the trials did not cover."""
        return [] if self.verdict is None else gaps(self.verdict)

    @property
    def rewrites(self) -> list[str]:
        """What was found out about single rewrites."""
        return [] if self.verdict is None else rewrite_lines(self.verdict)

    @property
    def generation(self) -> list[str]:
        """What generating tokens showed."""
        return [] if self.verdict is None else generation_lines(self.verdict)

    @property
    def trials(self) -> list[tuple[str, ...]]:
        """A row for each trial."""
        return [] if self.verdict is None else [trial_cells(each) for each in self.verdict.trials]

    @property
    def failed(self) -> list[int]:
        """Which of them failed."""
        return [] if self.verdict is None else [i for i, each in enumerate(self.verdict.trials) if not each.passed]


def section(dossier: RunBundle) -> Section:
    """The chain, the errors of each output, and what was rolled back."""
    run = dossier.run
    html = rendered(
        "proof",
        stations=(
            _pytorch(dossier.export),
            _file("ONNX", run.source, run.before),
            _file("optimized", run.result, run.after),
        ),
        steps=(_exported(dossier.export, run), _optimized(run)),
        output_columns=OUTPUTS,
        trial_columns=TRIALS,
        undone=[undone_sentence(each) for each in run.rolled_back],
        verified=run.verdict is not None,
    )
    return Section("proof", "Proof", html)


def _pytorch(export: Export | None) -> Station:
    if export is None:
        return Station("PyTorch", "not known", ("this run began with an ONNX file",), known=False)
    module = export.module
    facts = (
        f"{formatting.name(module.class_name)}, {formatting.plural(module.modules, 'module')}",
        formatting.plural(module.parameters, "parameter"),
        *([unreached_line(export)] if export.unreached else []),
    )
    return Station("PyTorch", module.label, facts, module.sha256)


def _file(role: str, artifact: Artifact, counts: Counts) -> Station:
    opset = artifact.opsets.get("", artifact.opsets.get("ai.onnx"))
    facts = (
        f"{formatting.size(artifact.bytes)}, {formatting.plural(counts.nodes, 'node')}",
        "no standard opset" if opset is None else f"opset {opset}",
    )
    name = PurePath(artifact.path).name if artifact.path else "model in memory"
    return Station(role, name, facts, artifact.sha256)


def _exported(export: Export | None, run: Run) -> VerificationStep:
    title = "PyTorch and ONNX"
    if export is None:
        return VerificationStep(title, "unknown", "no export record; sardonyx export writes one with --record")
    if export.result.sha256 is None or run.source.sha256 is None:
        return VerificationStep(title, "unknown", "whether this is the exported file cannot be told: a hash is missing")
    if export.result.sha256 != run.source.sha256:
        made = export.result.sha256[:12]
        return VerificationStep(
            title, "bad", f"the chain is broken: the export made another file ({made}…) than was optimized"
        )
    return _between(title, export.verdict)


def _optimized(run: Run) -> VerificationStep:
    return _between("ONNX and optimized", run.verdict)


def _between(title: str, verdict: Verdict | None) -> VerificationStep:
    state = "unknown" if verdict is None else "good" if verdict.passed else "bad"
    return VerificationStep(title, state, proof(verdict), verdict)
