"""Create tensors from TensorProtos: as a range of the model file, a range of an external file, or kept in memory.

Everything that a tensor states about its data is checked here, before the data is read: that the bytes fit the type and
shape, that an external file exists, is long enough, and is in the folder of the model.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from sardonyx.errors import ModelError
from sardonyx.ir.io.wire_format import DOUBLE_DATA, FLOAT_DATA, Span, marker_index
from sardonyx.ir.storage import RAW_DATA, SourceFile, stored_bytes
from sardonyx.ir.tensors import FileTensor, ProtoStrings, ProtoTensor

_REFERENCE = ("location", "offset", "length")
_STORED_AS = {  # the types whose data these fields hold unchanged
    FLOAT_DATA: (ir.DataType.FLOAT, ir.DataType.COMPLEX64),
    DOUBLE_DATA: (ir.DataType.DOUBLE, ir.DataType.COMPLEX128),
}
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
        try:
            dtype = ir.DataType(proto.data_type)
        except ValueError:
            raise ModelError(
                f"tensor {proto.name!r} has the unknown element type {proto.data_type}",
                hint="a newer version of the onnx package may know it",
            ) from None
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
        if dtype not in _STORED_AS.get(span.field, (dtype,)):
            raise _invalid_tensor(proto, f"of type {dtype} has its data in a field for another type")
        _check_length(proto, dtype, span.length)
        skeleton = onnx.TensorProto()
        skeleton.CopyFrom(proto)
        skeleton.ClearField("raw_data")
        like = ProtoTensor(proto)
        return FileTensor(
            self._file, span.offset, span.length, dtype, proto.dims, like=like, skeleton=skeleton, field=span.field
        )

    def _external(self, proto: onnx.TensorProto, dtype: ir.DataType) -> FileTensor:
        self.used_external = True
        entries = {entry.key: entry.value for entry in proto.external_data}
        if any(isinstance(text, bytes) for text in entries.values()):
            raise _invalid_tensor(proto, "has external data with text that is not UTF-8")
        location = entries.get("location", "")
        expected = _expected_bytes(proto, dtype)
        offset = _number(proto, entries, "offset", 0)
        length = _number(proto, entries, "length", expected)
        _check_length(proto, dtype, length)
        file = self._opened.get(location)
        if file is None:
            file = self._opened[location] = open_below(self._folder, location, proto.name)
        if offset + length > file.size:
            raise ModelError(
                f"data of tensor {proto.name!r} ends at byte {offset + length}, but {location!r} has {file.size}",
                hint="the data file is truncated or belongs to another model: copy it again",
            )
        skeleton = onnx.TensorProto()
        skeleton.CopyFrom(proto)
        skeleton.ClearField("data_location")
        skeleton.ClearField("external_data")
        skeleton.external_data.extend(entry for entry in proto.external_data if entry.key not in _REFERENCE)
        like = ProtoTensor(proto)
        return FileTensor(file, offset, length, dtype, proto.dims, like=like, skeleton=skeleton, field=RAW_DATA)


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


def _number(proto: onnx.TensorProto, entries: Mapping[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        raise _invalid_tensor(proto, f"has external data with {key} {text[:40]!r}")
    return int(text)


def _expected_bytes(proto: onnx.TensorProto, dtype: ir.DataType) -> int:
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise _invalid_tensor(proto, f"of type {dtype} cannot have raw data")
    return stored_bytes(dtype, proto.dims)


def _check_length(proto: onnx.TensorProto, dtype: ir.DataType, length: int) -> None:
    expected = _expected_bytes(proto, dtype)
    if length != expected:
        raise _invalid_tensor(proto, f"has {length} bytes of data; {dtype}{list(proto.dims)} takes {expected}")


def _check_inline(proto: onnx.TensorProto, dtype: ir.DataType, raw: bytes | None) -> None:
    if raw is not None:
        _check_length(proto, dtype, len(raw))
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
