"""Which numbers can leave the range of float16, by node: as measured on samples, and as bounds that follow from these.

Constants that only mask attention scores, such as the lowest float32 number, are no such numbers. softmax(s + m) with
m = -3.4e38 is 0 where it masks. Any number far below the scores does the same, and -3.4e38 would become -inf in
float16, where a row that is masked everywhere gives NaN. Such a constant becomes -30000: two of them can be added to
scores, and the sum is still finite. A constant counts as a mask if everything that is computed from it is read by a
Softmax, through Where, Add, Mul, Max and operators that move data.

A bound holds for all inputs with which the operands of the node stay within their measured ranges: squares, sums of
many numbers, and products, whose sums are at most those of magnitudes. Norms that are one operator compute their
squares in float32 (`stash_type`), so that only what they read and return counts.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, GLOBAL_POOLS, MOVES_DATA, SOFTMAXES, attention_operands
from sardonyx.ir.precision import FORMATS
from sardonyx.ir.scopes import is_constant, operand
from sardonyx.ir.storage import Array
from sardonyx.verbs.quantize.calibration import Ranges

MASK = -30000.0
_REPLACED_BELOW = -16384.0  # constants below this are replaced
_MAX_BYTES = 1 << 24  # of a constant that is read
_FIRST = MOVES_DATA | {"Cast", "Sub"}  # pass on their first operand
_ALL = frozenset({"Add", "Concat", "Max", "Mul"})


class Masks(Struct, frozen=True, eq=False):
    """The constants that mask, and all values that contain their numbers, up to the Softmax."""

    constants: frozenset[ir.Value]
    values: frozenset[ir.Value]


def find_masks(graph: Facts) -> Masks:
    """Return the masks of the main graph."""
    main = graph.model.graph
    nodes = list(main)
    ends: dict[ir.Value, bool] = {}  # whether everything that is computed from a value ends in a Softmax

    def is_masked(node: ir.Node, index: int) -> bool:
        """Return whether the operand of a node ends in a Softmax and nowhere else."""
        if node.graph is not main:
            return False
        operands = attention_operands(node)
        if operands is not None:
            return index == operands.bias
        if node.op_type == "Softmax" and not node.domain:
            return True
        return _passes_on(node, {index}) and ends.get(node.outputs[0], False)

    def only_masks(value: ir.Value) -> bool:
        if value not in ends:
            uses = value.uses()
            is_read = bool(uses) and not value.is_graph_output()
            ends[value] = is_read and all(is_masked(use.node, use.idx) for use in uses)
        return ends[value]

    for node in reversed(nodes):  # consumers first, so that each lookup is of a known value
        for value in node.outputs:
            only_masks(value)
    stored = [*main.initializers.values(), *(node.outputs[0] for node in nodes if is_constant(node))]
    constants = frozenset(value for value in stored if _is_low(value, graph) and only_masks(value))
    masked = set(constants)
    for node in nodes if constants else ():
        if _passes_on(node, {index for index, value in enumerate(node.inputs) if value in masked}):
            masked.update(node.outputs)
    return Masks(constants, frozenset(masked))


def replaced(array: Array) -> Array:
    """Return a mask whose finite numbers are at least -30000."""
    return np.where(np.isfinite(array), np.maximum(array, np.float32(MASK)), array).astype(np.float32)


def _is_low(value: ir.Value, graph: Facts) -> bool:
    tensor = graph.tensor(value)
    if tensor is None or tensor.dtype is not ir.DataType.FLOAT or tensor.nbytes > _MAX_BYTES or not tensor.size:
        return False
    array = tensor.numpy()
    return bool(((array < _REPLACED_BELOW) & np.isfinite(array)).any())


def _passes_on(node: ir.Node, indices: set[int]) -> bool:
    """Return whether the result of a node contains the numbers of one of these operands."""
    if node.domain or not indices:
        return False
    if node.op_type == "Where":
        return bool(indices & {1, 2})
    return node.op_type in _ALL or (node.op_type in _FIRST and 0 in indices)


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
        self._graph, self._ranges, self.masks = graph, ranges, masks

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
        for value in node.inputs if node.op_type in _EPSILONS and not node.domain else ():
            epsilon = self._graph.scalar(value)
            if isinstance(epsilon, float) and 0 < epsilon < 2.0**-14:  # the smallest normal number
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
        is_power = name == "Pow" and self._graph.scalar(operand(node, 1)) == 2
        if is_power or (name == "Mul" and node.inputs[0] is node.inputs[1]):
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
        """Return the largest magnitude of a value that was measured, or of a constant that does not mask."""
        measured = self.measured(value)
        if measured is not None or value in self.masks.constants:
            return measured or 0.0
        array = self._graph.array(value)
        finite = np.zeros(1) if array is None or array.dtype.kind != "f" else array[np.isfinite(array)]
        return float(np.abs(finite).max(initial=0))

    def measured(self, value: ir.Value | None) -> float | None:
        """Return the largest measured magnitude; that of numbers that mask is the largest above 0."""
        known = None if value is None else self._ranges.get(value.name or "")
        if known is None:
            return None
        return known.high if value in self.masks.values else known.largest

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
