"""MatMul(x, W) => MatMul(x, Cast(q(W)) * scale) for a stack of matrices W, as of experts; LSTM, GRU and RNN likewise.

W becomes signed 8-bit integers with one scale for each column of each matrix; x stays float32. ONNX Runtime computes
the float32 weights once, when it loads the file. Refuses small weights, those that are not float32, and products inside
bodies. Helps because the file takes a quarter of the bytes; time and memory stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import label
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Builder, Facts, Match, NodePass, Refused, Replacement
from sardonyx.quantization import simulation
from sardonyx.quantization.recipe import SMALLEST, Quantizer, Selection, Simulated
from sardonyx.quantization.weights import SIGNED_MOST, DerivedTensor, lazy, simulated

_RECURRENT: Mapping[int, int] = {1: 2, 2: 2}
_SUMMED: Mapping[str, Mapping[int, int]] = {"MatMul": {1: 1}, "LSTM": _RECURRENT, "GRU": _RECURRENT, "RNN": _RECURRENT}


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
    """Stacks of matrices in 8-bit integers, which become float32 when the file is loaded."""

    name = "quantize-stacks"
    roots = tuple(_SUMMED)
    opset = 7

    def __init__(self, selection: Selection | None = None, *, simulate: bool = False) -> None:
        """Store the weights of selected modules; with `simulate`, compute each product in float32 as well."""
        super().__init__(selection, simulate=simulate)
        self._stored: dict[tuple[ir.Value, int], tuple[ir.Value, ...]] = {}

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Match a node of a selected module that reads a large constant of three axes."""
        if not self._selection.includes(node):
            return None
        found = {
            index: stack
            for index, axis in _SUMMED[node.op_type].items()
            if (stack := constant_stack(node, index, axis, graph))
        }
        scope = graph.scope(node)
        if not found:
            return None
        if scope.holder is not None or scope.in_function:
            return Refused("it is inside a body or a function", (node,))
        if not all(np.isfinite(stack.tensor.numpy()).all() for stack in found.values()):
            return Refused("the weight has infinities or NaN", (node,))
        return Match((node,), {"stacks": found})

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build the node with weights that are computed from integers, and beside it the simulation."""
        node, stacks = match.root, match.details["stacks"]
        stored = {index: self._constants(stack, op) for index, stack in stacks.items()}
        weights = {
            index: op.Mul(op.Cast(integers, to=ir.DataType.FLOAT), scale) for index, (integers, scale) in stored.items()
        }
        results = self._computed(node, weights, op)
        if self._simulate:
            exact = {index: op.constant(_simulated(stack, stored[index][1])) for index, stack in stacks.items()}
            place = next(at for at, output in enumerate(node.outputs) if output.name)
            result, again = results[place], self._computed(node, exact, op)[place]
            assert result is not None
            assert again is not None
            first = next(iter(stacks.values()))
            rows, columns = first.shape[first.summed], sum(stack.tensor.size for stack in stacks.values())
            self.simulated.append(
                Simulated(
                    label(node), owner(node), self.name, rows, columns // rows, result, again, weight=first.value.name
                )
            )
        return results

    def _computed(self, node: ir.Node, weights: Mapping[int, ir.Value], op: Builder) -> list[ir.Value | None]:
        inputs = tuple(weights.get(index, value) for index, value in enumerate(node.inputs))
        results = op.node(node.op_type, inputs, dict(node.attributes), domain=node.domain, outputs=len(node.outputs))
        return like_recurrent(node, results)

    def _constants(self, stack: Stack, op: Builder) -> tuple[ir.Value, ...]:
        """Return the integers and the scales of a weight, which all nodes that read it share."""
        key = (stack.value, stack.summed)
        known = self._stored.get(key)
        if known is None or not all(value.is_initializer() for value in known):
            values = stack.tensor.numpy()
            scales = (np.abs(values).max(stack.summed, keepdims=True) / np.float32(SIGNED_MOST)).astype(np.float32)
            scales[scales == 0] = 1
            integers = lazy(ir.DataType.INT8, stack.shape, lambda: np.rint(stack.tensor.numpy() / scales))
            known = (op.constant(integers, "quantized"), op.constant(scales, "scales"))
            self._stored[key] = known
        return known


def like_recurrent(node: ir.Node, results: Sequence[ir.Value], *, keep_first: bool = False) -> list[ir.Value | None]:
    """Return the results in place of those of a node, and take the names of those that nothing reads."""
    kept: list[ir.Value | None] = []
    for place, new in enumerate(results):
        is_read = place < len(node.outputs) and bool(node.outputs[place].name)
        new.name = new.name if is_read or (keep_first and place == 0) else ""
        if place < len(node.outputs):
            kept.append(new if is_read else None)
    return kept


def constant_stack(node: ir.Node, index: int, summed: int, graph: Facts) -> Stack | None:
    """Return a large constant operand of three axes, one of which is summed; None if it is not one."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = graph.tensor(value)
    if value is None or tensor is None or isinstance(tensor, DerivedTensor):
        return None
    is_stack = len(tensor.shape) == 3 and tensor.dtype is ir.DataType.FLOAT and tensor.size >= SMALLEST
    return Stack(value, tensor, summed) if is_stack else None


def _simulated(stack: Stack, scales: ir.Value) -> ir.TensorProtocol:
    """Return the numbers closest to a weight that integers with the stored scales can stand for, matrix by matrix."""

    def rounded() -> Array:
        matrices = stack.tensor.numpy()
        steps = simulation.read(scales).reshape(len(matrices), -1)
        axis = 2 - stack.summed  # of the columns in a matrix
        each = (
            simulation.nearest_signed(one, axis, own, SIGNED_MOST) for one, own in zip(matrices, steps, strict=True)
        )
        return np.stack(list(each))

    return simulated(stack.shape, rounded)
