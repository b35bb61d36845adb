"""Experiments for tests, in a file that worker processes can import: they answer, fail, die or take long.

python tests/studies/planted.py FOLDER SECONDS      a study of them, to be killed from outside
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.errors import ModelError
from sardonyx.fleet.cells import Cell
from sardonyx.records.study import Finding, Table
from sardonyx.verbs.study.experiment import Answer, CellAnswer, Experiment, StudyOptions, Subject

if TYPE_CHECKING:
    from sardonyx.fleet.engines import Engine
    from sardonyx.verbs.study.runner import Studied

CELLS = 6


class Planted(Experiment):
    """Some cells per model; each logs its begin and end in a file beside the model."""

    name = "planted"

    def __init__(self, seconds: float = 0.0, *, timed: int = 0) -> None:
        self._seconds, self._timed = seconds, timed

    def cells(self, subject: Subject, options: StudyOptions) -> list[Cell]:
        count = CELLS + self._timed
        return [
            Cell(self.name, subject.name, str(index), options.only("seed"), timed=index < self._timed)
            for index in range(count)
        ]

    def run(self, cell: Cell, subject: Subject) -> Answer:
        began = time.time()
        time.sleep(self._seconds)
        with (subject.path.parent / "log.txt").open("a") as log:
            log.write(f"{cell.model} {cell.key} {cell.timed} {began} {time.time()}\n")
        return {"seed": cell.options["seed"], "index": int(cell.key), "size": subject.path.stat().st_size}

    def tables(self, answers: Sequence[CellAnswer], options: StudyOptions, others: Mapping[str, Table]) -> list[Table]:
        rows = tuple((each.subject.name, *each.answer.values()) for each in answers)
        return [Table(self.name, "Planted", ("model", "seed", "index", "size"), rows)]

    def findings(self, tables: Mapping[str, Table]) -> list[Finding]:
        return [Finding(f"there are {len(tables[self.name].rows)} rows", self.name)]


class Followed(Planted):
    """Plans one more cell for each answer with an even index."""

    name = "followed"

    def then(self, subject: Subject, answers: Sequence[CellAnswer], options: StudyOptions) -> list[Cell]:
        indices = [each.answer["index"] for each in answers]
        return [
            Cell(self.name, subject.name, str(100 + each), options.only("seed")) for each in indices if each % 2 == 0
        ]


class Unlucky(Planted):
    """Cell 1 raises a sardonyx error, 2 another, 3 is killed, 4 returns what JSON cannot store, 5 prints a lot."""

    name = "unlucky"

    def run(self, cell: Cell, subject: Subject) -> Answer:
        if (subject.path.parent / "mended").exists():
            return super().run(cell, subject)
        match cell.key:
            case "1":
                raise ModelError("this model\nis not to be had")
            case "2":
                return {"index": {}["nothing"]}
            case "3":
                os.kill(os.getpid(), signal.SIGKILL)
            case "4":
                return {"index": object()}
            case "5":
                os.write(1, b"a library prints to standard output")
                print("and so do we")  # noqa: T201
        return super().run(cell, subject)


class Hopeless(Planted):
    """Every cell fails."""

    name = "hopeless"

    def run(self, cell: Cell, subject: Subject) -> Answer:
        raise ModelError("this model cannot be read")


def conduct(folder: Path, experiments: Sequence[Experiment], engine: Engine, *, seed: int = 0) -> Studied:
    """A study of the planted experiments on the two files of a folder."""
    from sardonyx.fleet.storage import open_store  # only here: children import this file too, and start at once
    from sardonyx.verbs.study.runner import StudyRunner

    runner = StudyRunner(open_store(folder / "out"), "planted", StudyOptions(seed=seed), engine)
    subjects = [Subject(name, folder / name) for name in ("a", "b")]
    return runner.run(subjects, experiments, {})


if __name__ == "__main__":
    from sardonyx.fleet.engines import LocalEngine
    from studies.planted import Planted as Importable  # workers cannot import what is defined in a script

    with contextlib.closing(LocalEngine(2)) as own:
        conduct(Path(sys.argv[1]), [Importable(float(sys.argv[2]), timed=1)], own)
