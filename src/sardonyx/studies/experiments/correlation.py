"""Correlation of saved nodes, bytes, FLOPs and traffic with saved time, with intervals.

A single model can create or hide a correlation over a dozen. Therefore each is reported with its interval and without
the most influential model, and a finding is certain only with enough models, an interval on one side of zero, and no
model whose removal changes r by 0.3 or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sardonyx.measurement.statistics import correlation
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments.common import candidate, costs, integer, several

MIN_MODELS = 4  # needed for a correlation, with times that differ beyond the noise
CERTAIN_MODELS = 10  # needed for a certain finding
INFLUENTIAL = 0.3  # change of r without one model at which the correlation depends on that model
_CHANGED = ("faster", "slower")  # findings of a comparison that are not noise
WHAT = {"nodes": "nodes", "bytes": "bytes of weights", "flops": "FLOPs", "traffic": "bytes moved"}


class Correlation(Experiment):
    """Savings in counted costs against savings in measured time."""

    name = "correlation"
    uses = ("overview",)

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return one cell for each model; the times come from the overview."""
        return (Cell(self.name, subject.name, "costs", options.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Count the costs before and after the passes."""
        after = candidate(subject.path, cell.options["target"]).model
        return {"before": costs(subject.path), "after": costs(after)}

    def tables(
        self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]
    ) -> Sequence[Table]:
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
            tuple(_row(what, points, options.seed) for what in WHAT),
            "Pearson's r and Spearman's rank r over the models, 95 % bootstrap intervals over the models, and r "
            "without each model in turn.",
            timed=True,
        )  # fmt: skip

    def findings(self, tables: Mapping[str, Table]) -> Sequence[Finding]:
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


def _row(what: str, points: Table, seed: int) -> tuple[Entry, ...]:
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
