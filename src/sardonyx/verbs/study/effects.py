"""Experiments on what the passes save: all together, each alone, and whether saved nodes are saved time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from sardonyx.fleet.cells import Cell
from sardonyx.ir.opset_raising import RAISE
from sardonyx.ir.rewriter import Tally
from sardonyx.passes import Pass
from sardonyx.passes.installed import available
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.verbs.bench.statistics import correlation
from sardonyx.verbs.optimize import pipeline
from sardonyx.verbs.optimize.candidates import WHOLE_PASS, RewriteJob
from sardonyx.verbs.optimize.pipeline import select
from sardonyx.verbs.study.experiment import (
    TIMES,
    Answer,
    Answers,
    CellAnswer,
    Experiment,
    StudyOptions,
    Subject,
    Tables,
    candidate,
    costs,
    graph_sizes,
    integer,
    several,
    shape_of,
    time_models,
)

_SIZES = ("nodes", "constants", "bytes")
_ABOUT = (
    "Every model after all passes of the target: verified against the source with the runtime's own optimizations off "
    "(max_error: the largest difference of any output), then timed against it with them on. ratio: time of the "
    "optimized model over the source, below 1 is faster, with its 95 % interval; floor: the relative difference "
    "between two sessions of the source in the same measurement."
)


class Overview(Experiment):
    """One row for each model."""

    name = "overview"

    def cells(self, subject: Subject, options: StudyOptions) -> list[Cell]:
        """Return one cell for the result and one for its latency."""
        return [
            Cell(self.name, subject.name, "result", options.only("target", "seed")),
            Cell(self.name, subject.name, "latency", options.only("target", "seed", "threads", "seconds"), timed=True),
        ]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Optimize the model, and verify or time the result."""
        options = cell.options
        timed = cell.key == "latency"
        run = pipeline.optimize(
            subject.path,
            target=options["target"],
            verify="off" if timed else "end",
            seed=options["seed"],
            threads=1,
        )
        if timed:
            assert run.model is not None
            return time_models(subject.path, {"optimized": run.model}, {"optimized": None}, options)["optimized"]
        assert run.verdict is not None
        return {
            "before": asdict(run.before),
            "after": asdict(run.after),
            "max_error": max((output.max_abs for output in run.verdict.outputs), default=0.0),
            "passed": run.verdict.passed,
            "rolled_back": [event.pass_name for event in run.rolled_back],
        }

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return one table with results and latencies."""
        by_model: dict[str, dict[str, Answer]] = {}
        for answer in answers:
            by_model.setdefault(answer.subject.name, {})[answer.cell.key] = answer.answer
        columns = ("model", *(f"{name}_{when}" for name in _SIZES for when in ("before", "after")))
        columns += ("nodes_removed", "max_error", "passed", *TIMES)
        whole = [(model, parts) for model, parts in by_model.items() if "result" in parts]
        rows = tuple(_row(model, parts["result"], parts.get("latency", {})) for model, parts in whole)
        return [Table("overview", "Effect of the pipeline on each model", columns, rows, _ABOUT, timed=True)]

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return how many models get smaller, and how many faster."""
        rows = tables["overview"].named_rows()
        if not rows:
            return []
        smaller = [row for row in rows if isinstance(row["nodes_removed"], float) and row["nodes_removed"] > 0]
        timed = [row for row in rows if row["finding"] is not None]
        counts = {word: sum(row["finding"] == word for row in timed) for word in ("faster", "slower", "no difference")}
        texts = [f"{len(smaller)} of {len(rows)} models have fewer nodes after the pipeline than before."]
        if timed:
            texts.append(
                f"Of {len(timed)} models that were timed, {counts['faster']} are faster than their source beyond the "
                f"noise, {counts['slower']} slower, and {counts['no difference']} show no difference."
            )
        return [Finding(text, "overview") for text in texts]


def _row(model: str, result: Answer, latency: Answer) -> tuple[Entry, ...]:
    before, after = result["before"], result["after"]
    removed = 1 - after["nodes"] / before["nodes"] if before["nodes"] else 0.0
    counts = (sizes[name] for name in _SIZES for sizes in (before, after))
    times = (latency.get(name) for name in TIMES)
    return (model, *counts, removed, result["max_error"], result["passed"], *times)


