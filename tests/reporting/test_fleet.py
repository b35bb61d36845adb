"""The summary of many models: tables, the view on a terminal, and a page that stays small."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest
from msgspec.structs import replace

from reporting.sample_fleet import sample_fleet
from sardonyx.records.study import Fleet
from sardonyx.reporting.document import Document, Section, Table, as_cell, spans
from sardonyx.reporting.fleet import (
    failure_groups,
    fleet_document,
    fleet_sentence,
    group_section,
    memory_section,
    missed_section,
    pass_section,
    quantile,
    savings,
    status_table,
    tables,
)
from sardonyx.reporting.page import render_fleet
from sardonyx.reporting.writers import terminal
from sardonyx.reporting.writers.tables import write_csv, write_parquet
from sardonyx.reporting.writers.terminal import Style


def _text(fleet: Fleet) -> str:
    return terminal.write(fleet_document(fleet), Style(color=False, width=None, wraps=False))


def test_a_few_models_have_a_row_each_and_many_are_grouped() -> None:
    few, many = _text(sample_fleet(40)), _text(sample_fleet(2000))
    assert few.count(".onnx ") == 40
    assert "By family" not in few
    assert many.count("\n") < 60
    for part in ("By family", "Largest savings", "100 models failed", "MODEL is empty", "it did not end within N s"):
        assert part in many
    assert many.rstrip().endswith("2,000 models: 1,900 optimized, 100 failed")


def test_failures_are_grouped_by_reason_without_names_and_numbers() -> None:
    groups = failure_groups(sample_fleet(2000))
    assert sorted(len(rows) for _reason, rows in groups) == [33, 33, 34]
    assert groups[0][0] == "MODEL is empty"


def test_the_sentence_counts_every_model_once() -> None:
    rows = sample_fleet(60).models
    changed = (replace(rows[0], status="reused"), replace(rows[1], code=4), replace(rows[2], status="not run"))
    fleet = replace(sample_fleet(60), models=(*changed, *rows[3:]))
    assert fleet_sentence(fleet) == (
        "60 models: 56 optimized (1 by an earlier run), 3 failed, 1 did not meet a gate, 1 not run"
    )


def small_fleet() -> Fleet:
    """Four models whose numbers are added in the head, of two families."""
    first = sample_fleet(1).models[0]
    numbers = (
        {"family": "mlp", "nodes_before": 100, "nodes_after": 50, "rewrites": {"a": 3, "b": 1},
         "nodes_by_pass": {"a": -48, "b": -2}, "missed": [["a", "why", 3]]},
        {"family": "mlp", "nodes_before": 300, "nodes_after": 270, "rewrites": {"a": 4},
         "nodes_by_pass": {"a": -30}, "missed": [["a", "why", 2], ["b", "why", 9]]},
        {"family": "encoder", "nodes_before": 1000, "nodes_after": 1200, "rewrites": {"b": 5},
         "nodes_by_pass": {"b": 200}, "missed": []},
    )  # fmt: skip
    rows = [
        replace(first, name=f"m{i}", source=f"m{i}.onnx", seconds=10.0 * (i + 1), peak=peak, estimate=200, numbers=n)
        for i, (n, peak) in enumerate(zip(numbers, (100, 300, 400), strict=True))
    ]
    failed = replace(first, name="m3", source="m3.onnx", status="failed", code=1, seconds=5.0, peak=0, numbers={})
    return replace(sample_fleet(1), models=(*rows, failed))


def _rows(part: Section | Table) -> list[tuple[object, ...]]:
    table = part if isinstance(part, Table) else next(block for block in part.blocks if isinstance(block, Table))
    return [tuple(spans(as_cell(cell).text)[0].text for cell in row.cells) for row in table.rows]


def test_every_number_of_the_summary_is_the_one_that_its_heading_says() -> None:
    fleet = small_fleet()
    assert [(round(share, 3), row.name) for share, row in savings(fleet)] == [(0.5, "m0"), (0.1, "m1"), (-0.2, "m2")]
    assert _rows(status_table(fleet)) == [
        ("done", "3", "60.0 s", "1,400", "1,520", "+9 %"),
        ("failed", "1", "5.0 s", "0", "0", "·"),
    ]
    assert _rows(group_section(fleet)) == [
        ("mlp", "2", "·", "30.0 s", "400", "320", "−20 %", "30 %", "20 % to 40 %"),
        ("encoder", "1", "·", "30.0 s", "1,000", "1,200", "+20 %", "−20 %", "−20 % to −20 %"),
        ("not known", "1", "1", "5.0 s", "0", "0", "·", "·", "·"),
    ]
    assert _rows(pass_section(fleet)) == [("a", "2", "7", "−78"), ("b", "2", "6", "+198")]
    assert _rows(missed_section(fleet)) == [("a", "why", "2", "5"), ("b", "why", "1", "9")]
    memory = _rows(memory_section(fleet))
    assert [row[-1] for row in memory] == ["0.50", "0.60", "1.50", "1.95", "2.00"]
    assert (memory[0][1:3], memory[-1][1:3]) == (("100 B", "200 B"), ("400 B", "200 B"))
    text = terminal.write(Document((memory_section(fleet),)), Style(color=False, width=None, wraps=False))
    assert "2 of 3 models took more than estimated" in text


@pytest.mark.slow
def test_the_page_of_ten_thousand_models_is_small() -> None:
    fleet = sample_fleet(10_000)
    start = time.perf_counter()
    page = render_fleet(fleet, ("tables/summary.csv",))
    assert time.perf_counter() - start < 10
    assert len(page.encode()) < 5_000_000
    assert page == render_fleet(fleet, ("tables/summary.csv",)), "the sample does not change"
    for part in ("10,000 models: 9,500 optimized, 500 failed", "Share of nodes saved", "took more than estimated"):
        assert part in page
    assert page.count('.json">') > 50, "records are linked"


def test_names_of_models_are_text_on_the_page() -> None:
    name = '<script>alert(1)</script>"?#%/\u202ea'
    row = replace(sample_fleet(2).models[0], name=name, source=name, files=(f"{name}.json",))
    failed = replace(row, status="failed", code=1, reason=f"{name} <b>failed</b>", numbers={}, name="b")
    page = render_fleet(replace(sample_fleet(2), models=(row, failed)))
    assert "<script>alert" not in page
    assert "<b>failed" not in page
    assert 'href="%3Cscript%3Ealert%281%29%3C/script%3E%22%3F%23%25/%E2%80%AEa.json"' in page


def test_tables_have_a_row_for_each_model_and_each_pass() -> None:
    fleet = sample_fleet(100)
    found = {table.name: table for table in tables(fleet)}
    assert {name: len(table.rows) for name, table in found.items()} == {
        "summary": 100,
        "failures": 5,
        "rewrites": sum(len(row.numbers.get("rewrites", {})) for row in fleet.models),
        "missed": 190,
    }
    summary = list(csv.DictReader(io.StringIO(write_csv(found["summary"].columns, found["summary"].rows))))
    assert (summary[0]["name"], summary[0]["status"]) == ("folder0/model-00000", "done")
    assert int(summary[0]["nodes_before"]) == fleet.models[0].numbers["nodes_before"]
    assert summary[7]["reason"] == "models/folder0/model-00007.onnx is empty"


def test_parquet_has_the_same_rows_with_types() -> None:
    reading = pytest.importorskip("pyarrow.parquet")
    for table in tables(sample_fleet(100)):
        data: Any = reading.read_table(io.BytesIO(write_parquet(table.columns, table.rows)))
        assert data.column_names == list(table.columns)
        assert [tuple(row.values()) for row in data.to_pylist()] == [tuple(row) for row in table.rows]


def test_quantiles_lie_between_numbers() -> None:
    assert [quantile([1.0, 2.0, 4.0], at) for at in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 4.0]
    assert quantile([3.0], 0.9) == 3.0
