"""An exported graph whose rounding differs from its module is compared again in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import sardonyx
from sardonyx.errors import VerificationFailed
from sardonyx.exporting import export as exporting
from sardonyx.records.run import Accuracy
from sardonyx.verification.output_comparison import OutputComparer


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


def test_an_overflow_fails_though_doubles_agree() -> None:
    comparer = OutputComparer(["y"], Accuracy.REASSOCIATES, frozenset(), exported=True)
    right, inf = np.array([1.0, 3.0], np.float32), np.array([1.0, np.inf], np.float32)
    assert comparer.compare([right], [inf], lambda: None, exact=lambda: ([right], [right]))
    far = np.array([1.0, 3.01], np.float32)
    assert comparer.compare([right], [far], lambda: None, exact=lambda: ([right], [right]))
    near = np.array([1.0, 3.0001], np.float32)
    assert not comparer.compare([right], [near], lambda: None, exact=lambda: ([right], [right]))
    assert comparer.compare([right], [near], lambda: None, exact=lambda: ([right], [near]))
    assert comparer.compare([right], [near], lambda: None)
