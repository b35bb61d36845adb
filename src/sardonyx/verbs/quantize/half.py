"""Nodes in float16 and weights in bfloat16, and the rounding of numbers to 16 bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, GELUS, LOOKUPS, NORMALIZES, attention_operands
from sardonyx.ir.origins import owner
from sardonyx.ir.precision import FORMATS
from sardonyx.ir.scopes import has_bodies, label, operand
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Match, ModelPass, Proposal, Refused, Replacement
from sardonyx.records.quantization import HalfRisk
from sardonyx.records.run import Refusal
from sardonyx.runtime import Feeds
from sardonyx.verbs.quantize.calibration import Ranges, measure_ranges
from sardonyx.verbs.quantize.half_bounds import MASK, Bounds, find_masks, replaced
from sardonyx.verbs.quantize.half_placement import PRODUCTS, Conversion, Flaws, place, summed_terms
from sardonyx.verbs.quantize.recipe import MIN_ELEMENTS, Quantizer, Selection, in_place_of
from sardonyx.verbs.quantize.weights import DerivedTensor, lazy

_BLOCK_ELEMENTS = 1 << 20  # elements that are rounded at a time


def nearest_half(values: Array, least: float | None = None) -> Array:
    """Return the closest numbers that float16 can hold; finite ones are at least `least` if it is given.

    A float16 number is a multiple of 2^(e - 10), where 2^e is its power of two, at least 2^-14.
    """
    result = np.array(values, np.float32)
    flat = result.reshape(-1)
    for start in range(0, flat.size, _BLOCK_ELEMENTS):
        block = flat[start : start + _BLOCK_ELEMENTS]
        finite = np.isfinite(block)
        exact = np.where(finite, block, 0).astype(np.float64)
        if least is not None:
            exact = np.maximum(exact, least)
        _, exponent = np.frexp(exact)
        step = np.ldexp(1.0, np.maximum(exponent - 1, -14) - 10)
        block[finite] = (np.rint(exact / step) * step)[finite]
    return result


def nearest_bfloat16(values: Array) -> Array:
    """Return the closest finite numbers that bfloat16 can hold: the upper half of the bits, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def check_stored(
    value: ir.Value, source: ir.TensorProtocol, stored: ir.Value, nearest: Callable[[Array], Array]
) -> None:
    """Check that a constant in fewer bits has the numbers of its source, rounded.

    Raises:
        VerificationFailed: if it does not.
    """
    tensor = stored.const_value
    if tensor is None and (node := stored.producer()) is not None:  # a Constant node, in old files
        tensor = node.attributes["value"].as_tensor()
    assert tensor is not None
    if not np.array_equal(tensor.numpy().astype(np.float32), nearest(source.numpy()), equal_nan=True):
        raise VerificationFailed(
            f"the quantized constant {value.name!r} differs from its simulation",
            hint="nothing was written; leave it out with `keep_modules`, and report this",
        )


HALF_OPSET = 9  # the first with what measures the ranges
_ROUNDINGS = 8  # of a result, relative to its scale; kernels have up to 4
_UNKNOWN_TERMS = 1024  # terms of a sum along a dynamic dimension
_MAX_RELATIVE_ERROR = 0.2  # relative error of a result
_ATTENTION = 64  # of attention: rounded scores pass through an exponential
_SUMS = frozenset({"Add", "Sub"})
_GATED = GELUS | {"HardSwish", "Mish", "Swish"}
# Operators whose results jump. The runtime may leave out a cast to float16 and back, so that operands differ a little.
_JUMPS = frozenset({"Ceil", "Floor", "Hardmax", "Round", "Shrink", "Sign", "ThresholdedRelu"})
_D = ir.DataType


