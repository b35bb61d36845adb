"""Damage to model files: changed bytes, and changed trees of protobuf fields; both determined by a seed."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from fuzzing import families
from fuzzing.draft import Rejected
from sardonyx.ir.io.tensor_data import varint

MODEL, DATA = "model.onnx", "weights.bin"
Files = dict[str, bytes]

_TEXTS = {
    "functions": """
        <ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        agraph (float[N, 4] x) => (float[N, 4] y) { y = own.twice <axis = 1> (x) }
        <domain: "own", opset_import: ["" : 20, "own" : 1]>
        twice <axis> (a) => (c) { b = own.once <axis = @axis> (a)  c = own.once <axis = 0> (b) }
        <domain: "own", opset_import: ["" : 20]>
        once <axis> (a) => (c) { b = Softmax <axis: int = @axis> (a)  c = Add(b, a) }""",
    "branches": """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N, 4] x, bool p) => (float[N, 4] y) <float one = {1.0}> {
            a = Add(x, one)
            y = If (p) <
                then_branch = yes () => (float[N, 4] b) { c = Mul(a, one)  b = Relu(c) },
                else_branch = no () => (float[N, 4] d) { d = If (p) <
                    then_branch = in1 () => (float[N, 4] e) { e = Neg(a) },
                    else_branch = in2 () => (float[N, 4] f) { f = Exp(x) }> }>
        }""",
    "loop": """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N, 4] x) => (float[N, 4] y, float[K, N, 4] all) <int64 trips = {3}, bool go = {1}> {
            y, all = Loop (trips, go, x) <
                body = step (int64 i, bool c, float[N, 4] s) => (bool c2, float[N, 4] s2, float[N, 4] o) {
                    c2 = Identity(c)  k = Cast <to = 1> (i)  s2 = Add(s, k)  o = Tanh(s2) }>
        }""",
    "sequences": """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N, 4] x) => (float[N, 8] y) <int64 zero = {0}> {
            s = SplitToSequence <axis = 0, keepdims = 1> (x)
            t = SequenceInsert(s, x, zero)
            a = SequenceAt(t, zero)
            y = Concat <axis = 1> (a, x)
        }""",
    "attention": """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[B, S, 8] x, int64[B, S] mask) => (float[B, S, 8] y)
        <int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}, float scale = {0.5}, float one = {1},
         float far = {-1e4}, int64[2] axes = {1, 2}> {
            q = Reshape(x, heads)  qt = Transpose <perm = [0, 2, 1, 3]> (q)  kt = Transpose <perm = [0, 2, 3, 1]> (q)
            s = MatMul(qt, kt)  sc = Mul(s, scale)  m = Unsqueeze(mask, axes)  mf = Cast <to = 1> (m)
            inv = Sub(one, mf)  bias = Mul(inv, far)  masked = Add(sc, bias)  p = Softmax <axis = -1> (masked)
            c = MatMul(p, qt)  ct = Transpose <perm = [0, 2, 1, 3]> (c)  r = Reshape(ct, flat)  y = Add(r, x)
        }""",
    "quantized": """
        <ir_version: 10, opset_import: ["" : 21]>
        agraph (float[N, 4] x) => (float[N, 4] y)
        <float scale = {0.1}, uint8 zero = {128}, float[4] w = {1, -2, 3, 0.5}, float eps = {1e-5}, float two = {2}> {
            q = QuantizeLinear(x, scale, zero)  d = DequantizeLinear(q, scale, zero)
            mean = ReduceMean <keepdims = 1> (d)  c = Sub(d, mean)  sq = Pow(c, two)  v = ReduceMean <keepdims = 1> (sq)
            ve = Add(v, eps)  sd = Sqrt(ve)  n = Div(c, sd)  y = Mul(n, w)
        }""",
    "sizes": """
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N, M, 4] x, string[N] names) => (float[K, 4] y, string[N] same)
        <int64 zero = {0}, int64 one = {1}, int64[1] four = {4}, int64[1] axis = {0}> {
            s = Shape(x)  n = Gather <axis = 0> (s, zero)  m = Gather <axis = 0> (s, one)  k = Mul(n, m)
            ku = Unsqueeze(k, axis)  t = Concat <axis = 0> (ku, four)  y = Reshape(x, t)  same = Identity(names)
        }""",
}  # fmt: skip


def _weights(location: str | None) -> Files:
    """A convolution and a product with weights above the size that stays in memory, inline or in another file."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(32, 8, 3, 3)), "b": rng.normal(size=32), "v": rng.normal(size=(32, 48))}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="/net/conv/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="/net/act/Relu"),
        helper.make_node("ReduceMean", ["r", "axes"], ["m"], name="/net/pool/ReduceMean", keepdims=0),
        helper.make_node("MatMul", ["m", "v"], ["y"], name="/net/out/MatMul"),
    ]
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, ["N", 8, "H", "W"])], [value("y", 1, ["N", 48])], tensors)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    files: Files = {}
    if location:
        data = b""
        for tensor in model.graph.initializer[:3]:
            entries = {"location": location, "offset": len(data), "length": len(tensor.raw_data)}
            data += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in entries.items():
                tensor.external_data.add(key=key, value=str(text))
        files[location] = data
    return {MODEL: model.SerializeToString(), **files}


