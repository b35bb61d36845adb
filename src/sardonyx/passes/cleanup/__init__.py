"""Remove what computes nothing: copies, neutral operations, duplicates, dead nodes."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.cleanup.eliminate_add_zero import EliminateAddZero
from sardonyx.passes.cleanup.eliminate_cast_like import EliminateCastLike
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.eliminate_empty_operands import EliminateEmptyOperands
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.passes.cleanup.eliminate_noop_arithmetic import EliminateNoopArithmetic
from sardonyx.passes.cleanup.eliminate_noop_shape import EliminateNoopShape
from sardonyx.passes.cleanup.eliminate_unused_initializers import EliminateUnusedInitializers
from sardonyx.passes.cleanup.lift_constants import LiftConstants
from sardonyx.passes.cleanup.share_constants import ShareConstants
from sardonyx.passes.cleanup.share_sizes import ShareSizes
from sardonyx.passes.cleanup.share_subexpressions import ShareSubexpressions

NOOPS: tuple[Pass, ...] = (
    EliminateIdentity(),
    EliminateNoopShape(),
    EliminateEmptyOperands(),
    EliminateNoopArithmetic(),
    EliminateAddZero(),
    EliminateCastLike(),
)
SHARING: tuple[Pass, ...] = (
    EliminateDeadNodes(),  # first, since dead nodes need not be shared
    ShareConstants(),
    ShareSizes(),
    ShareSubexpressions(),
    LiftConstants(),
)
UNUSED: tuple[Pass, ...] = (EliminateUnusedInitializers(),)
