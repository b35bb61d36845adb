"""A study as files: for any names, tables have every number and plots are well formed."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import hostile
from reporting.written import in_terminal
from sardonyx.records.run import Environment
from sardonyx.records.study import Failure, Finding, Study, Table
from sardonyx.reporting.document import View
from sardonyx.reporting.plots.study import claim
from sardonyx.reporting.study import (
    files,
    shown,
    study_document,
    study_sentence,
    table_document,
    table_files,
    table_json,
)
from sardonyx.reporting.writers import markdown

ENVIRONMENT = Environment("1.0", "3.11", "Linux", 2, {"onnxruntime": "1.31.0"})
TIMES = ("ratio", "low", "high", "floor", "finding", "rounds")


def sample_study(name: str = "bert", other: str = "resnet") -> Study:
    tables = (
        Table("overview", "Overview", ("model", "nodes_before", *TIMES),
              ((name, 100, 0.9, 0.88, 0.92, 0.01, "faster", 50), (other, 10, None, None, None, None, None, None)),
              "How it was got.", timed=True),
        Table("pass_matrix", "Matrix", ("model", "before", "fuse-gelu", "fold", "removed", "after"),
              ((name, 100, 12, -2, 10, 90), (other, 10, 0, 0, 0, 10))),
        Table("attribution_time", "Times", ("model", "pass", "how", *TIMES, "same_graph_as"),
              ((name, "all", "all", 0.9, 0.88, 0.92, 0.01, "faster", 50, None),
               (name, "fuse-gelu", "without", 1.06, 1.04, 1.08, 0.01, "slower", 50, None),
               (name, "fold", "without", 1.001, 0.99, 1.01, 0.01, "no difference", 50, None)), timed=True),
        Table("order", "Orders", ("model", "shuffle", "outcome"),
              ((name, 0, "same"), (name, 1, "other constants"), (other, 0, "other graph"))),
        Table("correlation_points", "Points",
              ("model", "nodes_saved", "bytes_saved", "flops_saved", "traffic_saved", "time_saved", "low", "high",
               "finding"),
              ((name, 0.8, 0.0, 0.1, 0.5, 0.1, 0.08, 0.12, "faster"),
               (other, 0.4, -0.1, 0.0, 0.3, -0.02, -0.03, 0.01, "no difference")),
              timed=True),
        Table("tolerance_spread", "Spread", ("model", "class", "up_to_times_eps", "elements"),
              ((name, "exact", 0.0, 100), (name, "reassociates", 0.0, 40), (name, "reassociates", 0.5, 50),
               (name, "reassociates", 4.0, 10))),
    )  # fmt: skip
    return Study(
        environment=ENVIRONMENT,
        options={"target": "portable", "only": None},
        models=(name, other),
        tables=tables,
        findings=(
            Finding("It is smaller.", "pass_matrix"),
            Finding("Too few models to say more.", "overview", certain=False),
        ),
        failures=(Failure("tolerance", other, "it takes <b>nothing</b> | at all"),),
        cells=7,
        seconds={"overview": 1.0},
    )


@given(hostile.NAMES, hostile.NAMES)
def test_no_name_breaks_a_file(name: str, other: str) -> None:
    contents = files(sample_study(name, other))
    for path, data in contents.items():
        text = data.decode()
        if path.endswith(".svg"):
            ElementTree.fromstring(text)
        if path.endswith(".md"):
            assert "<script" not in text
            assert "\x1b" not in text
            assert "](http" not in text.replace("\\](http", "")


@given(st.lists(st.tuples(hostile.NAMES, st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))))
def test_csv_and_json_keep_every_number(entries: list[tuple[str, int | float | None]]) -> None:
    table = Table("t", "T", ("name", "number"), tuple(entries))
    read = list(csv.reader(io.StringIO(dict(table_files(table))["t.csv"].decode(), newline="")))
    assert read[0] == ["name", "number"]
    assert [float(row[1]) if row[1] else None for row in read[1:]] == [
        None if number is None else float(number) for _, number in entries
    ]
    assert [row["number"] for row in json.loads(table_json(table))["rows"]] == [number for _, number in entries]
    assert [row["name"] for row in json.loads(table_json(table))["rows"]] == [name for name, _ in entries]
    assert all(row[0].isprintable() and not row[0].startswith(("=", "+", "-", "@")) for row in read[1:])


@given(st.lists(st.tuples(hostile.NAMES, hostile.NAMES), max_size=5))
def test_a_row_of_markdown_has_as_many_cells_as_the_heading(entries: list[tuple[str, str]]) -> None:
    page = markdown.write(table_document(Table("t", "T", ("one", "two"), tuple(entries))))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == (2 + len(entries) if entries else 0)
    assert not lines or {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {3}


def test_the_same_answers_give_the_same_bytes() -> None:
    study = sample_study()
    assert files(study) == files(replace(study, seconds={"overview": 9.0}))
    assert files(study) == files(Study.from_json(study.to_json()))


def test_the_page_has_each_finding_with_its_table_and_the_open_questions() -> None:
    page = files(sample_study())["findings.md"].decode()
    supported, rest = page.split("## What the data do not settle")
    assert "- It is smaller. ([Matrix](tables/pass_matrix.md), 2 rows)" in supported
    assert "Too few models" not in supported
    assert "Too few models to say more. ([Overview](tables/overview.md), 2 rows)" in rest
    assert "| tolerance | resnet | 1 | it takes &lt;b>nothing&lt;/b> \\| at all |" in page
    assert "onnxruntime 1.31.0" in page
    assert "Times are of these machines." in page


def test_a_finding_moves_when_it_becomes_certain() -> None:
    study = sample_study()
    certain = replace(study, findings=tuple(replace(finding, certain=True) for finding in study.findings))
    assert "do not settle" not in files(certain)["findings.md"].decode()
    nothing = replace(study, findings=())
    assert "## What the data support\n\nNothing." in files(nothing)["findings.md"].decode()


def test_every_picture_is_on_the_page() -> None:
    contents = files(sample_study())
    plots = {path for path in contents if path.startswith("pictures/")}
    names = ("latency", "passes", "passes_time", "order", "correlation", "tolerance")
    assert plots == {f"pictures/{name}.svg" for name in names}
    page = contents["findings.md"].decode()
    assert all(f"]({path})" in page for path in plots)


def test_a_study_without_tables_has_a_page() -> None:
    empty = replace(sample_study(), tables=(), findings=(), failures=())
    assert list(files(empty)) == ["findings.md"]


def _latency(ratio: float, finding: str) -> str:
    study = sample_study()
    rows = (("bert", 100, ratio, ratio - 0.01, ratio + 0.01, 0.01, finding, 50),)
    return files(replace(study, tables=(replace(study.tables[0], rows=rows),)))["pictures/latency.svg"].decode()


def test_colours_follow_the_verdicts() -> None:
    """Blue for faster, amber for slower, teal for no difference; a square within the noise has no colour at all."""
    assert 'class="own0"' in _latency(0.9, "faster")
    assert 'class="own1"' in _latency(1.1, "slower")
    assert 'class="own2"' in _latency(0.99, "no difference")
    points = files(sample_study())["pictures/correlation.svg"].decode()
    assert [points.count(f'<g class="own{color}">') for color in range(3)] == [4, 0, 4]  # in each of four panels
    times = files(sample_study())["pictures/passes_time.svg"].decode()
    assert "+6.0 %" in times
    assert times.count('class="fill"') == 1  # the other pass is within the noise


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.5), st.sampled_from(["faster", "slower", "no difference"]))
def test_nothing_is_faster_without_an_interval_below_one(ratio: float, reach: float, finding: str) -> None:
    """Not even if a record claims it."""
    row = {"finding": finding, "ratio": ratio, "low": ratio - reach, "high": ratio + reach}
    assert claim(row) in (finding, "no difference")
    assert claim(row) != "faster" or ratio + reach < 1
    assert claim(row) != "slower" or ratio - reach > 1


def test_the_terminal_shows_findings_and_failures() -> None:
    text = in_terminal(study_document, sample_study("\x1b[31mred"), View())
    assert "The data support\n  It is smaller. [pass_matrix]" in text
    assert "The data do not settle\n  Too few models to say more. [overview]" in text
    assert "1 cell failed\n  tolerance, resnet: it takes <b>nothing</b> | at all" in text
    assert "\x1b" not in text
    assert study_sentence(sample_study()) == "2 models, 7 cells, 6 tables, 1 cell failed"


def test_cells_are_formatted_for_reading() -> None:
    shown_as = {None: "–", True: "yes", 12345: "12,345", 0.5: "0.5", 0.0: "0", 1.5e-7: "1.50e-07", 123456.7: "123,457"}
    assert {entry: shown(entry) for entry in shown_as} == shown_as
