"""Every kind of document, of records whose texts are changed by a given function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from hostile import poisoned
from reporting.sample_analysis import sample_analysis
from reporting.sample_bench import point, sample_benchmark
from reporting.sample_export import sample_export
from reporting.sample_location import sample_location
from reporting.sample_placement import placements_of_run
from reporting.sample_profile import sample_profile
from reporting.sample_quantization import sample_choice, sample_quantization
from reporting.sample_run import failed_verdict, sample_run, sample_verdict
from reporting.sample_run_bundle import sample_run_bundle
from reporting.sample_tuning import sample_tuning
from reporting.test_comparison import sample_comparison
from reporting.test_inspection import sample_inspection
from reporting.test_module_inspection import sample_module
from reporting.test_opportunities import sample_opportunities
from reporting.test_study import sample_study
from sardonyx.records.analysis import Decomposed
from sardonyx.records.export import BoundaryValue, Extraction
from sardonyx.records.inspection import Adoption, Coverage, RootNode
from sardonyx.reporting import record_kinds
from sardonyx.reporting.analysis import analysis_document, decomposition_document
from sardonyx.reporting.bench import bench_document
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.export import export_document, extraction_document
from sardonyx.reporting.gate import JobSummary, Outcome, summary_document
from sardonyx.reporting.inspection import (
    adoption_document,
    inspection_document,
    module_document,
    opportunities_document,
)
from sardonyx.reporting.measures import Reading
from sardonyx.reporting.placement import placement_document
from sardonyx.reporting.profile import profile_document
from sardonyx.reporting.pull_request import changes_comment, run_comment
from sardonyx.reporting.quantization import quantization_document
from sardonyx.reporting.run import run_document
from sardonyx.reporting.study import findings_document, study_document, table_document
from sardonyx.reporting.verdict import location_document, verdict_document
from sardonyx.verbs.compare.command import comparison_document


def documents(worsen: Callable[[str], str], view: View) -> Iterator[tuple[str, Document]]:
    """Yield each kind of document of sample records, every text of which is replaced by `worsen`."""
    run = structs.replace(sample_run(), tuning=sample_tuning(), notes=("a note",))
    bundle = sample_run_bundle()
    other = structs.replace(
        bundle, run=structs.replace(bundle.run, verdict=failed_verdict(), rolled_back=(), passes=())
    )
    study = poisoned(sample_study(), worsen)
    sizes = (point({"batch": 1, "seq": 16}, 0.1), point({"batch": 1, "seq": 512}, 5.0))
    yield "analysis", analysis_document(poisoned(sample_analysis(), worsen), view)
    yield "adoption", adoption_document(poisoned(_adoption(), worsen))
    yield "bench", bench_document(poisoned(sample_benchmark(*sizes, notes=["a note"]), worsen), view)
    yield "comparison", comparison_document(poisoned(sample_comparison(), worsen), view)
    yield "decomposition", decomposition_document(poisoned(_decomposed(), worsen), view)
    yield "export", export_document(poisoned(sample_export("ab" * 32), worsen), view)
    yield "extraction", extraction_document(poisoned(_extraction(), worsen), view)
    yield "inspection", inspection_document(poisoned(sample_inspection(), worsen), view)
    yield "location", location_document(poisoned(sample_location(), worsen), view)
    yield "module", module_document(poisoned(sample_module(), worsen), view)
    yield "opportunities", opportunities_document(poisoned(sample_opportunities(), worsen), view)
    for placed in placements_of_run():
        yield f"placement {placed.device} {placed.model}", placement_document(poisoned(placed, worsen), view)
    yield "profile", profile_document(poisoned(sample_profile(), worsen), view)
    yield "quantization", quantization_document(poisoned(sample_quantization(), worsen), view)
    yield "choice", quantization_document(poisoned(sample_choice(), worsen), view)
    yield "run", run_document(poisoned(run, worsen), view)
    yield "verdict", verdict_document(poisoned(failed_verdict(), worsen), worsen("a.onnx"), worsen("b.onnx"), view)
    yield "summary", summary_document(_summary(worsen))
    yield "pull request", run_comment(poisoned(bundle, worsen))
    yield "changes", changes_comment(poisoned(bundle, worsen), poisoned(other, worsen))
    yield "study", study_document(study, view)
    yield "findings", findings_document(study, {"a.svg": worsen("a picture")})
    yield "table", table_document(study.tables[0], most=1)


def _adoption() -> Adoption:
    roots = (RootNode("shape", "Shape", "no module ran it"),)
    return Adoption("m.onnx", None, 5, 2, Coverage(3, 1, 1, 0), {"names": 3}, roots, attributes=False)


def _decomposed() -> Decomposed:
    return Decomposed("m.py:build", "m.onnx", 3, 9, sample_analysis().forms[0].attentions, ("a note",), {})


def _extraction() -> Extraction:
    run, value = sample_run(), BoundaryValue("x", "float", ("batch", 4), "encoder", "hidden")
    return Extraction(
        status="done", environment=run.environment, source=run.source, result=run.result, asked="encoder.layer",
        path="encoder", tag="/Bert/Encoder", call=0, calls=1, counts=run.after, inputs=(value,), outputs=(value,),
        straddling=("fused",), dropped=("mask",), verdict=sample_verdict(), live=failed_verdict(), seconds={},
        notes=("a note",),
    )  # fmt: skip


def _summary(worsen: Callable[[str], str]) -> JobSummary:
    outcome = Outcome(record_kinds.BENCHMARK.parse("latency_ms > 2", baseline=False), Reading(3.0), None, False)
    return JobSummary(worsen("Run"), worsen("it is slower"), False, (outcome,), {worsen("nodes"): Reading(3)}, None)
