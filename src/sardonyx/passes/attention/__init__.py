"""Attention, its positions and its masks, however spelled, become the operators that mean them."""

from __future__ import annotations

from sardonyx.passes.attention.fuse_rotary_embedding import FuseRotaryEmbedding
from sardonyx.passes.base import Pass

ATTENTION: tuple[Pass, ...] = (FuseRotaryEmbedding(),)
