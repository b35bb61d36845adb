"""Scale and shift the output channels of a convolution or matrix product inside its weight and bias.

scale * f(x; W, b) + shift = f(x; scale * W, scale * b + shift), where scale and shift have one number per channel, or
one for all. The new weight is lazy: it is computed when it is read.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.expressions import Expression, known, literal
from sardonyx.ir.facts import Facts
from sardonyx.ir.precision import rounded, scaled
from sardonyx.ir.rules import Builder
from sardonyx.ir.scopes import operand
from sardonyx.passes._matching import producer_of
from sardonyx.passes._numbers import FLOATS

USED_ELSEWHERE = "the value before it is also used elsewhere"
NO_CONSTANT_WEIGHT = "the weight before it is not a constant"
NO_CONSTANT_BIAS = "the bias before it is not a constant"
BIAS_VARIES = "the bias before it varies within a channel"
WRONG_BIAS = "the runtime adds a wrong bias to grouped convolutions in half precision"


class Linear(Struct, frozen=True, eq=False):
    """A node with a constant weight and, if it has one, a constant bias."""

    node: ir.Node
    weight: ir.TensorProtocol
    bias: ir.TensorProtocol | None

    @property
    def channels(self) -> int:
        """Return the number of output channels, which is the length of a scale."""
        shape = self.weight.shape.numpy()
        match self.node.op_type:
            case "Conv":
                return shape[0]
            case "ConvTranspose":
                return shape[1] * self._groups
            case "Gemm" if self._is_transposed:
                return shape[0]
            case _:
                return shape[1]

    def scaled_weight(self, scale: Expression) -> ir.TensorProtocol:
        """Return the lazy product of the weight and a scale; raises `Impossible` if it does not fit the type."""
        return scaled(self.weight, scale.reshaped(self._broadcastable(scale)), self._grouped_shape)

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
        """Return whether ONNX Runtime 1.31 adds the bias of the first group to all groups.

        It does so in half precision on Arm, except if each channel is its own group.
        """
        groups, weight = self._groups, self.weight
        is_depthwise = (groups, 1) == tuple(weight.shape.numpy()[:2])
        return self.node.op_type == "Conv" and weight.dtype == ir.DataType.FLOAT16 and groups > 1 and not is_depthwise

    @property
    def _groups(self) -> int:
        return self.node.attributes.get_int("group", 1)

    @property
    def _is_transposed(self) -> bool:
        return self.node.attributes.get_int("transB", 0) != 0

    @property
    def _grouped_shape(self) -> tuple[int, ...]:
        """Return the shape of the weight, with the groups of a transposed convolution as an axis of their own."""
        shape = self.weight.shape.numpy()
        if self.node.op_type != "ConvTranspose":
            return tuple(shape)
        return (self._groups, shape[0] // self._groups, *shape[1:])

    def _broadcastable(self, scale: Expression) -> list[int]:
        """Return the shape in which a scale broadcasts to the grouped weight."""
        shape = self.weight.shape.numpy()
        if scale.numpy().size == 1:
            return [1] * len(self._grouped_shape)
        match self.node.op_type:
            case "Conv":
                return [-1, *[1] * (len(shape) - 1)]
            case "ConvTranspose":
                return [self._groups, 1, shape[1], *[1] * (len(shape) - 2)]
            case "Gemm" if self._is_transposed:
                return [-1, 1]
            case _:
                return [1, -1]


def linear_before(value: ir.Value | None, user: ir.Node, graph: Facts, kinds: frozenset[str]) -> Linear | str | None:
    """Return the producer of a value if `user` is its only consumer, or the reason why it cannot be used.

    Returns None if the value is not produced by one of the operators in `kinds`.
    """
    node = producer_of(value, user, kinds)
    if value is None or node is None:
        return None
    if graph.sole_consumer(value) is not user:
        return USED_ELSEWHERE
    weight = graph.tensor(node.inputs[1])
    if weight is None or weight.dtype not in FLOATS:
        return NO_CONSTANT_WEIGHT
    bias_value = operand(node, 2)
    bias = graph.tensor(bias_value)
    if bias_value is not None and bias is None:
        return NO_CONSTANT_BIAS
    linear = Linear(node, weight, bias)
    if not _is_sound(linear, value, graph):
        return None
    if linear.loses_bias:
        return WRONG_BIAS
    if bias is not None and bias.size not in (1, linear.channels):
        return BIAS_VARIES
    if bias is not None and bias.size > 1 and bias.shape.numpy()[-1] != bias.size:
        return BIAS_VARIES
    return linear


def _is_sound(linear: Linear, value: ir.Value, graph: Facts) -> bool:
    """Return whether the weight has the rank its operator requires and the channels are axis 1 of the result."""
    rank = len(linear.weight.shape)
    match linear.node.op_type:
        case "Gemm":
            return rank == 2
        case "MatMul":
            return rank == 2 and graph.rank(value) == 2
        case _:
            return rank >= 3


def rebuilt(linear: Linear, scale: Expression, shift: Expression, op: Builder) -> ir.Value:
    """Return the same operator with its channels scaled and shifted; a MatMul becomes a Gemm with a bias."""
    source = linear.node.inputs[0]
    weight = op.constant(linear.scaled_weight(scale), "weight")
    bias = op.constant(linear.changed_bias(scale, shift), "bias")
    if linear.node.op_type == "MatMul":
        return op.Gemm(source, weight, bias)
    changed = {"beta": None} if linear.node.op_type == "Gemm" else {}
    return op.like(linear.node, (source, weight, bias), **changed)
