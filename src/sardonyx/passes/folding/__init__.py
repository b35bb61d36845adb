"""Evaluate ahead of time what does not depend on the inputs of the model."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.folding.fold_constants import FoldConstants
from sardonyx.passes.folding.fold_shapes import FoldShapes
from sardonyx.passes.folding.fold_view_targets import FoldViewTargets
from sardonyx.passes.folding.fold_weight_views import FoldWeightViews

FOLDING: tuple[Pass, ...] = (
    FoldShapes(),
    FoldViewTargets(),
    FoldWeightViews(),
    FoldConstants(),
)
