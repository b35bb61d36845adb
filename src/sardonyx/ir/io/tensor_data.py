"""Tensor data in the bytes of a ModelProto: found and replaced without parsing it, and read as tensors.

A tensor becomes a range of the model file, a range of an external file, or is kept in memory.
"""

from __future__ import annotations

import bisect
import errno
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import ModelError
from sardonyx.ir.io.unmodeled_fields import without
from sardonyx.ir.storage import DTYPES, RAW_DATA, SourceFile, stored_bytes
from sardonyx.ir.tensors import FileTensor, ProtoStrings, ProtoTensor

FLOAT_DATA, DOUBLE_DATA = 4, 10  # besides RAW_DATA, the TensorProto fields whose payload is the plain array
EXTERNAL_DATA, DATA_LOCATION = 13, 14
_PAYLOADS = frozenset((RAW_DATA, FLOAT_DATA, DOUBLE_DATA))
_BYTES = 2  # wire type of strings, bytes, packed arrays and messages
_FIXED = {1: 8, 5: 4}  # wire types of numbers: their sizes
_GROUP, _GROUP_END = 3, 4  # wire types of a message without a length; only unknown fields have them
_MAX_DEPTH = 100  # the limit of protobuf parsers
_WINDOW = 1 << 14  # bytes read at once; small, because a walk skips from one large tensor to the next

# message -> {field: message} on every path from a model to a tensor
_TREE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
# message -> fields that hold one tensor; a parser merges the contents of such a field if it occurs several times
_MERGED: dict[str, frozenset[int]] = {"attribute": frozenset((5, 22)), "sparse": frozenset((1, 2))}


class WireError(ValueError):
    """The bytes are not a protobuf message, or not a complete one."""


class Span(Struct, frozen=True):
    """The position of a payload in the file, and the TensorProto field it belongs to."""

    offset: int
    length: int
    field: int


class Field(NamedTuple):
    """One field of a message: number, wire type, and where its tag, its payload and the next field start."""

    number: int
    wire: int
    tag: int
    body: int
    stop: int


class Hole(Struct, frozen=True):
    """A gap of `size` bytes that the caller fills in."""

    index: int
    size: int


Piece = bytes | Hole


class Bytes:
    """Random access to a file or a buffer through a window, so that skipped payloads are never read."""

    def __init__(self, source: SourceFile | bytes) -> None:
        self._file = None if isinstance(source, bytes) else source
        self.size = len(source) if isinstance(source, bytes) else source.size
        self._base, self._window = 0, source if isinstance(source, bytes) else b""

    def read(self, start: int, stop: int) -> bytes:
        """Return a copy of one range."""
        if self._base <= start and stop <= self._base + len(self._window):
            return self._window[start - self._base : stop - self._base]
        data = b"" if self._file is None else os.pread(self._file.fileno(), stop - start, start)
        if len(data) < stop - start:
            raise WireError("the file ends too early")
        return data

    def fields(self, start: int, stop: int, groups: tuple[int, ...] = ()) -> Iterator[Field]:
        """Yield the fields of the message between two positions.

        `groups` are the numbers of the groups around them; the last field is then the end of the innermost one.
        """
        position = start
        while position < stop:
            tag, body = self._varint(position, stop)
            number, wire = tag >> 3, tag & 7
            if wire == _BYTES:
                length, body = self._varint(body, stop)
                end = body + length
            elif wire == 0:
                end = self._varint(body, stop)[1]
            elif wire in _FIXED:
                end = body + _FIXED[wire]
            elif wire == _GROUP:
                if len(groups) >= _MAX_DEPTH:
                    raise WireError("messages are nested too deep")
                end = body
                for field in self.fields(body, stop, (*groups, number)):
                    end = field.stop
            elif wire == _GROUP_END and groups:
                yield Field(number, wire, position, body, body)
                return
            else:
                raise WireError(f"no protobuf field starts at byte {position}")
            if end > stop or not number:
                what = "ends too early" if end > stop and stop == self.size else "is damaged"
                raise WireError(f"the file {what} (byte {position})")
            yield Field(number, wire, position, body, end)
            position = end
        if groups:
            raise WireError("the file ends too early" if stop == self.size else "the file is damaged")

    def _varint(self, position: int, stop: int) -> tuple[int, int]:
        index = position - self._base
        if index < 0 or (index + 10 > len(self._window) and self._base + len(self._window) < self.size):
            self._window = self.read(position, min(position + _WINDOW, self.size))
            self._base, index = position, 0
        window = self._window
        value = shift = 0
        limit = min(len(window), index + 10, stop - self._base)
        while index < limit:
            byte = window[index]
            index += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, index + self._base
            shift += 7
        raise WireError(f"the file ends too early (byte {position})" if stop == self.size else "the file is damaged")


