"""The files beside a model that hold its weights, and which of them a save removes.

A save removes a data file only if all of this is true:

- The save wrote it, or the model that the save replaced has weights in it.
- It is a regular file in the folder of the model, and it is named as a save names it.
- No model in the folder has weights in it. A file `*.onnx` that cannot be read counts as a model that might.

Before it gives the new files their names, a save lists these data files in a hidden file, its journal, which it removes
last. The journal of a process that was killed lets the next save to the same destination remove what is left, under the
same conditions. So no data file is removed that no save wrote or replaced, and none stays that only a kill left.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence

import msgspec
import onnx
from google.protobuf.message import DecodeError

from sardonyx.common.atomic_write import Draft, abandoned_drafts, is_draft, remove_abandoned
from sardonyx.errors import ModelError
from sardonyx.ir.io import tensor_data, unmodeled_fields
from sardonyx.ir.storage import SourceFile, write_all

_KEPT_TENSOR_BYTES = 1 << 12  # of a tensor that are not read to find out where weights are
_UNREADABLE = (OSError, tensor_data.WireError, DecodeError)
_JOURNAL = ".files"  # after the name of the model in the name of its journal
_MAX_JOURNAL_BYTES = 1 << 20  # of a journal
_FILES_NAMED = 5  # data files in notes


class _DataFile(msgspec.Struct, frozen=True):
    """A data file, identified so that no other file of the same name is taken for it."""

    name: str
    inode: int
    size: int
    modified: int  # nanoseconds
    is_new: bool  # written by the save

    @staticmethod
    def of(name: str, status: os.stat_result, *, is_new: bool) -> _DataFile:
        return _DataFile(name, status.st_ino, status.st_size, status.st_mtime_ns, is_new)


def external_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the files that a model has weights in; none if it cannot be read."""
    try:
        return sorted(_locations(SourceFile.open(os.fspath(path))))
    except (*_UNREADABLE, ModelError):
        return []


def free_name(target: str) -> str:
    """Return the first of model.onnx.data, model.onnx.1.data, … that does not exist."""
    base = os.path.basename(target)
    candidate, number = f"{base}.data", 0
    while os.path.lexists(os.path.join(os.path.dirname(target), candidate)):
        number += 1
        candidate = f"{base}.{number}.data"
    return candidate


@contextlib.contextmanager
def replaced(target: str, data: Draft | None = None) -> Generator[list[str]]:
    """Remove data files without a model after a block, which gives the new model and its data their names.

    Args:
        target: The model.
        data: The new data file, not yet renamed.

    Yields:
        A list that gets a note for each data file of the replaced model that is kept.
    """
    folder, base = os.path.split(target)
    notes: list[str] = []
    previous = external_files(target)
    if data is None and not previous:
        yield notes
        return
    files = [_DataFile.of(os.path.basename(data.path), os.fstat(data.fileno()), is_new=True)] if data else []
    with _opened(folder) as fd, Draft(target + _JOURNAL) as journal:
        files += [file for name in previous if (file := _found(name, fd, base)) is not None]
        write_all(journal.fileno(), memoryview(msgspec.json.encode(files)), 0)
        try:
            yield notes
        finally:
            kept = _remove_unused(fd, base, files)
    notes += _notes(previous, kept, folder, base)


def remove_left_over(target: str) -> None:
    """Remove what killed saves to the same destination left: drafts, and data files without a model."""
    folder, base = os.path.split(target)
    for path in abandoned_drafts(folder, re.escape(base + _JOURNAL)):
        with _opened(folder) as fd:
            _remove_unused(fd, base, _listed(os.path.basename(path), fd))
    remove_abandoned(folder, rf"{re.escape(base)}((\.\d+)?\.data|{re.escape(_JOURNAL)})?")


