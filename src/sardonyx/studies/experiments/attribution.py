"""The effect of each pass on each model: alone, within the whole pipeline, and when the pipeline runs without it.

alone: the pass by itself; within: its share in the pipeline, after the passes before it; without: what is missing in
the result if it does not run. The three differ wherever passes enable or replace each other.
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
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments import common
from sardonyx.studies.experiments.common import TIMES, integer

ALONE, WITHOUT = "alone", "without"
WHOLE = "all"
_MEASURED = ("nodes", "constants", "bytes")


def representatives(answer: Answer, how: str) -> dict[str, str]:
    """Return, for each pass that changes the graph, the first pass with an equal graph, which is timed for both."""
    unchanged = answer["source" if how == ALONE else "whole"]["shape"]
    first: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for entry in answer["passes"]:
        if how in entry and (shape := entry[how]["shape"]) != unchanged:
            chosen[entry["name"]] = first.setdefault(shape, entry["name"])
    return chosen


def counts(graphs: Sequence[CellAnswer]) -> Table:
    """Return one row for each pass and model that the pass changes, alone or within the pipeline."""
    columns = ("model", "pass", "accuracy")
    columns += tuple(f"{how}_{what}" for how in (ALONE, "within") for what in ("rewrites", *_MEASURED))
    columns += (*(f"{WITHOUT}_{what}" for what in _MEASURED), "needed")
    rows: list[tuple[Entry, ...]] = []
    for graph in graphs:
        whole = graph.answer["whole"]
        for entry in graph.answer["passes"]:
            alone, within, without = entry.get(ALONE, {}), entry["within"], entry.get(WITHOUT)
            row: list[Entry] = [graph.subject.name, entry["name"], entry["accuracy"]]
            for tally in (alone, within):
                row += [tally.get("rewrites"), *(_negated(tally.get(what)) for what in _MEASURED)]
            row += [without[what] - whole[what] if without else None for what in _MEASURED]
            row.append(without["shape"] != whole["shape"] if without else None)
            rows.append(tuple(row))
    about = (
        "What each pass removes (nodes, Constant nodes, bytes of constants; negative: adds): alone on the source, and "
        "within the whole pipeline. without: how much more is left when the pipeline runs without it; needed: whether "
        "the result differs at all. Passes that change nothing, alone or within the pipeline, are not listed."
    )
    return Table("attribution", "What each pass does", columns, tuple(rows), about)


def _negated(change: int | None) -> int | None:
    return None if change is None else -change


def matrix(graphs: Sequence[CellAnswer]) -> Table:
    """Return the nodes that each pass removes from each model within the pipeline; the sum of a row is the total."""
    acting = {entry["name"] for graph in graphs for entry in graph.answer["passes"] if entry["within"]["nodes"]}
    passes = [rule.name for rule in (*available(), RAISE) if rule.name in acting]
    rows: list[tuple[Entry, ...]] = []
    for graph in graphs:
        removed = {entry["name"]: -entry["within"]["nodes"] for entry in graph.answer["passes"]}
        before, after = graph.answer["source"]["nodes"], graph.answer["whole"]["nodes"]
        rows.append((graph.subject.name, before, *(removed.get(name, 0) for name in passes), before - after, after))
    about = "Compute nodes that each pass removes within the whole pipeline; they add up to removed = before - after."
    columns = ("model", "before", *passes, "removed", "after")
    return Table("pass_matrix", "Nodes removed, model by pass", columns, tuple(rows), about)


def timings(graphs: Sequence[CellAnswer], times: Mapping[str, Answer]) -> Table:
    """Return one row for each timed graph of a model, that of the whole pipeline first."""
    rows: list[tuple[Entry, ...]] = []
    for graph in graphs:
        model, measured = graph.subject.name, times.get(graph.subject.name)
        if measured is None:
            continue
        rows.append((model, WHOLE, WHOLE, *(measured[WHOLE][name] for name in TIMES), None))
        for how in (ALONE, WITHOUT):
            for name, timed in representatives(graph.answer, how).items():
                comparison = measured[f"{how} {timed}"]
                same = timed if timed != name else None
                rows.append((model, name, how, *(comparison[column] for column in TIMES), same))
    about = (
        "Ratios of times; all graphs of a model were timed in interleaved turns. all: the whole pipeline over the "
        "source; alone: the pass alone over the source; without: the pipeline without the pass over the whole "
        "pipeline, above 1 if the pass makes the model faster. Intervals are 95 %: among many rows, a few findings "
        "are due to chance. same_graph_as: measured once for both passes."
    )
    columns = ("model", "pass", "how", *TIMES, "same_graph_as")
    return Table("attribution_time", "What each pass does to latency", columns, tuple(rows), about, timed=True)


PASSES_NAMED = 3  # in a finding


def count_findings(table: Table) -> list[Finding]:
    """Return which passes remove most, how often alone and within differ, and which passes are not needed."""
    rows = table.named_rows()
    removed: dict[str, int] = defaultdict(int)
    for row in rows:
        removed[str(row["pass"])] += integer(row["within_nodes"])
    most = sorted((name for name in removed if removed[name] > 0), key=lambda name: (-removed[name], name))
    if not most:
        return [Finding("No pass removes a node from any model.", table.name)]
    largest = ", ".join(f"{name} ({removed[name]})" for name in most[:PASSES_NAMED])
    differ = sum(integer(row["alone_nodes"]) != integer(row["within_nodes"]) for row in rows)
    texts = [
        f"Over all models, these passes remove most nodes within the pipeline: {largest}.",
        f"In {differ} of {len(rows)} pairs of pass and model, a pass removes another number of nodes alone than within "
        + ("the pipeline: passes enable and replace each other." if differ else "the pipeline."),
    ]
    needed = {str(row["pass"]) for row in rows if row["needed"] is True}
    idle = sorted({str(row["pass"]) for row in rows if row["needed"] is False} - needed)
    if idle:
        texts.append(f"Without these passes, others do their work, in every model: {', '.join(idle)}.")
    return [Finding(text, table.name) for text in texts]


def time_findings(table: Table) -> list[Finding]:
    """Return the passes without which a model is faster or slower; a single model is not certain."""
    without = [row for row in table.named_rows() if row["how"] == WITHOUT]
    if not without:
        return []
    models: dict[tuple[str, str], list[str]] = defaultdict(list)
    tried: dict[str, int] = defaultdict(int)
    for row in without:
        models[str(row["finding"]), str(row["pass"])].append(str(row["model"]))
        tried[str(row["pass"])] += 1
    findings: list[Finding] = []
    for verdict, effect in (("slower", "saves time"), ("faster", "costs time")):
        passes = [(name, where) for (finding, name), where in models.items() if finding == verdict]
        for name, where in sorted(passes, key=lambda item: (-len(item[1]), item[0])):
            text = (
                f"{name} {effect}: without it {len(where)} of {tried[name]} models are {verdict} ({', '.join(where)})"
            )
            certain = len(where) > 1
            end = "." if certain else "; one model alone is not enough to be certain."
            findings.append(Finding(text + end, table.name, certain))
    none = f"In {len(without)} graphs without one pass, none is faster or slower beyond the noise."
    return findings or [Finding(none, table.name)]


class Attribution(Experiment):
    """The effect of every pass on every model."""

    name = "attribution"

    def cells(self, subject: Subject, options: StudyOptions) -> list[Cell]:
        """Return the cell that builds the graphs; `then` plans the times of those that differ."""
        return [Cell(self.name, subject.name, "graphs", options.only("target"))]

    def then(self, subject: Subject, answers: Sequence[CellAnswer], options: StudyOptions) -> list[Cell]:
        """Return one cell that times all graphs of a model that differ from each other."""
        timed = {
            how: sorted(set(representatives(answer.answer, how).values()))
            for answer in answers
            for how in (ALONE, WITHOUT)
        }
        if not any(timed.values()):
            return []
        cell_options = options.only("target", "seed", "threads", "seconds") | timed
        return [Cell(self.name, subject.name, "times", cell_options, timed=True)]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Build the graphs, and count or time them."""
        passes = select(cell.options["target"])
        return _times(cell, subject, passes) if cell.timed else _graphs(subject, passes, cell.options["target"])

    def tables(self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]) -> list[Table]:
        """Return all counts, the matrix of nodes removed, and times."""
        graphs = [answer for answer in answers if not answer.cell.timed]
        times = {answer.subject.name: answer.answer for answer in answers if answer.cell.timed}
        return [counts(graphs), matrix(graphs), timings(graphs, times)]

    def findings(self, tables: Mapping[str, Table]) -> list[Finding]:
        """Return which passes remove most, and which save or cost time."""
        return [*count_findings(tables["attribution"]), *time_findings(tables["attribution_time"])]


