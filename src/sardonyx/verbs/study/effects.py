"""Experiments on what the passes save: all together, each alone, and whether saved nodes are saved time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
_TIMED = ("target", "seed", "threads", "seconds")  # options of a timed cell


class Overview(Experiment):
    """One row for each model."""

    name = "overview"

    def cells(self, subject: Subject, options: StudyOptions) -> list[Cell]:
        """Return one cell for the result and one for its latency."""
        return [
            Cell(self.name, subject.name, "result", options.only("target", "seed")),
            Cell(self.name, subject.name, "latency", options.only(*_TIMED), timed=True),
        ]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Optimize the model, and verify or time the result."""
        target, seed = cell.options["target"], cell.options["seed"]
        verify = "off" if cell.timed else "end"
        run = pipeline.optimize(subject.path, target=target, verify=verify, seed=seed, threads=1)
        if cell.timed:
            assert run.model is not None, "set by optimize"
            return time_models(subject.path, {"optimized": run.model}, {"optimized": None}, cell.options)["optimized"]
        assert run.verdict is not None, "it was verified"
        return {
            "before": asdict(run.before),
            "after": asdict(run.after),
            "max_error": max((output.max_abs for output in run.verdict.outputs), default=0.0),
            "passed": run.verdict.passed,
        }

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return one table with results and latencies."""
        latencies = {answer.subject.name: answer.answer for answer in answers if answer.cell.timed}
        rows: list[tuple[Entry, ...]] = []
        for model, result in ((each.subject.name, each.answer) for each in answers if not each.cell.timed):
            before, after = result["before"], result["after"]
            removed = 1 - after["nodes"] / before["nodes"] if before["nodes"] else 0.0
            counts = (sizes[name] for name in _SIZES for sizes in (before, after))
            times = (latencies.get(model, {}).get(name) for name in TIMES)
            rows.append((model, *counts, removed, result["max_error"], result["passed"], *times))
        columns = ("model", *(f"{name}_{when}" for name in _SIZES for when in ("before", "after")))
        columns += ("nodes_removed", "max_error", "passed", *TIMES)
        about = (
            "Every model after all passes of the target: verified against the source with the runtime's own "
            "optimizations off (max_error: the largest difference of any output), then timed against it with them on. "
            "ratio: time of the optimized model over the source, below 1 is faster, with its 95 % interval; floor: the "
            "relative difference between two sessions of the source in the same measurement."
        )
        return [Table("overview", "Effect of the pipeline on each model", columns, tuple(rows), about, timed=True)]

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return how many models get smaller, and how many faster."""
        rows = tables["overview"].named_rows()
        if not rows:
            return []
        smaller = sum(isinstance(row["nodes_removed"], float) and row["nodes_removed"] > 0 for row in rows)
        texts = [f"{smaller} of {len(rows)} models have fewer nodes after the pipeline than before."]
        counts = Counter(row["finding"] for row in rows if row["finding"] is not None)
        if counts:
            texts.append(
                f"Of {counts.total()} models that were timed, {counts['faster']} are faster than their source beyond "
                f"the noise, {counts['slower']} slower, and {counts['no difference']} show no difference."
            )
        return [Finding(text, "overview") for text in texts]


_ALONE, _WITHOUT = "alone", "without"
_WHOLE = "all"
_PASSES_NAMED = 3  # in a finding