def varint(value: int) -> bytes:
    """Return a number in protobuf's variable-length encoding."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def cut(source: Bytes, token: bytes, threshold: int) -> tuple[bytes, list[Span]]:
    """Return the model without tensor payloads of at least `threshold` bytes.

    Args:
        source: The bytes of a ModelProto.
        token: Bytes that do not occur in the model; payload number i becomes raw_data = token + i.
        threshold: Smaller payloads stay in the message.

    Returns:
        The bytes of the small ModelProto, and the position of each payload.
    """
    spans: list[Span] = []

    def replace_payload(start: int, stop: int) -> list[Piece] | None:
        payloads = [field for field in source.fields(start, stop) if field.number in _PAYLOADS]
        if len(payloads) != 1 or payloads[0].wire != _BYTES or payloads[0].stop - payloads[0].body < threshold:
            return None  # small, absent, or in several parts, which only a parser can join
        field = payloads[0]
        marker = token + varint(len(spans))
        spans.append(Span(field.body, field.stop - field.body, field.number))
        replacement = _prefix(RAW_DATA, len(marker)) + marker
        return [source.read(start, field.tag), replacement, source.read(field.stop, stop)]

    pieces = _rewritten(source, lambda start, stop: stop - start >= threshold, replace_payload)
    return b"".join(piece for piece in pieces if isinstance(piece, bytes)), spans


def splice(skeleton: bytes, token: bytes, fill: Callable[[int], list[Piece]], *, external: bool) -> list[Piece]:
    """Return the pieces of the file, with the fields of `fill(i)` in place of the field that holds marker number i.

    Args:
        skeleton: The bytes of a ModelProto with markers.
        token: The start of every marker.
        fill: Returns complete TensorProto fields for a marker.
        external: Whether the fields refer to another file; existing references are then removed.
    """
    source = Bytes(skeleton)
    markers = [match.start() for match in re.finditer(re.escape(token), skeleton)]
    dropped = (EXTERNAL_DATA, DATA_LOCATION) if external else ()

    def replace_payload(start: int, stop: int) -> list[Piece]:
        pieces: list[Piece] = []
        for field in source.fields(start, stop):
            if field.number == RAW_DATA and skeleton.startswith(token, field.body):
                pieces += fill(marker_index(skeleton[field.body : field.stop], token))
            elif field.number not in dropped:
                pieces.append(skeleton[field.tag : field.stop])
        return pieces

    def holds_marker(start: int, stop: int) -> bool:
        index = bisect.bisect_left(markers, start)
        return index < len(markers) and markers[index] < stop

    return _rewritten(source, holds_marker, replace_payload)


def marker_index(marker: bytes, token: bytes) -> int:
    """Return the number of the payload that a marker stands for."""
    return Bytes(marker)._varint(len(token), len(marker))[0]  # pyright: ignore[reportPrivateUsage] (same file)


def hole(field: int, index: int, size: int) -> list[Piece]:
    """Return a payload field with a gap for its bytes."""
    return [_prefix(field, size), Hole(index, size)]


def size_of(pieces: list[Piece]) -> int:
    """Return the number of bytes of the pieces."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in pieces)


