"""Conv(x, W, b) => Conv(DQ(Q(x)), DQ(q(W)), DQ(q(b))), with ranges from calibration; MatMul and Gemm likewise.

Activations become unsigned 8-bit integers with one scale and zero point (for a symmetric scheme, signed ones without),
W signed ones with a scale for each output channel (of 7 bits on a CPU that adds 8-bit products with saturation), b
32-bit ones with the scale of the sums. Results of convolutions, and of what lies between quantized products, are stored
in integers too, so that a runtime can compute without float32. Refuses a transposed convolution, a bias or a weight
that is computed, a batch normalization that is not folded, and a value without a range. Helps because 8-bit products
and activations are faster on most CPUs, and the weight takes a quarter of the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import asdict, replace

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import label, operand
from sardonyx.ir.storage import Array
from sardonyx.ir.support import GEMM_ZERO_POINTS
from sardonyx.passes.base import Accuracy, Builder, Facts, Match, ModelPass, NodePass, Proposal, Refused, Replacement
from sardonyx.verbs.quantize import simulation
from sardonyx.verbs.quantize.calibration import Calibration, Range
from sardonyx.verbs.quantize.integer_regions import HARD, MATRIX_PRODUCTS, REARRANGEMENTS, last_value, stored_values
from sardonyx.verbs.quantize.recipe import (
    MIN_ELEMENTS,
    STORED_TWICE,
    Product,
    Quantizer,
    Selection,
    Simulated,
    convolution,
    is_scaled,
    matrix_product,
    reads_in_float32,
    scalar,
    with_bias,
)
from sardonyx.verbs.quantize.weights import (
    SIGNED_MOST,
    DerivedTensor,
    largest_scales,
    lazy,
    most_of_products,
    signed,
    simulated,
)

_MAX_LEVEL = 255  # the largest integer of an activation
_UNIT = Range(0.0, 1.0, 0.0, 1.0)  # of HardSigmoid
_LARGEST_BIAS = 2.0**30  # levels; the sums of the products are added to it in 32 bits
_ROOTS = ("Conv", "ConvTranspose", *MATRIX_PRODUCTS)
_SCALES_OPSET = 13  # the first with scales for each channel


class Grid(Struct, frozen=True):
    """The numbers that a value can hold: (q - zero) * scale, for q from 0 to 255, or from -128 to 127 with zero = 0."""

    scale: float  # of float32
    zero: int
    is_signed: bool = False

    @classmethod
    def of(cls, limits: Range) -> Grid:
        """Return the grid of a range, which includes 0."""
        if limits.is_symmetric:
            return cls(float(np.float32(limits.high / SIGNED_MOST)), 0, is_signed=True)
        scale = float(np.float32((limits.high - limits.low) / _MAX_LEVEL))
        return cls(scale, int(np.clip(np.rint(-limits.low / scale), 0, _MAX_LEVEL)))

    @property
    def zero_point(self) -> Array:
        """The constant."""
        return np.array(self.zero, np.int8 if self.is_signed else np.uint8)


class StaticProduct(Product, frozen=True, eq=False, kw_only=True):
    """A product whose activation has a known range."""

    limits: Range  # of the activation
    bias_values: Array | None  # if the bias is a constant for each column
    pads: tuple[int, ...] = ()  # of a convolution that also pads for the node before it
    most: int = SIGNED_MOST  # the largest integer of the weight

    @property
    def node(self) -> ir.Node:
        """The node that multiplies."""
        return self.nodes[-1]

    @property
    def source(self) -> ir.Value:
        """The activation in the graph as it is now, after earlier rewrites."""
        value = operand(self.nodes[0] if self.pads else self.node, 0)
        assert value is not None
        return value


def static_product(node: ir.Node, graph: Facts, ranges: Mapping[str, Range]) -> StaticProduct | Refused | None:
    """Return Conv(x, W, b), MatMul(x, W) or Gemm(x, W, b), why it cannot be quantized, or None if there is none.

    A Pad with zeros that only one convolution reads becomes a part of it, since padding of integers costs more than the
    product gains.
    """
    found = matrix_product(node, graph) if node.op_type in MATRIX_PRODUCTS else convolution(node, graph)
    if not isinstance(found, Product):
        return found
    matrix, bias = found.matrix, graph.tensor(found.bias)
    if isinstance(matrix.tensor, DerivedTensor):
        return None
    if found.filters and found.bias is not None and bias is None:
        return Refused("its bias is computed", (node,))
    pads = _merged_pads(node, found.activation, graph) if found.filters else ()
    if pads and (padding := found.activation.producer()) is not None and (inner := operand(padding, 0)) is not None:
        found = replace(found, nodes=(padding, node), activation=inner)
    if reason := _obstacle(found, graph, ranges):
        return Refused(reason, found.nodes)
    limits = ranges[found.activation.name or ""]
    if bias is None or bias.size != matrix.columns or limits.is_symmetric:  # compilers for devices expect it in float32
        bias = None
    values = None if bias is None else bias.numpy().reshape(-1)
    return StaticProduct(**asdict(found), limits=limits, bias_values=values, pads=pads, most=most_of_products())


def _obstacle(product: Product, graph: Facts, ranges: Mapping[str, Range]) -> str:
    """Return why a product cannot be quantized, or ""."""
    node, tensor = product.nodes[-1], product.matrix.tensor
    if product.reversed_rank:
        return "its weight is the first operand"
    if tensor.dtype is not ir.DataType.FLOAT:
        return f"its weight is {tensor.dtype.name.lower()} and not float"
    if node.op_type in MATRIX_PRODUCTS and tensor.size < MIN_ELEMENTS:
        return f"its weight has fewer than {MIN_ELEMENTS} elements"
    if is_scaled(node):
        return "it scales its operands"
    if graph.scope(node).opset < _SCALES_OPSET:
        return f"needs opset {_SCALES_OPSET}"
    norm = graph.sole_consumer(node.outputs[0])
    factors = norm.inputs[1:] if norm is not None and norm.op_type == "BatchNormalization" else (None,)
    if all(graph.tensor(value) is not None for value in factors):
        return "a batch normalization follows; fold it first with `sardonyx optimize`"
    if product.activation.name not in ranges:
        return "its activation is 0 or not finite on all samples"
    if node.op_type == "Conv" and last_value(node, graph).name not in ranges:
        return "its result is 0 or not finite on all samples"
    return ""


def _merged_pads(node: ir.Node, activation: ir.Value, graph: Facts) -> tuple[int, ...]:
    """Return the pads of a convolution with those of the node that alone adds zeros for it; () if there is none."""
    padding = activation.producer()
    if padding is None or padding.op_type != "Pad" or graph.sole_consumer(padding.outputs[0]) is not node:
        return ()
    pads, value = graph.ints(operand(padding, 1)), operand(padding, 2)
    is_zero = padding.attributes.get_string("mode", "constant") == "constant"
    is_zero &= value is None or graph.scalar(value) == 0
    if pads is None or not is_zero or min(pads) < 0 or operand(padding, 3) is not None:
        return ()
    rank = len(pads) // 2
    if any((*pads[:2], *pads[rank : rank + 2])) or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return ()
    outer = (*pads[2:rank], *pads[rank + 2 :])
    return tuple(a + b for a, b in zip(outer, node.attributes.get_ints("pads", (0,) * len(outer)), strict=True))


class StaticStep(Struct, frozen=True, eq=False):
    """One node that is rewritten: a product, or a node whose result is stored in integers, or both."""

    node: ir.Node
    product: StaticProduct | None
    result: Range | None  # of the result, if it is stored in integers
    is_continued: bool  # an activation follows, whose result is stored in integers


class RaiseForScales(NodePass):
    """Raises the opset for `quantize-statically`; it rewrites nothing."""

    name = "raise-for-scales"
    accuracy = Accuracy.EXACT
    roots = _ROOTS
    opset = 7
    needs = _SCALES_OPSET

    def __init__(self, selection: Selection) -> None:
        """Raise it if a selected module has a product."""
        self._selection = selection

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        """Match a product in an older opset."""
        is_old = graph.opset(node) < self.needs and self._selection.includes(node)
        return Match((node,)) if is_old and graph.tensor(operand(node, 1)) is not None else None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Return the same node; it is never called, because nothing matches in the newer opset."""
        return op.like(match.root, tuple(match.root.inputs))


