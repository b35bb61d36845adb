"""Load and save models; the weights stay on disk.

Nodes are checked against the schemas of their operators, so that passes and analyses can rely on operands and
attributes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import onnx
import onnx.defs
import onnx_ir as ir
from google.protobuf.message import DecodeError
from msgspec import Struct, field

from sardonyx.common import gc_pause
from sardonyx.common.atomic_write import Draft, check_free, explained
from sardonyx.errors import ModelError, OutputError
from sardonyx.ir.io import data_files, tensor_data, unmodeled_fields
from sardonyx.ir.io.decode import decode
from sardonyx.ir.io.encode import Encoder
from sardonyx.ir.io.tensor_data import Reader
from sardonyx.ir.scopes import (
    WRITER_AT_FAULT,
    Cycle,
    check_calls,
    is_sorted,
    needed_first,
    nested_graphs,
    operator,
    scopes,
    tensor_of,
    top_graphs,
)
from sardonyx.ir.storage import DTYPES, RAW_DATA, GrowingHash, SourceFile, write_all
from sardonyx.ir.tensors import FileTensor, write_tensor

_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_KIND = ir.AttributeType
_ORT_TYPES = {  # of attributes of the operators of com.microsoft, the same in all of them
    **dict.fromkeys(("num_heads", "kv_num_heads", "unidirectional", "is_causal", "axis", "group"), _KIND.INT),
    **dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB", "K", "N", "bits", "block_size"), _KIND.INT),
    **dict.fromkeys(("alpha", "beta", "epsilon", "scale", "softcap"), _KIND.FLOAT),
    **dict.fromkeys(("qkv_hidden_sizes", "kernel_shape", "pads", "strides", "dilations"), _KIND.INTS),
}
_ANY_NUMBER = 0, 1 << 31


class _Form(Struct, frozen=True):
    """What a schema says about the nodes of an operator."""

    inputs: tuple[int, int]  # the least and the largest number
    outputs: tuple[int, int]
    required_inputs: tuple[int, ...] = ()  # that may not be left out between others
    required_attributes: tuple[str, ...] = ()
    types: Mapping[str, ir.AttributeType] = {}  # of attributes


def check_forms(model: ir.Model) -> None:
    """Raise an error if a node contradicts the schema of its operator, or the function that it calls."""
    functions = model.functions
    for scope in scopes(model):
        for node in scope.graph:
            function = functions.get(node.op_identifier()) if functions else None
            if function is not None:
                form = _Form((0, len(function.inputs)), (0, len(function.outputs)))
            else:
                form = _form(node.op_type, scope.opsets.get(node.domain, 0), node.domain)
            if fault := _fault(node, form):
                raise ModelError(
                    f"node {node.name!r} ({node.op_type}) {fault}",
                    hint="the model is not valid ONNX; onnx.checker.check_model may report details",
                )


@functools.cache
def _form(op_type: str, version: int, domain: str) -> _Form:
    try:
        schema: Any = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return _Form(_ANY_NUMBER, _ANY_NUMBER, types=_ORT_TYPES if domain == "com.microsoft" else {})
    attributes = cast("Mapping[str, Any]", schema.attributes)
    return _Form(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(index for index, each in enumerate(schema.inputs) if each.option == _SINGLE),
        tuple(name for name, attribute in attributes.items() if attribute.required),
        {name: _KIND(attribute.type.value) for name, attribute in attributes.items()},
    )


def _fault(node: ir.Node, form: _Form) -> str | None:
    inputs, outputs, attributes = node.inputs, node.outputs, node.attributes.data
    if not form.inputs[0] <= len(inputs) <= form.inputs[1]:
        return f"has {len(inputs)} inputs"
    if len(outputs) < form.outputs[0] or any(value.name for value in outputs[form.outputs[1] :]):
        return f"has {len(outputs)} outputs"
    for index in form.required_inputs if None in inputs else ():
        if index < len(inputs) and inputs[index] is None:
            return f"has no input {index}"
    for name in form.required_attributes:
        if name not in attributes:
            return f"has no attribute {name!r}"
    if node.op_type == "Constant" and not node.domain:
        values = [name for name in attributes if not name.startswith("__")]  # runtimes accept such names: tags
        if len(values) != 1 or values[0] not in form.types:
            return "does not have a value"
    for name, attribute in attributes.items():
        if not attribute.is_ref() and (fault := _wrong(attribute, form.types.get(name), node)):
            return f"has {fault}"
    return None


def _wrong(attribute: ir.Attr, expected: ir.AttributeType | None, node: ir.Node) -> str | None:
    name, kind, value = attribute.name, attribute.type, attribute.value
    if kind is not expected and expected is not None:
        return f"attribute {name!r} of type {kind.name}"
    if kind is _KIND.TENSOR and tensor_of(attribute).dtype == ir.DataType.UNDEFINED:
        return f"attribute {name!r} without an element type"
    if name in ("to", "dtype") and not node.domain and value not in DTYPES:
        return f"an attribute {name!r} with the unknown element type {value}"
    if name == "perm" and operator(node) == "Transpose" and sorted(value) != list(range(len(value))):
        return "an attribute 'perm' that is no permutation"
    return None


MAPPED_TENSOR_BYTES = 1 << 12  # tensors of at least this many bytes (a page) stay in the file
_INLINE_LIMIT = (1 << 31) - 1  # the largest message that protobuf reads
_EXPORT_IT = "export the PyTorch model to ONNX first; `sardonyx export` does that"
_OTHER_FORMATS = (  # offset and bytes that identify the format, what it is, and a hint
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch its content with `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive, as PyTorch checkpoints are", _EXPORT_IT),
    (0, b"\x80\x02", "a pickle, as old PyTorch checkpoints are", _EXPORT_IT),
    (8, b'{"', "a safetensors file, which has weights but no graph", _EXPORT_IT),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to ONNX first, for example with tf2onnx"),
    (0, b"\x89HDF", "an HDF5 file, as Keras models are", "convert it to ONNX first, for example with tf2onnx"),
    (0, b"GGUF", "a GGUF file", "export the model that it was made from"),
    (4, b"ORTM", "a model in ONNX Runtime's own format", "use the ONNX file that it was made from"),
    (0, b"<?xml", "an XML file, as OpenVINO models are", "use the ONNX file that it was made from"),
)
_MAX_MARK_BYTES = 64
_NOT_ONNX = "is it an ONNX file, and is it complete? export or download it again"


class LoadedFile(Struct, frozen=True, eq=False):
    """A model file together with its graph, for steps that need both: the file is then read once for all of them."""

    path: Path
    model: ir.Model

    @staticmethod
    def read(path: Path) -> LoadedFile:
        """Read a model file; large tensors stay in it."""
        return LoadedFile(path, load(path))


class ModelFile(Struct, frozen=True, eq=False):
    """An open model file; every call of `graph` returns another graph of it, even if the file was replaced."""

    name: str
    proto: onnx.ModelProto  # without large tensors
    reader: Reader

    @staticmethod
    def open(path: str | os.PathLike[str]) -> ModelFile:
        """Open a model file and read all of it but its large tensors.

        Raises:
            ModelError: if the file is not a model or is damaged.
        """
        return _opened(os.fspath(path))

    def graph(self) -> ir.Model:
        """Return the graph; large tensors stay in the file.

        Raises:
            ModelError: if the model is not valid, or its external data is missing or unsafe to read.
        """
        with gc_pause.paused():
            return _checked(decode(self.proto, self.reader), self.name)


def load(path: str | os.PathLike[str]) -> ir.Model:
    """Read a model file; large tensors stay in it.

    Raises:
        ModelError: if the file is not a model or is damaged, or its external data is missing or unsafe to read.
    """
    return ModelFile.open(path).graph()


def _opened(name: str) -> ModelFile:
    try:
        file = SourceFile.open(name)
    except OSError as error:
        raise ModelError(
            f"{name} cannot be read: {os.strerror(error.errno or 0)}", hint="check the path and its permissions"
        ) from error
    token = secrets.token_bytes(16)
    try:
        skeleton, spans = tensor_data.cut(tensor_data.Bytes(file), token, MAPPED_TENSOR_BYTES)
        proto = onnx.ModelProto.FromString(skeleton)
    except (tensor_data.WireError, DecodeError) as error:
        _check_format(file, name)
        why = str(error) if isinstance(error, tensor_data.WireError) else "it is damaged"
        raise ModelError(f"{name} is not a readable ONNX model: {why}", hint=_NOT_ONNX) from error
    if not proto.HasField("graph"):
        _check_format(file, name)
    _check_complete(proto, name)
    return ModelFile(name, proto, Reader(folder=os.path.dirname(name) or ".", file=file, token=token, spans=spans))


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the graph of a ModelProto, which is not changed."""
    _check_complete(proto, "the model")
    return _checked(decode(proto, Reader(folder=None)), "the model")


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the whole model as one message with all data inline."""

    def inline(tensor: ir.TensorProtocol, proto: onnx.TensorProto) -> None:
        if proto.HasField("raw_data"):
            return
        if isinstance(tensor, FileTensor) and tensor.field != RAW_DATA:
            proto.MergeFromString(
                tensor_data.varint(tensor.field << 3 | 2) + tensor_data.varint(tensor.length) + tensor.tobytes()
            )
        else:
            proto.raw_data = tensor.tobytes()

    return Encoder(inline).model(model)


class Copies(Struct, frozen=True):
    """The tensors that were computed while a data file was written; another file gets their bytes from there."""

    file: SourceFile
    places: Mapping[int, tuple[ir.TensorProtocol, int]]  # by the identity of a tensor: the tensor, and its offset

    @classmethod
    def of(cls, path: str, tensors: Sequence[ir.TensorProtocol], offsets: Sequence[int]) -> Self:
        """Return the computed ones among the tensors of a data file; the bytes of others are in a file already."""
        computed = ((t, offset) for t, offset in zip(tensors, offsets, strict=True) if not isinstance(t, FileTensor))
        return cls(SourceFile.open(path), {id(tensor): (tensor, offset) for tensor, offset in computed})

    def write(self, tensor: ir.TensorProtocol, fd: int, position: int) -> None:
        """Write a tensor to an open file."""
        if id(tensor) in self.places:
            self.file.copy(self.places[id(tensor)][1], tensor.nbytes, fd, position)
        else:
            write_tensor(tensor, fd, position)


class Saved(Struct, frozen=True):
    """What a save has to tell."""

    digest: str | None  # the SHA-256 sum of the file, if it was asked for
    notes: tuple[str, ...] = ()  # data files of the replaced model that are still there, and why
    copies: Copies | None = None  # of a temporary file


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    external: bool | None = None,
    hashed: bool = False,
    durable: bool = True,
    copies: Copies | None = None,
) -> Saved:
    """Write a model file; tensors are streamed from their source.

    Args:
        model: The model, which stays usable even if its own file is overwritten.
        path: The destination.
        force: Whether an existing file may be replaced. Its data file is removed if `data_files` allows it.
        external: Whether weights go to a separate file next to the model; None: as in the source, or if over 2 GB.
        hashed: Whether to hash the file while it is written.
        durable: Whether the files are flushed to the disk; not needed for temporary ones.
        copies: Tensors of the model that an earlier save has written to a temporary file.

    Raises:
        OutputError: if the destination exists or cannot be written. No partial file is left.
    """
    name = os.fspath(path)
    check_free(name, force=force)
    target = os.path.realpath(name)
    saving = _Saving(target, force, hashed, durable, write_tensor if copies is None else copies.write)
    small = Encoder(saving.store).model(model).SerializeToString()
    if external is None:
        external = bool(unmodeled_fields.meta(model.graph).get(unmodeled_fields.EXTERNAL))
        external = external or saving.size + len(small) + 32 * len(saving.tensors) > _INLINE_LIMIT
    with explained(name):
        data_files.remove_left_over(target)
        if not (external and saving.tensors):
            return saving.inline(small)
        if os.path.dirname(target) != os.path.realpath(os.path.dirname(name)):
            why = "is a link into another folder, and tools would look for its data file beside the link"
            raise OutputError(f"{name} {why}", hint=f"write to {target}")
        return saving.external(small)


def _check_format(file: SourceFile, name: str) -> None:
    """Report a file that is empty or begins like a file of another format."""
    if not file.size:
        raise ModelError(f"{name} is empty", hint="export or download it again")
    begin = bytearray(min(file.size, _MAX_MARK_BYTES))
    file.read_into(memoryview(begin), 0)
    for offset, mark, what, hint in _OTHER_FORMATS:
        if begin.startswith(mark, offset):
            raise ModelError(f"{name} is {what}, not an ONNX model", hint=hint)


def _check_complete(proto: onnx.ModelProto, name: str) -> None:
    if not proto.HasField("graph"):
        raise ModelError(f"{name} has no graph", hint=_NOT_ONNX)
    if proto.ir_version >= 3 and not proto.opset_import and not proto.functions:
        raise ModelError(f"{name} imports no opset", hint=_NOT_ONNX)


def _checked(model: ir.Model, name: str) -> ir.Model:
    """Return the model with the nodes of every graph in topological order, as ONNX requires; runtimes accept any."""
    check_calls(model, name)
    check_forms(model)
    for graph in top_graphs(model):
        if is_sorted(graph):
            continue
        for body in nested_graphs(graph):
            try:
                needed_first(reversed([*body]), _producers)
            except Cycle as error:
                names = " ← ".join(f"{node.op_type} {node.name or node.outputs[0].name}" for node in error.args[0])
                raise ModelError(f"the graph of {name} has a cycle: {names}", hint=WRITER_AT_FAULT) from error
        try:
            graph.sort()
        except ValueError as error:  # a body reads a value that depends on it
            raise ModelError(f"the graph of {name} has a cycle through a body", hint=WRITER_AT_FAULT) from error
        unmodeled_fields.meta(model.graph)[unmodeled_fields.UNSORTED] = True
    return model


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes of the same graph that compute a node's operands."""
    return (producer for producer in node.predecessors() if producer.graph is node.graph)


