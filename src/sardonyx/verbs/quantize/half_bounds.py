"""Which numbers can leave the range of float16, by node: as measured on samples, and as bounds that follow from these.

A bound holds for all inputs with which the operands of the node stay within their measured ranges: squares, sums of
many numbers, and products, whose sums are at most those of magnitudes. Norms that are one operator compute their
squares in float32 (`stash_type`), so that only what they read and return counts.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, GLOBAL_POOLS, SOFTMAXES
from sardonyx.ir.precision import FORMATS
from sardonyx.ir.scopes import is_constant, operand
from sardonyx.verbs.quantize.calibration import Ranges
from sardonyx.verbs.quantize.masks import Masks

MOST = FORMATS[ir.DataType.FLOAT16].most
_LEAST = FORMATS[ir.DataType.FLOAT16].least
_SQUARES = frozenset({"ReduceL2", "ReduceSumSquare"})
_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})  # sums before they are divided
_SUMS = _MEANS | {"CumSum", "ReduceL1", "ReduceSum"}
_INNER_SQUARES = frozenset(  # of norms and pools that are one operator, in the type of what they read
    {"GlobalLpPool", "InstanceNormalization", "LRN", "LpNormalization", "LpPool", "MeanVarianceNormalization"}
)
_EPSILONS = frozenset({"Add", "Clip", "Max"})  # that keep a number from becoming 0
_STASH = frozenset({"GroupNormalization", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_BETWEEN_SCORES = frozenset({"Add", "Div", "Mul", "Sub", "Where"})  # and a Softmax


class Bounds:
    """The measured magnitudes of a model, and what can be computed from them."""

    def __init__(self, graph: Facts, ranges: Ranges, masks: Masks) -> None:
        self._graph, self._ranges, self._masks = graph, ranges, masks

    def risks(self) -> dict[ir.Node, str]:
        """Return why numbers of each node of the main graph can leave the range; others are left out."""
        found = {node: self._risk(node) for node in self._graph.model.graph if not is_constant(node)}
        return {node: reason for node, reason in found.items() if reason is not None}

    def inner_square(self, node: ir.Node) -> float:
        """Return the largest square inside of a norm or pool that does not compute it in float32; otherwise 0."""
        in_half = node.attributes.get_int("stash_type", 1) != ir.DataType.FLOAT.value
        squares = node.op_type in _INNER_SQUARES or (node.op_type in _STASH and in_half)
        return self._largest(operand(node, 0)) ** 2 if squares else 0.0

    def _risk(self, node: ir.Node) -> str | None:
        epsilon = self._epsilon(node)
        if epsilon is not None:
            how = "becomes 0" if epsilon < _LEAST / 2 else "loses its digits"
            return f"{node.op_type} with {epsilon:.0e}, which {how} in float16"
        measured = max((self._largest(value) for value in node.outputs), default=0.0)
        what, bound = self._bound(node)
        if measured > MOST:
            return f"{'its numbers' if node.op_type in _MEANS else what} reach {measured:.1e}"
        return f"{what} can reach {bound:.1e}; {measured:.1e} on the samples" if bound > MOST else None

    def _bound(self, node: ir.Node) -> tuple[str, float]:
        """Return what the numbers of a node are, and the bound of their magnitude; infinite bounds are not known."""
        name, first = node.op_type, self._largest(operand(node, 0))
        if square := self.inner_square(node):
            return "its inner squares", square
        if (name == "Mul" and node.inputs[0] is node.inputs[1]) or (name == "Pow" and self._is_square(node)):
            return "its squares", first**2
        if name in _SQUARES:
            return "its sums of squares", first**2 * self._reduced(node)
        if name in _SUMS:
            terms = self._reduced(node)
            return f"its sums of {terms} numbers" if terms > 1 else "its sums", first * terms
        if name in ALL_PRODUCTS or name in ALL_CONVOLUTIONS:
            return self._product(node)
        return "its numbers", 0.0

    def _product(self, node: ir.Node) -> tuple[str, float]:
        """Return the bound of a sum of products: with a constant weight, the largest sum of its magnitudes counts."""
        first, second = operand(node, 0), operand(node, 1)
        tensor, shape = self._graph.tensor(second), self._graph.shape(first)
        axis = -1 if node.op_type != "Gemm" or not node.attributes.get_int("transA", 0) else 0
        width = shape[axis] if shape else None
        terms = width if isinstance(width, int) else 1
        if tensor is None:
            bound = terms * self._largest(first) * self._largest(second)
        elif node.op_type in ALL_CONVOLUTIONS:
            outputs = 1 if node.op_type == "ConvTranspose" else 0  # the axis of the filters
            summed = tuple(axis for axis in range(len(tensor.shape)) if axis != outputs)
            terms = math.prod(int(tensor.shape.numpy()[axis]) for axis in summed)
            bound = self._largest(first) * float(np.abs(tensor.numpy()).sum(summed).max())
        else:
            rows = -1 if node.attributes.get_int("transB", 0) else -2
            sums = np.abs(tensor.numpy()).sum(rows if len(tensor.shape) > 1 else None)
            bound = self._largest(first) * float(sums.max())
        kind = "its scores, sums" if self._are_scores(node) else "its sums"
        return f"{kind} of {terms} products" if terms > 1 else kind, bound

    def _largest(self, value: ir.Value | None) -> float:
        """Return the largest measured magnitude; that of numbers that mask is the largest above 0."""
        if value is None:
            return 0.0
        known = self._ranges.get(value.name or "")
        if known is not None:
            return known.high if value in self._masks.values else known.largest
        array = self._graph.array(value)
        finite = np.zeros(1) if array is None or array.dtype.kind != "f" else array[np.isfinite(array)]
        return float(np.abs(finite).max(initial=0)) if value not in self._masks.constants else 0.0

    def _reduced(self, node: ir.Node) -> int:
        """Return how many numbers are summed, as far as it is known."""
        shape, result = self._graph.shape(operand(node, 0)), self._graph.shape(node.outputs[0])
        if shape is None or result is None:
            return 1
        if node.op_type == "CumSum" or node.op_type in GLOBAL_POOLS:
            sizes = shape if node.op_type == "CumSum" else shape[2:]
            return math.prod(size for size in sizes if isinstance(size, int))
        before, after = (math.prod(size for size in each if isinstance(size, int)) for each in (shape, result))
        return max(1, before // max(1, after))

    def _is_square(self, node: ir.Node) -> bool:
        return self._graph.scalar(operand(node, 1)) == 2

    def _epsilon(self, node: ir.Node) -> float | None:
        """Return a positive constant that is added or a lower limit, and that float16 has no normal number for."""
        if node.op_type not in _EPSILONS or node.domain:
            return None
        numbers = [self._graph.scalar(value) for value in node.inputs]
        small = [float(each) for each in numbers if isinstance(each, float) and 0 < each < 2.0**-14]
        return small[0] if small else None

    def _are_scores(self, node: ir.Node) -> bool:
        """Return whether a Softmax reads the result, after what scales and masks it."""
        value = node.outputs[0]
        for _ in range(4):  # a scale, a mask, a bias, and the Softmax
            users = [use.node for use in value.uses()]
            if any(user.op_type in SOFTMAXES for user in users):
                return True
            if len(users) != 1 or users[0].op_type not in _BETWEEN_SCORES:
                return False
            value = users[0].outputs[0]
        return False
