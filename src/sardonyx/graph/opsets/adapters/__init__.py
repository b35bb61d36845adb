"""The adapters, by operator: one for each that `history` marks."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.graph.opsets.adapter import Adapter
from sardonyx.graph.opsets.adapters import meanings, numbers, resizing, softmax

_REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]

# Operators that ONNX Runtime 1.31 runs up to opset 21 only.
_WITHOUT_KERNEL = [
    "GlobalLpPool",
    "MaxRoiPool",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
]

ADAPTERS: Mapping[str, Adapter] = {
    **dict.fromkeys(_WITHOUT_KERNEL, meanings.without_kernel),
    **{f"Reduce{name}": numbers.axes for name in _REDUCTIONS},
    "Squeeze": numbers.axes,
    "Unsqueeze": numbers.axes,
    "Split": numbers.split,
    "Slice": numbers.slice_,
    "TopK": numbers.top_k,
    "DFT": numbers.dft,
    "Clip": numbers.clip,
    "Pad": numbers.pad,
    "Dropout": numbers.dropout,
    "Softmax": softmax.flattened,
    "LogSoftmax": softmax.flattened,
    "Hardmax": softmax.flattened,
    "Resize": resizing.resize,
    "Upsample": resizing.upsample,
    "AveragePool": meanings.pool,
    "MaxPool": meanings.pool,
    "BatchNormalization": meanings.batch_normalization,
    "ConvTranspose": meanings.conv_transpose,
    "Erf": meanings.erf,
    "GridSample": meanings.grid_sample,
    "GroupNormalization": meanings.group_normalization,
    "MeanVarianceNormalization": meanings.mean_variance_normalization,
    "OneHot": meanings.one_hot,
    "RoiAlign": meanings.roi_align,
    "Scan": meanings.scan,
    "Scatter": meanings.scatter,
}
