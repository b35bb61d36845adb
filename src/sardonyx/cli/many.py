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
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import typer
import typer.main
from msgspec.structs import replace

from sardonyx.cli.configuration import CODE
from sardonyx.cli.console import complain, live_table, note, put, style_for
from sardonyx.cli.gates import Gating, about_all
from sardonyx.cli.main import INTERRUPTED, load, run
from sardonyx.cli.options import parse_duration, parse_memory
from sardonyx.cli.parser import callback
from sardonyx.cli.verb import Given
from sardonyx.errors import GateNotMet, OutputError, RuntimeFailure, UsageError, VerificationFailed, install_hint
from sardonyx.fleet.cells import Cell, CellStore, stored_models
from sardonyx.fleet.engines import STATUS, Status, Tracker, open_engine, run_all
from sardonyx.fleet.sources import Source, digest, download, is_url
from sardonyx.fleet.storage import Contents, Store, open_store
from sardonyx.fleet.work import Answer, Limits, Needs, Outcome, Task, code_hash, estimated_memory
from sardonyx.records.base import Record, encode_json
from sardonyx.records.environment import environment
from sardonyx.records.reading import decode
from sardonyx.records.study import Fleet, ModelRow
from sardonyx.reporting.document import Document
from sardonyx.reporting.fleet import MAX_ROWS, fleet_document, fleet_sentence, numbers_of, tables
from sardonyx.reporting.formatting import printable_json
from sardonyx.reporting.writers import terminal

_SEVERITY = (0, GateNotMet.exit_code, VerificationFailed.exit_code, UsageError.exit_code, 1)  # the worst last
_FINISHED = (0, GateNotMet.exit_code)  # exit codes of models that have a result and whose gates were checked
_OWN_FILES = "cells/{}.json"  # of a command: the models whose files it may replace
_SUMMARY, _PAGE = "summary.json", "index.html"
_NO_PARQUET = f"there are no Parquet files, because pyarrow is not installed; {install_hint('fleet')}"
_CHANGED = "another process changed its record"
_COLOR = re.compile(r"\x1b\[[0-9;]*m")

# What the command for one model gets: the options that are given for all, and those on its line of a manifest.

_NOT_FOR_ONE = frozenset(
    (
        *("models", "reference", "candidate", "model", "source", "output", "out_dir", "workers", "cluster", "timeout"),
        *("memory", "keep_going", "allow_code", "force", "as_json", "quiet", "verbose", "debug", "fail_if", "baseline"),
        *("summary", "record", "run_folder", "svg"),
    )
)  # options of the command about many that the command about one does not get, from a manifest neither


def _words_of(context: typer.Context) -> tuple[str, ...]:
    """Return the options that were given on the command line and that the command for each model gets."""
    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params.get(name)
        if name in _NOT_FOR_ONE or value is None or value == parameter.default:
            continue
        if isinstance(value, bool):
            words.append(parameter.opts[-1] if value else parameter.secondary_opts[-1])
            continue
        for one in _listed(value):
            text = str(os.path.realpath(one) if isinstance(one, Path) else getattr(one, "value", one))
            words += (max(parameter.opts, key=len), text)
    return tuple(words)


