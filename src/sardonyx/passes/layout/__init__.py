"""Merge, move and absorb views, transposes, slices and casts, so that fewer copies are made."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.layout.eliminate_layout_roundtrips import EliminateLayoutRoundtrips
from sardonyx.passes.layout.eliminate_split_concat import EliminateSplitConcat
from sardonyx.passes.layout.eliminate_split_to_sequence import EliminateSplitToSequence
from sardonyx.passes.layout.fuse_gemm_transpose import FuseGemmTranspose
from sardonyx.passes.layout.merge_casts import MergeCasts
from sardonyx.passes.layout.merge_rearrangements import MergeRearrangements
from sardonyx.passes.layout.merge_reshapes import MergeReshapes
from sardonyx.passes.layout.merge_slices import MergeSlices
from sardonyx.passes.layout.merge_slices_into_split import MergeSlicesIntoSplit
from sardonyx.passes.layout.merge_transposes import MergeTransposes

LAYOUT: tuple[Pass, ...] = (
    EliminateSplitToSequence(),
    FuseGemmTranspose(),
    MergeCasts(),
    MergeReshapes(),
    MergeTransposes(),
    EliminateSplitConcat(),
)
REARRANGEMENTS: tuple[Pass, ...] = (
    EliminateLayoutRoundtrips(),
    MergeSlices(),
    MergeRearrangements(),
    MergeSlicesIntoSplit(),
)
