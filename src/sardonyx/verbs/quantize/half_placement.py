"""Which nodes compute in float16: those that can, without casts that cost more than they save.

A node stays in float32 if float16 is not defined for it, if a value that it reads or computes exceeds a quarter of the
largest float16 number, if a constant is too large or too small for float16, or if it sums, divides or raises numbers in
a way that loses too many digits. The others start in float16; a node that is not a product moves to float32 where this
saves casts. What remains without a product or a large constant moves as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import (
    ALL_CONVOLUTIONS,
    ALL_PRODUCTS,
    ARITHMETIC,
    ATTENTION_NAMES,
    GLOBAL_POOLS,
    MAKES_SEQUENCE,
    MOVES_DATA,
    OPTIONALS,
    POOLS,
    QUANTIZES,
    RANDOM,
    RECURRENT,
    REDUCES,
    TRIGONOMETRIC,
)
from sardonyx.ir.precision import FORMATS, GUARD
from sardonyx.ir.scopes import has_bodies, is_constant, operand, operator
from sardonyx.ir.support import HALF_ERF, HALF_SUMS, KERNELS, OLD_HALF_POOL
from sardonyx.verbs.quantize.calibration import Ranges
from sardonyx.verbs.quantize.half_bounds import MOST, Bounds, Masks
from sardonyx.verbs.quantize.recipe import MIN_ELEMENTS, Selection
from sardonyx.verbs.quantize.weights import DerivedTensor

_NO_TENSORS = MAKES_SEQUENCE | OPTIONALS


class Conversion(Struct, frozen=True, eq=False):
    """The indices of the inputs and outputs of a node that become float16."""

    node: ir.Node
    inputs: frozenset[int]
    outputs: frozenset[int]


def conversion(node: ir.Node, graph: Facts) -> Conversion | str | None:
    """Return how a node is converted, why it cannot be, or None if it has nothing to do with float32."""
    if is_constant(node):
        return None
    single, name = ir.DataType.FLOAT, operator(node)
    inputs = {index: graph.dtype(value) for index, value in enumerate(node.inputs) if value is not None}
    outputs = {index: graph.dtype(value) for index, value in enumerate(node.outputs) if value.name}
    reads, makes = (frozenset(index for index in each if each[index] is single) for each in (inputs, outputs))
    if has_bodies(node) or not reads | makes:
        return None
    if None in (*inputs.values(), *outputs.values()) or node.op_type in _NO_TENSORS:
        return "the types of its operands are not known"
    if node.domain:
        known = ir.DataType.FLOAT16 in KERNELS.get(name, frozenset())
        return Conversion(node, reads, makes) if known else f"{name} is not known in float16"
    try:
        formal_inputs, formal_outputs, half = _variables(node.op_type, graph.opset(node))
    except onnx.defs.SchemaError:
        return f"{name} is not defined in this opset"
    read = {index: formal_inputs[min(index, len(formal_inputs) - 1)] for index in reads}
    made = {formal_outputs[min(index, len(formal_outputs) - 1)] for index in makes}  # the last may be variadic
    converted = frozenset(index for index in reads if read[index] in half)
    if not made <= half or not converted | makes:
        return f"{name} has no float16 in this opset"
    if not made <= {read[index] for index in converted} and name != "Cast":
        return f"the type of {name} is given by an attribute"
    return Conversion(node, converted, makes)


@functools.cache
def _variables(op_type: str, opset: int) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the type variables of the inputs and outputs of an operator, and those that can be float16."""
    schema = onnx.defs.get_schema(op_type, opset)
    half = [each.type_param_str for each in schema.type_constraints if "tensor(float16)" in each.allowed_type_strs]
    inputs, outputs = (tuple(each.type_str for each in formal) for formal in (schema.inputs, schema.outputs))
    return inputs, outputs, frozenset((*half, "tensor(float16)"))


