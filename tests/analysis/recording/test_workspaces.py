"""Workspaces of GPU kernels, compared with measurements (benchmarks/memory-gpu.json)."""

from __future__ import annotations

import pytest

from sardonyx.ir.shapes.expr import symbol, value_of
from sardonyx.verbs.analyze.costs.program import Value
from sardonyx.verbs.analyze.recorder import Machine, workspace

GPU = Machine("cuda", threads=1, block=16)
KIB = 1024


def convolution(dtype: str, source: tuple, weight: tuple, result: tuple, *, groups: int = 1) -> object:
    reads = [Value("x", source, dtype, 0), Value("w", weight, dtype, 1)]
    scalars = {"groups": groups, "transposed": False, "padding": [0]}
    return workspace("aten.convolution", reads, [Value("y", result, dtype, 2)], scalars, False, GPU)


@pytest.mark.parametrize(
    ("dtype", "source", "weight", "result", "measured"),
    [
        ("bfloat16", (1, 3, 224, 224), (768, 3, 16, 16), (1, 768, 14, 14), 4150 * KIB),
        ("bfloat16", (1, 3, 224, 224), (1024, 3, 16, 16), (1, 1024, 14, 14), 5272 * KIB),
        ("bfloat16", (16, 3, 224, 224), (768, 3, 32, 32), (16, 768, 7, 7), 26008 * KIB),
        ("bfloat16", (4, 512, 6399), (512, 512, 3), (4, 512, 3199), 39928 * KIB),
        ("float32", (8, 512, 15999), (512, 512, 3), (8, 512, 7999), 387040 * KIB),
        ("float32", (1, 3, 224, 224), (768, 3, 32, 32), (1, 768, 7, 7), 0),
    ],
)
def test_a_convolution_on_a_gpu(dtype: str, source: tuple, weight: tuple, result: tuple, measured: int) -> None:
    assert convolution(dtype, source, weight, result) == measured


def test_a_grouped_convolution_is_left_out() -> None:
    assert convolution("float32", (1, 768, 49), (768, 48, 128), (1, 768, 50), groups=16) == 0


def test_a_masked_softmax_on_any_device() -> None:
    scores = Value("scores", (symbol("batch"), 8, 512, 512), "float32", 0)
    bytes_used = workspace("aten._safe_softmax", [scores], [scores], {"dim": -1}, False, GPU)
    assert value_of(bytes_used, {"batch": 4}) == (8192 + 16) * KIB
