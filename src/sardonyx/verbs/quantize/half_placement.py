"""Which nodes compute in float16: those that can, without casts that cost more than they save.

A node stays in float32 if float16 is not defined for it, if a value that it reads or computes exceeds a quarter of the
largest float16 number, if a constant is too large or too small for float16, or if it sums, divides or raises numbers in
a way that loses too many digits. The others start in float16; a node that is not a product moves to float32 where this
saves casts. What remains without a product or a large constant moves as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.checks import KERNELS
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
from sardonyx.verbs.quantize.calibration import Ranges
from sardonyx.verbs.quantize.half_bounds import MOST, Bounds
from sardonyx.verbs.quantize.masks import Masks
from sardonyx.verbs.quantize.recipe import SMALLEST, Selection
from sardonyx.verbs.quantize.weights import DerivedTensor

_HALF = "tensor(float16)"
_NO_TENSORS = MAKES_SEQUENCE | OPTIONALS


class Parameter(Struct, frozen=True):
    """A formal input or output of an operator."""

    variable: str  # values of one variable have one type
    has_half: bool
    is_variadic: bool
    is_homogeneous: bool


class Conversion(Struct, frozen=True, eq=False):
    """The indices of the inputs and outputs of a node that become float16."""

    node: ir.Node
    inputs: frozenset[int]
    outputs: frozenset[int]


def conversion(node: ir.Node, graph: Facts) -> Conversion | str | None:
    """Return how a node is converted, why it cannot be, or None if it has nothing to do with float32."""
    if is_constant(node):
        return None
    inputs = {index: value for index, value in enumerate(node.inputs) if value is not None}
    outputs = {index: value for index, value in enumerate(node.outputs) if value.name}
    single = ir.DataType.FLOAT
    narrow_in = frozenset(index for index, value in inputs.items() if graph.dtype(value) is single)
    narrow_out = frozenset(index for index, value in outputs.items() if graph.dtype(value) is single)
    if has_bodies(node) or not narrow_in | narrow_out:
        return None
    unknown = any(graph.dtype(value) is None for value in (*inputs.values(), *outputs.values()))
    name = operator(node)
    if unknown or node.op_type in _NO_TENSORS:
        return "the types of its operands are not known"
    if node.domain:
        known = ir.DataType.FLOAT16 in KERNELS.get(name, frozenset())
        return Conversion(node, narrow_in, narrow_out) if known else f"{name} is not known in float16"
    formal = _signature(node.op_type, graph.opset(node))
    if formal is None:
        return f"{name} is not defined in this opset"
    return _by_schema(node, *formal, narrow_in, narrow_out)


def _by_schema(
    node: ir.Node,
    formal_inputs: tuple[Parameter, ...],
    formal_outputs: tuple[Parameter, ...],
    narrow_in: frozenset[int],
    narrow_out: frozenset[int],
) -> Conversion | str:
    reads = {index: _at(formal_inputs, index) for index in narrow_in}
    makes = {index: _at(formal_outputs, index) for index in narrow_out}
    refusal = f"{node.op_type} has no float16 in this opset"
    if any(each is None or not each.is_homogeneous or not each.has_half for each in makes.values()):
        return refusal
    if any(each is None or not each.is_homogeneous for each in reads.values()):
        return refusal
    variables = {each.variable for each in reads.values() if each is not None and each.has_half}
    by_attribute = any(each is not None and each.variable not in variables for each in makes.values())
    if by_attribute and node.op_type != "Cast":
        return f"the type of {node.op_type} is given by an attribute"
    converted = frozenset(index for index, each in reads.items() if each is not None and each.has_half)
    return Conversion(node, converted, narrow_out) if converted | narrow_out else refusal


def _at(formal: tuple[Parameter, ...], index: int) -> Parameter | None:
    if index < len(formal):
        return formal[index]
    return formal[-1] if formal and formal[-1].is_variadic else None


@functools.cache
def _signature(op_type: str, opset: int) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]] | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    variables = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}

    def parameters(formal: list[onnx.defs.OpSchema.FormalParameter]) -> tuple[Parameter, ...]:
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        return tuple(
            Parameter(
                each.type_str,
                _HALF in variables.get(each.type_str, (each.type_str,)),
                each.option == variadic,
                each.is_homogeneous,
            )
            for each in formal
        )

    return parameters(list(schema.inputs)), parameters(list(schema.outputs))


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
_AVERAGES = (POOLS | GLOBAL_POOLS) - {"MaxPool", "GlobalMaxPool"}
_MOST_TERMS = 64  # of an average: sums of more are off by several units in the last place
_MAX_POOL = 12  # its optimizations for ARM turn an older one into an operator that has no kernel
_SWEEPS = 8  # over all nodes, to save casts
AMONG_SINGLE = "fewer casts are needed if it stays in float32"
OVERFLOW = "its numbers reach"


class Placement(Struct, frozen=True, eq=False):
    """The nodes that compute in float16, in order, and why others do not."""

    conversions: tuple[Conversion, ...]
    reasons: dict[ir.Node, str]


class ConstantSizes:
    """The largest magnitude of constants, and whether smaller ones matter; each constant is read once."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def flaw(self, value: ir.Value, tensor: ir.TensorProtocol) -> str | None:
        """Return why a constant cannot be stored in float16, or None."""
        name = value.name or ""
        if name not in self._known:
            self._known[name] = _flaw(tensor)
        return self._known[name]


