"""Evaluate ahead of time what does not depend on the inputs of the model."""

from __future__ import annotations

from sardonyx.passes.base import family

FOLDING = family(__name__, "fold_shapes fold_view_targets fold_weight_views fold_constants")
