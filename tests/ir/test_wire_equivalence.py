"""The reader accepts every file that protobuf reads, including unusual encodings of the same message.

A message is encoded again: repeated numbers packed, unpacked or in several runs, single messages in two parts, which a
parser merges, unknown fields of every wire type in between, and fields in another order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sardonyx.errors import ModelError
from sardonyx.ir.io import load, to_proto
from sardonyx.ir.io.files import MAPPED_TENSOR_BYTES
from sardonyx.ir.io.tensor_data import varint

F = FieldDescriptor
_FIXED = {F.TYPE_FLOAT: "<f", F.TYPE_DOUBLE: "<d"}
UNKNOWN: list[bytes] = [
    varint(900 << 3) + varint(7),
    varint(901 << 3 | 1) + bytes(8),
    varint(902 << 3 | 2) + varint(3) + b"abc",
    varint(903 << 3 | 5) + bytes(4),
    varint(904 << 3 | 3) + varint(904 << 3 | 4),  # a group, empty
    varint(905 << 3 | 3)
    + varint(1 << 3 | 2) + varint(2) + b"\x23\x24"  # this looks like the end of a group but is payload
    + varint(2 << 3 | 3) + varint(1 << 3) + varint(300) + varint(2 << 3 | 4)
    + varint(905 << 3 | 4),
]  # fmt: skip


def number(field: Any, value: Any) -> tuple[int, bytes]:
    """The wire type and bytes of one number."""
    if field.type in _FIXED:
        return (5 if field.type == F.TYPE_FLOAT else 1), struct.pack(_FIXED[field.type], value)
    return 0, varint(int(value) & (1 << 64) - 1)


def repeated_numbers(field: Any, values: list[Any], rng: Random) -> list[bytes]:
    """Numbers in runs, each packed or not."""
    parts: list[bytes] = []
    while values:
        count = rng.randint(1, len(values))
        run, values = values[:count], values[count:]
        encoded = [number(field, each) for each in run]
        if rng.random() < 0.5:
            body = b"".join(each for _, each in encoded)
            parts.append(varint(field.number << 3 | 2) + varint(len(body)) + body)
        else:
            parts += [varint(field.number << 3 | wire) + each for wire, each in encoded]
    return parts


def block(field: Any, body: bytes) -> bytes:
    return varint(field.number << 3 | 2) + varint(len(body)) + body


def rewritten(message: Any, rng: Random, *, noise: bool = True) -> bytes:
    """Another encoding of the same message."""
    fields: list[list[bytes]] = []
    for field, value in message.ListFields():
        listed = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            parts = [rewritten(each, rng, noise=noise) for each in listed]
            if not field.is_repeated and rng.random() < 0.5 and field.containing_oneof is None:
                parts = halves(value, rng)
            fields.append([block(field, part) for part in parts])
        elif field.type in (F.TYPE_STRING, F.TYPE_BYTES):
            texts = [each.encode() if isinstance(each, str) else each for each in listed]
            if not field.is_repeated and rng.random() < 0.2:
                texts.insert(0, b"earlier")  # of a field that is not repeated, the last value is used
            fields.append([block(field, text) for text in texts])
        elif field.is_repeated:
            fields.append(repeated_numbers(field, listed, rng))
        else:
            wire, body = number(field, value)
            fields.append([varint(field.number << 3 | wire) + body])
    rng.shuffle(fields)
    return b"".join(part + (rng.choice(UNKNOWN) if noise and rng.random() < 0.1 else b"")
                    for parts in fields for part in parts)  # fmt: skip


def halves(message: Any, rng: Random) -> list[bytes]:
    """A message as two parts that a parser merges. Repeated fields are divided, other fields are in one part."""
    one, other = type(message)(), type(message)()
    for field, value in message.ListFields():
        if field.is_repeated:
            cut = rng.randint(0, len(value))
            getattr(one, field.name).extend(value[:cut])
            getattr(other, field.name).extend(value[cut:])
        elif field.message_type is not None:
            getattr(rng.choice((one, other)), field.name).CopyFrom(value)
        else:
            setattr(rng.choice((one, other)), field.name, value)
    return [rewritten(part, rng, noise=False) for part in (one, other)]


def a_model() -> onnx.ModelProto:
    """Tensors below and above the size from which they stay in the file, in every field for numbers."""
    rng = np.random.default_rng(0)
    many = MAPPED_TENSOR_BYTES // 4 + 8
    floats = rng.normal(size=many).astype(np.float32)
    tensors = [
        numpy_helper.from_array(floats, "raw"),
        helper.make_tensor("floats", TensorProto.FLOAT, [many], floats.tolist()),
        helper.make_tensor("doubles", TensorProto.DOUBLE, [many], floats.astype(float).tolist()),
        helper.make_tensor("small", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]),
        helper.make_tensor("ints", TensorProto.INT64, [4], [0, 1, -2, 2**40]),
        helper.make_tensor("halves", TensorProto.FLOAT16, [3], [1.0, 0.5, -2.0]),
        TensorProto(name="texts", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff"]),
    ]
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.FLOAT, [many], floats.tolist()),
        helper.make_tensor("i", TensorProto.INT64, [many], list(range(many))),
        [many],
    )
    constant = helper.make_tensor("t", TensorProto.FLOAT, [many], floats.tolist())
    nodes = [
        helper.make_node("Constant", [], ["c"], value=constant),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
        helper.make_node("Constant", [], ["k"], value_ints=[1, 2, 3]),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["N", many])], [value("y", TensorProto.FLOAT, ["N", many])], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def known_part(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.DiscardUnknownFields()
    return copy


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_files_that_protobuf_reads_are_read_alike(seed: int) -> None:
    model = a_model()
    data = rewritten(model, Random(seed))
    assert known_part(onnx.ModelProto.FromString(data)) == model, "the bytes say something else"
    path = Path("scrambled.onnx")
    path.write_bytes(data)
    assert known_part(to_proto(load(path))) == model
    path.unlink()


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "a group that does not end": lambda data: data + varint(904 << 3 | 3),
    "the end of a group that did not start": lambda data: data + varint(904 << 3 | 4),
    "groups that cross": lambda data: data + varint(80 << 3 | 3) + varint(81 << 3 | 3) + varint(80 << 3 | 4),
    "a group longer than the file": lambda data: data + varint(80 << 3 | 3) + varint(1 << 3 | 2) + varint(1 << 20),
    "groups without end": lambda data: data + varint(80 << 3 | 3) * 100_000,
    "wire type 6": lambda data: data + varint(80 << 3 | 6),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_groups_are_refused_in_one_line(what: str) -> None:
    Path("bad.onnx").write_bytes(DAMAGED[what](a_model().SerializeToString()))
    with pytest.raises(ModelError, match="not a readable ONNX model"):
        load("bad.onnx")


def test_numbers_in_a_field_of_another_type_are_refused() -> None:
    """Their bytes could be read as integers."""
    model = a_model()
    tensor = model.graph.initializer[1]
    tensor.data_type = TensorProto.INT32
    Path("bad.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="another type"):
        load("bad.onnx")
