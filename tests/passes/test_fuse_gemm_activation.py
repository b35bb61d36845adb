"""Activations are fused into their Gemm on the ort target, with their parameters."""

from __future__ import annotations

import pytest

from passes.util import assert_same, graph_text, op_types, reasons, run_passes
from sardonyx.passes.ort.fuse_gemm_activation import FuseGemmActivation

FUSE = [FuseGemmActivation()]


def text(activation: str, *, gemm: str = "Gemm(x, w, b)", kind: str = "float", opset: int = 18) -> str:
    constants = f"<{kind}[3, 3] w = {{1, 2, -3, 4, 5, -6, 0.5, 1, 2}}, {kind}[3] b = {{1, 2, -3}}>"
    body = f"a = {gemm}  y = {activation}(a)"
    return graph_text(f"agraph ({kind}[N, 3] x) => ({kind}[N, 3] y) {constants} {{ {body} }}", opset)


GEMMS = ["Gemm(x, w, b)", "Gemm(x, w)", "Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, w, b)"]
ACTIVATIONS = ["Tanh", "Relu", "Sigmoid", "Softplus", "Softsign", "LeakyRelu", "LeakyRelu <alpha = 0.3> "]


@pytest.mark.parametrize("gemm", GEMMS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_fuses(activation: str, gemm: str) -> None:
    source = text(activation, gemm=gemm)
    model, _ = run_passes(source, FUSE, target="ort")
    assert op_types(model) == ["FusedGemm"]
    assert_same(source, model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(text("Tanh"), FUSE)
    assert op_types(model) == ["Gemm", "Tanh"]
    assert reasons(log) == ["needs the ort target's FusedGemm"]


@pytest.mark.parametrize("source", [text("Tanh", kind="double"), text("Erf")])
def test_activations_without_a_kernel_stay(source: str) -> None:
    model, log = run_passes(source, FUSE, target="ort")
    assert "FusedGemm" not in op_types(model)
    assert not log.events
