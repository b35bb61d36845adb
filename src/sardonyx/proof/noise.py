"""A copy of the model whose every rounding is disturbed: how far it moves says how much error is nobody's fault.

Each node that rounds gets a pseudo-random error of about one unit in the last place, a function of its own result:
`y + eps * sin(f * atan(y)) * (|y| + mean|y|)` after a sum, where cancellation leaves an error the size of the terms,
and `y - eps * sin²(…) * y` after an elementwise operator, which can never overflow. The frequency f is an input of the
copy: every value of it is another draw of roundings. The copy is a probe that is run and thrown away; the user's graph
is not touched.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.graph.scopes import bodies
from sardonyx.runtime import Value

_SUMS = frozenset(
    (
        "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2",
        "Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization", "InstanceNormalization",
        "GroupNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "AveragePool", "GlobalAveragePool",
        "LSTM", "GRU", "RNN", "Attention", "CumSum", "Resize", "DequantizeLinear",
    )
)  # fmt: skip
_ELEMENTWISE = frozenset(
    (
        "Add", "Sub", "Mul", "Div", "Pow", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Gelu", "Tanh", "Sigmoid",
        "HardSwish", "Swish", "Mish", "Softplus", "Elu", "Selu", "Sin", "Cos", "PRelu", "LeakyRelu", "ReduceProd",
    )
)  # fmt: skip
_KEEPS_TYPE_OF_SECOND = frozenset(("Where", "DequantizeLinear"))
# The size of the disturbance: eps where a sum rounds at every term, and half of it, the largest error of one rounding,
# for the narrow types, whose sums the runtime takes in single precision.
_FLOATS = {
    ir.DataType.FLOAT: 2.0**-23,
    ir.DataType.DOUBLE: 2.0**-52,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}
FREQUENCY = "sardonyx.noise.frequency"
_MOST_SITES = 1500  # beyond it the probe costs more than it tells; sums come first


def disturbed(model: ir.Model) -> ir.Model | None:
    """A disturbed copy, or None where no node of a known floating type rounds."""
    copy = model.clone()
    types = _element_types(copy)
    sites = [n for n in copy.graph.all_nodes() if _rounds(n) and types.get(n.outputs[0]) in _FLOATS]
    sites.sort(key=lambda node: node.op_type not in _SUMS)
    frequency = ir.Value(name=FREQUENCY, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    copy.graph.inputs.append(frequency)
    for number, node in enumerate(sites[:_MOST_SITES]):
        _disturb(node, types[node.outputs[0]], frequency, f"noise.{number}")
    return copy if sites else None


def draw(number: int) -> dict[str, Value]:
    """What to feed beside the model's own inputs for one draw of roundings."""
    return {FREQUENCY: np.asarray(1e6 + 7919.0 * number, np.float32)}


def _rounds(node: ir.Node) -> bool:
    return bool(node.outputs) and (node.op_type in _SUMS or node.op_type in _ELEMENTWISE)


def _element_types(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Element types as far as they follow from declarations, constants and the usual rule that an op keeps its type."""
    types: dict[ir.Value, ir.DataType] = {}

    def look(value: ir.Value | None) -> ir.DataType | None:
        if value is None:
            return None
        constant = value.const_value
        return types.get(value) or (constant.dtype if constant is not None else value.dtype)

    def visit(graph: ir.Graph) -> None:
        for node in graph:
            for _, body in bodies(node):
                visit(body)
            kept = 1 if node.op_type in _KEEPS_TYPE_OF_SECOND else 0
            kind = look(node.outputs[0]) if node.outputs else None
            if "to" in node.attributes:
                kind = ir.DataType(node.attributes["to"].as_int())
            elif node.op_type == "Constant" and "value" in node.attributes:
                kind = node.attributes["value"].as_tensor().dtype
            elif kind is None and len(node.inputs) > kept and node.op_type not in ("Shape", "Size", "Equal", "Not"):
                kind = look(node.inputs[kept])
            if kind is not None:
                types.update(dict.fromkeys(node.outputs, kind))

    visit(model.graph)
    return types


def _disturb(node: ir.Node, kind: ir.DataType, frequency: ir.Value, name: str) -> None:
    """Put the disturbance between a node's first result and everything that reads it, under the result's old name."""
    clean, graph = node.outputs[0], node.graph
    if graph is None:
        return
    readers = list(clean.uses())  # before the disturbance itself reads the clean result
    made: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        made.append(ir.node(op_type, list(inputs), attributes=attributes or None, name=f"{name}.{len(made)}"))
        made[-1].outputs[0].name = made[-1].name
        return made[-1].outputs[0]

    def constant(value: float) -> ir.Value:
        tensor = ir.tensor(np.array(value, np.float32))
        made.append(ir.node("Constant", [], attributes={"value": tensor}, name=f"{name}.{len(made)}"))
        made[-1].outputs[0].name = made[-1].name
        return made[-1].outputs[0]

    single = kind == ir.DataType.FLOAT
    y = clean if single else op("Cast", clean, to=int(ir.DataType.FLOAT))
    wave = op("Sin", op("Mul", op("Atan", y), frequency))
    amplitude = constant(_FLOATS[kind])
    if node.op_type in _SUMS:
        size = op("Abs", y)
        error = op("Mul", op("Mul", wave, amplitude), op("Add", size, op("ReduceMean", size, keepdims=0)))
    else:
        error = op("Mul", op("Mul", op("Mul", wave, wave), op("Neg", amplitude)), y)
    if not single:
        error = op("Cast", error, to=int(kind))
    noisy = op("Add", clean, error)
    noisy.type, noisy.shape = clean.type, clean.shape
    for reader, index in readers:
        reader.replace_input_with(index, noisy)
    for index, output in enumerate(graph.outputs):
        if output is clean:
            graph.outputs[index] = noisy
    noisy.name, clean.name = clean.name, f"{name}.clean"
    graph.insert_after(node, made)
