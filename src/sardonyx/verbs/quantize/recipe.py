"""The base of all recipes: a pass that quantizes products of selected modules, and the simulation of each product.

Products are MatMul and Gemm with a constant matrix, and Conv, whose constant filters are a matrix of one column each.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir
from msgspec import Struct, structs

from sardonyx.ir.origins import origins, owner
from sardonyx.ir.scopes import label, operand, operator
from sardonyx.ir.tensors import ReshapedTensor
from sardonyx.passes.base import Accuracy, Builder, Facts, Match, NodePass, Pass, Refused, Replacement
from sardonyx.records.provenance import lineage, module_of
from sardonyx.verbs.quantize.scales import Moments
from sardonyx.verbs.quantize.weights import DerivedTensor, Matrix

MIN_ELEMENTS = 1024  # elements below which scales and additional nodes cost more than the weight
_TINY = 2.0**-100
_AXES_AS_INPUT = 18  # the opset since which the axes of ReduceMax are an input
_NOT_SPLIT = ("FusedGemm", "Attention")  # operators of ONNX Runtime with more in them than a product
PRODUCTS = ("MatMul", "Gemm", *(f"com.microsoft::{name}" for name in ("FusedMatMul", *_NOT_SPLIT)))
_READERS = frozenset({*PRODUCTS, "Conv", "Gather"})  # that can read a weight in fewer bits
IN_A_LOOP = "it is inside a loop or a function"
STORED_TWICE = "other nodes read its weight in float32: it would be stored twice"
_FACTORS = ("alpha", "beta")
_TRANSPOSES = ("transA", "transBatchA", "transBatchB")
_NAME = "sardonyx_name_in_source"
MIN_COLUMNS = 8  # columns or rows; with fewer, the scales are as large as the weight


class Selection(Struct, frozen=True):
    """The modules that may be quantized: those of `only`, or all if it is None, without those of `keep`.

    `owners` restricts them to nodes whose owner is exactly one of these modules, without what is inside it. A node that
    belongs to no module, as all nodes of a file without tags, is named by its label instead. `failed` are the labels of
    nodes that stay in float32 because they failed a check.
    """

    keep: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    owners: frozenset[str] | None = None
    failed: frozenset[str] = frozenset()

    def includes(self, node: ir.Node) -> bool:
        """Return whether no part of a node is in a kept module, and all of it is in one of `only`."""
        if label(node) in self.failed:
            return False
        module = module_of(owner(node))
        if self.owners is not None and self.owners.isdisjoint((module,) if module else ("", label(node))):
            return False
        ancestors = [frozenset(lineage(module_of(path))) for path in origins(node)]
        if any(path & self.keep for path in ancestors):
            return False
        return self.only is None or (bool(ancestors) and all(path & self.only for path in ancestors))

    def of_owners(self, owners: Iterable[str]) -> Selection:
        """Return the nodes of this selection that these modules own."""
        return structs.replace(self, owners=frozenset(owners))

    def without(self, nodes: Iterable[str]) -> Selection:
        """Return this selection without some nodes, given by label."""
        return structs.replace(self, failed=self.failed.union(nodes))

    @classmethod
    def any_of(cls, selections: Sequence[Selection]) -> Selection:
        """Return what some of these select, which differ in their owners alone."""
        owners = [each.owners for each in selections]
        some = frozenset[str]().union(*(each for each in owners if each is not None))
        return structs.replace(selections[0], owners=None if None in owners else some)


class Product(Struct, frozen=True, eq=False):
    """A product of an activation and a constant weight, with the bias that is added to it."""

    nodes: tuple[ir.Node, ...]
    activation: ir.Value
    weight: ir.Value
    matrix: Matrix
    bias: ir.Value | None = None
    filters: tuple[int, ...] = ()  # of a convolution: outputs × channels × kernel
    reversed_rank: int = 0  # of x in a product W x: its transpose is the product of the transposes of x and W


class Simulated(Struct, frozen=True, eq=False):
    """A quantized product and its float32 simulation on the same activation."""

    node: str
    module: str
    recipe: str
    rows: int  # of the weight: the length of the sums, or the entries of a table
    columns: int
    result: ir.Value
    simulation: ir.Value
    rounding: float = 0.0  # relative error of storing the result in fewer bits, which the simulation does not have
    scale: ir.Value | None = None  # errors are relative to its largest number, or to that of the simulation if None
    is_fusible: bool = False  # the runtime may fuse it to operators of its own
    rounded: tuple[ir.Value, ...] = ()  # simulations with 8-bit activations, one of which the runtime may choose
    is_compensated: bool | None = None  # whether the rounding errors of the weight compensate each other, if they can
    step: float = 0.0  # between the numbers that a result and its bias can hold in integers; the simulation holds all
    weight: str | None = None  # the name of the constant, which several products may share

    @property
    def elements(self) -> int:
        """The size of the weight."""
        return self.rows * self.columns


class Quantizer(Pass):
    """A rewrite to lower precision. The loss is intended; it is measured and not bounded by a tolerance."""

    accuracy = Accuracy.QUANTIZES

    def __init__(
        self,
        selection: Selection | None = None,
        *,
        simulate: bool = False,
        moments: Mapping[str, Moments] | None = None,
    ) -> None:
        """Quantize the selected modules; with `simulate`, compute each product in float32 as well.

        `moments` are those of activations by the name of the value.
        """
        self._selection = selection or Selection()
        self._simulate = simulate
        self._moments = moments or {}
        self.simulated: list[Simulated] = []
        self._shared: dict[Hashable, tuple[ir.Value, ...]] = {}
        self._matrices: dict[tuple[ir.Value, bool], Matrix] = {}

    def shared(self, key: Hashable, make: Callable[[], Iterable[ir.Value]]) -> tuple[ir.Value, ...]:
        """Return the constants of a key; they are made again if a rewrite that was undone took them away."""
        known = self._shared.get(key)
        if known is None or not all(value.is_initializer() for value in known):
            known = self._shared[key] = tuple(make())
        return known

    def compare(
        self, node: ir.Node, result: ir.Value, simulation: ir.Value, rows: int = 1, columns: int = 0, **details: Any
    ) -> Simulated:
        """Add the simulation of a node, with what the check of it needs to know."""
        record = Simulated(label(node), owner(node), self.name, rows, columns, result, simulation, **details)
        self.simulated.append(record)
        return record


class Recipe(Quantizer, NodePass):
    """A rewrite to lower precision that looks at one product at a time."""

    roots = PRODUCTS
    is_fusible = False
    compensates = False  # whether the rounding errors of a weight compensate each other if there are moments

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match a product of a selected module whose weight is a large constant."""
        if not self._selection.includes(node):
            return None
        found = self.find(node, graph)
        if not isinstance(found, Product):
            return found
        tensor, reason = found.matrix.tensor, ""
        if isinstance(tensor, DerivedTensor):
            return None
        if not is_in_branches(node, graph):
            reason = IN_A_LOOP
        elif tensor.dtype is not ir.DataType.FLOAT:
            reason = f"its weight is {tensor.dtype.name.lower()} and not float"
        elif not is_large(tensor):
            reason = f"its weight has fewer than {MIN_ELEMENTS} elements or {MIN_COLUMNS} columns"
        elif reads_in_float32(found.weight, self._selection):
            reason = STORED_TWICE
        views = frozenset(found.nodes[:-1])  # a transpose of the weight may belong to any of its readers
        return Refused(reason, found.nodes) if reason else Match(found.nodes, {"product": found}, separate=views)

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the quantized product, and beside it the simulation if there is to be one."""
        product: Product = match.details["product"]
        rank = product.reversed_rank
        activation = _swapped(product.activation, rank, op) if rank else product.activation
        matrix = structs.replace(product.matrix, moments=self._moments.get(_name_in_source(activation)))
        # The first product of a weight decides which moments it has.
        matrix = self._matrices.setdefault((product.weight, matrix.is_transposed), matrix)
        product = structs.replace(product, activation=activation, matrix=matrix)
        if not self.stored(product.weight, is_transposed=matrix.is_transposed):
            matrix.check_finite()
        stored = self.constants(product, op)
        result = self.quantized(product, stored, op)
        result.meta[_NAME] = _name_in_source(match.root.outputs[0])
        if self._simulate:
            exact, *rounded = self.simulations(product, stored, op)
            self.compare(
                match.root,
                result,
                exact,
                *matrix.shape,
                weight=product.weight.name,
                is_fusible=self.is_fusible,
                rounded=tuple(rounded),
                is_compensated=None if not self.compensates else matrix.moments is not None,
            )
        return _swapped(result, rank, op) if rank else result

    def find(self, node: ir.Node, graph: Facts) -> Product | Refused | None:
        """Return the product at a node, why it cannot be quantized, or None if there is none."""
        return matrix_product(node, graph)

    @abstractmethod
    def tensors(self, product: Product) -> Sequence[ir.TensorProtocol]:
        """Return the integers of a weight, their scales, and zero points if there are some."""

    @abstractmethod
    def quantized(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> ir.Value:
        """Build the product in lower precision from the stored constants of its weight."""

    @abstractmethod
    def simulations(self, product: Product, stored: Sequence[ir.Value], op: Builder) -> Sequence[ir.Value]:
        """Build the same arithmetic in float32, in another way; then other kinds that the runtime may use instead."""

    def stored(self, weight: ir.Value, *, is_transposed: bool = False) -> tuple[ir.Value, ...]:
        """Return the constants of a weight, or none if it is not quantized; of one that products read transposed."""
        return self._shared.get((weight, is_transposed), ())

    def constants(self, product: Product, op: Builder) -> Sequence[ir.Value]:
        """Return the constants of a weight; products that share a weight share them."""
        key = (product.weight, product.matrix.is_transposed, *in_body(op))
        return self.shared(key, lambda: [op.constant(tensor, "quantized") for tensor in self.tensors(product)])


def in_place_of(node: ir.Node, results: Sequence[ir.Value], *, keep_first: bool = False) -> list[ir.Value | None]:
    """Return the results in place of those of a node, and take the names of those that nothing reads, as there."""
    is_read = [place < len(node.outputs) and bool(node.outputs[place].name) for place in range(len(results))]
    for place, new in enumerate(results):
        new.name = new.name if is_read[place] or (keep_first and place == 0) else ""
    return [new if read else None for new, read in zip(results, is_read, strict=True)][: len(node.outputs)]


def is_in_branches(node: ir.Node, graph: Facts) -> bool:
    """Return whether a node is in the main graph, or in branches of If nodes alone: it runs once, or not at all."""
    scope = graph.scope(node)
    while scope.holder is not None:
        if operator(scope.holder) != "If":
            return False
        scope = graph.scope(scope.holder)
    return not scope.in_function


def in_body(op: Builder) -> tuple[str, ...]:
    """Return the place of a body as a part of a key: its constants cannot be read from outside. Empty outside."""
    return (op.scope.path,) if op.scope.path else ()


def _name_in_source(value: ir.Value) -> str:
    """Return the name of a value in the source, which the result of another recipe may have replaced."""
    meta = cast("Mapping[str, str]", value.meta)
    return meta.get(_NAME) or value.name or ""


def is_large(tensor: ir.TensorProtocol) -> bool:
    """Return whether a weight is large enough for its integers to be smaller."""
    return tensor.size >= MIN_ELEMENTS and min(tensor.shape.numpy()) >= MIN_COLUMNS


def matrix_product(node: ir.Node, graph: Facts) -> Product | Refused | None:
    """Return MatMul(x, W), MatMul(x, Transpose(W)) or Gemm(x, W, b) with a constant W, or their fused forms."""
    activation, weight, nodes = operand(node, 0), operand(node, 1), (node,)
    if activation is None or weight is None:
        return None
    is_transposed = node.op_type != "MatMul" and node.attributes.get_int("transB", 0) == 1
    producer = weight.producer()
    if producer is not None and producer.op_type == "Transpose" and graph.rank(weight) == 2:
        perm = producer.attributes.get_ints("perm", (1, 0))
        inner = producer.inputs[0]
        if inner is not None and graph.tensor(inner) is not None:
            weight, nodes = inner, (producer, node)
            is_transposed ^= tuple(perm) == (1, 0)
    tensor = graph.tensor(weight)
    if tensor is None or not tensor.dtype.is_floating_point():
        return _reversed(node, activation, weight, graph)
    if node.op_type in _NOT_SPLIT:
        return Refused(f"{node.op_type} is not quantized; quantize before optimizing for the target `ort`", nodes)
    if len(tensor.shape) != 2:
        return None if len(tensor.shape) == 3 else Refused("its weight does not have two or three axes", nodes)
    if any(node.attributes.get_int(name, 0) for name in _TRANSPOSES):
        return Refused("it transposes its operands", nodes)
    return Product(nodes, activation, weight, Matrix(tensor, is_transposed), operand(node, 2))


def _reversed(node: ir.Node, weight: ir.Value, activation: ir.Value, graph: Facts) -> Product | Refused | None:
    """Return MatMul(W, x) with a constant matrix W."""
    tensor, rank = graph.tensor(weight), graph.rank(activation)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    if node.op_type != "MatMul" or len(tensor.shape) != 2 or rank is None or rank < 2:
        return Refused("its weight is the first operand", (node,))
    return Product((node,), activation, weight, Matrix(tensor, is_transposed=True), reversed_rank=rank)


def _swapped(value: ir.Value, rank: int, op: Builder) -> ir.Value:
    return op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


def reads_in_float32(weight: ir.Value, selection: Selection) -> bool:
    """Return whether some node reads a weight, or its transpose, that no recipe would change: it is stored twice."""
    if weight.is_graph_output():
        return True
    for use in weight.uses():
        node = use.node
        if node.op_type == "Transpose" and not node.domain:
            if reads_in_float32(node.outputs[0], selection):
                return True
        elif operator(node) not in _READERS or not selection.includes(node):
            return True
    return False


def is_scaled(node: ir.Node) -> bool:
    """Return whether a product or its bias is multiplied by a number."""
    return any(node.attributes.get_float(name, 1.0) != 1.0 for name in _FACTORS)


def with_bias(product: Product, result: ir.Value, op: Builder) -> ir.Value:
    """Return the result times alpha, with the bias times beta added, if the product has these."""
    alpha, beta = (product.nodes[-1].attributes.get_float(name, 1.0) for name in _FACTORS)
    if alpha != 1.0:
        result = op.Mul(result, op.constant(scalar(alpha)))
    if product.bias is None:
        return result
    return op.Add(result, product.bias if beta == 1.0 else op.Mul(product.bias, op.constant(scalar(beta))))


def largest_of_rows(value: ir.Value, op: Builder) -> ir.Value:
    """Return the largest magnitude along the last axis, which is kept; more than 0, so that it can be divided by."""
    return op.Max(maximum_of_rows(op.Abs(value), op), op.constant(scalar(_TINY)))


def maximum_of_rows(value: ir.Value, op: Builder) -> ir.Value:
    """Return the largest number along the last axis, which is kept."""
    if op.scope.opset < _AXES_AS_INPUT:
        return op.ReduceMax(value, axes=[-1], keepdims=1)
    return op.ReduceMax(value, op.constant(np.array([-1])), keepdims=1)


def scalar(value: float) -> np.ndarray:
    """Return a float32 constant."""
    return np.array(value, np.float32)


def convolution(node: ir.Node, graph: Facts) -> Product | Refused | None:
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
    return Product((node,), activation, weight, filters, operand(node, 2), shape)
