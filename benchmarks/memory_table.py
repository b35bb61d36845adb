"""The rows of memory.py as a page: how far predictions are off, in words first and then row by row."""

from __future__ import annotations

import statistics
from typing import Any

Row = dict[str, Any]
ERRORS = {  # what an error is a part of
    "error_total": "with weights and inputs",
    "error": "activations alone",
    "error_asked": "of what was asked for",
}
FORMS = {"eager": "eager", "graph": "decomposed graph", "operators": "graph of operators"}
INTRODUCTION = """# Predicted and measured peak memory

Written by `benchmarks/memory.py` (`--device cuda`, then `--table`); the rows, with the blocks that were held at each
peak, are in `memory-gpu.json`. *Measured* is `torch.cuda.max_memory_allocated` above the weights and inputs that were
there before; predictions come from a run on tensors without data. The allocator hands out a block that it has unsplit
where less than a megabyte would be left over, so that more is allocated than was *asked for*: that is the difference
between the last two columns, and matters where a model takes a few megabytes in all. cuBLAS sets its workspace aside
once for the process; it is there before, and in no figure. What convolutions and masked softmaxes hold while they run
was learnt from earlier runs of this benchmark on the same GPU: another GPU or cuDNN may choose otherwise for
convolutions, and what it takes for one in groups (wav2vec2) is not foretold at all.
"""


def markdown(measured: dict[str, Any]) -> str:
    """The whole page."""
    about, rows = measured["environment"], measured["rows"]
    good = [row for row in rows if "failed" not in row]
    lines = [INTRODUCTION, "; ".join(f"{key} {value}" for key, value in about.items()) + ".", ""]
    lines += [line(["form", "rows", "models", *(f"{text}: median, largest" for text in ERRORS.values())])]
    lines += [line(["---"] * (3 + len(ERRORS)))]
    lines += [line(summary(form, good)) for form in FORMS if any(row["form"] == form for row in good)]
    heads = ["model", "form", "dtype", "batch", "length", "measured MB", "predicted MB", *ERRORS.values()]
    lines += ["", line(heads), line(["---"] * len(heads)), *(line(cells(row)) for row in rows)]
    return "\n".join(lines)


def line(parts: list[Any]) -> str:
    """A line of a table."""
    return "| " + " | ".join(map(str, parts)) + " |"


def summary(form: str, rows: list[Row]) -> list[Any]:
    """How far one form is off."""
    own = [row for row in rows if row["form"] == form]
    errors = [[abs(row[key]) for row in own] for key in ERRORS]
    told = [f"{statistics.median(each):.2%}, {max(each):.2%}" for each in errors]
    return [FORMS[form], len(own), len({row["model"] for row in own}), *told]


def cells(row: Row) -> list[Any]:
    """A measured row."""
    head = [row[key] for key in ("model", "form", "dtype", "batch", "length")]
    if "failed" in row:
        return [*head, "failed", row["failed"].replace("|", "/"), "", "", ""]
    sizes = [f"{row[key] / 1e6:.2f}" for key in ("measured", "predicted")]
    return [*head, *sizes, *(f"{row[key]:+.2%}" for key in ERRORS)]