def _unusual() -> Files:
    """Sparse and packed tensors, training information, metadata, annotations of quantization."""
    model = onnx.parser.parse_model(_TEXTS["quantized"])
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([2.0], np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([1])))
    model.graph.initializer.append(
        TensorProto(name="packed", data_type=TensorProto.INT4, dims=[3], raw_data=b"\x12\x03")
    )
    model.graph.node.add(op_type="Cast", input=["packed"], output=["unpacked"], name="cast").attribute.append(
        helper.make_attribute("to", 1)
    )
    model.graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(key="K", value="scale")
    model.training_info.add().algorithm.node.add(op_type="Identity", input=["x"], output=["z"])
    model.metadata_props.add(key="author", value="nobody")
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', 'block', '{node.op_type}']")
        node.metadata_props.add(key="namespace", value=f": m.Net/block: m.Block/{node.op_type}: x.{node.op_type}")
    return {MODEL: model.SerializeToString()}


@functools.cache
def subjects() -> dict[str, Files]:
    """The 20 files that are damaged."""
    files = {name: {MODEL: onnx.parser.parse_model(text).SerializeToString()} for name, text in _TEXTS.items()}
    files |= {"inline weights": _weights(None), "external weights": _weights(DATA), "unusual": _unusual()}
    drawn = ("attention", "contrib", "rotary", "norms", "activations", "layout", "masks", "products", "control", "soup")
    for family in drawn:
        files[f"drawn {family}"] = {MODEL: _drawn(family)}
    assert len(files) == 20
    return files


def _drawn(family: str) -> bytes:
    for seed in range(100, 200):
        try:
            return families.draw(seed, family).model.SerializeToString()
        except Rejected:
            continue
    raise AssertionError(family)


