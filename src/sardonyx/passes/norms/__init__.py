"""Fuse decomposed normalisations and activations into the operators for them."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.norms.fuse_gelu import FuseGelu
from sardonyx.passes.norms.fuse_hard_sigmoid import FuseHardSigmoid
from sardonyx.passes.norms.fuse_hard_swish import FuseHardSwish
from sardonyx.passes.norms.fuse_layer_norm import FuseLayerNorm
from sardonyx.passes.norms.fuse_norm_affine import FuseNormAffine
from sardonyx.passes.norms.fuse_rms_norm import FuseRmsNorm
from sardonyx.passes.norms.merge_clips import MergeClips

NORMS: tuple[Pass, ...] = (
    FuseLayerNorm(),
    FuseRmsNorm(),
    FuseNormAffine(),
    FuseGelu(),
    MergeClips(),
    FuseHardSigmoid(),
    FuseHardSwish(),
)
