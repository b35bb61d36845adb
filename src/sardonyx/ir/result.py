"""The common part of the results of verbs that create a model."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from sardonyx.ir import io


class HasModel:
    """A result that holds the created model in `model`."""

    __slots__ = ()  # so that a record can inherit from it in addition to its own base

    model: ir.Model | None

    def to_proto(self) -> onnx.ModelProto:
        """Return the model as a ModelProto with all data inline, as in `sardonyx.optimize(proto).to_proto()`."""
        assert self.model is not None, "set by the verb that creates the result"
        return io.to_proto(self.model)