def _listed(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else (value,)


def _check_manifests(context: typer.Context, sources: Iterable[Source], *, allow_code: bool) -> None:
    """Raise an error if a manifest sets where results go, or names code although that is not allowed.

    A manifest may come from somebody else, as models do.
    """
    for source in sources:
        if not source.line:
            continue
        given = _parsed(context, source.options)
        if source.export:
            command, app = load("export"), typer.Typer()
            assert command is not None, "a built-in command"
            app.command("export")(callback(command.verb))
            export: Any = typer.main.get_command(app)
            given += _parsed(typer.Context(export), source.export)
        code = [text for text in (source.location, source.candidate or "") if CODE.fullmatch(text)]
        for parameter, value in given:
            if parameter.name in _NOT_FOR_ONE:
                option = max(parameter.opts, key=len)
                hint = "give it to the command: lines have options that change the result of one model"
                raise UsageError(f"{source.line}: a manifest cannot set {option}", hint=hint)
            texts = map(str, _listed(value))
            code += [text for text in texts if parameter.name == "custom_ops" or CODE.fullmatch(text)]
        if code and not allow_code:
            hint = "add --allow-code if you trust everything that the manifest names"
            raise UsageError(f"{source.line}: {code[0]} is code, which would run here", hint=hint)


def _parsed(context: typer.Context, words: Sequence[str]) -> list[tuple[Any, Any]]:
    """Return the parameters that words of a command line set, with their values.

    Words that are not valid set nothing: the command for this model says why, before it does anything.
    """
    try:
        values, _, parameters = context.command.make_parser(context).parse_args(list(words))
    except typer.TyperException:
        return []
    pairs = ((parameter, values.get(str(parameter.name))) for parameter in parameters)
    return [(parameter, value) for parameter, value in pairs if value is not None and value != ()]


# One model.


class CommandWork(Task):
    """The command for one model.

    Without a store for the results, the record is part of the answer, and nothing is written. `words` are the options
    of the command, and `folder` is the store as the user named it.
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
        debug: bool,
    ) -> None:
        self._verb, self.source, self._store, self._writes = verb, source, store, writes
        self._debug = ["--debug"] if debug else []
        self._folder = folder.rstrip("/")
        self._model = f"{Path(source.name).name}.onnx"  # the name of its file in a folder here
        self.words = (*words, *source.options)
        is_here = os.path.isfile(source.location)  # otherwise its size is not known yet
        self.name, self.needs = source.name, Needs(estimated_memory(Path(source.location)) if is_here else 0)

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
        source = self.source
        if source.problem:
            return _answer(1, f"error: {source.problem}")
        shown: dict[str, str] = {}  # what messages and the record name instead of files of this folder
        paths: list[str] = []
        parts = [("source", source.location, source.text)]
        parts += [("candidate", source.candidate, source.candidate_text)] if source.candidate is not None else []
        for part, location, text in parts:
            paths.append(str(folder / part / location.rpartition("/")[2]) if is_url(location) else location)
            shown[paths[-1]] = text
        if source.is_built:
            built = folder / "source" / self._model
            built.parent.mkdir()
            shown[str(built)] = source.text
            answer, _ = _run(
                ["export", source.location, "-o", str(built), "--json", *self._debug, *source.export], shown
            )
            if answer["code"]:
                return answer
            paths[0] = str(built)
        draft = folder / "result" / self._model
        if self._writes:
            shown[str(draft)] = f"{self._folder}/{self.name}.onnx"
        output = ["-o", str(draft)] if self._writes else []
        answer, record = _run([self._verb, *paths, *output, "--json", *self._debug, *self.words], shown)
        if record:
            answer["numbers"] = numbers_of(decode(record, self.name))
            if self._store is None:
                answer["record"] = msgspec.json.decode(record)
            else:
                (folder / "record.json").write_text(record, encoding="utf-8")
                results = self._results(folder)
                files = (folder / "record.json", *(folder / "result" / Path(name).name for name in results))
                answer["files"], answer["contents"] = [f"{self.name}.json", *results], list(map(Contents.of, files))
        return answer

    def _results(self, folder: Path) -> list[str]:
        """Return the names of the model and its weights in the store, the model last."""
        parent = str(Path(self.name).parent)
        names = sorted(
            (path.name for path in (folder / "result").iterdir()), key=lambda name: (name == self._model, name)
        )
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


def _run(words: Sequence[str], shown: dict[str, str]) -> tuple[Answer, str]:
    """Run a command line in this process; return its answer, and what it printed, which names the files of the user."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words, configured=False)  # the words say what a file with defaults set
        if code == INTERRUPTED:  # not by the user: Ctrl-C does not reach this process
            code = 1
            complain(RuntimeFailure("the model's code raised KeyboardInterrupt"))
    printed, messages = out.getvalue(), err.getvalue()
    for path, text in sorted(shown.items(), key=lambda entry: -len(entry[0])):
        old, new = (encode_json(each).decode()[1:-1] for each in (path, text))  # as they are in a JSON string
        printed, messages = printed.replace(old, new), messages.replace(path, text)
    sys.stderr.write(messages)
    return _answer(code, messages), printed.strip()


def _answer(code: int, messages: str) -> Answer:
    """Return the exit code, the first error and the hint after it."""
    lines = iter(_COLOR.sub("", messages).splitlines())
    error, hint = (
        next((line.removeprefix(head) for line in lines if line.startswith(head)), "") for head in ("error: ", "hint: ")
    )
    return {"code": code, "error": error, "hint": hint or None, "numbers": {}}


# All models.


def run_many(
    given: Given,
    sources: Sequence[Source],
    gating: Gating,
    sentence: Callable[[Any, Source], str],
    document: Callable[[Any, Source], Document],
    *,
    writes: bool,
) -> int:
    """Run a command about many models, write and print the summary, and return the exit code of the worst.

    `gating` is about each model; its record is shown as a sentence, or as a document in verbose output.

    Raises:
        UsageError: a result would replace a source, or a manifest asks for what it may not.
        OutputError: a file exists that the command has not written.
    """
    given.reject("workers", "cluster")
    _check_manifests(given.context, sources, allow_code=given.allow_code)
    gating_all = Gating.of("fleet", about_all(given.fail_if), None, None)
    store = None if given.out_dir is None else open_store(given.out_dir)
    results = _Results(given, sources, store, writes=writes)
    if store is not None:
        results.check_destinations(store)
    start = time.monotonic()
    try:
        with live_table(not given.quiet) as report:
            results.run(report)
    except KeyboardInterrupt:
        if given.out_dir is not None:
            note(f"finished models are in {given.out_dir}: repeat the command to continue")
        raise
    fleet, codes = results.fleet(time.monotonic() - start), list[int]()
    for index, row in enumerate(fleet.models):
        record = results.record(index) if gating.kind is not None else None
        if record is None:
            codes.append(row.code)
        else:
            line = sentence(record, sources[index])
            codes.append(gating.outcome(record, line, failed=row.code, label=f"{row.source}: "))
    rows = (replace(row, code=code) for row, code in zip(fleet.models, codes, strict=True))
    fleet = replace(fleet, models=tuple(rows))
    if store is not None:
        fleet = _write_summary(fleet, store)
    results.show(fleet, gating, document)
    codes.append(gating_all.outcome(fleet, fleet_sentence(fleet)))
    return max(codes, key=lambda code: _SEVERITY.index(code) if code in _SEVERITY else len(_SEVERITY))


class _Results:
    """The outcome of every model: found in the folder, or computed now and stored there."""

    def __init__(self, given: Given, sources: Sequence[Source], store: Store | None, *, writes: bool) -> None:
        self._given, self._sources, self._store, self._writes = given, sources, store, writes
        self._verb = str(given.context.command.name)
        self._words = _words_of(given.context)  # that the command for every model gets
        folder, debug = given.out_dir or "", given.debug
        self._works = [
            CommandWork(self._verb, source, self._words, store, folder, writes=writes, debug=debug)
            for source in sources
        ]
        self._outcomes: dict[int, tuple[Outcome, bool]] = {}
        self._cells: CellStore | None = None
        self._digests: dict[int, str | None] = {}
        self._files: dict[str, str] = {}  # hashes of the files that options name

    def check_destinations(self, store: Store) -> None:
        """Raise an error if a result would replace a source, or a file that the command has not written."""
        sources = [source for source in self._sources if not source.problem]
        for source in sources:
            target = store.path(f"{source.name}.onnx")
            if self._writes and target is not None and os.path.realpath(target) == os.path.realpath(source.location):
                hint = "name another folder; no input is overwritten"
                raise UsageError(f"--out-dir is the folder of {source.text}", hint=hint)
        own_files = _OWN_FILES.format(self._verb)
        known = store.read(own_files)
        names = {source.name for source in sources}
        try:
            own = set(msgspec.json.decode(known, type=list[str])) if known is not None else set[str]()
        except (msgspec.MsgspecError, UnicodeDecodeError):  # damaged
            own = stored_models(store, self._verb, names)
        if not self._given.force:
            taken = sorted({f"{name}{end}" for name in names - own for end in (".onnx", ".json")} & set(store.names()))
            if taken:
                hint = "choose another folder, or overwrite it with --force"
                raise OutputError(f"{self._given.out_dir}/{taken[0]} exists", hint=hint)
        if (encoded := msgspec.json.encode(sorted(own | names))) != known:
            store.write(own_files, encoded)

    def run(self, report: Callable[[Status], object] | None) -> None:
        """Run all models; without `keep_going`, until one fails."""
        options, store = self._given, self._store
        memory = parse_memory(options.memory)
        engine = open_engine(options.workers, memory, options.cluster)
        if engine.address:
            note(f"dashboard: {engine.address}")
        tracker = Tracker(report, store and (lambda data: store.write(STATUS, data)), engine)
        tracker.expect(len(self._works))
        limits = Limits(options.timeout and parse_duration(options.timeout), memory, code_hash())
        if store is not None:
            self._cells = CellStore(store, code_hash())
            self._cells.load((self._cell(index), self._digest(index) or "") for index in range(len(self._works)))
        with contextlib.closing(engine):
            try:
                for one in run_all(self._works, engine, limits, self._find, tracker.refresh):
                    outcome = one.outcome
                    if outcome is not None and (answer := outcome.answer) and answer["code"] not in _FINISHED:
                        outcome = replace(outcome, reason=answer["error"] or f"exit code {answer['code']}")
                    tracker.update(self._works[one.index].name, replace(one, outcome=outcome))
                    if outcome is not None:
                        self._keep(one.index, outcome, found=one.found)
                        if outcome.reason is not None and not options.keep_going:
                            break
            finally:
                tracker.end()

    def _keep(self, index: int, outcome: Outcome, *, found: bool) -> None:
        self._outcomes[index] = outcome, found
        if self._given.debug and outcome.log:
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
        return Cell(self._verb, source.name, "", plain)

    def _digest(self, index: int) -> str | None:
        """Return a hash of the bytes of a model, computed when it is needed first; None if it cannot be read."""
        if index not in self._digests:
            source = self._sources[index]
            parts = [digest(location) for location in filter(None, (source.location, source.candidate))]
            self._digests[index] = None if None in parts else "+".join(filter(None, parts))
        return self._digests[index]

    def fleet(self, seconds: float) -> Fleet:
        machines = list(dict.fromkeys(outcome.machine for outcome, _ in self._outcomes.values() if outcome.machine))
        return Fleet(
            command=self._verb,
            options=self._words,
            environment=environment(),
            folder=self._given.out_dir,
            machines=tuple(machines),
            models=tuple(self._row(index, machines) for index in range(len(self._works))),
            seconds=round(seconds, 3),
        )

    def _row(self, index: int, machines: Sequence[str]) -> ModelRow:
        source = self._sources[index]
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
            self._works[index].needs.memory,
            outcome.attempts,
            machines.index(outcome.machine) if outcome.machine else None,
            tuple(answer.get("files", ())),
            answer.get("numbers", {}),
        )

    def record(self, index: int) -> Record | None:
        """Return the record of a model; None if it has none."""
        data = self._encoded(index)
        return None if data is None else decode(data, self._sources[index].name)

    def _encoded(self, index: int) -> bytes | None:
        answer = (self._outcomes[index][0].answer if index in self._outcomes else None) or {}
        if not answer.get("numbers"):
            return None
        if self._store is None:
            return msgspec.json.encode(answer["record"])
        name = f"{self._sources[index].name}.json"
        data = self._store.read(name)
        written = _contents(answer)[name].sha256
        return data if data is not None and hashlib.sha256(data).hexdigest() == written else None

    def show(self, fleet: Fleet, gating: Gating, shown: Callable[[Any, Source], Document]) -> None:
        """Print the table, or a JSON list, and the errors."""
        style, options, folder = style_for(sys.stdout), self._given, (fleet.folder or "").rstrip("/")
        where = "" if fleet.folder is None else f"results in {fleet.folder} (open {folder}/{_PAGE})"
        document = fleet_document(fleet, where=where)
        if options.as_json:
            put("[")
            for index, row in enumerate(fleet.models):
                put(("," if index else "") + printable_json(self._entry(index, row, gating)))
            put("]\n")
        elif options.quiet:
            put(terminal.sentence(document, style))
        else:
            for index, source in enumerate(self._sources if options.verbose else ()):
                if (record := self.record(index)) is not None:
                    put(terminal.write(shown(record, source), style) + "\n")
            put(terminal.write(document, style))
        for text in fleet.notes:
            note(f"note: {text}")
        if len(fleet.models) > MAX_ROWS:  # the table has no row for each
            failed = sum(row.status == "failed" for row in fleet.models)
            lists = f"{folder}/tables/failures.csv lists them" if folder else None
            if failed:
                complain(RuntimeFailure(f"{failed} of {len(fleet.models)} models failed", hint=lists))
            return
        for row in fleet.models:
            if row.reason:
                named = row.source in row.reason or row.name in row.reason
                complain(RuntimeFailure(row.reason if named else f"{row.source}: {row.reason}", hint=row.hint))

    def _entry(self, index: int, row: ModelRow, gating: Gating) -> bytes:
        """Return the record of a model with its gates, or an object with the path and the error of one that failed."""
        data = self._encoded(index)
        if data is not None:
            checked = gating.gates and row.code in _FINISHED
            return gating.with_results(data, self.record(index)) if checked else data
        why = row.reason or (_CHANGED if row.has_result else "")
        return msgspec.json.encode({"path": row.source, "error": why, "hint": row.hint, "exit_code": row.code})


def _contents(answer: Answer) -> dict[str, Contents]:
    """Return what the files of a result contained when they were written, by name."""
    return dict(zip(answer.get("files", ()), msgspec.convert(answer.get("contents", ()), list[Contents]), strict=True))


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
    for name, data in {**files, _SUMMARY: fleet.to_json() + b"\n", _PAGE: page}.items():
        store.write(name, data)
    return fleet
