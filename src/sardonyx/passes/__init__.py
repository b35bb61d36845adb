"""The passes, in the order they run. A new pass is one file and one line here."""

from __future__ import annotations

from sardonyx.passes.base import Example, ModelPass, NodePass, Pass
from sardonyx.passes.eliminate_identity import EliminateIdentity

ALL: tuple[Pass, ...] = (EliminateIdentity(),)

__all__ = ["ALL", "Example", "ModelPass", "NodePass", "Pass"]
