"""ONNX operators whose work is matrix products: linear, convolution, attention, recurrent; also the runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sardonyx.costs.operators import table
from sardonyx.costs.operators.call import Call, Untold
from sardonyx.costs.operators.description import (
    Description,
    attention_of,
    convolution,
    einsum,
    floating,
    matrix_product_over,
    recurrent,
)
from sardonyx.costs.program import Value
from sardonyx.graph.shapes.expr import Size, add, floor_quotient, multiply, product

Rule = Callable[[Call], Description]


def _matmul(call: Call) -> Description:
    return matrix_product_over(_last(call.given(0)), call.result)


def _last(value: Value) -> Size:
    """How long the rows are that a product sums over."""
    if not value.shape:
        raise Untold
    return value.shape[-1]


def _fused_matmul(call: Call) -> Description:
    left = call.given(0)
    if call.number("transBatchA"):
        raise Untold
    summed = left.shape[-2] if call.number("transA") and len(left.shape) > 1 else _last(left)
    scaled = call.attributes.get("alpha", 1.0) != 1.0
    return matrix_product_over(summed, call.result, more=int(scaled))


def _gemm(call: Call) -> Description:
    left = call.given(0, 2)
    more = call.has(2) + activation(call)
    return matrix_product_over(left.shape[0 if call.number("transA") else 1], call.result, more=more)


def activation(call: Call) -> int:
    """Flops per element of the activation that a fused operator carries out at once."""
    name = call.text("activation").lower()
    name = {"leakyrelu": "leaky_relu", "clip": "clamp"}.get(name, name)
    if name and name not in table.ELEMENTWISE:
        raise Untold
    return table.ELEMENTWISE[name][1] if name else 0


def _conv_of(image: int, weight: int, bias: int, *, transposed: bool = False) -> Rule:
    """A convolution with its operands at these places."""

    def rule(call: Call) -> Description:
        more = call.has(bias) + activation(call)
        return convolution(call.given(image), call.given(weight), call.result, transposed=transposed, more=more)

    return rule


def _fused_conv(call: Call) -> Description:
    """A bias, something added to the result, an activation."""
    more = call.has(2, 3) + activation(call)
    return convolution(call.given(0), call.given(1), call.result, transposed=False, more=more)


def _attention(call: Call) -> Description:
    """The standard's: heads as an axis or within the width; keys of earlier steps come before the new ones."""
    query, key, value = (call.given(place) for place in range(3))
    batch, heads, rows, width = _with_heads(query, call.number("q_num_heads"))
    _, _, keys, _ = _with_heads(key, call.number("kv_num_heads"))
    _, _, _, values = _with_heads(value, call.number("kv_num_heads"))
    past = call.read(4)
    keys = keys if past is None else add(keys, past.shape[2])
    return attention_of(query, (batch, heads, rows), keys, width, values, mask=call.has(3) > 0)


def _with_heads(value: Value, heads: int) -> tuple[Size, Size, Size, Size]:
    """Batch, heads, length, width of a head."""
    if len(value.shape) == 4:
        batch, own, length, width = value.shape
        return batch, own, length, width
    if len(value.shape) != 3 or not heads:
        raise Untold
    batch, length, width = value.shape
    return batch, heads, length, floor_quotient(width, heads)


def _packed_attention_of(masks: tuple[int, ...], past_place: int) -> Rule:
    """The runtime's: one product makes queries, keys and values, of a third of its width each unless it is said."""

    def rule(call: Call) -> Description:
        source, weight, heads = call.given(0, 3), call.given(1, 2), call.number("num_heads")
        batch, rows, _ = source.shape
        widths = call.numbers("qkv_hidden_sizes") or (floor_quotient(weight.shape[1], 3),) * 3
        past = call.read(past_place)
        keys = rows if past is None else add(rows, past.shape[3])
        inner = _by_heads(source, batch, rows, keys, heads, widths[0], widths[2], call.has(*masks))
        projected = product((batch, rows, weight.shape[1]))
        biased = projected if call.has(2) and floating(source, 1) != 0 else 0
        return _with_projection(inner, multiply(source.elements, weight.shape[1]), biased)

    return rule