class Attribution(Experiment):
    """The effect of every pass on every model."""

    name = "attribution"
    key = "graphs"

    def then(self, subject: Subject, answers: Answers, options: StudyOptions) -> list[Cell]:
        """Return one cell that times all graphs of a model that differ from each other."""
        timed = {
            how: sorted({*_representatives(each.answer, how).values()})
            for each in answers
            for how in (_ALONE, _WITHOUT)
        }
        if not any(timed.values()):
            return []
        return [Cell(self.name, subject.name, "times", options.only(*_TIMED) | timed, timed=True)]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Build the graphs, and count or time them."""
        target = cell.options["target"]
        passes = select(target)
        if not cell.timed:
            return _graphs(subject, passes, target)
        others = {_WHOLE: candidate(subject.path, target, passes).model}
        pairs: dict[str, str | None] = {_WHOLE: None}
        for how, against in ((_ALONE, None), (_WITHOUT, _WHOLE)):
            for name in cell.options[how]:
                chosen = [rule for rule in passes if (rule.name == name) == (how == _ALONE)]
                others[f"{how} {name}"] = candidate(subject.path, target, chosen).model
                pairs[f"{how} {name}"] = against
        return time_models(subject.path, others, pairs, cell.options)

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return all counts, the matrix of nodes removed, and times."""
        graphs = [answer for answer in answers if not answer.cell.timed]
        times = {answer.subject.name: answer.answer for answer in answers if answer.cell.timed}
        return [_counts(graphs), _matrix(graphs), _timings(graphs, times)]

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return which passes remove most, and which save or cost time."""
        return [*_count_findings(tables["attribution"]), *_time_findings(tables["attribution_time"])]


def _graphs(subject: Subject, passes: Sequence[Pass], target: str) -> Answer:
    """Return the sizes of the source, of the whole pipeline, and of each pass alone and left out."""
    whole = candidate(subject.path, target, passes)
    matching = _ForbidAll()  # one run instead of one for each pass
    RewriteJob(subject.path, tuple(passes), target, lambda _phase, _fraction: None).candidate(forbidden=matching)
    entries: list[dict[str, Any]] = []
    for rule in (*passes, RAISE):
        tally = whole.log.tallies[rule.name]
        if not tally.rewrites and rule.name not in matching.passes:
            continue
        entry: dict[str, Any] = {"name": rule.name, "accuracy": str(rule.accuracy), "within": _tally(tally)}
        if isinstance(rule, Pass):
            alone = candidate(subject.path, target, (rule,))
            entry[_ALONE] = _tally(alone.log.tallies[rule.name]) | {"shape": shape_of(alone.model)}
            if not tally.rewrites and not alone.log.tallies[rule.name].rewrites:
                continue  # what it matches cannot be rewritten
            if tally.rewrites:
                rest = [other for other in passes if other is not rule]
                entry[_WITHOUT] = graph_sizes(candidate(subject.path, target, rest).model)
        entries.append(entry)
    source = candidate(subject.path, target, ())
    return {"source": graph_sizes(source.model), "whole": graph_sizes(whole.model), "passes": entries}


class _ForbidAll(frozenset[tuple[str, str]]):
    """A set of forbidden rewrites that contains every rewrite and records which passes asked for one."""

    passes: set[str]

    def __new__(cls) -> _ForbidAll:
        forbidden = super().__new__(cls)
        forbidden.passes = set[str]()
        return forbidden

    def __contains__(self, rewrite: object) -> bool:
        match rewrite:
            case (str(name), str(root)) if root != WHOLE_PASS:
                self.passes.add(name)
                return True
            case _:
                return False

    def __or__(self, other: AbstractSet[object]) -> Any:
        return self


def _tally(tally: Tally) -> dict[str, int]:
    return {name: getattr(tally, name) for name in ("rewrites", *_SIZES)}


def _representatives(answer: Answer, how: str) -> dict[str, str]:
    """Return, for each pass that changes the graph, the first pass with an equal graph, which is timed for both."""
    unchanged = answer["source" if how == _ALONE else "whole"]["shape"]
    first: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for entry in answer["passes"]:
        if how in entry and (shape := entry[how]["shape"]) != unchanged:
            chosen[entry["name"]] = first.setdefault(shape, entry["name"])
    return chosen


def _counts(graphs: Sequence[CellAnswer]) -> Table:
    """Return one row for each pass and model that the pass changes, alone or within the pipeline."""
    columns = ("model", "pass", "accuracy")
    columns += tuple(f"{how}_{what}" for how in (_ALONE, "within") for what in ("rewrites", *_SIZES))
    columns += (*(f"{_WITHOUT}_{what}" for what in _SIZES), "needed")
    rows: list[tuple[Entry, ...]] = []
    for graph in graphs:
        whole = graph.answer["whole"]
        for entry in graph.answer["passes"]:
            without = entry.get(_WITHOUT)
            row: list[Entry] = [graph.subject.name, entry["name"], entry["accuracy"]]
            for tally in (entry.get(_ALONE, {}), entry["within"]):
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


def _matrix(graphs: Sequence[CellAnswer]) -> Table:
    """Return the nodes that each pass removes from each model within the pipeline; the sum of a row is the total."""
    removed = [{each["name"]: -each["within"]["nodes"] for each in graph.answer["passes"]} for graph in graphs]
    passes = [rule.name for rule in (*available(), RAISE) if any(nodes.get(rule.name) for nodes in removed)]
    rows: list[tuple[Entry, ...]] = []
    for graph, nodes in zip(graphs, removed, strict=True):
        before, after = graph.answer["source"]["nodes"], graph.answer["whole"]["nodes"]
        rows.append((graph.subject.name, before, *(nodes.get(name, 0) for name in passes), before - after, after))
    about = "Compute nodes that each pass removes within the whole pipeline; they add up to removed = before - after."
    columns = ("model", "before", *passes, "removed", "after")
    return Table("pass_matrix", "Nodes removed, model by pass", columns, tuple(rows), about)


def _timings(graphs: Sequence[CellAnswer], times: Mapping[str, Answer]) -> Table:
    """Return one row for each timed graph of a model, that of the whole pipeline first."""
    rows: list[tuple[Entry, ...]] = []
    for model, answer in ((graph.subject.name, graph.answer) for graph in graphs if graph.subject.name in times):
        measured = times[model]
        rows.append((model, _WHOLE, _WHOLE, *(measured[_WHOLE][name] for name in TIMES), None))
        for how in (_ALONE, _WITHOUT):
            for name, timed in _representatives(answer, how).items():
                comparison = (measured[f"{how} {timed}"][column] for column in TIMES)
                rows.append((model, name, how, *comparison, timed if timed != name else None))
    about = (
        "Ratios of times; all graphs of a model were timed in interleaved turns. all: the whole pipeline over the "
        "source; alone: the pass alone over the source; without: the pipeline without the pass over the whole "
        "pipeline, above 1 if the pass makes the model faster. Intervals are 95 %: among many rows, a few findings "
        "are due to chance. same_graph_as: measured once for both passes."
    )
    columns = ("model", "pass", "how", *TIMES, "same_graph_as")
    return Table("attribution_time", "What each pass does to latency", columns, tuple(rows), about, timed=True)


def _count_findings(table: Table) -> list[Finding]:
    """Return which passes remove most, how often alone and within differ, and which passes are not needed."""
    rows = table.named_rows()
    removed: dict[str, int] = defaultdict(int)
    for row in rows:
        removed[str(row["pass"])] += integer(row["within_nodes"])
    most = sorted((name for name in removed if removed[name] > 0), key=lambda name: (-removed[name], name))
    if not most:
        return [Finding("No pass removes a node from any model.", table.name)]
    largest = ", ".join(f"{name} ({removed[name]})" for name in most[:_PASSES_NAMED])
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


def _time_findings(table: Table) -> list[Finding]:
    """Return the passes without which a model is faster or slower; a single model is not certain."""
    without = [row for row in table.named_rows() if row["how"] == _WITHOUT]
    if not without:
        return []
    models: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in without:
        models[str(row["finding"]), str(row["pass"])].append(str(row["model"]))
    tried = Counter(str(row["pass"]) for row in without)
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


MIN_MODELS = 4  # needed for a correlation, with times that differ beyond the noise
CERTAIN_MODELS = 10  # needed for a certain finding
INFLUENTIAL_CHANGE = 0.3  # change of r without one model at which the correlation depends on that model
_COSTS = {"nodes": "nodes", "bytes": "bytes of weights", "flops": "FLOPs", "traffic": "bytes moved"}


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
            ("model", *(f"{what}_saved" for what in _COSTS), "time_saved", "low", "high", "finding"),
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
            tuple(_correlation_row(what, points, options.seed) for what in _COSTS),
            "Pearson's r and Spearman's rank r over the models, 95 % bootstrap intervals over the models, and r "
            "without each model in turn.",
            timed=True,
        )  # fmt: skip

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return one finding for each cost, or one for all if there are too few models."""
        table, points = tables["correlation"], tables["correlation_points"].rows
        models, changed = several(len(points), "model"), sum(row[-1] in ("faster", "slower") for row in points)
        if len(points) < MIN_MODELS:
            text = f"The measured times of {models} are too few for a correlation."
        elif changed < MIN_MODELS:
            text = f"The time of {changed} of {models} differs beyond the noise: too few for a correlation."
        else:
            return [_finding(row, table.name) for row in table.named_rows()]
        return [Finding(text, table.name, certain=False)]


