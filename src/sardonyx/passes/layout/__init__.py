"""Fewer copies: views and transposes merged, moved and absorbed."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.layout.absorb_transpose import AbsorbTranspose
from sardonyx.passes.layout.cancel_moves import CancelMoves
from sardonyx.passes.layout.merge_casts import MergeCasts
from sardonyx.passes.layout.merge_reshapes import MergeReshapes
from sardonyx.passes.layout.merge_slices import MergeSlices
from sardonyx.passes.layout.merge_transposes import MergeTransposes
from sardonyx.passes.layout.rearrange_once import RearrangeOnce
from sardonyx.passes.layout.split_directly import SplitDirectly
from sardonyx.passes.layout.split_slices import SplitSlices
from sardonyx.passes.layout.undo_split import UndoSplit

LAYOUT: tuple[Pass, ...] = (
    SplitDirectly(),
    AbsorbTranspose(),
    MergeCasts(),
    MergeReshapes(),
    MergeTransposes(),
    UndoSplit(),
)
MOVES: tuple[Pass, ...] = (
    CancelMoves(),
    MergeSlices(),
    RearrangeOnce(),
    SplitSlices(),
)