class _Saving(Struct):
    """One save, and the tensors to stream, each of which is a marker in the small message."""

    target: str
    force: bool
    hashed: bool
    durable: bool
    write: Callable[[ir.TensorProtocol, int, int], None]
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    tensors: list[ir.TensorProtocol] = field(default_factory=list[ir.TensorProtocol])
    size: int = 0

    def store(self, tensor: ir.TensorProtocol, proto: onnx.TensorProto) -> None:
        """Put small data into the message, and a marker in place of large data."""
        if tensor.nbytes < MAPPED_TENSOR_BYTES:
            if not proto.HasField("raw_data"):
                proto.raw_data = tensor.tobytes()
            return
        proto.raw_data = self.token + tensor_data.varint(len(self.tensors))
        self.tensors.append(tensor)
        self.size += tensor.nbytes

    def inline(self, small: bytes) -> Saved:
        """Write one file."""

        def fill(index: int) -> list[tensor_data.Piece]:
            tensor = self.tensors[index]
            number = tensor.field if isinstance(tensor, FileTensor) else RAW_DATA
            return tensor_data.hole(number, index, tensor.nbytes)

        pieces = tensor_data.splice(small, self.token, fill, external=False)
        if tensor_data.size_of(pieces) > _INLINE_LIMIT:
            raise OutputError(f"{self.target} would be over 2 GB", hint="save the weights to a separate file")
        with Draft(self.target, durable=self.durable) as draft:
            digest = self._write(pieces, draft.fileno())
            with data_files.replaced(self.target) as notes:
                draft.commit(replace=self.force)
        return Saved(digest, tuple(notes))

    def external(self, small: bytes) -> Saved:
        """Write the data file first and then the model, under a name for the data that did not exist before.

        Two files cannot be renamed at once. Because the new model never refers to an existing data file, the model at
        `target` is at any time either the old one with its data or the new one with its data.
        """
        location = data_files.free_name(self.target)
        offsets: list[int] = []
        end = 0
        for tensor in self.tensors:  # at a page for data that a runtime would map, otherwise at a cache line
            unit = 4096 if tensor.nbytes >= 1 << 20 else 64
            offsets.append(-(-end // unit) * unit)
            end = offsets[-1] + tensor.nbytes

        def fill(index: int) -> list[tensor_data.Piece]:
            tensor = self.tensors[index]
            reference = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
            for key, value in (("location", location), ("offset", offsets[index]), ("length", tensor.nbytes)):
                reference.external_data.add(key=key, value=str(value))
            if isinstance(tensor, FileTensor) and tensor.skeleton is not None:
                reference.external_data.extend(tensor.skeleton.external_data)
            return [reference.SerializeToString()]

        pieces = tensor_data.splice(small, self.token, fill, external=True)
        path = os.path.join(os.path.dirname(self.target), location)
        with Draft(path, durable=self.durable) as data, Draft(self.target, durable=self.durable) as draft:
            for tensor, offset in zip(self.tensors, offsets, strict=True):
                self.write(tensor, data.fileno(), offset)
            digest = self._write(pieces, draft.fileno())
            with data_files.replaced(self.target, data) as notes:
                data.commit(replace=False)
                draft.commit(replace=self.force)
        return Saved(digest, tuple(notes), None if self.durable else Copies.of(path, self.tensors, offsets))

    def _write(self, pieces: list[tensor_data.Piece], fd: int) -> str | None:
        """Write the pieces in order; return the hash of the file if it is asked for."""
        position = 0
        with GrowingHash(fd) if self.hashed else contextlib.nullcontext() as digest:
            for is_small, group in itertools.groupby(pieces, lambda piece: isinstance(piece, bytes)):
                if is_small:
                    data = b"".join(cast("Iterator[bytes]", group))
                    write_all(fd, memoryview(data), position)
                    position += len(data)
                else:
                    for hole in cast("Iterator[tensor_data.Hole]", group):
                        self.write(self.tensors[hole.index], fd, position)
                        position += hole.size
                if digest is not None:
                    digest.written(position)
            return None if digest is None else digest.result(position)
