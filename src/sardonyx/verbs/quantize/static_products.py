"""Find Conv(x, W, b), MatMul(x, W) and Gemm(x, W, b) that can be computed with ranges from calibration.

A Pad with zeros that only one convolution reads becomes a part of it, since padding of integers costs more than the
product gains.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from msgspec.structs import replace

from sardonyx.ir.scopes import operand
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Facts, Refused
from sardonyx.verbs.quantize.calibration import Range
from sardonyx.verbs.quantize.integer_regions import MATRIX_PRODUCTS, last_value
from sardonyx.verbs.quantize.recipe import (
    SMALLEST,
    Convolution,
    Product,
    Reversed,
    convolution,
    is_scaled,
    matrix_product,
)
from sardonyx.verbs.quantize.weights import SIGNED_MOST, DerivedTensor, most_of_products

ROOTS = ("Conv", "ConvTranspose", *MATRIX_PRODUCTS)
SCALES_OPSET = 13  # the first with scales for each channel


class StaticProduct(Product, frozen=True, eq=False):
    """A product whose activation has a known range."""

    limits: Range  # of the activation
    shape: tuple[int, ...]  # of the weight as the product reads it
    bias_values: Array | None = None  # if the bias is a constant for each column
    pads: tuple[int, ...] = ()  # of a convolution that also pads for the node before it
    most: int = SIGNED_MOST  # the largest integer of the weight

    @property
    def node(self) -> ir.Node:
        """The node that multiplies."""
        return self.nodes[-1]

    @property
    def padding(self) -> ir.Node | None:
        """The node whose padding becomes a part of the convolution."""
        return self.nodes[0] if self.pads else None

    @property
    def source(self) -> ir.Value:
        """The activation in the graph as it is now, after earlier rewrites."""
        value = operand(self.padding or self.node, 0)
        assert value is not None
        return value

    @property
    def is_filter(self) -> bool:
        """Whether it is a convolution."""
        return len(self.shape) > 2


def static_product(node: ir.Node, graph: Facts, ranges: Mapping[str, Range]) -> StaticProduct | Refused | None:
    """Return the product at a node, why it cannot be quantized, or None if there is none."""
    found = matrix_product(node, graph) if node.op_type in MATRIX_PRODUCTS else _padded_convolution(node, graph)
    if not isinstance(found, Product):
        return found
    if isinstance(found.matrix.tensor, DerivedTensor):
        return None
    if isinstance(found, Reversed):
        return Refused("its weight is the first operand", found.nodes)
    if reason := _obstacle(found, graph, ranges):
        return Refused(reason, found.nodes)
    matrix, bias, is_filter = found.matrix, graph.tensor(found.bias), isinstance(found, Convolution)
    limits = ranges[found.activation.name or ""]
    if limits.is_symmetric:  # compilers for devices expect a bias in float32
        bias = None
    return StaticProduct(
        found.nodes,
        found.activation,
        found.weight,
        matrix,
        found.bias,
        limits,
        found.shape if isinstance(found, Convolution) else (matrix.rows, matrix.columns),
        bias.numpy().reshape(-1) if bias is not None and bias.size == matrix.columns else None,
        _merged_pads(found, graph) if is_filter else (),
        most_of_products(),
    )


def _padded_convolution(node: ir.Node, graph: Facts) -> Convolution | Refused | None:
    """Return a convolution, together with the node that pads its activation if that can be merged."""
    found = convolution(node, graph)
    if not isinstance(found, Convolution):
        return found
    if found.bias is not None and graph.tensor(found.bias) is None:
        return Refused("its bias is computed", (node,))
    padding = found.activation.producer()
    if padding is None or not _is_mergeable(padding, node, graph):
        return found
    inner = operand(padding, 0)
    assert inner is not None
    return replace(found, nodes=(padding, node), activation=inner)


def _obstacle(product: Product, graph: Facts, ranges: Mapping[str, Range]) -> str:
    """Return why a product cannot be quantized, or ""."""
    node, tensor = product.nodes[-1], product.matrix.tensor
    if tensor.dtype is not ir.DataType.FLOAT:
        return f"its weight is {tensor.dtype.name.lower()} and not float"
    if node.op_type in MATRIX_PRODUCTS and tensor.size < SMALLEST:
        return f"its weight has fewer than {SMALLEST} elements"
    if is_scaled(node):
        return "it scales its operands"
    if graph.scope(node).opset < SCALES_OPSET:
        return f"needs opset {SCALES_OPSET}"
    if _precedes_foldable_norm(node, graph):
        return "a batch normalization follows; fold it first with `sardonyx optimize`"
    if product.activation.name not in ranges:
        return "its activation is 0 or not finite on all samples"
    if node.op_type == "Conv" and last_value(node, graph).name not in ranges:
        return "its result is 0 or not finite on all samples"
    return ""


def _precedes_foldable_norm(node: ir.Node, graph: Facts) -> bool:
    """Return whether a batch normalization alone reads a product, and `optimize` can fold it."""
    norm = graph.sole_consumer(node.outputs[0])
    if norm is None or norm.op_type != "BatchNormalization":
        return False
    return all(graph.tensor(value) is not None for value in norm.inputs[1:])


def _is_mergeable(padding: ir.Node, node: ir.Node, graph: Facts) -> bool:
    """Return whether a node adds zeros around the axes of the kernel alone, and only for this convolution."""
    pads, value = graph.ints(operand(padding, 1)), operand(padding, 2)
    if padding.op_type != "Pad" or pads is None or graph.sole_consumer(padding.outputs[0]) is not node:
        return False
    if operand(padding, 3) is not None or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    is_zero = padding.attributes.get_string("mode", "constant") == "constant"
    is_zero &= value is None or graph.scalar(value) == 0
    rank = len(pads) // 2
    return is_zero and min(pads) >= 0 and not any((*pads[:2], *pads[rank : rank + 2]))


def _merged_pads(product: Product, graph: Facts) -> tuple[int, ...]:
    if len(product.nodes) == 1:
        return ()
    padding, node = product.nodes
    pads = graph.ints(operand(padding, 1))
    assert pads is not None
    rank = len(pads) // 2
    outer = (*pads[2:rank], *pads[rank + 2 :])
    return tuple(a + b for a, b in zip(outer, node.attributes.get_ints("pads", (0,) * len(outer)), strict=True))
