"""BatchNormalization(Conv(x, W, b)) => Conv(x, W', b').

W' = W * gamma / sqrt(var + epsilon), b' = (b - mean) * gamma / sqrt(var + epsilon) + beta; for Conv, ConvTranspose,
Gemm, and MatMul of a matrix. Refuses in training mode, and if weights or statistics are not constant, the value in
between is used elsewhere, or a scale is not finite. Helps because a normalisation at inference is a multiplication and
an addition over every activation, which the convolution can do for free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.expressions import Expression, known, literal
from sardonyx.ir.ops import CONVOLUTIONS, MATRIX_PRODUCTS
from sardonyx.passes._channels import linear_before, rebuilt
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass, Refused


class FuseBatchNorm(NodePass):
    """A batch normalisation after a convolution or matrix product."""

    name = "fuse-batch-norm"
    accuracy = Accuracy.REASSOCIATES
    roots = ("BatchNormalization",)
    opset = 7  # before, attributes expressed what now follows from inputs and outputs
    example = Example(
        before="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <
                float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] b = {1.0, 0.0}, float[2] gamma = {2.0, 3.0},
                float[2] beta = {0.5, 1.0}, float[2] mean = {1.0, 2.0}, float[2] var = {4.0, 1.0}
            > {
                a = Conv(x, w, b)
                y = BatchNormalization <epsilon = 0.0> (a, gamma, beta, mean, var)
            }
        """,
        after="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y)
            <float[2, 1, 1, 1] w = {1.0, 6.0}, float[2] b = {0.5, -5.0}> { y = Conv(x, w, b) }
        """,
        near_miss="""
            agraph (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <
                float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] gamma = {2.0, 3.0},
                float[2] beta = {0.5, 1.0}, float[2] mean = {1.0, 2.0}, float[2] var = {4.0, 1.0}
            > {
                a = Conv(x, w)
                b = BatchNormalization(a, gamma, beta, mean, var)
                y = Add(a, b)
            }
        """,
        refusal="used elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        # Newer opsets have an attribute for training, older ones further outputs.
        if node.attributes.get_int("training_mode", 0) or any(output.name for output in node.outputs[1:]):
            return Refused("it is in training mode", (node,))
        if node.attributes.get_int("spatial", 1) == 0:
            return Refused("it normalises every position separately", (node,))
        linear = linear_before(node.inputs[0], node, graph, CONVOLUTIONS | MATRIX_PRODUCTS)
        if linear is None:
            return Refused("no convolution or matrix product with a constant weight comes before it", (node,))
        if isinstance(linear, str):
            return Refused(linear, (node,))
        parameters = [tensor for value in node.inputs[1:5] if (tensor := graph.tensor(value)) is not None]
        if len(parameters) < 4:
            return Refused("its parameters are not constants", (node,))
        if any(tensor.shape.numpy() != (linear.channels,) for tensor in parameters):
            return None
        scale, shift = _affine(parameters, node.attributes.get_float("epsilon", 1e-5))
        if not (np.isfinite(scale.numpy()).all() and np.isfinite(shift.numpy()).all()):
            return Refused("its statistics give no finite scale", (node,))
        outputs = (node.outputs[0],)
        return Match((linear.node, node), outputs=outputs, build=lambda op: rebuilt(linear, scale, shift, op))


def _affine(parameters: Sequence[ir.TensorProtocol], epsilon: float) -> tuple[Expression, Expression]:
    gamma, beta, mean, variance = map(known, parameters)
    scale = gamma / (variance + literal(np.float32(epsilon))).root()
    return scale, beta - mean * scale
