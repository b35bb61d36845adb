"""Simplify masks and positions: what exporters compute element by element although it follows from the sizes."""

from __future__ import annotations

from sardonyx.passes.base import family

BROADCASTING = family(
    __name__,
    """
    eliminate_full_gather merge_reshapes_into_unsqueeze eliminate_true_conditions eliminate_expand sink_expand
    fold_where_branches fold_repeated_gather merge_integer_sums fuse_shape_gather
    """,
)
