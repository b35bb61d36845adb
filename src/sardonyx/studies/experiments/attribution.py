"""What each pass does to each model: alone, as part of the whole pipeline, and to the whole when it is left out.

Alone says what a pass can do by itself; within says what it was left to do by those before it; without says what would
be missing. The three differ wherever passes help or replace each other, which any one of them alone would hide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.ir.opsets.raising import RAISE
from sardonyx.ir.rewriter import Tally
from sardonyx.optimizer.candidates import WHOLE_PASS, RewriteJob
from sardonyx.optimizer.pipeline import select
from sardonyx.passes import Pass
from sardonyx.passes.installed import available
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments import results
from sardonyx.studies.experiments.results import TIMES

# The tables of attribution, from what its cells answered.

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
    every = [each.name for each in (*available(), RAISE)]
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


# What the tables of attribution let one say.

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


class Attribution(Experiment):
    """Pass by model."""

    name = "attribution"

    def cells(self, subject: Subject, asked: Asked) -> list[Cell]:
        """The graphs; times are planned when it is known which of them differ."""
        return [Cell(self.name, subject.name, "graphs", asked.only("target"))]

    def then(self, subject: Subject, answers: Sequence[Answered], asked: Asked) -> list[Cell]:
        """One race of all graphs of a model that differ from each other."""
        races = {how: representatives(each.answer, how) for each in answers for how in (ALONE, WITHOUT)}
        contenders = {how: sorted(set(found.values())) for how, found in races.items()}
        if not any(contenders.values()):
            return []
        options = asked.only("target", "seed", "threads", "seconds") | contenders
        return [Cell(self.name, subject.name, "times", options, timed=True)]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Make the graphs, and count or time them."""
        passes = select(cell.options["target"])
        return _times(cell, subject, passes) if cell.timed else _graphs(subject, passes, cell.options["target"])

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> list[Table]:
        """Counts in full, the matrix of nodes removed, and times."""
        graphs = [each for each in answers if not each.cell.timed]
        times = {each.subject.name: each.answer for each in answers if each.cell.timed}
        return [counts(graphs), matrix(graphs), timings(graphs, times)]

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> list[Finding]:
        """Which passes remove most, where being alone misleads, and which pay in time."""
        return [*said_of_counts(tables["attribution"]), *said_of_times(tables["attribution_time"])]


def _graphs(subject: Subject, passes: Sequence[Pass], target: str) -> Answer:
    """Every graph that matters, counted."""
    whole = results.candidate(subject.path, passes, target)
    able = _able_alone(subject, passes, target)
    found: list[dict[str, Any]] = []
    for each in (*passes, RAISE):
        tally = whole.log.tallies[each.name]
        fired = tally.rewrites > 0
        if not fired and each.name not in able:
            continue
        entry: dict[str, Any] = {"name": each.name, "accuracy": str(each.accuracy), "within": _tallied(tally)}
        if isinstance(each, Pass):
            alone = results.candidate(subject.path, (each,), target)
            entry[ALONE] = _tallied(alone.log.tallies[each.name]) | {"shape": results.counted(alone.model)["shape"]}
            if fired:
                rest = [other for other in passes if other is not each]
                entry[WITHOUT] = results.counted(results.candidate(subject.path, rest, target).model)
        found.append(entry)
    untouched = results.candidate(subject.path, (), target)
    return {"source": results.counted(untouched.model), "whole": results.counted(whole.model), "passes": found}


class _EverythingAsked(frozenset[tuple[str, str]]):
    """Forbids every rewrite, and notes who wanted one: which passes would do something if they were alone."""

    def __new__(cls) -> _EverythingAsked:
        made = super().__new__(cls)
        made.asking = set[str]()
        return made

    asking: set[str]

    def __contains__(self, rewrite: object) -> bool:
        match rewrite:
            case (str(name), str(root)) if root != WHOLE_PASS:
                self.asking.add(name)
                return True
            case _:
                return False


def _able_alone(subject: Subject, passes: Sequence[Pass], target: str) -> set[str]:
    """Passes that find something in the source, at the price of one run instead of one each."""
    asked = _EverythingAsked()
    RewriteJob(subject.path, tuple(passes), target, lambda _phase, _fraction: None).candidate(forbidden=asked)
    return asked.asking


def _tallied(tally: Tally) -> dict[str, int]:
    return {
        "rewrites": tally.rewrites,
        "nodes": tally.nodes,
        "constants": tally.constants,
        "bytes": tally.bytes,
    }


def _times(cell: Cell, subject: Subject, passes: Sequence[Pass]) -> Answer:
    target, options = cell.options["target"], cell.options
    others = {WHOLE: results.candidate(subject.path, passes, target).model}
    pairs: dict[str, str | None] = {WHOLE: None}
    for name in options[ALONE]:
        chosen = [each for each in passes if each.name == name]
        others[f"{ALONE} {name}"] = results.candidate(subject.path, chosen, target).model
        pairs[f"{ALONE} {name}"] = None
    for name in options[WITHOUT]:
        chosen = [each for each in passes if each.name != name]
        others[f"{WITHOUT} {name}"] = results.candidate(subject.path, chosen, target).model
        pairs[f"{WITHOUT} {name}"] = WHOLE
    return results.raced(
        subject.path,
        others,
        pairs,
        threads=options["threads"],
        seconds=options["seconds"],
        seed=options["seed"],
    )
