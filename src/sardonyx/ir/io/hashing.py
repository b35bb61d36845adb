"""SHA-256 sums of files, read in blocks; hashing releases the interpreter's lock, so a thread can do it meanwhile."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from typing import Self

_BLOCK = 1 << 20


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the hash of a file."""
    return _of_file(open(path, "rb"))


def sha256_in(pool: ThreadPoolExecutor, path: str | os.PathLike[str]) -> Future[str]:
    """Compute the hash of a file in a pool; it is opened now, so that it may be replaced afterwards."""
    return pool.submit(_of_file, open(path, "rb"))


def _of_file(file: BufferedReader) -> str:
    with file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class GrowingHash:
    """The hash of a file that is written from its start to its end, computed while it is written."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._sum = hashlib.sha256()
        self._parts: list[Future[None]] = []
        self._end = 0
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def written(self, end: int) -> None:
        """Hash what was written since the last call, in the order of the calls."""
        if end - self._end >= _BLOCK:
            self._submit(end)

    def result(self, end: int) -> str:
        """Return the hash of the file up to its end."""
        self._submit(end)
        for part in self._parts:
            part.result()
        return self._sum.hexdigest()

    def _submit(self, end: int) -> None:
        self._parts.append(self._pool.submit(self._read, self._end, end))
        self._end = end

    def _read(self, start: int, end: int) -> None:
        while start < end:
            data = os.pread(self._fd, min(_BLOCK, end - start), start)
            if not data:
                raise OSError(f"the file ends at byte {start} while it is written")
            self._sum.update(data)
            start += len(data)
