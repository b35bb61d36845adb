"""What the whole pipeline does to each model: nodes, bytes, the error it was proven within, and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.optimizer import pipeline
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studies.experiments import results

_SIZES = ("nodes", "constants", "bytes")
_ABOUT = (
    "Every model with all passes of the target, proven against the source with the runtime's own optimizations off "
    "(max_error: the largest difference of any output), then timed against it with them on: ratio is optimized over "
    "source, below 1 is faster, with its 95 % interval; floor is the relative difference that two sessions of the "
    "source showed in the same race."
)


class Overview(Experiment):
    """One row a model."""

    name = "overview"

    def cells(self, subject: Subject, asked: Asked) -> list[Cell]:
        """The result, and its latency."""
        return [
            Cell(self.name, subject.name, "result", asked.only("target", "seed")),
            Cell(self.name, subject.name, "latency", asked.only("target", "seed", "threads", "seconds"), timed=True),
        ]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Optimize, and prove or time."""
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
            found = results.raced(
                subject.path,
                {"optimized": run.model},
                {"optimized": None},
                threads=options["threads"],
                seconds=options["seconds"],
                seed=options["seed"],
            )
            return found["optimized"]
        assert run.verdict is not None
        return {
            "before": results.sizes(run.before),
            "after": results.sizes(run.after),
            "max_error": max((output.max_abs for output in run.verdict.outputs), default=0.0),
            "passed": run.verdict.passed,
            "rolled_back": [each.pass_name for each in run.rolled_back],
        }

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> list[Table]:
        """Both together."""
        by_model: dict[str, dict[str, Answer]] = {}
        for each in answers:
            by_model.setdefault(each.subject.name, {})[each.cell.key] = each.answer
        columns = ("model", *(f"{name}_{when}" for name in _SIZES for when in ("before", "after")))
        columns += ("nodes_removed", "max_error", "passed", *results.TIMES)
        rows = tuple(
            _row(model, found["result"], found.get("latency", {}))
            for model, found in by_model.items()
            if "result" in found
        )
        return [Table("overview", "What the pipeline does to each model", columns, rows, _ABOUT, timed=True)]

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> list[Finding]:
        """How many models get smaller, and how many of them faster."""
        table = tables["overview"]
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        if not rows:
            return []
        smaller = [row for row in rows if isinstance(row["nodes_removed"], float) and row["nodes_removed"] > 0]
        timed = [row for row in rows if row["finding"] is not None]
        counts = {word: sum(row["finding"] == word for row in timed) for word in ("faster", "slower", "no difference")}
        said = [
            Finding(
                f"{len(smaller)} of {len(rows)} models have fewer nodes after the pipeline than before.", "overview"
            )
        ]
        if timed:
            said.append(
                Finding(
                    f"Optimized models against their sources, {len(timed)} timed: faster beyond the noise "
                    f"{counts['faster']}, slower {counts['slower']}, no difference {counts['no difference']}.",
                    "overview",
                )
            )
        return said


def _row(model: str, result: Answer, latency: Answer) -> tuple[Entry, ...]:
    before, after = result["before"], result["after"]
    removed = 1 - after["nodes"] / before["nodes"] if before["nodes"] else 0.0
    counts = (sizes[name] for name in _SIZES for sizes in (before, after))
    return (
        model,
        *counts,
        removed,
        result["max_error"],
        result["passed"],
        *(latency.get(name) for name in results.TIMES),
    )