def _rewritten(
    source: Bytes,
    enter: Callable[[int, int], bool],
    replace_payload: Callable[[int, int], list[Piece] | None],
    kind: str = "model",
    start: int = 0,
    stop: int | None = None,
    depth: int = 0,
) -> list[Piece]:
    """Return the pieces of one message, with the payloads of the tensors in it replaced."""
    if depth > _MAX_DEPTH:
        raise WireError("messages are nested too deep")
    stop = source.size if stop is None else stop
    pieces: list[Piece] = []
    copied = start
    fields: Iterable[Field] = source.fields(start, stop)
    merged = set[int]()  # fields whose occurrences a parser merges: none is a complete tensor
    if kind in _MERGED:
        fields = [*fields]
        counts = Counter(field.number for field in fields)
        merged = {number for number in _MERGED[kind] if counts[number] > 1}
    for field in fields:
        child = None if field.number in merged else _TREE[kind].get(field.number)
        if child is None or field.wire != _BYTES or not enter(field.body, field.stop):
            continue
        if child == "tensor":
            inner = replace_payload(field.body, field.stop)
        else:
            inner = _rewritten(source, enter, replace_payload, child, field.body, field.stop, depth + 1)
        if inner is not None:
            pieces += [source.read(copied, field.tag), _prefix(field.number, size_of(inner)), *inner]
            copied = field.stop
    return [*pieces, source.read(copied, stop)]


def _prefix(field: int, size: int) -> bytes:
    return varint(field << 3 | _BYTES) + varint(size)


