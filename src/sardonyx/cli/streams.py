"""Models from standard input and to standard output, both written as `-`."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

from sardonyx.cli.console import drop_stdout
from sardonyx.errors import ModelError, OutputError, SardonyxError, UsageError
from sardonyx.temporary import temporary_folder

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
            raise type(error)(_named(error.message, folder), hint=error.hint) from error
        if destination == STREAM and result is not None and result.exists():
            stack.close()  # standard output again
            _send(result)


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


def _send(path: Path) -> None:
    try:
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except OSError as error:
        drop_stdout()
        raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def _named(message: str, folder: Path) -> str:
    """Return a message that names the streams instead of temporary files."""
    for name, stream in _NAMES.items():
        message = message.replace(str(folder / name), stream)
    return message
