"""What holds of every replacement, whoever wrote the pass: types, shapes, kernels, scopes, and what it stores.

Everything here looks at nodes that are in no graph yet, and raises `Impossible` before anything has changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.ops import ARITHMETIC
from sardonyx.ir.precision import FORMATS, GUARD, Impossible, ScaledTensor
from sardonyx.ir.rules import Match
from sardonyx.ir.scopes import bodies, is_constant, operator
from sardonyx.ir.shapes.polynomials import equal
from sardonyx.ir.tensors import ComputedTensor, StreamedTensor

# Element types for which ONNX Runtime has a CPU kernel, of the operators that rewrites make.
#
# Measured with onnxruntime 1.31; `tests/ir/test_kernels.py` measures it anew. Operators that are not listed take
# every
# type that their schema allows.

Types = frozenset[ir.DataType]
_D = ir.DataType
_HALF_AND_SINGLE: Types = frozenset({_D.FLOAT16, _D.FLOAT})
_FLOATS: Types = _HALF_AND_SINGLE | {_D.DOUBLE}
_WIDE: Types = _FLOATS | {_D.INT32, _D.INT64, _D.UINT32, _D.UINT64}
_MOST: Types = _WIDE | {_D.INT8, _D.UINT8}
_NUMBERS: Types = _MOST | {_D.INT16, _D.UINT16}

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
        **dict.fromkeys((f"com.microsoft::{name}" for name in ("FastGelu", "FusedMatMul", "QuickGelu")), _FLOATS),
        **dict.fromkeys(
            (
                f"com.microsoft::{name}"
                for name in ("Attention", "BiasGelu", "FusedConv", "FusedGemm", "Gelu", "MultiHeadAttention")
            ),
            _HALF_AND_SINGLE,
        ),
        **dict.fromkeys(
            ("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization"),
            _HALF_AND_SINGLE | {_D.BFLOAT16},
        ),
    }
)
_SECOND = frozenset({"Where"})  # whose first input is a condition


def decisive(node: ir.Node) -> ir.Value | None:
    """The operand whose element type chooses the kernel."""
    place = 1 if node.op_type in _SECOND else 0
    return node.inputs[place] if len(node.inputs) > place else None


def has_kernel(node: ir.Node, dtype: ir.DataType | None) -> bool:
    """Whether the runtime can run a node of that element type, so far as is known."""
    types = KERNELS.get(operator(node))
    return types is None or dtype is None or dtype in types


Pairs = Sequence[tuple[ir.Value, ir.Value]]

# Operators that pass one of their operands on: an infinity there is a fill or a bound, not a result that overflowed.
_SELECT = frozenset({"Where", "Clip", "Max", "Min", "Pad", "Expand", "ConstantOfShape"})


def check(match: Match, pairs: Pairs, op: Builder, facts: Facts) -> None:
    """Refuse a replacement that another graph than the one it replaces could come of.

    Raises:
        Impossible: with the reason.
    """
    stated = {output for node in op.nodes for output in node.outputs if facts.shapes.is_known(output)}
    for node in op.nodes:
        _check_inputs(node, op, facts)
        _check_types(node, match, facts)
        for output, (dtype, shape) in zip(node.outputs, facts.shapes.infer_outputs(node), strict=True):
            if output in stated:
                _check_same((dtype, shape), facts.shapes.typed(output), "a value inside")
            else:
                facts.learn(output, dtype, shape)
    for old, value in pairs:
        _check_visible(value, op, facts)
        _check_same((facts.dtype(old), facts.shape(old)), (facts.dtype(value), facts.shape(value)), "the result")
    for _, value in pairs:  # of two equal answers that of the value replaced is the more precise one
        if value.producer() in op.nodes and value not in stated:
            facts.forget(value)
    if any(not is_constant(node) for node in op.nodes):
        _check_stored(match, op, facts)


def _check_inputs(node: ir.Node, op: Builder, facts: Facts) -> None:
    """A node may read what can be seen where it will be, and has no bodies that the driver does not know."""
    for value in node.inputs:
        if value is not None:
            _check_visible(value, op, facts)
    if any(body not in facts.scopes for _, body in bodies(node)):
        raise Impossible("a rewrite builds no bodies")


def _check_visible(value: ir.Value, op: Builder, facts: Facts) -> None:
    """Made by this rewrite, or in the graph of its root or one around it."""
    producer = value.producer()
    home = value.graph if producer is None else producer.graph
    if producer in op.nodes if home is None else home is op.scope.graph:
        return
    if home is None:
        if value in op.constants:
            return
        raise Impossible("it reads a value that is in no graph")
    scope = op.scope
    while scope.holder is not None and scope.holder.graph is not None:
        scope = facts.scopes[scope.holder.graph]
        if scope.graph is home:
            return
    raise Impossible("it reads a value of a graph that is not around it")


def _check_types(node: ir.Node, match: Match, facts: Facts) -> None:
    """The operator takes its operands' types together, and the runtime has it for them."""
    found: dict[str, ir.DataType] = {}
    for (letter, allowed), value in zip(_operands(node, facts.opset(node)), node.inputs, strict=False):
        dtype = None if value is None else facts.dtype(value)
        if dtype is None:
            continue
        if dtype not in allowed or found.setdefault(letter, dtype) is not dtype:
            raise Impossible(f"{node.op_type} does not take {_spelled(dtype)} there")
    value = decisive(node)
    dtype = None if value is None else facts.dtype(value)
    if not has_kernel(node, dtype) and all(has_kernel(each, _dtype(each, facts)) for each in match.nodes):
        raise Impossible(f"ONNX Runtime has no {node.op_type} for {_spelled(dtype)}")


