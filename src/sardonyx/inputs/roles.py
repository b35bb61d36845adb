"""Infer the role of each graph input from the operators it reaches: an index, a mask, a shape, or plain data.

The name of an input is used only if the structure of the graph does not decide.

Thresholds are the numbers that a graph compares an input with, in the units of that input. A Clip at 255 has an
effect only on inputs beyond 255, and a branch on `mean(x) > 10` only if the mean is above 10. The walk follows an
input x through invertible operators f to a comparison of f(x) with a constant c; f⁻¹(c) is a threshold of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.ir.ops import (
    ARITHMETIC,
    BINARY,
    BITWISE,
    CASTS,
    COMPARISONS,
    FILLS,
    GLOBAL_POOLS,
    LOOPS,
    MATRIX_PRODUCTS,
    MOVES_DATA,
    NORMALIZES,
    POOLS,
    PREDICATES,
    READS_SHAPE,
    REDUCES,
    VARIADIC,
    attention_operands,
)
from sardonyx.ir.scopes import bodies, declared_shape, has_references, label

_MAX_VISITED = 5000  # values on the way from one input
_READ_ELEMENTS = 64  # larger constants are not read
_MAX_COMPARED = 12  # numbers or words that one input is compared with
_MAX_INVERTED = 12  # operators along one path
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
_UNARY = frozenset(("Neg", "Sqrt", "Exp", "Log", "Sigmoid", "Tanh", "Reciprocal"))
# From a constant c and y to x such that f(x, c) = y; "Subfrom" is c - x.
_INVERSES: Mapping[str, Callable[[float, float], float]] = {
    "Neg": lambda _, y: -y,
    "Sqrt": lambda _, y: y * y,
    "Exp": lambda _, y: math.log(y) if y > 0 else math.nan,
    "Log": lambda _, y: math.exp(y) if y < 80 else math.nan,
    "Sigmoid": lambda _, y: math.log(y / (1 - y)) if 0 < y < 1 else math.nan,
    "Tanh": lambda _, y: math.atanh(y) if -1 < y < 1 else math.nan,
    "Reciprocal": lambda _, y: 1 / y if y else math.nan,
    "Add": lambda c, y: y - c,
    "Sub": lambda c, y: y + c,
    "Subfrom": lambda c, y: c - y,
    "Mul": lambda c, y: y / c if c else math.nan,
    "Div": lambda c, y: y * c,
    "Divfrom": lambda c, y: c / y if y else math.nan,
    "Pow": lambda c, y: y ** (1 / c) if y > 0 and c else math.nan,
    "Powfrom": lambda _c, _y: math.nan,
}


class Threshold(Struct, frozen=True):
    """A number that an input's elements are compared with."""

    number: float
    whole: bool = False  # compared with a mean, sum or maximum of the elements instead of each of them
    exact: bool = False  # compared for equality with the unchanged elements


class _ThresholdStep(Struct, frozen=True):
    """A value on the walk, and the operators, each with its constant, that led from the input to it."""

    value: ir.Value
    applied: tuple[tuple[str, float], ...] = ()
    whole: bool = False

    def source(self, number: float) -> float:
        """Return the element of the input for which this value is the number."""
        for op, constant in reversed(self.applied):
            number = _INVERSES[op](constant, number)
        return number


