"""Where results are kept: a folder, or any file system that fsspec knows by URL.

A file appears completely or not at all. It is written under a hidden name beside its destination and renamed, or, in
an object store, sent in one request that takes effect when it is complete. Hidden names begin with a dot and end in
`.part`; they are never listed.

Object stores (`s3://`, `gs://`, `az://`) and `memory://` publish a file in one request. Everywhere else a file is
written beside its destination and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import os
import random
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from sardonyx.common.atomic_write import Draft, draft_name, explained, is_abandoned, is_draft, last_change
from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import OutputError, UsageError, reason
from sardonyx.frontend.installed import require_installed

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_ABANDONED_SECONDS = 24 * 3600.0  # seconds without a change, after which a draft is deleted


class Contents(Struct, frozen=True, array_like=True):
    """What identifies the bytes of a file."""

    size: int
    sha256: str

    @staticmethod
    def of(path: str | Path) -> Contents:
        """Return the contents of a file."""
        with open(path, "rb") as file:
            return Contents(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


Store: TypeAlias = "_FolderStore | _RemoteStore"  # files by relative name, with `/` between folders; can be pickled


def open_store(where: str | Path) -> Store:
    """Return the store at a path or URL; it does no work until it is used.

    Raises:
        UsageError: a package that the URL needs is missing.
    """
    if isinstance(where, str) and "://" in where:
        parts = urlsplit(where)
        if parts.scheme != "file":
            return _RemoteStore(where)
        where = unquote(parts.path)
    return _FolderStore(Path(where))


def _checked(name: str, url: str) -> str:
    """Return a valid name.

    Raises:
        OutputError: it is not a relative name, or leaves the store.
    """
    parts = name.split("/")
    if "\\" in name or any(part in ("", ".", "..") or is_draft(part) for part in parts):
        raise OutputError(f"{name!r} is not the name of a file in {url}", hint="rename the model")
    return name


class _FolderStore:
    """A folder on a local or shared disk; it is created when the first file is written."""

    def __init__(self, folder: Path) -> None:
        self.url = os.path.abspath(folder)  # a worker may have another working directory

    def path(self, name: str) -> Path:
        """Return the path of a file, which may not exist; None if the store is no folder."""
        return Path(self.url, _checked(name, self.url))

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, or None if there is none."""
        path = self.path(name)
        try:
            return path.read_bytes()
        except ABSENT:
            return None
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise OutputError(f"{path} cannot be read: {why}", hint="check its permissions and the disk") from error

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of many files."""
        return [self.read(name) for name in names]

    def write(self, name: str, data: bytes) -> None:
        """Write a file, replacing an earlier one."""
        path = self.path(name)
        with explained(path):
            os.makedirs(path.parent, exist_ok=True)
            with Draft(path, durable=False) as draft:  # of thousands; one that is damaged is computed again
                with open(draft.fileno(), "wb", closefd=False) as stream:
                    stream.write(data)
                draft.commit(replace=True)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with a prefix, sorted."""
        found: list[str] = []
        for folder, folders, files in os.walk(os.path.join(self.url, prefix.rpartition("/")[0])):
            folders[:] = [name for name in folders if not is_draft(name)]
            inside = Path(folder).relative_to(self.url)
            found += [(inside / name).as_posix() for name in files if not is_draft(name)]
        return sorted(name for name in found if name.startswith(prefix))

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        path = self.path(name)
        with explained(path), contextlib.suppress(*ABSENT):
            path.unlink()

    def download(self, name: str, path: Path) -> None:
        """Copy a file of the store to a path.

        Raises:
            OutputError: it does not exist.
        """
        source = self.path(name)
        if not source.is_file():
            raise OutputError(f"{source} does not exist")
        with explained(path):
            shutil.copyfile(source, path)

    def upload(self, path: Path, name: str) -> None:
        """Move a file into the store, replacing an earlier one; copy it if it is on another file system."""
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
        """Return a text that changes with a file, or None if there is none."""
        try:
            status = self.path(name).stat()
        except ABSENT:
            return None
        return f"{status.st_size}-{status.st_mtime_ns}"

    def matches(self, name: str, contents: Contents) -> bool:
        """Return whether a file has these contents."""
        path = self.path(name)
        with contextlib.suppress(OSError):
            return path.is_file() and path.stat().st_size == contents.size and Contents.of(path) == contents
        return False

    @contextlib.contextmanager
    def scratch(self) -> Generator[Path]:
        """Provide an empty folder for drafts, deleted at the end; `upload` moves files out of it."""
        folder = Path(self.url, draft_name("scratch"))
        with explained(folder):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def remove_abandoned(self) -> None:
        """Delete drafts whose process has ended, and those that have not changed for a day.

        Of a process on another machine that shares the folder, only the age of its drafts is known.
        """
        before = time.time() - _ABANDONED_SECONDS
        for folder, folders, files in os.walk(self.url):
            drafts = [name for name in (*folders, *files) if is_draft(name)]
            folders[:] = [name for name in folders if not is_draft(name)]
            for name in drafts:
                draft = os.path.join(folder, name)
                if is_abandoned(name) or last_change(draft) < before:
                    shutil.rmtree(draft, ignore_errors=True)
                    with contextlib.suppress(OSError):
                        os.unlink(draft)


