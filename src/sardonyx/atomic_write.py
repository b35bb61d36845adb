"""Write files completely or not at all.

Everything is written next to its destination under a hidden temporary name and renamed when it is complete. A failure
removes the temporary files, is reported in one line, and leaves every existing file as it was.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import platform
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Self

from sardonyx.errors import OutputError

_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_NO_PERMISSION = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def check_free(path: str, *, force: bool) -> None:
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
def explained(path: str) -> Generator[None]:
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
    """A file that is being written next to its destination."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)  # a symbolic link keeps its target
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
        os.replace(self._temporary, self.path)

    def create(self) -> bool:
        """Move the complete file to its destination and return True, unless there is a file already."""
        try:
            os.link(self._temporary, self.path)  # unlike a rename, this never overwrites a file created in the meantime
        except FileExistsError:
            return False
        except OSError:  # the file system has no hard links
            if os.path.lexists(self.path):
                return False
            os.rename(self._temporary, self.path)
        return True

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)


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


@functools.cache
def _processes() -> str:
    """Return what distinguishes this process table from those of other machines and containers."""
    table = [platform.node()]
    with contextlib.suppress(OSError):  # not Linux
        table += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("".join(table).encode()).hexdigest()[:8]


def check_free_folder(path: str, *, force: bool) -> None:
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
    """Yield a folder to fill; its files are moved to the folder `path` when the block ends without an error."""
    check_free_folder(path, force=force)
    parent, name = os.path.split(os.path.abspath(path))
    draft = os.path.join(parent, draft_name(name))
    with explained(path):
        os.mkdir(draft)
    try:
        yield draft
        with explained(path):
            os.makedirs(path, exist_ok=True)
            for file_name in sorted(os.listdir(draft)):
                os.replace(os.path.join(draft, file_name), os.path.join(path, file_name))
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_whole(path: str, data: bytes, *, force: bool) -> None:
    """Write a file next to its destination and move it there when it is complete."""
    with explained(path), Draft(path) as draft:
        with open(draft.fileno(), "wb", closefd=False) as stream:
            stream.write(data)
        draft.commit(replace=force)
