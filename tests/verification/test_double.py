"""An exported graph whose rounding differs from its module is compared again in double precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import sardonyx
from sardonyx.errors import RuntimeFailure, VerificationFailed
from sardonyx.frontend.tracing.engine import TorchEngine
from sardonyx.ir.support import NOT_IN_DOUBLE
from sardonyx.records.run import Accuracy
from sardonyx.runtime.remote import RemoteSession
from sardonyx.runtime.sessions import Runtime
from sardonyx.verbs.export import export as exporting
from sardonyx.verification.double_precision import DoublePrecision
from sardonyx.verification.output_comparison import OutputComparer, Precise
from verification.text_models import text_model


class Spectrum(torch.nn.Module):
    """A Fourier transform, which the runtime computes with larger rounding errors than torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(97)
        self.out = torch.nn.Linear(97, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(torch.fft.fftn(x, dim=(-2, -1)).real))


def example() -> torch.Tensor:
    return torch.randn(2, 61, 97, generator=torch.Generator().manual_seed(0))


def test_rounding_of_a_transform_passes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = sardonyx.export(Spectrum().eval(), example(), tmp_path / "m.onnx")
    assert made.verdict is not None
    assert made.verdict.passed
    assert any("agree in double precision" in note for note in made.verdict.notes)


def test_a_module_runs_once_in_double_precision_for_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """All trials of the graph use one session."""
    runs: list[Any] = []
    sessions: list[RemoteSession] = []
    run_in_double, opened = TorchEngine.run_in_double, DoublePrecision._open
    monkeypatch.setattr(TorchEngine, "run_in_double", lambda *a: runs.append(a[1]) or run_in_double(*a))
    monkeypatch.setattr(DoublePrecision, "_open", lambda each: sessions.append(opened(each)) or sessions[-1])
    torch.manual_seed(0)
    sardonyx.export(Spectrum().eval(), example())
    assert 1 < len(runs) == len({id(feeds) for feeds in runs})
    assert len(sessions) == 1


@pytest.mark.parametrize("factor", [1 + 2e-5, 1 - 1e-3])
def test_a_wrong_weight_still_fails(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """The error is as large in double precision."""
    right = exporting.traced.export

    def wrong(*args: Any, **kwargs: Any) -> tuple[ir.Model, tuple[str, ...]]:
        model, notes = right(*args, **kwargs)
        weight = model.graph.initializers["norm.weight"]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(factor), name="norm.weight")
        return model, notes

    monkeypatch.setattr(exporting.traced, "export", wrong)
    torch.manual_seed(0)
    with pytest.raises(VerificationFailed):
        sardonyx.export(Spectrum().eval(), example())


TOKENS, WINDOW, WIDTH = 6_400, 16, 8


class Block(torch.nn.Module):
    """Attention of two heads in windows, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = self.before(x).reshape(-1, WINDOW, WIDTH)
        q, k, v = self.qkv(windows).reshape(-1, WINDOW, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Pooled(torch.nn.Module):
    """A mean over many tokens, which the runtime adds up one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, WIDTH, 4, stride=4)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(3)))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.stem(x).flatten(2).transpose(1, 2))).mean(1)


@pytest.fixture(scope="module")
def pooled() -> tuple[torch.nn.Module, torch.Tensor, Any]:
    """A module, an image, and what torch exports."""
    torch.manual_seed(0)
    module, side = Pooled().eval(), 4 * int(TOKENS**0.5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter) if parameter.dim() == 1 else 0.0)
        module.blocks[1].get_parameter("out.bias").mul_(1e-3)
        for parameter in module.stem.parameters():
            parameter.mul_(0.2)  # rows of small variance, where an epsilon matters
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))
    kept: list[Any] = []
    right = exporting.traced.export
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            exporting.traced, "export", lambda *args, **kwargs: kept.append(right(*args, **kwargs)) or kept[0]
        )
        sardonyx.export(module, image, verify="off", optimize=False)
    return module, image, kept[0]


def exported(pooled: tuple[torch.nn.Module, torch.Tensor, Any], change: Callable[[ir.Model], None]) -> Any:
    """Export with a change in the graph, and compare on the image alone."""
    module, image, (model, notes) = pooled
    changed = model.clone()
    change(changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting.traced, "export", lambda *_, **__: (changed, notes))
        patch.setattr(exporting, "_RANDOM_TRIALS", 0)
        patch.setattr(exporting, "_EXAMPLE_VARIANTS", 0)
        return sardonyx.export(module, image, optimize=False)


