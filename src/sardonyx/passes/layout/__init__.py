"""Merge, move and absorb views, transposes, slices and casts, so that fewer copies are made."""

from __future__ import annotations

from sardonyx.passes.base import family

LAYOUT = family(
    __name__,
    """
    eliminate_split_to_sequence fuse_gemm_transpose merge_casts merge_reshapes merge_transposes
    eliminate_split_concat
    """,
)
REARRANGEMENTS = family(
    __name__,
    """
    eliminate_layout_roundtrips merge_slices merge_rearrangements merge_slices_into_split
    """,
)
