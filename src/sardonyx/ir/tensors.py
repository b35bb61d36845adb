"""Tensors that are not in memory: bytes in a file, a transpose of another tensor, a value computed on demand.

They read or compute their values on every access and cache nothing, and they can write themselves to a file without
having all bytes in memory at once. The memory of a model therefore depends on its graph, not on its weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from onnx_ir.serde import TensorProtoTensor

from sardonyx.ir.expressions import Expression, concatenate, reshape, transpose
from sardonyx.ir.storage import BLOCK_BYTES, DTYPES, RAW_DATA, Array, SourceFile, as_bytes, packed, unpacked, write_all

# The transpose of a tensor in a file is written a block at a time.
#
# Axes that stay together count as one axis, so most permutations swap the rows and columns of matrices whose elements
# have a few bytes or more: (batch, rows, columns, inner) becomes (batch, columns, rows, inner). A matrix is processed
# in the direction with the longer runs in the file: read rows and scatter columns, or gather columns and write rows.
# Within a block, tiles fit into the cache.

_TILE_ROWS, _TILE_COLUMNS = 64, 256


class Swap(Struct, frozen=True):
    """`batch` matrices of rows × columns elements of `width` bytes each, to be transposed."""

    batch: int
    rows: int
    columns: int
    width: int


def as_swap(shape: Sequence[int], perm: Sequence[int], itemsize: int) -> Swap | None:
    """Return the permutation as a swap of two adjacent groups of axes, or None if it is not one."""
    axes = [axis for axis in perm if shape[axis] != 1]
    order = sorted(axes)
    first = next((i for i, axis in enumerate(axes) if axis != order[i]), None)
    if first is None:
        return Swap(1, 1, math.prod(shape), itemsize)
    last = max(i for i, axis in enumerate(axes) if axis != order[i]) + 1
    split = order.index(axes[first])  # the start of the group that moves to the front
    if axes[first:last] != order[split:last] + order[first:split]:
        return None
    size = [shape[axis] for axis in order]
    batch, rows, columns, inner = (
        math.prod(part) for part in (size[:first], size[first:split], size[split:last], size[last:])
    )
    return Swap(batch, rows, columns, inner * itemsize)


def write_swapped(file: SourceFile, offset: int, swap: Swap, fd: int, position: int) -> None:
    """Write the transposed matrices to an open file."""
    size = swap.rows * swap.columns * swap.width
    write = _scatter if size <= BLOCK_BYTES or swap.rows >= swap.columns else _gather
    for index in range(swap.batch if size else 0):
        write(file, offset + index * size, swap, fd, position + index * size)


def _scatter(file: SourceFile, offset: int, swap: Swap, fd: int, position: int) -> None:
    """Transpose by reading whole rows; each column of the block is a run in the output."""
    step = min(swap.rows, max(1, BLOCK_BYTES // (swap.columns * swap.width)))
    data, transposed_block = _buffers(step, swap.columns, swap.width)
    for start in range(0, swap.rows, step):
        count = min(step, swap.rows - start)
        file.read_into(as_bytes(data[:count]), offset + start * swap.columns * swap.width)
        _transpose_block(data[:count], transposed_block)
        if count == swap.rows:  # the whole matrix: its columns are contiguous
            write_all(fd, as_bytes(transposed_block), position)
            return
        run = count * swap.width
        for column in range(swap.columns):
            target = position + (column * swap.rows + start) * swap.width
            write_all(fd, as_bytes(transposed_block[column])[:run], target)


def _gather(file: SourceFile, offset: int, swap: Swap, fd: int, position: int) -> None:
    """Transpose by reading a run of every row; the columns of the block are contiguous in the output."""
    step = min(swap.columns, max(1, BLOCK_BYTES // (swap.rows * swap.width)))
    data, transposed_block = _buffers(swap.rows, step, swap.width)
    for start in range(0, swap.columns, step):
        count = min(step, swap.columns - start)
        for row in range(swap.rows):
            file.read_into(as_bytes(data[row, :count]), offset + (row * swap.columns + start) * swap.width)
        _transpose_block(data[:, :count], transposed_block[:count])
        write_all(fd, as_bytes(transposed_block[:count]), position + start * swap.rows * swap.width)


def _buffers(rows: int, columns: int, width: int) -> tuple[Array, Array]:
    """Return a block and its transpose, with elements that numpy can copy."""
    element = np.dtype(f"u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))
    return np.empty((rows, columns), element), np.empty((columns, rows), element)


def _transpose_block(block: Array, transposed_block: Array) -> None:
    rows, columns = block.shape
    for i in range(0, columns, _TILE_COLUMNS):
        for j in range(0, rows, _TILE_ROWS):
            tile = block[j : j + _TILE_ROWS, i : i + _TILE_COLUMNS].T
            transposed_block[i : i + _TILE_COLUMNS, j : j + tile.shape[1]] = tile


def _unused() -> ir.TensorProtocol:
    raise AssertionError("a streamed tensor creates its own values")


class StreamedTensor(ir.LazyTensor):
    """The base of all tensors here: values are created on every access, and can be written straight to a file.

    `definition` is what a tensor that a rewrite made is in terms of the tensors that it was made from.
    """

    __slots__ = ("definition",)

    def __init__(
        self,
        dtype: ir.DataType,
        shape: Sequence[int],
        like: ir.TensorProtocol | None = None,
        definition: Expression | None = None,
    ) -> None:
        super().__init__(_unused, dtype, ir.Shape(shape, frozen=True))
        self.definition = definition
        if like is not None:
            self.name = like.name
            self.doc_string = like.doc_string
            if like.metadata_props:
                self.metadata_props.update(like.metadata_props)

    @property
    def raw(self) -> Any:
        """Return the tensor itself, because there is no buffer behind it."""
        return self

    @abstractmethod
    def numpy(self) -> Array:
        """Return the values, read or computed on every call."""

    def _evaluate(self) -> ir.TensorProtocol:
        return ir.Tensor(self.numpy(), dtype=self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.dtype},{self.shape}>(name={self.name!r})"

    def write_to(self, fd: int, position: int) -> None:
        """Write the values to an open file at a position."""
        write_all(fd, packed(self.numpy(), self.dtype), position)


class FileTensor(StreamedTensor):
    """A range of bytes in a file.

    `skeleton` is the TensorProto it was read from, without the data, so that saving restores all of it; `field` is the
    TensorProto field that held the bytes.
    """

    __slots__ = ("field", "file", "length", "offset", "skeleton")

    def __init__(
        self,
        file: SourceFile,
        offset: int,
        length: int,
        dtype: ir.DataType,
        shape: Sequence[int],
        *,
        like: ir.TensorProtocol | None = None,
        skeleton: onnx.TensorProto | None = None,
        field: int = RAW_DATA,
    ) -> None:
        super().__init__(dtype, shape, like if skeleton is None else ProtoTensor(skeleton))
        self.file = file
        self.offset = offset
        self.length = length
        self.skeleton = skeleton
        self.field = field

    @property
    def nbytes(self) -> int:
        """Return the number of bytes; it was checked against type and shape when the tensor was created."""
        return self.length

    def numpy(self) -> Array:
        """Return the values, read from the file."""
        return unpacked(self._read(0, self.length), self.dtype, self.shape.numpy())

    def tobytes(self) -> bytes:
        """Return the bytes as they are in the file."""
        return self._read(0, self.length).tobytes()

    def write_to(self, fd: int, position: int) -> None:
        """Copy the bytes without reading them into memory."""
        self.file.copy(self.offset, self.length, fd, position)

    def lines(self, start: int, stop: int) -> Array:
        """Return a range of the first axis; only these bytes are read. For types of whole bytes."""
        count, *rest = self.shape.numpy()
        width = self.length // count
        return unpacked(self._read(start * width, (stop - start) * width), self.dtype, (stop - start, *rest))

    def reshaped(self, shape: Sequence[int]) -> FileTensor:
        """Return the same bytes with another shape."""
        view = FileTensor(self.file, self.offset, self.length, self.dtype, shape, like=self)
        view.definition = reshape(self, shape)
        return view

    def _read(self, start: int, length: int) -> Array:
        self.file.check()
        data = np.empty(length, np.uint8)
        self.file.read_into(data.data, self.offset + start)
        return data


class TransposedTensor(StreamedTensor):
    """Another tensor with its axes permuted, written block by block."""

    __slots__ = ("perm", "source")

    def __init__(self, source: ir.TensorProtocol, perm: Sequence[int]) -> None:
        shape = source.shape.numpy()
        super().__init__(source.dtype, [shape[axis] for axis in perm], source, transpose(source, perm))
        self.source = source
        self.perm = tuple(perm)

    def numpy(self) -> Array:
        """Return the permuted values as a contiguous copy."""
        return np.ascontiguousarray(self.source.numpy().transpose(self.perm))

    def write_to(self, fd: int, position: int) -> None:
        """Write the values; those of a file tensor are processed in blocks."""
        source = self.source
        if isinstance(source, FileTensor) and self.dtype.bitwidth % 8 == 0:
            swap = as_swap(source.shape.numpy(), self.perm, self.dtype.bitwidth // 8)
            if swap is not None:
                source.file.check()
                write_swapped(source.file, source.offset, swap, fd, position)
                return
        super().write_to(fd, position)


class ReshapedTensor(StreamedTensor):
    """Another tensor with another shape, stored with the same bytes."""

    __slots__ = ("source",)

    def __init__(self, source: ir.TensorProtocol, shape: Sequence[int]) -> None:
        super().__init__(source.dtype, shape, source, reshape(source, shape))
        self.source = source

    def numpy(self) -> Array:
        """Return the values in the new shape."""
        return self.source.numpy().reshape(self.shape.numpy())

    def write_to(self, fd: int, position: int) -> None:
        """Write the bytes of the source."""
        write_tensor(self.source, fd, position)


class ComputedTensor(StreamedTensor):
    """Values that a function computes whenever they are needed."""

    __slots__ = ("_compute",)
    is_checked: ClassVar[bool] = True  # whether a rewrite that adds it first looks for infinities and lost precision

    def __init__(
        self,
        dtype: ir.DataType,
        shape: Sequence[int],
        compute: Callable[[], Array],
        *,
        like: ir.TensorProtocol | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dtype, shape, like)
        self._compute = compute
        if name is not None:
            self.name = name

    def numpy(self) -> Array:
        """Return the values, computed on every call."""
        array = self._compute()
        if array.dtype != self.dtype.numpy() or array.shape != self.shape.numpy():
            declared = f"{self.dtype}{list(self.shape.numpy())}"
            raise AssertionError(
                f"{self.name!r} is declared as {declared}, computed as {array.dtype}{list(array.shape)}"
            )
        return array


class ExpressionTensor(ComputedTensor):
    """The values of an expression; small ones are kept, and the others computed whenever they are needed."""

    __slots__ = ()
    is_checked = False  # it was when it was computed

    def __init__(
        self, definition: Expression, dtype: ir.DataType, shape: Sequence[int], kept: Array | None = None
    ) -> None:
        """Use `kept` as the values if they are known already."""
        super().__init__(dtype, shape, definition.numpy if kept is None else lambda: kept)
        self.definition = definition


class SparseTensor(StreamedTensor):
    """A tensor stored by its non-zero values; reading it gives the dense array, saving it keeps it sparse."""

    __slots__ = ("indices", "values")

    def __init__(self, values: ir.TensorProtocol, indices: ir.TensorProtocol, shape: Sequence[int]) -> None:
        super().__init__(values.dtype, shape)
        self.name = values.name
        self.values = values
        self.indices = indices

    def numpy(self) -> Array:
        """Return the dense values."""
        dense = np.zeros(self.shape.numpy(), self.dtype.numpy())
        indices = self.indices.numpy()
        where = np.unravel_index(indices, dense.shape) if indices.ndim == 1 else tuple(indices.T)
        dense[where] = self.values.numpy()
        return dense


class ProtoTensor(TensorProtoTensor):
    """A small tensor kept as the TensorProto it was read from, which is never modified.

    Type, shape and size are read from the proto once, because they are queried very often.
    """

    __slots__ = ("_nbytes", "dtype", "name", "shape")

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(proto)
        name, dtype, shape = proto.name, DTYPES[proto.data_type], ir.Shape(proto.dims, frozen=True)
        self.name, self.dtype, self.shape = name, dtype, shape  # pyright: ignore[reportIncompatibleMethodOverride, reportAttributeAccessIssue]
        self._nbytes = 0 if self.dtype == ir.DataType.UNDEFINED else -1  # -1: computed on demand

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the data."""
        if self._nbytes < 0:
            self._nbytes = super().nbytes
        return self._nbytes

    @property
    def skeleton(self) -> onnx.TensorProto:
        """Return the proto; integers in its list may be shorter or longer than in memory."""
        return self._proto


