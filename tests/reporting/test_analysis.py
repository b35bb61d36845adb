"""The output of `analyze`: the golden page, every number of the record in CSV and Markdown, the record in JSON."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

import schemas
from reporting.sample_analysis import sample_analysis
from reporting.written import in_markdown, in_terminal
from sardonyx.records.analysis import Analysis
from sardonyx.reporting.analysis import MODEL, MODULE, analysis_csv, analysis_document, analysis_sentence
from sardonyx.reporting.document import View
from sardonyx.reporting.record_kinds import FIGURES

GOLDEN = Path(__file__).parent / "golden" / "analysis.txt"


def test_the_page_is_the_golden_one() -> None:
    page = in_terminal(analysis_document, sample_analysis(), View(verbose=True))
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(page, encoding="utf-8")
    assert page == GOLDEN.read_text(encoding="utf-8"), "REWRITE_GOLDEN=1 writes it anew"


def test_the_last_line_is_the_summary_with_every_form() -> None:
    analysis = sample_analysis()
    assert in_terminal(analysis_document, analysis).splitlines()[-1] == analysis_sentence(analysis)
    assert all(form.name in analysis_sentence(analysis) for form in analysis.forms)


def test_verbose_lists_every_form_and_every_attention() -> None:
    page = in_terminal(analysis_document, sample_analysis(), View(verbose=True))
    assert "Modules (fused)" in page
    assert all(f"layer.{i}.attn: nn.MultiheadAttention" in page for i in range(3))


def test_one_form_is_shown_without_a_comparison() -> None:
    analysis = replace(sample_analysis(), forms=sample_analysis().forms[:1], missing=(), overtaking=())
    page = in_terminal(analysis_document, analysis)
    assert "change" not in page
    assert "(standard)" not in page


def test_equal_layers_are_one_line_and_a_layer_with_another_peak_is_not() -> None:
    analysis = sample_analysis()
    assert "layer.0…2 ×3" in in_terminal(analysis_document, analysis)
    form = analysis.forms[0]
    higher = replace(form.modules[-1], peak=form.modules[-1].peak + 1)
    apart = replace(analysis, forms=(replace(form, modules=(*form.modules[:-1], higher)), *analysis.forms[1:]))
    assert "layer.0…2 ×3" not in in_terminal(analysis_document, apart)


def test_csv_has_every_number_of_the_record() -> None:
    analysis = sample_analysis()
    lines = list(csv.DictReader(io.StringIO(analysis_csv(analysis))))
    for form in analysis.forms:
        (whole,) = [line for line in lines if line["form"] == form.name and line["scope"] == MODEL]
        for key, value in form.figures().items():
            assert whole[key] == ("" if value is None else str(value)), key
        below = [line for line in lines if line["form"] == form.name and line["scope"] == MODULE]
        assert [(line["module"], int(line["flops"]), int(line["peak"])) for line in below] == [
            (each.path, each.flops, each.peak) for each in form.modules
        ]


def test_every_figure_of_the_record_has_a_row() -> None:
    assert {measure.name for measure in FIGURES} == set(sample_analysis().forms[0].figures())


def test_markdown_tables_are_complete_and_have_the_numbers() -> None:
    page = in_markdown(analysis_document, sample_analysis(), View(verbose=True))
    for block in page.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("| "):
            widths = {line.replace("\\|", "").count("|") for line in lines}
            assert len(widths) == 1, block
    cells = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    assert cells["operations"] == "| operations | 33 | 45 | +36 % | 33 | · |"
    assert cells["parameters"] == "| parameters | 87,654 | 87,654 | · | 87,654 | · |"
    assert "asked \\| for it" in page


def test_the_record_reads_back_equal_and_matches_the_schema() -> None:
    analysis = sample_analysis()
    assert Analysis.from_json(analysis.to_json()) == analysis
    jsonschema.validate(json.loads(analysis.to_json()), json.loads(schemas.published("analysis.schema.json")))


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "two\nlines"])
def test_names_cannot_move_the_cursor(hostile: str) -> None:
    analysis = sample_analysis()
    form = analysis.forms[0]
    module = replace(form.modules[0], path=hostile, kind=hostile)
    peak = replace(form.memory.peak, module=hostile, operator=hostile)
    memory = replace(form.memory, peak=peak)
    form = replace(form, modules=(module,), memory=memory, notes=(hostile,), name=hostile)
    analysis = replace(analysis, forms=(form,), sources=(replace(analysis.sources[0], label=hostile),))
    for page in (
        in_terminal(analysis_document, analysis, View(verbose=True)),
        in_markdown(analysis_document, analysis),
    ):
        assert hostile not in page
