"""Find the numbers that a graph compares an input with, in the units of that input.

A Clip at 255 has an effect only on inputs beyond 255, and a branch on `mean(x) > 10` only if the mean is above 10. The
walk follows an input x through invertible operators f to a comparison of f(x) with a constant c; f⁻¹(c) is a threshold
of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field

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

_MOST_VISITED = 3000  # values on the way from one input
_READ_ELEMENTS = 64  # larger constants are not read
_MOST_NUMBERS = 12  # that one input is compared with
_MOST_INVERTED = 12  # operators along one path
_SAME_BUT_FIRST = VARIADIC | {"Concat", "Where"}  # their other operands are data too
# Operators whose results are in the units of the input, even if they are other numbers.
_SAME = MOVES_DATA | FILLS | CASTS | _SAME_BUT_FIRST | POOLS - {"LpPool"} | GLOBAL_POOLS - {"GlobalLpPool"} | {
    "Abs", "Ceil", "Clip", "DequantizeLinear", "Floor", "LeakyRelu", "Mod", "OptionalGetElement", "Relu", "Round",
    "ThresholdedRelu",
}  # fmt: skip
_REDUCES = REDUCES - {"ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"}  # in other units
_COMPARES = COMPARISONS | {"Clip", "Max", "Min", "Mod"}
_OPERANDS = {("NonMaxSuppression", 1): 4}  # (operator, operand): the operand with its threshold
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
_INVERSES: Mapping[str, Callable[[float], float]] = {
    "Neg": lambda c: -c,
    "Sqrt": lambda c: c * c,
    "Exp": lambda c: math.log(c) if c > 0 else math.nan,
    "Log": lambda c: math.exp(c) if c < 80 else math.nan,
    "Sigmoid": lambda c: math.log(c / (1 - c)) if 0 < c < 1 else math.nan,
    "Tanh": lambda c: math.atanh(c) if -1 < c < 1 else math.nan,
    "Reciprocal": lambda c: 1 / c if c else math.nan,
}


class Threshold(Struct, frozen=True):
    """A number that an input's elements are compared with."""

    number: float
    whole: bool = False  # compared with a mean, sum or maximum of the elements instead of each of them
    exact: bool = False  # compared for equality with the unchanged elements


class _Step(Struct, frozen=True):
    """A value on the walk, and the operators, each with its constant, that led from the input to it."""

    value: ir.Value
    applied: tuple[tuple[str, float], ...] = ()
    whole: bool = False

    def source(self, number: float) -> float:
        """Return the element of the input for which this value is the number."""
        for op, constant in reversed(self.applied):
            number = _invert(op, constant, number)
        return number


class _Walk(Struct):
    model: ir.Model
    thresholds: dict[Threshold, None] = field(default_factory=dict[Threshold, None])

    def note(self, step: _Step, numbers: Iterator[float], equality: bool) -> None:
        for number in numbers:
            source = step.source(number)
            if math.isfinite(source) and abs(source) < 1e30:
                self.thresholds[Threshold(source, step.whole, equality and not step.applied)] = None

    def follow(self, step: _Step, node: ir.Node, operand: int) -> Iterator[_Step]:
        op = node.op_type
        function = self.model.functions.get(node.op_identifier())
        if function is not None:
            if operand < len(function.inputs):
                yield _Step(function.inputs[operand], step.applied, step.whole)
            return
        if op in LOOPS:
            for _, body in bodies(node):
                if operand < len(body.inputs) and not (op == "Loop" and operand < 2):
                    yield _Step(body.inputs[operand], step.applied, step.whole)
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
            self.note(step, _attribute_numbers(node, attribute), equality=op in _LOOKS_UP)
        if op == "QuantizeLinear" and operand == 0:
            self.note(step, _saturation(node), equality=False)

    def _onward(self, step: _Step, node: ir.Node, operand: int) -> Iterator[_Step]:
        op, outputs = node.op_type, [output for output in node.outputs if output.name]
        others = [value for place, value in enumerate(node.inputs) if place != operand and value is not None]
        if op in _REDUCES and operand == 0:
            yield _Step(outputs[0], step.applied, whole=True)
        elif op == "Mul" and all(value is step.value for value in node.inputs):
            yield _Step(outputs[0], (*step.applied, ("Pow", 2.0)), step.whole)
        elif op in _SAME and (op in _SAME_BUT_FIRST if operand else op != "Where"):
            yield from (_Step(output, step.applied, step.whole) for output in outputs)
        elif op in _INVERSES:
            yield _Step(outputs[0], (*step.applied, (op, 0.0)), step.whole)
        elif op in ARITHMETIC | {"Pow"} and len(others) == 1:
            constant = _typical(others[0])
            if constant is not None:
                side = "" if operand == 0 or op in ("Add", "Mul") else "from"
                yield _Step(outputs[0], (*step.applied, (op + side, constant)), step.whole)
            elif op in ("Add", "Sub"):  # another value, assumed to be of the same magnitude
                yield _Step(outputs[0], step.applied, step.whole)


