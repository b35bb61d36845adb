"""BatchNormalization(Conv(x, W, b)) => Conv(x, W', b').

W' = W * gamma / sqrt(var + epsilon), b' = (b - mean) * gamma / sqrt(var + epsilon) + beta; for Conv, ConvTranspose,
Gemm, and MatMul of a matrix. Refuses in training mode, and if weights or statistics are not constant, the value in
between is used elsewhere, or a scale is not finite. Helps because a normalisation at inference is a multiplication and
an addition over every activation, which the convolution can do for free.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.ir.expressions import known, literal
from sardonyx.ir.ops import CONVOLUTIONS, MATRIX_PRODUCTS
from sardonyx.passes._channels import is_finite, linear_before, rebuilt
from sardonyx.passes._matching import require, required
from sardonyx.passes.base import Accuracy, Example, Facts, Match, NodePass


class FuseBatchNorm(NodePass):
    """A batch normalisation after a convolution or matrix product."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("BatchNormalization",)
    opset = 7  # before, attributes expressed what now follows from inputs and outputs
    example = Example(
        before="""
            (float[N, 1, 4, 4] x) => (float[N, 2, 4, 4] y) <
                float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] b = {1.0, 0.0}, float[2] gamma = {2.0, 3.0},
                float[2] beta = {0.5, 1.0}, float[2] mean = {1.0, 2.0}, float[2] var = {4.0, 1.0}
            > { a = Conv(x, w, b)  y = BatchNormalization <epsilon = 0.0> (a, gamma, beta, mean, var) }
        """,
        after="<float[2, 1, 1, 1] w = {1.0, 6.0}, float[2] b = {0.5, -5.0}> { y = Conv(x, w, b) }",
        near_miss="""
            <
                float[2, 1, 1, 1] w = {1.0, 2.0}, float[2] gamma = {2.0, 3.0}, float[2] beta = {0.5, 1.0},
                float[2] mean = {1.0, 2.0}, float[2] var = {4.0, 1.0}
            > { a = Conv(x, w)  b = BatchNormalization(a, gamma, beta, mean, var)  y = Add(a, b) }
        """,
        refusal="used elsewhere",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        # Newer opsets have an attribute for training, older ones further outputs.
        is_training = node.attributes.get_int("training_mode", 0) or any(output.name for output in node.outputs[1:])
        require(not is_training, "it is in training mode")
        require(node.attributes.get_int("spatial", 1) != 0, "it normalises every position separately")
        linear = linear_before(node.inputs[0], node, graph, CONVOLUTIONS | MATRIX_PRODUCTS)
        linear = required(linear, "no convolution or matrix product with a constant weight comes before it")
        parameters = [required(graph.tensor(value), "its parameters are not constants") for value in node.inputs[1:5]]
        require(all(tensor.shape.numpy() == (linear.channels,) for tensor in parameters))
        gamma, beta, mean, variance = map(known, parameters)
        epsilon = literal(np.float32(node.attributes.get_float("epsilon", 1e-5)))
        scale = gamma / (variance + epsilon).root()
        shift = beta - mean * scale
        require(is_finite(scale, shift), "its statistics give no finite scale")
        outputs = (node.outputs[0],)
        return Match((linear.node, node), outputs=outputs, build=lambda op: rebuilt(linear, scale, shift, op))
