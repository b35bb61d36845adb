"""The numbers that a graph compares an input with, in the units of that input.

A Clip at 255 shows only on inputs beyond 255, a branch on `mean(x) > 10` only where the mean is. The walk follows an
input through operators that can be undone, to where it meets a constant, and undoes them on that constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import (
    ARITHMETIC,
    CASTS,
    COMPARISONS,
    FILLS,
    GLOBAL_POOLS,
    LOOPS,
    MOVES_DATA,
    POOLS,
    REDUCES,
    VARIADIC,
)
from sardonyx.ir.scopes import bodies

_MOST_STEPS = 3000
_FEW = 64  # elements of a constant that are looked at
_MOST_NUMBERS = 12
_SAME_BUT_FIRST = VARIADIC | {"Concat", "Where"}  # which take data in other operands too
# Operators after which elements are numbers in the units of the input, if not the same numbers.
_SAME = MOVES_DATA | FILLS | CASTS | _SAME_BUT_FIRST | POOLS - {"LpPool"} | GLOBAL_POOLS - {"GlobalLpPool"} | {
    "Abs", "Ceil", "Clip", "DequantizeLinear", "Floor", "LeakyRelu", "Mod", "OptionalGetElement", "Relu", "Round",
    "ThresholdedRelu",
}  # fmt: skip
_REDUCES = REDUCES - {"ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"}  # in other units
_COMPARES = COMPARISONS | {"Clip", "Max", "Min", "Mod"}
_OPERANDS = {("NonMaxSuppression", 1): 4}  # (operator, operand): which other operand holds its threshold
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "ThresholdedRelu": ("alpha",),
    "Shrink": ("lambd",),
    "Binarizer": ("threshold",),
    "OneHotEncoder": ("cats_int64s",),
    "LabelEncoder": ("keys_int64s", "keys_floats"),
    "TreeEnsembleRegressor": ("nodes_values",),
    "TreeEnsembleClassifier": ("nodes_values",),
}
_WORDS = ("keys_strings", "cats_strings", "pool_strings", "string_vocabulary")
_LOOKS_UP = frozenset(("OneHotEncoder", "LabelEncoder"))
_UNDO: Mapping[str, Callable[[float], float]] = {
    "Neg": lambda c: -c,
    "Sqrt": lambda c: c * c,
    "Exp": lambda c: math.log(c) if c > 0 else math.nan,
    "Log": lambda c: math.exp(c) if c < 80 else math.nan,
    "Sigmoid": lambda c: math.log(c / (1 - c)) if 0 < c < 1 else math.nan,
    "Tanh": lambda c: math.atanh(c) if -1 < c < 1 else math.nan,
    "Reciprocal": lambda c: 1 / c if c else math.nan,
}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that an input's elements are compared with."""

    number: float
    whole: bool = False  # not element by element: a mean, a sum, a maximum of them
    exact: bool = False  # compared for equality, with the elements as they are


@dataclass(frozen=True, slots=True)
class _Step:
    """A value on the way: `scale * input + shift`, then whatever `undone` undoes, the last first."""

    value: ir.Value
    undone: tuple[tuple[str, float], ...] = ()
    whole: bool = False

    def source(self, number: float) -> float:
        """The input's element at which this value is the number."""
        for op, constant in reversed(self.undone):
            number = _undo(op, constant, number)
        return number


@dataclass(slots=True)
class _Walk:
    model: ir.Model
    found: dict[Threshold, None] = field(default_factory=dict[Threshold, None])

    def note(self, step: _Step, numbers: Iterator[float], equality: bool) -> None:
        for number in numbers:
            source = step.source(number)
            if math.isfinite(source) and abs(source) < 1e30:
                self.found[Threshold(source, step.whole, equality and not step.undone)] = None

    def follow(self, step: _Step, node: ir.Node, operand: int) -> Iterator[_Step]:
        op = node.op_type
        function = self.model.functions.get(node.op_identifier())
        if function is not None:
            if operand < len(function.inputs):
                yield _Step(function.inputs[operand], step.undone, step.whole)
            return
        if op in LOOPS:
            for _, body in bodies(node):
                if operand < len(body.inputs) and not (op == "Loop" and operand < 2):
                    yield _Step(body.inputs[operand], step.undone, step.whole)
            return
        self._note_at(step, node, operand)
        yield from self._onward(step, node, operand)

    def _note_at(self, step: _Step, node: ir.Node, operand: int) -> None:
        op = node.op_type
        if op in _COMPARES:
            others = [value for place, value in enumerate(node.inputs) if place != operand]
            for value in others:
                self.note(step, _numbers(value), op == "Equal")
        if (op, operand) in _OPERANDS and len(node.inputs) > _OPERANDS[op, operand]:
            self.note(step, _numbers(node.inputs[_OPERANDS[op, operand]]), equality=False)
        for attribute in _ATTRIBUTES.get(op, ()):
            self.note(step, _given(node, attribute), equality=op in _LOOKS_UP)
        if op == "QuantizeLinear" and operand == 0:
            self.note(step, _saturation(node), equality=False)

    def _onward(self, step: _Step, node: ir.Node, operand: int) -> Iterator[_Step]:
        op, outputs = node.op_type, [output for output in node.outputs if output.name]
        others = [value for place, value in enumerate(node.inputs) if place != operand and value is not None]
        if op in _REDUCES and operand == 0:
            yield _Step(outputs[0], step.undone, whole=True)
        elif op == "Mul" and all(value is step.value for value in node.inputs):
            yield _Step(outputs[0], (*step.undone, ("Pow", 2.0)), step.whole)
        elif op in _SAME and (op in _SAME_BUT_FIRST if operand else op != "Where"):
            yield from (_Step(output, step.undone, step.whole) for output in outputs)
        elif op in _UNDO:
            yield _Step(outputs[0], (*step.undone, (op, 0.0)), step.whole)
        elif op in ARITHMETIC | {"Pow"} and len(others) == 1:
            constant = _typical(others[0])
            if constant is not None:
                side = "" if operand == 0 or op in ("Add", "Mul") else "from"
                yield _Step(outputs[0], (*step.undone, (op + side, constant)), step.whole)
            elif op in ("Add", "Sub"):  # with something else that is as large
                yield _Step(outputs[0], step.undone, step.whole)


