"""What sets two runs apart: exact where it has to be, within rounding where a pass may round otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzzing import running
from fuzzing.draft import finished, free_names, opset_of

RTOL = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2}
ATOL = {"float64": 1e-5, "float32": 1e-5, "float16": 1e-6}
DISTURBANCES = 6
FILL = 9e3  # larger numbers are the fills of masks: moved, they would no longer tie
AMPLIFIED = 8.0  # a result may be this many times as far off as the source on inputs one unit in the last place away


def difference(x: Any, y: Any, noise: np.ndarray | None = None) -> str:
    """What sets a result's output apart from its source's; empty where nothing does."""
    if isinstance(x, list) or isinstance(y, list):
        if not (isinstance(x, list) and isinstance(y, list)) or len(x) != len(y):
            return "another sequence"
        return next(filter(None, (difference(a, b) for a, b in zip(x, y, strict=True))), "")
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{y.dtype}{list(y.shape)} for {x.dtype}{list(x.shape)}"
    if x.dtype.name not in RTOL:
        wrong = np.asarray(x != y)
        return f"{int(wrong.sum())} of {wrong.size} values differ" if wrong.any() else ""
    return _floats(x, y, noise)


def _floats(x: np.ndarray, y: np.ndarray, noise: np.ndarray | None) -> str:
    rtol, atol = RTOL[x.dtype.name], ATOL[x.dtype.name]
    x, y = x.astype(np.float64), y.astype(np.float64)
    if (np.isnan(x) != np.isnan(y)).any():
        return f"{int(np.isnan(y).sum())} NaN for {int(np.isnan(x).sum())}"
    infinite = np.isinf(x) | np.isinf(y)
    if (x[infinite] != y[infinite]).any():
        return f"{int(np.isinf(y).sum())} infinities for {int(np.isinf(x).sum())}, or of another sign"
    kept = ~(infinite | np.isnan(x))
    if not kept.any():
        return ""
    scale = np.maximum(np.abs(x), np.median(np.abs(x[kept])))
    allowed = atol + rtol * scale + (0 if noise is None else noise)
    with np.errstate(invalid="ignore"):
        excess = np.where(kept, np.abs(x - y) - allowed, -1)
    if (excess <= 0).all():
        return ""
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    return f"{int((excess > 0).sum())} of {x.size} values differ, the worst {y[worst]:.6g} for {x[worst]:.6g}"


def bits_differ(x: Any, y: Any) -> str:
    """What an exact pass may not change: more than the runtime's own kernels differ by, and the sign of a zero.

    A kernel rounds the last elements of a vector otherwise than those before, by a few units in the last place, and
    half precision is computed in single where a conversion happens to be left out.
    """
    if isinstance(x, list) or x.dtype.kind != "f" or difference(x, y):
        return difference(x, y)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(wide_x - wide_y) > 8 * np.abs(np.spacing(x)).astype(np.float64)
    normal = np.isfinite(x) & (np.abs(wide_x) > np.finfo(x.dtype).tiny) & (x.dtype != np.float16)
    wrong = (apart & normal) | ((x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y)))
    if not wrong.any():
        return ""
    worst = tuple(int(axis) for axis in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {x.size} values differ in their bits, {y[worst]!r} for {x[worst]!r}"


# ---------------------------------------------------------------------------------------------- rounding


class Rounding:
    """How far the source's own outputs move when its inputs and weights move by a unit in the last place.

    A source in half precision is also run in single: the runtime leaves roundings to half out where two nodes without a
    kernel for it meet, and which do depends on the nodes between. Not where Softmax is: there the largest half number
    is the fill of a mask, and means something else in single precision.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._sessions: list[running.Session] = []
        self._widens = is_half(model) and all(node.op_type != "Softmax" for node in model.graph.node)

    def around(self, feed: running.Feed, answer: list[Any]) -> list[np.ndarray | None]:
        """For each output the noise by element; None where a value that is no float moves, or a NaN comes or goes."""
        noise: list[Any] = [np.zeros(np.shape(each)) if not isinstance(each, list) else None for each in answer]
        for moved in self._runs(feed):
            for index, (x, y) in enumerate(zip(answer, moved, strict=True)):
                noise[index] = _widened(noise[index], x, y)
        return [each if each is None else _by_row(each) * AMPLIFIED for each in noise]

    def _runs(self, feed: running.Feed) -> Iterator[list[Any]]:
        for number, session in enumerate(self._disturbed()):
            rng = np.random.default_rng(number)
            with contextlib.suppress(running.Failed):
                yield session.run({name: _moved(array, rng) for name, array in feed.items()})
        if self._widens:
            with contextlib.suppress(running.Failed):
                yield running.Session(in_single(self._model)).run({k: _single(array) for k, array in feed.items()})

    def _disturbed(self) -> list[running.Session]:
        if not self._sessions:
            for number in range(DISTURBANCES):
                model, rng = onnx.ModelProto(), np.random.default_rng(number)
                model.CopyFrom(self._model)
                if number % 2:
                    _disturb(model.graph, rng)
                self._sessions.append(running.Session(model))
        return self._sessions


