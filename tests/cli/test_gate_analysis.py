"""`--fail-if` of `analyze`: which form a name asks, in which unit, and that what is missing trips."""

from __future__ import annotations

from dataclasses import replace

import pytest

from report.sample_analysis import sample_analysis
from sardonyx import gate
from sardonyx.errors import GateNotMet, UsageError

FOUND = sample_analysis()  # standard: 33 operations, 1.25 MB of activations, 1.60164 MB in all; decomposed: 45


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
def test_expressions_mean_what_they_say(text: str, true: bool) -> None:
    assert gate.parse_for_analysis(text).tripped(gate.measures_of_analysis(FOUND)) is true


def test_every_figure_can_be_asked_for() -> None:
    measures = gate.measures_of_analysis(FOUND)
    assert set(FOUND.forms[0].figures()) <= set(gate.OF_ANALYSIS) <= set(measures)


def test_a_form_that_could_not_be_made_trips_every_gate_on_it() -> None:
    found = replace(FOUND, forms=FOUND.forms[:1])
    with pytest.raises(GateNotMet, match=r"fused\.peak_mb"):
        gate.check([gate.parse_for_analysis("fused.peak_mb>1e9")], gate.measures_of_analysis(found))


def test_of_two_files_the_last_is_asked() -> None:
    (source,) = FOUND.sources
    files = tuple(replace(source, kind="onnx", label=name) for name in ("a.onnx", "b.onnx"))
    forms = tuple(replace(form, name=source.label) for form, source in zip(FOUND.forms, files, strict=False))
    measures = gate.measures_of_analysis(replace(FOUND, sources=files, forms=forms))
    assert measures["operations"].value == 45


@pytest.mark.parametrize("text", ["peak_mb>1GB", "nodes<60%", "compiled.flops>1", "peak>1", "flops"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        gate.parse_for_analysis(text)


def test_other_commands_know_no_forms() -> None:
    with pytest.raises(UsageError, match="no 'fused' to ask"):
        gate.parse("fused.nodes>1")
