"""What the passes match in each model: what they rewrite, and what they skip for which reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sardonyx.optimizer.opportunities import opportunities
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments.common import integer, several

REASONS_NAMED = 3  # in the findings


class Forensics(Experiment):
    """Matches of each pass by model, rewritten and skipped, with the reasons."""

    name = "forensics"

    def cells(self, subject: Subject, options: StudyOptions) -> Sequence[Cell]:
        """Return one cell for each model."""
        return (Cell(self.name, subject.name, "places", options.only("target")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Run the passes on a copy."""
        record = opportunities(subject.path, target=cell.options["target"])
        return {
            "nodes": [record.before.nodes, record.after.nodes],
            "passes": [
                {
                    "name": each.name,
                    "rewritten": each.rewrites,
                    "skipped": [[group.reason, group.count] for group in each.refusals],
                }
                for each in record.passes
                if each.rewrites or each.refusals
            ],
        }

    def tables(
        self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]
    ) -> Sequence[Table]:
        """Return all counts, the skipped matches as a matrix, and the reasons."""
        about = f"Every pass of the target {options.target} was run on a copy."
        return (
            Table(
                "forensics",
                "Matches of the passes",
                ("model", "pass", "rewritten", "skipped"),
                tuple(row for answer in answers for row in _rows(answer)),
                about,
            ),
            _matrix(answers, about),
            Table(
                "why_left",
                "Why passes skip matches",
                ("model", "pass", "reason", "places"),
                tuple(row for answer in answers for row in _reasons(answer)),
                about,
            ),
        )

    def findings(self, tables: Mapping[str, Table]) -> Sequence[Finding]:
        """Return how many matches are skipped, and the most frequent reasons."""
        table = tables["forensics"]
        models = several(len(tables["forensics_matrix"].columns) - 1, "model")
        rewritten, skipped = (sum(integer(row[at]) for row in table.rows) for at in (2, 3))
        text = f"The passes rewrite {several(rewritten, 'place')} and skip {skipped}, over {models}."
        return (Finding(text, table.name), *_reason_findings(tables["why_left"]))


def _rows(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for each in answer.answer["passes"]:
        yield answer.subject.name, each["name"], each["rewritten"], sum(count for _, count in each["skipped"])


def _reasons(answer: CellAnswer) -> Iterator[tuple[Entry, ...]]:
    for each in answer.answer["passes"]:
        for reason, count in each["skipped"]:
            yield answer.subject.name, each["name"], reason, count


def _matrix(answers: Sequence[CellAnswer], about: str) -> Table:
    """Return the passes that skip matches, with a column for each model."""
    skipped: dict[Entry, dict[Entry, Entry]] = {}
    for answer in answers:
        for model, name, _, count in _rows(answer):
            if count:
                skipped.setdefault(name, {})[model] = count
    models = [answer.subject.name for answer in answers]
    rows = tuple((name, *(counts.get(model, 0) for model in models)) for name, counts in skipped.items())
    return Table("forensics_matrix", "Skipped matches by pass and model", ("pass", *models), rows, about)


def _reason_findings(table: Table) -> Iterator[Finding]:
    reasons: Counter[tuple[Entry, Entry]] = Counter()
    for _, name, reason, places in table.rows:
        reasons[name, reason] += integer(places)
    total = several(reasons.total(), "skipped place")
    for (name, reason), places in reasons.most_common(REASONS_NAMED):
        yield Finding(f"Of {total}, {places} {'is' if places == 1 else 'are'} of {name}: {reason}.", table.name)