def in_single(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with single precision wherever it has half."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.value_info[:]
    for each in (*wide.graph.input, *wide.graph.output):
        if each.type.tensor_type.elem_type == TensorProto.FLOAT16:
            each.type.tensor_type.elem_type = TensorProto.FLOAT
    attributes = [attribute for node in wide.graph.node for attribute in node.attribute]
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
    for tensor in (*wide.graph.initializer, *(each.t for each in attributes if each.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(numpy_helper.from_array(_single(numpy_helper.to_array(tensor)), tensor.name))
    return wide


def _single(array: Any) -> Any:
    return array.astype(np.float32) if isinstance(array, np.ndarray) and array.dtype == np.float16 else array


def _widened(noise: Any, x: Any, y: Any) -> Any:
    if noise is None or isinstance(y, list) or x.shape != y.shape:
        return None
    if x.dtype.kind != "f":
        return None if np.asarray(x != y).any() else noise
    if (np.isfinite(x) != np.isfinite(y)).any():
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(x.astype(np.float64) - y.astype(np.float64))
    return np.maximum(noise, np.where(np.isfinite(x), apart, 0))


def _by_row(noise: np.ndarray) -> np.ndarray:
    """An element's noise is that of its row: a single draw may leave one element where it is by chance."""
    if noise.ndim == 0 or noise.size == 0:
        return noise
    return np.broadcast_to(noise.max(axis=-1, keepdims=True), noise.shape)


def _disturb(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    tensors = [*graph.initializer]
    tensors += [a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value"]
    for tensor in tensors:
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
            array = numpy_helper.to_array(tensor)
            if array.size > 1:  # single numbers are exponents and bounds: moved, they mean something else
                tensor.CopyFrom(numpy_helper.from_array(_moved(array, rng), tensor.name))


def _moved(array: Any, rng: np.random.Generator) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return array
    with np.errstate(all="ignore"):
        up, down = np.nextafter(array, array.dtype.type(np.inf)), np.nextafter(array, array.dtype.type(-np.inf))
    moved = np.where(rng.random(array.shape) < 0.5, up, down)
    return np.where((np.abs(array) < FILL) & (array != 0), moved, array).astype(array.dtype)


# ---------------------------------------------------------------------------------------------- hidden rows


def with_hidden_rows_zero(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with 0 for the probabilities of a row that -inf hides whole, where Softmax gives NaN; else None."""
    version = opset_of(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {each.name: each.type.tensor_type.elem_type for each in (*inferred.value_info, *inferred.output)}
    del changed.graph.value_info[:]
    nodes: list[onnx.NodeProto] = []
    for node in changed.graph.node:
        nodes.append(node)
        if node.op_type == "Softmax" and version >= 9 and node.output[0] in types:
            nodes += _zeroed(node, version, types[node.output[0]])
    if len(nodes) == len(changed.graph.node):
        return None
    ordered = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del changed.graph.node[:]
    changed.graph.node.extend(ordered)
    return changed


def _zeroed(node: onnx.NodeProto, version: int, elem_type: int) -> list[onnx.NodeProto]:
    """p => where(max(s) == -inf, 0, p)."""
    wanted, raw = node.output[0], f"{node.output[0]}__raw"
    node.output[0] = raw
    axes, top, hidden, zero = (f"{wanted}__{key}" for key in ("axes", "max", "hidden", "zero"))
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    reduce = {"inputs": [node.input[0], axes]} if version >= 18 else {"inputs": [node.input[0]], "axes": [axis]}
    number = np.array(0, helper.tensor_dtype_to_np_dtype(elem_type))
    return [
        helper.make_node("Constant", [], [axes], value=numpy_helper.from_array(np.array([axis]))),
        helper.make_node("ReduceMax", outputs=[top], keepdims=1, **reduce),
        helper.make_node("Cast", [top], [f"{top}32"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], [f"{top}lowest"], value=numpy_helper.from_array(np.finfo(np.float32).min)),
        helper.make_node("Less", [f"{top}32", f"{top}lowest"], [hidden]),
        helper.make_node("Constant", [], [zero], value=numpy_helper.from_array(number)),
        helper.make_node("Where", [hidden, zero, raw], [wanted]),
    ]


# ---------------------------------------------------------------------------------------------- overflow

PRODUCTS = frozenset(("MatMul", "Mul", "Pow", "Gemm", "Conv", "ConvTranspose", "Div", "Exp", "Reciprocal", "Einsum"))


def overflows(model: onnx.ModelProto, feed: running.Feed) -> bool:
    """Whether a product or a reduction of the source leaves the range of its type.

    What a fused operator computes there, in another order or in more precision, may well be finite.
    """
    values = running.values(model, feed)
    return any(
        not all(_in_range(values.get(name)) for name in node.output)
        and all(_in_range(values.get(name)) for name in node.input)
        for node in model.graph.node
        if node.op_type in PRODUCTS or node.op_type.startswith("Reduce")
    )


def _in_range(array: Any) -> bool:
    return not isinstance(array, np.ndarray) or array.dtype.kind != "f" or bool(np.isfinite(array).all())


def is_half(model: onnx.ModelProto) -> bool:
    """Whether something is computed in half precision: in single, where the runtime leaves a conversion out."""
    half = TensorProto.FLOAT16
    casts = (a.i for node in model.graph.node for a in node.attribute if a.name == "to")
    declared = (each.type.tensor_type.elem_type for each in model.graph.input)
    return half in (*casts, *declared, *(each.data_type for each in model.graph.initializer))


def steady(model: onnx.ModelProto, feed: running.Feed, answer: list[Any]) -> bool:
    """Whether the source gives the same again: some kernels leave memory as they found it."""
    for number in range(3):
        garbage = [np.full(size, number + 0.1, np.float32) for size in (4, 16, 64, 256) for _ in range(8)]
        del garbage
        again = running.Session(model).run(feed)
        if any(difference(x, y) for x, y in zip(answer, again, strict=True)):
            return False
    return True


def breaks_the_standard(model: onnx.ModelProto, feed: running.Feed) -> bool:
    """Whether a node of the source does not load once the shapes of its operands are known."""
    values = running.values(model, feed)
    for node in model.graph.node:
        used = [name for name in free_names(node) if name in values]
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_value_info(name, running.type_of(values[name])) for name in used],
            [onnx.ValueInfoProto(name=name) for name in node.output],
        )
        try:
            running.Session(finished(graph, opset_of(model), model.functions)).run(
                {name: values[name] for name in used}
            )
        except running.Failed:
            return True
    return False
