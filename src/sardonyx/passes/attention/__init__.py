"""Fuse attention, its rotary positions and its masks into the operators Attention and RotaryEmbedding."""

from __future__ import annotations

from sardonyx.passes.attention.fuse_attention import FuseAttention
from sardonyx.passes.attention.fuse_attention_cache import FuseAttentionCache
from sardonyx.passes.attention.fuse_rotary_embedding import FuseRotaryEmbedding
from sardonyx.passes.attention.hoist_rotary_embedding import HoistRotaryEmbedding
from sardonyx.passes.attention.merge_attention_heads import MergeAttentionHeads
from sardonyx.passes.attention.sink_head_transpose import SinkHeadTranspose
from sardonyx.passes.attention.sink_rotary_scale import SinkRotaryScale
from sardonyx.passes.attention.split_concat_trig import SplitConcatTrig
from sardonyx.passes.base import Pass

ATTENTION: tuple[Pass, ...] = (
    SplitConcatTrig(),
    FuseRotaryEmbedding(),
    SinkRotaryScale(),
    SinkHeadTranspose(),
    HoistRotaryEmbedding(),
    FuseAttention(),
    FuseAttentionCache(),
    MergeAttentionHeads(),
)
