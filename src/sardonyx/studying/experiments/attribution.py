"""What each pass does to each model: alone, as part of the whole pipeline, and to the whole when it is left out.

Alone says what a pass can do by itself; within says what it was left to do by those before it; without says what would
be missing. The three differ wherever passes help or replace each other, which any one of them alone would hide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.candidates import WHOLE_PASS, Job
from sardonyx.graph.opsets.raising import RAISE
from sardonyx.graph.rewrite import Tally
from sardonyx.passes import Pass
from sardonyx.pipeline import select
from sardonyx.study_record import Finding, Table
from sardonyx.studying.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studying.experiments import results
from sardonyx.studying.experiments.attributed import ALONE, WHOLE, WITHOUT, counts, matrix, representatives, timings
from sardonyx.studying.experiments.attribution_findings import said_of_counts, said_of_times


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
    Job(subject.path, tuple(passes), target, lambda _phase, _fraction: None).candidate(forbidden=asked)
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
