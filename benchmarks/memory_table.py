"""The rows of memory.py as a page: how far predictions are off, in words first and then row by row."""

from __future__ import annotations

import statistics
from typing import Any


def markdown(measured: dict[str, Any]) -> str:
    """The whole page."""
    about, rows = measured["environment"], measured["rows"]
    good = [row for row in rows if "failed" not in row]
    lines = ["# Predicted and measured peak memory", ""]
    lines += [", ".join(f"{key}: {value}" for key, value in about.items()) + ".", ""]
    lines += ["| | rows | models | activations: median | largest | with weights and inputs: median | largest |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [line for form in ("eager", "graph") for line in summary(form, good)]
    lines += ["", "| model | form | dtype | batch | length | measured MB | predicted MB | off | off with weights |"]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    lines += [one(row) for row in rows]
    return "\n".join(lines)


def summary(form: str, rows: list[dict[str, Any]]) -> list[str]:
    """How far one form is off."""
    own = [row for row in rows if row["form"] == form]
    if not own:
        return []
    alone, total = ([abs(row[key]) for row in own] for key in ("error", "error_total"))
    cells = [form, len(own), len({row["model"] for row in own})]
    cells += [f"{value:.2%}" for errors in (alone, total) for value in (statistics.median(errors), max(errors))]
    return ["| " + " | ".join(map(str, cells)) + " |"]


def one(row: dict[str, Any]) -> str:
    """A row of the table."""
    head = [row[key] for key in ("model", "form", "dtype", "batch", "length")]
    if "failed" in row:
        return "| " + " | ".join(map(str, [*head, "failed", row["failed"].replace("|", "/"), "", ""])) + " |"
    sizes = [f"{row[key] / 1e6:.2f}" for key in ("measured", "predicted")]
    return "| " + " | ".join(map(str, [*head, *sizes, f"{row['error']:+.2%}", f"{row['error_total']:+.2%}"])) + " |"
