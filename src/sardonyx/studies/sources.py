"""What a study is about: ONNX files and folders of them become subjects, each under a name of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from sardonyx.errors import SardonyxError, UsageError
from sardonyx.ir import io
from sardonyx.ir.scopes import scopes
from sardonyx.ir.tensors import FileTensor
from sardonyx.studies.experiment import Subject

_FORMS = "give ONNX files, or folders that have some"


def found(sources: Iterable[str | Path], *, apart_from: Path) -> list[Subject]:
    """The subjects in files and folders, those of a folder in the order of their paths, each file once.

    Args:
        sources: files, and folders to look through with all that is below them.
        apart_from: the folder of the study itself, whose own files are not its subjects.

    Raises:
        UsageError: for a source that does not exist, or has no ONNX file in it.
    """
    own = apart_from.resolve()
    paths: dict[Path, Path] = {}  # as they were given, by what they are
    for source in map(Path, sources):
        inside = [source] if source.is_file() else sorted(source.rglob("*.onnx"))
        inside = [path for path in inside if path == source or own not in path.resolve().parents]
        if not inside:
            what = "has no ONNX file in it" if source.is_dir() else "does not exist"
            raise UsageError(f"{source} {what}", hint=_FORMS)
        for path in inside:
            paths.setdefault(path.resolve(), path)
    stems = Counter(path.stem for path in paths.values())
    return [
        Subject(path.stem if stems[path.stem] == 1 else os.fspath(path.with_suffix("")), path)
        for path in paths.values()
    ]


def digest(path: Path) -> str:
    """A hash of all bytes of a model: of its file, and of the files its weights are in."""
    own = io.sha256_of(path)
    try:
        model = io.load(path)
    except SardonyxError:
        return own  # no model, but these bytes of none: its cells will say what is wrong
    inside = os.path.realpath(path)
    tensors = (value.const_value for scope in scopes(model) for value in scope.graph.initializers.values())
    beside = {tensor.file.path for tensor in tensors if isinstance(tensor, FileTensor)}
    others = sorted(name for name in beside if os.path.realpath(name) != inside)
    return "+".join((own, *map(io.sha256_of, others)))
