"""Fuse attention, its rotary positions and its masks into the operators Attention and RotaryEmbedding."""

from __future__ import annotations

from sardonyx.passes.base import family

ATTENTION = family(
    __name__,
    """
    split_concat_trig fuse_rotary_embedding sink_rotary_scale sink_head_transpose hoist_rotary_embedding
    fuse_attention fuse_attention_cache merge_attention_heads
    """,
)