_S3 = frozenset(("s3", "s3a"))
_OBJECT_STORES = _S3 | {"gs", "gcs", "memory", "az", "abfs", "abfss"}
_PARALLEL_READS = 16  # requests at once when many files are read
_HASH_BLOCK_BYTES = 1 << 20  # of a file that is read to find out whether it is damaged
_MAX_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.5  # before the second try; doubled before each further one

# Of the client of S3. It repeats single requests, so that one part of a large file does not cost all others.
_S3_CLIENT = {"connect_timeout": 10, "read_timeout": 30, "retries": {"mode": "standard", "total_max_attempts": 3}}

_TRANSIENT_NUMBERS = frozenset(
    (errno.EBUSY, errno.EAGAIN, errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH, getattr(errno, "EREMOTEIO", -1))
)
_TRANSIENT_CODES = frozenset(  # of S3, with a status below 500
    ("IncompleteBody", "BadDigest", "RequestTimeout", "OperationAborted")
)
_TRANSIENT_CLASSES = frozenset(  # by name: the packages that define them may not be installed
    (
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.ResponseStreamingError",
        "botocore.exceptions.IncompleteReadError",
        "botocore.parsers.ResponseParserError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
    )
)
_NO_CREDENTIALS = frozenset(("NoCredentialsError", "PartialCredentialsError", "PermissionError"))

_Result = TypeVar("_Result")