def damaged(seed: int) -> tuple[str, Files]:
    """The name and the files of a damaged model."""
    rng = random.Random(seed)
    names = list(subjects())
    name = names[seed // 2 % len(names)]
    files = dict(subjects()[name])
    change = damaged_bytes if seed % 2 else damaged_tree
    files[MODEL] = change(files[MODEL], rng)
    return f"{name}, {'bytes' if seed % 2 else 'tree'}", files


# ---------------------------------------------------------------------------------------------- bytes


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """A file with one to four changes of bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        place, length = rng.randrange(len(changed) or 1), rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(7):
            case 0:
                changed[place : place + 1] = bytes([changed[place] ^ 1 << rng.randrange(8)]) if changed else b""
            case 1:
                changed[place : place + 1] = bytes([rng.randrange(256)])
            case 2:
                changed[place:place] = rng.randbytes(length)
            case 3:
                del changed[place : place + length]
            case 4:
                changed[place:place] = changed[place : place + length]
            case 5:
                changed[place : place + length] = rng.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * length
            case _:
                if rng.random() < 0.2:
                    del changed[place:]
    return bytes(changed)


# ---------------------------------------------------------------------------------------------- trees


@dataclass
class Field:
    """A field of a message: a number, bytes, or fields of its own."""

    number: int
    wire: int
    data: bytes = b""  # as it is on the wire, without tag and length
    fields: list[Field] | None = None  # of a message
    kind: Any = None  # the descriptor of the message


_BYTES = 2
_NUMBERS = (0, 1, 2, 3, 4, 5, 7, 9, 16, 18, 99, 127, 255, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_STRINGS = (
    b"", b"\xff\xfe", b"\0", b"a\0b", b"-1", b"9" * 5000, b"../x", b"/etc/passwd", b"\xc2\x9b31m", b"\xe2\x80\xae",
    b"x" * 300, b"{", b"N + M", b"ai.onnx", b"com.microsoft", b"Loop", b"If", b"Constant", b"Reshape", b"Cast",
)  # fmt: skip


def parsed(data: bytes, kind: Any) -> list[Field]:
    """The fields of a message of a known type."""
    fields: list[Field] = []
    position = 0
    while position < len(data):
        tag, position = _read(data, position)
        number, wire = tag >> 3, tag & 7
        start = position
        if wire == _BYTES:
            length, start = _read(data, position)
            position = start + length
        else:
            position = _read(data, position)[1] if wire == 0 else position + (4 if wire == 5 else 8)
        content = data[start:position]
        known = kind.fields_by_number.get(number)
        inner = known.message_type if known is not None and wire == _BYTES else None
        fields.append(Field(number, wire, content, None if inner is None else parsed(content, inner), inner))
    return fields


def written(fields: list[Field]) -> bytes:
    """The bytes of a message, with the length of every inner message as it is now."""
    parts: list[bytes] = []
    for each in fields:
        content = each.data if each.fields is None else written(each.fields)
        parts.append(varint(each.number << 3 | each.wire))
        if each.wire == _BYTES:
            parts.append(varint(len(content)))
        parts.append(content)
    return b"".join(parts)


def damaged_tree(data: bytes, rng: random.Random) -> bytes:
    """A file with one to three changes of its fields."""
    root = Field(0, _BYTES, fields=parsed(data, onnx.ModelProto.DESCRIPTOR), kind=onnx.ModelProto.DESCRIPTOR)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(root, rng)
    assert root.fields is not None
    return written(root.fields)


def _change(root: Field, rng: random.Random) -> None:
    messages = _messages(root)
    parent = rng.choice([each for each in messages if each.fields] or [root])
    fields = parent.fields
    if not fields:
        return
    index = rng.randrange(len(fields))
    chosen = fields[index]
    match rng.randrange(7):
        case 0:
            del fields[index]
        case 1:
            other = rng.randrange(len(fields))
            fields[index], fields[other] = fields[other], fields[index]
        case 2:
            fields.insert(rng.randrange(len(fields) + 1), _copy(chosen))
        case 3:  # the content of a field of the same type elsewhere
            same = [each for message in messages for each in message.fields or () if _alike(each, chosen)]
            fields[index] = _copy(rng.choice(same))
            fields[index].number = chosen.number
        case 4:  # a field of another message
            donor = rng.choice(messages)
            if donor.fields:
                fields.insert(index, _copy(rng.choice(donor.fields)))
        case 5:
            chosen.number = rng.randrange(1, 30)
        case _:
            _replace_content(chosen, rng)


def _replace_content(chosen: Field, rng: random.Random) -> None:
    if chosen.fields is not None:
        chosen.fields = [] if rng.random() < 0.5 else chosen.fields[: rng.randrange(len(chosen.fields) + 1)]
    elif chosen.wire == 0:
        chosen.data = varint(rng.choice(_NUMBERS))
    elif chosen.wire == _BYTES:
        chosen.data = rng.choice((*_STRINGS, chosen.data[:-1], chosen.data * 2, rng.randbytes(len(chosen.data))))
    else:
        chosen.data = rng.choice((bytes(len(chosen.data)), b"\xff" * len(chosen.data), rng.randbytes(len(chosen.data))))


def _messages(root: Field) -> list[Field]:
    found, stack = [root], [root]
    while stack:
        inner = [each for each in stack.pop().fields or () if each.fields is not None]
        found += inner
        stack += inner
    return found


def _alike(one: Field, other: Field) -> bool:
    return one.wire == other.wire and one.kind is other.kind and (one.fields is None) == (other.fields is None)


def _copy(chosen: Field) -> Field:
    inner = None if chosen.fields is None else [_copy(each) for each in chosen.fields]
    return Field(chosen.number, chosen.wire, chosen.data, inner, chosen.kind)


def _read(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
