"""The base of all recipes: a pass that quantizes products of selected modules, and the simulation of each product."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.origins import origins, owner
from sardonyx.ir.scopes import label, operand
from sardonyx.passes.base import Accuracy, Builder, Facts, Match, NodePass, Refused, Replacement
from sardonyx.provenance import lineage, module_of
from sardonyx.quantization.weights import DerivedTensor, Matrix

SMALLEST = 1024  # elements below which scales and additional nodes cost more than the weight
NARROWEST = 8  # columns or rows; with fewer, the scales are as large as the weight


class Selection(Struct, frozen=True):
    """The modules that may be quantized: those of `only`, or all if it is None, without those of `keep`."""

    keep: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def includes(self, node: ir.Node) -> bool:
        """Return whether no part of a node is in a kept module, and all of it is in one of `only`."""
        ancestors = [frozenset(lineage(module_of(path))) for path in origins(node)]
        if any(path & self.keep for path in ancestors):
            return False
        return self.only is None or (bool(ancestors) and all(path & self.only for path in ancestors))


class Product(Struct, frozen=True, eq=False):
    """A product of an activation and a constant weight, with the bias that is added to it."""

    nodes: tuple[ir.Node, ...]
    activation: ir.Value
    weight: ir.Value
    matrix: Matrix
    bias: ir.Value | None


class Simulated(Struct, frozen=True, eq=False):
    """A quantized product and its float32 simulation on the same activation."""

    node: str
    module: str
    recipe: str
    matrix: Matrix
    result: ir.Value
    simulation: ir.Value


class Recipe(NodePass):
    """A rewrite to lower precision. The loss is intended; it is measured and not bounded by a tolerance."""

    accuracy = Accuracy.QUANTIZES

    def __init__(self, selection: Selection | None = None, *, simulate: bool = False) -> None:
        """Quantize the selected modules; with `simulate`, compute each product in float32 as well."""
        self._selection = selection or Selection()
        self._stored: dict[tuple[ir.Value, bool], tuple[ir.Value, ...]] = {}
        self._simulate = simulate
        self.simulated: list[Simulated] = []

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match a product of a selected module whose weight is a large constant."""
        if not self._selection.includes(node):
            return None
        found = self.find(node, graph)
        if not isinstance(found, Product):
            return found
        tensor, scope = found.matrix.tensor, graph.scope(node)
        if isinstance(tensor, DerivedTensor):
            return None
        if scope.holder is not None or scope.in_function:
            return Refused("it is inside a body or a function", found.nodes)
        if tensor.dtype is not ir.DataType.FLOAT:
            return Refused(f"its weight is {tensor.dtype.name.lower()} and not float", found.nodes)
        if tensor.size < SMALLEST or min(tensor.shape.numpy()) < NARROWEST:
            return Refused(f"its weight has fewer than {SMALLEST} elements or {NARROWEST} columns", found.nodes)
        views = frozenset(found.nodes[:-1])  # a transpose of the weight may belong to any of its readers
        return Match(found.nodes, {"product": found}, separate=views)

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the quantized product, and beside it the simulation if there is to be one."""
        product: Product = match.details["product"]
        if (product.weight, product.matrix.is_transposed) not in self._stored:
            product.matrix.check_finite()
        result = self.quantized(product, op)
        if self._simulate:
            simulation = self.simulation(product, op)
            node = label(match.root)
            self.simulated.append(Simulated(node, owner(match.root), self.name, product.matrix, result, simulation))
        return result

    @abstractmethod
    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return the product at a node, why it cannot be quantized, or None if there is none."""

    @abstractmethod
    def quantized(self, product: Product, op: Builder) -> ir.Value:
        """Build the product in lower precision."""

    @abstractmethod
    def simulation(self, product: Product, op: Builder) -> ir.Value:
        """Build the same arithmetic in float32, in another way."""

    def constants(
        self, product: Product, op: Builder, make: Callable[[Matrix], Sequence[ir.TensorProtocol]]
    ) -> tuple[ir.Value, ...]:
        """Return the constants of a weight; products that share a weight share them."""
        key = (product.weight, product.matrix.is_transposed)
        stored = self._stored.get(key)
        if stored is None or not all(value.is_initializer() for value in stored):
            stored = tuple(op.constant(tensor, "quantized") for tensor in make(product.matrix))
            self._stored[key] = stored
        return stored


def matrix_product(node: ir.Node, graph: Facts) -> Product | Refused | None:
    """Return MatMul(x, W), MatMul(x, Transpose(W)) or Gemm(x, W, b) with a constant W."""
    activation, weight, nodes = operand(node, 0), operand(node, 1), (node,)
    if activation is None or weight is None:
        return None
    is_transposed = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
    producer = weight.producer()
    if producer is not None and producer.op_type == "Transpose" and graph.rank(weight) == 2:
        perm = producer.attributes.get_ints("perm", (1, 0))
        inner = producer.inputs[0]
        if inner is not None and graph.tensor(inner) is not None:
            weight, nodes = inner, (producer, node)
            is_transposed ^= tuple(perm) == (1, 0)
    tensor = graph.tensor(weight)
    if tensor is None or not tensor.dtype.is_floating_point():
        return Refused("its weight is the first operand", nodes) if graph.tensor(activation) is not None else None
    if len(tensor.shape) != 2:
        return Refused("its weight does not have two axes", nodes)
    if node.op_type == "Gemm" and not _is_plain(node):
        return Refused("it scales or transposes its operands", nodes)
    return Product(nodes, activation, weight, Matrix(tensor, is_transposed), operand(node, 2))


def _is_plain(node: ir.Node) -> bool:
    scaled = node.attributes.get_float("alpha", 1.0) != 1.0
    scaled |= operand(node, 2) is not None and node.attributes.get_float("beta", 1.0) != 1.0
    return not scaled and node.attributes.get_int("transA", 0) == 0


def with_bias(product: Product, result: ir.Value, op: Builder) -> ir.Value:
    """Return the result with the bias of the product added, if it has one."""
    return result if product.bias is None else op.Add(result, product.bias)


def scalar(value: float) -> np.ndarray:
    """Return a float32 constant."""
    return np.array(value, np.float32)