class _Walk(Struct):
    model: ir.Model
    thresholds: dict[Threshold, None] = field(default_factory=dict[Threshold, None])
    words: dict[str, None] = field(default_factory=dict[str, None])

    def _note(self, step: _ThresholdStep, numbers: Iterable[float], *, equality: bool = False) -> None:
        for number in numbers:
            source = step.source(number)
            if math.isfinite(source) and abs(source) < 1e30:
                self.thresholds[Threshold(source, step.whole, equality and not step.applied)] = None

    def follow(self, step: _ThresholdStep, node: ir.Node, operand: int) -> Iterator[_ThresholdStep]:
        inner = _inside(self.model, node, operand)
        if inner is not None:
            yield from (_ThresholdStep(value, step.applied, step.whole) for value in inner)
            return
        self._note_at(step, node, operand)
        yield from self._onward(step, node, operand)

    def _note_at(self, step: _ThresholdStep, node: ir.Node, operand: int) -> None:
        op = node.op_type
        if op in _COMPARES:
            for value in (value for place, value in enumerate(node.inputs) if place != operand):
                self._note(step, _numbers(value), equality=op == "Equal")
                tensor = ir.convenience.get_const_tensor(value) if value is not None and op == "Equal" else None
                if tensor is not None and tensor.dtype == ir.DataType.STRING and tensor.size <= _READ_ELEMENTS:
                    words = (word.decode(errors="replace") for word in tensor.numpy().reshape(-1).tolist())
                    self.words.update(dict.fromkeys(words))
        if (op, operand) in _OPERANDS and len(node.inputs) > _OPERANDS[op, operand]:
            self._note(step, _numbers(node.inputs[_OPERANDS[op, operand]]))
        for attribute in _ATTRIBUTES.get(op, ()):
            self._note(step, _attribute_numbers(node, attribute), equality=op in _LOOKS_UP)
        for attribute in (each for name in _WORDS if (each := node.attributes.get(name)) is not None):
            if attribute.type is ir.AttributeType.STRINGS and not attribute.is_ref():
                self.words.update(dict.fromkeys(attribute.as_strings()))
        if op == "QuantizeLinear" and operand == 0:
            self._note(step, _saturation(node))

    def _onward(self, step: _ThresholdStep, node: ir.Node, operand: int) -> Iterator[_ThresholdStep]:
        op, outputs = node.op_type, [output for output in node.outputs if output.name]
        if len(step.applied) > _MAX_INVERTED:
            return
        others = [value for place, value in enumerate(node.inputs) if place != operand and value is not None]
        if op in _REDUCES and operand == 0:
            yield _ThresholdStep(outputs[0], step.applied, whole=True)
        elif op == "Mul" and all(value is step.value for value in node.inputs):
            yield _ThresholdStep(outputs[0], (*step.applied, ("Pow", 2.0)), step.whole)
        elif op in _SAME and (op in _SAME_BUT_FIRST if operand else op != "Where"):
            yield from (_ThresholdStep(output, step.applied, step.whole) for output in outputs)
        elif op in _UNARY:
            yield _ThresholdStep(outputs[0], (*step.applied, (op, 0.0)), step.whole)
        elif op in ARITHMETIC | {"Pow"} and len(others) == 1:
            numbers = small_constant(others[0])
            if numbers is not None:
                constant = float(np.median(numbers))  # of the means of channels, for example
                side = "" if operand == 0 or op in ("Add", "Mul") else "from"
                yield _ThresholdStep(outputs[0], (*step.applied, (op + side, constant)), step.whole)
            elif op in ("Add", "Sub"):  # another value, assumed to be of the same magnitude
                yield _ThresholdStep(outputs[0], step.applied, step.whole)


class _HasValue(Protocol):
    @property
    def value(self) -> ir.Value: ...


_S = TypeVar("_S", bound=_HasValue)


def _visit(first: _S, follow: Callable[[_S, ir.Node, int], Iterable[_S]]) -> None:
    """Follow the uses of a value, and of the values that follow from it, each once."""
    seen, queue = set[_S](), [first]
    while queue and len(seen) <= _MAX_VISITED:
        step = queue.pop()
        if step not in seen:
            seen.add(step)
            for node, operand in step.value.uses():
                queue.extend(follow(step, node, operand))


