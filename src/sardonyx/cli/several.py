"""Several models in one command: where each result goes, one table with a row for each, and one exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sardonyx.cli import options
from sardonyx.cli.console import Progress, complain, note, progress, put, put_json, style_for, with_flags
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.cli.streams import STREAM
from sardonyx.errors import GateNotMet, OutputError, SardonyxError, UsageError, VerificationFailed
from sardonyx.records.base import Record
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.several import ModelResult
from sardonyx.reporting.writers import terminal

SEVERITY = (0, GateNotMet.exit_code, VerificationFailed.exit_code, UsageError.exit_code, 1)  # the worst last


class Planned(msgspec.Struct, frozen=True):
    """A model and where its result goes."""

    source: Path
    destination: Path


def plan(models: Sequence[Path], output: Path | None, folder: Path | None, *, writes: bool) -> list[Planned]:
    """Return each model with the file to write.

    Of two names without --output and --out-dir, the second is the output if there is no such file. If there is, it
    could be a second model, so the command does nothing. An input is never an output.

    Raises:
        UsageError: It is not clear what is to be written where.
    """
    reject_both("--output", output is not None, "--out-dir", folder is not None)
    if len(models) == 2 and output is None and folder is None and writes:
        models, output = _with_output(*models)
    if len(models) == 1:
        if models[0] != STREAM:
            check_readable(models[0])
        return [Planned(models[0], _destination(models[0], output, folder))]
    if STREAM in models:
        raise UsageError("standard input is one model", hint="give its name alone, or a file for each model")
    if output is not None:
        raise UsageError(f"--output names one file for {len(models)} models", hint="give a folder with --out-dir")
    if folder is None and writes:
        raise UsageError("several models need a folder for their results", hint="give it with --out-dir")
    planned = [Planned(model, _destination(model, None, folder)) for model in models]
    for name in (one.destination.name for one in planned):
        if sum(one.destination.name == name for one in planned) > 1:
            raise UsageError(f"two models are named {name}", hint="optimize them into different folders")
    return planned


def _with_output(first: Path, second: Path) -> tuple[list[Path], Path]:
    if first != STREAM:
        check_readable(first)
    if second != STREAM and options.is_there(second):
        raise UsageError(
            f"{second} exists: it could be a second model or the output",
            hint="name the output with -o, or a folder for the results of both with --out-dir",
        )
    return [first], second


def _destination(model: Path, output: Path | None, folder: Path | None) -> Path:
    if folder is not None:
        destination = folder / ("stdin.onnx" if model == STREAM else model.name)
        if destination.resolve() == model.resolve():
            raise UsageError(f"--out-dir is the folder of {model}", hint="name another folder; no input is overwritten")
        return destination
    if output is not None or model == STREAM:
        return output or STREAM
    return model.parent / f"{model.stem}.optimized.onnx"


def make_folder(folder: Path | None) -> None:
    """Create the folder of --out-dir if it does not exist."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder} cannot be created: {error.strerror}", hint="name another folder") from error


def run_each(
    models: Sequence[Path], work: Callable[[Path, Progress | None], tuple[Record, int]], *, shown: bool, debug: bool
) -> list[ModelResult]:
    """Return the result of each model; one that fails does not stop the others.

    Args:
        models: the files.
        work: returns the record of a model and its exit code.
        shown: whether progress is shown.
        debug: whether the traceback of a failure is shown.
    """
    results: list[ModelResult] = []
    for number, model in enumerate(models, 1):
        with progress(shown) as report:
            try:
                check_readable(model)
                record, code = work(model, _labelled(report, f"{number} of {len(models)}, {model.name}: "))
                results.append(ModelResult(str(model), record, code))
            except SardonyxError as error:
                results.append(ModelResult(str(model), None, error.exit_code, error.message, error.hint))
            except Exception as error:  # a bug; the other models are still done
                if debug:
                    note(traceback.format_exc().rstrip())
                text = f"{model}: unexpected failure: {type(error).__name__}: {error}"
                results.append(ModelResult(str(model), None, 1, text, "this is a bug; --debug shows where it happened"))
    return results


def _labelled(report: Progress | None, label: str) -> Progress | None:
    if report is None:
        return None
    return lambda phase, fraction: report(label + phase, fraction)


class Printed(msgspec.Struct, frozen=True):
    """What a command prints."""

    as_json: bool
    quiet: bool
    verbose: bool


def show(
    results: Sequence[ModelResult],
    table: Callable[[Sequence[ModelResult]], Document],
    document: Callable[[Any, View], Document],
    printed: Printed,
) -> int:
    """Print the table, or a JSON list, and the errors; return the exit code.

    Args:
        results: of all models.
        table: returns the document with a row for each.
        document: returns the whole answer about one record, which verbose output prints before the table.
        printed: what to print.
    """
    style = style_for(sys.stdout)
    if printed.as_json:
        put_json(as_json(results))
    elif printed.quiet:
        put(terminal.sentence(table(results), style))
    else:
        records = [result.record for result in results if result.record is not None] if printed.verbose else []
        documents = [*(document(record, View(verbose=True)) for record in records), table(results)]
        put("\n".join(terminal.write(one, style) for one in documents))
    for result in results:
        if result.error:
            complain(SardonyxError(result.error, hint=result.hint))
    return worst(results)


def reject(given: Mapping[str, object]) -> None:
    """Raise an error if an option for a single model is given."""
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} is for one model", hint="leave it out, or run the command for each model")


def as_json(results: Sequence[ModelResult]) -> bytes:
    """Return a JSON list: the record of each model, or an object with the path and the error of one that failed."""
    return b"[" + b",".join(_entry(result) for result in results) + b"]"


def _entry(result: ModelResult) -> bytes:
    if result.record is not None:
        return result.record.to_json()
    hint = None if result.hint is None else with_flags(result.hint)
    return msgspec.json.encode({"path": result.path, "error": result.error, "hint": hint, "exit_code": result.code})


def worst(results: Sequence[ModelResult]) -> int:
    """Return the exit code of the worst result: a failure, then usage, a verification that failed, a gate not met."""
    return max((result.code for result in results), key=SEVERITY.index)