_FORMAT = FORMATS[ir.DataType.FLOAT16]
LIMIT = _FORMAT.most / 4  # of measured numbers: other inputs may give larger ones
SMALLEST_NORMAL = _FORMAT.least / (2 * _FORMAT.roundoff)
PRODUCTS = ALL_PRODUCTS | ALL_CONVOLUTIONS | ATTENTION_NAMES | RECURRENT
_SUMS = REDUCES - {"ReduceMax", "ReduceMin"}
_SENSITIVE = (
    _SUMS | TRIGONOMETRIC | QUANTIZES | RANDOM | {"CumSum", "Exp", "Log", "LogSoftmax", "Mod", "Range", "Reciprocal"}
)
_ANGLES = TRIGONOMETRIC - {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh"}
_BEFORE_ANGLES = MOVES_DATA | ARITHMETIC | {"Cast", "Concat", "Einsum", "MatMul"}
_MAX_TERMS = 64  # of an average: sums of more are off by several units in the last place
_SWEEPS = 8  # over all nodes, to save casts
AMONG_SINGLE = "fewer casts are needed if it stays in float32"
OVERFLOW = "its numbers reach"

Flaws = dict[str, str | None]  # why constants cannot be stored in float16, by name; each constant is read once


def place(
    graph: Facts, selection: Selection, ranges: Ranges, masks: Masks, flaws: Flaws
) -> tuple[list[Conversion], dict[ir.Node, str]]:
    """Return the nodes of the main graph that compute in float16, in order, and why others do not."""
    reasons: dict[ir.Node, str] = {}
    candidates: list[Conversion] = []
    angles, bounds = _before_angles(graph), Bounds(graph, ranges, masks)
    for node in graph.model.graph:
        found = conversion(node, graph) if selection.includes(node) else None
        if isinstance(found, Conversion):
            found = _sensitive(node, graph, ranges, angles) or _overflows(found, graph, bounds, flaws) or found
        if isinstance(found, str):
            reasons[node] = found
        elif found is not None:
            candidates.append(found)
    labels = _Labels(graph, candidates)
    labels.save_casts()
    labels.drop_islands()
    reasons |= {each.node: AMONG_SINGLE for each in candidates if each.node not in labels.half}
    return [each for each in candidates if each.node in labels.half], reasons


def _overflows(found: Conversion, graph: Facts, bounds: Bounds, flaws: Flaws) -> str | None:
    """Return which number of a node float16 cannot hold, or None."""
    node = found.node
    values = [node.inputs[index] for index in found.inputs] + [node.outputs[index] for index in found.outputs]
    for value in values:
        tensor = graph.tensor(value)
        if value is not None and tensor is not None:
            if value in bounds.masks.constants:
                continue
            if (name := value.name or "") not in flaws:
                flaws[name] = _flaw(tensor)
            if (flaw := flaws[name]) is not None:
                return flaw
        elif (largest := bounds.measured(value)) is not None and largest > LIMIT:
            return f"{OVERFLOW} {largest:.1e}, more than a quarter of float16's largest number"
    square = bounds.inner_square(node)
    return f"{OVERFLOW} {square:.1e} when it squares them" if square > MOST else None


def _sensitive(node: ir.Node, graph: Facts, ranges: Ranges, angles: set[ir.Node]) -> str | None:
    """Return which property of an operator needs the digits or the range of float32, or None."""
    name = node.op_type
    if name in _SENSITIVE:
        return f"{name} loses too much in float16"
    if node in angles:
        return "its result is an angle"
    for behavior in (OLD_HALF_POOL, HALF_ERF):
        if behavior.concerns(name, opset=graph.opset(node)):
            return behavior.fact
    if HALF_SUMS.concerns(name) and (summed_terms(node, graph) or _MAX_TERMS + 1) > _MAX_TERMS:
        return HALF_SUMS.fact
    if name == "Div" and graph.tensor(operand(node, 1)) is None:
        return "its divisor may become 0 in float16"
    is_summed = any(use.node.op_type in _SUMS for value in node.outputs[:1] for use in value.uses())
    if name == "Pow" and (graph.scalar(operand(node, 1)) not in (2, 3) or is_summed):
        return "Pow loses too much in float16"
    if name == "Mul" and node.inputs[0] is node.inputs[1] and is_summed:
        return "its squares are summed"
    if name == "Cast" and (dtype := graph.dtype(operand(node, 0))) is not None and dtype.is_integer():
        measured = ranges.get(node.outputs[0].name or "")
        if measured is None or measured.low < 0 or measured.high > 1:
            return "it counts: float16 has no odd integers above 2048"
    return None


def summed_terms(node: ir.Node, graph: Facts) -> int | None:
    """Return how many numbers are summed for each element of a result, or None if it is not known."""
    name = node.op_type
    if name in POOLS:
        return math.prod(node.attributes.get_ints("kernel_shape", ()))
    if name in ALL_CONVOLUTIONS:
        shape = graph.static_shape(operand(node, 1))
        return math.prod(shape[1:]) if shape else None
    if name in GLOBAL_POOLS:
        shape = graph.static_shape(operand(node, 0))
        return math.prod(shape[2:]) if shape else None
    if name not in ALL_PRODUCTS:
        return 0
    shape = graph.shape(operand(node, 0))
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def _before_angles(graph: Facts) -> set[ir.Node]:
    """Return the nodes that compute the arguments of trigonometric functions, such as positions times frequencies."""
    found: set[ir.Node] = set()
    todo = [node for node in graph.model.graph if node.op_type in _ANGLES]
    while todo:
        for value in todo.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is None or producer in found or producer.op_type not in _BEFORE_ANGLES:
                continue
            if not any(_is_large(each, graph) for each in producer.inputs):
                found.add(producer)
                todo.append(producer)
    return found


def _is_large(value: ir.Value | None, graph: Facts) -> bool:
    tensor = graph.tensor(value)
    return tensor is not None and tensor.size >= MIN_ELEMENTS


def _flaw(tensor: ir.TensorProtocol) -> str | None:
    if isinstance(tensor, DerivedTensor):
        return "another recipe has changed its weight"
    array = tensor.numpy()
    if not array.size:
        return None
    low, high = float(array.min()), float(array.max())
    largest = max(-low, high)
    if np.isnan(largest):
        return "its constant has NaN"
    if _FORMAT.most < largest < np.inf:
        return "its constant exceeds float16's largest number"
    if largest >= SMALLEST_NORMAL * GUARD or largest == 0:
        return None
    magnitude = np.abs(array)
    small = ((magnitude > 0) & (magnitude < SMALLEST_NORMAL)).any()
    return "its constant is below float16's smallest normal number" if small else None


class _Labels:
    """The nodes that are in float16 so far, and how many casts of each value they need."""

    def __init__(self, graph: Facts, candidates: Sequence[Conversion]) -> None:
        self._graph = graph
        self._candidates = {each.node: each for each in candidates}
        self.half: set[ir.Node] = set(self._candidates)
        self._reads: dict[ir.Node, tuple[ir.Value, ...]] = {}
        for each in candidates:
            read = dict.fromkeys(each.node.inputs[index] for index in sorted(each.inputs))
            self._reads[each.node] = tuple(value for value in read if value is not None and graph.tensor(value) is None)
        self._makes = {each.node: tuple(each.node.outputs[index] for index in each.outputs) for each in candidates}
        self._half_uses: dict[ir.Value, int] = {}
        self._single_uses: dict[ir.Value, int] = {}
        for value in {value for values in (*self._reads.values(), *self._makes.values()) for value in values}:
            readers = {use.node for use in value.uses()}
            halves = sum(value in self._reads.get(reader, ()) for reader in readers)
            self._half_uses[value] = halves
            self._single_uses[value] = len(readers) - halves + value.is_graph_output()

    def save_casts(self) -> None:
        """Move nodes that are not products to the side where fewer casts are needed, until none is saved."""
        movable = [node for node in self._candidates if node.op_type not in PRODUCTS]
        for sweep in range(_SWEEPS):
            moved = [node for node in (movable, movable[::-1])[sweep % 2] if self._move_if_cheaper(node)]
            if not moved:
                return

    def drop_islands(self) -> None:
        """Move connected nodes without a product or a large constant to float32."""
        visited: set[ir.Node] = set()
        for node in self._candidates:
            if node in self.half and node not in visited:
                island = self._connected(node)
                visited |= island
                if not any(each.op_type in PRODUCTS or self._has_weight(each) for each in island):
                    self.half -= island

    def _has_weight(self, node: ir.Node) -> bool:
        is_large = any(_is_large(node.inputs[index], self._graph) for index in self._candidates[node].inputs)
        return is_large and bool(self._makes[node])

    def _casts(self, value: ir.Value, *, is_half: bool, moved: int = 0) -> bool:
        """Return whether a value is cast, after `moved` of its readers move to float16."""
        return (self._single_uses[value] - moved if is_half else self._half_uses[value] + moved) > 0

    def _is_half(self, value: ir.Value) -> bool:
        node = value.producer()
        return node is not None and node in self.half and value in self._makes[node]

    def _move_if_cheaper(self, node: ir.Node) -> bool:
        to_half = node not in self.half
        moved = 1 if to_half else -1
        saved = 0
        for value in self._reads[node]:
            is_half = self._is_half(value)
            saved += self._casts(value, is_half=is_half) - self._casts(value, is_half=is_half, moved=moved)
        for value in self._makes[node]:
            saved += self._casts(value, is_half=not to_half) - self._casts(value, is_half=to_half)
        if saved <= 0:
            return False
        (self.half.add if to_half else self.half.discard)(node)
        for value in self._reads[node]:
            self._half_uses[value] += moved
            self._single_uses[value] -= moved
        return True

    def _connected(self, node: ir.Node) -> set[ir.Node]:
        found, todo = {node}, [node]
        while todo:
            one = todo.pop()
            users = (use.node for value in self._makes[one] for use in value.uses())
            near = {user for user in users if not set(self._makes[one]).isdisjoint(self._reads.get(user, ()))}
            makers = (value.producer() for value in self._reads[one] if self._is_half(value))
            near.update(maker for maker in makers if maker is not None)
            new = (near & self.half) - found
            found |= new
            todo += new
        return found
