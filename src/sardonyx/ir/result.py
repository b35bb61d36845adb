"""What the results of verbs that make a model have in common."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from sardonyx.ir import io


class HasModel:
    """A result with the model that was made, in `model`."""

    __slots__ = ()  # so that a record can have it beside its own base

    model: ir.Model | None

    def to_proto(self) -> onnx.ModelProto:
        """The model as a ModelProto with all data inline, for who gave one: `sardonyx.optimize(proto).to_proto()`."""
        assert self.model is not None, "the verb that makes the result gives it"
        return io.to_proto(self.model)