def _dtype(node: ir.Node, facts: Facts) -> ir.DataType | None:
    value = decisive(node)
    return None if value is None else facts.dtype(value)


def _spelled(dtype: ir.DataType | None) -> str:
    return dtype.name.lower() if dtype is not None else "an unknown type"


def _operands(node: ir.Node, opset: int) -> Iterator[tuple[str, frozenset[ir.DataType]]]:
    """The type variable of each operand and the types it stands for, as the standard has it."""
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
    variables = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    operands: list[tuple[str, frozenset[ir.DataType], bool]] = []
    for index, each in enumerate(schema.inputs):
        variadic = each.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        letter = each.type_str if each.is_homogeneous else f"{each.type_str}{index}"
        types = frozenset(filter(None, map(_element, variables.get(each.type_str, [each.type_str]))))
        operands.append((letter, types, variadic and each.is_homogeneous))
    return tuple(operands)


_ELEMENTS = {onnx.TensorProto.DataType.Name(each.value): each for each in ir.DataType if each.value}


def _element(text: str) -> ir.DataType | None:
    """`tensor(float)` as an element type; None for sequences and the like."""
    return _ELEMENTS.get(text[7:-1].upper()) if text.startswith("tensor(") else None


def _check_same(
    old: tuple[ir.DataType | None, Shape | None], new: tuple[ir.DataType | None, Shape | None], what: str
) -> None:
    """Two answers about one value that cannot both be true are a mistake in the rewrite."""
    if old[0] is not None and new[0] is not None and old[0] is not new[0]:
        raise Impossible(f"{what} would be {_spelled(new[0])} and not {_spelled(old[0])}")
    if old[1] is not None and new[1] is not None and _differ(old[1], new[1]):
        raise Impossible(f"{what} would have another shape")


def _differ(one: Shape, other: Shape) -> bool:
    """Whether no sizes of the inputs make them equal."""
    return len(one) != len(other) or any(equal(a, b) is False for a, b in zip(one, other, strict=True))


def _check_stored(match: Match, op: Builder, facts: Facts) -> None:
    """No infinity, NaN or lost digit in a new weight, unless a constant it was made from has one.

    What is folded on its own is what the graph itself computes; what is merged into another operator is not.
    """
    stored = [
        (value, tensor) for value in op.constants if (tensor := value.const_value) is not None and _is_new(tensor)
    ]
    bad = [(value, what) for value, tensor in stored if (what := _flaw(tensor)) is not None and not _is_selected(value)]
    if not bad:
        return
    known: set[str] = set()
    for value in {each for node in match.nodes for each in node.inputs if each is not None}:
        tensor = facts.tensor(value)
        if tensor is not None and (what := _flaw(tensor)) is not None:
            known.add(what)
    for _, what in bad:
        if what not in known:
            raise Impossible(f"a new constant holds {what}")


def _is_new(tensor: ir.TensorProtocol) -> bool:
    """Whether the numbers may be other than those of the source: not a view of them, nor checked when computed."""
    if tensor.dtype not in FORMATS or isinstance(tensor, ScaledTensor):
        return False
    return not isinstance(tensor, StreamedTensor) or isinstance(tensor, ComputedTensor)


def _is_selected(value: ir.Value) -> bool:
    return all(use.node.op_type in _SELECT for use in value.uses())


def _flaw(tensor: ir.TensorProtocol) -> str | None:
    """What a float tensor holds that a product should not have come to."""
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
    size = np.abs(array.astype(np.float64))
    return "subnormal numbers" if ((size > 0) & (size < smallest_normal)).any() else None
