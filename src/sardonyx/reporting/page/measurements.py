"""What was measured, on the page: times with their intervals, what tuning found, where it ran, how to read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sardonyx.records.bench import Benchmark
from sardonyx.records.run import Run
from sardonyx.records.tuning import Tuning
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import bench_sentence, columns, facts, rows
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.plots.boxplot import boxplot
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.tuning import CHANGES, STANDING, change_rows, conditions, pace_cells, unchanged


def section(dossier: RunBundle) -> Section:
    """Times, tuning, machine, and how to read them."""
    run, bench = dossier.run, dossier.bench
    html = rendered(
        "measured",
        bench=None if bench is None else _times(bench),
        tuning=None if run.tuning is None else _tuned(run.tuning),
        facts=_facts(run, bench),
        notes=(*run.notes, *dossier.notes),
    )
    return Section("measured", "Measured", html)


def _times(bench: Benchmark) -> dict[str, Any]:
    return {
        "sentence": bench_sentence(bench),
        "plot": boxplot(bench).inline(),
        "columns": columns(bench),
        "rows": rows(bench),
        "notes": bench.notes,
    }


def _tuned(tuning: Tuning) -> dict[str, Any]:
    return {
        "conditions": conditions(tuning),
        "standing_columns": STANDING,
        "standing": [pace_cells(each, tuning) for each in tuning.standing],
        "chosen": [place for place, each in enumerate(tuning.standing) if each.name == tuning.chosen],
        "change_columns": CHANGES,
        "changes": change_rows(tuning),
        "unchanged": [*unchanged(tuning), *map(formatting.one_line, tuning.notes)],
        "result": f"the result is the {tuning.chosen} one: {formatting.one_line(tuning.why)}",
    }


def _facts(run: Run, bench: Benchmark | None) -> Iterator[tuple[str, str]]:
    env = run.environment
    packages = ", ".join(f"{package} {version}" for package, version in sorted(env.packages.items()))
    yield "optimized on", formatting.one_line(f"{env.platform}, {formatting.plural(env.cpus, 'core')}")
    yield "with", formatting.one_line(f"sardonyx {env.sardonyx}, Python {env.python}, {packages}")
    asked = ", ".join(f"{name}={value}" for name, value in run.options.items() if value not in (None, False, ""))
    yield "options", formatting.one_line(asked) or "none"
    spent = ", ".join(f"{formatting.name(phase)} {formatting.seconds(time)}" for phase, time in run.seconds.items())
    yield "it took", spent or "not known"
    for domain, (old, new) in sorted(run.opset_changes.items()):
        yield "opset", f"{formatting.name(domain) or 'ai.onnx'} raised {old} → {new}: a fusion needed it"
    if run.fingerprint is not None:
        family = formatting.name(run.fingerprint.family.replace("-", " "))
        yield "looks like", f"{family} ({formatting.one_line(', '.join(run.fingerprint.evidence))})"
    if bench is not None:
        yield from facts(bench).items()