def _listed(journal: str, folder: int) -> list[_DataFile]:
    """Return the data files in a journal; none if it is not complete, because then nothing was renamed."""
    try:
        fd = os.open(journal, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            return msgspec.json.decode(file.read(_MAX_JOURNAL_BYTES), type=list[_DataFile])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return []


def _remove_unused(folder: int, base: str, files: Sequence[_DataFile]) -> dict[str, str]:
    """Remove data files that no model in the folder has weights in; return why the others are kept."""
    present = [file for file in files if _found(file.name, folder, base, is_new=file.is_new) == file]
    kept = _uses(folder, base, present) if present else {}
    for file in present:
        if file.name not in kept:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                os.unlink(file.name, dir_fd=folder)
    return kept


def _uses(folder: int, base: str, files: Iterable[_DataFile]) -> dict[str, str]:
    """Return which of the data files a model in the folder uses or might use, and which model that is."""
    unused = {file.name: file for file in files}
    uses: dict[str, str] = {}
    for name in sorted(os.listdir(folder), key=lambda name: (name != base, name)):
        if not unused:
            break
        if is_draft(name) or _is_own(name, base):
            continue
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            locations = _locations(SourceFile(fd, name))
        except ModelError:  # a folder or a device
            continue
        except _UNREADABLE:
            if not name.lower().endswith(".onnx"):
                continue
            found, why = {data for data, file in unused.items() if not file.is_new}, "cannot be read and may use it"
        else:
            parts = {part.casefold() for location in locations for part in re.split(r"[/\\]", location)}
            found, why = {data for data in unused if data.casefold() in parts}, "uses it"
        for data in found:
            uses[data] = f"{_text(name)} {why}"
            del unused[data]
    return uses


def _locations(file: SourceFile) -> set[str]:
    """Return the locations of all external tensors of a model.

    Raises:
        WireError: It is no ONNX model.
        DecodeError: It is damaged.
    """
    skeleton, _ = tensor_data.cut(tensor_data.Bytes(file), b"", _KEPT_TENSOR_BYTES)
    model = onnx.ModelProto.FromString(skeleton)
    if not model.HasField("graph"):
        raise tensor_data.WireError("there is no graph")
    return {
        _text(entry.value)
        for graph in _graphs(model)
        for tensor in unmodeled_fields.tensors_in(graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _text(name: str | bytes) -> str:
    """Return a name from protobuf, which gives bytes, or of a file, with U+FFFD for all that is not UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of a model, and its functions as graphs."""
    yield model.graph
    for training in model.training_info:
        yield from (training.initialization, training.algorithm)
    for function in model.functions:
        yield onnx.GraphProto(node=[*function.node, onnx.NodeProto(attribute=function.attribute_proto)])


def _notes(previous: Sequence[str], kept: dict[str, str], folder: str, base: str) -> Iterator[str]:
    """Yield a note for each data file of the replaced model that is still there and not used by the new one."""
    other = f"only {base}.data and {base}.N.data are removed"
    reasons = {name: kept.get(name, "it is not a regular file" if _is_own(name, base) else other) for name in previous}
    there = [
        name
        for name, reason in reasons.items()
        if os.path.lexists(os.path.join(folder, name)) and reason != f"{base} uses it"
    ]
    for name in there[:_FILES_NAMED]:
        yield f"kept {name}, a data file of the replaced model: {reasons[name]}"
    if len(there) > _FILES_NAMED:
        yield f"kept {len(there) - _FILES_NAMED} more data files of the replaced model"


def _is_own(name: str, base: str) -> bool:
    """Return whether a data file is named as a save names that of a model, which is a name without a folder."""
    return re.fullmatch(re.escape(base) + r"(\.[1-9][0-9]*)?\.data", name) is not None


def _found(name: str, folder: int, base: str, *, is_new: bool = False) -> _DataFile | None:
    """Return a data file in a folder; None if its name is not one of a save, or it is no regular file."""
    if not _is_own(name, base):
        return None
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return _DataFile.of(name, status, is_new=is_new) if stat.S_ISREG(status.st_mode) else None


@contextlib.contextmanager
def _opened(folder: str) -> Generator[int]:
    """Open a folder, so that names are looked up in it even if its path changes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
