"""The tables of attribution, from what its cells answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.graph.opsets.raising import RAISE
from sardonyx.passes import ALL
from sardonyx.study_record import Entry, Table
from sardonyx.studying.experiment import Answer, Answered
from sardonyx.studying.experiments.results import TIMES

ALONE, WITHOUT = "alone", "without"
WHOLE = "all"
_MEASURED = ("nodes", "constants", "bytes")


def representatives(answer: Answer, how: str) -> dict[str, str]:
    """By pass, the pass whose graph is timed for it: the first with an equal one; none where nothing differs."""
    same_as = answer["source" if how == ALONE else "whole"]["shape"]
    first: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for entry in answer["passes"]:
        if how in entry and (shape := entry[how]["shape"]) != same_as:
            chosen[entry["name"]] = first.setdefault(shape, entry["name"])
    return chosen


def counts(graphs: Sequence[Answered]) -> Table:
    """One row for each pass that did something to a model, or would have."""
    columns = ("model", "pass", "accuracy")
    columns += tuple(f"{how}_{what}" for how in (ALONE, "within") for what in ("rewrites", *_MEASURED))
    columns += (*(f"{WITHOUT}_{what}" for what in _MEASURED), "needed")
    rows: list[tuple[Entry, ...]] = []
    for each in graphs:
        whole = each.answer["whole"]
        for entry in each.answer["passes"]:
            alone, within, without = entry.get(ALONE, {}), entry["within"], entry.get(WITHOUT)
            row: list[Entry] = [each.subject.name, entry["name"], entry["accuracy"]]
            for tally in (alone, within):
                row += [tally.get("rewrites"), *(_fewer(tally.get(what)) for what in _MEASURED)]
            row += [without[what] - whole[what] if without else None for what in _MEASURED]
            row.append(without["shape"] != whole["shape"] if without else None)
            rows.append(tuple(row))
    about = (
        "What each pass removes (nodes, Constant nodes, bytes of constants; negative: adds): alone on the source, "
        "within the whole pipeline, and without: how much more is left when the pipeline runs without it (needed: "
        "whether the result differs at all). Passes that neither fired nor would have fired alone are left out."
    )
    return Table("attribution", "What each pass does", columns, tuple(rows), about)


def _fewer(change: int | None) -> int | None:
    return None if change is None else -change


def matrix(graphs: Sequence[Answered]) -> Table:
    """Model by pass, nodes removed within the pipeline; a row's sum is what the pipeline removes."""
    names = [entry["name"] for each in graphs for entry in each.answer["passes"] if entry["within"]["nodes"]]
    every = [each.name for each in (*ALL, RAISE)]
    passes = [name for name in every if name in set(names)]
    rows: list[tuple[Entry, ...]] = []
    for each in graphs:
        removed = {entry["name"]: -entry["within"]["nodes"] for entry in each.answer["passes"]}
        before, after = each.answer["source"]["nodes"], each.answer["whole"]["nodes"]
        rows.append((each.subject.name, before, *(removed.get(name, 0) for name in passes), before - after, after))
    about = "Compute nodes that each pass removes within the whole pipeline; they add up to removed = before - after."
    columns = ("model", "before", *passes, "removed", "after")
    return Table("pass_matrix", "Nodes removed, model by pass", columns, tuple(rows), about)


def timings(graphs: Sequence[Answered], times: Mapping[str, Answer]) -> Table:
    """One row for each graph of a model that differs: the whole pipeline's first."""
    rows: list[tuple[Entry, ...]] = []
    for each in graphs:
        found = times.get(each.subject.name)
        if found is None:
            continue
        rows.append((each.subject.name, WHOLE, WHOLE, *(found[WHOLE][name] for name in TIMES), None))
        for how in (ALONE, WITHOUT):
            for name, timed in representatives(each.answer, how).items():
                measured = found[f"{how} {timed}"]
                same = timed if timed != name else None
                rows.append((each.subject.name, name, how, *(measured[column] for column in TIMES), same))
    about = (
        "All graphs of a model took turns in one race. all: the whole pipeline over the source; alone: the pass alone "
        "over the source; without: the pipeline without the pass over the whole pipeline, so that the pass pays where "
        "it is above 1. Intervals are 95 %: among many rows, a few verdicts are chance. "
        "same_graph_as: measured once for both."
    )
    columns = ("model", "pass", "how", *TIMES, "same_graph_as")
    return Table("attribution_time", "What each pass does to latency", columns, tuple(rows), about, timed=True)
