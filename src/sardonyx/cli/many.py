"""Many models in one command: each is the command for this model alone, in a child process here or on a cluster.

Results go to one folder: `NAME.onnx`, `NAME.json` with the record, and a summary of all models. A model that an earlier
run of the same command has finished is not computed again, so that a command that was stopped continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.cli.console import complain, live_table, note, put, style_for
from sardonyx.cli.gates import Gating, about_all
from sardonyx.cli.main import INTERRUPTED, run
from sardonyx.cli.manifest import check_manifests, words_of
from sardonyx.cli.options import parse_duration, parse_memory
from sardonyx.cli.verb import Given
from sardonyx.errors import GateNotMet, OutputError, RuntimeFailure, UsageError, VerificationFailed, install_hint
from sardonyx.fleet.cells import Cell, CellStore, stored_models
from sardonyx.fleet.engines import STATUS, LocalEngine, Status, Tracker, connect, run_all
from sardonyx.fleet.sources import Source, digest, download, is_url
from sardonyx.fleet.storage import Contents, Store, open_store
from sardonyx.fleet.work import Answer, Limits, Needs, Outcome, Work, code_hash, estimated_memory
from sardonyx.records.base import Record, encode_json
from sardonyx.records.environment import environment
from sardonyx.records.reading import decode
from sardonyx.records.study import Fleet, ModelRow
from sardonyx.reporting.document import Document
from sardonyx.reporting.fleet import MOST_ROWS, fleet_document, fleet_sentence, numbers_of, tables
from sardonyx.reporting.formatting import printable_json
from sardonyx.reporting.writers import terminal

SEVERITY = (0, GateNotMet.exit_code, VerificationFailed.exit_code, UsageError.exit_code, 1)  # the worst last
_FINISHED = (0, GateNotMet.exit_code)  # exit codes of models that have a result
_OWN_FILES = "cells/{}.json"  # of a command: the models whose files it may replace
SUMMARY, PAGE = "summary.json", "index.html"
_GATED = (0, GateNotMet.exit_code)  # of models whose gates were checked
_NO_PARQUET = f"there are no Parquet files, because pyarrow is not installed; {install_hint('fleet')}"
_WEIGHTS = ("", ".data", "_data")  # ends of the names of a model and of the usual files with its weights
_CHANGED = "another process changed its record"
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class Shown(Struct, frozen=True):
    """How the record of one model is shown."""

    sentence: Callable[[Any, Source], str]
    document: Callable[[Any, Source], Document]  # the whole answer, for verbose output


class Job(Struct, frozen=True):
    """A command about many models."""

    given: Given
    sources: Sequence[Source]
    words: tuple[str, ...]  # options that the command for every model gets
    writes: bool  # models
    gating: Gating  # about each model
    shown: Shown

    @property
    def verb(self) -> str:
        """Return the name of the command."""
        return str(self.given.context.command.name)


# One model.


class CommandWork(Work):
    """The command for one model.

    Args:
        verb: the command.
        source: the model.
        words: options of the command.
        store: of the results; None: the record is part of the answer, and nothing is written.
        folder: the store as the user named it.
        writes: whether the command writes a model.
        debug: whether the traceback of a failure is printed.
    """

    def __init__(
        self,
        verb: str,
        source: Source,
        words: tuple[str, ...],
        store: Store | None,
        folder: str,
        *,
        writes: bool,
        debug: bool = False,
    ) -> None:
        self._verb, self.source, self._store, self._writes = verb, source, store, writes
        self._debug = ["--debug"] if debug else []
        self._folder = folder.rstrip("/")
        self.words = (*words, *source.options)
        self.name, self.needs = source.name, Needs(memory=_memory(source))

    @contextlib.contextmanager
    def scratch(self) -> Generator[Path]:
        """Provide a folder beside the results if that is a local disk, so that files are only renamed."""
        with super().scratch() if self._store is None else self._store.scratch() as folder:
            yield folder

    def fetch(self, folder: Path) -> None:
        """Copy models at URLs, with their weights."""
        (folder / "result").mkdir()
        for part, location in (("source", self.source.location), ("candidate", self.source.candidate or "")):
            if is_url(location):
                download(location, folder / part)

    def compute(self, folder: Path) -> Answer:
        """Run the command; its failure is part of the answer, as is its exit code."""
        if self.source.problem:
            return _Done(1, "", f"error: {self.source.problem}").answer()
        shown: dict[str, str] = {}  # what messages and the record name instead of files of this folder
        sources = [_local(self.source.location, folder / "source", shown, self.source.text)]
        if self.source.candidate is not None:
            sources.append(_local(self.source.candidate, folder / "candidate", shown, self.source.candidate_text))
        if self.source.is_built:
            built = folder / "source" / f"{Path(self.name).name}.onnx"
            built.parent.mkdir()
            shown[str(built)] = self.source.text
            done = _run(
                ["export", self.source.location, "-o", str(built), "--json", *self._debug, *self.source.export], shown
            )
            if done.code:
                return done.answer()
            sources = [str(built), *sources[1:]]
        draft = folder / "result" / f"{Path(self.name).name}.onnx"
        if self._writes:
            shown[str(draft)] = f"{self._folder}/{self.name}.onnx"
        output = ["-o", str(draft)] if self._writes else []
        done = _run([self._verb, *sources, *output, "--json", *self._debug, *self.words], shown)
        answer = done.answer()
        if done.out:
            record = decode(done.out, self.name)
            answer["numbers"] = numbers_of(record)
            if self._store is None:
                answer["record"] = msgspec.json.decode(done.out)
            else:
                (folder / "record.json").write_text(done.out, encoding="utf-8")
                answer["files"] = [f"{self.name}.json", *self._results(folder)]
                paths = (folder / "record.json", *(folder / "result" / Path(name).name for name in answer["files"][1:]))
                answer["contents"] = list(map(Contents.of, paths))
        return answer

    def _results(self, folder: Path) -> list[str]:
        """Return the names of the model and its weights in the store, the model last."""
        parent, model = str(Path(self.name).parent), f"{Path(self.name).name}.onnx"
        names = sorted((path.name for path in (folder / "result").iterdir()), key=lambda name: (name == model, name))
        return [name if parent == "." else f"{parent}/{name}" for name in names]

    def publish(self, folder: Path, answer: Answer) -> None:
        """Move the model and its record to the store, weights before the model that names them."""
        if self._store is None or "files" not in answer:
            return
        results = self._results(folder)
        if len(results) > 1:
            self._store.remove(results[-1])  # an earlier model must not be read with these weights
        for name in results:
            self._store.upload(folder / "result" / Path(name).name, name)
        self._store.upload(folder / "record.json", f"{self.name}.json")


def _local(location: str, folder: Path, shown: dict[str, str], text: str) -> str:
    """Return the path of a model, and note how it is shown."""
    path = str(folder / location.rpartition("/")[2]) if is_url(location) else location
    shown[path] = text
    return path


class _Done(Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    def answer(self) -> Answer:
        """Return the exit code, the first error and the hint after it."""
        lines = iter([_COLOR.sub("", line) for line in self.err.splitlines()])
        error = next((line for line in lines if line.startswith("error: ")), "")
        hint = next((line for line in lines if line.startswith("hint: ")), "")
        return {
            "code": self.code,
            "error": error.removeprefix("error: "),
            "hint": hint.removeprefix("hint: ") or None,
            "numbers": {},
        }


def _run(words: Sequence[str], shown: dict[str, str]) -> _Done:
    """Run a command line in this process; what it prints names the files of the user."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words, configured=False)  # the words say what a file with defaults set
        if code == INTERRUPTED:  # not by the user: Ctrl-C does not reach this process
            code = 1
            complain(RuntimeFailure("the model's code raised KeyboardInterrupt"))
    texts = [out.getvalue(), err.getvalue()]
    for path, text in sorted(shown.items(), key=lambda entry: -len(entry[0])):
        texts[0] = texts[0].replace(_quoted(path), _quoted(text))
        texts[1] = texts[1].replace(path, text)
    sys.stderr.write(texts[1])
    return _Done(code, texts[0].strip(), texts[1])


