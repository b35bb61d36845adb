"""The bytes of files: opening, reading, copying and hashing ranges, and the ONNX representation of arrays.

Hashing releases the interpreter's lock, so a thread can do it meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from sardonyx.errors import ModelError

Array = npt.NDArray[Any]
DTYPES: Mapping[int, ir.DataType] = {dtype.value: dtype for dtype in ir.DataType}  # calling the enum is slow
RAW_DATA = 9  # the TensorProto field that holds any array as bytes
BLOCK_BYTES = 1 << 24  # of a tensor that are processed at a time while it is written
_NO_KERNEL_COPY = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM))


class SourceFile:
    """An open file that holds tensors. It stays readable when its path is replaced by another file."""

    __slots__ = ("_fd", "path", "size", "stamp")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path} is not a regular file", hint="give the path of an .onnx file")
        self.size = status.st_size
        self.stamp = (status.st_size, status.st_mtime_ns)  # changes with the file

    @classmethod
    def open(cls, path: str) -> Self:
        """Open a file by its path, without blocking on a pipe."""
        return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)

    def fileno(self) -> int:
        """Return the descriptor, which is valid as long as this object exists."""
        return self._fd

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill a buffer from the file."""
        while view:
            count = os.preadv(self._fd, [view], offset)
            if count == 0:
                raise self._changed()
            view, offset = view[count:], offset + count

    def check(self) -> None:
        """Raise an error if the file was modified since it was opened."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != self.stamp:
            raise self._changed()

    def copy(self, offset: int, length: int, fd: int, position: int) -> None:
        """Copy a range to another file, inside the kernel if possible."""
        self.check()
        while length and (count := self._copy_in_kernel(offset, length, fd, position)):
            offset, length, position = offset + count, length - count, position + count
        buffer = np.empty(min(length, BLOCK_BYTES), np.uint8)
        while length:
            part = buffer[: min(length, BLOCK_BYTES)]
            self.read_into(part.data, offset)
            write_all(fd, part.data, position)
            offset, length, position = offset + part.size, length - part.size, position + part.size

    def _copy_in_kernel(self, offset: int, length: int, fd: int, position: int) -> int:
        if not hasattr(os, "copy_file_range"):
            return 0
        try:
            return os.copy_file_range(self._fd, fd, length, offset, position)
        except OSError as error:
            if error.errno in _NO_KERNEL_COPY:
                return 0
            raise

    def _changed(self) -> ModelError:
        return ModelError(f"{self.path} changed while it was in use", hint="run again once nothing writes to the file")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # the file is shared by every copy of a graph

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


def stored_bytes(dtype: ir.DataType, shape: Sequence[int]) -> int:
    """Return the number of bytes that ONNX needs for a tensor of this type and shape."""
    return (math.prod(shape) * dtype.bitwidth + 7) // 8


def packed(array: Array, dtype: ir.DataType) -> memoryview:
    """Return an array as ONNX stores it."""
    if dtype.bitwidth % 8:
        return memoryview(ir.Tensor(array, dtype=dtype).tobytes())
    return as_bytes(array)


def unpacked(data: Array, dtype: ir.DataType, shape: Sequence[int]) -> Array:
    """Return stored bytes as an array."""
    if dtype.bitwidth % 8:
        return ir.PackedTensor(data, dtype, shape=shape).numpy()
    return data.view(dtype.numpy()).reshape(shape)


def write_all(fd: int, data: memoryview, position: int) -> None:
    """Write all data; the kernel may accept it in parts."""
    while data:
        count = os.pwrite(fd, data, position)
        data, position = data[count:], position + count


def as_bytes(array: Array) -> memoryview:
    """Return the memory of an array, contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


_HASH_BLOCK_BYTES = 1 << 20  # that are hashed at a time


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
        self._fd, self._end, self._sum = fd, 0, hashlib.sha256()
        self._pool, self._parts = ThreadPoolExecutor(1), list[Future[None]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def written(self, end: int, least: int = _HASH_BLOCK_BYTES) -> None:
        """Hash what was written since the last call, in the order of the calls, if it is at least so many bytes."""
        if end - self._end >= least:
            self._parts.append(self._pool.submit(self._read, self._end, end))
            self._end = end

    def result(self, end: int) -> str:
        """Return the hash of the file up to its end."""
        self.written(end, 1)
        for part in self._parts:
            part.result()
        return self._sum.hexdigest()

    def _read(self, start: int, end: int) -> None:
        while start < end:
            data = os.pread(self._fd, min(_HASH_BLOCK_BYTES, end - start), start)
            if not data:
                raise OSError(f"the file ends at byte {start} while it is written")
            self._sum.update(data)
            start += len(data)
