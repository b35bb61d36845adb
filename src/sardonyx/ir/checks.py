"""Checks of every replacement, independent of the pass: types, shapes, kernels, scopes and stored constants.

They inspect nodes that are not in a graph yet, and raise `Impossible` before the graph has changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.ops import ARITHMETIC
from sardonyx.ir.precision import FORMATS, GUARD, Impossible
from sardonyx.ir.rules import Builder, Match
from sardonyx.ir.scopes import bodies, is_constant, operator
from sardonyx.ir.shapes.expr import equal
from sardonyx.ir.tensors import ComputedTensor, ReshapedTensor, StreamedTensor, TransposedTensor

# Element types for which ONNX Runtime has a CPU kernel, for the operators that rewrites create.
#
# Measured with onnxruntime 1.31; `tests/ir/test_kernels.py` measures them again. Operators that are not listed accept
# every type that their schema allows.

Types = frozenset[ir.DataType]
_D = ir.DataType
_HALF_AND_SINGLE: Types = frozenset({_D.FLOAT16, _D.FLOAT})
_FLOATS: Types = _HALF_AND_SINGLE | {_D.DOUBLE}
_WIDE: Types = _FLOATS | {_D.INT32, _D.INT64, _D.UINT32, _D.UINT64}
_MOST: Types = _WIDE | {_D.INT8, _D.UINT8}
_NUMBERS: Types = _MOST | {_D.INT16, _D.UINT16}


def _ort(names: str) -> list[str]:
    return [f"com.microsoft::{name}" for name in names.split()]


KERNELS: Mapping[str, Types] = MappingProxyType(
    {
        **dict.fromkeys(ARITHMETIC, _NUMBERS),
        **dict.fromkeys(("Expand", "Equal"), _NUMBERS | {_D.BOOL}),
        **dict.fromkeys(("Clip", "Max", "Min"), _MOST),
        "Where": _MOST - {_D.UINT64} | {_D.STRING},
        "Pad": _MOST | {_D.BOOL},
        "Neg": _FLOATS | {_D.INT8, _D.INT16, _D.INT32, _D.INT64},
        "Relu": _FLOATS | {_D.INT8, _D.INT32},
        "MatMul": _WIDE,
        **dict.fromkeys(("Attention", "Gemm", "RMSNormalization", "Softmax"), _FLOATS),
        "LayerNormalization": _FLOATS | {_D.BFLOAT16},
        **dict.fromkeys(
            ("Conv", "ConvTranspose", "Gelu", "HardSigmoid", "HardSwish", "RotaryEmbedding"), _HALF_AND_SINGLE
        ),
        **dict.fromkeys(_ort("FastGelu FusedMatMul QuickGelu"), _FLOATS),
        **dict.fromkeys(_ort("Attention BiasGelu FusedConv FusedGemm Gelu MultiHeadAttention"), _HALF_AND_SINGLE),
        **dict.fromkeys(
            _ort("SkipLayerNormalization SkipSimplifiedLayerNormalization"), _HALF_AND_SINGLE | {_D.BFLOAT16}
        ),
    }
)
_SECOND = frozenset({"Where"})  # whose first input is a condition


def _kernel_operand(node: ir.Node) -> ir.Value | None:
    """Return the operand whose element type selects the kernel."""
    index = 1 if node.op_type in _SECOND else 0
    return node.inputs[index] if len(node.inputs) > index else None


def has_kernel(node: ir.Node, dtype: ir.DataType | None) -> bool:
    """Return whether the runtime can run the node with this element type, as far as is known."""
    types = KERNELS.get(operator(node))
    return types is None or dtype is None or dtype in types


Pairs = Sequence[tuple[ir.Value, ir.Value]]

# Operators that pass on one of their operands: an infinity there is a fill value or a bound, not an overflow.
_SELECT = frozenset({"Where", "Clip", "Max", "Min", "Pad", "Expand", "ConstantOfShape"})


def check(match: Match, pairs: Pairs, op: Builder, facts: Facts) -> None:
    """Refuse a replacement that could change the types, shapes or visible values of the graph.

    Raises:
        Impossible: with the reason.
    """
    stated = {output for node in op.nodes for output in node.outputs if facts.shapes.is_known(output)}
    for node in op.nodes:
        _check_inputs(node, op, facts)
        _check_types(node, match, facts)
        for output, (dtype, shape) in zip(node.outputs, facts.shapes.infer_outputs(node), strict=True):
            if output in stated:
                _check_same((dtype, shape), facts.shapes.typed(output), "an intermediate value")
            else:
                facts.learn(output, dtype, shape)
    for old, value in pairs:
        _check_visible(value, op, facts)
        _check_same((facts.dtype(old), facts.shape(old)), (facts.dtype(value), facts.shape(value)), "the result")
    for _, value in pairs:  # the shape of the replaced value is at least as precise, and is carried over later
        if value.producer() in op.nodes and value not in stated:
            facts.forget(value)
    if any(not is_constant(node) for node in op.nodes):
        _check_stored(match, op, facts)


def _check_inputs(node: ir.Node, op: Builder, facts: Facts) -> None:
    """Refuse a node that reads values not visible at its position, or that has bodies unknown to the rewriter."""
    for value in node.inputs:
        if value is not None:
            _check_visible(value, op, facts)
    if any(body not in facts.scopes for _, body in bodies(node)):
        raise Impossible("a rewrite cannot create subgraphs")


def _check_visible(value: ir.Value, op: Builder, facts: Facts) -> None:
    """Refuse a value that is neither created by this rewrite nor in the graph of its root or an enclosing one."""
    producer = value.producer()
    home = value.graph if producer is None else producer.graph
    if producer in op.nodes if home is None else home is op.scope.graph:
        return
    if home is None:
        if value in op.constants:
            return
        raise Impossible("it reads a value that is not in any graph")
    scope = op.scope
    while scope.holder is not None and scope.holder.graph is not None:
        scope = facts.scopes[scope.holder.graph]
        if scope.graph is home:
            return
    raise Impossible("it reads a value of a graph that does not enclose it")


def _check_types(node: ir.Node, match: Match, facts: Facts) -> None:
    """Refuse a node whose operand types the operator does not accept together, or for which there is no kernel."""
    bound_types: dict[str, ir.DataType] = {}
    for (variable, allowed), value in zip(_operands(node, facts.opset(node)), node.inputs, strict=False):
        dtype = None if value is None else facts.dtype(value)
        if dtype is None:
            continue
        if dtype not in allowed or bound_types.setdefault(variable, dtype) is not dtype:
            raise Impossible(f"{node.op_type} does not accept {_type_name(dtype)} there")
    dtype = _dtype(node, facts)
    if not has_kernel(node, dtype) and all(has_kernel(matched, _dtype(matched, facts)) for matched in match.nodes):
        raise Impossible(f"ONNX Runtime has no {node.op_type} for {_type_name(dtype)}")


def _dtype(node: ir.Node, facts: Facts) -> ir.DataType | None:
    """Return the element type that selects the kernel, or None if unknown."""
    value = _kernel_operand(node)
    return None if value is None else facts.dtype(value)


def _type_name(dtype: ir.DataType | None) -> str:
    return dtype.name.lower() if dtype is not None else "an unknown type"


def _operands(node: ir.Node, opset: int) -> Iterator[tuple[str, frozenset[ir.DataType]]]:
    """Yield the type variable of each operand and the types it stands for, as the ONNX schema defines them."""
    operands = () if node.domain else _signature(node.op_type, opset)
    for index in range(len(node.inputs)):
        if index < len(operands):
            yield operands[index][:2]
        elif operands and operands[-1][2]:
            yield operands[-1][:2]
        else:
            return


@functools.cache
def _signature(op_type: str, opset: int) -> tuple[tuple[str, frozenset[ir.DataType], bool], ...]:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return ()
    variables = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
    operands: list[tuple[str, frozenset[ir.DataType], bool]] = []
    for index, parameter in enumerate(schema.inputs):
        variadic = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        variable = parameter.type_str if parameter.is_homogeneous else f"{parameter.type_str}{index}"
        types = frozenset(filter(None, map(_element, variables.get(parameter.type_str, [parameter.type_str]))))
        operands.append((variable, types, variadic and parameter.is_homogeneous))
    return tuple(operands)


_ELEMENTS = {dtype.name: dtype for dtype in ir.DataType if dtype.value}  # an older onnx does not know all of them


def _element(text: str) -> ir.DataType | None:
    """Return the element type of a type string such as `tensor(float)`, or None for sequences and other types."""
    return _ELEMENTS.get(text[7:-1].upper()) if text.startswith("tensor(") else None


def _check_same(
    old: tuple[ir.DataType | None, Shape | None], new: tuple[ir.DataType | None, Shape | None], what: str
) -> None:
    """Refuse a replacement whose type or shape contradicts what is known about the value."""
    if old[0] is not None and new[0] is not None and old[0] is not new[0]:
        raise Impossible(f"{what} would be {_type_name(new[0])} and not {_type_name(old[0])}")
    if old[1] is not None and new[1] is not None and _differ(old[1], new[1]):
        raise Impossible(f"{what} would have another shape")


def _differ(one: Shape, other: Shape) -> bool:
    """Return whether the shapes differ for every size of the inputs."""
    return len(one) != len(other) or any(equal(a, b) is False for a, b in zip(one, other, strict=True))


def _check_stored(match: Match, op: Builder, facts: Facts) -> None:
    """Refuse a new weight with infinities, NaN or subnormal numbers, unless a constant it was computed from has them.

    A node that is folded on its own gives what the graph computes. A constant that is merged into another operator
    gives a product that the graph does not compute, and which can overflow or lose precision.
    """
    stored = [
        (value, tensor) for value in op.constants if (tensor := value.const_value) is not None and _is_new(tensor)
    ]
    flawed = [
        (value, flaw) for value, tensor in stored if (flaw := _flaw(tensor)) is not None and not _is_selected(value)
    ]
    if not flawed:
        return
    present: set[str] = set()
    for value in {operand for node in match.nodes for operand in node.inputs if operand is not None}:
        tensor = facts.tensor(value)
        if tensor is not None and (flaw := _flaw(tensor)) is not None:
            present.add(flaw)
    for _, flaw in flawed:
        if flaw not in present:
            raise Impossible(f"a new constant holds {flaw}")


def _is_new(tensor: ir.TensorProtocol) -> bool:
    """Return whether the numbers may differ from those of the source, and were not checked when they were computed."""
    if tensor.dtype not in FORMATS:
        return False
    if isinstance(tensor, (ReshapedTensor, TransposedTensor)):
        return _is_new(tensor.source)
    return not isinstance(tensor, StreamedTensor) or (isinstance(tensor, ComputedTensor) and tensor.is_checked)


def _is_selected(value: ir.Value) -> bool:
    return all(use.node.op_type in _SELECT for use in value.uses())


def _flaw(tensor: ir.TensorProtocol) -> str | None:
    """Return what a float tensor holds that suggests an overflow or a loss of precision, or None."""
    form = FORMATS.get(tensor.dtype)
    array = None if form is None else tensor.numpy()
    if form is None or array is None or not array.size:
        return None
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return "infinities or NaN"
    smallest_normal = form.least / (2 * form.roundoff)
    if max(high, -low) >= smallest_normal * GUARD:
        return None
    magnitude = np.abs(array.astype(np.float64))
    return "subnormal numbers" if ((magnitude > 0) & (magnitude < smallest_normal)).any() else None