def _quoted(text: str) -> str:
    """Return a text as it is inside a JSON string."""
    return encode_json(text).decode()[1:-1]


def _memory(source: Source) -> int:
    """Return the estimated peak in bytes; 0 if the size of the model is not known yet."""
    sizes = [os.path.getsize(path) for end in _WEIGHTS if os.path.isfile(path := source.location + end)]
    return estimated_memory(sum(sizes)) if sizes else 0


# All models.


def run_many(given: Given, sources: Sequence[Source], gating: Gating, shown: Shown, *, writes: bool) -> int:
    """Run a command about many models, write and print the summary, and return the exit code of the worst.

    Args:
        given: the options of the command.
        sources: the models.
        gating: the gates for each model.
        shown: how its record is shown.
        writes: whether the command writes models.

    Raises:
        UsageError: a result would replace a source, or a manifest asks for what it may not.
        OutputError: a file exists that the command has not written.
    """
    given.reject("workers", "cluster")
    check_manifests(given.context, sources, allow_code=given.allow_code)
    gating_all = Gating.of("fleet", about_all(given.fail_if), None, None)
    job = Job(given, sources, words_of(given.context), writes, gating, shown)
    store = None if given.out_dir is None else open_store(given.out_dir)
    if store is not None:
        _check_destinations(job, store)
    start = time.monotonic()
    results = _Results(job, store)
    try:
        with live_table(not given.quiet) as report:
            results.run(report)
    except KeyboardInterrupt:
        if given.out_dir is not None:
            note(f"finished models are in {given.out_dir}: repeat the command to continue")
        raise
    fleet = results.fleet(time.monotonic() - start)
    fleet = replace(fleet, models=tuple(replace(row, code=_gated(job, row, results)) for row in fleet.models))
    if store is not None:
        fleet = _write_summary(fleet, store)
    _show(job, fleet, results)
    code = max((row.code for row in fleet.models), key=_severity)
    return max(code, gating_all.outcome(fleet, fleet_sentence(fleet)), key=_severity)


