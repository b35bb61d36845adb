"""The models of a benchmark: read them, give them distinct names, and open a session for each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import SardonyxError, UsageError
from sardonyx.ir import io
from sardonyx.ir.origins import Source, distinct_labels, tagged
from sardonyx.records.bench import BenchFile
from sardonyx.runtime.sessions import Runtime
from sardonyx.verbs.analyze.census import Census

Files: TypeAlias = "Source | Sequence[Source] | Mapping[str, Source]"


class Entrant(Struct, frozen=True):
    """One model to be timed, as a file."""

    file: BenchFile
    path: Path  # the file that the runtime loads
    model: ir.Model
    runtime: Runtime = Runtime.ORT

    @property
    def label(self) -> str:
        """Its short name."""
        return self.file.label


def read_entrants(files: Files, folder: Path) -> list[Entrant]:
    """Read the models to be timed; models in memory are written into the folder.

    Raises:
        UsageError: There is no model.
        ModelError: A file cannot be read.
    """
    named = files if isinstance(files, Mapping) else None
    sources = list(files.values()) if isinstance(files, Mapping) else listed_sources(files)
    if not sources:
        raise UsageError("there is no model to time", hint="name one or more ONNX files")
    models = [tagged(source) for source in sources]
    labels = list(named) if named is not None else distinct_labels([model.name for model in models])
    entrants: list[Entrant] = []
    with ThreadPoolExecutor() as pool:  # files are hashed together
        hashes = [None if model.path is None else io.sha256_in(pool, model.path) for model in models]
        for label, model, digest in zip(labels, models, hashes, strict=True):
            path = model.path or folder / f"{len(entrants)}.onnx"
            if model.path is None:
                io.save(model.model, path, durable=False)
            file = BenchFile(
                label=label,
                path=None if model.path is None else os.fsencode(path).decode(errors="replace"),
                sha256=digest and digest.result(),
                bytes=path.stat().st_size,
                nodes=Census.of(model.model).counts.nodes,
            )
            entrants.append(Entrant(file, path, model.model))
    return entrants


def in_runtimes(entrants: Sequence[Entrant], runtimes: Sequence[Runtime]) -> list[Entrant]:
    """Return every entrant in every runtime, those of the first runtime first; several are part of the name."""
    several = len(runtimes) > 1
    return [
        replace(
            one, file=replace(one.file, label=f"{one.label} in {runtime}") if several else one.file, runtime=runtime
        )
        for runtime in runtimes
        for one in entrants
    ]


def listed_sources(files: Source | Sequence[Source]) -> list[Source]:
    """Return one model or several as a list."""
    return [files] if isinstance(files, (str, os.PathLike, onnx.ModelProto, ir.Model)) else list(files)


@contextlib.contextmanager
def naming(label: str, hint: str | None = None) -> Generator[None]:
    """Add the name of a file to errors raised inside, and this hint if they have none."""
    try:
        yield
    except SardonyxError as error:
        raise type(error)(f"{label}: {error.message}", hint=error.hint or hint) from error
