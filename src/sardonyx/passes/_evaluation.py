"""Which nodes may be evaluated ahead of time, how many bytes that may add to the model, and how they are evaluated.

Constant parts of a graph are evaluated as models without inputs. Values get numbered names there, since equal names may
denote different values in different bodies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct, field
from onnx.shape_inference import InferenceError, infer_shapes
from onnx_ir import serde

from sardonyx.errors import SardonyxError
from sardonyx.ir.facts import Evaluate, Facts
from sardonyx.ir.ops import MAKES_SEQUENCE, OPTIONALS, QUANTIZES, RANDOM
from sardonyx.ir.rules import Builder, Replacement
from sardonyx.ir.storage import stored_bytes
from sardonyx.ir.support import MAX_IR_VERSION
from sardonyx.ir.tensors import tensor_proto

MAX_HELD_BYTES = 1 << 20  # larger constants are not kept in memory
# One folded node may add to the model the larger of so many bytes and its size / NODE_GROWTH_DIVISOR. The same for all
# folded nodes together.
NODE_GROWTH_BYTES = 1 << 16
NODE_GROWTH_DIVISOR = 128
MODEL_GROWTH_BYTES = 1 << 20
MODEL_GROWTH_DIVISOR = 32
MANY_USES = 256  # a constant with more uses than this is assumed to stay

GROWS = "folding it would grow the model past its budget"
OUTPUT = "the graph's output would lose its name"
UNSIZED = "the size of its result is unknown until it is computed"
FAILED = "no available engine can evaluate it"

_NEVER = RANDOM | QUANTIZES | MAKES_SEQUENCE | OPTIONALS | {"Constant", "Dropout"}
_A = ir.AttributeType
# Attribute types other than bodies, types and sparse tensors.
PLAIN_ATTRIBUTES = frozenset({_A.INT, _A.INTS, _A.STRING, _A.STRINGS, _A.FLOAT, _A.FLOATS, _A.TENSOR})
_GIVEN_UP = "sardonyx.cannot-be-evaluated"
_GROWTH = "sardonyx.growth"


def is_foldable(node: ir.Node, graph: Facts) -> bool:
    """Return whether the node may be evaluated ahead of time."""
    if node.domain != "" or node.op_type in _NEVER or _GIVEN_UP in node.meta or not any(node.inputs):
        return False
    if any(attribute.is_ref() or attribute.type not in PLAIN_ATTRIBUTES for attribute in node.attributes.values()):
        return False
    return "seed" not in node.attributes and node.op_identifier() not in graph.model.functions


def give_up(node: ir.Node) -> None:
    """Record that no engine can evaluate a node, since it would fail again in every sweep."""
    node.meta[_GIVEN_UP] = True


def grown_constants(tensors: Sequence[ir.TensorProtocol], growth: int, op: Builder) -> Replacement:
    """Return constants that record by how much they grew the model, so that all sweeps share one budget."""
    values = [op.constant(tensor) for tensor in tensors]
    values[0].meta[_GROWTH] = max(growth, 0)
    return values


def divides_safely(node: ir.Node, graph: Facts) -> bool:
    """Return whether an integer division cannot trap: x / 0 and lowest / -1 may end the process."""
    if node.op_type not in ("Div", "Mod"):
        return True
    divisor = node.inputs[1]
    dtype = graph.dtype(divisor)
    if dtype is not None and dtype.is_floating_point():
        return True
    array = graph.array(divisor)
    return array is not None and not np.isin(array.astype(np.int64), (0, -1)).any()


def freed_bytes(value: ir.Value | None, readers: set[ir.Node], graph: Facts) -> int:
    """Return the bytes of a constant if nothing but `readers` uses it, divided by the number of its users."""
    tensor = graph.tensor(value)
    if value is None or tensor is None or value.is_graph_output() or len(value.uses()) > MANY_USES:
        return 0
    users = {use.node for use in value.uses()}
    return tensor.nbytes // len(users) if users <= readers else 0


class Budget(Struct):
    """The number of bytes that folding may still add."""

    per_node: int
    left: int

    @classmethod
    def of(cls, graph: Facts) -> Budget:
        """Return the budget of a model of this size."""
        values = [value for scope in graph.live_scopes() for value in scope.graph.initializers.values()]
        size = sum(value.const_value.nbytes for value in values if value.const_value is not None)
        spent = sum(cast("Mapping[str, int]", value.meta).get(_GROWTH, 0) for value in values)
        left, remaining = max(MODEL_GROWTH_BYTES, size // MODEL_GROWTH_DIVISOR) - spent, graph.growth.remaining
        return cls(
            max(NODE_GROWTH_BYTES, size // NODE_GROWTH_DIVISOR), left if remaining is None else min(left, remaining)
        )

    def take(self, growth: int) -> bool:
        """Return whether the model may grow by that many bytes, and spend them. Shrinking is always allowed."""
        if growth > max(min(self.per_node, self.left), 0):
            return False
        self.left -= max(growth, 0)
        return True


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


def _expand(data: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(sizes.tolist())))


def _gather(data: np.ndarray, indices: np.ndarray, axis: int = 0) -> np.ndarray:
    return np.take(data, indices, axis)


_MOVES: Mapping[str, Callable[..., np.ndarray]] = MappingProxyType({"Expand": _expand, "Gather": _gather})


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
        moved = self._moved(wanted)
        if moved is not None:
            return moved
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

    def _moved(self, wanted: Mapping[ir.Value, Form]) -> list[np.ndarray] | None:
        """Return the values of nodes that only move elements: to start a runtime takes longer than most of them."""
        nodes = self._proto.graph.node
        if any(node.op_type not in _MOVES for node in nodes):
            return None
        arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        try:
            for node in nodes:
                operands = [arrays[name] for name in node.input]
                arrays[node.output[0]] = _MOVES[node.op_type](
                    *operands, **{each.name: each.i for each in node.attribute}
                )
        except (IndexError, ValueError):
            return None  # an invalid node, which the engine describes
        moved = [arrays[self._names[value]] for value in wanted]
        return moved if all(form.fits(array) for array, form in zip(moved, wanted.values(), strict=True)) else None

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
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1).tolist()]
        return ir.StringTensor(texts, shape=ir.Shape(array.shape))
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype)


def _form(proto: onnx.TypeProto.Tensor) -> Form:
    dtype = ir.DataType(proto.elem_type) if proto.elem_type else None
    is_static = proto.HasField("shape") and all(dim.HasField("dim_value") for dim in proto.shape.dim)
    return Form(dtype, tuple(dim.dim_value for dim in proto.shape.dim) if is_static else None)