class _RemoteStore:
    """A folder of a file system that fsspec opens.

    Raises:
        UsageError: fsspec, or the package that it needs for this kind of URL, is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if not url.endswith("://") else url
        self._protocol = url.partition("://")[0]
        self._root = _file_system(self.url, os.getpid())[1]
        # One request, instead of parts of what may be two versions of a file.
        self._whole = {"max_concurrency": 1} if self._protocol in _S3 else {}

    def path(self, name: str) -> None:
        """Return None: files here have no path."""
        del name

    def read(self, name: str) -> bytes | None:
        return self._found("read", name, lambda system, where: system.cat_file(where, **self._whole))

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        with ThreadPoolExecutor(_PARALLEL_READS) as readers:
            return list(readers.map(self.read, names))

    def write(self, name: str, data: bytes) -> None:
        self._put(name, lambda system, where: system.pipe_file(where, data))

    def names(self, prefix: str = "") -> list[str]:
        folder = prefix.rpartition("/")[0] or None
        found = self._found("listed", folder, lambda system, where: system.find(where)) or ()
        names = (path[len(self._root) + 1 :] for path in found if not path.endswith("/"))
        return sorted(name for name in names if name.startswith(prefix) and not any(map(is_draft, name.split("/"))))

    def remove(self, name: str) -> None:
        self._found("deleted", name, lambda system, where: system.rm_file(where))

    def download(self, name: str, path: Path) -> None:
        try:
            self._try("read", name, lambda system, where: system.get_file(where, str(path), **self._whole), ABSENT)
        except ABSENT:
            path.unlink(missing_ok=True)
            raise OutputError(f"{self._address(name)} does not exist") from None
        except OutputError:
            path.unlink(missing_ok=True)
            raise

    def upload(self, path: Path, name: str) -> None:
        """Copy a file into the store, in parts if it is large."""
        if self._protocol == "memory":  # its files are visible while they are being filled
            self.write(name, path.read_bytes())
        else:
            self._put(name, lambda system, where: system.put_file(str(path), where))

    def tag(self, name: str) -> str | None:
        return self._found("read", name, lambda system, where: str(system.ukey(where)))

    def matches(self, name: str, contents: Contents) -> bool:
        """Return whether a file has this size, and this hash unless it is large: it would have to be downloaded."""
        size = self._found("read", name, lambda system, where: system.size(where))
        if size is None or size != contents.size or size > _HASH_BLOCK_BYTES:
            return size == contents.size
        data = self.read(name)
        return data is not None and hashlib.sha256(data).hexdigest() == contents.sha256

    @contextlib.contextmanager
    def scratch(self) -> Generator[Path]:
        with temporary_folder() as folder:
            yield Path(folder)

    def remove_abandoned(self) -> None:
        """Do nothing: unfinished uploads are no files, and a rule of the bucket can delete them."""

    def _put(self, name: str, write: Callable[[Any, str], object]) -> None:
        """Write a file in one request, or beside its destination."""
        if self._protocol in _OBJECT_STORES:
            self._try("written", name, write)
            return
        folder, _, last = self._where(name).rpartition("/")
        draft = f"{folder}/{draft_name(last)}"
        self._try("written", name, lambda system, _: system.makedirs(folder, exist_ok=True))
        try:
            self._try("written", name, lambda system, _: write(system, draft))
            self._try("written", name, lambda system, where: system.mv(draft, where))
        finally:
            with contextlib.suppress(Exception):
                system = _file_system(self.url, os.getpid())[0]
                if system.exists(draft):
                    system.rm_file(draft)

    def _where(self, name: str | None) -> str:
        return self._root if name is None else f"{self._root}/{_checked(name, self.url)}"

    def _address(self, name: str | None) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _found(self, done: str, name: str | None, action: Callable[[Any, str], _Result]) -> _Result | None:
        """Return the result of an action, or None if there is no such file."""
        with contextlib.suppress(*ABSENT):
            return self._try(done, name, action, ABSENT)
        return None

    def _try(
        self,
        done: str,
        name: str | None,
        action: Callable[[Any, str], _Result],
        answers: tuple[type[Exception], ...] = (),
    ) -> _Result:
        """Return the result of an action on the file system, repeated after errors that may pass.

        The action gets the path of the file with this name in the system, or of the folder itself for None. Errors that
        are `answers` are raised as they are; otherwise the message says what cannot be `done`.
        """
        where, system = self._where(name), _file_system(self.url, os.getpid())[0]
        for attempt in range(_MAX_TRIES):
            try:
                return action(system, where)
            except Exception as error:
                if isinstance(error, answers) and _s3_code(error) != "NoSuchBucket":
                    raise
                passing = is_transient(error)
                if not passing or attempt == _MAX_TRIES - 1:
                    message = f"{self._address(name)} cannot be {done}: {reason(error)}"
                    raise OutputError(message, hint=_hint(error, passing)) from error
            time.sleep(
                _FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1)
            )  # not all workers again at the same moment
        raise AssertionError("unreachable")


@functools.cache
def _file_system(url: str, process: int) -> tuple[Any, str]:
    """Return the file system of a URL, and the path of the URL in it; by process, as clients do not survive a fork."""
    del process
    require_installed("fsspec", f"{url} needs", extra="fleet")
    fsspec: Any = importlib.import_module("fsspec")  # it has no types
    protocol = url.partition("://")[0]
    options: dict[str, Any] = {"use_listings_cache": False}  # others write there too
    if protocol in _S3:
        options["config_kwargs"] = _S3_CLIENT | fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
    try:
        fsspec.get_filesystem_class(protocol)
        system, root = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        raise UsageError(
            f"{url} cannot be opened: {reason(error)}", hint="install the package that it names"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{url} cannot be opened: {reason(error)}", hint="give a folder, or s3://BUCKET/NAME"
        ) from error
    if protocol in _S3:
        system.retries = 1  # the client repeats requests already
    return system, root.rstrip("/")


def is_transient(error: BaseException) -> bool:
    """Return whether an error of a file system may pass: timeouts, lost connections, and 5xx from a server."""
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    for name in ("status_code", "status", "code"):  # clients of Google and Azure have it as an attribute
        status = status if isinstance(status, int) else getattr(error, name, None)
    if isinstance(status, int):
        return status == 429 or (status >= 500 and status != 501) or _s3_code(error) in _TRANSIENT_CODES
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    classes = {f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__}
    return bool(classes & _TRANSIENT_CLASSES) or (isinstance(error, OSError) and error.errno in _TRANSIENT_NUMBERS)


def _response(error: BaseException) -> dict[str, Any]:
    """Return the response that a client of S3 stored in an error or in its cause."""
    for candidate in (error, error.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            return response  # pyright: ignore[reportUnknownVariableType]
    return {}


def _s3_code(error: BaseException) -> str | None:
    return _response(error).get("Error", {}).get("Code")


def _hint(error: BaseException, passing: bool) -> str:
    if passing:
        return f"it failed {_MAX_TRIES} times; check the connection and run it again"
    if _s3_code(error) == "NoSuchBucket":
        return "create the bucket first"
    if type(error).__name__ in _NO_CREDENTIALS:
        return "check the credentials, such as AWS_ACCESS_KEY_ID, and what they permit"
    return "check the URL, the credentials and the free space"
