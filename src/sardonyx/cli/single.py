"""Whether a command is about one model or about many, and where the result of one goes."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sardonyx.cli import options
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.cli.streams import STREAM
from sardonyx.errors import OutputError, UsageError


class Planned(msgspec.Struct, frozen=True):
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
    could be a second model, so the command does nothing. An input is never an output.

    Args:
        models: as given on the command line.
        output: of --output.
        folder: of --out-dir.
        suffix: of the result beside its source: ".optimized.onnx".
        writes: whether a file is written.

    Raises:
        UsageError: It is not clear what is to be written where.
    """
    reject_both("--output", output is not None, "--out-dir", folder is not None)
    if len(models) == 2 and output is None and folder is None and writes and all(map(is_file, models)):
        source, output = _with_output(*map(Path, models))
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


def _with_output(first: Path, second: Path) -> tuple[Path, Path]:
    if first != STREAM:
        check_readable(first)
    if second != STREAM and options.is_there(second):
        raise UsageError(
            f"{second} exists: it could be a second model or the output",
            hint="name the output with -o, or a folder for the results of both with --out-dir",
        )
    return first, second


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