def _with_projection(inner: Description, macs: Size, flops: Size) -> Description:
    return Description(inner.kind, add(inner.macs, macs), add(inner.other_flops, flops))


def _by_heads(
    source: Value, batch: Size, rows: Size, keys: Size, heads: Size, width: Size, values: Size, masks: int
) -> Description:
    """An attention by the width of all heads together."""
    each, mixed = floor_quotient(width, heads), floor_quotient(values, heads)
    return attention_of(source, (batch, heads, rows), keys, each, mixed, mask=masks > 0)


def _multi_head_attention(call: Call) -> Description:
    """The runtime's, after the projections: separate, or queries, keys and values side by side."""
    query, heads, masks = call.given(0), call.number("num_heads"), call.has(4, 5)
    key, value, past = call.read(1), call.read(2), call.read(6)
    batch, rows = query.shape[:2]
    if key is None:  # batch, length, heads, three, width
        width = values = multiply(heads, _last(query))
        keys = rows
    elif value is None:  # keys and values side by side: batch, length, heads, two, width
        keys, width, values = key.shape[1], _last(query), _last(query)
    elif len(key.shape) == 4:  # batch, heads, length, width
        keys, width, values = key.shape[2], _last(query), multiply(heads, _last(value))
    else:
        keys, width, values = key.shape[1], _last(query), _last(value)
    keys = keys if past is None else add(keys, past.shape[2])
    inner = _by_heads(query, batch, rows, keys, heads, width, values, masks)
    biased = multiply(product((batch, rows)), multiply(3, width)) if call.has(3) else 0
    return _with_projection(inner, 0, biased)


def _group_query_attention(call: Call) -> Description:
    """The runtime's, with fewer heads of keys than of queries; what is kept from before counts as full."""
    query, heads, fewer = call.given(0, 3), call.number("num_heads"), call.number("kv_num_heads")
    batch, rows, width = query.shape
    if call.read(1) is None:  # queries, keys and values side by side
        width = multiply(heads, floor_quotient(width, heads + 2 * fewer))
    past = call.read(3)
    keys = rows if past is None else add(rows, past.shape[2])
    return _by_heads(query, batch, rows, keys, heads, width, width, call.has(10))


def _recurrent_of(cell: str) -> Rule:
    """Steps of a cell, in one direction or two."""

    def rule(call: Call) -> Description:
        source, inward, onward = call.given(0, 3), call.given(1, 3), call.given(2, 3)
        rows = product(source.shape[:2])
        states = product((rows, onward.shape[0], onward.shape[2]))
        return recurrent(rows, (inward, onward), states, cell)

    return rule


def _einsum(call: Call) -> Description:
    operands = [call.given(place) for place in range(len(call.reads))]
    return einsum(call.text("equation"), operands, call.result)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "com.microsoft::MatMulNBits"), _matmul),
    **{f"com.microsoft::{name}": _matmul for name in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")},
    **dict.fromkeys(("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul"), _fused_matmul),
    **dict.fromkeys(("Gemm", "com.microsoft::FusedGemm", "com.microsoft::QGemm"), _gemm),
    "Conv": _conv_of(0, 1, 2),
    "ConvTranspose": _conv_of(0, 1, 2, transposed=True),
    "ConvInteger": _conv_of(0, 1, 4),
    "QLinearConv": _conv_of(0, 3, 8),
    "DeformConv": _conv_of(0, 1, 3),
    **dict.fromkeys(("com.microsoft::FusedConv", "com.microsoft::NhwcFusedConv"), _fused_conv),
    "Attention": _attention,
    "com.microsoft::Attention": _packed_attention_of((3, 5), 4),
    "com.microsoft::QAttention": _packed_attention_of((5,), 8),
    "com.microsoft::MultiHeadAttention": _multi_head_attention,
    "com.microsoft::GroupQueryAttention": _group_query_attention,
    **{name: _recurrent_of(name.lower()) for name in ("LSTM", "GRU", "RNN")},
    "Einsum": _einsum,
}
