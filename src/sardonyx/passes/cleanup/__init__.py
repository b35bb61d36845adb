"""Remove what computes nothing: copies, neutral operations, duplicates, dead nodes."""

from __future__ import annotations

from sardonyx.passes.base import family

NOOPS = family(
    __name__,
    """
    eliminate_identity eliminate_noop_shape eliminate_empty_operands eliminate_noop_arithmetic eliminate_add_zero
    eliminate_cast_like
    """,
)
# Dead nodes first, since they need not be shared.
SHARING = family(__name__, "eliminate_dead_nodes share_constants share_sizes share_subexpressions lift_constants")
UNUSED = family(__name__, "eliminate_unused_initializers")
