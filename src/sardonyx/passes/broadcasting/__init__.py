"""Simplify masks and positions: what exporters compute element by element although it follows from the sizes."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.broadcasting.eliminate_expand import EliminateExpand
from sardonyx.passes.broadcasting.eliminate_full_gather import EliminateFullGather
from sardonyx.passes.broadcasting.eliminate_true_conditions import EliminateTrueConditions
from sardonyx.passes.broadcasting.fold_repeated_gather import FoldRepeatedGather
from sardonyx.passes.broadcasting.fold_where_branches import FoldWhereBranches
from sardonyx.passes.broadcasting.fuse_shape_gather import FuseShapeGather
from sardonyx.passes.broadcasting.merge_integer_sums import MergeIntegerSums
from sardonyx.passes.broadcasting.merge_reshapes_into_unsqueeze import MergeReshapesIntoUnsqueeze
from sardonyx.passes.broadcasting.sink_expand import SinkExpand

BROADCASTING: tuple[Pass, ...] = (
    EliminateFullGather(),
    MergeReshapesIntoUnsqueeze(),
    EliminateTrueConditions(),
    EliminateExpand(),
    SinkExpand(),
    FoldWhereBranches(),
    FoldRepeatedGather(),
    MergeIntegerSums(),
    FuseShapeGather(),
)