ALONE, WITHOUT = "alone", "without"
WHOLE = "all"


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
    columns += tuple(f"{how}_{what}" for how in (ALONE, "within") for what in ("rewrites", *_SIZES))
    columns += (*(f"{WITHOUT}_{what}" for what in _SIZES), "needed")
    rows: list[tuple[Entry, ...]] = []
    for graph in graphs:
        whole = graph.answer["whole"]
        for entry in graph.answer["passes"]:
            alone, within, without = entry.get(ALONE, {}), entry["within"], entry.get(WITHOUT)
            row: list[Entry] = [graph.subject.name, entry["name"], entry["accuracy"]]
            for tally in (alone, within):
                row += [tally.get("rewrites"), *(-tally[what] if tally else None for what in _SIZES)]
            row += [without[what] - whole[what] if without else None for what in _SIZES]
            row.append(without["shape"] != whole["shape"] if without else None)
            rows.append(tuple(row))
    about = (
        "What each pass removes (nodes, Constant nodes, bytes of constants; negative: adds): alone on the source, and "
        "within the whole pipeline. without: how much more is left when the pipeline runs without it; needed: whether "
        "the result differs at all. Passes that change nothing, alone or within the pipeline, are not listed."
    )
    return Table("attribution", "What each pass does", columns, tuple(rows), about)


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
    key = "graphs"

    def then(self, subject: Subject, answers: Answers, options: StudyOptions) -> list[Cell]:
        """Return one cell that times all graphs of a model that differ from each other."""
        graphs = [answer.answer for answer in answers]
        timed = {how: sorted({*representatives(each, how).values()}) for each in graphs for how in (ALONE, WITHOUT)}
        if not any(timed.values()):
            return []
        cell_options = options.only("target", "seed", "threads", "seconds") | timed
        return [Cell(self.name, subject.name, "times", cell_options, timed=True)]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Build the graphs, and count or time them."""
        passes = select(cell.options["target"])
        return _times(cell, subject, passes) if cell.timed else _graphs(subject, passes, cell.options["target"])

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return all counts, the matrix of nodes removed, and times."""
        graphs = [answer for answer in answers if not answer.cell.timed]
        times = {answer.subject.name: answer.answer for answer in answers if answer.cell.timed}
        return [counts(graphs), matrix(graphs), timings(graphs, times)]

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return which passes remove most, and which save or cost time."""
        return [*count_findings(tables["attribution"]), *time_findings(tables["attribution_time"])]


def _graphs(subject: Subject, passes: Sequence[Pass], target: str) -> Answer:
    """Return the sizes of the source, of the whole pipeline, and of each pass alone and left out."""
    whole = candidate(subject.path, target, passes)
    matching = _matching_alone(subject, passes, target)
    entries: list[dict[str, Any]] = []
    for rule in (*passes, RAISE):
        tally = whole.log.tallies[rule.name]
        acted = tally.rewrites > 0
        if not acted and rule.name not in matching:
            continue
        entry: dict[str, Any] = {"name": rule.name, "accuracy": str(rule.accuracy), "within": _tally(tally)}
        if isinstance(rule, Pass):
            alone = candidate(subject.path, target, (rule,))
            entry[ALONE] = _tally(alone.log.tallies[rule.name]) | {"shape": shape_of(alone.model)}
            if acted:
                rest = [other for other in passes if other is not rule]
                entry[WITHOUT] = graph_sizes(candidate(subject.path, target, rest).model)
        entries.append(entry)
    source = candidate(subject.path, target, ())
    return {"source": graph_sizes(source.model), "whole": graph_sizes(whole.model), "passes": entries}


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
    return {name: getattr(tally, name) for name in ("rewrites", *_SIZES)}


def _times(cell: Cell, subject: Subject, passes: Sequence[Pass]) -> Answer:
    target, options = cell.options["target"], cell.options
    others = {WHOLE: candidate(subject.path, target, passes).model}
    pairs: dict[str, str | None] = {WHOLE: None}
    for how, against in ((ALONE, None), (WITHOUT, WHOLE)):
        for name in options[how]:
            chosen = [rule for rule in passes if (rule.name == name) == (how == ALONE)]
            others[f"{how} {name}"] = candidate(subject.path, target, chosen).model
            pairs[f"{how} {name}"] = against
    return time_models(subject.path, others, pairs, options)


MIN_MODELS = 4  # needed for a correlation, with times that differ beyond the noise
CERTAIN_MODELS = 10  # needed for a certain finding
INFLUENTIAL = 0.3  # change of r without one model at which the correlation depends on that model
_CHANGED = ("faster", "slower")  # findings of a comparison that are not noise
WHAT = {"nodes": "nodes", "bytes": "bytes of weights", "flops": "FLOPs", "traffic": "bytes moved"}


class Correlation(Experiment):
    """Savings in counted costs against savings in measured time."""

    name = "correlation"
    uses = ("overview",)
    key = "costs"

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Count the costs before and after the passes."""
        after = candidate(subject.path, cell.options["target"]).model
        return {"before": costs(subject.path), "after": costs(after)}

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return the points, and their correlations."""
        points = Table(
            "correlation_points",
            "Savings in counted costs and in measured time",
            ("model", *(f"{what}_saved" for what in WHAT), "time_saved", "low", "high", "finding"),
            tuple(_points(answers, others.get("overview"))),
            "Savings as shares of the costs of the source, with the interval of the measured time; negative: higher "
            "costs. FLOPs and bytes moved are counted on the graph, without the runtime's own fusions, with batch 1 "
            "and length 128 for dynamic dimensions.",
            timed=True,
        )
        return points, Table(
            "correlation",
            "Correlation of savings with time saved",
            ("saved", "models", "r", "low", "high", "rank_r", "rank_low", "rank_high", "hangs_most_on", "r_without_it",
             "lowest_r_without_one", "highest_r_without_one"),
            tuple(_correlation_row(what, points, options.seed) for what in WHAT),
            "Pearson's r and Spearman's rank r over the models, 95 % bootstrap intervals over the models, and r "
            "without each model in turn.",
            timed=True,
        )  # fmt: skip

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return one finding for each cost, or one for all if there are too few models."""
        table, points = tables["correlation"], tables["correlation_points"].rows
        timed, changed = len(points), sum(row[-1] in _CHANGED for row in points)
        if timed < MIN_MODELS:
            text = f"The measured times of {several(timed, 'model')} are too few for a correlation."
            return (Finding(text, table.name, certain=False),)
        if changed < MIN_MODELS:
            text = f"The time of {changed} of {several(timed, 'model')} differs beyond the noise"
            return (Finding(f"{text}: too few for a correlation.", table.name, certain=False),)
        return tuple(_finding(row, table.name) for row in table.named_rows())


