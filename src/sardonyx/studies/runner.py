"""`sardonyx.study`: plan the cells of all experiments, compute those that are not kept, and say what they found.

What is not timed goes first, in several processes at once; what is timed goes last and alone. Every finished cell is
written down at once, so that a study that was killed goes on where it was, and tables are made from answers as they
are read back, so that it ends as if it had not been.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sardonyx.errors import OutputError, UsageError
from sardonyx.frontend.installed import require_installed
from sardonyx.records.environment import environment
from sardonyx.records.progress import Progress
from sardonyx.records.study import Failure, Finding, Study, Table
from sardonyx.studies import cells, experiments, sources
from sardonyx.studies.cells import Shelf
from sardonyx.studies.experiment import NO_MODEL, SECONDS, Answered, Asked, Cell, Experiment, Outcome, Subject
from sardonyx.studies.processes import carried_out
from sardonyx.studies.progress import Pace
from sardonyx.studies.zoo import MODELS, Maker, recipes


class Studied(Study, frozen=True):
    """A Study together with how this run came by it."""

    reused: int = 0  # cells kept from an earlier run


def study(
    models: Sequence[str | Path] = (),
    output: str | Path = "study",
    *,
    zoo: str | None = None,
    only: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    target: Literal["portable", "ort"] = "portable",
    seconds: float = SECONDS,
    thorough: bool = False,
    seed: int = 0,
    threads: int = 1,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Studied:
    """Run the experiments on any set of models, and keep every finished piece in a folder.

    Args:
        models: ONNX files, and folders of them.
        output: the folder that keeps the cells; a study that was stopped goes on when it is given the same.
        zoo: name of a built-in set of models, made from configs ("small").
        only: names of the experiments to run; all where None.
        skip: names of experiments to leave out.
        target: which passes are studied.
        seconds: the most that one timed cell may measure.
        thorough: more seeds, sizes and shuffles.
        seed: of everything that is drawn.
        threads: of the runtime where it is timed.
        jobs: processes at once for what is not timed; as many as there are cores where None.
        progress: told what is being done, and how far it is.

    Returns:
        Tables, findings, and what could not be run.

    Raises:
        UsageError: no models, or an experiment that does not exist.
        OutputError: the folder holds something else, or another study is at work in it.
    """
    if not models and zoo is None:
        raise UsageError("there is nothing to study", hint='give ONNX files or folders of them, or `zoo="small"`')
    asked = Asked(target, seed, threads, seconds, thorough)
    chosen = selected(experiments.ALL, only, skip)
    folder = Path(output)
    _check_ours(folder)
    subjects = sources.found(models, apart_from=folder)
    maker = Maker(recipes(zoo)) if zoo is not None else None
    if maker is not None:
        require_installed("torch", "the models of a zoo need")
    with cells.alone_in(folder):
        conductor = Conductor(Shelf(folder, cells.our_code()), asked, jobs or os.cpu_count() or 1, progress)
        subjects += conductor.made(maker, folder) if maker is not None else []
        options = {"target": target, "seed": seed, "threads": threads, "seconds": seconds, "thorough": thorough}
        options |= {"zoo": zoo, "experiments": [each.name for each in chosen]}
        return conductor.conduct(_apart(subjects), chosen, options)


def selected(
    every: Sequence[Experiment], only: Iterable[str] | None = None, skip: Iterable[str] | None = None
) -> tuple[Experiment, ...]:
    """The experiments that were asked for, with those whose tables they build on, in their order.

    Raises:
        UsageError: for a name that no experiment has.
    """
    known = {each.name: each for each in every}
    for name in (*(only or ()), *(skip or ())):
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UsageError(f"there is no experiment {name!r}", hint=hint)
    wanted = set(known if only is None else only)
    for each in reversed(every):  # what an experiment builds on comes before it
        if each.name in wanted:
            wanted.update(each.uses)
    return tuple(each for each in every if each.name in wanted - set(skip or ()))


@dataclass(slots=True)
class _Planned:
    """A cell on its way to its outcome."""

    experiment: Experiment
    cell: Cell
    subject: Subject
    outcome: Outcome | None = None


@dataclass
class Conductor:
    """One run of a study in one folder."""

    shelf: Shelf
    asked: Asked
    jobs: int
    progress: Progress | None = None
    reused: int = 0
    _digests: dict[str, str] = field(default_factory=lambda: {NO_MODEL.name: ""})
    _made: list[_Planned] = field(default_factory=list[_Planned])

    def made(self, maker: Maker, folder: Path) -> list[Subject]:
        """The models of a built-in set, exported into the folder where they are not there yet."""
        (folder / MODELS).mkdir(exist_ok=True)
        plan = [
            _Planned(maker, cell, subject)
            for subject in maker.subjects(folder / MODELS)
            for cell in maker.cells(subject, self.asked)
        ]
        self._digests |= dict.fromkeys((each.subject.name for each in plan), "")
        self._compute(plan, self.jobs)
        self._made = plan
        for each in plan:
            del self._digests[each.subject.name]
        return [each.subject for each in plan if each.outcome is not None and each.outcome.answer is not None]

    def conduct(self, subjects: Sequence[Subject], chosen: Sequence[Experiment], options: Mapping[str, Any]) -> Studied:
        """Compute what is not kept, and put together what all of it says."""
        self._digests |= {subject.name: sources.digest(subject.path) for subject in subjects}
        plan = [
            _Planned(experiment, cell, subject)
            for experiment in chosen
            for subject in (subjects if experiment.of_models else (NO_MODEL,))
            for cell in experiment.cells(subject, self.asked)
        ]
        self._compute([each for each in plan if not each.cell.timed], self.jobs)
        plan += [
            _Planned(experiment, cell, subject)
            for experiment in chosen
            for subject in (subjects if experiment.of_models else (NO_MODEL,))
            for cell in experiment.then(subject, _answered(plan, experiment, subject), self.asked)
        ]
        self._compute([each for each in plan if each.outcome is None and not each.cell.timed], self.jobs)
        self._compute([each for each in plan if each.outcome is None], 1)
        tables = self._tables(plan, chosen)
        everything = self._made + plan
        return Studied(
            environment=environment(),
            options=dict(options),
            models=tuple(subject.name for subject in subjects),
            tables=tuple(tables.values()),
            findings=self._findings(tables, chosen),
            failures=tuple(_failures(everything)),
            cells=len(everything),
            seconds=_seconds(everything),
            reused=self.reused,
        )

    def _compute(self, plan: Sequence[_Planned], jobs: int) -> None:
        """See that every cell has an outcome, and that each is kept from the moment it has."""
        for each in plan:
            each.outcome = self._kept(each)
        self.reused += sum(each.outcome is not None for each in plan)
        missing = [each for each in plan if each.outcome is None]
        pace = Pace(len(plan), len(missing), jobs, self.progress)
        orders = [(each.experiment, each.cell, each.subject) for each in missing]
        with contextlib.closing(carried_out(orders, jobs)) as reports:
            for report in reports:
                each = missing[report.index]
                if report.outcome is not None:
                    self.shelf.keep(each.cell, self._digests[each.subject.name], report.outcome)
                    each.outcome = report.outcome
                pace.tell(each.cell, ended=report.outcome is not None)

    def _kept(self, planned: _Planned) -> Outcome | None:
        outcome = self.shelf.find(planned.cell, self._digests[planned.subject.name])
        if outcome is not None and isinstance(planned.experiment, Maker):
            return outcome if planned.experiment.is_there(planned.subject, outcome.answer or {}) else None
        return outcome

    def _tables(self, plan: Sequence[_Planned], chosen: Sequence[Experiment]) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        for experiment in chosen:
            answers = _answered(plan, experiment)
            tables |= {table.name: table for table in experiment.tables(answers, self.asked, tables)}
        return tables

    def _findings(self, tables: dict[str, Table], chosen: Sequence[Experiment]) -> tuple[Finding, ...]:
        return tuple(finding for experiment in chosen for finding in experiment.findings(tables, self.asked))


def _answered(plan: Iterable[_Planned], experiment: Experiment, subject: Subject | None = None) -> list[Answered]:
    return [
        Answered(each.cell, each.subject, each.outcome.answer)
        for each in plan
        if each.experiment is experiment and (subject is None or each.subject is subject)
        if each.outcome is not None and each.outcome.answer is not None
    ]


def _failures(plan: Iterable[_Planned]) -> Iterable[Failure]:
    for each in plan:
        if each.outcome is not None and each.outcome.reason is not None:
            yield Failure(each.cell.experiment, each.cell.model, f"{each.cell.key}: {each.outcome.reason}")


def _seconds(plan: Iterable[_Planned]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for each in plan:
        if each.outcome is not None:
            spent[each.cell.experiment] = spent.get(each.cell.experiment, 0.0) + each.outcome.seconds
    return {name: round(seconds, 3) for name, seconds in spent.items()}


def _apart(subjects: Sequence[Subject]) -> list[Subject]:
    """The same, with none named like another."""
    taken: dict[str, Subject] = {}
    for subject in subjects:
        if subject.name in taken:
            raise UsageError(f"two models of the study are named {subject.name}", hint="rename one of the files")
        taken[subject.name] = subject
    return list(taken.values())


def _check_ours(folder: Path) -> None:
    """Refuse a folder that holds something else: a study writes many files."""
    if folder.is_dir() and not (folder / cells.FOLDER).is_dir() and any(folder.iterdir()):
        raise OutputError(f"{folder} holds something that is no study", hint="give a new folder with -o")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file", hint="give a new folder with -o")