def _severity(code: int) -> int:
    return SEVERITY.index(code) if code in SEVERITY else len(SEVERITY)


def _gated(job: Job, row: ModelRow, results: _Results) -> int:
    """Return the exit code of a model after its gates were checked."""
    record = results.record(row) if job.gating.kind is not None else None
    if record is None:
        return row.code
    sentence = job.shown.sentence(record, results.source(row))
    return job.gating.outcome(record, sentence, failed=row.code, label=f"{row.source}: ")


def _check_destinations(job: Job, store: Store) -> None:
    """Raise an error if a result would replace a source, or a file that the command has not written."""
    sources = [source for source in job.sources if not source.problem]
    for source in sources:
        target = store.path(f"{source.name}.onnx")
        if job.writes and target is not None and os.path.realpath(target) == os.path.realpath(source.location):
            hint = "name another folder; no input is overwritten"
            raise UsageError(f"--out-dir is the folder of {source.text}", hint=hint)
    own_files = _OWN_FILES.format(job.verb)
    known = store.read(own_files)
    names = {source.name for source in sources}
    own = _own_models(store, job.verb, known, names)
    if not job.given.force:
        taken = sorted({f"{name}{end}" for name in names - own for end in (".onnx", ".json")} & set(store.names()))
        if taken:
            hint = "choose another folder, or overwrite it with --force"
            raise OutputError(f"{job.given.out_dir}/{taken[0]} exists", hint=hint)
    if (encoded := msgspec.json.encode(sorted(own | names))) != known:
        store.write(own_files, encoded)


def _own_models(store: Store, verb: str, known: bytes | None, names: set[str]) -> set[str]:
    """Return the models of earlier runs; if the list of them is damaged, which of these have a stored cell."""
    if known is None:
        return set()
    try:
        return set(msgspec.json.decode(known, type=list[str]))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return stored_models(store, verb, names)