def _inside(model: ir.Model, node: ir.Node, operand: int) -> list[ir.Value] | None:
    """Return the inputs of a function or a body that an operand becomes; None for nodes that have neither."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return list(function.inputs[operand : operand + 1])
    if node.op_type not in LOOPS:
        return None
    inner = [body.inputs for _, body in bodies(node) if node.op_type != "Loop" or operand >= 2]
    return [inputs[operand] for inputs in inner if operand < len(inputs)]


def find_thresholds(model: ir.Model, value: ir.Value) -> tuple[tuple[Threshold, ...], tuple[str, ...]]:
    """Return the numbers and the words that a graph input is compared with; at most a dozen, over their range."""
    walk = _Walk(model)
    _visit(_ThresholdStep(value), walk.follow)
    thresholds = sorted(walk.thresholds, key=lambda threshold: threshold.number)
    if len(thresholds) > _MAX_COMPARED:
        places = np.linspace(0, len(thresholds) - 1, _MAX_COMPARED).round().astype(int)
        thresholds = [thresholds[int(place)] for place in list[int](places)]
    return tuple(thresholds), tuple(walk.words)[:_MAX_COMPARED]


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
    yield from map(float, () if array is None else np.unique(array))


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


class Role(StrEnum):
    """The role of an input."""

    DATA = "data"
    INDEX = "index"  # selects rows of a table
    POSITION = "position"  # counts along its last axis
    MASK = "mask"  # marks positions as real or as padding
    ADDED_MASK = "added mask"  # is added to attention scores
    SHAPE = "shape"  # is a size, an axis, a repeat count …


class Use(Struct, frozen=True):
    """How one graph input is used."""

    role: Role
    rows: int | str | None = None  # INDEX: the size of the table, or the dimension it has
    specials: tuple[int, ...] = ()  # constants the values are compared with, such as padding tokens
    table: str = ""  # INDEX: the name of the table, if it is constant
    slot: str = ""  # SHAPE: which operand it is, e.g. "Reshape:1"
    divides: bool = False  # an integer divisor must not be zero
    thresholds: tuple[Threshold, ...] = ()  # DATA: numbers the values are compared with
    words: tuple[str, ...] = ()  # strings that the values are compared with
    normalized: bool = False  # DATA: reaches a normalization before it is combined with anything else
    inverted: bool = False  # MASK: hides the positions where it is true


class _Evidence(Struct):
    """What the walk along the uses of one input has seen."""

    floating: bool  # the input holds floating-point numbers
    tables: list[tuple[int | str | None, str]] = field(default_factory=list[tuple[int | str | None, str]])
    specials: set[int] = field(default_factory=set[int])
    slots: list[str] = field(default_factory=list[str])
    masks: bool = False
    hides_when: set[bool] = field(default_factory=set[bool])  # the values of the mask that hide a position
    added: bool = False
    divides: bool = False
    normalized: bool = False
    sizes: bool = False  # reaches a shape, through arithmetic or directly
    counted: bool = False  # takes part in arithmetic before it is compared or cast to bool


class _Step(Struct, frozen=True):
    """A value on the walk, and what the operators so far did to the input."""

    value: ir.Value
    same: bool = True  # still the input's own elements, moved or cast, plus `offset`
    offset: int = 0  # the constant that was added to them
    hides: bool = False  # is a large negative number where the mask is off
    to_scores: bool = False  # was added to attention scores
    boolean: bool = False  # is true or false
    compared: bool = False  # is the result of a comparison with a number
    negated: bool = False  # is true, or 1, where the input is not


# Operators that move or cast the elements of their first operand.
_MOVES = MOVES_DATA | FILLS | CASTS | {"OptionalGetElement"}
_TESTS = _MOVES | PREDICATES | READS_SHAPE | LOOPS | {"Concat"}  # after these a mask is moved, or true or false
_COMBINES = BINARY - BITWISE | VARIADIC | {
    "Where", "Neg", "Abs", "Clip", "Not", "Log", "CumSum", "ReduceSum", "ReduceMax", "ReduceMin",
}  # fmt: skip
# Operands that hold sizes, axes, counts and similar: (operator, operand).
_SHAPE_SLOTS = frozenset(
    (
        ("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Tile", 1), ("Slice", 1), ("Slice", 2), ("Slice", 3),
        ("Slice", 4), ("Unsqueeze", 1), ("Squeeze", 1), ("Range", 0), ("Range", 1), ("Range", 2), ("TopK", 1),
        ("Pad", 1), ("Pad", 3), ("OneHot", 1), ("CumSum", 1), ("Loop", 0), ("Resize", 3), ("Split", 1), ("Trilu", 1),
        ("SplitToSequence", 1), ("EyeLike", 0), ("RoiAlign", 2), ("SequenceAt", 1), ("SequenceErase", 1),
        ("SequenceInsert", 2), ("BitShift", 1), ("CenterCropPad", 1), ("Upsample", 1), ("DFT", 1), ("DFT", 2),
        ("BlackmanWindow", 0), ("HannWindow", 0), ("HammingWindow", 0), ("AffineGrid", 1), ("STFT", 3), ("STFT", 1),
        ("Col2Im", 1), ("Col2Im", 2), ("Resize", 2), ("RNN", 4), ("LSTM", 4), ("GRU", 4), ("MaxUnpool", 1),
        ("MaxUnpool", 2), ("MelWeightMatrix", 0), ("MelWeightMatrix", 1), ("MelWeightMatrix", 2),
        ("NonMaxSuppression", 2), ("ReverseSequence", 1), ("Bernoulli", 0), ("Dropout", 1),
    )
)  # fmt: skip
_ND_INDICES = frozenset(
    (("GatherND", 1), ("GatherND", 2), ("ScatterND", 1), ("TensorScatter", 1), ("TensorScatter", 2))
)
_NORMS = NORMALIZES - {"BatchNormalization"} | {"ReduceMean", "ReduceL2"}  # use statistics of the values themselves
_DECODES = CASTS | {"DequantizeLinear", "Identity"}  # keep the shape of a stored table
_EPSILON = "epsilon"  # the attribute of a norm that matters only for rows of small variance
_MASK_PROBES = (-1, 2, 3)  # numbers of a mask that x > 0, x != 0, x == 1 and x > 1 tell apart
HIDING_SCORE = -1e3  # a number at or below it, added to a score, masks the position


def find_use(model: ir.Model, value: ir.Value) -> Use:
    """Return the use of one graph input, from every operator its elements reach."""
    evidence = _Evidence(value.dtype is not None and value.dtype.is_floating_point())
    _visit(_Step(value), lambda step, node, operand: _follow(model, step, node, operand, evidence))
    use = replace(_decide(value, evidence), inverted=evidence.hides_when == {True})
    if use.role is Role.INDEX or (use.role is Role.MASK and use.specials):
        # also the numbers on both sides of its thresholds
        thresholds, rows = find_thresholds(model, value)[0], use.rows if isinstance(use.rows, int) else 1 << 31
        near = {int(t.number) + step for t in thresholds for step in ((0,) if t.exact else (-1, 0, 1))}
        return replace(use, specials=tuple(sorted({*use.specials, *(n for n in near if 0 <= n < rows)})))
    return replace(use, words=find_thresholds(model, value)[1]) if value.dtype == ir.DataType.STRING else use


def with_thresholds(model: ir.Model, value: ir.Value, use: Use) -> Use:
    """Return the use of an input with the numbers that data is compared with."""
    if use.role is not Role.DATA or use.slot or value.dtype in (None, ir.DataType.BOOL, ir.DataType.STRING):
        return use
    return replace(use, thresholds=find_thresholds(model, value)[0])


def has_norms(model: ir.Model) -> bool:
    """Return whether some operator adds an epsilon to a variance."""
    return any(node.op_type in _NORMS and _EPSILON in node.attributes for node in model.graph)


def _decide(value: ir.Value, evidence: _Evidence) -> Use:
    name, specials = (value.name or "").lower(), tuple(sorted(evidence.specials))
    kind = value.dtype
    if kind is None or kind == ir.DataType.STRING:
        return Use(Role.DATA)
    if kind.is_floating_point():
        if evidence.masks or evidence.added:
            return Use(Role.MASK if evidence.masks else Role.ADDED_MASK)
        return Use(Role.DATA, slot=evidence.slots[0] if evidence.slots else "", normalized=evidence.normalized)
    if kind == ir.DataType.BOOL:
        return Use(Role.MASK)
    if evidence.tables:
        static = [(rows, table) for rows, table in evidence.tables if isinstance(rows, int)]
        dynamic = [(rows, "") for rows, _ in evidence.tables if isinstance(rows, str)]
        rows, table = min(static) if static else (dynamic[0] if dynamic else (None, ""))
        return Use(Role.POSITION if "position" in name else Role.INDEX, rows, specials, table)
    if evidence.slots:
        return Use(Role.SHAPE, slot=evidence.slots[0])
    if evidence.masks or "mask" in name:
        return Use(Role.MASK, specials=() if evidence.counted else (*_MASK_PROBES, *specials))
    if evidence.sizes:
        return Use(Role.SHAPE, slot="computed")
    if "position" in name:
        return Use(Role.POSITION)
    return Use(Role.DATA, specials=specials, divides=evidence.divides)


def _follow(model: ir.Model, step: _Step, node: ir.Node, operand: int, evidence: _Evidence) -> Iterator[_Step]:
    """Record what this use shows, and yield the values through which the walk continues."""
    op = node.op_type
    inner = _inside(model, node, operand)
    yield from (replace(step, value=value) for value in inner or ())
    if inner is not None and op not in LOOPS:
        return
    evidence.counted = evidence.counted or not (step.boolean or op in _TESTS)
    if _record_table(step, node, operand, evidence):
        return
    if (op, operand) in _SHAPE_SLOTS or (op.startswith("Reduce") and operand == 1):
        if step.same:
            evidence.slots.append(f"{op}:{operand}")
        evidence.sizes = True
        return
    if op in ("Div", "Mod") and operand == 1:
        evidence.divides = True
    if op in _NORMS and operand == 0:
        evidence.normalized = True
    attention = attention_operands(node)
    is_bias = attention is not None and operand == attention.bias
    if is_bias and evidence.floating and not (step.hides or step.boolean):
        evidence.added = True
    elif is_bias or (attention is not None and operand in attention.masks):
        evidence.masks = True
    elif op == "Where" and operand == 0:  # its first branch is taken where the mask, or its negation, is true
        branches = zip((True, False), node.inputs[1:], strict=False)
        hiding = {taken != step.negated for taken, v in branches if _is_hiding(_scalar(v))}
        evidence.hides_when |= hiding
        evidence.masks = evidence.masks or not step.compared or bool(hiding)
    if op == "Softmax":
        evidence.masks = evidence.masks or step.hides
        evidence.added = evidence.added or step.to_scores
    elif (op in _MOVES and operand == 0) or op == "Concat":
        is_known = op == "Cast" and not has_references(node)
        boolean = step.boolean or (is_known and node.attributes["to"].as_int() == ir.DataType.BOOL)
        for output in node.outputs:
            yield replace(step, value=output, boolean=boolean)
    elif op in _COMBINES:
        yield _combined(step, node, operand, evidence)


def _combined(step: _Step, node: ir.Node, operand: int, evidence: _Evidence) -> _Step:
    """Return the step after an operator that combines the value with others."""
    op = node.op_type
    others = [v for i, v in enumerate(node.inputs) if i != operand and v is not None]
    constants = [c for c in (_scalar(v) for v in others) if c is not None]
    if op == "Equal" and step.same:
        evidence.specials.update(int(c) - step.offset for c in constants if c.is_integer())
    shifted = step.same and bool(constants) and (op == "Add" or (op == "Sub" and operand == 0))
    by = int(constants[0]) if shifted and abs(constants[0]) < 1e9 else 0
    hides = step.hides or (op in ("Mul", "Where") and any(map(_is_hiding, constants)))
    if op == "Mul" and hides and not step.hides:
        evidence.hides_when.add(not step.negated)
    flips = op == "Not" or (op, constants) == ("Equal", [0.0]) or (op, operand, constants) == ("Sub", 1, [1.0])
    to_scores = step.same and op == "Add" and any(_is_scores(v) for v in others)
    boolean = step.boolean or op in PREDICATES
    # An integer compared with 0 or 1 is a mask; a floating-point number is compared with them for other reasons too.
    compared = boolean and bool(constants) and (evidence.floating or any(c not in (0.0, 0.5, 1.0) for c in constants))
    return _Step(
        node.outputs[0],
        shifted,
        step.offset + (by if op == "Add" else -by) if shifted else 0,
        hides,
        to_scores or step.to_scores,
        boolean,
        step.compared or (compared and op in PREDICATES),
        step.negated != flips,
    )


def _record_table(step: _Step, node: ir.Node, operand: int, evidence: _Evidence) -> bool:
    """Return whether the use selects elements of a table, and record the size of the table if so."""
    op = node.op_type
    table = _stored_name(node.inputs[0]) if op in ("Gather", "GatherElements") else ""
    if op in ("Gather", "GatherElements", "ScatterElements", "Scatter") and operand == 1:
        rows = None if has_references(node) else _dim(node.inputs[0], node.attributes.get_int("axis", 0))
    elif (op, operand) in _ND_INDICES:
        shape = declared_shape(node.inputs[0]) if node.inputs[0] is not None else None
        rows = min((dim for dim in shape or () if isinstance(dim, int)), default=_dim(node.inputs[0], 0))
    elif op == "OneHot" and operand == 0:
        depth = _scalar(node.inputs[1])
        rows, table = int(depth) if depth is not None else None, label(node)  # times a matrix, whose rows these are
    elif op == "EmbedLayerNormalization" and operand in (0, 1):
        rows, table = _dim(node.inputs[operand + 2], 0), _stored_name(node.inputs[operand + 2])
    else:
        return False
    if step.same:
        evidence.tables.append((rows - step.offset if isinstance(rows, int) else rows, table))
    return True


def _stored(value: ir.Value | None) -> ir.Value | None:
    """Return a constant, also one that is cast or dequantized first; None for other values."""
    for _ in range(4):
        producer = value.producer() if value is not None else None
        if value is None or value.const_value is not None or (producer is not None and producer.op_type == "Constant"):
            return value
        value = producer.inputs[0] if producer is not None and producer.op_type in _DECODES else None
    return None


def _stored_name(value: ir.Value | None) -> str:
    stored = _stored(value)
    return stored.name or "" if stored is not None else ""


def _dim(value: ir.Value | None, axis: int) -> int | str | None:
    value = _stored(value) or value
    constant = value.const_value if value is not None else None
    shape = (
        tuple(constant.shape.numpy()) if constant is not None else declared_shape(value) if value is not None else ()
    )
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _scalar(value: ir.Value | None) -> float | None:
    """Return the smallest element of a small constant; None for other values and large constants."""
    numbers = small_constant(value)
    return None if numbers is None else float(numbers.min())


def _is_hiding(number: float | None) -> bool:
    return number is not None and number <= HIDING_SCORE


def _is_scores(value: ir.Value) -> bool:
    """Return whether a value is a scaled or shifted matrix product, which attention masks are added to."""
    for _ in range(4):
        producer = value.producer()
        if producer is None or producer.op_type in MATRIX_PRODUCTS | {"Einsum"}:
            return producer is not None
        first = producer.inputs[0] if producer.op_type in ARITHMETIC else None
        if first is None:
            return False
        value = first
    return False
