"""The operators of ONNX Runtime that passes write, in terms of the standard's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from sardonyx.exact.call import Call, Undecided, Value, defines
from sardonyx.exact.products import convolved, turned

_DOMAIN = "com.microsoft::"


def _activated(call: Call, x: Value, *, parameters: str) -> Value:
    """Return an activation that an attribute names."""
    name = call.text("activation", "")
    if not name:
        return x
    known = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    if parameters == "activation_params":
        given: dict[str, Any] = dict(zip(known, call.get(parameters) or (), strict=False))
    else:
        given = {key: call.get(f"activation_{key}") for key in known if call.get(f"activation_{key}") is not None}
    if name == "Clip":
        low, high = call.get(parameters)
        bounds = (call.numbers.attribute(bound, x.dtype) for bound in (low, high))
        return call.op("Clip", x, *bounds)
    return call.op(name, x, **given)


@defines(_DOMAIN + "FusedConv")
def fused_conv(call: Call) -> Value:
    """Return a convolution, plus a tensor, then an activation."""
    x = convolved(call, call.real(0), call.real(1), None if call[2] is None else call.real(2))
    x = x if call[3] is None else call.numbers.add(x, call.real(3))
    return _activated(call, x, parameters="activation_params")


@defines(_DOMAIN + "FusedGemm")
def fused_gemm(call: Call) -> Value:
    """Return a Gemm, then an activation."""
    plain = {key: call.get(key) for key in ("alpha", "beta", "transA", "transB") if call.get(key) is not None}
    return _activated(call, call.op("Gemm", *call.operands, **plain), parameters="activation_")


@defines(_DOMAIN + "FusedMatMul")
def fused_matmul(call: Call) -> Value:
    """Return a matrix product of operands that may be transposed, times a number."""
    if call.get("transBatchA", 0) or call.get("transBatchB", 0):
        raise Undecided("FusedMatMul that transposes batches")
    a, b = (
        turned(call.real(index)) if call.get(name, 0) else call.real(index)
        for index, name in enumerate(("transA", "transB"))
    )
    scale = call.numbers.attribute(call.get("alpha", 1.0), a.dtype)
    return call.numbers.multiply(call.op("MatMul", a, b), scale)


@defines(_DOMAIN + "BiasGelu", _DOMAIN + "FastGelu")
def bias_gelu(call: Call) -> Value:
    """Return the Gelu of a sum; FastGelu is its form with tanh."""
    x = call.real(0) if call[1] is None else call.numbers.add(call.real(0), call.real(1))
    return call.op("Gelu", x, approximate="tanh" if call.node.op_type == "FastGelu" else "none")


@defines(_DOMAIN + "QuickGelu")
def quick_gelu(call: Call) -> Value:
    """Return x times the sigmoid of alpha · x."""
    x, n = call.real(0), call.numbers
    alpha = n.attribute(call.get("alpha", 1.702), x.dtype)
    return n.multiply(x, n.apply("Sigmoid", n.multiply(alpha, x)))


@defines(_DOMAIN + "SkipLayerNormalization", _DOMAIN + "SkipSimplifiedLayerNormalization")
def skip_norm(call: Call) -> Value:
    """Return the normalization of a sum, and the sum as the last of four outputs."""
    n, simplified = call.numbers, call.node.op_type == "SkipSimplifiedLayerNormalization"
    total = n.add(call.real(0), call.real(1))
    bias = call[3 if simplified else 4]
    total = total if bias is None else n.add(total, bias)
    epsilon = call.get("epsilon", 1e-5 if simplified else 1e-12)
    if simplified:
        result = call.op("RMSNormalization", total, call[2], epsilon=epsilon)
    else:
        shift = () if call[3] is None else (call[3],)
        result = call.op("LayerNormalization", total, call[2], *shift, epsilon=epsilon)
    return result, None, None, total


@defines(_DOMAIN + "Attention")
def packed_attention(call: Call) -> Value:
    """Return attention of one tensor to itself; queries, keys and values come from one product."""
    if call[3] is not None or call[4] is not None or call.get("unidirectional", 0) or call.get("do_rotary", 0):
        raise Undecided("packed Attention with an index mask, a past or an order")
    x, n, heads = call.real(0), call.numbers, call.get("num_heads")
    packed = n.matmul(x, call.real(1))
    packed = packed if call[2] is None else n.add(packed, call.real(2))
    width = packed.shape[-1]
    sizes = list(call.get("qkv_hidden_sizes") or [width // 3] * 3)
    ends = np.cumsum([0, *sizes])
    parts = [packed.moved(lambda v, a=a, b=b: v[..., a:b]) for a, b in itertools.pairwise(ends)]
    mask = () if call[5] is None else (call[5],)
    scale = call.get("scale", 0.0)
    options: dict[str, Any] = {"scale": scale} if scale else {}
    return call.op("Attention", *parts, *mask, q_num_heads=heads, kv_num_heads=heads, **options)
