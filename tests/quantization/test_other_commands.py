"""The other commands on quantized files: every node has its module, and each command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sardonyx
from quantization.small_model import build
from sardonyx.records.inspection import Inspection

RECIPES = [
    ("int8", "portable"),
    ("int4", "portable"),
    ("int4", "ort"),
    ("int8-static", "portable"),
    ("fp16", "portable"),
]
MODULES = {"embed", "encoder.first", "encoder.second", "head"}


@pytest.mark.medium
@pytest.mark.parametrize(("to", "target"), RECIPES)
def test_every_command_works_on_a_quantized_file(tmp_path: Path, to: Any, target: Any) -> None:
    source, small = build(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    sardonyx.quantize(source, small, to=to, target=target)

    inspection = sardonyx.inspect(small)
    assert isinstance(inspection, Inspection)
    assert inspection.coverage.root == 0
    assert {module.path for module in inspection.modules} >= MODULES

    (profiled,) = sardonyx.profile([small], runs=2).models
    timed = {module.path.split(".")[0] for module in profiled.modules if module.self_ms}
    assert timed == {"embed", "encoder", "head"}  # a fused kernel may be the encoder's
    assert profiled.attributed == pytest.approx(1)

    extraction = sardonyx.extract(small, "encoder.second", tmp_path / "second.onnx")
    assert extraction.verdict is not None
    assert extraction.verdict.passed

    compared = sardonyx.compare(source, small)
    touched = {module.path for module in compared.modules if module.added or module.changed}
    assert touched >= ({"encoder"} if to == "fp16" else MODULES)  # fp16 adds casts at the borders alone

    run = sardonyx.optimize(small, tmp_path / "small.onnx")
    assert run.verdict is not None
    assert run.verdict.passed
    assert 'data-section="modules"' in sardonyx.report(run).text
