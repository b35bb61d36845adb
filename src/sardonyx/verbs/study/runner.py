"""`sardonyx.study`: plan the cells of all experiments, compute those that are not stored, and build tables from them.

Cells run on an engine (`sardonyx.fleet`): child processes, an executor or a Dask cluster. Timed cells run last, one
at a time on a machine. Every finished cell is stored at once, so that a killed study can continue, and tables are
built from answers as they are read back, so that a resumed study has the same result.

The built-in set of models (the zoo) are small but complete networks of every family, from configs and seeded random
weights. No other code knows them: each is exported to a file, and the file is studied.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import asdict

from sardonyx.errors import OutputError, RuntimeFailure, UsageError, check_choice
from sardonyx.fleet import cells
from sardonyx.fleet.cells import Cell, CellStore
from sardonyx.fleet.engines import STATUS, Engine, LocalEngine, Status, Tracker, open_engine, run_all
from sardonyx.fleet.sources import digest, find_sources, is_url, onnx_files
from sardonyx.fleet.storage import Contents, Store, open_store
from sardonyx.fleet.work import Limits, Outcome, code_hash, machine
from sardonyx.frontend.installed import require_installed
from sardonyx.records.environment import environment
from sardonyx.records.study import Failure, Study, Table
from sardonyx.verbs.study.activations import ConvRelu
from sardonyx.verbs.study.effects import Attribution, Correlation, Overview
from sardonyx.verbs.study.experiment import (
    NO_MODEL,
    SECONDS,
    Answer,
    CellAnswer,
    CellWork,
    Experiment,
    StudyOptions,
    Subject,
)
from sardonyx.verbs.study.order import Order
from sardonyx.verbs.study.static import Families, Forensics, ShapeChains
from sardonyx.verbs.study.tolerance import Tolerance

MODELS = "models"  # the folder they are exported to, inside the folder of the study
_EXPORTER: Literal["torchscript"] = "torchscript"  # its graphs leave the most to optimize
_NOT_YET = Outcome(None, None, 0.0)  # of a cell that is not computed
_WIDTHS = "hidden_size=128,num_hidden_layers=4,num_attention_heads=4,intermediate_size=512"


class Recipe(Struct, frozen=True):
    """How one model is exported."""

    name: str
    family: str
    source: str  # for `export`; "handmade:NAME" is a factory of `handmade.py`
    inputs: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])


def _text(name: str, family: str, config: str, *more: str) -> Recipe:
    """Return the recipe of a model over tokens, with dynamic batch and length."""
    names = ("input_ids", "attention_mask", *more)
    inputs = tuple(f"{input_name}=int64[2,16]" for input_name in names)
    return Recipe(name, family, f"hf-config:{config}", inputs, {each: {0: "batch", 1: "length"} for each in names})


def _image(name: str, family: str, config: str) -> Recipe:
    return Recipe(name, family, f"hf-config:{config}", ("pixel_values=float32[1,3,96,96]",))


SMALL = (
    _text("bert", "encoder", f"BertModel?{_WIDTHS},vocab_size=1000", "token_type_ids"),
    _text("distilbert", "encoder", "DistilBertModel?dim=128,n_layers=4,n_heads=4,hidden_dim=512,vocab_size=1000"),
    _text(
        "gpt2",
        "decoder",
        "GPT2LMHeadModel?n_embd=128,n_layer=4,n_head=4,vocab_size=1000,use_cache=False,bos_token_id=1,eos_token_id=2",
    ),
    _text(
        "llama",
        "decoder",
        "LlamaForCausalLM?hidden_size=128,intermediate_size=352,num_hidden_layers=4,num_attention_heads=8,"
        "num_key_value_heads=2,vocab_size=1000,use_cache=False",
    ),
    _text(
        "t5-encoder", "encoder", "T5EncoderModel?d_model=128,d_kv=32,d_ff=512,num_layers=4,num_heads=4,vocab_size=1000"
    ),
    Recipe("whisper-encoder", "encoder", "handmade:whisper_encoder", ("input_features=float32[1,80,400]",)),
    _image("vit", "vision-transformer", f"ViTModel?{_WIDTHS},image_size=96,patch_size=8"),
    _image("deit", "vision-transformer", f"DeiTModel?{_WIDTHS},image_size=96,patch_size=8"),
    _image(
        "mobilevit",
        "hybrid",
        "MobileViTModel?hidden_sizes=[48,64,80],neck_hidden_sizes=[16,16,24,32,40,48,160],image_size=96",
    ),
    _image("resnet", "convolutional", "ResNetModel?embedding_size=32,hidden_sizes=[64,128,256],depths=[2,2,2]"),
    _image("mobilenet", "convolutional", "MobileNetV2Model?depth_multiplier=0.5,image_size=96,tf_padding=False"),
    _image(
        "efficientnet",
        "convolutional",
        "EfficientNetModel?width_coefficient=0.5,depth_coefficient=0.5,hidden_dim=640,image_size=96",
    ),
    Recipe("lstm", "recurrent", "handmade:lstm", ("signal=float32[2,32,40]",)),
    Recipe("mlp", "mlp", "handmade:mlp", ("features=float32[2,64]",), {"features": {0: "batch"}}),
)
SETS: Mapping[str, Sequence[Recipe]] = {"small": SMALL}


def recipes(name: str) -> Sequence[Recipe]:
    """Return the recipes of a set.

    Raises:
        UsageError: there is no such set.
    """
    if name not in SETS:
        raise UsageError(f"there is no zoo {name!r}", hint=f"there is {', '.join(SETS)}")
    return SETS[name]


def _file_name(model: str) -> str:
    return f"{MODELS}/{model}.onnx"


class ZooExport(Experiment):
    """Exports the models of the zoo, in cells like every other experiment, before the study of them begins."""

    name = "export"
    key = _EXPORTER
    reads = ("seed",)

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._by_name = {recipe.name: recipe for recipe in recipes}

    def makes(self, subject: Subject) -> str:
        """Return the name of the exported model."""
        return _file_name(subject.name)

    def is_there(self, store: Store, subject: Subject, answer: Answer) -> bool:
        """Return whether the exported file still exists, unchanged."""
        return store.matches(self.makes(subject), Contents(answer["bytes"], answer["sha256"]))

    def subjects(self, store: Store) -> list[Subject]:
        """Return the subjects that will exist when all recipes are exported."""
        subjects: list[Subject] = []
        for recipe in self._by_name.values():
            name = _file_name(recipe.name)
            path = store.path(name)
            url = None if path is not None else f"{store.url}/{name}"
            subjects.append(Subject(recipe.name, path or Path(f"{recipe.name}.onnx"), recipe.family, url))
        return subjects

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Export the model to its file."""
        from sardonyx.records.input_specs import DynamicRequest, parse_inputs
        from sardonyx.verbs.export.export import export  # needs torch, as nothing else in a study does

        recipe = self._by_name[subject.name]
        source = recipe.source
        if source.startswith("handmade:"):
            source = source.replace("handmade", str(Path(__file__).with_name("handmade.py")), 1)
        record = export(
            source,
            parse_inputs(recipe.inputs),
            subject.path,
            exporter=_EXPORTER,
            dynamic=DynamicRequest(False, recipe.dynamic) if recipe.dynamic else None,
            seed=cell.options["seed"],
            threads=1,
            force=True,
        )
        written = Contents.of(subject.path)
        return {
            "bytes": written.size,
            "sha256": written.sha256,
            "nodes": record.counts.nodes,
            "parameters": record.module.parameters,
        }


