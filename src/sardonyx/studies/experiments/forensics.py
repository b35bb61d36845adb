"""What optimizers look for in each model, before and after the passes, and why what is left is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments.results import several

_NODES = "nodes"
_REASONS_TOLD = 3


class Forensics(Experiment):
    """Patterns by model, before → after, with the reasons that passes gave."""

    name = "forensics"

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """One for each model."""
        return (Cell(self.name, subject.name, "places", asked.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Run the passes on a copy and count."""
        from sardonyx.optimizer.opportunities import opportunities

        found = opportunities(subject.path, target=cell.options["target"])
        return {
            "nodes": [found.before.nodes, found.after.nodes],
            "patterns": [
                {
                    "name": each.name,
                    "what": each.what,
                    "made": each.made,
                    "before": each.before,
                    "after": each.after,
                    "why": [[why.pass_name, why.reason, why.count] for why in each.why],
                }
                for each in found.patterns
            ],
        }

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """All counts one by one, the same as a matrix for the eye, and the reasons."""
        about = (
            f"Every pass of the target {asked.target} was run on a copy; the same detectors looked before and after."
        )
        return (
            Table(
                "forensics",
                "Patterns before and after",
                ("model", "pattern", "what", "made_by_fusions", "before", "after"),
                tuple(row for each in answers for row in _rows(each)),
                about,
            ),
            _matrix(answers, about),
            Table(
                "why_left",
                "Why patterns are left",
                ("model", "pattern", "pass", "reason", "places"),
                tuple(row for each in answers for row in _reasons(each)),
                "The refusal that shares most nodes with a place that is left; no pass where none came near.",
            ),
        )

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """How much is left of what could be fused, and the commonest reasons."""
        return (*_how_much(tables["forensics"]), *_why(tables["why_left"]))


def _rows(each: Answered) -> Iterator[tuple[Entry, ...]]:
    before, after = each.answer["nodes"]
    yield each.subject.name, _NODES, "nodes in all", False, before, after
    for found in each.answer["patterns"]:
        if found["before"] or found["after"]:
            yield (each.subject.name, found["name"], found["what"], found["made"], found["before"], found["after"])


def _reasons(each: Answered) -> Iterator[tuple[Entry, ...]]:
    for found in each.answer["patterns"]:
        for name, reason, count in found["why"]:
            yield each.subject.name, found["name"], name, reason, count


def _matrix(answers: Sequence[Answered], about: str) -> Table:
    """Patterns that some model has, a column for each model."""
    counts: dict[str, dict[str, str]] = {}
    for each in answers:
        for model, _, what, _, before, after in _rows(each):
            said = f"{before} → {after}" if before != after else str(before)
            counts.setdefault(str(what), {})[str(model)] = said
    models = [each.subject.name for each in answers]
    rows = tuple((what, *(found.get(model, "0") for model in models)) for what, found in counts.items())
    return Table("forensics_matrix", "Patterns by model, before → after", ("pattern", *models), rows, about)


def _how_much(table: Table) -> Iterator[Finding]:
    """Sums over what is spelled out and could be fused or dropped."""
    had: Counter[str] = Counter()
    left: Counter[str] = Counter()
    models = {row[0] for row in table.rows}
    for _, pattern, what, made, before, after in table.rows:
        if pattern != _NODES and not made and isinstance(before, int) and isinstance(after, int):
            had[str(what)] += before
            left[str(what)] += after
    if not had.total():
        yield Finding(f"None of the patterns looked for is in any of {several(len(models), 'model')}.", table.name)
        return
    gone = [f"{what} ({had[what]})" for what in had if had[what] and not left[what]]
    yield Finding(
        f"Places where something could be fused or dropped: {had.total()} before the passes, {left.total()} after, "
        f"over {several(len(models), 'model')}.",
        table.name,
    )
    if gone:
        yield Finding(f"Nothing is left of: {', '.join(gone)}.", table.name)
    more = [f"{what} ({had[what]} → {left[what]})" for what in had if left[what] > had[what]]
    if more:
        yield Finding(f"There is more than before of: {', '.join(more)}.", table.name)


def _why(table: Table) -> Iterator[Finding]:
    reasons: Counter[tuple[str | None, str]] = Counter()
    for _, _, name, reason, places in table.rows:
        if isinstance(places, int):
            reasons[None if name is None else str(name), str(reason)] += places
    whole = several(reasons.total(), "place")
    for (name, reason), places in reasons.most_common(_REASONS_TOLD):
        said = f"left by {name} because: {reason}" if name is not None else f"where {reason}"
        yield Finding(f"Of {whole} left over, {places} {'is' if places == 1 else 'are'} {said}.", table.name)