@pytest.mark.slow
def test_the_order_of_a_long_sum_passes(
    pooled: tuple[torch.nn.Module, torch.Tensor, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime has no Conv for doubles; the reference evaluator would take minutes."""
    sessions: list[RemoteSession] = []
    opened = DoublePrecision._open
    monkeypatch.setattr(DoublePrecision, "_open", lambda each: sessions.append(opened(each)) or sessions[-1])
    verdict = exported(pooled, lambda _: None).verdict
    assert any("agree in double precision" in note for note in verdict.notes)
    assert [(session.runtime, session.seconds) for session in sessions] == [(Runtime.ORT, None)]


def weight(name: str, change: Callable[[Any], Any]) -> Callable[[ir.Model], None]:
    def apply(model: ir.Model) -> None:
        value = model.graph.initializers[name]
        assert value.const_value is not None
        array = np.ascontiguousarray(change(value.const_value.numpy().copy()), np.float32)
        value.const_value = ir.tensor(array, name=name)

    return apply


def one_element(array: Any) -> Any:
    array[3, 5] *= 1.001
    return array


def heads_exchanged(array: Any) -> Any:
    half = WIDTH // 2
    array[:half], array[half:WIDTH] = array[half:WIDTH].copy(), array[:half].copy()
    return array


def other_epsilon(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "LayerNormalization")
    assert node.attributes["epsilon"].as_float() == pytest.approx(1e-5)
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-6)


def other_scale(model: ir.Model) -> None:
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    factor = ir.node("Constant", [], attributes={"value": ir.tensor(np.float32(1.001))}, name="factor")
    scores = ir.node("Mul", [softmax.inputs[0], factor.outputs[0]], name="scores")
    softmax.replace_input_with(0, scores.outputs[0])
    model.graph.insert_before(softmax, [factor, scores])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        weight("blocks.1.up.weight", lambda array: array * np.float32(1.001)),
        weight("blocks.1.down.weight", one_element),
        weight("blocks.1.qkv.weight", heads_exchanged),
        weight("blocks.1.out.bias", np.zeros_like),
        other_epsilon,
        other_scale,
    ],
    ids=["weight", "one-element", "heads", "small-bias", "epsilon", "scale"],
)
def test_a_wrong_graph_with_a_long_sum_fails(
    pooled: tuple[torch.nn.Module, torch.Tensor, Any], change: Callable[[ir.Model], None]
) -> None:
    with pytest.raises(VerificationFailed):
        exported(pooled, change)


def test_an_overflow_fails_though_doubles_agree() -> None:
    comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset(), exported=True)
    right, inf = np.array([1.0, 3.0], np.float32), np.array([1.0, np.inf], np.float32)
    agree = Precise([right], [right])
    assert comparer.compare([right], [inf], lambda: agree)
    far = np.array([1.0, 3.01], np.float32)
    assert comparer.compare([right], [far], lambda: agree)
    near = np.array([1.0, 3.0001], np.float32)
    assert not comparer.compare([right], [near], lambda: agree)
    assert comparer.compare([right], [near], lambda: Precise([right], [near]))
    assert comparer.compare([right], [near], lambda: None)


@pytest.mark.parametrize("operator", sorted(NOT_IN_DOUBLE))
def test_the_runtime_refuses_doubles_for_operators_in_single_precision(operator: str) -> None:
    """Once it has a kernel, the operator is to leave the table."""
    operands = {"Conv": "x, w", "ConvTranspose": "x, w", "InstanceNormalization": "x, v, v"}
    operands |= {"Resize": "x, , s", "OneHot": "i, d, v"}
    window = "<kernel_shape = [2, 2]>" if operator == "AveragePool" else ""
    rank = "[a, b]" if operator == "OneHot" else "[a, b, c, d]"
    model = text_model(
        f"g (double[1, 2, 4, 4] x, double[2, 2, 3, 3] w, double[2] v, float[4] s, int64[2] i, int64 d) => "
        f"(double{rank} y) {{ y = {operator} {window} ({operands.get(operator, 'x')}) }}"
    )
    with pytest.raises(RuntimeFailure, match=f"implementation for {operator}"):
        RemoteSession(model.SerializeToString())


def test_operators_of_the_runtime_compute_between_casts_in_a_run_in_doubles() -> None:
    """What ONNX Runtime defines itself has no doubles: it keeps its type, and the sums around it are in doubles."""
    model = text_model(
        "g (float[2, 512] x, float[512, 64] w, float[64] v) => (float[2, 64] y) "
        "{ p = MatMul(x, w) q = com.microsoft.QuickGelu <alpha = 1.702> (p) "
        "y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (q, p, v) }"
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    numbers = np.random.default_rng(0)
    feeds = {
        "x": numbers.standard_normal((2, 512)).astype(np.float32),
        "w": numbers.standard_normal((512, 64)).astype(np.float32),
        "v": np.ones(64, np.float32),
    }
    double = DoublePrecision(ir.from_proto(model))
    found = double.run(feeds)
    double.close()
    assert found is not None
    product = feeds["x"].astype(float) @ feeds["w"].astype(float)
    summed = product / (1 + np.exp(-1.702 * product)) + product
    expected = summed / np.sqrt((summed**2).mean(-1, keepdims=True) + 0.001)
    np.testing.assert_allclose(np.asarray(found[0]), expected, rtol=2e-6, atol=1e-6)
