"""Masks and positions: what exporters compute element by element although it follows from the sizes."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.masks.broadcast_implicitly import BroadcastImplicitly
from sardonyx.passes.masks.compute_branches import ComputeBranches
from sardonyx.passes.masks.drop_true_conditions import DropTrueConditions
from sardonyx.passes.masks.expand_late import ExpandLate
from sardonyx.passes.masks.gather_everything import GatherEverything
from sardonyx.passes.masks.gather_one_row import GatherOneRow
from sardonyx.passes.masks.merge_integer_sums import MergeIntegerSums
from sardonyx.passes.masks.read_one_size import ReadOneSize
from sardonyx.passes.masks.unsqueeze_directly import UnsqueezeDirectly

MASKS: tuple[Pass, ...] = (
    GatherEverything(),
    UnsqueezeDirectly(),
    DropTrueConditions(),
    BroadcastImplicitly(),
    ExpandLate(),
    ComputeBranches(),
    GatherOneRow(),
    MergeIntegerSums(),
    ReadOneSize(),
)
