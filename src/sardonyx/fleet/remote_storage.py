"""Stores at a URL, by fsspec.

Object stores (`s3://`, `gs://`, `az://`) and `memory://` publish a file in one request. Everywhere else a file is
written beside its destination and renamed. With `replace=False`, S3 and Google Cloud Storage decide on the server who
was first (a conditional request). Other file systems have no such request: the name is looked up right before it is
written, so that of two writers within milliseconds both may return True, and the later file stays.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sardonyx.atomic_write import draft_name, is_draft
from sardonyx.errors import OutputError, UsageError, reason
from sardonyx.fleet.storage import ABSENT, Contents, Store
from sardonyx.frontend.installed import require_installed
from sardonyx.temporary import temporary_folder

_S3 = frozenset(("s3", "s3a"))
_CONDITIONAL = _S3 | {"gs", "gcs"}
_OBJECT_STORES = _CONDITIONAL | {"memory", "az", "abfs", "abfss"}
_READERS = 16  # requests at once when many files are read
_HASHED = 1 << 20  # bytes of a file that is read to find out whether it is damaged
_TRIES = 5
_PAUSE = 0.5  # seconds before the second try; doubled before each further one

# Of the client of S3. It repeats single requests, so that one part of a large file does not cost all others.
_S3_CLIENT = {"connect_timeout": 10, "read_timeout": 30, "retries": {"mode": "standard", "total_max_attempts": 3}}

_TRANSIENT_NUMBERS = frozenset(
    (errno.EBUSY, errno.EAGAIN, errno.EPIPE, errno.ENETUNREACH, errno.EHOSTUNREACH, getattr(errno, "EREMOTEIO", -1))
)
_TRANSIENT_CODES = frozenset(  # of S3, with a status below 500
    ("IncompleteBody", "BadDigest", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict")
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
_creating = threading.Lock()  # lookup and write are one step at least within a process


class RemoteStore(Store):
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

    def read(self, name: str) -> bytes | None:
        """Return the contents of a file, or None if there is none."""
        where = self._where(name)
        try:
            return self._try("read", name, lambda system: system.cat_file(where, **self._whole), ABSENT)
        except ABSENT:
            return None

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of many files, several at once."""
        with ThreadPoolExecutor(_READERS) as readers:
            return list(readers.map(self.read, names))

    def write(self, name: str, data: bytes, *, replace: bool = True) -> bool:
        """Write a file in one request, or beside its destination."""
        where = self._where(name)
        if self._protocol not in _OBJECT_STORES:
            return self._write_beside(name, lambda system, draft: system.pipe_file(draft, data), replace=replace)
        if not replace:
            return self._create(name, data)
        self._try("written", name, lambda system: system.pipe_file(where, data))
        return True

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with a prefix, sorted."""
        folder = prefix.rpartition("/")[0]
        where = f"{self._root}/{folder}" if folder else self._root
        try:
            found = self._try("listed", folder, lambda system: system.find(where), ABSENT)
        except ABSENT:
            return []
        names = (path[len(self._root) + 1 :] for path in found if not path.endswith("/"))
        return sorted(name for name in names if name.startswith(prefix) and not any(map(is_draft, name.split("/"))))

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        where = self._where(name)
        with contextlib.suppress(*ABSENT):
            self._try("deleted", name, lambda system: system.rm_file(where), ABSENT)

    def download(self, name: str, path: Path) -> None:
        """Copy a file of the store to a path."""
        where = self._where(name)
        try:
            self._try("read", name, lambda system: system.get_file(where, str(path), **self._whole), ABSENT)
        except ABSENT:
            path.unlink(missing_ok=True)
            raise OutputError(f"{self._address(name)} does not exist") from None
        except OutputError:
            path.unlink(missing_ok=True)
            raise

    def upload(self, path: Path, name: str) -> None:
        """Copy a file into the store, in parts if it is large."""
        where = self._where(name)
        if self._protocol == "memory":  # its files are visible while they are being filled
            self.write(name, path.read_bytes())
        elif self._protocol in _OBJECT_STORES:
            self._try("written", name, lambda system: system.put_file(str(path), where))
        else:
            self._write_beside(name, lambda system, draft: system.put_file(str(path), draft), replace=True)

    def tag(self, name: str) -> str | None:
        """Return what the file system knows of a file: size, date, and in S3 its tag."""
        where = self._where(name)
        with contextlib.suppress(*ABSENT):
            return str(self._try("read", name, lambda system: system.ukey(where), ABSENT))
        return None

    def matches(self, name: str, contents: Contents) -> bool:
        """Return whether a file has this size, and this hash unless it is large: it would have to be downloaded."""
        where = self._where(name)
        with contextlib.suppress(*ABSENT):
            size = self._try("read", name, lambda system: system.size(where), ABSENT)
            if size != contents.size or size > _HASHED:
                return size == contents.size
        data = self.read(name)
        return data is not None and hashlib.sha256(data).hexdigest() == contents.sha256

    @contextlib.contextmanager
    def scratch(self) -> Generator[Path]:
        """Make a temporary folder on the local disk."""
        with temporary_folder() as folder:
            yield Path(folder)

    def remove_abandoned(self) -> None:
        """Do nothing: unfinished uploads are no files, and a rule of the bucket can delete them."""

    def _create(self, name: str, data: bytes) -> bool:
        """Write a file that must not exist yet.

        A request may succeed although its response is lost; repeated, it finds the file of the first one. The metadata
        of an S3 object say who wrote it.
        """
        where, writer = self._where(name), uuid.uuid4().hex
        if self._protocol not in _CONDITIONAL:
            with _creating:
                exists = self._try("read", name, lambda system: system.exists(where))
                return not exists and self.write(name, data)
        more = {"Metadata": {"writer": writer}} if self._protocol in _S3 else {}
        try:
            exists = (FileExistsError,)
            self._try("written", name, lambda system: system.pipe_file(where, data, mode="create", **more), exists)
        except FileExistsError:
            if not more:
                return False
            with contextlib.suppress(*ABSENT):  # deleted since
                found = self._try("read", name, lambda system: system.metadata(where), ABSENT)
                return found.get("writer") == writer
            return False
        return True

    def _write_beside(self, name: str, write: Callable[[Any, str], object], *, replace: bool) -> bool:
        folder, _, last = self._where(name).rpartition("/")
        where, draft = f"{folder}/{last}", f"{folder}/{draft_name(last)}"
        self._try("written", name, lambda system: system.makedirs(folder, exist_ok=True))
        try:
            self._try("written", name, lambda system: write(system, draft))
            with _creating:
                if not replace and self._try("read", name, lambda system: system.exists(where)):
                    return False
                self._try("written", name, lambda system: system.mv(draft, where))
        finally:
            with contextlib.suppress(Exception):
                system = _file_system(self.url, os.getpid())[0]
                if system.exists(draft):
                    system.rm_file(draft)
        return True

    def _where(self, name: str) -> str:
        return f"{self._root}/{self._name(name)}"

    def _address(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _try(
        self,
        done: str,
        name: str,
        action: Callable[[Any], _Result],
        answers: tuple[type[Exception], ...] = (),
    ) -> _Result:
        """Return the result of an action on the file system, repeated after errors that may pass.

        Args:
            done: what it does, for the message.
            name: of the file.
            action: called with the file system.
            answers: errors that are an answer, and are raised as they are.

        Raises:
            OutputError: it failed for good, or too often.
        """
        system = _file_system(self.url, os.getpid())[0]
        for attempt in range(_TRIES):
            try:
                return action(system)
            except Exception as error:
                code = _s3_code(error)
                if code == "PreconditionFailed":
                    raise FileExistsError(name) from error
                if isinstance(error, answers) and code != "NoSuchBucket":
                    raise
                passing = is_transient(error)
                if not passing or attempt == _TRIES - 1:
                    message = f"{self._address(name)} cannot be {done}: {reason(error)}"
                    raise OutputError(message, hint=_hint(error, passing)) from error
            time.sleep(_PAUSE * 2**attempt * random.uniform(0.5, 1))  # not all workers again at the same moment
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
    status = _status(error)
    if status is not None:
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


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error; clients of Google and Azure have it as an attribute."""
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    for name in ("status_code", "status", "code"):
        status = status if isinstance(status, int) else getattr(error, name, None)
    return status if isinstance(status, int) else None


def _hint(error: BaseException, passing: bool) -> str:
    if passing:
        return f"it failed {_TRIES} times; check the connection and run it again"
    if _s3_code(error) == "NoSuchBucket":
        return "create the bucket first"
    if type(error).__name__ in _NO_CREDENTIALS:
        return "check the credentials, such as AWS_ACCESS_KEY_ID, and what they permit"
    return "check the URL, the credentials and the free space"
