"""Fuse decomposed normalisations and activations into the operators for them."""

from __future__ import annotations

from sardonyx.passes.base import family

NORMS = family(
    __name__,
    """
    fuse_layer_norm fuse_rms_norm fuse_norm_affine fuse_gelu merge_clips fuse_hard_sigmoid fuse_hard_swish
    """,
)