class _Results:
    """The outcome of every model: found in the folder, or computed now and stored there."""

    def __init__(self, job: Job, store: Store | None) -> None:
        self._job, self._store = job, store
        folder, debug = job.given.out_dir or "", job.given.debug
        self._works = [
            CommandWork(job.verb, source, job.words, store, folder, writes=job.writes, debug=debug)
            for source in job.sources
        ]
        self._places = {source.name: place for place, source in enumerate(job.sources)}
        self._outcomes: dict[int, tuple[Outcome, bool]] = {}
        self._cells = None if store is None else CellStore(store, code_hash())
        self._digests: dict[int, str | None] = {}
        self._files: dict[str, str] = {}  # hashes of the files that options name

    def run(self, report: Callable[[Status], object] | None) -> None:
        """Run all models; without `keep_going`, until one fails."""
        options = self._job.given
        memory = parse_memory(options.memory)
        engine = LocalEngine(options.workers, memory) if options.cluster is None else connect(options.cluster)
        if engine.address:
            note(f"dashboard: {engine.address}")
        store = self._store
        tracker = Tracker(report, store and (lambda data: store.write(STATUS, data)), engine)
        tracker.expect(len(self._works))
        limits = Limits(options.timeout and parse_duration(options.timeout), memory, code_hash())
        if self._cells is not None:
            self._cells.load((self._cell(index), self._digest(index) or "") for index in range(len(self._works)))
        with contextlib.closing(engine):
            try:
                for one in run_all(self._works, engine, limits, self._find, tracker.refresh):
                    if one.outcome is not None:
                        one = replace(one, outcome=_with_reason(one.outcome))
                    tracker.update(self._works[one.index].name, one)
                    if one.outcome is not None:
                        self._keep(one.index, one.outcome, found=one.found)
                        if one.outcome.reason is not None and not options.keep_going:
                            break
            finally:
                tracker.end()

    def _keep(self, index: int, outcome: Outcome, *, found: bool) -> None:
        self._outcomes[index] = outcome, found
        if self._job.given.debug and outcome.log:
            note(outcome.log.rstrip())
        if self._cells is not None and not found:
            stored = outcome if outcome.reason is None else replace(outcome, answer=None)  # so that it is tried again
            self._cells.store(self._cell(index), self._digest(index) or "", stored)

    def _find(self, index: int) -> Outcome | None:
        """Return the stored outcome of a model that is done and whose files are as they were written."""
        model = self._digest(index)
        if self._cells is None or self._store is None or model is None:
            return None
        outcome = self._cells.find(self._cell(index), model)
        if outcome is None or outcome.answer is None:
            return None
        intact = all(self._store.matches(name, contents) for name, contents in _contents(outcome.answer).items())
        return outcome if intact else None

    def _cell(self, index: int) -> Cell:
        work = self._works[index]
        source = work.source
        options = {"name": source.name, "source": source.text, "words": work.words, "export": source.export}
        for word in work.words:
            if word not in self._files:
                self._files[word] = (digest(word) if os.path.isfile(word) else None) or ""
        files = {word: self._files[word] for word in work.words if self._files[word]}
        plain = msgspec.json.decode(encode_json(options | {"files": files}))  # names of files may not be UTF-8
        return Cell(self._job.verb, source.name, "", plain)

    def _digest(self, index: int) -> str | None:
        """Return a hash of the bytes of a model, computed when it is needed first; None if it cannot be read."""
        if index not in self._digests:
            source = self._works[index].source
            parts = [digest(location) for location in filter(None, (source.location, source.candidate))]
            self._digests[index] = None if None in parts else "+".join(filter(None, parts))
        return self._digests[index]

    def fleet(self, seconds: float) -> Fleet:
        """Return the summary."""
        machines = list(dict.fromkeys(outcome.machine for outcome, _ in self._outcomes.values() if outcome.machine))
        job = self._job
        return Fleet(
            command=job.verb,
            options=job.words,
            environment=environment(),
            folder=job.given.out_dir,
            machines=tuple(machines),
            models=tuple(self._row(index, machines) for index in range(len(self._works))),
            seconds=round(seconds, 3),
        )

    def _row(self, index: int, machines: Sequence[str]) -> ModelRow:
        work = self._works[index]
        source = work.source
        if index not in self._outcomes:
            return ModelRow(source.name, source.text, "not run")
        outcome, found = self._outcomes[index]
        answer: Answer = outcome.answer or {"code": 1}
        return ModelRow(
            source.name,
            source.text,
            "failed" if outcome.reason is not None else "reused" if found else "done",
            answer["code"],
            outcome.reason or answer.get("error", ""),
            answer.get("hint"),
            round(outcome.seconds, 3),
            outcome.peak,
            work.needs.memory,
            outcome.attempts,
            machines.index(outcome.machine) if outcome.machine else None,
            tuple(answer.get("files", ())),
            answer.get("numbers", {}),
        )

    def source(self, row: ModelRow) -> Source:
        """Return the model of a row."""
        return self._job.sources[self._places[row.name]]

    def record(self, row: ModelRow) -> Record | None:
        """Return the record of a model; None if it has none."""
        data = self.encoded(row)
        return None if data is None else decode(data, row.name)

    def encoded(self, row: ModelRow) -> bytes | None:
        """Return the record of a model as JSON; None if it has none."""
        if not row.has_result:
            return None
        answer = self._outcomes[self._places[row.name]][0].answer or {}
        if self._store is None:
            return msgspec.json.encode(answer["record"])
        name = f"{row.name}.json"
        data = self._store.read(name)
        written = _contents(answer)[name].sha256
        return data if data is not None and hashlib.sha256(data).hexdigest() == written else None


