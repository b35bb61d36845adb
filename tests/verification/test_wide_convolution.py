"""Convolutions in double precision are those of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper

from narrowing import array
from sardonyx.ir import io
from sardonyx.verification.double_precision import DoublePrecision, without_convolutions


def conv(
    rng: np.random.Generator,
    kernel: tuple[int, ...],
    group: int,
    *,
    bias: bool,
    dtype: type = np.float32,
    **attributes: Any,
) -> tuple[ir.Model, np.ndarray, np.ndarray, np.ndarray | None]:
    channels, rank = 6, len(kernel)
    x = rng.standard_normal((2, channels, *(11,) * rank)).astype(dtype)
    w = rng.standard_normal((channels, channels // group, *kernel)).astype(dtype)
    b = rng.standard_normal(channels).astype(dtype) if bias else None
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    stored = {"w": w} | ({"b": b} if b is not None else {})
    node = helper.make_node("Conv", ["x", *stored], ["y"], group=group, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", channels, *(f"d{axis}" for axis in range(rank))])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return io.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)), x, w, b


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("kernel", "group", "bias", "attributes"),
    [
        ((3,), 1, True, {"pads": [1, 1]}),
        ((3, 3), 1, True, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((3, 2), 6, False, {"dilations": [2, 3], "strides": [1, 3]}),
        ((1, 1), 1, False, {"strides": [2, 1]}),
        ((2, 3, 2), 1, True, {"pads": [1, 0, 1, 1, 0, 1]}),
    ],
)
def test_products_of_taps_are_a_convolution(
    kernel: tuple[int, ...], group: int, bias: bool, attributes: dict[str, list[int]], dtype: type
) -> None:
    model, x, w, b = conv(np.random.default_rng(0), kernel, group, bias=bias, dtype=dtype, **attributes)
    assert not any(node.op_type == "Conv" for node in without_convolutions(model).graph)
    (y,) = DoublePrecision(model).run({"x": x}) or [None]
    apply: Any = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[len(kernel) - 1]
    wide = [None if each is None else torch.tensor(each.astype(np.float64)) for each in (x, w, b)]
    expected = apply(
        *wide,
        stride=attributes.get("strides", 1),
        padding=(attributes.get("pads") or [0] * len(kernel))[: len(kernel)],
        dilation=attributes.get("dilations", 1),
        groups=group,
    ).numpy()
    assert array(y).dtype == np.float64
    np.testing.assert_allclose(array(y), expected, rtol=1e-12, atol=1e-12)


def test_other_forms_are_left_to_single_precision() -> None:
    model, x, _, _ = conv(np.random.default_rng(0), (3, 3), 2, bias=True)
    assert any(node.op_type == "Conv" for node in without_convolutions(model).graph)
    assert DoublePrecision(model).run({"x": x}) is not None
