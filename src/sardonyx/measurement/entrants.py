"""The files of a benchmark: found, counted, named so that one can tell them apart, and opened to take turns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from sardonyx.analysis.census import Census
from sardonyx.errors import SardonyxError, UsageError
from sardonyx.ir import io
from sardonyx.ir.tagged_model import Source, tagged
from sardonyx.measurement.sessions import Here, Isolated, Lane
from sardonyx.records.bench import BenchFile
from sardonyx.runtime.timed import Settings

Files: TypeAlias = "Source | Sequence[Source] | Mapping[str, Source]"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One file, ready to be loaded."""

    file: BenchFile
    path: Path  # where the runtime finds it
    model: ir.Model

    @property
    def label(self) -> str:
        """Its short name."""
        return self.file.label


def entered(files: Files, folder: Path) -> list[Contestant]:
    """Read what is to be timed; models in memory are written into the folder.

    Raises:
        UsageError: where there is none.
        ModelError: for a file that cannot be read.
    """
    named = files if isinstance(files, Mapping) else None
    if named is not None:
        sources = list(named.values())
    else:
        sources = [files] if isinstance(files, (str, os.PathLike, onnx.ModelProto, ir.Model)) else list(files)
    if not sources:
        raise UsageError("there is no model to time", hint="name one or more ONNX files")
    found = [_read(source, folder / f"{index}.onnx") for index, source in enumerate(sources)]
    labels = list(named) if named is not None else _labels([name for name, _, _ in found])
    return [
        Contestant(_described(label, source, path, model), path, model)
        for label, source, (_, path, model) in zip(labels, sources, found, strict=True)
    ]


def _read(source: Source, place: Path) -> tuple[str, Path, ir.Model]:
    read = tagged(source)
    if read.path is None:
        io.save(read.model, place)
    return read.name, read.path or place, read.model


def _described(label: str, source: Source, path: Path, model: ir.Model) -> BenchFile:
    in_memory = isinstance(source, (onnx.ModelProto, ir.Model))
    return BenchFile(
        label=label,
        path=None if in_memory else os.fsencode(path).decode(errors="replace"),
        sha256=None if in_memory else io.sha256_of(path),
        bytes=path.stat().st_size,
        nodes=Census.of(model).counts.nodes,
    )


def _labels(names: Sequence[str]) -> list[str]:
    """File names, or as much of the paths as tells them apart; the same file twice is counted."""
    short = [os.path.basename(name) or name for name in names]
    for candidates in (short, list(names)):
        if len(set(candidates)) == len(candidates):
            return candidates
    return [f"{name} ({index})" for index, name in enumerate(short, 1)]


@contextlib.contextmanager
def told_of(label: str, hint: str | None = None) -> Generator[None]:
    """Errors from here on say which file they are about, and give this hint where they have none."""
    try:
        yield
    except SardonyxError as error:
        raise type(error)(f"{label}: {error.message}", hint=error.hint or hint) from error


def opened(contestant: Contestant, settings: Settings, *, isolate: bool) -> Lane:
    """A lane of its own for a file."""
    with told_of(contestant.label):
        return (Isolated if isolate else Here)(contestant.path, settings)
