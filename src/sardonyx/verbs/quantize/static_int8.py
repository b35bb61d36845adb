"""Conv(x, W, b) => Conv(DQ(Q(x)), DQ(q(W)), DQ(q(b))), with ranges from calibration; MatMul and Gemm likewise.

Activations become unsigned 8-bit integers with one scale and zero point (ONNX Runtime fuses no signed ones on x86), W
signed ones with a scale for each output channel (of 7 bits on a CPU that adds 8-bit products with saturation), b 32-bit
ones with the scale of the sums. Results of convolutions, and of what lies between quantized products, are stored in
integers too, so that a runtime can compute without float32. Refuses a transposed convolution, a bias or a weight that
is computed, a batch normalization that is not folded, and a value without a range. Helps because 8-bit products and
activations are faster on most CPUs, and the weight takes a quarter of the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import label, operand
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Accuracy, Builder, Facts, Match, ModelPass, NodePass, Proposal, Refused, Replacement
from sardonyx.verbs.quantize import simulation
from sardonyx.verbs.quantize.calibration import Calibration, Range
from sardonyx.verbs.quantize.integer_regions import HARD, REARRANGEMENTS, last_value, stored_values
from sardonyx.verbs.quantize.recipe import (
    STORED_TWICE,
    Quantizer,
    Selection,
    Simulated,
    reads_in_float32,
    scalar,
    signed_integers,
    with_bias,
)
from sardonyx.verbs.quantize.static_products import ROOTS, SCALES_OPSET, StaticProduct, static_product
from sardonyx.verbs.quantize.weights import SIGNED_MOST, largest_scales, lazy

_MOST = 255  # the largest integer of an activation
_UNIT = Range(0.0, 1.0, 0.0, 1.0)  # of HardSigmoid
_LARGEST_BIAS = 2.0**30  # levels; the sums of the products are added to it in 32 bits


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
        scale = float(np.float32((limits.high - limits.low) / _MOST))
        return cls(scale, int(np.clip(np.rint(-limits.low / scale), 0, _MOST)))

    @property
    def zero_point(self) -> Array:
        """The constant."""
        return np.array(self.zero, np.int8 if self.is_signed else np.uint8)


class Step(Struct, frozen=True, eq=False):
    """One node that is rewritten: a product, or a node whose result is stored in integers, or both."""

    node: ir.Node
    product: StaticProduct | None
    result: Range | None  # of the result, if it is stored in integers
    is_continued: bool  # an activation follows, whose result is stored in integers


class RaiseForScales(NodePass):
    """Raises the opset for `quantize-statically`; it rewrites nothing."""

    name = "raise-for-scales"
    accuracy = Accuracy.EXACT
    roots = ROOTS
    opset = 7
    needs = SCALES_OPSET

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
            if node.op_type in ROOTS and not node.domain and self._selection.includes(node):
                found = static_product(node, graph, self._ranges)
                if isinstance(found, StaticProduct) and reads_in_float32(found.weight, self._selection):
                    yield Refused(STORED_TWICE, found.nodes)
                elif isinstance(found, StaticProduct):
                    products[node] = found
                elif found is not None:
                    yield found
        for step in self._steps(products, graph) if products else ():
            nodes = self._matched(step) if step.product is None else step.product.nodes
            views = frozenset(node for node in nodes[:-1] if node.op_type != "Pad")
            yield Proposal(Match(nodes, separate=views), functools.partial(self._rewritten, step))

    def _matched(self, step: Step) -> tuple[ir.Node, ...]:
        """Return a node, and before it the conversion to float32 that HardSigmoid in integers may leave without use."""
        value = operand(step.node, 0)
        conversion = value.producer() if value is not None and value in self._stored else None
        return (step.node,) if step.node.op_type != "HardSigmoid" or conversion is None else (conversion, step.node)

    def _steps(self, products: Mapping[ir.Node, StaticProduct], graph: Facts) -> list[Step]:
        nodes = list(graph.model.graph)
        stored = stored_values(nodes, products, graph, self._ranges, self._selection.includes)
        limits: dict[ir.Value | None, Range] = {}
        steps: list[Step] = []
        for node in nodes:
            product, value = products.get(node), node.outputs[0] if node.outputs else None
            if value is not None and value in stored:  # a rearrangement keeps the range of what it reads
                kept = limits.get(operand(node, 0)) if node.op_type in REARRANGEMENTS else None
                limits[value] = kept or self._ranges[value.name or ""]
            if product is not None:
                product = replace(product, limits=limits.get(product.activation, product.limits))
            if product is not None or value in limits:
                is_continued = value not in limits and last_value(node, graph) in stored
                steps.append(Step(node, product, limits.get(value), is_continued))
        return steps

    def _rewritten(self, step: Step, op: Builder) -> ir.Value:
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
        node, activation = product.node, self._activation(product, op)
        scales = weight_scales(product)
        weight, bias = self._weight(product, scales, op), bias_constants(product, scales)
        if node.op_type == "MatMul":
            return op.MatMul(activation, weight)
        added = product.bias if product.is_filter else None
        if bias is not None:
            added = op.DequantizeLinear(*(op.constant(array, "bias") for array in bias), axis=0)
        if node.op_type == "Conv":
            return op.like(node, (activation, weight, added), pads=product.pads or node.attributes.get("pads"))
        result = op.Gemm(activation, weight, added)
        return with_bias(product, result, op) if added is None else result

    def _hard(self, node: ir.Node, op: Builder) -> ir.Value:
        """Build HardSigmoid or HardSwish from a sum and a product in integers, if the activation is in integers."""
        value, (alpha, beta) = operand(node, 0), _coefficients(node)
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

    def _activation(self, product: StaticProduct, op: Builder) -> ir.Value:
        """Return the activation after it was stored in integers, once for all products that read it."""
        value = product.source
        if value in self._stored:
            return value
        known = self._dequantized.get(value)
        if known is None or (producer := known.producer()) is None or producer.graph is None:
            known = self._dequantized[value] = self._converted(value, product.limits, op)
        return known

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
        matrix, shape, op_type = product.matrix, product.shape, product.node.op_type

        def make() -> Iterator[ir.Value]:
            integers = lazy(ir.DataType.INT8, shape, lambda: signed_integers(matrix, scales, shape))
            yield op.constant(integers, "quantized")
            yield op.constant(scales, "scales")
            if op_type == "Gemm":  # without zero points, ONNX Runtime does not fuse it
                yield op.constant(np.zeros(len(scales), np.int8), "zeros")

        key = (product.weight, matrix.is_transposed, op_type, scales.tobytes())
        return op.DequantizeLinear(*self.shared(key, make), axis=0 if product.is_filter else 1)

    def _add_simulation(self, step: Step, result: ir.Value, stored: ir.Value, op: Builder) -> None:
        """Build the simulation of a node; that of a product whose activation follows is completed there."""
        node, product, first = step.node, step.product, operand(step.node, 0)
        begun = None if first is None or product is not None else self._unfinished.get(first)
        if begun is not None:
            record = replace(begun, result=stored, simulation=op.like(node, (begun.simulation, *node.inputs[1:])))
        elif product is not None:
            matrix, exact = product.matrix, simulation.of(product, op)
            record = Simulated(label(node), owner(node), self.name, matrix.rows, matrix.columns, stored, exact)
            record = replace(record, step=_bias_unit(product))
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
            limited, size = simulation.limited(record.simulation, limits, op)
            record = replace(record, simulation=limited, scale=record.simulation, step=size + record.step)
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
    if product.bias is None or product.bias_values is not None or not product.is_filter:
        return 0.0
    return float(weight_scales(product).max()) * Grid.of(product.limits).scale


def bias_constants(product: StaticProduct, scales: Array) -> tuple[Array, ...] | None:
    """Return the bias as 32-bit integers, their scales, and zero points for Gemm; None without a constant bias."""
    if product.bias_values is None:
        return None
    units = scales * np.float32(Grid.of(product.limits).scale)
    levels = np.rint(product.bias_values / units.astype(np.float64)).astype(np.int32)
    return (levels, units, np.zeros_like(levels)) if product.node.op_type == "Gemm" else (levels, units)


def _coefficients(node: ir.Node) -> tuple[float, float]:
    """Return a and b of HardSigmoid(x) = clip(a x + b, 0, 1), or of the one in HardSwish(x) = x HardSigmoid(x)."""
    if node.op_type == "HardSwish":
        return 1 / 6, 0.5
    return node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)


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
    constant = (np.array(_MOST, np.uint8), scalar(beta / _MOST), np.array(0, np.uint8))
    return op.Add(scaled, op.DequantizeLinear(*(op.constant(array, "beta") for array in constant)))