def _graphs(subject: Subject, passes: Sequence[Pass], target: str) -> Answer:
    """Return the sizes of the source, of the whole pipeline, and of each pass alone and left out."""
    whole = common.candidate(subject.path, target, passes)
    matching = _matching_alone(subject, passes, target)
    entries: list[dict[str, Any]] = []
    for rule in (*passes, RAISE):
        tally = whole.log.tallies[rule.name]
        acted = tally.rewrites > 0
        if not acted and rule.name not in matching:
            continue
        entry: dict[str, Any] = {"name": rule.name, "accuracy": str(rule.accuracy), "within": _tally(tally)}
        if isinstance(rule, Pass):
            alone = common.candidate(subject.path, target, (rule,))
            entry[ALONE] = _tally(alone.log.tallies[rule.name]) | {"shape": common.graph_sizes(alone.model)["shape"]}
            if acted:
                rest = [other for other in passes if other is not rule]
                entry[WITHOUT] = common.graph_sizes(common.candidate(subject.path, target, rest).model)
        entries.append(entry)
    source = common.candidate(subject.path, target, ())
    return {
        "source": common.graph_sizes(source.model),
        "whole": common.graph_sizes(whole.model),
        "passes": entries,
    }


class _ForbidAll(frozenset[tuple[str, str]]):
    """A set of forbidden rewrites that contains every rewrite and records which passes asked for one."""

    def __new__(cls) -> _ForbidAll:
        forbidden = super().__new__(cls)
        forbidden.passes = set[str]()
        return forbidden

    passes: set[str]

    def __contains__(self, rewrite: object) -> bool:
        match rewrite:
            case (str(name), str(root)) if root != WHOLE_PASS:
                self.passes.add(name)
                return True
            case _:
                return False


