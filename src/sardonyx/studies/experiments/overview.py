"""The effect of the whole pipeline on each model: nodes, bytes, error of the verification, and latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.optimizer import pipeline
from sardonyx.records.study import Entry, Finding, Table
from sardonyx.studies.experiment import Answer, Cell, CellAnswer, Experiment, StudyOptions, Subject
from sardonyx.studies.experiments import common

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
            comparisons = common.time_models(
                subject.path,
                {"optimized": run.model},
                {"optimized": None},
                threads=options["threads"],
                seconds=options["seconds"],
                seed=options["seed"],
            )
            return comparisons["optimized"]
        assert run.verdict is not None
        return {
            "before": common.count_sizes(run.before),
            "after": common.count_sizes(run.after),
            "max_error": max((output.max_abs for output in run.verdict.outputs), default=0.0),
            "passed": run.verdict.passed,
            "rolled_back": [event.pass_name for event in run.rolled_back],
        }

    def tables(self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]) -> list[Table]:
        """Return one table with results and latencies."""
        by_model: dict[str, dict[str, Answer]] = {}
        for answer in answers:
            by_model.setdefault(answer.subject.name, {})[answer.cell.key] = answer.answer
        columns = ("model", *(f"{name}_{when}" for name in _SIZES for when in ("before", "after")))
        columns += ("nodes_removed", "max_error", "passed", *common.TIMES)
        rows = tuple(
            _row(model, parts["result"], parts.get("latency", {}))
            for model, parts in by_model.items()
            if "result" in parts
        )
        return [Table("overview", "Effect of the pipeline on each model", columns, rows, _ABOUT, timed=True)]

    def findings(self, tables: Mapping[str, Table]) -> list[Finding]:
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
    return (
        model,
        *counts,
        removed,
        result["max_error"],
        result["passed"],
        *(latency.get(name) for name in common.TIMES),
    )
