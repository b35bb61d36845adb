"""LSTM(x, W, R) => DynamicQuantizeLSTM(x, q(W), q(R)) for constant weights.

W and R become signed 8-bit integers with one scale for each gate of each unit; on a CPU that adds 8-bit products with
saturation, they have 7 bits. The runtime quantizes all inputs together and the state of each step, with their own
ranges. For the target `ort`. Refuses small weights, those that are not float32, lengths of sequences, batches before
steps, and nodes inside bodies. Helps because 8-bit products are faster on most CPUs, and weights take a quarter of the
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import label, operand
from sardonyx.passes.base import Builder, Facts, Match, NodePass, Refused, Replacement
from sardonyx.quantization import simulation, weights
from sardonyx.quantization.recipe import Quantizer, Selection, Simulated
from sardonyx.quantization.saturation import REDUCED_MOST, saturates
from sardonyx.quantization.stacked_weights import Stack, constant_stack, like_recurrent
from sardonyx.quantization.weights import lazy, simulated

_WEIGHTS, _BIAS, _LENGTHS, _PEEPHOLES = (1, 2), 3, 4, 7  # places among the operands
_SUMMED = 2  # the axis of both weights


class QuantizeLstm(Quantizer, NodePass):
    """LSTM in 8-bit integers, with inputs and states quantized at run time."""

    name = "quantize-lstm"
    roots = ("LSTM",)
    targets = ("ort",)
    opset = 7
    needs = 11

    def __init__(self, selection: Selection | None = None, *, simulate: bool = False) -> None:
        """Use fewer integers on a CPU that would saturate."""
        super().__init__(selection, simulate=simulate)
        self.most = REDUCED_MOST if saturates() else weights.SIGNED_MOST
        self._zeros: dict[tuple[int, ...], ir.Value] = {}

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match an LSTM of a selected module with two large constant weights."""
        if not self._selection.includes(node):
            return None
        found = {index: constant_stack(node, index, _SUMMED, graph) for index in _WEIGHTS}
        stacks = {index: stack for index, stack in found.items() if stack is not None}
        scope = graph.scope(node)
        if len(stacks) < len(_WEIGHTS):
            return None
        if scope.holder is not None or scope.in_function:
            return Refused("it is inside a body or a function", (node,))
        if operand(node, _LENGTHS) is not None:
            return Refused("it has lengths of sequences", (node,))
        if node.attributes.get_int("layout", 0):
            return Refused("its batch is before its steps", (node,))
        if not all(np.isfinite(stack.tensor.numpy()).all() for stack in stacks.values()):
            return Refused("the weight has infinities or NaN", (node,))
        return Match((node,), {"stacks": stacks})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the operator of ONNX Runtime, and beside it the simulation."""
        node, stacks = match.root, match.details["stacks"]
        stored = {index: self._constants(stack, op) for index, stack in stacks.items()}
        inputs = [operand(node, place) for place in range(_PEEPHOLES + 1)]
        zeros = self._zero_points(stacks[1].shape[:_SUMMED], op)
        for index, (integers, scale) in stored.items():
            inputs[index] = integers
            inputs += [scale, zeros]
        attributes = {name: value for name, value in node.attributes.items() if name != "layout"}
        states = op.node("DynamicQuantizeLSTM", tuple(inputs), attributes, domain="com.microsoft", outputs=3)
        if self._simulate:
            exact = _simulation(
                node, stacks, {index: scale for index, (_, scale) in stored.items()}, states[0], self.most, op
            )
            first, rows = stacks[1], sum(stack.shape[_SUMMED] for stack in stacks.values())
            columns = sum(stack.tensor.size for stack in stacks.values()) // rows
            self.simulated.append(
                Simulated(label(node), owner(node), self.name, rows, columns, states[0], exact, weight=first.value.name)
            )
        return like_recurrent(node, states, keep_first=self._simulate)

    def _constants(self, stack: Stack, op: Builder) -> tuple[ir.Value, ir.Value]:
        """Return integers as directions × inputs × gates, and their scales as directions × gates."""
        directions, gates, inputs = stack.shape
        scales = (np.abs(stack.tensor.numpy()).max(_SUMMED) / np.float32(self.most)).astype(np.float32)
        scales[scales == 0] = 1

        def integers() -> np.ndarray:
            return np.rint(stack.tensor.numpy() / scales[..., None]).transpose(0, 2, 1)

        return (
            op.constant(lazy(ir.DataType.INT8, (directions, inputs, gates), integers), "quantized"),
            op.constant(scales, "scales"),
        )

    def _zero_points(self, shape: tuple[int, ...], op: Builder) -> ir.Value:
        """Return zeros, which all weights with as many gates share; the runtime reads as many as there are scales."""
        known = self._zeros.get(shape)
        if known is None or not known.is_initializer():
            known = self._zeros[shape] = op.constant(np.zeros(shape, np.int8), "zeros")
        return known


def portable_notes(model: ir.Model, target: str, precisions: Sequence[str]) -> tuple[str, ...]:
    """Return a note if an LSTM could be computed in integers for another target."""
    if target == "ort" or "int8" not in precisions or not any(node.op_type == "LSTM" for node in model.graph):
        return ()
    return ("LSTM computes in float32, with weights in 8 bits; for the target `ort` it computes in 8-bit integers",)


def _simulation(
    node: ir.Node, stacks: Mapping[int, Stack], scales: Mapping[int, ir.Value], states: ir.Value, most: int, op: Builder
) -> ir.Value:
    """Build the states of all steps in float32, each from the state that the runtime has before it.

    The sums of all gates are products of quantized inputs and states. An LSTM whose weights are the identity and zero
    does the rest: it has no state but its cells.
    """
    directions, gates, _ = stacks[1].shape
    is_reverse = [node.attributes.get_string("direction", "forward") == "reverse", True]
    inputs = simulation.dynamic_activation(_operand(node, 0), op)
    sums: list[ir.Value] = []
    for direction in range(directions):
        before = _before(node, states, direction, op, is_reverse=is_reverse[direction])
        weight, recurrent = (
            op.constant(_transposed(stack, direction, scales[index], most)) for index, stack in stacks.items()
        )
        state = simulation.activation_by_steps(before, op)
        sums.append(op.Add(op.MatMul(inputs, weight), op.MatMul(state, recurrent)))
    shape = (directions, gates, directions * gates)
    identity = simulated(shape, lambda: np.eye(directions * gates, dtype=np.float32).reshape(shape))
    none = simulated(stacks[2].shape, lambda: np.zeros(stacks[2].shape, np.float32))
    exact = [operand(node, place) for place in range(_PEEPHOLES + 1)]
    exact[0] = sums[0] if directions == 1 else op.Concat(*sums, axis=2)
    exact[1], exact[2] = op.constant(identity), op.constant(none)
    return op.node("LSTM", tuple(exact), dict(node.attributes), outputs=1)[0]


def _before(node: ir.Node, states: ir.Value, direction: int, op: Builder, *, is_reverse: bool) -> ir.Value:
    """Return the state before each step of one direction: the first is given, or zero."""

    def part(value: ir.Value, start: int, end: int) -> ir.Value:
        return op.Slice(value, *(op.constant(np.array([number])) for number in (start, end, 0)))

    own = op.Gather(states, op.constant(np.array(direction)), axis=1)
    given = operand(node, 5)
    if given is None:
        first = part(own, 0, 1)
        first = op.Sub(first, first)
    else:
        first = part(given, direction, direction + 1)
    if is_reverse:
        return op.Concat(part(own, 1, np.iinfo(np.int64).max), first, axis=0)
    return op.Concat(first, part(own, 0, -1), axis=0)


def _transposed(stack: Stack, direction: int, scales: ir.Value, most: int) -> ir.TensorProtocol:
    """Return the weight of a direction, as inputs × gates, that integers with the stored scales stand for."""
    _, gates, inputs = stack.shape

    def rounded() -> np.ndarray:
        steps = simulation.read(scales)[direction]
        return simulation.nearest_signed(stack.tensor.numpy()[direction], 0, steps, most).T

    return simulated((inputs, gates), rounded)


def _operand(node: ir.Node, place: int) -> ir.Value:
    value = operand(node, place)
    assert value is not None
    return value