ALL: tuple[Experiment, ...] = (
    Overview(),
    Attribution(),
    Order(),
    Correlation(),
    Tolerance(),
    Forensics(),
    ShapeChains(),
    Families(),
    ConvRelu(),
)


class Studied(Study, frozen=True):
    """A Study, and how much of it was computed by an earlier run."""

    reused: int = 0  # cells that an earlier run stored


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
    workers: int | None = None,
    cluster: str | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    memory: int | None = None,
    timing: bool = True,
    progress: Callable[[Status], object] | None = None,
) -> Studied:
    """Run experiments on any set of models, and store every finished cell in a folder.

    Args:
        models: ONNX files, folders of them, and URLs of either.
        output: the folder or URL of the study; with that of a stopped study, it continues.
        zoo: name of a built-in set of models, built from configs ("small").
        only: names of the experiments to run; None: all.
        skip: names of experiments not to run.
        target: the passes to study.
        seconds: time limit for the measurements of one timed cell.
        thorough: use more seeds, sizes and shuffles.
        seed: of all random numbers.
        threads: of the runtime in timed cells.
        workers: number of processes for cells that are not timed; None: the number of cores.
        cluster: a Dask cluster to run on instead: the address of a scheduler, a scheduler file, or `FILE.py:FUNCTION`.
        executor: any other executor to run on instead.
        timeout: seconds after which a cell fails; None: no limit.
        memory: bytes that one cell may use, and that cells running at once on this machine are estimated to use;
            None: no limit for one, and what is free for all.
        timing: compute timed cells too.
        progress: called with the status (done, failed, running, time left) when it changes, and every half second.

    Returns:
        Tables, findings, and failures.

    Raises:
        UsageError: there are no models, or an experiment does not exist.
        RuntimeFailure: no cell of any model could be computed.
        OutputError: the folder contains something else, or cannot be written.
    """
    if not models and zoo is None:
        raise UsageError("there is nothing to study", hint='give ONNX files or folders of them, or `zoo="small"`')
    check_choice("target", target, ("portable", "ort"))
    study_options = StudyOptions(target, seed, threads, seconds, thorough)
    chosen = select_experiments(ALL, only, skip)
    store = open_store(output)
    _check_folder(store)
    subjects = find_subjects(models, exclude=None if store.path(cells.FOLDER) is None else Path(store.url))
    zoo_export = ZooExport(recipes(zoo)) if zoo is not None else None
    if zoo_export is not None:
        require_installed("torch", "the models of a zoo need")
    limits = Limits(timeout, memory, code_hash())
    with contextlib.closing(open_engine(workers, memory, cluster, executor)) as engine:
        tracker = Tracker(progress, lambda data: store.write(STATUS, data), engine)
        runner = StudyRunner(store, code_hash(), study_options, engine, limits, tracker, timing)
        subjects += runner.export_zoo(zoo_export) if zoo_export is not None else []
        options = asdict(study_options) | {"zoo": zoo, "experiments": [experiment.name for experiment in chosen]}
        for name, count in Counter(subject.name for subject in subjects).items():
            if count > 1:
                raise UsageError(f"two models of the study are named {name}", hint="rename one of the files")
        try:
            return runner.run(subjects, chosen, options)
        finally:
            tracker.end()


