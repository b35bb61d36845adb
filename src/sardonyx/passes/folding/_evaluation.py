"""Evaluate constant parts of a graph as models without inputs: infer the sizes of their values, and compute them.

Values get numbered names there, since equal names may denote different values in different bodies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct, field
from onnx.shape_inference import InferenceError, infer_shapes
from onnx_ir import serde

from sardonyx.errors import SardonyxError
from sardonyx.ir.facts import Evaluate, Facts
from sardonyx.ir.io import MAX_IR_VERSION
from sardonyx.ir.storage import stored_bytes
from sardonyx.ir.tensors import tensor_proto

_BYTES_OF_A_STRING = 32  # an estimate


class Form(Struct, frozen=True):
    """The type and shape of a tensor; None for what is unknown until it is computed."""

    dtype: ir.DataType | None
    shape: tuple[int, ...] | None

    @property
    def bytes(self) -> int | None:
        """Return the size in bytes."""
        if self.dtype is None or self.shape is None:
            return None
        if self.dtype == ir.DataType.STRING:
            return _BYTES_OF_A_STRING * math.prod(self.shape)
        return stored_bytes(self.dtype, self.shape)

    def fits(self, array: np.ndarray) -> bool:
        """Return whether an array has this type and shape."""
        if self.shape is not None and array.shape != self.shape:
            return False
        if self.dtype is None or self.dtype == ir.DataType.STRING:
            return array.dtype.kind in "OUS"
        return array.dtype == self.dtype.numpy()


Wanted = Mapping[ir.Node, Mapping[ir.Value, Form]]


class Constants(Struct, frozen=True, eq=False):
    """The constants of a graph, and further values that were evaluated without changing the graph."""

    graph: Facts
    evaluated: dict[ir.Value, ir.TensorProtocol] = field(default_factory=dict[ir.Value, ir.TensorProtocol])

    def __call__(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the constant tensor of a value."""
        tensor = self.evaluated.get(value)
        return self.graph.tensor(value) if tensor is None else tensor


class ConstantModel:
    """Nodes whose inputs are constants or outputs of each other, as a separate model.

    It stays valid when the graph changes, and keeps no values between evaluations.
    """

    def __init__(self, nodes: Sequence[ir.Node], constants: Constants, forms: Mapping[ir.Value, Form] | None = None):
        """Create a model of standard nodes in topological order that share one opset version.

        If only sizes are needed, `forms` may describe inputs that are not known yet.
        """
        self._names: dict[ir.Value, str] = {}
        self._tensors: dict[str, ir.TensorProtocol] = {}
        version = min(constants.graph.model.ir_version, MAX_IR_VERSION)  # newer IR versions do not change operators
        self._proto = onnx.ModelProto(ir_version=version)
        self._proto.opset_import.add(domain="", version=constants.graph.opset(nodes[0]))
        self._proto.graph.name = "constants"
        for node in nodes:
            self._add(node, constants, forms or {})

    def forms(self) -> dict[ir.Value, Form]:
        """Infer the types and shapes of the values that the nodes produce."""
        try:
            inferred = infer_shapes(self._filled(), check_type=False, strict_mode=False, data_prop=True)
        except (InferenceError, RuntimeError, ValueError):
            return {}
        types = {info.name: info.type for info in inferred.graph.value_info if info.type.HasField("tensor_type")}
        return {value: _form(types[name].tensor_type) for value, name in self._names.items() if name in types}

    def evaluate(self, wanted: Mapping[ir.Value, Form], engine: Evaluate) -> list[np.ndarray] | None:
        """Return the requested values, or None if no engine can compute them or they have another form."""
        proto = self._filled()
        for value, form in wanted.items():
            info = proto.graph.output.add(name=self._names[value])
            if form.dtype is not None:
                info.type.tensor_type.elem_type = form.dtype.value
        try:
            arrays = engine(proto)
        except SardonyxError:
            return None
        return arrays if all(form.fits(array) for array, form in zip(arrays, wanted.values(), strict=True)) else None

    def _add(self, node: ir.Node, constants: Constants, forms: Mapping[ir.Value, Form]) -> None:
        proto = self._proto.graph.node.add(op_type=node.op_type)
        for value in node.inputs:
            if value is not None and value not in self._names:
                self._add_source(value, constants(value), forms)
            proto.input.append("" if value is None else self._names[value])
        for value in node.outputs:
            proto.output.append(self._name(value) if value.name else "")
        for attribute in node.attributes.values():
            serde.serialize_attribute_into(proto.attribute.add(), attribute)

    def _add_source(self, value: ir.Value, tensor: ir.TensorProtocol | None, forms: Mapping[ir.Value, Form]) -> None:
        if tensor is not None:
            self._tensors[self._name(value)] = tensor
            return
        form = forms[value]
        info = self._proto.graph.input.add(name=self._name(value))
        info.type.tensor_type.elem_type = form.dtype.value if form.dtype is not None else 0
        if form.shape is not None:
            info.type.tensor_type.shape.SetInParent()
            info.type.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=d) for d in form.shape)

    def _filled(self) -> onnx.ModelProto:
        """Return the model with its constants as initializers."""
        model = onnx.ModelProto()
        model.CopyFrom(self._proto)
        model.graph.initializer.extend(tensor_proto(name, tensor) for name, tensor in self._tensors.items())
        return model

    def _name(self, value: ir.Value) -> str:
        return self._names.setdefault(value, f"v{len(self._names)}")


