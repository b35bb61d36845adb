"""Disturb every rounding of a model: how far its outputs move is the error explained by rounding alone.

In a copy of the model, each node that rounds gets a pseudo-random error of about one unit in the last place, a function
of its own result y:

    sum            y + eps · sin(f · log|y|) · sign(y) · (|y| + scale): cancellation leaves an error of the terms' size
    elementwise    y - eps · sin²(f · log|y|) · y, which never overflows

The frequency f is an input of the copy: each value of f is one sample of roundings. The `scale` of a sum follows its
own terms, not the whole tensor: row times column for a product, the channel for a convolution, the row for a norm or
softmax. A column of 1e8 thus does not disturb the columns beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.element_types import element_types
from sardonyx.ir.ops import (
    ARITHMETIC,
    CASTS,
    CONVOLUTIONS,
    EXACT_UNARY,
    MATRIX_PRODUCTS,
    RECURRENT,
    SOFTMAXES,
    UNARY,
)
from sardonyx.runtime import Value

_BY_ROW = SOFTMAXES - {"Hardmax"} | {"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}
_BY_CHANNEL = frozenset(
    (
        "BatchNormalization", "InstanceNormalization", "GroupNormalization", "AveragePool", "GlobalAveragePool",
        "ConvTranspose", "Resize",
    )
)  # fmt: skip
_SUMS = MATRIX_PRODUCTS | CONVOLUTIONS | RECURRENT | _BY_ROW | _BY_CHANNEL | {
    "Attention", "CumSum", "DequantizeLinear", "Einsum", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare",
}  # fmt: skip
_ELEMENTWISE = ARITHMETIC | UNARY - EXACT_UNARY - CASTS | {"Mean", "PRelu", "Pow", "ReduceProd", "Sum"}
# The size of the disturbance: eps for types whose sums round at every term; eps / 2, the largest error of one rounding,
# for the narrow types, whose sums the runtime accumulates in single precision.
_FLOATS = {
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}
# Below its normal range a type rounds to a fixed spacing; only in float16 do usual values get that small.
_SUBNORMAL = {ir.DataType.FLOAT16: 2.0**-24}
_LEAST = 1e-38
_HUGE = 1e30
NARROW = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_NEGATIVE_AXES = 11
_AXES_ARE_AN_INPUT = 18
FREQUENCY = "sardonyx.noise.frequency"
_MOST_SITES = 1500  # disturbing more nodes is slow and changes little; sums come first


def disturbed(model: ir.Model, *, stored: Collection[str] = ()) -> ir.Model | None:
    """Return a disturbed copy of the model, or None if no node of a known floating-point type rounds.

    Args:
        model: The model; it is not changed.
        stored: Names of constants that are stored in a narrow type and cast before use. Each Cast also gets the error
            of rounding the constant to that type.
    """
    copy = model.clone()
    types = element_types(copy)
    sites = [n for n in copy.graph.all_nodes() if _rounds(n) and types.get(n.outputs[0]) in _FLOATS]
    sites.sort(key=lambda node: node.op_type not in _SUMS)
    weights = [n for n in copy.graph.all_nodes() if n.op_type == "Cast" and _name(n.inputs[0]) in stored]
    frequency = ir.Value(name=FREQUENCY, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    copy.graph.inputs.append(frequency)
    opset = copy.opset_imports.get("", 1)
    for number, node in enumerate(sites[:_MOST_SITES]):
        _disturb(node, types[node.outputs[0]], frequency, _Nodes(f"noise.{number}", copy.graph, opset))
    for number, node in enumerate(weights):
        kind = types.get(node.inputs[0]) if node.inputs[0] is not None else None
        _disturb(node, kind or ir.DataType.FLOAT16, frequency, _Nodes(f"noise.weight.{number}", copy.graph, opset))
    return copy if sites else None


def sample(number: int) -> dict[str, Value]:
    """Return the additional feed that selects one sample of roundings."""
    return {FREQUENCY: np.asarray(1e7 + 79190.0 * number, np.float32)}


def undisturbed() -> dict[str, Value]:
    """Return the additional feed with which the copy computes what the model does."""
    return {FREQUENCY: np.asarray(0.0, np.float32)}


def _rounds(node: ir.Node) -> bool:
    return bool(node.outputs) and (node.op_type in _SUMS or node.op_type in _ELEMENTWISE)


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""


class _Nodes:
    """Creates nodes with one name prefix, in order."""

    def __init__(self, name: str, root: ir.Graph, opset: int) -> None:
        self.name, self.opset = name, opset
        self._root = root
        self.nodes: list[ir.Node] = []

    def op(self, op_type: str, *inputs: ir.Value, **attributes: int | Sequence[int] | ir.TensorProtocol) -> ir.Value:
        name = f"{self.name}.{len(self.nodes)}"
        self.nodes.append(ir.node(op_type, list(inputs), attributes=dict(attributes) or None, name=name))
        self.nodes[-1].outputs[0].name = name
        return self.nodes[-1].outputs[0]

    def constant(self, value: float | Sequence[int]) -> ir.Value:
        """Return an initializer of the outermost graph, shared by value; Constant nodes would slow down loading."""
        name = f"noise.constant.{value}"
        if name not in self._root.initializers:
            array = np.array(value, np.float32 if isinstance(value, float) else np.int64)
            self._root.register_initializer(ir.Value(name=name, const_value=ir.tensor(array, name=name)))
        return self._root.initializers[name]

    def single(self, value: ir.Value) -> ir.Value:
        return self.op("Cast", value, to=int(ir.DataType.FLOAT))

    def reduce(self, op_type: str, value: ir.Value, axes: Sequence[int], *, keepdims: int = 1) -> ir.Value:
        """Add a reduction over axes, which are an attribute before opset 18 and an input since."""
        if self.opset >= _AXES_ARE_AN_INPUT:
            return self.op(op_type, value, self.constant(axes), keepdims=keepdims)
        return self.op(op_type, value, axes=axes, keepdims=keepdims)

    def length(self, value: ir.Value, axes: Sequence[int], *, keepdims: int = 1) -> ir.Value:
        """Add the Euclidean norm over axes, clipped so that the product of two norms does not overflow."""
        return self.op("Min", self.reduce("ReduceL2", value, axes, keepdims=keepdims), self.constant(1e18))


def _disturb(node: ir.Node, kind: ir.DataType, frequency: ir.Value, nodes: _Nodes) -> None:
    """Insert the disturbance between a node's first result and its consumers; it takes over the result's name."""
    clean, graph = node.outputs[0], node.graph
    if graph is None:
        return
    consumers = list(clean.uses())  # before the disturbance itself consumes the clean result
    op = nodes.op
    single = kind == ir.DataType.FLOAT or node.op_type == "Cast"
    y = clean if single else nodes.single(clean)
    y = op("Min", op("Max", y, nodes.constant(-_HUGE)), nodes.constant(_HUGE))  # a masked score may be infinite
    size = op("Abs", y)
    floor = op("Add", size, nodes.constant(_LEAST))  # the logarithm separates numbers of any magnitude
    sign = op("Div", y, floor)
    sine = op("Sin", op("Mul", op("Log", floor), frequency))
    wave = op("Mul", sine, sign)
    amplitude = nodes.constant(_FLOATS[kind])
    if node.op_type in _SUMS:
        error = op("Mul", op("Mul", wave, amplitude), op("Add", size, _scale(node, size, nodes)))
    elif node.op_type == "Sigmoid":  # kernels approximate it with an absolute error that does not shrink with y
        error = op("Mul", op("Mul", op("Mul", sine, sine), amplitude), op("Sub", nodes.constant(1.0), y))
    elif node.op_type == "Cast":  # a stored constant of a narrow type, in single precision: cannot overflow
        error = op("Mul", op("Mul", wave, op("Mul", amplitude, nodes.constant(0.5))), y)
    else:
        error = op("Mul", op("Mul", op("Mul", wave, wave), op("Neg", amplitude)), y)
    if not single and kind in _SUBNORMAL:
        error = op("Add", error, op("Mul", wave, nodes.constant(_SUBNORMAL[kind])))
    if not single:
        error = op("Cast", error, to=int(kind))
    noisy = op("Add", clean, error)
    noisy.type, noisy.shape = clean.type, clean.shape
    for consumer, index in consumers:
        consumer.replace_input_with(index, noisy)
    for index, output in enumerate(graph.outputs):
        if output is clean:
            graph.outputs[index] = noisy
    noisy.name, clean.name = clean.name, f"{nodes.name}.clean"
    graph.insert_after(node, nodes.nodes)


def _scale(node: ir.Node, size: ir.Value, nodes: _Nodes) -> ir.Value:
    """Return the magnitude of the terms of a sum, broadcastable to its result; `size` is the result's magnitude."""
    local: ir.Value | None = None
    if nodes.opset >= _NEGATIVE_AXES:
        if node.op_type in MATRIX_PRODUCTS:
            local = _product_scale(node, nodes)
        elif node.op_type == "Conv":
            local = _convolution_scale(node, nodes)
        elif node.op_type in _BY_ROW:
            local = nodes.reduce("ReduceMean", size, [-1])
        elif node.op_type in _BY_CHANNEL and (rank := _rank(node.outputs[0]) or _rank(node.inputs[0])) and rank > 2:
            local = nodes.reduce("ReduceMean", size, list(range(2, rank)))
    return local if local is not None else nodes.op("ReduceMean", size, keepdims=0)