def select_experiments(
    experiments: Sequence[Experiment], only: Iterable[str] | None = None, skip: Iterable[str] | None = None
) -> tuple[Experiment, ...]:
    """Return the selected experiments and those whose tables they read, in the order of the list.

    Raises:
        UsageError: there is no experiment of that name.
    """
    names = [experiment.name for experiment in experiments]
    for name in (*(only or ()), *(skip or ())):
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
            raise UsageError(f"there is no experiment {name!r}", hint=hint)
    selected = set(names if only is None else only)
    for experiment in reversed(experiments):  # an experiment comes after those it uses
        if experiment.name in selected:
            selected.update(experiment.uses)
    return tuple(experiment for experiment in experiments if experiment.name in selected - set(skip or ()))


class _PlannedCell(Struct):
    """A cell, and its outcome once there is one."""

    experiment: Experiment
    cell: Cell
    subject: Subject
    outcome: Outcome = _NOT_YET


class StudyRunner(Struct):
    """One run of a study in one store."""

    store: Store
    code: str  # a hash of the code that computes cells
    options: StudyOptions
    engine: Engine
    limits: Limits = Limits()
    tracker: Tracker = field(default_factory=Tracker)
    timing: bool = True
    reused: int = 0
    _cells: CellStore | None = None
    _digests: dict[str, str | None] = field(default_factory=lambda: {NO_MODEL.name: ""})  # None: it cannot be read
    _exports: list[_PlannedCell] = field(default_factory=list[_PlannedCell])

    @property
    def cells(self) -> CellStore:
        """The stored cells."""
        if self._cells is None:
            self._cells = CellStore(self.store, self.code)
        return self._cells

    def export_zoo(self, export: ZooExport) -> list[Subject]:
        """Export the models of a built-in set that are not in the store yet, and return all that could be exported."""
        for subject in export.subjects(self.store):
            self._digests[subject.name] = ""
            self._exports += [_PlannedCell(export, cell, subject) for cell in export.cells(subject, self.options)]
        self._compute(self._exports)
        return [planned.subject for planned in self._exports if planned.outcome.answer is not None]

    def run(self, subjects: Sequence[Subject], chosen: Sequence[Experiment], options: Mapping[str, Any]) -> Studied:
        """Compute the cells that are not stored, and build tables and findings from all of them."""
        self._digests |= {subject.name: digest(subject.url or os.fspath(subject.path)) for subject in subjects}
        pairs = [(one, subject) for one in chosen for subject in (subjects if one.of_models else (NO_MODEL,))]

        def planned(cells: Callable[[Experiment, Subject], Sequence[Cell]]) -> list[_PlannedCell]:
            every = (_PlannedCell(one, cell, subject) for one, subject in pairs for cell in cells(one, subject))
            return [each for each in every if self.timing or not each.cell.timed]

        plan = planned(lambda experiment, subject: experiment.cells(subject, self.options))
        self._compute([each for each in plan if not each.cell.timed])
        plan += planned(lambda one, subject: one.then(subject, _answers(plan, one, subject), self.options))
        self._compute([each for each in plan if each.outcome is _NOT_YET])
        cells = self._exports + plan
        failures = tuple(
            Failure(each.cell.experiment, each.cell.model, f"{each.cell.key}: {each.outcome.reason}")
            for each in cells
            if each.outcome.reason is not None
        )
        of_models = sum(each.subject is not NO_MODEL for each in cells)
        if of_models and sum(failure.model != NO_MODEL.name for failure in failures) == of_models:
            first = f"{failures[0].model}: {failures[0].reason}"
            raise RuntimeFailure(f"all {of_models} cells of the study failed, first {first}", hint=_ALL_FAILED)
        tables: dict[str, Table] = {}
        for experiment in chosen:
            made = experiment.tables(_answers(plan, experiment), self.options, tables)
            tables |= {table.name: table for table in made}
        seconds: dict[str, float] = defaultdict(float)
        for each in cells:
            seconds[each.cell.experiment] += each.outcome.seconds
        return Studied(
            environment=environment(),
            options=dict(options),
            models=tuple(subject.name for subject in subjects),
            tables=tuple(tables.values()),
            findings=tuple(finding for experiment in chosen for finding in experiment.findings(tables)),
            failures=failures,
            cells=len(cells),
            seconds={name: round(spent, 3) for name, spent in seconds.items()},
            machines=tuple(sorted({each.outcome.machine for each in cells if each.cell.timed} - {""})),
            reused=self.reused,
        )

    def _compute(self, plan: Sequence[_PlannedCell]) -> None:
        """Set the outcome of every cell: the stored one, or a computed one, which is stored at once."""
        self.cells.load((planned.cell, self._digests[planned.subject.name] or "") for planned in plan)
        tasks = [self._work(planned) for planned in plan]
        self.tracker.expect(len(tasks))
        reports = run_all(
            tasks, self.engine, self.limits, lambda index: self._stored(plan[index]), self.tracker.refresh
        )
        for report in reports:
            planned = plan[report.index]
            if report.outcome is not None:
                planned.outcome = report.outcome
                self.reused += report.found
                if not report.found:
                    self.cells.store(planned.cell, self._digests[planned.subject.name] or "", report.outcome)
            self.tracker.update(tasks[report.index].name, report)

    def _work(self, planned: _PlannedCell) -> CellWork:
        name = planned.experiment.makes(planned.subject)
        return CellWork(planned.experiment, planned.cell, planned.subject, None if name is None else (self.store, name))

    def _stored(self, planned: _PlannedCell) -> Outcome | None:
        here = machine() if isinstance(self.engine, LocalEngine) else None  # of others, the machine is not known before
        model = self._digests[planned.subject.name]
        outcome = None if model is None else self.cells.find(planned.cell, model, here)
        if outcome is None or not planned.experiment.is_there(self.store, planned.subject, outcome.answer or {}):
            return None
        return outcome


