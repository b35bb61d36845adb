"""The small models have real structure, and no weight that would hide a wrong rewrite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import models


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", models.names())
def test_small_models_are_small_and_have_nonzero_weights(
    name: str, exporter: str, small_model: Callable[[str, str], Path]
) -> None:
    model = onnx.load(small_model(name, exporter))
    onnx.checker.check_model(model)
    assert len(model.graph.node) > 10
    assert model.ByteSize() < 8_000_000
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    floats = {k: v for k, v in weights.items() if v.dtype == np.float32 and v.size > 4}
    assert floats
    assert not [k for k, v in floats.items() if not v.any()], "an all-zero weight hides errors"