def _points(answers: Sequence[CellAnswer], overview: Table | None) -> Iterator[tuple[Entry, ...]]:
    """Yield a row for each model whose time was measured."""
    times = {row["model"]: row for row in overview.named_rows()} if overview is not None else {}
    for answer in answers:
        time = times.get(answer.subject.name, {})
        ratio, low, high = (time.get(name) for name in ("ratio", "low", "high"))
        if isinstance(ratio, float) and isinstance(low, float) and isinstance(high, float):
            before, after = answer.answer["before"], answer.answer["after"]
            saved = (1 - after[what] / before[what] if before[what] else 0.0 for what in _COSTS)
            yield (answer.subject.name, *saved, 1 - ratio, 1 - high, 1 - low, time.get("finding"))


def _correlation_row(what: str, points: Table, seed: int) -> tuple[Entry, ...]:
    rows = points.named_rows()
    x, y = ([float(row[name] or 0) for row in rows] for name in (f"{what}_saved", "time_saved"))
    if len(x) < MIN_MODELS or max(x) == min(x) or max(y) == min(y):
        return (_COSTS[what], len(x), *(None for _ in range(10)))
    found = correlation(x, y, seed=seed)
    numbers = (found.r, found.low, found.high, found.rank_r, found.rank_low, found.rank_high)
    most = found.most_influential
    without = [r for r in found.leave_one_out if math.isfinite(r)]
    return (
        _COSTS[what], found.points, *map(_finite, numbers), rows[most]["model"], _finite(found.leave_one_out[most]),
        min(without, default=None), max(without, default=None),
    )  # fmt: skip


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _finding(row: dict[str, Entry], table: str) -> Finding:
    """Return r with its interval; certain only if it does not depend on a single model."""
    saved, models = row["saved"], several(integer(row["models"]), "model")
    numbers = {name: value if isinstance(value, float) else math.nan for name, value in row.items()}
    r, low, high = numbers["r"], numbers["low"], numbers["high"]
    result = f"r = {r:.2f} (95 %: {low:.2f} to {high:.2f}) over {models}"
    result += f"; without {row['hangs_most_on']} r = {numbers['r_without_it']:.2f}"
    text = f"Saved {saved} correlate {'positively' if low > 0 else 'negatively'} with saved time"
    ends = [numbers["lowest_r_without_one"], numbers["highest_r_without_one"]]
    if not math.isfinite(r + low + high):
        text = f"Over {models} the saved {saved} or the saved time do not vary: there is nothing to correlate."
    elif integer(row["models"]) < CERTAIN_MODELS:
        text = f"Too few models to tell whether saved {saved} correlate with saved time: {result}."
    elif low <= 0 <= high:
        text = f"It is not certain that saved {saved} correlate with saved time: {result}."
    elif not all(end * r > 0 and abs(end - r) < INFLUENTIAL_CHANGE for end in ends):
        text = f"{text}, but only because of one model: {result}."
    else:
        return Finding(f"{text}: {result}.", table)
    return Finding(text, table, certain=False)
