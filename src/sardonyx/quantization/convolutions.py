"""Find Conv(x, W, b) with a constant W: its filters are a matrix of one column each."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.ir.storage import Array
from sardonyx.ir.tensors import ReshapedTensor
from sardonyx.passes.base import Facts, Refused
from sardonyx.quantization.recipe import Product
from sardonyx.quantization.weights import DerivedTensor, Matrix


class Convolution(Product, frozen=True, eq=False):
    """A product of an activation and filters."""

    shape: tuple[int, ...]  # of the filters: outputs × channels × kernel


def convolution(node: ir.Node, graph: Facts) -> Convolution | Refused | None:
    """Return the convolution at a node, why it cannot be quantized, or None if there is none."""
    activation, weight = operand(node, 0), operand(node, 1)
    tensor = graph.tensor(weight)
    if activation is None or weight is None or tensor is None or not tensor.dtype.is_floating_point():
        return None
    if isinstance(tensor, DerivedTensor):
        return None
    if node.op_type == "ConvTranspose":
        return Refused("transposed convolutions stay in float32", (node,))
    shape = tuple(int(size) for size in tensor.shape.numpy())
    filters = Matrix(ReshapedTensor(tensor, (shape[0], math.prod(shape[1:]))), is_transposed=True)
    return Convolution((node,), activation, weight, filters, operand(node, 2), shape)


def column_scales(matrix: Matrix, most: int) -> Array:
    """Return the scale of each column for signed integers of at most `most`; 1 for a column of zeros."""
    values = matrix.array()
    scales = (np.maximum(values.max(0), -values.min(0)) / np.float32(most)).astype(np.float32)
    scales[scales == 0] = 1
    return scales


def filter_integers(matrix: Matrix, scales: Array, shape: tuple[int, ...]) -> Array:
    """Return filters as signed 8-bit integers with one scale for each."""
    return np.rint(matrix.array() / scales).astype(np.int8).T.reshape(shape)
