"""Write files completely or not at all.

Everything is written next to its destination under a hidden temporary name, flushed to the disk, and renamed when it is
complete. A failure removes the temporary files, is reported in one line, and leaves every existing file as it was. The
temporary files of a process that was killed are removed when the same destination is written again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Self

from sardonyx.errors import OutputError

_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_NO_PERMISSION = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
_DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}-\d+-[0-9a-f]{6}\.part", re.DOTALL)  # as `draft_name` returns it
_ABANDONED_SECONDS = 24 * 3600.0  # seconds without a change, after which a draft is abandoned


def check_free(path: str | Path, *, force: bool) -> None:
    """Refuse a destination that exists or that cannot hold a file; find out by creating one beside it."""
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder", hint="name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(f"{path} is a device or a pipe", hint="name a file")
    if os.path.lexists(path) and not force:
        raise OutputError(f"{path} exists", hint="choose another name, or overwrite it with `force=True`")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise OutputError(f"{path} cannot be written: there is no folder {folder}", hint="create the folder first")
    with explained(path), Draft(path):
        pass


@contextlib.contextmanager
def explained(path: str | Path) -> Generator[None]:
    """Convert system errors to one line with a hint."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        hint = None
        if error.errno in _NO_SPACE:
            hint = "free some space, or write to another disk"
        elif error.errno in _NO_PERMISSION:
            hint = "choose a folder you may write to"
        raise OutputError(f"{path} cannot be written: {why}", hint=hint) from error


class Draft:
    """A file that is being written next to its destination.

    Args:
        path: The destination.
        durable: Whether the file is on the disk before it gets its name, so that it is complete even after a power
            failure; not needed for files that are temporary or can be computed again.
    """

    def __init__(self, path: str | Path, *, durable: bool = True) -> None:
        self.path = os.path.realpath(path)  # a symbolic link keeps its target
        self._durable = durable
        folder, name = os.path.split(self.path)
        self._temporary = os.path.join(folder, draft_name(name))
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return self

    def fileno(self) -> int:
        """Return the descriptor to write to."""
        return self._fd

    def commit(self, *, replace: bool) -> None:
        """Move the complete file to its destination."""
        if not replace:
            if not self.create():
                raise OutputError(f"{self.path} exists", hint="choose another name, or overwrite it with `force=True`")
            return
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(self._fd, os.stat(self.path).st_mode & 0o7777)
        self._flush()
        os.replace(self._temporary, self.path)
        self._flush_folder()

    def create(self) -> bool:
        """Move the complete file to its destination and return True, unless there is a file already."""
        self._flush()
        try:
            os.link(self._temporary, self.path)  # unlike a rename, this never overwrites a file created in the meantime
        except FileExistsError:
            return False
        except OSError:  # the file system has no hard links
            if os.path.lexists(self.path):
                return False
            os.rename(self._temporary, self.path)
        else:
            os.unlink(self._temporary)  # at once: onnx reads no data file that has two links
        self._flush_folder()
        return True

    def _flush(self) -> None:
        if self._durable:
            os.fsync(self._fd)

    def _flush_folder(self) -> None:
        if self._durable:
            flush_folder(os.path.dirname(self.path))

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)


def flush_folder(path: str) -> None:
    """Write the names in a folder to the disk, if the file system can do that for a folder."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def draft_name(name: str) -> str:
    """Return a hidden name for a draft of a file or folder; it says which process writes it."""
    return f".{name}.{_processes()}-{os.getpid()}-{os.urandom(3).hex()}.part"


def is_draft(name: str) -> bool:
    """Return whether a file or folder is a draft, by its name."""
    return name.startswith(".") and name.endswith(".part")


def is_abandoned(name: str) -> bool:
    """Return whether the process that wrote a draft has ended; False if it ran elsewhere, or cannot be found out."""
    processes, _, rest = name.removesuffix(".part").rpartition(".")[2].partition("-")
    process = rest.partition("-")[0]
    if os.name != "posix" or processes != _processes() or not process.isdigit():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def abandoned_drafts(folder: str, names: str) -> Iterator[str]:
    """Yield the paths of abandoned drafts of files or folders whose names match a regular expression.

    A draft is abandoned if its process has ended. Of a process on another machine that shares the folder, or before a
    restart of this one, only the age of its drafts is known: they are abandoned after a day without a change.
    """
    before = time.time() - _ABANDONED_SECONDS
    try:
        present = os.listdir(folder)
    except PermissionError:  # a folder that may be written to, but not listed
        return
    for name in present:
        draft = _DRAFT.fullmatch(name)
        path = os.path.join(folder, name)
        if draft and re.fullmatch(names, draft["name"]) and (is_abandoned(name) or last_change(path) < before):
            yield path


def remove_abandoned(folder: str, names: str) -> None:
    """Remove the abandoned drafts of files whose names match a regular expression."""
    for path in abandoned_drafts(folder, names):
        with contextlib.suppress(OSError):  # removed by another process, or not ours to remove
            os.unlink(path)


def last_change(path: str) -> float:
    """Return when a file, or anything in a folder, last changed."""
    inside = (os.path.join(folder, name) for folder, folders, files in os.walk(path) for name in (*folders, *files))
    return max(map(_modified, (path, *inside)))


def _modified(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:  # renamed or deleted in the meantime
        return time.time()


@functools.cache
def _processes() -> str:
    """Return what distinguishes this process table from those of other machines and containers."""
    table = [platform.node()]
    with contextlib.suppress(OSError):  # not Linux
        table += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("".join(table).encode()).hexdigest()[:8]


def check_free_folder(path: str | Path, *, force: bool) -> None:
    """Refuse a folder that is not empty or that cannot be created."""
    if os.path.lexists(path) and not os.path.isdir(path):
        raise OutputError(f"{path} is a file", hint="name a folder; it is created if it does not exist")
    if os.path.isdir(path) and os.listdir(path) and not force:
        raise OutputError(f"{path} is not empty", hint="name another folder, or overwrite its files with `force=True`")
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise OutputError(f"{path} cannot be written: there is no folder {parent}", hint="create the folder first")


@contextlib.contextmanager
def draft_folder(path: str, *, force: bool) -> Generator[str]:
    """Yield a folder to fill, which becomes the folder `path` when the block ends without an error.

    If `path` has files already, those of the draft are moved to it one by one: a kill meanwhile leaves files of both.
    """
    check_free_folder(path, force=force)
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    with explained(path):
        for abandoned in abandoned_drafts(parent, re.escape(name)):
            shutil.rmtree(abandoned, ignore_errors=True)
        draft = os.path.join(parent, draft_name(name))
        os.mkdir(draft)
    try:
        yield draft
        with explained(path):
            _move_folder(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _move_folder(draft: str, path: str) -> None:
    for folder, _, files in os.walk(draft):
        for file_name in files:
            with open(os.path.join(folder, file_name), "rb") as file:
                os.fsync(file.fileno())
    if os.path.isdir(path) and os.listdir(path):
        for file_name in sorted(os.listdir(draft)):
            os.replace(os.path.join(draft, file_name), os.path.join(path, file_name))
        flush_folder(path)
    else:
        os.replace(draft, path)
    flush_folder(os.path.dirname(path))


def write_whole(path: str | Path, data: bytes, *, force: bool) -> None:
    """Write a file next to its destination and move it there when it is complete."""
    with explained(path), Draft(path) as draft:
        remove_abandoned(os.path.dirname(draft.path), re.escape(os.path.basename(draft.path)))
        with open(draft.fileno(), "wb", closefd=False) as stream:
            stream.write(data)
        draft.commit(replace=force)