def _product_scale(node: ir.Node, nodes: _Nodes) -> ir.Value | None:
    """Return |row| · |column| / √K, the expected magnitude of a sum of K products of random sign; None if unknown."""
    x, w = node.inputs[0], node.inputs[1]
    ranks = _rank(x), _rank(w)
    if x is None or w is None or ranks[1] is None or ranks[1] < 2 or node.attributes.get_int("transA", 0):
        return None
    if ranks[1] > 2 and (ranks[0] is None or ranks[0] < 2):  # the result may have fewer axes than the scale
        return None
    depth = -1 if node.attributes.get_int("transB", 0) else -2
    rows = nodes.length(nodes.single(x), [-1])
    columns = nodes.length(nodes.single(w), [depth], keepdims=int(ranks[1] > 2))
    terms = nodes.op("Gather", nodes.op("Shape", x), nodes.constant([-1]))
    root = nodes.op("Sqrt", nodes.op("Max", nodes.single(terms), nodes.constant(1.0)))
    return nodes.op("Div", nodes.op("Mul", rows, columns), root)


def _convolution_scale(node: ir.Node, nodes: _Nodes) -> ir.Value | None:
    """Return |filter| · mean|x| per sample, the expected magnitude of a sum of products of random sign."""
    x, w = node.inputs[0], node.inputs[1]
    rank = _rank(w)
    if x is None or w is None or rank is None or rank < 3:
        return None
    inner = list(range(1, rank))
    filters = nodes.length(nodes.single(w), inner)
    filters = nodes.op("Reshape", filters, nodes.constant([1, -1] + [1] * (rank - 2)))
    mean = nodes.reduce("ReduceMean", nodes.op("Abs", nodes.single(x)), inner)
    return nodes.op("Mul", filters, mean)


def _rank(value: ir.Value | None) -> int | None:
    return len(value.shape) if value is not None and value.shape is not None else None
