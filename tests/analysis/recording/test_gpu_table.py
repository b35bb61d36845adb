"""The committed measurement on a GPU: the page matches the rows, and the rows support its claims."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

import memory_table
from allocations import Allocations

FOLDER = Path(memory_table.__file__).parent
MEASURED = json.loads((FOLDER / "memory-gpu.json").read_text())


def test_the_page_is_generated_from_the_rows() -> None:
    assert (FOLDER / "memory-gpu.md").read_text() == memory_table.markdown(MEASURED) + "\n"


def test_every_row_was_measured_and_none_is_missing() -> None:
    assert not [row for row in MEASURED["rows"] if "failed" in row]
    for form, least in (("eager", 90), ("graph", 30), ("operators", 30)):
        own = [row for row in MEASURED["rows"] if row["form"] == form]
        assert len(own) >= least
        assert len({row["model"] for row in own}) >= 12


@pytest.mark.parametrize(
    ("form", "median", "largest"), [("eager", 0.05, 0.15), ("graph", 0.02, 0.02), ("operators", 0.02, 0.02)]
)
def test_predictions_hold(form: str, median: float, largest: float) -> None:
    own = [row for row in MEASURED["rows"] if row["form"] == form]
    errors = []
    for row in own:
        there = row["weights"] + row["inputs"]
        errors.append(abs((row["predicted"] + there) / (row["measured"] + there) - 1))
        assert errors[-1] == pytest.approx(abs(row["error_total"]), abs=1e-9)
    assert statistics.median(errors) <= median
    assert max(errors) <= largest


def test_the_allocation_peak_excludes_earlier_allocations() -> None:
    taken = Allocations(((1, 100), (9, -500), (2, 50), (1, -100), (3, 70), (1, 20), (2, -50)))
    assert taken.peak == 150
    assert taken.at_peak == [100, 50]