class QuantizeStatically(Quantizer, ModelPass):
    """Products in 8-bit integers, with activations quantized by ranges that are known before."""

    name = "quantize-statically"

    def __init__(self, calibration: Calibration, selection: Selection | None = None, *, simulate: bool = False) -> None:
        """Quantize the selected modules with these ranges; with `simulate`, compute each product in float32 as well."""
        super().__init__(selection, simulate=simulate)
        self._ranges = calibration.ranges
        self._is_symmetric = any(each.is_symmetric for each in calibration.ranges.values())
        self._stored: set[ir.Value] = set()  # what integers were converted to
        self._dequantized: dict[ir.Value, ir.Value] = {}  # the same by the value in float32
        self._unfinished: dict[ir.Value, Simulated] = {}  # simulations that the next activation continues

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Yield the nodes of the main graph in order, so that what they share is built before its second use."""
        products: dict[ir.Node, StaticProduct] = {}
        for node in graph.model.graph:
            if node.op_type in _ROOTS and not node.domain and self._selection.includes(node):
                found = static_product(node, graph, self._ranges)
                if isinstance(found, StaticProduct) and reads_in_float32(found.weight, self._selection):
                    yield Refused(STORED_TWICE, found.nodes)
                elif isinstance(found, StaticProduct):
                    products[node] = found
                elif found is not None:
                    yield found
        for step in self._steps(products, graph) if products else ():
            node, value = step.node, operand(step.node, 0)
            nodes = (node,) if step.product is None else step.product.nodes
            if node.op_type == "HardSigmoid" and value in self._stored and (conversion := value.producer()) is not None:
                nodes = (conversion, node)  # to float32, which HardSigmoid in integers may leave without use
            views = frozenset(node for node in nodes[:-1] if node.op_type != "Pad")
            yield Proposal(Match(nodes, separate=views), functools.partial(self._rewritten, step))

    def _steps(self, products: Mapping[ir.Node, StaticProduct], graph: Facts) -> list[StaticStep]:
        nodes = list(graph.model.graph)
        stored = stored_values(nodes, products, graph, self._ranges, self._selection.includes)
        limits: dict[ir.Value | None, Range] = {}
        steps: list[StaticStep] = []
        for node in nodes:
            product, value = products.get(node), node.outputs[0] if node.outputs else None
            if value is not None and value in stored:  # a rearrangement keeps the range of what it reads
                kept = limits.get(operand(node, 0)) if node.op_type in REARRANGEMENTS else None
                limits[value] = kept or self._ranges[value.name or ""]
            if product is not None:
                product = replace(product, limits=limits.get(product.activation, product.limits))
            if product is not None or value in limits:
                is_continued = value not in limits and last_value(node, graph) in stored
                steps.append(StaticStep(node, product, limits.get(value), is_continued))
        return steps

    def _rewritten(self, step: StaticStep, op: Builder) -> ir.Value:
        """Build one node, and beside it the simulation if there is to be one."""
        if step.product is not None:
            result = self._product(step.product, op)
        elif step.node.op_type in HARD:
            result = self._hard(step.node, op)
        else:
            result = op.like(step.node, tuple(step.node.inputs))
        stored = result if step.result is None else self._converted(result, step.result, op)
        if self._simulate:
            self._add_simulation(step, result, stored, op)
        return stored

    def _product(self, product: StaticProduct, op: Builder) -> ir.Value:
        """Build the product of dequantized operands, which a runtime computes in integers."""
        product.matrix.check_finite()
        node, value = product.node, product.source
        activation = value if value in self._stored else self._dequantized.get(value)
        if activation is None or (producer := activation.producer()) is None or producer.graph is None:
            # Stored in integers once, for all products that read it.
            activation = self._dequantized[value] = self._converted(value, product.limits, op)
        scales = weight_scales(product)
        weight, bias = self._weight(product, scales, op), bias_constants(product, scales)
        if node.op_type == "MatMul":
            return op.MatMul(activation, weight)
        added = product.bias if product.filters else None
        if bias is not None:
            added = op.DequantizeLinear(*(op.constant(array, "bias") for array in bias), axis=0)
        if node.op_type == "Conv":
            return op.like(node, (activation, weight, added), pads=product.pads or node.attributes.get("pads"))
        result = op.Gemm(activation, weight, added)
        return with_bias(product, result, op) if added is None else result

    def _hard(self, node: ir.Node, op: Builder) -> ir.Value:
        """Build HardSigmoid or HardSwish from a sum and a product in integers, if the activation is in integers."""
        value, alpha, beta = operand(node, 0), 1 / 6, 0.5  # of HardSwish(x) = x clip(a x + b, 0, 1)
        if node.op_type == "HardSigmoid":
            alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        gate = affine(value, alpha, beta, op) if value in self._stored and not self._is_symmetric else None
        if value is None or gate is None:
            return op.like(node, tuple(node.inputs))
        if node.op_type == "HardSigmoid":
            return gate
        stored = self._converted(gate, _UNIT, op)
        if self._simulate:
            exact = op.HardSigmoid(value, alpha=alpha, beta=beta)
            self._record(Simulated(label(node), owner(node), self.name, 0, 0, stored, exact), _UNIT, op)
        return op.Mul(value, stored)

    def _converted(self, value: ir.Value, limits: Range, op: Builder) -> ir.Value:
        grid = Grid.of(limits)
        scale, zero = self.shared(
            grid, lambda: (op.constant(scalar(grid.scale), "scale"), op.constant(grid.zero_point, "zero"))
        )
        result = op.DequantizeLinear(op.QuantizeLinear(value, scale, zero), scale, zero)
        self._stored.add(result)
        return result

    def _weight(self, product: StaticProduct, scales: Array, op: Builder) -> ir.Value:
        """Build the dequantized weight; products that share a weight share its integers."""
        matrix, filters, op_type = product.matrix, product.filters, product.node.op_type

        def make() -> Iterator[ir.Value]:
            integers = lazy(ir.DataType.INT8, filters or matrix.shape, lambda: signed(matrix, scales, filters))
            yield op.constant(integers, "quantized")
            yield op.constant(scales, "scales")
            if op_type in GEMM_ZERO_POINTS.operators:
                yield op.constant(np.zeros(len(scales), np.int8), "zeros")

        key = (product.weight, matrix.is_transposed, op_type, scales.tobytes())
        return op.DequantizeLinear(*self.shared(key, make), axis=0 if filters else 1)

    def _add_simulation(self, step: StaticStep, result: ir.Value, stored: ir.Value, op: Builder) -> None:
        """Build the simulation of a node; that of a product whose activation follows is completed there."""
        node, product, first = step.node, step.product, operand(step.node, 0)
        begun = None if first is None or product is not None else self._unfinished.get(first)
        if begun is not None:
            record = replace(begun, result=stored, simulation=op.like(node, (begun.simulation, *node.inputs[1:])))
        elif product is not None:
            exact, unit = exact_product(product, op), _bias_unit(product)
            record = Simulated(label(node), owner(node), self.name, *product.matrix.shape, stored, exact, step=unit)
        else:  # HardSwish is compared in two steps
            producer = result.producer()
            assert producer is not None
            again = producer if node.op_type == "HardSwish" else node
            repeated = op.like(again, tuple(again.inputs))
            record = Simulated(label(node), owner(node), self.name, 0, 0, stored, repeated)
        if step.is_continued:
            self._unfinished[stored] = record
        else:
            self._record(record, step.result, op)

    def _record(self, record: Simulated, limits: Range | None, op: Builder) -> None:
        """Add a simulation; that of a result in integers is limited to their range."""
        if limits is not None:
            limited, step = simulation.limited(record.simulation, limits, op), simulation.step_of(limits)
            record = replace(record, simulation=limited, scale=record.simulation, step=step + record.step)
        self.simulated.append(replace(record, is_fusible=True))


def weight_scales(product: StaticProduct) -> Array:
    """Return the scale of each column; large enough for the bias of a column whose weights are tiny."""
    scales = largest_scales(product.matrix.array(), 0, product.most)
    if product.bias_values is None:
        return scales
    least = np.abs(product.bias_values) / (Grid.of(product.limits).scale * _LARGEST_BIAS)
    return np.maximum(scales, least.astype(np.float32))


def _bias_unit(product: StaticProduct) -> float:
    """Return the unit of the integers to which a runtime rounds a bias in float32; 0 if there is none."""
    if product.bias is None or product.bias_values is not None or not product.filters:
        return 0.0
    return float(weight_scales(product).max()) * Grid.of(product.limits).scale


def bias_constants(product: StaticProduct, scales: Array) -> tuple[Array, ...] | None:
    """Return the bias as 32-bit integers, their scales, and zero points for Gemm; None without a constant bias."""
    if product.bias_values is None:
        return None
    units = scales * np.float32(Grid.of(product.limits).scale)
    levels = np.rint(product.bias_values / units.astype(np.float64)).astype(np.int32)
    return (levels, units, np.zeros_like(levels)) if product.node.op_type == "Gemm" else (levels, units)


def exact_product(product: StaticProduct, op: Builder) -> ir.Value:
    """Build the product of rounded operands in float32.

    A constant bias is rounded to multiples of the product of the steps of both operands.
    """
    node, matrix, filters, bias = product.node, product.matrix, product.filters, product.bias_values
    scales, step = weight_scales(product), simulation.step_of(product.limits)
    least = None if bias is None else np.abs(bias) / (step * _LARGEST_BIAS)

    def weight() -> Array:
        values = simulation.nearest_signed(matrix.array(), 1, scales, product.most, least)
        return values.T.reshape(filters) if filters else values

    stored = op.constant(simulated(filters or matrix.shape, weight))
    activation, added = simulation.rounded_activation(product.source, product.limits, op), product.bias
    if bias is not None:
        units = scales * np.float32(step)
        added = op.constant(simulated(bias.shape, lambda: np.rint(bias / units.astype(np.float64)) * units))
    if node.op_type == "Conv":
        padding = product.nodes[0]
        padded = op.like(padding, (activation, *padding.inputs[1:])) if product.pads else activation
        return op.like(node, (padded, stored, added))
    result = op.MatMul(activation, stored)
    return result if added is None else op.Add(result, added)


def affine(value: ir.Value, alpha: float, beta: float, op: Builder) -> ir.Value | None:
    """Build a x + b for the result of a DequantizeLinear with a constant scale and a, b > 0; None if it is not one.

    The integers of x with the scale a * s stand for a x, and the range of the result has the bounds 0 and 1, so that
    HardSigmoid is one sum.
    """
    conversion = value.producer()
    if conversion is None or conversion.op_type != "DequantizeLinear" or min(alpha, beta) <= 0:
        return None
    integers, scale, zero = conversion.inputs
    tensor = None if scale is None else scale.const_value
    if tensor is None:
        return None
    scaled = op.DequantizeLinear(integers, op.constant(scalar(float(tensor.numpy()) * alpha), "scale"), zero)
    constant = (np.array(_MAX_LEVEL, np.uint8), scalar(beta / _MAX_LEVEL), np.array(0, np.uint8))
    return op.Add(scaled, op.DequantizeLinear(*(op.constant(array, "beta") for array in constant)))
