"""Stacks of matrices (experts, recurrent networks) in 8-bit integers, and LSTM that computes in integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.scopes import operand
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Facts, Match, NodePass, Refused, Replacement
from sardonyx.verbs.quantize import simulation
from sardonyx.verbs.quantize.recipe import IN_A_LOOP, MIN_ELEMENTS, Quantizer, in_body, in_place_of, is_in_branches
from sardonyx.verbs.quantize.weights import (
    NOT_FINITE,
    SIGNED_MOST,
    DerivedTensor,
    largest_scales,
    lazy,
    most_of_products,
    simulated,
)

_RECURRENT: Mapping[int, int] = {1: 2, 2: 2}
_SUMMED: Mapping[str, Mapping[int, int]] = {"MatMul": {1: 1}, "LSTM": _RECURRENT, "GRU": _RECURRENT, "RNN": _RECURRENT}
_LENGTHS, _STATE, _PEEPHOLES = 4, 5, 7  # places among the operands of an LSTM


class Stack(Struct, frozen=True, eq=False):
    """A constant of three axes, one of which is summed."""

    value: ir.Value
    tensor: ir.TensorProtocol
    summed: int  # axis

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of all axes."""
        return tuple(int(size) for size in self.tensor.shape.numpy())


class QuantizeStacks(Quantizer, NodePass):
    """MatMul(x, W) => MatMul(x, Cast(q(W)) * scale) for a stack of matrices W, as of experts; LSTM, GRU, RNN likewise.

    W becomes signed 8-bit integers with one scale for each column of each matrix; x stays float32. ONNX Runtime
    computes the float32 weights once, when it loads the file. Refuses small weights, those that are not float32, and
    products inside loops. Helps because the file takes a quarter of the bytes; time and memory stay the same.
    """

    name = "quantize-stacks"
    roots = tuple(_SUMMED)
    opset = 7
    fewest = 1  # operands that are large constants of three axes

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match a node of a selected module that reads large constants of three axes."""
        if not self._selection.includes(node):
            return None
        found = {
            index: stack
            for index, axis in _SUMMED[node.op_type].items()
            if (stack := _constant_stack(node, index, axis, graph))
        }
        if len(found) < self.fewest:
            return None
        if not is_in_branches(node, graph):
            return Refused(IN_A_LOOP, (node,))
        if reason := self.obstacle(node, graph):
            return Refused(reason, (node,))
        if not all(np.isfinite(stack.tensor.numpy()).all() for stack in found.values()):
            return Refused(NOT_FINITE, (node,))
        return Match((node,), {"stacks": found})

    def obstacle(self, node: ir.Node, graph: Facts) -> str:
        """Return why a node is not rewritten, or ""."""
        del node, graph
        return ""

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the node with weights that are computed from integers, and beside it the simulation."""
        node, stacks = match.root, match.details["stacks"]
        stored = {index: self._constants(stack, op) for index, stack in stacks.items()}

        def computed(weights: Mapping[int, ir.Value]) -> list[ir.Value | None]:
            inputs = tuple(weights.get(index, value) for index, value in enumerate(node.inputs))
            attributes, outputs = dict(node.attributes), len(node.outputs)
            return in_place_of(node, op.node(node.op_type, inputs, attributes, domain=node.domain, outputs=outputs))

        results = computed(
            {
                index: op.Mul(op.Cast(integers, to=ir.DataType.FLOAT), scale)
                for index, (integers, scale) in stored.items()
            }
        )
        if self._simulate:
            exact = computed({index: op.constant(_nearest(stack, stored[index][1])) for index, stack in stacks.items()})
            result, again = next(pair for pair in zip(results, exact, strict=True) if pair[0] is not None)
            first = next(iter(stacks.values()))
            self._add_simulation(node, stacks, first.shape[first.summed], result, again)
        return results

    def _add_simulation(
        self, node: ir.Node, stacks: Mapping[int, Stack], rows: int, result: ir.Value | None, exact: ir.Value | None
    ) -> None:
        assert result is not None
        assert exact is not None
        columns = sum(stack.tensor.size for stack in stacks.values()) // rows
        self.compare(node, result, exact, rows, columns, weight=next(iter(stacks.values())).value.name)

    def _constants(self, stack: Stack, op: Builder) -> tuple[ir.Value, ...]:
        """Return the integers and the scales of a weight, which all nodes that read it share."""

        def make() -> tuple[ir.Value, ...]:
            scales = np.expand_dims(largest_scales(stack.tensor.numpy(), stack.summed, SIGNED_MOST), stack.summed)
            integers = lazy(ir.DataType.INT8, stack.shape, lambda: np.rint(stack.tensor.numpy() / scales))
            return op.constant(integers, "quantized"), op.constant(scales, "scales")

        return self.shared((stack.value, stack.summed, *in_body(op)), make)


def _constant_stack(node: ir.Node, index: int, summed: int, graph: Facts) -> Stack | None:
    """Return a large constant operand of three axes, one of which is summed; None if it is not one."""
    value = operand(node, index)
    tensor = graph.tensor(value)
    if value is None or tensor is None or isinstance(tensor, DerivedTensor):
        return None
    is_stack = len(tensor.shape) == 3 and tensor.dtype is ir.DataType.FLOAT and tensor.size >= MIN_ELEMENTS
    return Stack(value, tensor, summed) if is_stack else None


def _nearest(stack: Stack, scales: ir.Value, most: int = SIGNED_MOST) -> ir.TensorProtocol:
    """Return the numbers closest to a weight that integers with the stored scales can stand for."""

    def rounded() -> Array:
        rows = np.moveaxis(stack.tensor.numpy(), stack.summed, -1)
        nearest = simulation.nearest_signed(rows.reshape(-1, rows.shape[-1]), 0, simulation.read(scales).ravel(), most)
        return np.moveaxis(nearest.reshape(rows.shape), -1, stack.summed)

    return simulated(stack.shape, rounded)