class ProtoStrings(ir.StringTensor):
    """A string tensor that keeps the TensorProto it was read from, as `skeleton`."""

    __slots__ = ("skeleton",)

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(
            list(proto.string_data),
            shape=ir.Shape(proto.dims),
            name=proto.name,
            doc_string=proto.doc_string,
            metadata_props={entry.key: entry.value for entry in proto.metadata_props},
        )
        self.skeleton = proto


KEPT = (ProtoTensor, ProtoStrings)


def string_bytes(text: str | bytes) -> bytes:
    """Return a string attribute as bytes; in ONNX they are bytes that are not always UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def tensor_proto(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Return a tensor as a message with its data inline."""
    proto = onnx.TensorProto(name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy())
    if isinstance(tensor, ir.StringTensor):
        proto.string_data.extend(tensor.string_data())
    else:
        proto.raw_data = tensor.tobytes()
    return proto


def transposed(tensor: ir.TensorProtocol, perm: Sequence[int]) -> TransposedTensor:
    """Return a lazy transpose; the transpose of a transpose becomes one."""
    if isinstance(tensor, TransposedTensor):
        view = TransposedTensor(tensor.source, [tensor.perm[axis] for axis in perm])
        view.definition = transpose(tensor, perm)
        return view
    return TransposedTensor(tensor, perm)


