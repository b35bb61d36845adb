"""Element types of outputs, for operators that have a shape rule here; onnx infers the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import onnx_ir as ir

from sardonyx.ir.ops import PREDICATES, RANDOM, READS_SHAPE
from sardonyx.ir.scopes import operand, operator
from sardonyx.ir.shapes.attributes import attributes, body, number, tensor
from sardonyx.ir.shapes.queries import ShapeQueries

Source = int | ir.DataType  # the index of the input with the same type, or a fixed type
_INT64, _BOOL, _FLOAT, _INT32 = ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT32
_BY_NUMBER: Mapping[int, ir.DataType] = {dtype.value: dtype for dtype in ir.DataType}  # calling the enum is slow
_OUTPUTS: Mapping[str, tuple[Source, ...]] = {  # operators not listed return the type of their first input
    **dict.fromkeys(PREDICATES, (_BOOL,)),
    **dict.fromkeys(READS_SHAPE | {"ArgMax", "ArgMin", "NonZero"}, (_INT64,)),
    "Where": (1,),
    "CastLike": (1,),
    "OneHot": (2,),
    "TopK": (0, _INT64),
    "MaxPool": (0, _INT64),
    "Dropout": (0, _BOOL),
    "Attention": (0, 1, 2, 0),
    "LSTM": (0, 0, 0),
    "GRU": (0, 0),
    "RNN": (0, 0),
    "ConvInteger": (_INT32,),
    "MatMulInteger": (_INT32,),
    "GatherBlockQuantized": (2,),
    "QLinearConv": (7,),
    "QLinearMatMul": (7,),
    "SkipLayerNormalization": (0, _FLOAT, _FLOAT, 0),
    "SkipSimplifiedLayerNormalization": (0, _FLOAT, _FLOAT, 0),
}
_NAMED = {"Cast": "to"} | dict.fromkeys(RANDOM - {"Multinomial"} | {"EyeLike"}, "dtype")
_ASK_ONNX = frozenset({"QuantizeLinear", "DequantizeLinear"})
_BODIES = {"If": ("then_branch", 0), "Loop": ("body", 1), "Scan": ("body", 0)}


_SPECIAL = frozenset({*_OUTPUTS, *_NAMED, *_ASK_ONNX, *_BODIES, "ConstantOfShape", "SequenceAt"})


def of_output(node: ir.Node, index: int, ask: ShapeQueries) -> ir.DataType | None:
    """Return the element type of one output, or None if unknown."""
    op_type = node.op_type
    if op_type not in _SPECIAL and (not index or op_type == "Split"):
        return _of_first(node, ask)
    sources = _OUTPUTS.get(op_type)
    if sources is not None:
        source = sources[index] if index < len(sources) else None
        return ask.dtype(operand(node, source)) if type(source) is int else cast("ir.DataType | None", source)
    name = _NAMED.get(op_type)
    if name is not None:
        named = name in attributes(node)
        return _BY_NUMBER.get(number(node, name, 0)) if named else _of_first(node, ask)
    if op_type in _BODIES:
        name, first = _BODIES[op_type]
        return ask.dtype(body(node, name).outputs[index + first]) or ask.declared(node.outputs[index])
    if op_type == "ConstantOfShape":
        value = tensor(node, "value")
        return _FLOAT if value is None else value.dtype
    if op_type == "SequenceAt":
        producer = node.inputs[0].producer() if node.inputs[0] is not None else None
        if producer is None or operator(producer) not in ("SequenceConstruct", "SplitToSequence"):
            return None
        return ask.dtype(operand(producer, 0))
    return None


def _of_first(node: ir.Node, ask: ShapeQueries) -> ir.DataType | None:
    return ask.dtype(node.inputs[0]) if node.inputs else None
