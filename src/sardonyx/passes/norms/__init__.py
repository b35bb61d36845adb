"""Normalisations and activations spelled out in arithmetic become the operators that mean them."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.norms.fuse_gelu import FuseGelu
from sardonyx.passes.norms.fuse_layer_norm import FuseLayerNorm
from sardonyx.passes.norms.fuse_rms_norm import FuseRmsNorm

NORMS: tuple[Pass, ...] = (
    FuseLayerNorm(),
    FuseRmsNorm(),
    FuseGelu(),
)
