"""Files with one field or one byte changed: each is refused with the same words as before, or kept as before."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

import recorded
from sardonyx.errors import SardonyxError
from sardonyx.ir import io

value = helper.make_tensor_value_info
MODEL = """<ir_version: 11, opset_import: ["" : 21, "own" : 1], producer_name: "writer", metadata_props: ["k": "v"]>
g (float[N, 4] x, int64[2] i, bool c) => (float[N, 4] y, float[M, 4] z) <float[4] w = {1, 2, 3, 4}, float[N, 4] b> {
    a = own.scaled <factor = 2.0> (x)
    b = Add(a, w)
    k = Constant <value = float[4] {1, 2, 3, 4}> ()
    s = Constant <value_ints = [0, 1]> ()
    p = Transpose <perm = [1, 0]> (b)
    q = Transpose <perm = [1, 0]> (p)
    o = Cast <to = 1> (q)
    t = If (c) <then_branch = yes () => (float[N, 4] r) { r = Relu(o) },
                else_branch = no () => (float[N, 4] u) { m = Constant <value = float {2.0}> () u = Mul(o, m) }>
    d, mask = Dropout (t)
    y = Clip (d, , k1)
    z = Gather <axis = 0> (t, i)
    k1 = Constant <value_float = 6.0> ()
}
<domain: "own", opset_import: ["" : 21]> scaled <factor> (v) => (f) {
    g1 = Constant <value_float : float = @factor> ()
    f = Mul(v, g1)
}"""


def full_model() -> onnx.ModelProto:
    """A model with many parts of the format."""
    model = onnx.parser.parse_model(MODEL)
    graph = model.graph
    types = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")
    graph.initializer.extend(numpy_helper.from_array(np.ones((2, 3), each), f"w_{each}") for each in types)
    graph.initializer.append(TensorProto(name="ints", data_type=TensorProto.INT8, dims=[3], int32_data=[1, 2, 3]))
    graph.initializer.append(
        TensorProto(name="texts", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"b"])
    )
    graph.initializer.append(TensorProto(name="four", data_type=TensorProto.INT4, dims=[3], raw_data=b"\x21\x03"))
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([5.0, 6.0], np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1, 4]), "places"))
    sparse.dims.extend([2, 3])
    graph.value_info.extend([value("b", 1, ["N", 4]), value("q", 1, None), value("nobody", 1, [1])])
    annotation = graph.quantization_annotation.add(tensor_name="b")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    graph.node[1].metadata_props.add(key="tag", value="module")
    graph.node[1].doc_string = "a sum"
    model.training_info.add().initialization.node.add(op_type="Relu", input=["x"], output=["n"])
    return model


def places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field that is set, at any depth."""
    for descriptor, content in message.ListFields():
        yield message, descriptor
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            for each in content if isinstance(content, (list, tuple)) or hasattr(content, "add") else (content,):
                yield from places(each)


def changes(descriptor: FieldDescriptor, content: Any) -> Iterator[tuple[str, Callable[[Message], object]]]:
    """What may be done to a field."""
    name = descriptor.name
    yield "left out", lambda m: m.ClearField(name)
    if hasattr(content, "append") and not isinstance(content, (str, bytes)):
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            yield "repeated", lambda m: getattr(m, name).add().CopyFrom(getattr(m, name)[0])
            yield "without the last", lambda m: getattr(m, name).pop()
        else:
            yield "repeated", lambda m: getattr(m, name).append(getattr(m, name)[0])
            yield "without the first", lambda m: getattr(m, name).pop(0)
            for new in others(descriptor, content[0]):
                yield f"first {new!r}", lambda m, new=new: getattr(m, name).__setitem__(0, new)
    elif descriptor.type != FieldDescriptor.TYPE_MESSAGE:
        for new in others(descriptor, content):
            yield f"{new!r}", lambda m, new=new: setattr(m, name, new)


def others(descriptor: FieldDescriptor, content: Any) -> list[Any]:
    """Other contents of the same type."""
    if descriptor.type == FieldDescriptor.TYPE_STRING:
        return ["", "y", "Relu", "x\0"]
    if descriptor.type == FieldDescriptor.TYPE_BYTES:
        return [b"", b"\xff", content[:-1], content * 2]
    if descriptor.type == FieldDescriptor.TYPE_FLOAT:
        return [0.0]
    if descriptor.type == FieldDescriptor.TYPE_ENUM:
        return [0, 1, 2, 4, 7]
    if descriptor.name in ("type", "data_type", "elem_type", "to"):
        return [0, 1, 7, 8, 99]
    return [-1, 0, 1, 1 << 31] if descriptor.type == FieldDescriptor.TYPE_INT64 else [0, 3]