class ConvertToHalf(Quantizer, ModelPass):
    """N(x, W) => Cast32(N16(Cast16(x), W16)), where Cast16(Cast32(y)) is y: float16 with casts only at borders.

    Inputs, outputs, kept modules and operators that need float32 are the borders. Constants are rounded when they are
    written; those that only mask scores become -30000. `half_placement` says which nodes stay. Helps because the file
    takes half of the bytes, and graphics processors compute faster in float16.
    """

    name = "quantize-to-fp16"

    def __init__(self, selection: Selection, ranges: Ranges, flaws: Flaws, *, simulate: bool = False) -> None:
        """Convert the selected modules where their measured ranges allow it; with `simulate`, beside float32."""
        super().__init__(selection, simulate=simulate)
        self._ranges, self._flaws = ranges, flaws
        self._converted: ir.Model | None = None
        self._masks: frozenset[ir.Value] = frozenset()
        self._narrow: dict[ir.Value, ir.Value] = {}  # the float16 form of float32 values
        self._checked: set[ir.Value] = set()

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Yield the conversion of each node in order, so that the operands are converted before it."""
        if self._converted is graph.model:
            return
        self._converted, found = graph.model, find_masks(graph)
        self._masks = found.constants
        conversions, reasons = place(graph, self._selection, self._ranges, found, self._flaws)
        for node in (node for scope in graph.live_scopes() if scope.path for node in scope.graph):
            if node.op_type in PRODUCTS and self._selection.includes(node):
                yield Refused("it is inside a body or a function", (node,))
        for node, reason in reasons.items():
            yield Refused(reason, (node,))
        for each in conversions:
            values = dict.fromkeys(each.node.inputs[index] for index in sorted(each.inputs))
            # The casts to float32 that are not needed once this node has been converted.
            casts = (value.producer() for value in values if value is not None and self._is_cast_back(value))
            before = () if self._simulate else tuple(node for node in casts if node is not None)
            match = Match((*before, each.node), separate=frozenset(before))
            yield Proposal(match, functools.partial(self._convert, each, graph))

    def _convert(self, each: Conversion, graph: Facts, op: Builder) -> Replacement:
        node = each.node
        inputs = _mapped(node, each.inputs, lambda value: self._half(value, graph, op))
        if node.op_type == "Cast" and each.inputs and each.outputs:  # float32 to float32
            replacements: list[ir.Value | None] = list(inputs)
        else:
            attributes = dict(node.attributes)
            if node.op_type == "Cast" and each.outputs:
                attributes["to"] = ir.AttrInt64("to", int(_D.FLOAT16))
            replacements = in_place_of(
                node, op.node(node.op_type, inputs, attributes, domain=node.domain, outputs=len(node.outputs))
            )
        for index in sorted(each.outputs):
            if (narrow := replacements[index]) is not None:
                replacements[index] = wide = op.Cast(narrow, to=_D.FLOAT)
                self._narrow[wide] = narrow
        if self._simulate and each.outputs and node.op_type not in _JUMPS:
            index, exact = (
                min(each.outputs),
                _mapped(node, each.inputs, lambda value: self._simulated(value, graph, op)),
            )
            made = op.node(node.op_type, exact, dict(node.attributes), domain=node.domain, outputs=len(node.outputs))
            result = replacements[index]
            assert result is not None
            self.compare(node, result, made[index], rounding=_rounding(node, graph), scale=_scale(node, exact, op))
        return replacements

    def _half(self, value: ir.Value, graph: Facts, op: Builder) -> ir.Value:
        """Return a value in float16: what it was cast from, a constant, or a cast that its readers share."""
        known = self._narrow.get(value)
        if known is not None and (known.graph is not None or known.producer() in op.nodes or known in op.constants):
            return known
        tensor = graph.tensor(value)
        if tensor is None:
            half = op.Cast(value, to=_D.FLOAT16)
        else:
            shape = tuple(int(size) for size in tensor.shape.numpy())
            numbers = functools.partial(_rounded, tensor, value in self._masks)
            half = op.constant(lazy(_D.FLOAT16, shape, numbers), "half")
        self._narrow[value] = half
        return half

    def _simulated(self, value: ir.Value, graph: Facts, op: Builder) -> ir.Value:
        """Return the float32 numbers that the float16 form of a value stands for, after a check of a constant."""
        if self._is_cast_back(value):
            return value
        stored, tensor = self._half(value, graph, op), graph.tensor(value)
        if tensor is not None and value not in self._checked:
            self._checked.add(value)
            least = MASK if value in self._masks else None
            check_stored(value, tensor, stored, lambda array: nearest_half(array, least))
        return op.Cast(stored, to=_D.FLOAT)

    def _is_cast_back(self, value: ir.Value) -> bool:
        """Return whether a value is the cast of its own float16 form."""
        node = value.producer()
        if node is None or node.op_type != "Cast" or value not in self._narrow:
            return False
        return operand(node, 0) is self._narrow[value]


def _mapped(
    node: ir.Node, indices: Container[int], change: Callable[[ir.Value], ir.Value]
) -> tuple[ir.Value | None, ...]:
    """Return the inputs of a node, some of them changed."""
    return tuple(
        change(value) if value is not None and index in indices else value for index, value in enumerate(node.inputs)
    )


def _rounded(tensor: ir.TensorProtocol, is_mask: bool) -> Array:
    array = tensor.numpy()
    return (replaced(array) if is_mask else array).astype(np.float16)


def _rounding(node: ir.Node, graph: Facts) -> float:
    """Return the relative error of a result in float16: kernels may add in float16, and equal errors add up."""
    terms = summed_terms(node, graph)
    roundings = (
        _ATTENTION if attention_operands(node) else _ROUNDINGS + (_UNKNOWN_TERMS if terms is None else terms) / 4
    )
    return min(roundings * FORMATS[_D.FLOAT16].roundoff, _MAX_RELATIVE_ERROR)


def _scale(node: ir.Node, inputs: Sequence[ir.Value | None], op: Builder) -> ir.Value | None:
    """Return what the rounding of a result is relative to, if not to the result: terms of a sum may cancel.

    This is |x| |W| for a product x W, |x| + |y| for a sum or difference, the factor of a norm, and |x| for an
    activation that multiplies x by a gate: where the gate closes, 1 + erf(x) is the rounding of a difference.
    """
    if node.op_type in _GATED:
        return op.Add(*inputs) if len(inputs) > 1 else inputs[0]
    if node.op_type in NORMALIZES and len(inputs) > 1:
        return inputs[1]
    if node.op_type not in ALL_PRODUCTS | ALL_CONVOLUTIONS | _SUMS:
        return None
    terms = tuple(None if value is None else op.Abs(value) for value in inputs)
    if node.op_type in _SUMS:
        return op.Add(*terms)
    return op.like(node, terms)


def half_risks(graph: Facts, ranges: Ranges, refusals: Iterable[Refusal]) -> tuple[HalfRisk, ...]:
    """Return the nodes of the source whose numbers can leave the range of float16, and which of them were refused."""
    graph.infer()
    kept = {refusal.nodes[-1] for refusal in refusals if refusal.pass_name == ConvertToHalf.name}
    risks = Bounds(graph, ranges, find_masks(graph)).risks()
    return tuple(HalfRisk(owner(node), label(node), reason, label(node) in kept) for node, reason in risks.items())


def measure_half_ranges(graph: Facts, trials: Iterable[Feeds], threads: int | None) -> Ranges:
    """Measure the ranges of a model that is changed for this purpose: its masks become those of float16.

    Raises:
        UsageError: The opset is too old.
    """
    if graph.scopes[graph.model.graph].opset < HALF_OPSET:
        raise UsageError(f"fp16 needs opset {HALF_OPSET}", hint="export the model again with a newer opset")
    graph.infer()
    for value in find_masks(graph).constants:
        tensor, node = graph.tensor(value), value.producer()
        assert tensor is not None
        mask = ir.Tensor(replaced(tensor.numpy()), name=value.name)
        if node is None:
            value.const_value = mask
        else:
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", mask)
    return measure_ranges(graph, trials, threads)


_BFLOAT16_OPSET = 13  # the first whose Cast knows bfloat16


class StoreInBfloat16(Quantizer, ModelPass):
    """N(x, W) => N(x, Cast32(W16)), and Gather(W, i) => Cast32(Gather(W16, i)), for a constant W in bfloat16.

    ONNX Runtime has no CPU kernels for products, sums and most other operators in bfloat16, so that they compute in
    float32 on the rounded weights. Refuses a small constant and one that overflows. Helps because the file takes half
    of the bytes and bfloat16 has the range of float32.
    """

    name = "quantize-to-bf16"

    def __init__(self, selection: Selection, *, simulate: bool = False) -> None:
        """Store the constants that the selected modules read; with `simulate`, beside float32."""
        super().__init__(selection, simulate=simulate)
        self._stored: dict[ir.Value, ir.Value] = {}
        self._converted: ir.Model | None = None

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Yield each node of the main graph that reads a large float32 constant."""
        if self._converted is graph.model:
            return
        self._converted = graph.model
        for node in list(graph.model.graph):
            found = [index for index, value in enumerate(node.inputs) if _is_weight(value, graph)]
            if not found or has_bodies(node) or not self._selection.includes(node):
                continue
            if graph.opset(node) < _BFLOAT16_OPSET:
                yield Refused(f"bfloat16 needs opset {_BFLOAT16_OPSET}", (node,))
            else:
                yield Proposal(Match((node,)), functools.partial(self._convert, node, found, graph))

    def _convert(self, node: ir.Node, weights: list[int], graph: Facts, op: Builder) -> Replacement:
        looks_up = node.op_type in LOOKUPS and not node.domain
        inputs = _mapped(node, weights, lambda value: self._weight(value, graph, op, cast=not looks_up))
        results = op.node(node.op_type, inputs, dict(node.attributes), domain=node.domain, outputs=len(node.outputs))
        replacements = in_place_of(node, results)
        if looks_up:
            replacements = [op.Cast(results[0], to=_D.FLOAT)]
        if self._simulate:
            exact = _mapped(node, weights, lambda value: self._checked(value, graph, op))
            result = replacements[0]
            if result is not None and graph.dtype(node.outputs[0]) is _D.FLOAT:
                self.compare(node, result, op.like(node, exact))
        return replacements

    def _weight(self, value: ir.Value, graph: Facts, op: Builder, *, cast: bool) -> ir.Value:
        stored = self._stored.get(value)
        if stored is None or (stored.graph is None and stored not in op.constants):
            tensor = graph.tensor(value)
            assert tensor is not None
            shape = tuple(int(size) for size in tensor.shape.numpy())
            stored = op.constant(lazy(_D.BFLOAT16, shape, lambda: _rounded_to_bfloat16(tensor)), "bf16")
            self._stored[value] = stored
        return op.Cast(stored, to=_D.FLOAT) if cast else stored

    def _checked(self, value: ir.Value, graph: Facts, op: Builder) -> ir.Value:
        """Return the float32 numbers of a stored weight, after a check of them."""
        tensor = graph.tensor(value)
        assert tensor is not None
        check_stored(value, tensor, self._weight(value, graph, op, cast=False), nearest_bfloat16)
        return self._weight(value, graph, op, cast=True)


def _is_weight(value: ir.Value | None, graph: Facts) -> bool:
    tensor = graph.tensor(value)
    if tensor is None or isinstance(tensor, DerivedTensor):
        return False
    return tensor.dtype is _D.FLOAT and tensor.size >= MIN_ELEMENTS


def _rounded_to_bfloat16(tensor: ir.TensorProtocol) -> Array:
    return tensor.numpy().astype(ml_dtypes.bfloat16)