def _answers(plan: Iterable[_PlannedCell], experiment: Experiment, subject: Subject | None = None) -> list[CellAnswer]:
    return [
        CellAnswer(planned.cell, planned.subject, planned.outcome.answer)
        for planned in plan
        if planned.experiment is experiment and (subject is None or planned.subject is subject)
        if planned.outcome.answer is not None
    ]


def _check_folder(store: Store) -> None:
    """Raise an error if the folder contains something other than a study."""
    if store.path(cells.FOLDER) is None:
        return
    folder = Path(store.url)
    if folder.is_dir() and not (folder / cells.FOLDER).is_dir() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty and is not a study", hint="use a new folder with `output`")
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file", hint="use a new folder with `output`")


# The models of a study: ONNX files and folders of them become subjects with unique names.

_ALL_FAILED = "`sardonyx optimize` and `sardonyx export` show more about one model"
_FORMS = "give ONNX files or folders that contain some"


def find_subjects(sources: Iterable[str | Path], *, exclude: Path | None) -> list[Subject]:
    """Return the models in files and folders and at URLs, each file once; those of a folder are sorted by path.

    The folder of the study itself is excluded: its files are not its subjects.

    Raises:
        UsageError: a source does not exist, or contains no ONNX file.
    """
    paths: dict[Path, Path] = {}  # the path as given, by the resolved path
    given = list(sources)
    remote = find_sources(source for source in given if isinstance(source, str) and is_url(source))
    for source in (Path(source) for source in given if not (isinstance(source, str) and is_url(source))):
        models = [source] if source.is_file() else onnx_files(source, exclude)
        if not models:
            what = "contains no ONNX file" if source.is_dir() else "does not exist"
            raise UsageError(f"{source} {what}", hint=_FORMS)
        for path in models:
            paths.setdefault(path.resolve(), path)
    stems = Counter(path.stem for path in paths.values())
    return [
        Subject(path.stem if stems[path.stem] == 1 else os.fspath(path.with_suffix("")), path)
        for path in paths.values()
    ] + [Subject(source.name, Path(f"{Path(source.name).name}.onnx"), url=source.location) for source in remote]
