"""Scale and shift the output channels of a convolution or matrix product inside its weight and bias.

scale * f(x; W, b) + shift = f(x; scale * W, scale * b + shift), where scale and shift have one number per channel, or
one for all. The new weight is lazy: it is computed when it is read.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.expressions import Expression, known, literal
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MATRIX_PRODUCTS
from sardonyx.ir.precision import rounded, scaled
from sardonyx.ir.rules import Builder
from sardonyx.ir.scopes import operand
from sardonyx.ir.support import GROUP_BIAS
from sardonyx.passes._matching import operand_producer, optional, producer_of, require, required
from sardonyx.passes._numbers import FLOATS, may_flip

USED_ELSEWHERE = "the value before it is also used elsewhere"
NO_CONSTANT_WEIGHT = "the weight before it is not a constant"
NO_CONSTANT_BIAS = "the bias before it is not a constant"
BIAS_VARIES = "the bias before it varies within a channel"


class Linear(Struct, frozen=True, eq=False):
    """A node with a constant weight and, if it has one, a constant bias."""

    node: ir.Node
    weight: ir.TensorProtocol
    bias: ir.TensorProtocol | None

    @property
    def channels(self) -> int:
        """Return the number of output channels, which is the length of a scale."""
        size = self.weight.shape.numpy()[self._channel_axis]
        return size * self._groups if self.node.op_type == "ConvTranspose" else size

    def scaled_weight(self, scale: Expression) -> ir.TensorProtocol:
        """Return the lazy product of the weight and a scale; raises `Impossible` if it does not fit the type."""
        shape, is_vector = self._grouped_shape, scale.numpy().size != 1
        dims = [1] * len(shape)  # in which the scale broadcasts to the weight
        if is_vector and self.node.op_type == "ConvTranspose":
            dims[0], dims[2] = self._groups, shape[2]
        elif is_vector:
            dims[self._channel_axis] = -1
        return scaled(self.weight, scale.reshaped(dims), shape)

    def changed_bias(self, scale: Expression, shift: Expression) -> ir.TensorProtocol:
        """Return scale * bias + shift; raises `Impossible` if it does not fit the type."""
        bias = literal(np.zeros(1)) if self.bias is None else known(self.bias).reshaped([-1])
        if self.bias is not None and self.node.op_type == "Gemm" and "beta" in self.node.attributes:
            bias = bias * literal(np.float32(self.node.attributes.get_float("beta", 1.0)))
        if all(each.numpy().size == 1 for each in (bias, scale, shift)):
            scale = scale.expanded([self.channels])
        return rounded(bias * scale + shift, self.weight.dtype)

    @property
    def loses_bias(self) -> bool:
        """Return whether the bias of the first group is added to all groups."""
        groups, weight = self._groups, self.weight
        is_depthwise = (groups, 1) == tuple(weight.shape.numpy()[:2])
        return GROUP_BIAS.concerns(self.node.op_type, weight.dtype) and groups > 1 and not is_depthwise

    @property
    def _groups(self) -> int:
        return self.node.attributes.get_int("group", 1)

    @property
    def _channel_axis(self) -> int:
        """Return the axis of the weight along which the output channels are, or those of a group."""
        return 0 if self.node.op_type == "Conv" or self.node.attributes.get_int("transB", 0) else 1

    @property
    def _grouped_shape(self) -> tuple[int, ...]:
        """Return the shape of the weight, with the groups of a transposed convolution as an axis of their own."""
        shape = self.weight.shape.numpy()
        if self.node.op_type != "ConvTranspose":
            return tuple(shape)
        return (self._groups, shape[0] // self._groups, *shape[1:])


@optional
def linear_before(value: ir.Value | None, user: ir.Node, graph: Facts, kinds: frozenset[str]) -> Linear:
    """Return the producer of a value if it is of these kinds; it is a near miss if its weight or bias must stay."""
    node = required(producer_of(value, user, kinds))
    require(graph.sole_consumer(node.outputs[0]) is user, USED_ELSEWHERE)
    weight, bias = required(graph.tensor(node.inputs[1]), NO_CONSTANT_WEIGHT), graph.tensor(operand(node, 2))
    require(weight.dtype in FLOATS, NO_CONSTANT_WEIGHT)
    require(bias is not None or operand(node, 2) is None, NO_CONSTANT_BIAS)
    require(len(weight.shape) == 2 if node.op_type in MATRIX_PRODUCTS else len(weight.shape) > 2)
    require(node.op_type != "MatMul" or graph.rank(value) == 2)  # then the channels are axis 1 of the result
    linear = Linear(node, weight, bias)
    require(not linear.loses_bias, GROUP_BIAS.fact)
    sizes = (1,) if bias is None or bias.size == 1 else bias.shape.numpy()
    require(sizes == (1,) or sizes[-1] == math.prod(sizes) == linear.channels, BIAS_VARIES)
    return linear


def biased_product(add: ir.Node, graph: Facts) -> tuple[ir.Node, ir.Value] | None:
    """Return a MatMul and the constant that is added to it, or None if the Add is another sum."""
    for side in (0, 1):
        product, bias = operand_producer(add, side, ("MatMul",)), add.inputs[1 - side]
        if product is not None and bias is not None and graph.tensor(bias) is not None:
            return product, bias
    return None


def applied(
    node: ir.Node, index: int, constant: ir.TensorProtocol, graph: Facts, *nodes: ir.Node
) -> tuple[Expression, Expression]:
    """Return scale and shift that arithmetic with a constant applies to one operand.

    Refuses if they are not finite, or if the sign of a zero may show.
    """
    numbers, one, zero = known(constant).reshaped([-1]), literal(1.0), literal(0.0)
    affine = {
        "Mul": (numbers, zero),
        "Add": (one, numbers),
        "Sub": (one, -numbers) if index == 0 else (-one, numbers),
        "Div": (one / numbers, zero) if index == 0 else None,
    }
    scale, shift = required(affine[node.op_type])
    require(is_finite(scale, shift), "the constant gives no finite scale", *nodes)
    flips = may_flip(scale.numpy(), shift.numpy(), node.outputs[0], graph)
    require(not flips, "the sign of a zero may be visible", *nodes)
    return scale, shift


def is_finite(*numbers: Expression) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(np.isfinite(number.numpy()).all()) for number in numbers)


def rebuilt(linear: Linear, scale: Expression, shift: Expression, op: Builder) -> ir.Value:
    """Return the same operator with its channels scaled and shifted; a MatMul becomes a Gemm with a bias."""
    source = linear.node.inputs[0]
    weight = op.constant(linear.scaled_weight(scale), "weight")
    bias = op.constant(linear.changed_bias(scale, shift), "bias")
    if linear.node.op_type == "MatMul":
        return op.Gemm(source, weight, bias)
    changed = {"beta": None} if linear.node.op_type == "Gemm" else {}
    return op.like(linear.node, (source, weight, bias), **changed)
