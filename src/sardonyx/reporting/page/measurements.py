"""The measurements on the page: times with their intervals, the result of tuning, and where they were taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from sardonyx.records.bench import Benchmark
from sardonyx.records.run import Run, Tuning
from sardonyx.reporting import formatting, tuning
from sardonyx.reporting.bench import bench_sentence, conditions, timing_table
from sardonyx.reporting.document import Notes
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.charts import boxplot
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.writers import html

_UNSET: tuple[object, ...] = (None, False, "", [], (), {})


def section(bundle: RunBundle) -> Section:
    """Return times, tuning, the machine, and how to read them."""
    run, bench = bundle.run, bundle.bench
    markup = rendered(
        "measured",
        bench=None if bench is None else _times(bench),
        tuning=None if run.tuning is None else _tuned(run.tuning),
        facts=_facts(run, bench),
        notes=(*run.notes, *bundle.notes),
    )
    return Section("measured", "Measured", markup)


def _times(bench: Benchmark) -> dict[str, Any]:
    return {
        "sentence": bench_sentence(bench),
        "plot": boxplot(bench).inline(),
        "table": html.table(timing_table(bench), "Time of a run, by file"),
        "notes": bench.notes,
    }


def _tuned(tuned: Tuning) -> dict[str, Any]:
    changes = tuning.change_table(tuned)
    return {
        "conditions": tuning.conditions(tuned),
        "standing": html.table(tuning.standing_table(tuned), "Models that were tuned, side by side"),
        "changes": html.table(changes, "What tuning changed") if changes.rows else "",
        "unchanged": html.write([Notes([*tuning.unchanged(tuned), *map(formatting.one_line, tuned.notes)])]),
        "result": tuning.result(tuned),
    }


def _facts(run: Run, bench: Benchmark | None) -> Iterator[tuple[str, str]]:
    options = ", ".join(_option(name, value) for name, value in run.options.items() if value not in _UNSET)
    yield "options", formatting.one_line(options) or "none"
    yield "it took", formatting.phases(run.seconds) or "not known"
    if bench is not None:
        yield from conditions(bench).items()


def _option(name: str, value: object) -> str:
    """Return an option in words, as neither Python nor a shell writes it: "runtimes ort", "hashes"."""
    written = ", ".join(map(str, cast("Sequence[object]", value))) if isinstance(value, (list, tuple)) else f"{value}"
    return name.replace("_", " ") + ("" if value is True else f" {written}")
