"""Attention, its positions and its masks, however spelled, become the operators that mean them."""

from __future__ import annotations

from sardonyx.passes.attention.delay_head_transpose import DelayHeadTranspose
from sardonyx.passes.attention.delay_rotary_scale import DelayRotaryScale
from sardonyx.passes.attention.fuse_attention import FuseAttention
from sardonyx.passes.attention.fuse_attention_cache import FuseAttentionCache
from sardonyx.passes.attention.fuse_rotary_embedding import FuseRotaryEmbedding
from sardonyx.passes.attention.halve_doubled_angles import HalveDoubledAngles
from sardonyx.passes.attention.hoist_rotary_embedding import HoistRotaryEmbedding
from sardonyx.passes.attention.merge_attention_heads import MergeAttentionHeads
from sardonyx.passes.base import Pass

ATTENTION: tuple[Pass, ...] = (
    HalveDoubledAngles(),
    FuseRotaryEmbedding(),
    DelayRotaryScale(),
    DelayHeadTranspose(),
    HoistRotaryEmbedding(),
    FuseAttention(),
    FuseAttentionCache(),
    MergeAttentionHeads(),
)