def find_thresholds(model: ir.Model, value: ir.Value) -> tuple[Threshold, ...]:
    """The numbers that a graph input is compared with; at most a dozen, spread over their range."""
    walk, seen, queue = _Walk(model), set[_Step](), [_Step(value)]
    while queue and len(seen) < _MOST_STEPS:
        step = queue.pop()
        if step in seen or len(step.undone) > 12:
            continue
        seen.add(step)
        for node, operand in step.value.uses():
            queue.extend(walk.follow(step, node, operand))
    found = sorted(walk.found, key=lambda threshold: threshold.number)
    if len(found) > _MOST_NUMBERS:
        places = np.linspace(0, len(found) - 1, _MOST_NUMBERS).round().astype(int)
        found = [found[int(place)] for place in list[int](places)]
    return tuple(found)


def find_words(model: ir.Model, value: ir.Value) -> tuple[str, ...]:
    """The strings that a graph input is compared with or looked up among; a dozen at most."""
    found: dict[str, None] = {}
    seen, queue = set[ir.Value](), [value]
    while queue and len(seen) < _MOST_STEPS:
        value = queue.pop()
        if value in seen:
            continue
        seen.add(value)
        for node, operand in value.uses():
            for name in _WORDS:
                attribute = node.attributes.get(name)
                if attribute is not None and attribute.type is ir.AttributeType.STRINGS and not attribute.is_ref():
                    found.update(dict.fromkeys(attribute.as_strings()))
            if node.op_type == "Equal":
                found.update(dict.fromkeys(_strings(node.inputs[1 - operand])))
            function = model.functions.get(node.op_identifier())
            if function is not None and operand < len(function.inputs):
                queue.append(function.inputs[operand])
            elif node.op_type in _SAME:
                queue.extend(node.outputs)
    return tuple(found)[:_MOST_NUMBERS]


def _strings(value: ir.Value | None) -> list[str]:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.dtype != ir.DataType.STRING or tensor.size > _FEW:
        return []
    return [one.decode(errors="replace") for one in tensor.numpy().reshape(-1).tolist()]


def _undo(op: str, constant: float, number: float) -> float:
    if op in _UNDO:
        return _UNDO[op](number)
    match op:
        case "Add":
            return number - constant
        case "Sub":
            return number + constant
        case "Subfrom":
            return constant - number
        case "Mul":
            return number / constant if constant else math.nan
        case "Div":
            return number * constant
        case "Divfrom":
            return constant / number if number else math.nan
        case "Pow":
            return number ** (1 / constant) if number > 0 and constant else math.nan
        case _:
            return math.nan


def _array(value: ir.Value | None) -> np.ndarray | None:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or not 0 < tensor.size <= _FEW or tensor.dtype == ir.DataType.STRING:
        return None
    array = tensor.numpy()
    return None if array.dtype.kind == "c" else array.astype(np.float64).reshape(-1)


def _numbers(value: ir.Value | None) -> Iterator[float]:
    array = _array(value)
    if array is not None:
        yield from (float(number) for number in np.unique(array))


def _typical(value: ir.Value) -> float | None:
    """One number for a constant operand: of several, such as the means of channels, the median."""
    array = _array(value)
    return float(np.median(array)) if array is not None else None


def _given(node: ir.Node, name: str) -> Iterator[float]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return
    if attribute.type is ir.AttributeType.FLOAT:
        yield attribute.as_float()
    elif attribute.type in (ir.AttributeType.FLOATS, ir.AttributeType.INTS):
        numbers = np.unique(np.array(attribute.value, np.float64))
        yield from (float(number) for number in np.quantile(numbers, np.linspace(0, 1, 8), method="nearest"))


def _saturation(node: ir.Node) -> Iterator[float]:
    """Where a quantized number reaches the ends of its type."""
    scale, zero = _array(node.inputs[1]), _array(node.inputs[2]) if len(node.inputs) > 2 else None
    kind = node.inputs[2].dtype if len(node.inputs) > 2 and node.inputs[2] is not None else ir.DataType.UINT8
    if scale is None or kind is None or kind.is_floating_point():
        return
    low, high = (
        (-(1 << kind.bitwidth - 1), (1 << kind.bitwidth - 1) - 1)
        if kind.is_signed()
        else (
            0,
            (1 << kind.bitwidth) - 1,
        )
    )
    middle = float(np.median(zero)) if zero is not None else 0.0
    yield from ((end - middle) * float(np.max(scale)) for end in (low, high))
