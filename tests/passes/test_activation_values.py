"""Fused activations equal their sources on infinities, NaN, zeros and the limits of the type.

One difference is accepted (decision 0018): the source overflows in an intermediate value, as in `x * 2 / 2`, and the
result does not.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from passes.normalisations import constant
from passes.util import graph_text, op_types, outputs, parse, run_passes
from sardonyx.passes.norms.fuse_gelu import FuseGelu
from sardonyx.passes.norms.fuse_hard_sigmoid import FuseHardSigmoid
from sardonyx.passes.norms.fuse_hard_swish import FuseHardSwish
from sardonyx.passes.ort.fuse_bias_gelu import FuseBiasGelu
from sardonyx.passes.ort.fuse_conv_hard_swish import FuseConvHardSwish
from sardonyx.passes.ort.fuse_conv_relu import FuseConvRelu
from sardonyx.passes.ort.fuse_gemm_activation import FuseGemmActivation
from sardonyx.passes.ort.fuse_quick_gelu import FuseQuickGelu

PASSES = (
    FuseGelu(), FuseHardSigmoid(), FuseHardSwish(), FuseBiasGelu(), FuseConvHardSwish(), FuseConvRelu(),
    FuseGemmActivation(), FuseQuickGelu(),
)  # fmt: skip
NUMBERS = {
    "root": 2**0.5, "slope": (2 / np.pi) ** 0.5, "cubic": 0.044715, "one": 1, "half": 0.5, "three": 3, "six": 6,
    "zero": 0, "alpha": 1.702, "minus": -2,
}  # fmt: skip
BODIES = {
    "gelu": ("a = Div(x, root)  e = Erf(a)  p = Add(e, one)  g = Mul(x, p)  y = Mul(g, half)", "Gelu"),
    "gelu, halved first": ("a = Div(x, root)  e = Erf(a)  p = Add(e, one)  h = Mul(x, half)  y = Mul(h, p)", "Gelu"),
    "gelu by tanh": (
        "c = Pow(x, three)  k = Mul(c, cubic)  s = Add(x, k)  a = Mul(s, slope)  e = Tanh(a)  p = Add(e, one)"
        "  h = Mul(half, x)  y = Mul(h, p)",
        "Gelu",
    ),
    "gelu with bias": ("z = Add(x, row)  y = Gelu(z)", "BiasGelu"),
    "gelu by tanh with bias": ('z = Add(x, row)  y = Gelu <approximate = "tanh"> (z)', "FastGelu"),
    "silu": ("s = Sigmoid(x)  y = Mul(x, s)", "QuickGelu"),
    "quick gelu": ("a = Mul(alpha, x)  s = Sigmoid(a)  y = Mul(s, x)", "QuickGelu"),
    "quick gelu, negative": ("a = Mul(minus, x)  s = Sigmoid(a)  y = Mul(s, x)", "QuickGelu"),
    "hard sigmoid": ("a = Add(x, three)  b = Clip(a, zero, six)  y = Div(b, six)", "HardSigmoid"),
    "hard swish": ("a = Add(x, three)  b = Clip(a, zero, six)  c = Div(b, six)  y = Mul(x, c)", "HardSwish"),
    **{
        f"gemm {activation}": (f"a = Gemm(x, unit)  y = {activation}(a)", "FusedGemm")
        for activation in ("Tanh", "Relu", "LeakyRelu", "Sigmoid", "Softplus", "Softsign")
    },
    **{
        f"conv {activation}": (f"u = Unsqueeze(x, last)  a = Conv(u, kernel)  y = {activation}", "FusedConv")
        for activation in (
            "Relu(a)", "LeakyRelu(a)", "Sigmoid(a)", "Tanh(a)", "HardSigmoid(a)", "HardSwish(a)", "Clip(a)",
            "Clip(a, zero)", "Clip(a, , six)", "Clip(a, six, zero)",
        )
    },
}  # fmt: skip


def hostile(dtype: type[np.floating]) -> np.ndarray:
    """Rows of one number, so that a matrix product with 1 gives that number."""
    limits = np.finfo(dtype)
    some = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        limits.max,
        limits.min,
        limits.tiny,
        -limits.tiny,
        1,
        -1,
        3,
        -3,
        41,
        -41,
    ]
    return np.array(some, dtype).reshape(-1, 1)


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("name", BODIES)
def test_special_values(name: str, kind: str) -> None:
    body, operator = BODIES[name]
    constants = ", ".join(constant(kind, key, "", number) for key, number in NUMBERS.items())
    arrays = f"{constant(kind, 'row', '[1]', 0)}, {constant(kind, 'unit', '[1, 1]', 1)}"
    kernel = f"{constant(kind, 'kernel', '[1, 1, 1]', 1)}, int64[1] last = {{2}}"
    dims = "N, 1, 1" if "conv" in name else "N, 1"
    text = graph_text(
        f"agraph ({kind}[N, 1] x) => ({kind}[{dims}] y) <{constants}, {arrays}, {kernel}> {{ {body} }}", 20
    )
    after, _ = run_passes(text, PASSES, target="ort")
    if kind == "float":
        assert operator in op_types(after)
    feeds = {"x": hostile(np.float32 if kind == "float" else np.float16)}
    wanted, got = (outputs(model, feeds)[0].astype(np.float64) for model in (parse(text), ir.to_proto(after)))
    if name == "gelu":  # doubles x before it halves it
        wanted[5] = got[5]
    rtol, atol = (1e-5, 1e-6) if kind == "float" else (4e-3, 1e-3)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(wanted[zeros]))
