"""Conv + ReLU in the runtime, as a live experiment: which ways of writing it are taken, and what they compute.

Every encoding is a graph built here, loaded and run with the runtime's own optimizations off, and held against
Conv → Relu. What the runtime refuses is told in its own words. Beside it, the runtime optimizes Conv → Relu itself,
and its own graph is looked into: that is what an encoding would have to beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.study_record import Entry, Finding, Table
from sardonyx.studying.experiment import NO_MODEL, Answer, Answered, Asked, Cell, Experiment, Subject
from sardonyx.studying.experiments.saying import several

if TYPE_CHECKING:
    import onnx

LEVELS = ("off", "basic", "extended", "all")
_SEEDS = 3
_ARROW = " → "
_RUNS = ("runs", "runs_extended")


class ConvRelu(Experiment):
    """Encodings of an activation after a convolution."""

    name = "conv-relu"
    of_models = False

    def cells(self, subject: Subject, asked: Asked) -> Sequence[Cell]:
        """One for all of them: they take a second."""
        return (Cell(self.name, NO_MODEL.name, "encodings", asked.only("seed")),)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Try every encoding, and ask the runtime what it makes of the plain one."""
        from sardonyx.studying.experiments.encodings import ENCODINGS, OTHER_REFERENCE, REFERENCE

        models = {name: build() for name, build in ENCODINGS.items()}
        tried: list[Answer] = []
        for name, model in models.items():
            against = OTHER_REFERENCE.get(name, REFERENCE)
            found = _tried(model, models[against], cell.options["seed"])
            tried.append({"encoding": name, "against": against, **found})
        levels = [{"level": level, "operators": _kept(models[REFERENCE], level)} for level in LEVELS]
        return {"tried": tried, "levels": levels}

    def tables(self, answers: Sequence[Answered], asked: Asked, others: Mapping[str, Table]) -> Sequence[Table]:
        """What was taken, and what the runtime does by itself."""
        tried = [one for each in answers for one in each.answer["tried"]]
        levels = [one for each in answers for one in each.answer["levels"]]
        columns = (
            "encoding",
            "against",
            "nodes",
            "accepted",
            "max_difference",
            "runs",
            "runs_extended",
            "runtime_says",
        )
        return (
            Table(
                "conv_relu",
                "Encodings of Conv + ReLU that the runtime takes",
                columns,
                tuple(tuple(one[column] for column in columns) for one in tried),
                f"Loaded and run on the CPU with the runtime's optimizations off, on {_SEEDS} drawn inputs; the "
                "difference is the largest from what it is held against. Runs: the operators of the runtime's own "
                "graph, with its optimizations off and at the level extended.",
            ),
            Table(
                "conv_relu_levels",
                "What the runtime makes of Conv → Relu by itself",
                ("level", "operators", "fuses"),
                tuple((one["level"], one["operators"], _fuses(one["operators"])) for one in levels),
                "The graph that the runtime keeps after its own optimizations at each level.",
            ),
        )

    def findings(self, tables: Mapping[str, Table], asked: Asked) -> Sequence[Finding]:
        """Which encodings work in fewer kernels, which are refused or wrong, and what the runtime does anyway."""
        table = tables["conv_relu"]
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        if not rows:
            return ()
        right = [row for row in rows if row["max_difference"] == 0 and row["encoding"] != row["against"]]
        groups = (
            ("The runtime takes and computes the same, bit for bit", right),
            (
                "Of these, one kernel without the runtime's optimizations",
                [row for row in right if _is_one(row["runs"])],
            ),
            ("Taken, but another result", [row for row in rows if row["accepted"] and row["max_difference"] != 0]),
            ("Refused", [row for row in rows if not row["accepted"]]),
        )
        count = several(len(rows), "encoding")
        return (
            *(Finding(f"{said} ({len(found)} of {count}): {_names(found)}.", table.name) for said, found in groups),
            *_by_itself(tables["conv_relu_levels"]),
        )


def _names(rows: Sequence[Mapping[str, Entry]]) -> str:
    return "; ".join(str(row["encoding"]) for row in rows) or "none"


def _is_one(operators: Entry) -> bool:
    return isinstance(operators, str) and _ARROW not in operators


def _tried(model: onnx.ModelProto, baseline: onnx.ModelProto, seed: int) -> Answer:
    import numpy as np

    from sardonyx.errors import RuntimeFailure
    from sardonyx.runtime import Session

    told: Answer = {"nodes": len(model.graph.node), "accepted": False}
    told |= dict.fromkeys(("max_difference", *_RUNS, "runtime_says"))
    rng = np.random.default_rng(seed)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    reference, worst = Session(baseline, threads=1), 0.0
    try:
        session = Session(model, threads=1)
        for _ in range(_SEEDS):
            feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
            (wanted,), (got,) = reference.run(feeds), session.run(feeds)
            worst = max(worst, float(np.max(np.abs(np.asarray(wanted) - np.asarray(got)))))
        runs = dict(zip(_RUNS, (_kept(model, "off"), _kept(model, "extended")), strict=True))
    except RuntimeFailure as refusal:
        return told | {"runtime_says": refusal.message.partition(": ")[2]}
    return told | {"accepted": True, "max_difference": worst, **runs}


def _kept(model: onnx.ModelProto, level: str) -> str:
    """The operators of the graph that the runtime keeps, in order."""
    import tempfile

    from sardonyx.graph import io
    from sardonyx.graph.scopes import operator
    from sardonyx.runtime.timed import Level, Settings, Timed

    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        path = Path(folder) / "kept.onnx"
        Timed(model, Settings(level=Level(level)), optimized=path)
        nodes = list(io.load(path).graph)
    return _ARROW.join(map(operator, nodes))


def _fuses(operators: str) -> bool:
    return not any(each.rpartition("::")[2] == "Relu" for each in operators.split(_ARROW))


def _by_itself(table: Table) -> Sequence[Finding]:
    fusing = [str(level) for level, _, fuses in table.rows if fuses]
    levels = several(len(table.rows), "level")
    if not fusing:
        return (Finding(f"The runtime fuses Conv → Relu by itself at none of {levels}.", table.name),)
    said = f"The runtime fuses Conv → Relu by itself at {', '.join(fusing)} ({len(fusing)} of {levels})"
    return (Finding(f"{said}: there, one node in the file saves no kernel.", table.name),)