def _matching_alone(subject: Subject, passes: Sequence[Pass], target: str) -> set[str]:
    """Return the passes that match something in the source, with one run instead of one for each pass."""
    forbidden = _ForbidAll()
    RewriteJob(subject.path, tuple(passes), target, lambda _phase, _fraction: None).candidate(forbidden=forbidden)
    return forbidden.passes


def _tally(tally: Tally) -> dict[str, int]:
    return {
        "rewrites": tally.rewrites,
        "nodes": tally.nodes,
        "constants": tally.constants,
        "bytes": tally.bytes,
    }


def _times(cell: Cell, subject: Subject, passes: Sequence[Pass]) -> Answer:
    target, options = cell.options["target"], cell.options
    others = {WHOLE: common.candidate(subject.path, target, passes).model}
    pairs: dict[str, str | None] = {WHOLE: None}
    for name in options[ALONE]:
        chosen = [rule for rule in passes if rule.name == name]
        others[f"{ALONE} {name}"] = common.candidate(subject.path, target, chosen).model
        pairs[f"{ALONE} {name}"] = None
    for name in options[WITHOUT]:
        chosen = [rule for rule in passes if rule.name != name]
        others[f"{WITHOUT} {name}"] = common.candidate(subject.path, target, chosen).model
        pairs[f"{WITHOUT} {name}"] = WHOLE
    return common.time_models(
        subject.path,
        others,
        pairs,
        threads=options["threads"],
        seconds=options["seconds"],
        seed=options["seed"],
    )