def outcome(read: Callable[[], Any]) -> str:
    """The words of the refusal, or a sum over what is written."""
    try:
        model = read()
        written = io.to_proto(model)
        flags = "unsorted " if io.forget_unsorted(model) else ""
        return f"{flags}{zlib.crc32(written.SerializeToString(deterministic=True))}"
    except SardonyxError as error:
        return f"{error.message} ({error.hint})"


@pytest.mark.parametrize("part", range(4))
def test_a_model_with_another_field_is_refused_or_kept_as_before(part: int) -> None:
    model = full_model()
    count = len([*places(model)])
    found: dict[str, str] = {}
    for number in range(part, count, 4):
        _, descriptor = [*places(model)][number]
        first, _ = [*places(model)][number]
        options = [*changes(descriptor, getattr(first, descriptor.name))]
        for what, change in Random(number).sample(options, min(2, len(options))):
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            owner, _ = [*places(copy)][number]
            try:
                change(owner)
            except (TypeError, ValueError):
                continue
            key = f"{number}: {type(owner).__name__}.{descriptor.name} {what}"
            found[key] = outcome(lambda copy=copy: io.from_proto(copy))
    recorded.check("changed_fields", found)


ENTRIES: list[dict[str, str]] = [
    {}, {"offset": "0"}, {"offset": "00000000000000000000"}, {"offset": "000000000000000000000"}, {"offset": "-1"},
    {"offset": "1"}, {"offset": "4"}, {"offset": "x"}, {"offset": "٣"}, {"length": "4800"}, {"length": "4799"},
    {"length": "4801"}, {"length": ""}, {"location": ""}, {"location": "."}, {"location": ".."}, {"location": "no.bin"},
    {"location": "../w.bin"}, {"location": "/etc/passwd"}, {"location": "deep/w.bin"}, {"location": "link.bin"},
    {"location": "deep"}, {"location": "w.bin\0"}, {"location": "./w.bin"}, {"location": "deep/../w.bin"},
    {"checksum": "00"}, {"location": "out.bin"}, {"location": "pipe"}, {"location": "short.bin"},
]  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_references_to_other_files_are_refused_or_followed_as_before(part: int, tmp_path: Path) -> None:

    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    data = np.arange(1200, dtype=np.float32).tobytes()
    for name in ("models/w.bin", "models/deep/w.bin", "w.bin"):
        (tmp_path / name).write_bytes(data)
    (folder / "short.bin").write_bytes(data[:-1])
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "out.bin").symlink_to("../w.bin")
    os.mkfifo(folder / "pipe")
    found: dict[str, str] = {}
    for number, entries in list(enumerate(ENTRIES))[part::3]:
        weight = TensorProto(name="w", data_type=1, dims=[1200], data_location=TensorProto.EXTERNAL)
        for key, text in {"location": "w.bin", **entries}.items():
            weight.external_data.add(key=key, value=text)
        node = helper.make_node("Add", ["x", "w"], ["y"])
        graph = helper.make_graph([node], "g", [value("x", 1, [1200])], [value("y", 1, [1200])], [weight])
        (folder / "m.onnx").write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
        told = outcome(lambda: io.load(folder / "m.onnx"))
        found[f"{number}: {entries}"] = told.replace(str(folder), "FOLDER").replace(str(tmp_path), "ABOVE")
    recorded.check("references", found)


@pytest.mark.parametrize("part", range(3))
def test_a_file_with_another_byte_is_refused_or_kept_as_before(part: int, tmp_path: Path) -> None:
    model = full_model()
    for name in ("large", "parts"):  # large enough to stay in the file
        model.graph.initializer.append(numpy_helper.from_array(np.arange(1100, dtype=np.float32), name))
    last = model.graph.initializer[-1]
    last.ClearField("raw_data")
    last.float_data.extend(range(1100))
    data = model.SerializeToString(deterministic=True)
    found: dict[str, str] = {}
    path = tmp_path / "m.onnx"
    for number in range(part * 60, part * 60 + 60):
        choose = Random(number)
        place = choose.choice((choose.randrange(len(data)), choose.randrange(1200), len(data) - choose.randrange(400)))
        place = min(place, len(data) - 1)
        what = choose.choice(("cut", "set", "set", "set", "inserted", "left out"))
        byte = choose.choice((0, 1, 8, 10, 11, 12, 0x7F, 0x80, 0xFF, data[place] ^ 1))
        after = data[place + 1 :]
        made = {"cut": b"", "set": bytes([byte]) + after, "left out": after, "inserted": bytes([byte]) + data[place:]}
        path.write_bytes(data[:place] + made[what])
        told = outcome(lambda: io.load(path)).replace(str(tmp_path), "FOLDER")
        found[f"{number}: {what} {place} {byte}"] = re.sub(r"b'[^']*'", "bytes", told)
    recorded.check("changed_bytes", found)
