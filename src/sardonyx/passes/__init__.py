"""The passes, in the order they run. A new pass is one file and one line here."""

from __future__ import annotations

from sardonyx.passes.base import Example, ModelPass, NodePass, Pass
from sardonyx.passes.drop_dead_nodes import DropDeadNodes
from sardonyx.passes.drop_unused_initializers import DropUnusedInitializers
from sardonyx.passes.eliminate_identity import EliminateIdentity
from sardonyx.passes.share_constants import ShareConstants
from sardonyx.passes.share_subexpressions import ShareSubexpressions

ALL: tuple[Pass, ...] = (
    EliminateIdentity(),
    ShareConstants(),
    ShareSubexpressions(),
    DropDeadNodes(),
    DropUnusedInitializers(),
)

__all__ = ["ALL", "Example", "ModelPass", "NodePass", "Pass"]