_REFERENCE = ("location", "offset", "length")
_FIELDS = {  # the fields for the data of types; all others use int32_data
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
_DATA_FIELDS = ("int32_data", *dict.fromkeys(_FIELDS.values()))
_LONGEST_NUMBER = 20  # digits of the largest offset in a file


class Reader:
    """Creates the tensors of one model."""

    def __init__(
        self,
        *,
        folder: str | None = None,
        file: SourceFile | None = None,
        token: bytes = b"",
        spans: Sequence[Span] = (),
    ) -> None:
        self.used_external = False
        self._folder = folder
        self._file = file
        self._token = token
        self._spans = spans
        self._opened: dict[str, SourceFile] = {}

    def __call__(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Return the tensor that a TensorProto describes."""
        dtype = DTYPES.get(proto.data_type)
        if dtype is None:
            raise ModelError(
                f"tensor {proto.name!r} has the unknown element type {proto.data_type}",
                hint="a newer version of the onnx package may know it",
            )
        if isinstance(proto.name, bytes):  # as protobuf returns text that is not UTF-8
            raise ModelError(f"the name {proto.name!r} of a tensor is not UTF-8", hint="export the model again")
        if any(size < 0 for size in proto.dims):
            raise _invalid_tensor(proto, "has a negative dimension")
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(proto, dtype)
        raw = proto.raw_data if proto.HasField("raw_data") else None
        if raw is not None and self._token and raw.startswith(self._token):
            return self._in_model_file(proto, dtype, self._spans[marker_index(raw, self._token)])
        _check_inline(proto, dtype, raw)
        return ProtoStrings(proto) if dtype == ir.DataType.STRING else ProtoTensor(proto)

    def _in_model_file(self, proto: onnx.TensorProto, dtype: ir.DataType, span: Span) -> FileTensor:
        assert self._file is not None
        field = onnx.TensorProto.DESCRIPTOR.fields_by_number[span.field].name
        if field not in ("raw_data", _FIELDS.get(dtype)):
            raise _invalid_tensor(proto, f"of type {dtype} has its data in a field for another type")
        _checked_length(proto, dtype, span.length)
        skeleton = without(proto, "raw_data")
        return FileTensor(self._file, span.offset, span.length, dtype, proto.dims, skeleton=skeleton, field=span.field)

    def _external(self, proto: onnx.TensorProto, dtype: ir.DataType) -> FileTensor:
        self.used_external = True
        entries = {entry.key: entry.value for entry in proto.external_data}
        if any(isinstance(text, bytes) for text in entries.values()):
            raise _invalid_tensor(proto, "has external data with text that is not UTF-8")
        location = entries.get("location", "")
        offset = _number(proto, entries, "offset") or 0
        length = _checked_length(proto, dtype, _number(proto, entries, "length"))
        file = self._opened.get(location)
        if file is None:
            file = self._opened[location] = open_below(self._folder, location, proto.name)
        if offset + length > file.size:
            raise ModelError(
                f"data of tensor {proto.name!r} ends at byte {offset + length}, but {location!r} has {file.size}",
                hint="the data file is truncated or belongs to another model: copy it again",
            )
        skeleton = without(proto, "data_location", "external_data")
        skeleton.external_data.extend(entry for entry in proto.external_data if entry.key not in _REFERENCE)
        return FileTensor(file, offset, length, dtype, proto.dims, skeleton=skeleton)


def open_below(folder: str | None, location: str, name: str) -> SourceFile:
    """Open a file in the folder of the model, refusing absolute paths, `..` and symbolic links."""
    if folder is None:
        raise ModelError(
            f"tensor {name!r} has external data, but a model in memory has no folder",
            hint="give the path of the model file instead",
        )
    parts = [part for part in location.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts:
        raise ModelError(f"tensor {name!r} has external data but no location", hint="export the model again")
    if os.path.isabs(location) or location.startswith("\\") or ":" in parts[0]:
        raise _outside(name, location, "is absolute")
    if "\0" in location:
        raise _outside(name, location, "contains a NUL")
    if ".." in parts:
        raise _outside(name, location, "leads out of the model's folder")
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            subfolder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = subfolder
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return SourceFile(os.open(parts[-1], flags, dir_fd=fd), os.path.join(folder, *parts))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _outside(name, location, "goes through a symbolic link") from error
        raise ModelError(
            f"external data {location!r} of tensor {name!r} cannot be opened: {os.strerror(error.errno or 0)}",
            hint="put the data file next to the model",
        ) from error
    finally:
        os.close(fd)


def _outside(name: str, location: str, why: str) -> ModelError:
    return ModelError(
        f"external data path {location!r} of tensor {name!r} {why}",
        hint="for safety, data is only read from the model's own folder: copy the file there",
    )


def _number(proto: onnx.TensorProto, entries: Mapping[str, str], key: str) -> int | None:
    text = entries.get(key)
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        raise _invalid_tensor(proto, f"has external data with {key} {text[:40]!r}")
    return None if text is None else int(text)


def _checked_length(proto: onnx.TensorProto, dtype: ir.DataType, stated: int | None) -> int:
    """Return the number of bytes of raw data, which is that of the file if it states one."""
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise _invalid_tensor(proto, f"of type {dtype} cannot have raw data")
    expected = stored_bytes(dtype, proto.dims)
    if stated not in (None, expected):
        raise _invalid_tensor(proto, f"has {stated} bytes of data; {dtype}{list(proto.dims)} takes {expected}")
    return expected


def _check_inline(proto: onnx.TensorProto, dtype: ir.DataType, raw: bytes | None) -> None:
    if raw is not None:
        _checked_length(proto, dtype, len(raw))
        return
    if dtype == ir.DataType.UNDEFINED or proto.HasField("segment"):
        return  # preserved as it is, but not readable
    own = _FIELDS.get(dtype, "int32_data")
    if any(len(getattr(proto, field)) for field in _DATA_FIELDS if field != own):
        raise _invalid_tensor(proto, f"of type {dtype} has its data in a field for another type")
    count = len(getattr(proto, own))
    elements = math.prod(proto.dims)
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        elements *= 2
    elif dtype != ir.DataType.STRING and dtype.bitwidth in (2, 4):
        elements = stored_bytes(dtype, proto.dims)  # packed, one byte in each int32
    if count != elements:
        raise _invalid_tensor(proto, f"has {count} entries of data; {dtype}{list(proto.dims)} takes {elements}")


def _invalid_tensor(proto: onnx.TensorProto, what: str) -> ModelError:
    return ModelError(f"tensor {proto.name!r} {what}", hint="the model is damaged: export or download it again")