class QuantizeLstm(QuantizeStacks):
    """LSTM(x, W, R) => DynamicQuantizeLSTM(x, q(W), q(R)) for constant weights.

    W and R become signed 8-bit integers with one scale for each gate of each unit; on a CPU that adds 8-bit products
    with saturation, they have 7 bits. The runtime quantizes all inputs together and the state of each step, with their
    own ranges. For the target `ort`. Refuses small weights, those that are not float32, lengths of sequences, batches
    before steps, and nodes inside bodies. Helps because 8-bit products are faster on most CPUs, and weights take a
    quarter of the bytes.
    """

    name = "quantize-lstm"
    roots = ("LSTM",)
    targets = ("ort",)
    needs = 11
    fewest = 2

    def obstacle(self, node: ir.Node, graph: Facts) -> str:
        """Return why the operator of ONNX Runtime does not compute the same, or ""."""
        if graph.scope(node).path:
            return "it is inside a branch"
        if operand(node, _LENGTHS) is not None:
            return "it has lengths of sequences"
        return "its batch is before its steps" if node.attributes.get_int("layout", 0) else ""

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the operator of ONNX Runtime, and beside it the simulation."""
        node, stacks, most = match.root, match.details["stacks"], most_of_products()
        inputs = [operand(node, place) for place in range(_PEEPHOLES + 1)]
        zeros_shape: tuple[int, ...] = stacks[1].shape[:2]
        scales: dict[int, ir.Value] = {}
        stored = {index: self._integers(stack, most, op) for index, stack in stacks.items()}
        # All weights with as many gates share the zeros; the runtime reads as many as there are scales.
        (zeros,) = self.shared(zeros_shape, lambda: [op.constant(np.zeros(zeros_shape, np.int8), "zeros")])
        for index, (integers, scale) in stored.items():
            inputs[index], scales[index] = integers, scale
            inputs += [scale, zeros]
        attributes = {name: value for name, value in node.attributes.items() if name != "layout"}
        states = op.node("DynamicQuantizeLSTM", tuple(inputs), attributes, domain="com.microsoft", outputs=3)
        if self._simulate:
            exact = _simulation(node, stacks, scales, states[0], most, op)
            rows = sum(stack.shape[stack.summed] for stack in stacks.values())
            self._add_simulation(node, stacks, rows, states[0], exact)
        return in_place_of(node, states, keep_first=self._simulate)

    def _integers(self, stack: Stack, most: int, op: Builder) -> tuple[ir.Value, ir.Value]:
        """Return integers as directions × inputs × gates, and their scales as directions × gates."""
        directions, gates, inputs = stack.shape
        scales = largest_scales(stack.tensor.numpy(), stack.summed, most)

        def integers() -> Array:
            return np.rint(stack.tensor.numpy() / scales[..., None]).transpose(0, 2, 1)

        stored = lazy(ir.DataType.INT8, (directions, inputs, gates), integers)
        return op.constant(stored, "quantized"), op.constant(scales, "scales")


def _simulation(
    node: ir.Node, stacks: Mapping[int, Stack], scales: Mapping[int, ir.Value], states: ir.Value, most: int, op: Builder
) -> ir.Value:
    """Build the states of all steps in float32, each from the state that the runtime has before it.

    The sums of all gates are products of quantized inputs and states. An LSTM whose weights are the identity and zero
    does the rest: it has no state but its cells.
    """
    directions, gates, _ = stacks[1].shape
    exact = [operand(node, place) for place in range(_PEEPHOLES + 1)]
    source, given = exact[0], exact[_STATE]
    assert source is not None

    def part(value: ir.Value, start: int, end: int) -> ir.Value:
        return op.Slice(value, *(op.constant(np.array([number])) for number in (start, end, 0)))

    inputs, is_reverse = simulation.dynamic_activation(source, op), node.attributes.get_string("direction") == "reverse"
    sums: list[ir.Value] = []
    for direction in range(directions):
        own = op.Gather(states, op.constant(np.array(direction)), axis=1)
        first = part(own, 0, 1) if given is None else part(given, direction, direction + 1)
        if given is None:  # zero
            first = op.Sub(first, first)
        if direction or is_reverse:
            before = op.Concat(part(own, 1, np.iinfo(np.int64).max), first, axis=0)
        else:
            before = op.Concat(first, part(own, 0, -1), axis=0)
        weight, recurrent = (
            op.constant(_transposed(stack, direction, scales[index], most)) for index, stack in stacks.items()
        )
        state = simulation.activation_by_steps(before, op)
        sums.append(op.Add(op.MatMul(inputs, weight), op.MatMul(state, recurrent)))
    shape = (directions, gates, directions * gates)
    identity = simulated(shape, lambda: np.eye(directions * gates, dtype=np.float32).reshape(shape))
    none = simulated(stacks[2].shape, lambda: np.zeros(stacks[2].shape, np.float32))
    exact[:3] = sums[0] if directions == 1 else op.Concat(*sums, axis=2), op.constant(identity), op.constant(none)
    return op.node("LSTM", tuple(exact), dict(node.attributes), outputs=1)[0]


def _transposed(stack: Stack, direction: int, scales: ir.Value, most: int) -> ir.TensorProtocol:
    """Return the weight of a direction, as inputs × gates, that integers with the stored scales stand for."""
    _, gates, inputs = stack.shape
    return simulated((inputs, gates), lambda: _nearest(stack, scales, most).numpy()[direction].T)
