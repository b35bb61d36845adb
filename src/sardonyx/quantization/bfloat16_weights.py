"""N(x, W) => N(x, Cast32(W16)), and Gather(W, i) => Cast32(Gather(W16, i)), for a constant W in bfloat16.

ONNX Runtime has no CPU kernels for products, sums and most other operators in bfloat16, so that they compute in float32
on the rounded weights. Refuses a small constant and one that overflows. Helps because the file takes half of the bytes
and bfloat16 has the range of float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import ml_dtypes
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import LOOKUPS
from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import has_bodies, label
from sardonyx.ir.storage import Array
from sardonyx.passes.base import Accuracy, Builder, Match, ModelPass, Proposal, Refused, Replacement
from sardonyx.quantization.half_rounding import check_stored, nearest_bfloat16
from sardonyx.quantization.recipe import SMALLEST, Selection, Simulated
from sardonyx.quantization.weights import DerivedTensor, lazy

_OPSET = 13  # the first whose Cast knows bfloat16
_D = ir.DataType


class StoreInBfloat16(ModelPass):
    """Constants of selected modules in bfloat16."""

    name = "quantize-to-bf16"
    accuracy = Accuracy.QUANTIZES

    def __init__(self, selection: Selection, *, simulate: bool = False) -> None:
        """Store the constants that the selected modules read; with `simulate`, beside float32."""
        self._selection = selection
        self._simulate = simulate
        self.simulated: list[Simulated] = []
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
            if graph.opset(node) < _OPSET:
                yield Refused(f"bfloat16 needs opset {_OPSET}", (node,))
            else:
                yield Proposal(Match((node,)), functools.partial(self._convert, node, found, graph))

    def _convert(self, node: ir.Node, weights: list[int], graph: Facts, op: Builder) -> Replacement:
        looks_up = node.op_type in LOOKUPS and not node.domain
        inputs = tuple(
            self._weight(value, graph, op, cast=not looks_up) if index in weights and value is not None else value
            for index, value in enumerate(node.inputs)
        )
        results = op.node(node.op_type, inputs, dict(node.attributes), domain=node.domain, outputs=len(node.outputs))
        replacements: list[ir.Value | None] = []
        for old, new in zip(node.outputs, results, strict=True):
            new.name = new.name if old.name else ""
            replacements.append(new if old.name else None)
        if looks_up:
            replacements = [op.Cast(results[0], to=_D.FLOAT)]
        if self._simulate:
            self._add_simulation(node, weights, graph, op, replacements[0])
        return replacements

    def _weight(self, value: ir.Value, graph: Facts, op: Builder, *, cast: bool) -> ir.Value:
        stored = self._stored.get(value)
        if stored is None or (stored.graph is None and stored not in op.constants):
            tensor = graph.tensor(value)
            assert tensor is not None
            shape = tuple(int(size) for size in tensor.shape.numpy())
            stored = op.constant(lazy(_D.BFLOAT16, shape, lambda: _rounded(tensor)), "bf16")
            self._stored[value] = stored
        return op.Cast(stored, to=_D.FLOAT) if cast else stored

    def _add_simulation(
        self, node: ir.Node, weights: list[int], graph: Facts, op: Builder, result: ir.Value | None
    ) -> None:
        inputs = tuple(
            self._checked(value, graph, op) if index in weights and value is not None else value
            for index, value in enumerate(node.inputs)
        )
        made = op.node(node.op_type, inputs, dict(node.attributes), domain=node.domain, outputs=len(node.outputs))
        if result is not None and graph.dtype(node.outputs[0]) is _D.FLOAT:
            self.simulated.append(Simulated(label(node), owner(node), self.name, 1, 0, result, made[0]))

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
    return tensor.dtype is _D.FLOAT and tensor.size >= SMALLEST


def _rounded(tensor: ir.TensorProtocol) -> Array:
    return tensor.numpy().astype(ml_dtypes.bfloat16)