def place(graph: Facts, selection: Selection, ranges: Ranges, masks: Masks, sizes: ConstantSizes) -> Placement:
    """Choose the nodes of the main graph that compute in float16."""
    reasons: dict[ir.Node, str] = {}
    candidates: list[Conversion] = []
    angles, bounds = _before_angles(graph), Bounds(graph, ranges, masks)
    for node in graph.model.graph:
        found = conversion(node, graph) if selection.includes(node) else None
        if isinstance(found, Conversion):
            found = _unsuited(found, graph, ranges, masks, sizes, angles) or _squared(node, bounds) or found
        if isinstance(found, str):
            reasons[node] = found
        elif found is not None:
            candidates.append(found)
    labels = _Labels(graph, candidates)
    labels.save_casts()
    labels.drop_islands()
    reasons |= {each.node: AMONG_SINGLE for each in candidates if each.node not in labels.half}
    return Placement(tuple(each for each in candidates if each.node in labels.half), reasons)


def _unsuited(
    found: Conversion, graph: Facts, ranges: Ranges, masks: Masks, sizes: ConstantSizes, angles: set[ir.Node]
) -> str | None:
    """Return why a node stays in float32 although it could be converted, or None."""
    node = found.node
    if reason := _sensitive(node, graph, ranges, angles):
        return reason
    values = [node.inputs[index] for index in found.inputs] + [node.outputs[index] for index in found.outputs]
    for value in values:
        tensor = graph.tensor(value)
        if value is None or tensor is not None:
            flaw = sizes.flaw(value, tensor) if value and tensor and value not in masks.constants else None
            if flaw is not None:
                return flaw
        elif (measured := ranges.get(value.name or "")) is not None:
            largest = measured.high if value in masks.values else measured.largest
            if largest > LIMIT:
                return f"{OVERFLOW} {largest:.1e}, more than a quarter of float16's largest number"
    return None


def _squared(node: ir.Node, bounds: Bounds) -> str | None:
    """Return why a norm that is one operator stays in float32: its squares can leave the range, or None."""
    square = bounds.inner_square(node)
    return f"{OVERFLOW} {square:.1e} when it squares them" if square > MOST else None


def _sensitive(node: ir.Node, graph: Facts, ranges: Ranges, angles: set[ir.Node]) -> str | None:
    """Return which property of an operator needs the digits or the range of float32, or None."""
    name = node.op_type
    if name in _SENSITIVE:
        return f"{name} loses too much in float16"
    if node in angles:
        return "its result is an angle"
    if name == "MaxPool" and graph.opset(node) < _MAX_POOL:
        return f"ONNX Runtime has no MaxPool in float16 below opset {_MAX_POOL}"
    if name == "Erf":
        return "ONNX Runtime's Erf in float16 is off by up to 0.005"
    if name in _AVERAGES and (summed_terms(node, graph) or _MOST_TERMS + 1) > _MOST_TERMS:
        return "ONNX Runtime sums in float16"
    if name == "Div" and graph.tensor(operand(node, 1)) is None:
        return "its divisor may become 0 in float16"
    if name == "Pow" and (_power(node, graph) not in (2, 3) or _is_summed(node.outputs[0])):
        return "Pow loses too much in float16"
    if name == "Mul" and node.inputs[0] is node.inputs[1] and _is_summed(node.outputs[0]):
        return "its squares are summed"
    if name == "Cast" and _counts(node, graph, ranges):
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


def _power(node: ir.Node, graph: Facts) -> float | None:
    exponent = graph.scalar(operand(node, 1))
    return None if exponent is None else float(exponent)


def _is_summed(value: ir.Value) -> bool:
    return any(use.node.op_type in _SUMS for use in value.uses())


def _counts(node: ir.Node, graph: Facts, ranges: Ranges) -> bool:
    """Return whether integers other than 0 and 1 become floating-point numbers."""
    dtype = graph.dtype(operand(node, 0))
    if dtype is None or not dtype.is_integer():
        return False
    measured = ranges.get(node.outputs[0].name or "")
    return measured is None or measured.low < 0 or measured.high > 1


def _before_angles(graph: Facts) -> set[ir.Node]:
    """Return the nodes that compute the arguments of trigonometric functions, such as positions times frequencies."""
    found: set[ir.Node] = set()
    todo = [node for node in graph.model.graph if node.op_type in _ANGLES]
    while todo:
        for value in todo.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is None or producer in found or producer.op_type not in _BEFORE_ANGLES:
                continue
            if not any(_is_large(operand, graph) for operand in producer.inputs):
                found.add(producer)
                todo.append(producer)
    return found


def _is_large(value: ir.Value | None, graph: Facts) -> bool:
    tensor = graph.tensor(value)
    return tensor is not None and tensor.size >= SMALLEST


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
        self._reads = {each.node: tuple(dict.fromkeys(self._variable(each))) for each in candidates}
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
        movable = [node for node in self._candidates if not self._is_product(node)]
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
                if not any(self._is_product(each) or self._has_weight(each) for each in island):
                    self.half -= island

    def _variable(self, each: Conversion) -> Iterator[ir.Value]:
        for index in sorted(each.inputs):
            value = each.node.inputs[index]
            if value is not None and self._graph.tensor(value) is None:
                yield value

    def _is_product(self, node: ir.Node) -> bool:
        return node.op_type in PRODUCTS

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
            for neighbour in self._neighbours(todo.pop()):
                if neighbour in self.half and neighbour not in found:
                    found.add(neighbour)
                    todo.append(neighbour)
        return found

    def _neighbours(self, node: ir.Node) -> Iterable[ir.Node]:
        for value in self._makes[node]:
            yield from (use.node for use in value.uses() if value in self._reads.get(use.node, ()))
        for value in self._reads[node]:
            if self._is_half(value) and (producer := value.producer()) is not None:
                yield producer
