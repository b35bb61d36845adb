"""Operators of ONNX Runtime's own, for the `ort` target."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.ort.fuse_conv_relu import FuseConvRelu

ORT: tuple[Pass, ...] = (FuseConvRelu(),)
