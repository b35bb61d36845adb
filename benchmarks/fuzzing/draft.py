"""A graph in the making: every value is computed as soon as its node is added.

The array that a value holds at the nominal sizes gives the type and shape that the next operators need, and an operator
that the runtime rejects there is never part of a model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzzing import decorating, running

CONTRIB = "com.microsoft"
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64))
F32 = np.float32
LOWEST = float(np.finfo(np.float32).min)
Dim = int | str
LOCAL = "fuzz.local"  # the domain of model-local functions


class Rejected(Exception):
    """The runtime takes no such operator; the draw is dropped."""


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph and what it holds at the nominal sizes."""

    name: str
    array: Any  # a numpy array, or a list of them for a sequence

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape at the nominal sizes."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype:
        """Its element type."""
        return self.array.dtype

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return self.array.ndim


@dataclass(frozen=True)
class Input:
    """An input of the model: what the feeds have to respect."""

    name: str
    dtype: np.dtype
    dims: tuple[Dim, ...]
    role: str = "plain"  # plain | mask | ids | positive | flag
    limit: int = 0  # ids are below it


class Draft:
    """A model in the making."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.arrays = np.random.default_rng(rng.getrandbits(32))
        self.sizes: dict[str, int] = {}
        self.inputs: list[Input] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.values: dict[str, Value] = {}
        self.promised: list[str] = []  # names that bodies have, and that later values may have
        self.outputs: list[str] = []  # wanted besides the unused ones
        self.decoration = rng.choice((0.0, 0.0, 0.0, 0.03, 0.1))  # how often a no-op, or nearly one, is put in
        self._decorating = False

    # ------------------------------------------------------------------------------------------ leaves

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self.rng.random() < probability

    def fresh(self, stem: str = "v") -> str:
        """A name that no outer value has; sometimes one that a body before has."""
        free = [name for name in self.promised if name not in self.values]
        return self.rng.choice(free) if stem == "v" and free and self.chance(0.5) else f"{stem}{len(self.values)}"

    def dim(self, symbol: str, size: int) -> Dim:
        """A dynamic dimension, or in some models a static one."""
        if self.chance(0.25):
            return size
        self.sizes.setdefault(symbol, size)
        return symbol

    def nominal(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        """The sizes at which the draft computes."""
        return tuple(self.sizes[each] if isinstance(each, str) else each for each in dims)

    def input(self, dtype: Any, dims: Sequence[Dim], role: str = "plain", limit: int = 0) -> Value:
        """A new input of the model."""
        name = self.fresh("x")
        self.inputs.append(Input(name, np.dtype(dtype), tuple(dims), role, limit))
        array = running.usual(self.inputs[-1], self.nominal(dims), self.arrays)
        return self._known(name, array)

    def const(self, array: Any, dtype: Any = None) -> Value:
        """A constant: an initializer or a node, as exporters differ."""
        with np.errstate(over="ignore"):
            array = np.asarray(array).astype(dtype) if dtype is not None else np.asarray(array)
        name = self.fresh("c")
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if self.chance(0.6):
            self.initializers.append(tensor)
        elif array.dtype == np.float32 and array.ndim < 2 and self.opset >= 12 and self.chance(0.5):
            attribute = {"value_float": float(array)} if array.ndim == 0 else {"value_floats": array.tolist()}
            if array.size:
                self.nodes.append(helper.make_node("Constant", [], [name], **attribute))
            else:
                self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return self._known(name, array)

    def ints(self, *numbers: int) -> Value:
        """A vector of sizes or axes."""
        return self.const(np.array(numbers, np.int64))

    def normal(self, shape: Sequence[int], dtype: Any = F32, scale: float = 1.0) -> Value:
        """A constant of random numbers."""
        return self.const((self.arrays.standard_normal(tuple(shape)) * scale).astype(dtype))

    def scalar(self, number: float, dtype: Any = F32) -> Value:
        """A number, of rank 0 or with axes of 1 in front."""
        rank = self.rng.choice((0, 0, 0, 1, 1, 2))
        with np.errstate(over="ignore"):
            return self.const(np.full((1,) * rank, number).astype(dtype))

    def _known(self, name: str, array: Any) -> Value:
        value = Value(name, array)
        self.values[name] = value
        return value

    # ------------------------------------------------------------------------------------------ nodes

    def op(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """A node of one output, now and then with a no-op after it."""
        return self.decorated(self.ops(op_type, *inputs, **attributes)[0])

    def ops(
        self, op_type: str, *inputs: Value | None, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[Value]:
        """A node of several outputs; now and then it is there twice."""
        names = [self.fresh() + (f"_{index}" if index else "") for index in range(outputs)]
        given = [each.name if each is not None else "" for each in inputs]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, given, names, domain=domain, **attributes)
        arrays = self._computed(node)
        self.nodes.append(node)
        made = [self._known(name, array) for name, array in zip(names, arrays, strict=True)]
        if self.chance(0.02) and op_type not in ("If", "Loop", "Scan"):
            again = onnx.NodeProto()
            again.CopyFrom(node)
            again.output[:] = [f"{name}d" for name in names]
            self.nodes.append(again)
            return [self._known(f"{each.name}d", each.array) for each in made]
        return made

    def _computed(self, node: onnx.NodeProto) -> list[Any]:
        needed = {name: self.values[name].array for name in free_names(node)}
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_value_info(name, running.type_of(array)) for name, array in needed.items()],
            [onnx.ValueInfoProto(name=name) for name in node.output],
        )
        model = finished(graph, self.opset, self.functions)
        try:
            return running.Session(model).run(needed)
        except running.Failed as failed:
            raise Rejected(f"{node.op_type}: {failed}") from failed

    def decorated(self, value: Value) -> Value:
        """Mostly the value itself; sometimes behind an operator that changes nothing, or little."""
        if self._decorating or not self.chance(self.decoration) or isinstance(value.array, list):
            return value
        self._decorating = True
        try:
            return self.rng.choice(decorating.DECORATIONS)(self, value)
        except Rejected:
            return value
        finally:
            self._decorating = False

    # ------------------------------------------------------------------------------------------ by version

    def axes(self, op_type: str, value: Value, axes: Sequence[int] | None, since: int, **attributes: Any) -> Value:
        """A node whose axes are an attribute before an opset and an input from it on."""
        if axes is None:
            return self.op(op_type, value, **attributes)
        if self.opset < since:
            return self.op(op_type, value, axes=list(axes), **attributes)
        return self.op(op_type, value, self.ints(*axes), **attributes)

    def squeeze(self, value: Value, *axes: int) -> Value:
        """Squeeze."""
        return self.axes("Squeeze", value, axes, 13)

    def unsqueeze(self, value: Value, *axes: int) -> Value:
        """Unsqueeze."""
        return self.axes("Unsqueeze", value, axes, 13)

    def reduce(self, op_type: str, value: Value, axes: Sequence[int] | None, keepdims: int = 1) -> Value:
        """A reduction; ReduceSum has had its axes as an input since 13, the others since 18."""
        since = 13 if op_type == "ReduceSum" else 18
        return self.axes(op_type, value, axes, since, keepdims=keepdims if self.chance(0.8) or not keepdims else None)

    def cast(self, value: Value, dtype: Any) -> Value:
        """Cast."""
        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def transpose(self, value: Value, *perm: int) -> Value:
        """Transpose."""
        return self.op("Transpose", value, perm=list(perm) if perm else None)

    def reshape(self, value: Value, *target: int) -> Value:
        """Reshape."""
        return self.op("Reshape", value, self.ints(*target))

    def clip(self, value: Value, low: float | None, high: float | None) -> Value:
        """Clip."""
        if self.opset < 11:
            return self.op("Clip", value, min=low, max=high)
        bounds = [None if each is None else self.const(each, value.dtype) for each in (low, high)]
        while bounds and bounds[-1] is None:
            bounds.pop()
        return self.op("Clip", value, *bounds)

    def slice(
        self, value: Value, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
    ) -> Value:
        """Slice; before opset 10 without steps."""
        if self.opset < 10:
            return self.op("Slice", value, starts=list(starts), ends=list(ends), axes=list(axes))
        kind = np.int32 if self.chance(0.1) and max(map(abs, (*starts, *ends)), default=0) < 2**31 else np.int64
        operands = [self.const(np.array(each, kind)) for each in (starts, ends, axes)]
        if any(step != 1 for step in steps) or self.chance(0.3):
            operands.append(self.const(np.array(steps, kind)))
        return self.op("Slice", value, *operands)

    def split(self, value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
        """Split into given sizes; without them where they are equal, now and then."""
        count, equal = len(sizes), len(set(sizes)) == 1
        if equal and self.opset >= 18 and self.chance(0.5):
            return self.ops("Split", value, outputs=count, axis=axis, num_outputs=count)
        if equal and self.opset < 18 and self.chance(0.5):
            return self.ops("Split", value, outputs=count, axis=axis)
        if self.opset < 13:
            return self.ops("Split", value, outputs=count, axis=axis, split=list(sizes))
        return self.ops("Split", value, self.ints(*sizes), outputs=count, axis=axis)

    def softmax(self, value: Value) -> Value:
        """Softmax over the last axis; before opset 13 the default flattens."""
        return self.op("Softmax", value, axis=self.rng.choice((-1, value.rank - 1)))

    def pad(self, value: Value, pads: Sequence[int], fill: float = 0.0, mode: str = "constant") -> Value:
        """Pad."""
        if self.opset < 11:
            return self.op("Pad", value, pads=list(pads), value=fill, mode=mode)
        more = [] if mode != "constant" or self.chance(0.3) else [self.const(fill, value.dtype)]
        return self.op("Pad", value, self.ints(*pads), *more, mode=mode)

    # ------------------------------------------------------------------------------------------ the model

    def model(self) -> onnx.ModelProto:
        """The finished model: what nobody uses is an output, mostly, and some of the rest too."""
        used = {name for node in self.nodes for name in free_names(node)}
        made = [name for node in self.nodes if node.op_type != "Constant" for name in node.output]
        outputs = [name for name in dict.fromkeys(self.outputs) if name not in {each.name for each in self.inputs}]
        outputs += [name for name in made if name not in used and name not in outputs and self.chance(0.9)]
        outputs += [name for name in made if name in used and name not in outputs and self.chance(0.06)]
        if not outputs:
            raise Rejected("no outputs")
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            [helper.make_tensor_value_info(each.name, tensor_type(each.dtype), each.dims) for each in self.inputs],
            [helper.make_value_info(name, running.type_of(self.values[name].array)) for name in outputs],
            initializer=self.initializers,
        )
        model = finished(graph, self.opset, self.functions)
        return self._shaped(model)

    def _shaped(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """With the shapes that inference finds for the outputs, or none; sometimes for all values."""
        for each in model.graph.output:
            if each.type.HasField("tensor_type"):
                each.type.tensor_type.ClearField("shape")
        try:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=self.chance(0.5))
        except Exception:  # inference may refuse what the runtime takes
            return model
        if any(self._contradicts(each) for each in (*inferred.graph.output, *inferred.graph.value_info)):
            return model  # inference is wrong about negative axes of old operators, and about sequences
        if self.chance(0.3):
            return inferred
        if self.chance(0.5):
            for ours, theirs in zip(model.graph.output, inferred.graph.output, strict=True):
                ours.CopyFrom(theirs)
        return model

    def _contradicts(self, info: onnx.ValueInfoProto) -> bool:
        """Whether a declared shape is not that of the value at the nominal sizes."""
        kind = info.type.tensor_type
        value = self.values.get(info.name)
        if value is None or isinstance(value.array, list) or not kind.HasField("shape"):
            return False
        sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
        return len(sizes) != value.rank or any(
            size not in (None, real) for size, real in zip(sizes, value.shape, strict=True)
        )


def tensor_type(dtype: np.dtype) -> int:
    """The ONNX element type of a numpy one."""
    return TensorProto.STRING if dtype == np.object_ else helper.np_dtype_to_tensor_dtype(dtype)


def finished(graph: onnx.GraphProto, opset: int, functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    """A model around a graph."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    if functions:
        imports.append(helper.make_opsetid(LOCAL, 1))
    version = 10 if opset < 23 else 11
    return helper.make_model(graph, opset_imports=imports, ir_version=version, functions=functions)


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators."""
    return next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))


def free_names(node: onnx.NodeProto) -> list[str]:
    """Every outer value that a node uses, in its bodies too."""
    names = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            names.update(dict.fromkeys(free_of_graph(attribute.g)))
    return list(names)


def free_of_graph(graph: onnx.GraphProto) -> list[str]:
    """The outer values that a body uses."""
    own = {each.name for each in (*graph.input, *graph.initializer)}
    found: dict[str, None] = {}
    for node in graph.node:
        found.update(dict.fromkeys(name for name in free_names(node) if name not in own))
        own.update(node.output)
    found.update(dict.fromkeys(each.name for each in graph.output if each.name not in own))
    return list(found)
