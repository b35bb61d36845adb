"""`--fail-if` of `analyze`: which form a name reads, in which unit, and that a missing value trips."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reporting.sample_analysis import sample_analysis
from sardonyx.errors import UsageError
from sardonyx.records.analysis import Analysis
from sardonyx.reporting import gate, record_kinds

ANALYSIS = sample_analysis()  # standard: 33 operations, 1.25 MB of activations, 1.60164 MB in all; decomposed: 45


def tripped(text: str, analysis: Analysis = ANALYSIS) -> bool:
    (outcome,) = gate.hold([record_kinds.ANALYSIS.parse(text)], record_kinds.ANALYSIS, analysis)
    return not outcome.met


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("peak_mb>1.6", True),
        ("peak_mb>1.61", False),
        ("peak_bytes>1601639", True),
        ("peak_bytes>1.61MB", False),
        ("activation_mb>=1.25", True),
        ("activation_as_run_mb==1.5", True),
        ("fused.activation_as_run_mb>0", True),  # nothing is known of it
        ("operations>33", False),
        ("standard.operations>33", False),
        ("decomposed.operations>33", True),
        ("macs>=12M", True),
        ("flops>1G", False),
        ("traffic_reduction<30%", False),
        ("decomposed.traffic_reduction<0.41", True),
        ("traffic_mb>7.4", True),
        ("parameters==87654", True),
        ("regions!=5", False),
    ],
)
def test_expressions_are_evaluated(text: str, true: bool) -> None:
    assert tripped(text) is true


def test_every_figure_has_a_name() -> None:
    measures = record_kinds.ANALYSIS.measures(ANALYSIS)
    assert set(ANALYSIS.forms[0].figures()) <= set(record_kinds.ANALYSIS.names) <= set(measures)


def test_a_form_that_could_not_be_made_trips_every_gate_on_it() -> None:
    assert tripped("fused.peak_mb>1e9", replace(ANALYSIS, forms=ANALYSIS.forms[:1]))


def test_of_two_files_the_last_is_read() -> None:
    (source,) = ANALYSIS.sources
    files = tuple(replace(source, kind="onnx", label=name) for name in ("a.onnx", "b.onnx"))
    forms = tuple(replace(form, name=source.label) for form, source in zip(ANALYSIS.forms, files, strict=False))
    measures = record_kinds.ANALYSIS.measures(replace(ANALYSIS, sources=files, forms=forms))
    assert measures["operations"].value == 45


@pytest.mark.parametrize("text", ["peak_mb>1GB", "nodes<60%", "compiled.flops>1", "peak>1", "flops"])
def test_invalid_arguments_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        record_kinds.ANALYSIS.parse(text)


def test_other_commands_know_no_forms() -> None:
    with pytest.raises(UsageError, match="no form 'fused'"):
        record_kinds.RUN.parse("fused.nodes>1")
