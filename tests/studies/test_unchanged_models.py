"""A study leaves its models unchanged: the files, their folders, and the caller's random state."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import sardonyx


def _state(folder: Path) -> dict[str, Any]:
    """Everything that a study could change for its caller."""
    numbers: Any = np.random.get_state()  # the global state, which must stay unchanged
    files = {path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode) for path in folder.iterdir()}
    return {
        **files,
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": numbers[1].tolist(),
        "random": random.getstate(),
    }


@pytest.mark.parametrize(("seed", "experiment"), [(0, "attribution"), (1, "order"), (2, "forensics")])
def test_models_and_the_random_state_are_unchanged(seed: int, experiment: str, tmp_path: Path) -> None:
    draw = random.Random(seed)
    models, output = tmp_path / "models", tmp_path / "study"
    models.mkdir()
    widths = [draw.randrange(2, 9) for _ in range(draw.randrange(3, 6))]
    layers: list[nn.Module] = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    module = nn.Sequential(*(each for layer in layers for each in (layer, draw.choice((nn.ReLU(), nn.Identity())))))
    example = (torch.ones(2, widths[0]),)
    options = sardonyx.ExportOptions(external=bool(seed % 2))
    sardonyx.export(module, example, models / "net.onnx", exporter="torchscript", options=options)
    (models / "broken.onnx").write_bytes(onnx.ModelProto(ir_version=10).SerializeToString()[:1] + b"\xff")
    before = _state(models)

    results = sardonyx.study([models], output, only=[experiment], seed=seed, workers=1)

    assert _state(models) == before
    assert results.cells > 0
