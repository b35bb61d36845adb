"""What the tables of attribution let one say."""

from __future__ import annotations

from collections import defaultdict

from sardonyx.study_record import Entry, Finding, Table
from sardonyx.studying.experiments.attributed import WITHOUT

_MOST = 3  # passes that are named as removing most


def said_of_counts(table: Table) -> list[Finding]:
    """Which passes remove most, whether being alone misleads, and which would not be missed."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    removed: dict[str, int] = defaultdict(int)
    for row in rows:
        removed[str(row["pass"])] += _number(row["within_nodes"])
    most = sorted((name for name in removed if removed[name] > 0), key=lambda name: (-removed[name], name))[:_MOST]
    if not most:
        return [Finding("No pass removes a node from any model.", table.name)]
    told = ", ".join(f"{name} ({removed[name]})" for name in most)
    differ = sum(_number(row["alone_nodes"]) != _number(row["within_nodes"]) for row in rows)
    said = [
        f"Over all models, these passes remove most nodes within the pipeline: {told}.",
        f"In {differ} of {len(rows)} pairs of pass and model, a pass removes another number of nodes alone than within "
        + ("the pipeline: passes enable and replace each other." if differ else "the pipeline."),
    ]
    needed = {str(row["pass"]) for row in rows if row["needed"] is True}
    idle = sorted({str(row["pass"]) for row in rows if row["needed"] is False} - needed)
    if idle:
        said.append(f"Wherever these passes fired, others do their work when they are left out: {', '.join(idle)}.")
    return [Finding(text, table.name) for text in said]


def said_of_times(table: Table) -> list[Finding]:
    """Passes whose absence shows in the latency of a model, either way; one model alone is not certain."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    without = [row for row in rows if row["how"] == WITHOUT]
    if not without:
        return []
    models: dict[tuple[str, str], list[str]] = defaultdict(list)
    tried: dict[str, int] = defaultdict(int)
    for row in without:
        models[str(row["finding"]), str(row["pass"])].append(str(row["model"]))
        tried[str(row["pass"])] += 1
    said: list[Finding] = []
    for verdict, does in (("slower", "pays"), ("faster", "costs")):
        found = [(name, where) for (finding, name), where in models.items() if finding == verdict]
        for name, where in sorted(found, key=lambda item: (-len(item[1]), item[0])):
            text = f"{name} {does}: without it {len(where)} of {tried[name]} models are {verdict} ({', '.join(where)})"
            sure = len(where) > 1
            said.append(Finding(text + ("." if sure else ", which one model alone does not prove."), table.name, sure))
    none = f"In {len(without)} results made without one pass, none is faster or slower beyond the noise."
    return said or [Finding(none, table.name)]


def _number(entry: Entry) -> int:
    return entry if isinstance(entry, int) else 0
