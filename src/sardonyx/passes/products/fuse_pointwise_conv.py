"""Transpose(MatMul(x, W) + b) => Conv(Transpose(x), W, b), if channels move from the last axis to the second.

For images. The Transpose moves up through products with constant weights, biases and elementwise work, up to a product
that has no more input channels than the last one has output channels. Only for single precision, the only type with a
kernel everywhere. Refuses if an inner value has other consumers, if the result has fewer channels than the input, if a
weight is shared or empty, and if the image may be empty, which the runtime's Conv does not accept. Helps because a
convolution with a 1x1 kernel adds its bias itself, and the runtime has faster kernels for it: 0.84-0.99 of the time of
the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.ops import UNARY
from sardonyx.ir.scopes import operand, operator
from sardonyx.ir.shapes import expr
from sardonyx.ir.tensors import reshaped, transposed
from sardonyx.passes._channels import biased_product
from sardonyx.passes._matching import operand_producer, optional, permutation, require, required, with_operand
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Replacement

MAX_LAYERS = 8
_STEPS = UNARY | {"MatMul", "Add"}
_TO_SECOND = (0, 3, 1, 2)


class _Layer(Struct, frozen=True, eq=False):
    """A product with its bias, or one elementwise step."""

    node: ir.Node
    weight: ir.TensorProtocol | None = None
    add: ir.Node | None = None
    bias: ir.Value | None = None

    @property
    def channels(self) -> tuple[int, int]:
        """Return the numbers of input and output channels of a product."""
        assert self.weight is not None
        entering, leaving = self.weight.shape.numpy()
        return entering, leaving

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        return (self.node,) if self.add is None else (self.node, self.add)


class FusePointwiseConv(NodePass):
    """Products over the channels of an image that is then transposed to channels first."""

    accuracy = Accuracy.REASSOCIATES
    roots = ("Transpose",)
    opset = 7  # before, operands broadcast only with an attribute
    example = Example(
        before="""
            (float[N, 5, 4, 2] x) => (float[N, 3, 5, 4] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {7, 8, 9}>
            { a = MatMul(x, w)  c = Add(a, b)  d = Relu(c)  y = Transpose <perm = [0, 3, 1, 2]> (d) }
        """,
        after="""
            <float[3, 2, 1, 1] w = {1, 4, 2, 5, 3, 6}, float[3] b = {7, 8, 9}> {
                a = Transpose <perm = [0, 3, 1, 2]> (x)  c = Conv(a, w, b)  y = Relu(c)
            }
        """,
        near_miss="""
            (float[N, H, W, 3] x) => (float[N, 2, H, W] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {7, 8}>
            { a = MatMul(x, w)  c = Add(a, b)  y = Transpose <perm = [0, 3, 1, 2]> (c) }
        """,
        refusal="fewer channels",
    )

    def match(self, node: ir.Node, graph: Facts) -> Match:
        require(permutation(node, graph) == _TO_SECOND and graph.dtype(node.inputs[0]) == ir.DataType.FLOAT)
        layers = _layers(node, graph)
        products = [layer for layer in layers if layer.weight is not None]
        require(any(layer.add is not None for layer in products))
        leaving = products[0].channels[1]
        while layers and not (layers[-1].weight is not None and layers[-1].channels[0] <= leaving):
            layers.pop()
        nodes = (*(member for layer in reversed(layers) for member in layer.nodes), node)
        remains = any(layer.add is not None for layer in layers)
        require(remains, "the result has fewer channels than the input", *products[0].nodes, node)
        require(_has_pixels(layers[-1].node.inputs[0], graph), "the image may be empty", *nodes)
        return Match(nodes, build=partial(_convolutions, layers))


def _convolutions(layers: Sequence[_Layer], op: Builder) -> Replacement:
    """Transpose to channels first before the products."""
    value = op.Transpose(layers[-1].node.inputs[0], perm=_TO_SECOND)
    for layer in reversed(layers):
        if layer.weight is None:
            value = op.like(layer.node, with_operand(layer.node, 0, value))
        else:
            kernel = reshaped(transposed(layer.weight, (1, 0)), (*layer.channels[::-1], 1, 1))
            value = op.Conv(value, op.constant(kernel, "weight"), layer.bias)
    return value


def _has_pixels(image: ir.Value | None, graph: Facts) -> bool:
    """Return whether height and width of a channels-last image are certainly not 0.

    That is so if they are static, or if a Conv produced them: the runtime's Conv neither accepts nor returns an empty
    image.
    """
    shape = graph.shape(image)
    if shape is None or len(shape) != 4:
        return False
    if all(expr.at_least(size, 1) for size in shape[1:3]):
        return True
    for _ in range(MAX_LAYERS):
        node = None if image is None else image.producer()
        if node is None or operator(node) == "Conv":
            return node is not None and (graph.shape(node.outputs[0]) or ())[2:] == shape[1:3]
        image = operand(node, 0)
    return False


def _layers(root: ir.Node, graph: Facts) -> list[_Layer]:
    """Return the layers above a Transpose, nearest first, each read by the next one only."""
    layers: list[_Layer] = []
    user, value = root, root.inputs[0]
    while value is not None and len(layers) < MAX_LAYERS and graph.sole_consumer(value) is user:
        layer = _layer(user, graph)
        if layer is None:
            break
        layers.append(layer)
        user, value = layer.node, layer.node.inputs[0]
    return layers


@optional
def _layer(user: ir.Node, graph: Facts) -> _Layer:
    """Return the layer that produces the first input of a node."""
    step = required(operand_producer(user, 0, _STEPS))
    if step.op_type in UNARY:
        return _Layer(step)
    product, bias = (step, None) if step.op_type == "MatMul" else required(biased_product(step, graph))
    weight = required(operand(product, 1))
    tensor = required(graph.tensor(weight))
    require(tensor.dtype == ir.DataType.FLOAT and tensor.size > 0 and len(tensor.shape) == 2)
    require(graph.sole_consumer(weight) is product)
    if bias is None:
        return _Layer(product, tensor)
    require(graph.sole_consumer(product.outputs[0]) is step and graph.static_shape(bias) == tensor.shape.numpy()[1:])
    return _Layer(product, tensor, step, bias)