def _contents(answer: Answer) -> dict[str, Contents]:
    """Return what the files of a result contained when they were written, by name."""
    return dict(zip(answer.get("files", ()), msgspec.convert(answer.get("contents", ()), list[Contents]), strict=True))


def _with_reason(outcome: Outcome) -> Outcome:
    """Return an outcome with the error of the command as its reason, if the command failed."""
    answer = outcome.answer
    if answer is None or answer["code"] in _FINISHED:
        return outcome
    return replace(outcome, reason=answer["error"] or f"exit code {answer['code']}")


# The summary.


def _write_summary(fleet: Fleet, store: Store) -> Fleet:
    """Write the record of all models, tables and a page to the folder; return the record with notes."""
    from sardonyx.reporting.page import render_fleet
    from sardonyx.reporting.writers.tables import has_parquet, write_csv, write_parquet

    if not has_parquet():
        fleet = replace(fleet, notes=(*fleet.notes, _NO_PARQUET))
    files: dict[str, bytes] = {}
    for table in tables(fleet):
        files[f"tables/{table.name}.csv"] = write_csv(table.columns, table.rows).encode()
        if has_parquet():
            files[f"tables/{table.name}.parquet"] = write_parquet(table.columns, table.rows)
    page = render_fleet(fleet, tuple(files)).encode()
    for name, data in {**files, SUMMARY: fleet.to_json() + b"\n", PAGE: page}.items():
        store.write(name, data)
    return fleet


# What is printed.


def _show(job: Job, fleet: Fleet, results: _Results) -> None:
    """Print the table, or a JSON list, and the errors."""
    style, options = style_for(sys.stdout), job.given
    folder = options.out_dir
    where = "" if folder is None else f"results in {folder} (open {folder.rstrip('/')}/{PAGE})"
    document = fleet_document(fleet, where=where)
    if options.as_json:
        put("[")
        for place, row in enumerate(fleet.models):
            put(("," if place else "") + printable_json(_entry(row, results, job.gating)))
        put("]\n")
    elif options.quiet:
        put(terminal.sentence(document, style))
    else:
        for row in fleet.models if options.verbose else ():
            if (record := results.record(row)) is not None:
                put(terminal.write(job.shown.document(record, results.source(row)), style) + "\n")
        put(terminal.write(document, style))
    for text in fleet.notes:
        note(f"note: {text}")
    _complain(fleet)


def _complain(fleet: Fleet) -> None:
    """Print the errors of some models, or how many failed if the table has their reasons."""
    if len(fleet.models) > MOST_ROWS:
        failed = sum(row.status == "failed" for row in fleet.models)
        lists = None if fleet.folder is None else f"{fleet.folder.rstrip('/')}/tables/failures.csv lists them"
        if failed:
            complain(RuntimeFailure(f"{failed} of {len(fleet.models)} models failed", hint=lists))
        return
    for row in fleet.models:
        if row.reason:
            named = row.source in row.reason or row.name in row.reason
            complain(RuntimeFailure(row.reason if named else f"{row.source}: {row.reason}", hint=row.hint))


def _entry(row: ModelRow, results: _Results, gating: Gating) -> bytes:
    """Return the record of a model with its gates, or an object with the path and the error of one that failed."""
    data = results.encoded(row)
    if data is not None:
        return gating.with_results(data, results.record(row)) if gating.gates and row.code in _GATED else data
    why = row.reason or (_CHANGED if row.has_result else "")
    return msgspec.json.encode({"path": row.source, "error": why, "hint": row.hint, "exit_code": row.code})
