"""The models of a study: ONNX files and folders of them become subjects with unique names."""

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

_FORMS = "give ONNX files or folders that contain some"


def find_subjects(sources: Iterable[str | Path], *, exclude: Path) -> list[Subject]:
    """Return the models in files and folders, each file once; those of a folder are sorted by path.

    Args:
        sources: files, and folders to search recursively.
        exclude: the folder of the study itself, whose files are not its subjects.

    Raises:
        UsageError: a source does not exist, or contains no ONNX file.
    """
    excluded = exclude.resolve()
    paths: dict[Path, Path] = {}  # the path as given, by the resolved path
    for source in map(Path, sources):
        models = [source] if source.is_file() else sorted(source.rglob("*.onnx"))
        models = [path for path in models if path == source or excluded not in path.resolve().parents]
        if not models:
            what = "contains no ONNX file" if source.is_dir() else "does not exist"
            raise UsageError(f"{source} {what}", hint=_FORMS)
        for path in models:
            paths.setdefault(path.resolve(), path)
    stems = Counter(path.stem for path in paths.values())
    return [
        Subject(path.stem if stems[path.stem] == 1 else os.fspath(path.with_suffix("")), path)
        for path in paths.values()
    ]


def digest(path: Path) -> str:
    """Return a hash of all bytes of a model: of its file, and of the files with its weights."""
    file_hash = io.sha256_of(path)
    try:
        model = io.load(path)
    except SardonyxError:
        return file_hash  # not a model: its cells will report what is wrong
    own_path = os.path.realpath(path)
    tensors = (value.const_value for scope in scopes(model) for value in scope.graph.initializers.values())
    weight_files = {tensor.file.path for tensor in tensors if isinstance(tensor, FileTensor)}
    others = sorted(name for name in weight_files if os.path.realpath(name) != own_path)
    return "+".join((file_hash, *map(io.sha256_of, others)))
