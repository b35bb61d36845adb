"""Patterns that could be fused or eliminated in each model, before and after the passes, and why some are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sardonyx.optimizer.opportunities import opportunities
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments.common import several

_NODES = "nodes"
_MOST = 3  # reasons that findings name


class Forensics(Experiment):
    """Counts of patterns by model, before → after, with the reasons why passes skipped them."""

    name = "forensics"

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return one cell for each model."""
        return (Cell(self.name, subject.name, "places", options.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Run the passes on a copy and count patterns."""
        record = opportunities(subject.path, target=cell.options["target"])
        return {
            "nodes": [record.before.nodes, record.after.nodes],
            "patterns": [
                {
                    "name": pattern.name,
                    "what": pattern.what,
                    "made": pattern.made,
                    "before": pattern.before,
                    "after": pattern.after,
                    "why": [[why.pass_name, why.reason, why.count] for why in pattern.why],
                }
                for pattern in record.patterns
            ],
        }

    def tables(
        self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]
    ) -> Sequence[Table]:
        """Return all counts, the same as a matrix, and the reasons."""
        about = (
            f"Every pass of the target {options.target} was run on a copy; the same detectors counted before and after."
        )
        return (
            Table(
                "forensics",
                "Patterns before and after",
                ("model", "pattern", "what", "made_by_fusions", "before", "after"),
                tuple(row for answer in answers for row in _rows(answer)),
                about,
            ),
            _matrix(answers, about),
            Table(
                "why_left",
                "Why patterns are left",
                ("model", "pattern", "pass", "reason", "places"),
                tuple(row for answer in answers for row in _reasons(answer)),
                "The reason of the pass that skipped most nodes of the pattern; no pass if none matched any of them.",
            ),
        )

    def findings(self, tables: Mapping[str, Table]) -> Sequence[Finding]:
        """Return how many patterns are left, and the most frequent reasons."""
        return (*_count_findings(tables["forensics"]), *_reason_findings(tables["why_left"]))


def _rows(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    model, (before, after) = answer.subject.name, answer.answer["nodes"]
    yield model, _NODES, "all nodes", False, before, after
    for pattern in answer.answer["patterns"]:
        if pattern["before"] or pattern["after"]:
            yield (model, pattern["name"], pattern["what"], pattern["made"], pattern["before"], pattern["after"])


def _reasons(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for pattern in answer.answer["patterns"]:
        for name, reason, count in pattern["why"]:
            yield answer.subject.name, pattern["name"], name, reason, count


def _matrix(answers: Sequence[CellAnswer], about: str) -> Table:
    """Return the patterns that some model has, with a column for each model."""
    counts: dict[str, dict[str, str]] = {}
    for answer in answers:
        for model, _, what, _, before, after in _rows(answer):
            text = f"{before} → {after}" if before != after else str(before)
            counts.setdefault(str(what), {})[str(model)] = text
    models = [answer.subject.name for answer in answers]
    rows = tuple((what, *(texts.get(model, "0") for model in models)) for what, texts in counts.items())
    return Table("forensics_matrix", "Patterns by model, before → after", ("pattern", *models), rows, about)


def _count_findings(table: Table) -> Iterator[Finding]:
    """Yield sums over the patterns that could be fused or eliminated."""
    had: Counter[str] = Counter()
    left: Counter[str] = Counter()
    models = {row[0] for row in table.rows}
    for _, pattern, what, made, before, after in table.rows:
        if pattern != _NODES and not made and isinstance(before, int) and isinstance(after, int):
            had[str(what)] += before
            left[str(what)] += after
    if not had.total():
        yield Finding(f"None of the patterns occurs in any of {several(len(models), 'model')}.", table.name)
        return
    gone = [f"{what} ({had[what]})" for what in had if had[what] and not left[what]]
    yield Finding(
        f"Patterns that could be fused or eliminated: {had.total()} before the passes, {left.total()} after, "
        f"over {several(len(models), 'model')}.",
        table.name,
    )
    if gone:
        yield Finding(f"All gone: {', '.join(gone)}.", table.name)
    more = [f"{what} ({had[what]} → {left[what]})" for what in had if left[what] > had[what]]
    if more:
        yield Finding(f"More than before: {', '.join(more)}.", table.name)


def _reason_findings(table: Table) -> Iterator[Finding]:
    reasons: Counter[tuple[str | None, str]] = Counter()
    for _, _, name, reason, places in table.rows:
        if isinstance(places, int):
            reasons[None if name is None else str(name), str(reason)] += places
    total = several(reasons.total(), "pattern")
    for (name, reason), places in reasons.most_common(_MOST):
        skipped = f"skipped by {name} because: {reason}" if name is not None else f"left because: {reason}"
        yield Finding(f"Of {total} left, {places} {'is' if places == 1 else 'are'} {skipped}.", table.name)
