"""The examples of the passes with something changed: a number, a type, a rank, an axis, an edge, an extra output."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzzing.draft import CONTRIB, Input, Rejected
from sardonyx.passes import ALL

NUMBERS = (0.0, 1.0, -1.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1e-40, 1e-8, 2.0, 6.0, 0.5)
FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@functools.cache
def sources() -> tuple[tuple[str, onnx.ModelProto], ...]:
    """Every example that a pass gives, before the pass and where it does not apply."""
    return tuple(
        (each.name, onnx.parser.parse_model(text))
        for each in ALL
        for text in (each.example.before, each.example.before, each.example.near_miss)
    )


def examples(rng: random.Random) -> tuple[onnx.ModelProto, list[Input], dict[str, int]]:
    """An example after one to four changes, with what its inputs may hold."""
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice(sources())[1])
    del model.graph.value_info[:]
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        rng.choice(CHANGES)(model, rng)
    sizes = _opened(model, rng)
    for each in model.graph.output:
        if rng.random() < 0.7 and each.type.HasField("tensor_type"):
            each.type.tensor_type.ClearField("shape")
    if not any(each.domain == CONTRIB for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    stored = {each.name for each in model.graph.initializer}
    return model, [_described(each, sizes) for each in model.graph.input if each.name not in stored], sizes


def _described(info: onnx.ValueInfoProto, sizes: dict[str, int]) -> Input:
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        raise Rejected("not a tensor")
    dtype = (
        np.dtype(object) if kind.elem_type == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(kind.elem_type)
    )
    dims = tuple(each.dim_param or each.dim_value for each in kind.shape.dim)
    for each in dims:
        if isinstance(each, str):
            sizes.setdefault(each, 3)
    masklike = info.name in ("m", "mask", "am") or dtype == np.bool_
    if masklike:
        return Input(info.name, dtype, dims, "mask")
    return Input(info.name, dtype, dims, "ids" if dtype.kind in "iu" else "plain", 3)


def _opened(model: onnx.ModelProto, rng: random.Random) -> dict[str, int]:
    """Make some sizes dynamic, the same one everywhere in the inputs; the source decides what fits."""
    sizes: dict[str, int] = {}
    if rng.random() < 0.5:
        return sizes
    chosen = {}
    for each in model.graph.input:
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_value and not dim.dim_param:
                symbol = chosen.setdefault(dim.dim_value, f"D{dim.dim_value}" if rng.random() < 0.4 else "")
                if symbol:
                    sizes[symbol] = dim.dim_value
                    dim.dim_param = symbol
    return sizes


# ---------------------------------------------------------------------------------------------- changes


def _number(model: onnx.ModelProto, rng: random.Random) -> None:
    """One constant, or one element of it, becomes another number."""
    tensors = [each for each in model.graph.initializer if each.data_type in FLOATING]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    if not array.size:
        return
    with np.errstate(over="ignore"):
        number = np.array(rng.choice(NUMBERS)).astype(array.dtype)
    if rng.random() < 0.5:
        array[...] = number
    else:
        array.flat[rng.randrange(array.size)] = number
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _integer(model: onnx.ModelProto, rng: random.Random) -> None:
    """One element of an integer constant moves, or becomes huge."""
    tensors = [each for each in model.graph.initializer if each.data_type == TensorProto.INT64]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    if array.size:
        place = rng.randrange(array.size)
        array.flat[place] = rng.choice((array.flat[place] + 1, array.flat[place] - 1, 0, -1, 2**63 - 1, 2**31 - 1))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _rank(model: onnx.ModelProto, rng: random.Random) -> None:
    """A constant gets axes of 1 in front, or loses its axes of 1."""
    if not model.graph.initializer:
        return
    tensor = rng.choice(list(model.graph.initializer))
    array = numpy_helper.to_array(tensor)
    changed = array.reshape((1,) * rng.choice((1, 2, 4)) + array.shape) if rng.random() < 0.6 else array.squeeze()
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed).reshape(changed.shape), tensor.name))


def _type(model: onnx.ModelProto, rng: random.Random) -> None:
    """Every float becomes a half or a double."""
    wanted = rng.choice((TensorProto.FLOAT16, TensorProto.DOUBLE))
    dtype = helper.tensor_dtype_to_np_dtype(wanted)
    for each in (*model.graph.input, *model.graph.output):
        if each.type.tensor_type.elem_type == TensorProto.FLOAT:
            each.type.tensor_type.elem_type = wanted
    tensors = [*model.graph.initializer]
    tensors += [a.t for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            with np.errstate(over="ignore"):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    """One number in one attribute moves; a permutation is shuffled."""
    places = [
        attribute
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.type in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT)
    ]
    if not places:
        return
    attribute = rng.choice(places)
    if attribute.name == "perm":
        attribute.ints[:] = rng.sample(list(attribute.ints), len(attribute.ints))
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice((0, 1, -1, attribute.i + 1))
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        place = rng.randrange(len(attribute.ints))
        attribute.ints[place] = rng.choice((0, 1, 2, attribute.ints[place] + 1))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice([each for each in NUMBERS if np.isfinite(each)])


def _swap(model: onnx.ModelProto, rng: random.Random) -> None:
    """The first two operands of a node change places."""
    nodes = [node for node in model.graph.node if len(node.input) >= 2]
    if nodes:
        node = rng.choice(nodes)
        node.input[0], node.input[1] = node.input[1], node.input[0]


def _edge(model: onnx.ModelProto, rng: random.Random) -> None:
    """An operator is put between a node and one of its operands."""
    places = [
        (index, place) for index, node in enumerate(model.graph.node) for place, name in enumerate(node.input) if name
    ]
    if not places:
        return
    index, place = rng.choice(places)
    node = model.graph.node[index]
    before, after = node.input[place], f"edge{len(model.graph.node)}"
    kind = rng.choice(("Identity", "Neg", "Cast", "Cast", "Abs", "Relu", "Transpose", "Not", "Exp"))
    to = rng.choice((TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL))
    nodes = [helper.make_node(kind, [before], [after], **({"to": to} if kind == "Cast" else {}))]
    if kind == "Cast":
        back = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", [after], [f"{after}b"], to=back))
        after = f"{after}b"
    node.input[place] = after
    kept = [*model.graph.node]
    kept[index:index] = nodes
    ordered = [onnx.NodeProto.FromString(each.SerializeToString()) for each in kept]
    del model.graph.node[:]
    model.graph.node.extend(ordered)


def _output(model: onnx.ModelProto, rng: random.Random) -> None:
    """An inner value becomes an output."""
    named = {each.name for each in model.graph.output}
    inner = [name for node in model.graph.node for name in node.output if name and name not in named]
    if not inner:
        return
    inferred = {each.name: each for each in onnx.shape_inference.infer_shapes(model).graph.value_info}
    name = rng.choice(inner)
    if name in inferred:
        model.graph.output.append(inferred[name])


def _twice(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node's second operand becomes its first."""
    nodes = [node for node in model.graph.node if len(node.input) >= 2]
    if nodes:
        node = rng.choice(nodes)
        node.input[1] = node.input[0]


def _given(model: onnx.ModelProto, rng: random.Random) -> None:
    """A constant becomes an input."""
    if model.graph.initializer:
        index = rng.randrange(len(model.graph.initializer))
        tensor = model.graph.initializer[index]
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        del model.graph.initializer[index]


CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _number, _number, _number, _integer, _integer, _rank, _type, _attribute, _attribute, _swap, _edge, _edge, _output,
    _twice, _given,
)  # fmt: skip
