"""Drop what computes nothing: copies, neutral operations, twins, dead nodes."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.tidy.drop_dead_nodes import DropDeadNodes
from sardonyx.passes.tidy.drop_unused_initializers import DropUnusedInitializers
from sardonyx.passes.tidy.eliminate_add_zero import EliminateAddZero
from sardonyx.passes.tidy.eliminate_empty_operands import EliminateEmptyOperands
from sardonyx.passes.tidy.eliminate_identity import EliminateIdentity
from sardonyx.passes.tidy.eliminate_noop_arithmetic import EliminateNoopArithmetic
from sardonyx.passes.tidy.eliminate_noop_shape import EliminateNoopShape
from sardonyx.passes.tidy.lift_constants import LiftConstants
from sardonyx.passes.tidy.resolve_cast_like import ResolveCastLike
from sardonyx.passes.tidy.share_constants import ShareConstants
from sardonyx.passes.tidy.share_sizes import ShareSizes
from sardonyx.passes.tidy.share_subexpressions import ShareSubexpressions

TIDY: tuple[Pass, ...] = (
    EliminateIdentity(),
    EliminateNoopShape(),
    EliminateEmptyOperands(),
    EliminateNoopArithmetic(),
    EliminateAddZero(),
    ResolveCastLike(),
)
SHARING: tuple[Pass, ...] = (
    DropDeadNodes(),  # first: what nobody reads need not be shared
    ShareConstants(),
    ShareSizes(),
    ShareSubexpressions(),
    LiftConstants(),
)
SWEEPING: tuple[Pass, ...] = (DropUnusedInitializers(),)
