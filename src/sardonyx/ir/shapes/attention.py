"""Shape rules for attention and for the `com.microsoft` operators that passes create."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import number, numbers
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import OutputShapes, Rule, broadcast_shapes, gemm, same_shape
from sardonyx.ir.shapes.pooling import conv_of
from sardonyx.ir.shapes.queries import Shape, ShapeQueries


def _attention(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Return the shapes of the result, the present keys, the present values and the scores.

    Operands have the shape (batch, heads, length, width), or (batch, length, heads * width) with the number of heads as
    an attribute; the result follows the layout of the queries.
    """
    shapes = [
        _with_heads(ask.shape(operand(node, index)), number(node, count, 0)) for index, count in enumerate(_HEADS)
    ]
    query, key, value = shapes
    if query is None or key is None or value is None:
        return (None,) * len(node.outputs)
    past, past_values = ask.shape(operand(node, 4)), ask.shape(operand(node, 5))
    if (operand(node, 4) is not None and past is None) or (operand(node, 5) is not None and past_values is None):
        length: Size = ask.unknown()
    else:
        length = key[2] if past is None else expr.add(past[2], key[2])
    flat = len(ask.shape(node.inputs[0]) or ()) == 3
    merged = (query[0], query[2], expr.multiply(query[1], value[3]))
    result = merged if flat else (*query[:3], value[3])
    return result, (*key[:2], length, key[3]), (*value[:2], length, value[3]), (*query[:3], length)


_HEADS = ("q_num_heads", "kv_num_heads", "kv_num_heads")


def _with_heads(shape: Shape | None, heads: int) -> Shape | None:
    """Return the shape as (batch, heads, length, width), or None if the number of heads is unknown."""
    if shape is None or len(shape) == 4:
        return shape
    if len(shape) != 3 or not heads:
        return None
    return shape[0], heads, shape[1], expr.floor_quotient(shape[2], heads)


def _multi_head_attention(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    query, value = ask.shape(node.inputs[0]), ask.shape(operand(node, 2))
    if query is None or value is None or len(query) != 3 or len(value) != 3:
        return (None,) * len(node.outputs)
    return ((*query[:2], value[2]),)


def _packed_attention(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Split the packed width into queries, keys and values: equally, unless `qkv_hidden_sizes` is set."""
    source, weight = ask.shape(node.inputs[0]), ask.shape(operand(node, 1))
    widths = numbers(node, "qkv_hidden_sizes")
    if source is None or weight is None or len(source) != 3 or len(weight) != 2:
        return (None,) * len(node.outputs)
    return ((*source[:2], expr.floor_quotient(weight[1], 3) if widths is None else widths[2]),)


def _group_query_attention(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    return (ask.shape(node.inputs[0]) if operand(node, 1) is not None else None,)


def _skip_norm(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    return shape, None, None, shape


def _fused_matmul(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    first, second = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    transposed, batches = [number(node, name, 0) for name in ("transA", "transB")], ("transBatchA", "transBatchB")
    if first is None or second is None or len(first) < 2 or len(second) < 2:
        return (None,)
    if any(number(node, name, 0) for name in batches):
        return (None,)
    batch = broadcast_shapes((first[:-2], second[:-2]))
    rows, columns = first[-1 if transposed[0] else -2], second[-2 if transposed[1] else -1]
    return (None if batch is None else (*batch, rows, columns),)


def _matmul_packed(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Read the number of columns from the attribute `N`, because the weights are packed bits."""
    shape = ask.shape(node.inputs[0])
    return (None if not shape else (*shape[:-1], number(node, "N", 0)),)


def _lookup_packed(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Read the width of a table from its scales, because its numbers are packed bits."""
    rows, scales = ask.shape(node.inputs[1]), ask.shape(node.inputs[2])
    places = number(node, "gather_axis", 0), number(node, "quantize_axis", 1)
    if rows is None or scales is None or len(scales) != 2 or places != (0, 1):
        return (None,)
    return ((*rows, expr.multiply(scales[1], number(node, "block_size", 128))),)


RULES: Mapping[str, Rule] = {
    "Attention": _attention,
    "com.microsoft::Attention": _packed_attention,
    "com.microsoft::MultiHeadAttention": _multi_head_attention,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    "com.microsoft::SkipLayerNormalization": _skip_norm,
    "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    "com.microsoft::FusedMatMul": _fused_matmul,
    "com.microsoft::FusedGemm": gemm,
    "com.microsoft::FusedConv": conv_of(1),
    "com.microsoft::MatMulNBits": _matmul_packed,
    "com.microsoft::GatherBlockQuantized": _lookup_packed,
    **{
        f"com.microsoft::{name}": same_shape
        for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding")
    },
}