def _points(answers: Sequence[CellAnswer], overview: Table | None) -> Iterator[tuple[Entry, ...]]:
    """Yield a row for each model whose time was measured."""
    times = {row["model"]: row for row in overview.named_rows()} if overview is not None else {}
    for answer in answers:
        time = times.get(answer.subject.name, {})
        ratio, low, high = (time.get(name) for name in ("ratio", "low", "high"))
        if isinstance(ratio, float) and isinstance(low, float) and isinstance(high, float):
            before, after = answer.answer["before"], answer.answer["after"]
            saved = (1 - after[what] / before[what] if before[what] else 0.0 for what in WHAT)
            yield (answer.subject.name, *saved, 1 - ratio, 1 - high, 1 - low, time.get("finding"))


def _correlation_row(what: str, points: Table, seed: int) -> tuple[Entry, ...]:
    at, time = points.columns.index(f"{what}_saved"), points.columns.index("time_saved")
    pairs = [(row[at], row[time]) for row in points.rows]
    x = [float(one) for one, _ in pairs if isinstance(one, (int, float))]
    y = [float(other) for _, other in pairs if isinstance(other, (int, float))]
    if len(x) < MIN_MODELS or max(x) == min(x) or max(y) == min(y):
        return (WHAT[what], len(x), *(None for _ in range(10)))
    result = correlation(x, y, seed=seed)
    without = [r for r in result.leave_one_out if math.isfinite(r)]
    most = result.most_influential
    return (
        WHAT[what], result.points, _finite(result.r), _finite(result.low), _finite(result.high),
        _finite(result.rank_r), _finite(result.rank_low), _finite(result.rank_high), points.rows[most][0],
        _finite(result.leave_one_out[most]), min(without, default=None), max(without, default=None),
    )  # fmt: skip


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _finding(row: dict[str, Entry], table: str) -> Finding:
    """Return r with its interval; certain only if it does not depend on a single model."""
    saved, models = row["saved"], several(integer(row["models"]), "model")
    numbers = {name: value if isinstance(value, float) else math.nan for name, value in row.items()}
    r, low, high = numbers["r"], numbers["low"], numbers["high"]
    if not math.isfinite(r + low + high):
        text = f"Over {models} the saved {saved} or the saved time do not vary: there is nothing to correlate."
        return Finding(text, table, certain=False)
    result = f"r = {r:.2f} (95 %: {low:.2f} to {high:.2f}) over {models}"
    result += f"; without {row['hangs_most_on']} r = {numbers['r_without_it']:.2f}"
    if integer(row["models"]) < CERTAIN_MODELS:
        text = f"Too few models to tell whether saved {saved} correlate with saved time: {result}."
        return Finding(text, table, certain=False)
    if low <= 0 <= high:
        return Finding(
            f"It is not certain that saved {saved} correlate with saved time: {result}.", table, certain=False
        )
    sign = "positively" if low > 0 else "negatively"
    text = f"Saved {saved} correlate {sign} with saved time"
    ends = [numbers["lowest_r_without_one"], numbers["highest_r_without_one"]]
    if not all(end * r > 0 and abs(end - r) < INFLUENTIAL for end in ends):
        return Finding(f"{text}, but only because of one model: {result}.", table, certain=False)
    return Finding(f"{text}: {result}.", table)