def reshaped(tensor: ir.TensorProtocol, shape: Sequence[int]) -> StreamedTensor:
    """Return a lazy reshape to a fully known shape."""
    if isinstance(tensor, FileTensor):
        return tensor.reshaped(shape)
    return ReshapedTensor(tensor, shape)


def stripes(tensor: ir.TensorProtocol, step: int) -> Iterator[tuple[int, Array]]:
    """Return the values in ranges of the first axis, with their starts; a file tensor is read one range at a time."""
    count = tensor.shape.numpy()[0]
    values = tensor if isinstance(tensor, FileTensor) else tensor.numpy()
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield start, values.lines(start, stop) if isinstance(values, FileTensor) else values[start:stop]


def write_tensor(tensor: ir.TensorProtocol, fd: int, position: int) -> None:
    """Write the bytes of any tensor to an open file at a position."""
    if isinstance(tensor, StreamedTensor):
        tensor.write_to(fd, position)
    elif isinstance(tensor, ir.ExternalTensor):
        SourceFile.open(tensor.path).copy(tensor.offset or 0, tensor.nbytes, fd, position)
    else:
        write_all(fd, memoryview(tensor.tobytes()), position)


WHOLE = 4 * BLOCK_BYTES  # bytes up to which a concatenated tensor is assembled in memory


