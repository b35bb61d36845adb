"""Writes a model out without calls, in time that grows with its nodes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass


class _NoNames(set[str]):
    """Names of which none is ever taken."""

    def __contains__(self, name: object) -> bool:
        """Never."""
        return False


class Inline(InlinePass):
    """Inlining that leaves equal names equal.

    The base class tries one number after another for each name that every call of a function brings again: quadratic
    in the calls. Nothing that reads the result goes by names.
    """

    def _reset(self, model: ir.Model) -> None:
        super()._reset(model)
        self._used_value_names = _NoNames()
        self._used_node_names = _NoNames()