def find_thresholds(model: ir.Model, value: ir.Value) -> tuple[Threshold, ...]:
    """Return the numbers that a graph input is compared with; at most a dozen, spread over their range."""
    walk, seen, queue = _Walk(model), set[_Step](), [_Step(value)]
    while queue and len(seen) < _MOST_VISITED:
        step = queue.pop()
        if step in seen or len(step.applied) > _MOST_INVERTED:
            continue
        seen.add(step)
        for node, operand in step.value.uses():
            queue.extend(walk.follow(step, node, operand))
    thresholds = sorted(walk.thresholds, key=lambda threshold: threshold.number)
    if len(thresholds) > _MOST_NUMBERS:
        places = np.linspace(0, len(thresholds) - 1, _MOST_NUMBERS).round().astype(int)
        thresholds = [thresholds[int(place)] for place in list[int](places)]
    return tuple(thresholds)


def find_words(model: ir.Model, value: ir.Value) -> tuple[str, ...]:
    """Return the strings that a graph input is compared with or looked up among; at most a dozen."""
    words: dict[str, None] = {}
    seen, queue = set[ir.Value](), [value]
    while queue and len(seen) < _MOST_VISITED:
        value = queue.pop()
        if value in seen:
            continue
        seen.add(value)
        for node, operand in value.uses():
            for name in _WORDS:
                attribute = node.attributes.get(name)
                if attribute is not None and attribute.type is ir.AttributeType.STRINGS and not attribute.is_ref():
                    words.update(dict.fromkeys(attribute.as_strings()))
            if node.op_type == "Equal":
                words.update(dict.fromkeys(_strings(node.inputs[1 - operand])))
            function = model.functions.get(node.op_identifier())
            if function is not None and operand < len(function.inputs):
                queue.append(function.inputs[operand])
            elif node.op_type in _SAME:
                queue.extend(node.outputs)
    return tuple(words)[:_MOST_NUMBERS]


def _strings(value: ir.Value | None) -> list[str]:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.dtype != ir.DataType.STRING or tensor.size > _READ_ELEMENTS:
        return []
    return [word.decode(errors="replace") for word in tensor.numpy().reshape(-1).tolist()]


def _invert(op: str, constant: float, number: float) -> float:
    """Return x such that `op(x, constant) = number`, or NaN if there is none; "Subfrom" is `constant - x`."""
    if op in _INVERSES:
        return _INVERSES[op](number)
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


def small_constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the numbers of a constant operand, also of one that is cast; None for others and over 64 elements."""
    producer = value.producer() if value is not None else None
    value = producer.inputs[0] if producer is not None and producer.op_type in CASTS else value
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or not 0 < tensor.size <= _READ_ELEMENTS or tensor.dtype == ir.DataType.STRING:
        return None
    array = tensor.numpy()
    return None if array.dtype.kind == "c" else array.astype(np.float64).reshape(-1)


def _numbers(value: ir.Value | None) -> Iterator[float]:
    array = small_constant(value)
    if array is not None:
        yield from (float(number) for number in np.unique(array))


def _typical(value: ir.Value) -> float | None:
    """Return the median of a small constant operand (such as the means of channels), or None if it is not one."""
    array = small_constant(value)
    return float(np.median(array)) if array is not None else None


def _attribute_numbers(node: ir.Node, name: str) -> Iterator[float]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return
    if attribute.type is ir.AttributeType.FLOAT:
        yield attribute.as_float()
    elif attribute.type in (ir.AttributeType.FLOATS, ir.AttributeType.INTS):
        numbers = np.unique(np.array(attribute.value, np.float64))
        yield from (float(number) for number in np.quantile(numbers, np.linspace(0, 1, 8), method="nearest"))


def _saturation(node: ir.Node) -> Iterator[float]:
    """Yield the numbers at which QuantizeLinear reaches the ends of its type."""
    scale, zero = small_constant(node.inputs[1]), small_constant(node.inputs[2]) if len(node.inputs) > 2 else None
    kind = node.inputs[2].dtype if len(node.inputs) > 2 and node.inputs[2] is not None else ir.DataType.UINT8
    if scale is None or kind is None or kind.is_floating_point():
        return
    low = -(1 << kind.bitwidth - 1) if kind.is_signed() else 0
    middle = float(np.median(zero)) if zero is not None else 0.0
    yield from ((end - middle) * float(np.max(scale)) for end in (low, low + (1 << kind.bitwidth) - 1))
