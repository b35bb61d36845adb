"""The summary of many models: tables, the view on a terminal, and a page that stays small."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

import pytest
from msgspec.structs import replace

from reporting.sample_fleet import sample_fleet
from sardonyx.records.fleet import Fleet
from sardonyx.reporting.fleet import failure_groups, fleet_document, fleet_sentence, quantile, tables
from sardonyx.reporting.page.fleet import render_fleet
from sardonyx.reporting.writers import csv as csv_writer
from sardonyx.reporting.writers import parquet, terminal
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
    assert sorted(len(group.rows) for group in groups) == [33, 33, 34]
    assert groups[0].reason == "MODEL is empty"


def test_the_sentence_counts_every_model_once() -> None:
    rows = sample_fleet(60).models
    changed = (replace(rows[0], status="reused"), replace(rows[1], code=4), replace(rows[2], status="not run"))
    fleet = replace(sample_fleet(60), models=(*changed, *rows[3:]))
    assert fleet_sentence(fleet) == (
        "60 models: 56 optimized (1 by an earlier run), 3 failed, 1 did not meet a gate, 1 not run"
    )


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
    summary = list(csv.DictReader(io.StringIO(csv_writer.write(found["summary"].columns, found["summary"].rows))))
    assert (summary[0]["name"], summary[0]["status"]) == ("folder0/model-00000", "done")
    assert int(summary[0]["nodes_before"]) == fleet.models[0].numbers["nodes_before"]
    assert summary[7]["reason"] == "models/folder0/model-00007.onnx is empty"


def test_parquet_has_the_same_rows_with_types() -> None:
    reading = pytest.importorskip("pyarrow.parquet")
    for table in tables(sample_fleet(100)):
        data: Any = reading.read_table(io.BytesIO(parquet.write(table.columns, table.rows)))
        assert data.column_names == list(table.columns)
        assert [tuple(row.values()) for row in data.to_pylist()] == [tuple(row) for row in table.rows]


def test_quantiles_lie_between_numbers() -> None:
    assert [quantile([1.0, 2.0, 4.0], at) for at in (0.0, 0.25, 0.5, 1.0)] == [1.0, 1.5, 2.0, 4.0]
    assert quantile([3.0], 0.9) == 3.0