class ConcatTensor(StreamedTensor):
    """Tensors of equal type and leading axes, concatenated lazily along the last axis; used for packed weights."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[ir.TensorProtocol]) -> None:
        shapes = [part.shape.numpy() for part in parts]
        assert len({(part.dtype, shape[:-1]) for part, shape in zip(parts, shapes, strict=True)}) == 1
        assert parts[0].dtype.bitwidth % 8 == 0, "sub-byte elements share bytes with their neighbours"
        shape = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        super().__init__(parts[0].dtype, shape, definition=concatenate(parts, -1))
        self.parts = tuple(parts)

    def numpy(self) -> Array:
        """Return the concatenated values."""
        joined = np.empty(self.shape.numpy(), self.dtype.numpy())
        ends = np.cumsum([part.shape.numpy()[-1] for part in self.parts])
        for part, place in zip(self.parts, np.split(joined, ends[:-1], -1), strict=True):
            place[...] = part.numpy()
        return joined

    def write_to(self, fd: int, position: int) -> None:
        """Write the values; of a large tensor only one part is in memory at a time."""
        if self.nbytes <= WHOLE:
            super().write_to(fd, position)
            return
        item = self.dtype.bitwidth // 8
        stride = self.shape.numpy()[-1] * item
        for part in self.parts:
            width = part.shape.numpy()[-1]
            for index, row in enumerate(part.numpy().reshape(-1, width)):
                write_all(fd, as_bytes(row), position + index * stride)
            position += width * item
