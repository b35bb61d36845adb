"""Operators of ONNX Runtime that Sardonyx writes (domain com.microsoft), in terms of exact numbers."""

from __future__ import annotations

import math

import numpy as np

from sardonyx_check.numbers import Numbers, Real, Undecided
from sardonyx_check.operators import TABLE, Call, Tensor, mean_of, softmax

_OWN = "com.microsoft::"


def _number(n: Numbers, value: float) -> Real:
    return n.stored(np.array(np.float32(value), np.float64))


def _activated(c: Call, x: Real, name: str, parameters: list[float]) -> Real:
    """Return an activation, as the attributes of a fused operator name it."""
    n = c.n
    zero, one, p = n.number(0.0, x), n.number(1.0, x), [_number(n, value) for value in parameters]
    match name:
        case "Relu":
            return n.larger(x, zero)
        case "Sigmoid":
            return n.sigmoid(x)
        case "Tanh":
            return n.tanh(x)
        case "LeakyRelu":
            return n.where(n.less(x, zero), n.multiply(p[0], x), x)
        case "Clip":
            return n.smaller(n.larger(x, p[0]), p[1])
        case "HardSigmoid" | "HardSwish":
            alpha, beta = p if p else (n.divide(one, n.number(6.0, x)), n.number(0.5, x))
            gate = n.larger(zero, n.smaller(one, n.add(n.multiply(alpha, x), beta)))
            return gate if name == "HardSigmoid" else n.multiply(x, gate)
        case _:
            raise Undecided(f"activation {name!r} is not supported")


def _fused_conv(c: Call) -> Tensor:
    result = TABLE["Conv"](c)
    result = result if c[3] is None else c.n.add(result, c[3])
    name = c.get("activation", "")
    return _activated(c, result, name, list(c.get("activation_params") or ())) if name else result


def _fused_gemm(c: Call) -> Tensor:
    given = [v for v in (c.get("activation_alpha"), c.get("activation_beta")) if v is not None]
    name = c.get("activation", "")
    return _activated(c, TABLE["Gemm"](c), name, given) if name else TABLE["Gemm"](c)


def _fused_matmul(c: Call) -> Tensor:
    if c.get("transBatchA", 0) or c.get("transBatchB", 0):
        raise Undecided("FusedMatMul with transposed batches")
    a, b = (v.map(lambda m: m.swapaxes(-1, -2)) if c.get(t, 0) else v for v, t in ((c[0], "transA"), (c[1], "transB")))
    return c.n.multiply(c.n.matmul(a, b), _number(c.n, c.get("alpha", 1.0)))


def _gelu(n: Numbers, x: Real) -> Real:
    root = n.stored(np.array(math.sqrt(2.0)))  # read as the real number
    half, one = n.number(0.5, x), n.number(1.0, x)
    return n.multiply(n.multiply(half, x), n.add(one, n.erf(n.divide(x, root))))


def _bias_gelu(c: Call) -> Tensor:
    return _gelu(c.n, _biased(c))


def _biased(c: Call) -> Real:
    if c[1] is not None and c[1].shape != c[0].shape[-1:]:
        raise ValueError("the bias is not a vector of the last dimension")
    return c[0] if c[1] is None else c.n.add(c[0], c[1])


def _fast_gelu(c: Call) -> Tensor:
    n, x = c.n, _biased(c)
    half, one, cube = n.number(0.5, x), n.number(1.0, x), n.multiply(x, n.multiply(x, x))
    inner = n.multiply(_number(n, math.sqrt(2 / math.pi)), n.add(x, n.multiply(_number(n, 0.044715), cube)))
    return n.multiply(n.multiply(half, x), n.add(one, n.tanh(inner)))


def _quick_gelu(c: Call) -> Tensor:
    return c.n.multiply(c[0], c.n.sigmoid(c.n.multiply(_number(c.n, c.get("alpha", 1.702)), c[0])))


def _skip_norm(c: Call) -> Tensor:
    n, simplified = c.n, c.node.op == "SkipSimplifiedLayerNormalization"
    bias = c[3] if simplified else c[4]
    if any(v is not None and v.shape != c[0].shape[-1:] for v in c.inputs[2:]) or c[1].shape != c[0].shape:
        raise ValueError("operands of other shapes")
    total = n.add(c[0], c[1])
    total = total if bias is None else n.add(total, bias)
    axes = (c.rank - 1,)
    centered = total if simplified else n.subtract(total, mean_of(n, total, axes))
    variance = mean_of(n, n.multiply(centered, centered), axes)
    root = n.sqrt(n.add(variance, _number(n, c.get("epsilon", 1e-5 if simplified else 1e-12))))
    result = n.multiply(n.divide(centered, root), c[2])
    result = result if simplified or c[3] is None else n.add(result, c[3])
    return result, None, None, total


def _attention(c: Call) -> Tensor:
    if c[3] is not None or c[4] is not None or c.get("unidirectional", 0) or c.get("do_rotary", 0):
        raise Undecided("Attention with a mask index, a past or a direction")
    n, heads = c.n, c.get("num_heads")
    product = n.matmul(c[0], c[1])
    product = product if c[2] is None else n.add(product, c[2])
    sizes = list(c.get("qkv_hidden_sizes") or [product.shape[-1] // 3] * 3)
    starts = [0, sizes[0], sizes[0] + sizes[1]]
    batch, length = product.shape[:2]

    def split(start: int, size: int) -> Real:
        shape = (batch, length, heads, size // heads)
        return product.map(lambda a: a[..., start : start + size].reshape(shape).transpose(0, 2, 1, 3))

    q, k, v = (split(*place) for place in zip(starts, sizes, strict=True))
    scale = c.get("scale", 0.0)
    factor = _number(n, scale) if scale else n.divide(n.number(1.0, q), n.sqrt(n.number(float(sizes[0] // heads), q)))
    scores = n.multiply(n.matmul(q, k.map(lambda a: a.swapaxes(-1, -2))), factor)
    scores = scores if c[5] is None else n.add(scores, c[5])
    return n.matmul(softmax(n, scores, (3,)), v).map(lambda a: a.transpose(0, 2, 1, 3).reshape(batch, length, -1))


TABLE |= {
    _OWN + "FusedConv": _fused_conv,
    _OWN + "FusedGemm": _fused_gemm,
    _OWN + "FusedMatMul": _fused_matmul,
    _OWN + "Gelu": _bias_gelu,
    _OWN + "BiasGelu": _bias_gelu,
    _OWN + "FastGelu": _fast_gelu,
    _OWN + "QuickGelu": _quick_gelu,
    _OWN + "SkipLayerNormalization": _skip_norm,
    _OWN + "SkipSimplifiedLayerNormalization": _skip_norm,
    _OWN + "Attention": _attention,
}
