"""Scaling and shifting the output channels of a convolution or matrix product, inside its weight and bias.

scale * f(x; W, b) + shift = f(x; scale * W, scale * b + shift), where scale and shift have one number per channel. All
of it is computed in double precision and rounded once; the new weight is a recipe, computed when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.precision import rounded, scaled

USED_ELSEWHERE = "the value before it is also used elsewhere"
NO_CONSTANT_WEIGHT = "the weight before it is not a constant"
NO_CONSTANT_BIAS = "the bias before it is not a constant"
BIAS_VARIES = "the bias before it varies within a channel"
WRONG_BIAS = "the runtime adds a wrong bias to grouped convolutions in half precision"

_D = ir.DataType
FLOATS = frozenset({_D.FLOAT, _D.FLOAT16, _D.BFLOAT16, _D.DOUBLE})


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A node with a constant weight, and a constant bias where it has one."""

    node: ir.Node
    weight: ir.TensorProtocol
    bias: ir.TensorProtocol | None

    @property
    def channels(self) -> int:
        """How many numbers a scale must have."""
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

    def scaled_weight(self, scale: np.ndarray) -> ir.TensorProtocol:
        """The weight times a scale, for later; raises `Impossible` where the product does not fit its type."""
        return scaled(self.weight, self._spread(scale), self._grouped_shape)

    def changed_bias(self, scale: np.ndarray, shift: np.ndarray) -> ir.TensorProtocol:
        """The bias times the scale, plus the shift; raises `Impossible` where that does not fit its type."""
        bias = np.zeros(1) if self.bias is None else self.bias.numpy().astype(np.float64).reshape(-1)
        if self.node.op_type == "Gemm":
            bias = bias * self.node.attributes.get_float("beta", 1.0)
        with np.errstate(all="ignore"):  # what is not finite is refused
            product = bias * scale
            return rounded(product + shift, self.weight.dtype, np.maximum(np.abs(product), np.abs(shift)))

    @property
    def loses_bias(self) -> bool:
        """Whether ONNX Runtime 1.31 adds the first group's bias to all groups.

        It does so in half precision on Arm, but not where each channel is a group.
        """
        groups, weight = self._groups, self.weight
        is_depthwise = (groups, 1) == tuple(weight.shape.numpy()[:2])
        return self.node.op_type == "Conv" and weight.dtype == _D.FLOAT16 and groups > 1 and not is_depthwise

    @property
    def _groups(self) -> int:
        return self.node.attributes.get_int("group", 1)

    @property
    def _is_transposed(self) -> bool:
        return self.node.attributes.get_int("transB", 0) != 0

    @property
    def _grouped_shape(self) -> tuple[int, ...]:
        """The weight's shape, with the groups of a transposed convolution apart."""
        shape = self.weight.shape.numpy()
        if self.node.op_type != "ConvTranspose":
            return tuple(shape)
        return (self._groups, shape[0] // self._groups, *shape[1:])

    def _spread(self, scale: np.ndarray) -> np.ndarray:
        """The scale in a shape that broadcasts to the grouped weight."""
        shape = self.weight.shape.numpy()
        match self.node.op_type:
            case "Conv":
                return scale.reshape(-1, *[1] * (len(shape) - 1))
            case "ConvTranspose":
                return scale.reshape(self._groups, 1, shape[1], *[1] * (len(shape) - 2))
            case "Gemm" if self._is_transposed:
                return scale.reshape(-1, 1)
            case _:
                return scale.reshape(1, -1)


def linear_before(value: ir.Value | None, user: ir.Node, graph: Facts, kinds: frozenset[str]) -> Linear | str | None:
    """The node that makes a value, where only `user` reads that value; else why it cannot be used, or None."""
    node = value.producer() if value is not None else None
    if value is None or node is None or node.domain != "" or node.op_type not in kinds or node.graph is not user.graph:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    if graph.sole_user(value) is not user:
        return USED_ELSEWHERE
    weight = graph.tensor(node.inputs[1])
    if weight is None or weight.dtype not in FLOATS:
        return NO_CONSTANT_WEIGHT
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = graph.tensor(given)
    if given is not None and bias is None:
        return NO_CONSTANT_BIAS
    found = Linear(node, weight, bias)
    if not _is_sound(found, value, graph):
        return None
    if found.loses_bias:
        return WRONG_BIAS
    if bias is not None and bias.size not in (1, found.channels):
        return BIAS_VARIES
    if bias is not None and bias.size > 1 and bias.shape.numpy()[-1] != bias.size:
        return BIAS_VARIES
    return found


def _is_sound(found: Linear, value: ir.Value, graph: Facts) -> bool:
    """Whether the weight has the rank its operator asks for, and the channels are axis 1 of the result."""
    rank = len(found.weight.shape)
    match found.node.op_type:
        case "Gemm":
            return rank == 2
        case "MatMul":
            return rank == 2 and graph.rank(value) == 2
        case _:
            return rank >= 3


def rebuilt(found: Linear, scale: np.ndarray, shift: np.ndarray, op: Builder) -> ir.Value:
    """The same operator, with its channels scaled and shifted; a product without a bias becomes one with."""
    source = found.node.inputs[0]
    weight = op.constant(found.scaled_weight(scale), "weight")
    bias = op.constant(found.changed_bias(scale, shift), "bias")
    if found.node.op_type == "MatMul":
        return op.Gemm(source, weight, bias)
    changed = {"beta": None} if found.node.op_type == "Gemm" else {}
    return op.like(found.node, (source, weight, bias), **changed)
