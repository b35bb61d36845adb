"""Products in 8-bit integers whose activations are quantized at run time, after smoothing where samples show a need.

Smoothing: x W = (x / c) (c W), with factors c for which the rows of c W take over a part of the large elements of x.

An element of an activation that is much larger than the others takes precision from all of them, because they share a
scale. The rows of a weight can be larger, because each column has a scale. c_k is a power of the root mean square of
x_k divided by the largest magnitude of row k (this is the migration of SmoothQuant, Xiao et al., 2022). The power is
the one with the least expected error; it is 0 where smoothing does not help.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.ir.storage import Array
from sardonyx.ir.support import GROUPED_INTEGERS
from sardonyx.ir.tensors import ComputedTensor
from sardonyx.passes.base import Builder, Facts, Refused
from sardonyx.verbs.quantize import simulation, weights
from sardonyx.verbs.quantize.recipe import Product, Recipe, largest_of_rows, with_bias
from sardonyx.verbs.quantize.weight_only import QuantizeEmbeddings, QuantizeFilters
from sardonyx.verbs.quantize.weights import Matrix

_OUTLIER_RATIO = 10  # the mean square of an element that is smoothed, relative to that of all
_CLEAR_GAIN = 0.6  # of the expected squared error, which is an estimate
_SMOOTHING_POWERS = (0.0, 0.25, 0.5, 0.75)
_USUAL_PEAK, _ROW_PEAK = 10.0, 4.0  # squares of the largest element of a row, by the mean square of all and of one
_ACTIVATION_STEPS, _WEIGHT_STEPS = 255 / 2, 127  # of the largest magnitude


def smoothing(matrix: Matrix) -> Array | None:
    """Return the factors of the elements of an activation, or None if they do not help or there are no samples."""
    if matrix.moments is None:
        return None
    squares = matrix.moments.array().diagonal().astype(np.float64)
    if squares.max() < _OUTLIER_RATIO * squares.mean():
        return None
    largest, sums = np.zeros(matrix.rows, np.float32), np.zeros(matrix.rows)
    for rows, _, values in matrix.pieces():
        np.maximum(largest[rows], np.abs(values).max(1), out=largest[rows])
        sums[rows] += np.square(values, dtype=np.float64).sum(1)
    usable = (largest > 0) & (squares > 0)
    ratios = np.sqrt(np.where(usable, squares, 1)) / np.where(usable, largest, 1)
    ratios = np.maximum(ratios / np.median(ratios), 1)  # elements that are rarely large are not made larger
    tried = [(ratios**power).astype(np.float32) for power in _SMOOTHING_POWERS]
    columns = np.zeros((len(tried), matrix.columns), np.float32)
    for rows, part, values in matrix.pieces():
        for factors, found in zip(tried, columns, strict=True):
            np.maximum(found[part], np.abs(values * factors[rows, None]).max(0), out=found[part])
    errors = [
        _expected_error(squares / np.square(factors), sums * np.square(factors), found)
        for factors, found in zip(tried, columns, strict=True)
    ]
    best = int(np.argmin(errors))
    return tried[best] if errors[best] < _CLEAR_GAIN * errors[0] else None


def _expected_error(squares: Array, sums: Array, largest: Array) -> float:
    """Return the expected squared error of the result: that of the activation's rounding, and that of the weight's."""
    peak = max(_USUAL_PEAK * squares.mean(), _ROW_PEAK * squares.max())
    activation = peak / _ACTIVATION_STEPS**2 * sums.sum()
    weight = squares.sum() * (np.square(largest, dtype=np.float64) / _WEIGHT_STEPS**2).sum()
    return float(activation + weight)


def smoothed(matrix: Matrix, factors: Array | None) -> Matrix:
    """Return the weight with its rows multiplied by the factors."""
    if factors is None:
        return matrix
    tensor, by = matrix.tensor, factors[None] if matrix.is_transposed else factors[:, None]
    scaled = ComputedTensor(tensor.dtype, tensor.shape.numpy(), lambda: tensor.numpy() * by)
    return Matrix(scaled, matrix.is_transposed)


class QuantizeDynamically(Recipe):
    """MatMul(x, W) => MatMulInteger(q(x / m), q(W)) * (scale(x / m) * scale(W)) * m, for a constant W; Gemm likewise.

    W becomes signed 8-bit integers with one scale for each column. Each row of x is divided by its largest magnitude m,
    and quantized at run time to unsigned 8-bit integers with the range of the whole x / m, so that a row with large
    values does not take precision from the others. `auto` leaves out m where this loses no more than the budget: ONNX
    Runtime has one kernel for the rest. It gives W one scale where that is within the budget as well, and faster. With
    samples of x, its large elements are smoothed. On a CPU that adds 8-bit products with saturation, W has 7 bits.
    Refuses a small weight, one that is not float32, and a product inside a loop. Helps because 8-bit products are
    faster on most CPUs, and the weight takes a quarter of the bytes.
    """

    name = "quantize-dynamically"
    opset = 7
    needs = 11  # the first with DynamicQuantizeLinear
    is_fusible = True

    def __init__(self, *args: Any, by_rows: bool = True, by_columns: bool = True, **options: Any) -> None:
        """Use fewer integers on a CPU that would saturate."""
        super().__init__(*args, **options)
        self.by_rows, self.by_columns = by_rows, by_columns
        self._factors: dict[Matrix, Array | None] = {}
        self.most = weights.most_of_products()

    def tensors(self, product: Product) -> tuple[ir.TensorProtocol, ...]:
        """Return the integers of the smoothed weight, and the scales of its columns, or the one of all."""
        matrix = smoothed(product.matrix, self._smoothing(product.matrix))
        most, is_one = self.most, not self.by_columns

        def scales() -> Array:
            found = weights.column_scales(matrix, most, is_one=is_one)
            return found[0] if is_one else found

        return (
            weights.lazy(ir.DataType.INT8, matrix.shape, lambda: weights.signed_columns(matrix, most, is_one=is_one)),
            weights.lazy(ir.DataType.FLOAT, () if is_one else matrix.shape[1:], scales),
        )

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the product in integers, scaled to float32."""
        weight, scale = stored
        activation = product.activation
        if (factors := self._smoothing(product.matrix)) is not None:
            activation = op.Mul(activation, op.constant(1 / factors))
        largest = largest_of_rows(activation, op) if self.by_rows else None
        rows = activation if largest is None else op.Div(activation, largest)
        levels, step, zero = op.node("DynamicQuantizeLinear", (rows,), outputs=3)
        total = op.Cast(op.MatMulInteger(levels, weight, zero), to=ir.DataType.FLOAT)
        # ONNX Runtime fuses the first Mul; it would compute wrong results with scales by rows in it.
        scaled = op.Mul(total, op.Mul(step, scale))
        return with_bias(product, scaled if largest is None else op.Mul(scaled, largest), op)

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the same in float32; what factors change in the activation and the weight is undone after rounding."""
        matrix, factors, activation = product.matrix, self._smoothing(product.matrix), product.activation
        by = np.ones(matrix.rows, np.float32) if factors is None else factors
        rounded = simulation.activation_by_rows if self.by_rows else simulation.dynamic_activation
        if factors is None:
            activation = rounded(activation, op)
        else:
            activation = op.Mul(rounded(op.Mul(activation, op.constant(1 / factors)), op), op.constant(factors))
        scales = stored[1]

        def weight() -> Array:
            steps, values = simulation.read(scales).ravel(), matrix.array() * by[:, None]
            parts = values if self.by_columns else values.reshape(-1, 1)
            return simulation.nearest_signed(parts, 1, steps, self.most).reshape(matrix.shape) / by[:, None]

        product_of_rounded = op.MatMul(activation, op.constant(weights.simulated(matrix.shape, weight)))
        return (with_bias(product, product_of_rounded, op),)

    def _smoothing(self, matrix: Matrix) -> Array | None:
        """Return the factors of an activation; they are computed once."""
        if matrix not in self._factors:
            self._factors[matrix] = smoothing(matrix)
        return self._factors[matrix]


class QuantizeConvolutions(QuantizeFilters):
    """Conv(x, W, b) => ConvInteger(q(x), q(W)) * (scale(x) * scale(W)) + b, for constant filters W.

    W becomes signed 8-bit integers with one scale for each output (of 7 bits on a CPU that adds 8-bit products with
    saturation); x is quantized at run time with the range of the whole tensor. Refuses filters in groups, which ONNX
    Runtime computes up to nine times slower in integers, few filters, and filters that are not float32. Helps because
    8-bit products are faster on most CPUs, and the filters take a quarter of the bytes.
    """

    name = "quantize-convolutions"
    needs = 11
    channels = 1

    @property
    def most(self) -> int:
        """The largest integer of a filter."""
        return weights.most_of_products()

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a convolution with constant filters that are not in groups."""
        if node.op_type == "Conv" and node.attributes.get_int("group", 1) != 1:
            return Refused(GROUPED_INTEGERS.fact, (node,))
        return super().find(node, graph)

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the convolution in integers, scaled to float32."""
        filters, scale = stored
        levels, step, zero = op.node("DynamicQuantizeLinear", (product.activation,), outputs=3)
        attributes = dict(product.nodes[-1].attributes)
        total = op.Cast(op.node("ConvInteger", (levels, filters, zero), attributes)[0], to=ir.DataType.FLOAT)
        result = op.Mul(total, op.Mul(step, scale))
        if product.bias is None:
            return result
        return op.Add(result, op.Reshape(product.bias, op.constant(np.array(self.by_channel(product)))))

    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> tuple[ir.Value, ...]:
        """Build the same in float32."""
        return (self.rounded(product, simulation.dynamic_activation(product.activation, op), stored, op),)


class QuantizeTiedHead(QuantizeDynamically):
    """MatMul(x, Transpose(W)) => the product of `quantize-dynamically` with Transpose(q(W)), for an embedding table W.

    The columns of the product are the rows of the table, so that the integers and scales of `quantize-embeddings` serve
    both. Refuses a table that was not quantized, and a CPU that adds 8-bit products with saturation. Helps because the
    largest tensor of many language models is stored once.
    """

    name = "quantize-tied-head"

    def __init__(self, tables: QuantizeEmbeddings, *args: Any, **options: Any) -> None:
        """Use the integers that `tables` has stored."""
        super().__init__(*args, **options)
        self._tables = tables
        self.most = weights.SIGNED_MOST

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return a product with the transpose of a quantized table."""
        found = super().find(node, graph)
        is_tied = isinstance(found, Product) and found.matrix.is_transposed and self._tables.stored(found.weight)
        return found if is_tied and not weights.saturates() else None

    def constants(self, product: Product, op: Builder) -> Sequence[ir.Value]:
        """Return the table and the scales of its rows."""
        del op
        return self._tables.stored(product.weight)

    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the product with views of both."""
        return super().quantized(product, [op.Transpose(each, perm=[1, 0]) for each in stored], op)