def evaluate_in_parts(
    roots: Sequence[ir.Node], wanted: Wanted, order: Mapping[ir.Node, int], constants: Constants, engine: Evaluate
) -> Iterator[tuple[ir.Node, list[ir.TensorProtocol] | None]]:
    """Yield the values of every root; on failure bisect until the failing roots are found.

    Args:
        roots: Nodes whose values are requested; they share one opset version.
        wanted: The values of each root and their expected forms.
        order: All nodes that may be evaluated, with their topological order.
        constants: Values that need not be evaluated.
        engine: Runs a model.
    """
    if not roots:
        return
    all_wanted = {value: form for root in roots for value, form in wanted[root].items()}
    arrays = ConstantModel(_with_producers(roots, order, constants), constants).evaluate(all_wanted, engine)
    if arrays is not None:
        tensors = (as_tensor(array, form.dtype) for array, form in zip(arrays, all_wanted.values(), strict=True))
        for root in roots:
            yield root, [next(tensors) for _ in wanted[root]]
    elif len(roots) == 1:
        yield roots[0], None
    else:
        half = len(roots) // 2
        yield from evaluate_in_parts(roots[:half], wanted, order, constants, engine)
        yield from evaluate_in_parts(roots[half:], wanted, order, constants, engine)


def _with_producers(roots: Sequence[ir.Node], order: Mapping[ir.Node, int], constants: Constants) -> list[ir.Node]:
    nodes = dict.fromkeys(roots)
    pending = list(roots)
    while pending:
        for value in pending.pop().inputs:
            producer = value.producer() if value is not None and value not in constants.evaluated else None
            if producer is not None and producer in order and producer not in nodes:
                nodes[producer] = None
                pending.append(producer)
    return sorted(nodes, key=order.__getitem__)


def as_tensor(array: np.ndarray, dtype: ir.DataType | None) -> ir.TensorProtocol:
    """Return a computed array as a tensor."""
    if array.dtype.kind in "OUS":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in _items(array)]
        return ir.StringTensor(texts, shape=ir.Shape(array.shape))
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)


def _items(array: np.ndarray) -> list[Any]:
    return array.reshape(-1).tolist()


def _form(proto: onnx.TypeProto.Tensor) -> Form:
    dtype = ir.DataType(proto.elem_type) if proto.elem_type else None
    is_static = proto.HasField("shape") and all(dim.HasField("dim_value") for dim in proto.shape.dim)
    return Form(dtype, tuple(dim.dim_value for dim in proto.shape.dim) if is_static else None)
