"""Whether fewer nodes, bytes, operations or less traffic go with less time: correlations that say how sure they are.

One model can make or break a correlation over a dozen of them. So each is told with its interval and without the model
that it hangs on most, and a claim needs enough models, an interval on one side of zero, and no model it hangs on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments.counting import counted
from sardonyx.studies.experiments.results import several

FEWEST = 4  # models with which a correlation can be computed at all, and whose time must differ beyond the noise
FEW = 10  # models below which none is called certain
HANGS = 0.3  # change of r that makes it one model's doing
_MOVED = ("faster", "slower")  # findings of a comparison that are not noise
WHAT = {"nodes": "nodes", "bytes": "bytes of weights", "flops": "flops", "traffic": "bytes moved"}


class Correlation(Experiment):
    """What the passes save by counting, against what they save by the clock."""

    name = "correlation"
    uses = ("overview",)

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """One for each model; times are those of the overview."""
        return (Cell(self.name, subject.name, "costs", asked.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """What is counted, before and after."""
        from sardonyx.optimizer.candidates import RewriteJob
        from sardonyx.optimizer.pipeline import select

        target = cell.options["target"]
        after = RewriteJob(subject.path, select(target), target, lambda _phase, _fraction: None).candidate().model
        return {"before": counted(subject.path), "after": counted(after)}

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """The points, and what they say together."""
        points = Table(
            "correlation_points",
            "Savings by counting and by the clock",
            ("model", *(f"{what}_saved" for what in WHAT), "time_saved", "low", "high", "finding"),
            tuple(_points(answers, others.get("overview"))),
            "Shares of what the model as it is has or takes, with the interval of the measured time; negative is more. "
            "Flops and bytes moved are counted on the graph, without the runtime's own fusions, at batch 1 and length "
            "128 where those are open.",
            timed=True,
        )
        return points, Table(
            "correlation",
            "Correlation of savings with time saved",
            ("saved", "models", "r", "low", "high", "rank_r", "rank_low", "rank_high", "hangs_most_on", "r_without_it",
             "lowest_r_without_one", "highest_r_without_one"),
            tuple(_row(what, points, asked.seed) for what in WHAT),
            "Pearson's r and Spearman's rank r over the models, 95 % intervals by drawing models again, and r without "
            "each model in turn.",
            timed=True,
        )  # fmt: skip

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """One sentence for each thing that is saved; one for all where there are too few models."""
        table, points = tables["correlation"], tables["correlation_points"].rows
        timed, moved = len(points), sum(row[-1] in _MOVED for row in points)
        if timed < FEWEST:
            said = f"A measured time of {several(timed, 'model')} is too little to correlate anything with"
            return (Finding(f"{said}.", table.name, certain=False),)
        if moved < FEWEST:
            said = f"The time of {moved} of {several(timed, 'model')} differs beyond the noise"
            return (Finding(f"{said}: a correlation would be of noise.", table.name, certain=False),)
        return tuple(_sentence(dict(zip(table.columns, row, strict=True)), table.name) for row in table.rows)


def _points(answers: Sequence[Answered], overview: Table | None) -> Iterator[tuple[Entry, ...]]:
    """Models whose time was measured."""
    times: dict[Entry, Mapping[str, Entry]] = {}
    if overview is not None:
        rows = (dict(zip(overview.columns, row, strict=True)) for row in overview.rows)
        times = {row["model"]: row for row in rows}
    for each in answers:
        time = times.get(each.subject.name, {})
        ratio, low, high = (time.get(name) for name in ("ratio", "low", "high"))
        if isinstance(ratio, float) and isinstance(low, float) and isinstance(high, float):
            before, after = each.answer["before"], each.answer["after"]
            saved = (1 - after[what] / before[what] if before[what] else 0.0 for what in WHAT)
            yield (each.subject.name, *saved, 1 - ratio, 1 - high, 1 - low, time.get("finding"))


def _row(what: str, points: Table, seed: int) -> tuple[Entry, ...]:
    from sardonyx.measurement.statistics import correlation

    at, time = points.columns.index(f"{what}_saved"), points.columns.index("time_saved")
    pairs = [(row[at], row[time]) for row in points.rows]
    x = [float(one) for one, _ in pairs if isinstance(one, (int, float))]
    y = [float(other) for _, other in pairs if isinstance(other, (int, float))]
    if len(x) < FEWEST or max(x) == min(x) or max(y) == min(y):
        return (WHAT[what], len(x), *(None for _ in range(10)))
    found = correlation(x, y, seed=seed)
    without = [each for each in found.leave_one_out if math.isfinite(each)]
    most = found.most_influential
    return (
        WHAT[what], found.points, _known(found.r), _known(found.low), _known(found.high),
        _known(found.rank_r), _known(found.rank_low), _known(found.rank_high),
        points.rows[most][0], _known(found.leave_one_out[most]), min(without, default=None), max(without, default=None),
    )  # fmt: skip


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _sentence(row: dict[str, Entry], table: str) -> Finding:
    """What may be said: the number always, a claim only where it would stand without any one model."""
    saved, models = row["saved"], several(_whole(row["models"]), "model")
    numbers = {name: value if isinstance(value, float) else math.nan for name, value in row.items()}
    r, low, high = numbers["r"], numbers["low"], numbers["high"]
    if not math.isfinite(r + low + high):
        said = f"Over {models} the saved {saved} or the saved time do not vary: there is nothing to correlate"
        return Finding(f"{said}.", table, certain=False)
    told = f"r = {r:.2f} (95 %: {low:.2f} to {high:.2f}) over {models}"
    told += f"; without {row['hangs_most_on']} r = {numbers['r_without_it']:.2f}"
    if _whole(row["models"]) < FEW:
        said = f"Whether saving {saved} goes with saving time is not settled by so few models: {told}"
        return Finding(f"{said}.", table, certain=False)
    if low <= 0 <= high:
        return Finding(f"Whether saving {saved} goes with saving time is not certain: {told}.", table, certain=False)
    way = "with" if low > 0 else "against"
    ends = [numbers["lowest_r_without_one"], numbers["highest_r_without_one"]]
    if not all(end * r > 0 and abs(end - r) < HANGS for end in ends):
        said = f"That saving {saved} goes {way} saving time hangs on one model: {told}"
        return Finding(f"{said}.", table, certain=False)
    return Finding(f"Saving {saved} goes {way} saving time: {told}.", table)


def _whole(entry: Entry) -> int:
    return entry if isinstance(entry, int) else 0
