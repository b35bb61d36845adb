"""The files of a command: models on standard input and output, where results go, and what they may replace."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from sardonyx.cli import options
from sardonyx.cli.console import drop_stdout
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.common import atomic_write
from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import ModelError, OutputError, SardonyxError, UsageError
from sardonyx.reporting.formatting import visible


def check_destinations(output: Path, record: Path | None, *, force: bool, folder: bool = False) -> None:
    """Check before any work that the model and the record can be written, to different files."""
    check_apart(record=record, output=output)
    if folder:
        atomic_write.check_free_folder(output, force=force)
    check_free(None if folder else output, record, force=force)


def check_apart(**paths: Path | None) -> None:
    """Raise an error if two options name the same file."""
    options: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = options.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"--{other} and --{option} name the same file", hint="give them different names")


def check_free(*paths: Path | None, force: bool) -> None:
    """Check before any work that files can be written."""
    for path in filter(None, paths):
        atomic_write.check_free(path, force=force)


def results_line(folder: Path | None) -> str:
    """Return the line that names the folder of --run, empty without one."""
    if folder is None:
        return ""
    return f"results in {visible(str(folder))} (open {visible(str(folder / 'report.html'))})\n"


STREAM = Path("-")
_NAMES = {"input.onnx": "standard input", "output.onnx": "standard output"}


@contextlib.contextmanager
def on_disk(source: Path, destination: Path | None = None) -> Generator[tuple[Path, Path | None]]:
    """Provide paths of both models; standard input is copied to a temporary file, standard output from one.

    What is printed meanwhile goes to standard error if the model goes to standard output.

    Raises:
        UsageError: A stream is a terminal.
        ModelError: The model on standard input has its weights in another file.
    """
    if STREAM not in (source, destination):
        yield source, destination
        return
    if destination == STREAM and sys.stdout.isatty():
        raise UsageError("standard output is a terminal", hint="write the model to a file or a pipe")
    with temporary_folder() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if destination == STREAM:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            given = _copied(folder / "input.onnx") if source == STREAM else source
            result = folder / "output.onnx" if destination == STREAM else destination
            yield given, result
        except SardonyxError as error:
            message = error.message
            for file, stream in _NAMES.items():
                message = message.replace(str(folder / file), stream)
            raise type(error)(message, hint=error.hint) from error
        if destination == STREAM and result is not None and result.exists():
            stack.close()  # standard output again
            try:
                with result.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            except OSError as error:
                drop_stdout()
                raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def _copied(path: Path) -> Path:
    """Return the path of a copy of standard input."""
    if sys.stdin.isatty():
        raise UsageError("there is no model on standard input", hint="pipe a model into it: cat m.onnx | sardonyx …")
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    from sardonyx.ir.io import external_files

    if elsewhere := external_files(path):
        raise ModelError(
            f"the model on standard input has its weights in another file: {elsewhere[0]}",
            hint="name the model instead of -, so that the file beside it is found",
        )
    return path


class Planned(Struct, frozen=True):
    """A model and where its result goes."""

    source: Path
    destination: Path


def is_file(source: str) -> bool:
    """Return whether a source is a file or standard input, not a folder, pattern, manifest, URL or built model."""
    path = Path(source)
    if os.path.isdir(path) or source.endswith(".jsonl") or (glob.has_magic(source) and not options.is_there(path)):
        return False
    return not is_elsewhere(source)


def is_elsewhere(source: str) -> bool:
    """Return whether a source is a URL, or a model that is built."""
    if ":" not in source:
        return False
    from sardonyx.fleet.sources import is_built, is_url  # not loaded for a plain file

    return is_url(source) or is_built(source)


def plan(
    models: Sequence[str], output: Path | None, folder: str | None, suffix: str, *, writes: bool
) -> Planned | None:
    """Return the only model and the file to write; None if there are several, which need a folder.

    Of two names without --output and --out-dir, the second is the output if there is no such file. If there is, it
    could be a second model, so the command does nothing. An input is never an output. A result beside its source has
    the name of the source with another suffix.

    Raises:
        UsageError: It is not clear what is to be written where.
    """
    reject_both("--output", output is not None, "--out-dir", folder is not None)
    if len(models) == 2 and output is None and folder is None and writes and all(map(is_file, models)):
        source, output = map(Path, models)
        if source != STREAM:
            check_readable(source)
        if output != STREAM and options.is_there(output):
            raise UsageError(
                f"{output} exists: it could be a second model or the output",
                hint="name the output with -o, or a folder for the results of both with --out-dir",
            )
        return Planned(source, output)
    if len(models) == 1 and is_file(models[0]) and not (folder and is_elsewhere(folder)):
        source = Path(models[0])
        if source != STREAM:
            check_readable(source)
        return Planned(source, _destination(source, output, folder, suffix))
    if str(STREAM) in models:
        raise UsageError("standard input is one model", hint="give its name alone, or a file for each model")
    if output is not None:
        raise UsageError("--output names one file for several models", hint="give a folder with --out-dir")
    if folder is None and writes:
        if len(models) == 1:
            raise UsageError(f"{models[0]} needs a folder for its results", hint="give it with --out-dir")
        raise UsageError("several models need a folder for their results", hint="give it with --out-dir")
    return None


def _destination(model: Path, output: Path | None, folder: str | None, suffix: str) -> Path:
    if folder is not None:
        destination = Path(folder) / ("stdin.onnx" if model == STREAM else model.name)
        if destination.resolve() == model.resolve():
            raise UsageError(f"--out-dir is the folder of {model}", hint="name another folder; no input is overwritten")
        return destination
    if output is not None or model == STREAM:
        return output or STREAM
    return model.parent / f"{model.stem}{suffix}"


def make_folder(folder: str | None) -> None:
    """Create the folder of --out-dir if it does not exist."""
    if folder is not None:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder} cannot be created: {error.strerror}", hint="name another folder") from error


def reject(given: Mapping[str, object]) -> None:
    """Raise an error if an option for a single model is given."""
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} is for one model", hint="leave it out, or run the command for each model")
