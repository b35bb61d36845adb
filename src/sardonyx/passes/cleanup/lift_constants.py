"""Constant() => an initializer.

Only in graphs that may contain initializers: not in functions, and not before IR version 4. Refuses if the node
produces a graph output, which would lose its name. Helps because a constant is then stored once and shared, and because
the graph shows only what is computed. Runs after equal Constant nodes have been merged.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.ir.rules import BARE_INITIALIZERS
from sardonyx.ir.tensors import reshaped
from sardonyx.passes._evaluation import MAX_HELD_BYTES
from sardonyx.passes.base import Accuracy, Example, Facts, Match, ModelPass, Proposal


class LiftConstants(ModelPass):
    """Constant nodes."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="(float[N, 2] x) => (float[N, 2] y) { two = Constant <value_float = 2.0> ()  y = Mul(x, two) }",
        after="<float two = {2.0}> { y = Mul(x, two) }",
        near_miss="""
            (float[N, 2] x) => (float[N, 2] y, float two) { two = Constant <value = float {2.0}> ()  y = Mul(x, two) }
        """,
        refusal="output would lose its name",
    )

    def propose(self, graph: Facts) -> Iterator[Proposal]:
        """Propose every Constant that is used."""
        if graph.model.ir_version < BARE_INITIALIZERS:
            return
        for scope in graph.live_scopes():
            if scope.in_function:
                continue
            for node in scope.graph:
                if node.op_type != "Constant" or node.domain != "" or not node.outputs[0].uses():
                    continue
                tensor = graph.tensor(node.outputs[0])
                if tensor is not None:
                    yield Proposal(Match((node,)), lambda op, tensor=tensor: op.constant(_copy(tensor)))


def _copy(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a copy that can be named without renaming the original tensor."""
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(list(tensor.string_data()), shape=ir.Shape(tensor.shape.numpy()))
    if tensor.nbytes > MAX_HELD_BYTES:
        return reshaped(tensor, tensor.shape.numpy())
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype)
