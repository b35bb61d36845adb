"""Where results are kept: a folder, or any file system that fsspec knows by URL.

A file appears completely or not at all. It is written under a hidden name beside its destination and renamed, or, in an
object store, sent in one request that takes effect when it is complete. Hidden names begin with a dot and end in
`.part`; they are never listed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from sardonyx.atomic_write import Draft, draft_name, explained, is_abandoned, is_draft, last_change
from sardonyx.errors import OutputError

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_ABANDONED = 24 * 3600.0  # seconds without a change, after which a draft is deleted


class Contents(Struct, frozen=True, array_like=True):
    """What identifies the bytes of a file."""

    size: int
    sha256: str

    @staticmethod
    def of(path: str | Path) -> Contents:
        """Return the contents of a file."""
        with open(path, "rb") as file:
            return Contents(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


class Store(ABC):
    """Files by relative name, with `/` between folders. A store can be pickled; it does no work until it is used."""

    url: str  # or the absolute path of a folder

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, or None if there is none."""

    @abstractmethod
    def write(self, name: str, data: bytes, *, replace: bool = True) -> bool:
        """Write a file and return True; with `replace=False`, return False if it exists, and change nothing."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with a prefix, sorted."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""

    @abstractmethod
    def download(self, name: str, path: Path) -> None:
        """Copy a file of the store to a path.

        Raises:
            OutputError: it does not exist.
        """

    @abstractmethod
    def upload(self, path: Path, name: str) -> None:
        """Copy or move a file into the store, replacing an earlier one."""

    @abstractmethod
    def tag(self, name: str) -> str | None:
        """Return a text that changes with a file, or None if there is none."""

    @abstractmethod
    def matches(self, name: str, contents: Contents) -> bool:
        """Return whether a file has these contents."""

    def path(self, name: str) -> Path | None:
        """Return the path of a file if the store is a folder, otherwise None."""
        del name
        return None

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """Return an empty folder for drafts, deleted at the end; in a folder store, `upload` moves files out of it."""

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of many files."""
        return [self.read(name) for name in names]

    @abstractmethod
    def remove_abandoned(self) -> None:
        """Delete drafts that killed processes left."""

    def _name(self, name: str) -> str:
        """Return a valid name.

        Raises:
            OutputError: it is not a relative name, or leaves the store.
        """
        parts = name.split("/")
        if "\\" in name or any(part in ("", ".", "..") or is_draft(part) for part in parts):
            raise OutputError(f"{name!r} is not the name of a file in {self.url}", hint="rename the model")
        return name


def open_store(where: str | Path) -> Store:
    """Return the store at a path or URL.

    Raises:
        UsageError: a package that the URL needs is missing.
    """
    if isinstance(where, str) and "://" in where:
        parts = urlsplit(where)
        if parts.scheme != "file":
            from sardonyx.fleet.remote_storage import RemoteStore  # only when it is used: fsspec is an extra

            return RemoteStore(where)
        where = unquote(parts.path)
    return FolderStore(Path(where))


class FolderStore(Store):
    """A folder on a local or shared disk; it is created when the first file is written."""

    def __init__(self, folder: Path) -> None:
        self.url = os.path.abspath(folder)  # a worker may have another working directory

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, or None if there is none."""
        path = self.path(name)
        try:
            return path.read_bytes()
        except ABSENT:
            return None
        except OSError as error:
            raise _unreadable(str(path), error) from error

    def write(self, name: str, data: bytes, *, replace: bool = True) -> bool:
        """Write a file beside its destination, and rename it, or link it if it must not replace another."""
        path = str(self.path(name))
        with explained(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with Draft(path, durable=False) as draft:  # of thousands; one that is damaged is computed again
                with open(draft.fileno(), "wb", closefd=False) as stream:
                    stream.write(data)
                if not replace:
                    return draft.create()
                draft.commit(replace=True)
        return True

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with a prefix, sorted."""
        found: list[str] = []
        for folder, folders, files in os.walk(os.path.join(self.url, prefix.rpartition("/")[0])):
            folders[:] = [name for name in folders if not is_draft(name)]
            inside = Path(folder).relative_to(self.url).as_posix()
            start = "" if inside == "." else f"{inside}/"
            found += [start + name for name in files if not is_draft(name)]
        return sorted(name for name in found if name.startswith(prefix))

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        path = self.path(name)
        with explained(str(path)), contextlib.suppress(*ABSENT):
            path.unlink()

    def download(self, name: str, path: Path) -> None:
        """Copy a file of the store to a path."""
        source = self.path(name)
        if not source.is_file():
            raise OutputError(f"{source} does not exist")
        with explained(str(path)):
            shutil.copyfile(source, path)

    def upload(self, path: Path, name: str) -> None:
        """Move a file into the store; copy it if it is on another file system."""
        target = os.path.realpath(self.path(name))  # a symbolic link keeps its target
        with explained(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.replace(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with Draft(target) as draft, open(path, "rb") as source:
                    with open(draft.fileno(), "wb", closefd=False) as stream:
                        shutil.copyfileobj(source, stream, 1 << 20)
                    draft.commit(replace=True)

    def tag(self, name: str) -> str | None:
        """Return the size and date of a file."""
        try:
            status = self.path(name).stat()
        except ABSENT:
            return None
        return f"{status.st_size}-{status.st_mtime_ns}"

    def matches(self, name: str, contents: Contents) -> bool:
        """Return whether a file has this size and this hash."""
        path = self.path(name)
        with contextlib.suppress(OSError):
            return path.is_file() and path.stat().st_size == contents.size and Contents.of(path) == contents
        return False

    def path(self, name: str) -> Path:
        """Return the path of a file, which may not exist."""
        return Path(self.url, self._name(name))

    @contextlib.contextmanager
    def scratch(self) -> Generator[Path]:
        """Make a hidden folder inside the store."""
        folder = Path(self.url, draft_name("scratch"))
        with explained(str(folder)):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def remove_abandoned(self) -> None:
        """Delete drafts whose process has ended, and those that have not changed for a day.

        Of a process on another machine that shares the folder, only the age of its drafts is known.
        """
        before = time.time() - _ABANDONED
        for folder, folders, files in os.walk(self.url):
            drafts = [name for name in (*folders, *files) if is_draft(name)]
            folders[:] = [name for name in folders if not is_draft(name)]
            for name in drafts:
                draft = os.path.join(folder, name)
                if is_abandoned(name) or last_change(draft) < before:
                    shutil.rmtree(draft, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        os.unlink(draft)


def _unreadable(path: str, error: OSError) -> OutputError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return OutputError(f"{path} cannot be read: {why}", hint="check its permissions and the disk")
