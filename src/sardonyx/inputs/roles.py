"""Infer the role of each graph input from the operators it reaches: an index, a mask, a shape, or plain data.

The name of an input is used only if the structure of the graph does not decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import onnx_ir as ir
from msgspec import Struct, field
from msgspec.structs import replace

from sardonyx.inputs.thresholds import Threshold, find_thresholds, find_words, small_constant
from sardonyx.ir.ops import (
    ARITHMETIC,
    BINARY,
    BITWISE,
    CASTS,
    FILLS,
    LOOPS,
    MATRIX_PRODUCTS,
    MOVES_DATA,
    NORMALIZES,
    PREDICATES,
    READS_SHAPE,
    VARIADIC,
    attention_operands,
)
from sardonyx.ir.scopes import bodies, declared_shape, has_references, label


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
_NORMS = NORMALIZES - {"BatchNormalization"} | {"ReduceMean", "ReduceL2"}  # use statistics of the values themselves
_DECODES = CASTS | {"DequantizeLinear", "Identity"}  # keep the shape of a stored table
_EPSILON = "epsilon"  # the attribute of a norm that matters only for rows of small variance
_UNUSUAL = (-1, 2, 3)  # numbers of a mask that x > 0, x != 0, x == 1 and x > 1 tell apart
HIDING = -1e3  # a number at or below it, added to a score, masks the position
_MOST_VISITED = 5000  # values on the way from one input


def find_use(model: ir.Model, value: ir.Value) -> Use:
    """Return the use of one graph input, from every operator its elements reach."""
    evidence = _Evidence(value.dtype is not None and value.dtype.is_floating_point())
    seen: set[_Step] = set()
    queue = [_Step(value)]
    while queue:
        step = queue.pop()
        if step in seen or len(seen) > _MOST_VISITED:
            continue
        seen.add(step)
        for node, operand in step.value.uses():
            queue.extend(_follow(model, step, node, operand, evidence))
    use = replace(_decide(value, evidence), inverted=evidence.hides_when == {True})
    if value.dtype == ir.DataType.STRING:
        return replace(use, words=find_words(model, value))
    if use.role is Role.INDEX or (use.role is Role.MASK and use.specials):
        return replace(use, specials=_sides(use, find_thresholds(model, value)))
    if use.role is Role.DATA and not use.slot and value.dtype not in (None, ir.DataType.BOOL, ir.DataType.STRING):
        return replace(use, thresholds=find_thresholds(model, value))
    return use


def has_norms(model: ir.Model) -> bool:
    """Return whether some operator adds an epsilon to a variance."""
    return any(node.op_type in _NORMS and _EPSILON in node.attributes for node in model.graph)


def _sides(use: Use, thresholds: Sequence[Threshold]) -> tuple[int, ...]:
    """Return the special values of an index or a mask, and those on both sides of its thresholds."""
    near = {int(t.number) + step for t in thresholds for step in ((0,) if t.exact else (-1, 0, 1))}
    rows = use.rows if isinstance(use.rows, int) else 1 << 31
    return tuple(sorted({*use.specials, *(number for number in near if 0 <= number < rows)}))


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
        return Use(Role.MASK, specials=() if evidence.counted else (*_UNUSUAL, *specials))
    if evidence.sizes:
        return Use(Role.SHAPE, slot="computed")
    if "position" in name:
        return Use(Role.POSITION)
    return Use(Role.DATA, specials=specials, divides=evidence.divides)


def _follow(model: ir.Model, step: _Step, node: ir.Node, operand: int, evidence: _Evidence) -> Iterator[_Step]:
    """Record what this use shows, and yield the values through which the walk continues."""
    op = node.op_type
    function = model.functions.get(node.op_identifier())
    if function is not None:
        yield replace(step, value=function.inputs[operand])
        return
    yield from _into_bodies(step, node, operand)
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
    elif is_bias or (attention is not None and operand in attention.masks) or (op == "Where" and operand == 0):
        evidence.masks = evidence.masks or not (step.compared and op == "Where") or _hides(node)
        if op == "Where":  # its first branch is taken where the mask, or its negation, is true
            branches = zip((True, False), node.inputs[1:], strict=False)
            evidence.hides_when |= {taken != step.negated for taken, v in branches if _is_hiding(_scalar(v))}
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
    offset = step.offset + (
        int(constants[0]) * (1 if op == "Add" else -1) if shifted and abs(constants[0]) < 1e9 else 0
    )
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
        offset if shifted else 0,
        hides,
        to_scores or step.to_scores,
        boolean,
        step.compared or (compared and op in PREDICATES),
        step.negated != flips,
    )


def _into_bodies(step: _Step, node: ir.Node, operand: int) -> Iterator[_Step]:
    """Yield the body inputs that an operand of Loop or Scan becomes; captured values are found through their uses."""
    if node.op_type == "Loop" and operand < 2:
        return
    if node.op_type in LOOPS:
        for _, body in bodies(node):
            if operand < len(body.inputs):
                yield replace(step, value=body.inputs[operand])


def _record_table(step: _Step, node: ir.Node, operand: int, evidence: _Evidence) -> bool:
    """Return whether the use selects elements of a table, and record the size of the table if so."""
    op = node.op_type
    table = _stored_name(node.inputs[0]) if op in ("Gather", "GatherElements") else ""
    if op in ("Gather", "GatherElements", "ScatterElements", "Scatter") and operand == 1:
        rows = None if has_references(node) else _dim(node.inputs[0], node.attributes.get_int("axis", 0))
    elif op in ("GatherND", "ScatterND", "TensorScatter") and operand in (1, 2) and not (op[0] == "S" and operand == 2):
        rows = _dim(node.inputs[0], 0)
        shape = declared_shape(node.inputs[0]) if node.inputs[0] is not None else None
        sizes = [d for d in shape or () if isinstance(d, int)]
        rows = min(sizes) if sizes else rows
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
    if value is None:
        return None
    constant = value.const_value
    shape = tuple(constant.shape.numpy()) if constant is not None else declared_shape(value)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _scalar(value: ir.Value | None) -> float | None:
    """Return the smallest element of a small constant; None for other values and large constants."""
    numbers = small_constant(value)
    return None if numbers is None else float(numbers.min())


def _hides(node: ir.Node) -> bool:
    """Return whether an operand of the node is a number that masks a position."""
    return any(_is_hiding(_scalar(value)) for value in node.inputs[1:])


def _is_hiding(number: float | None) -> bool:
    return number is not None and number <= HIDING


def _is_scores(value: ir.Value) -> bool:
    """Return whether a value is a scaled or shifted matrix product, which attention masks are added to."""
    for _ in range(4):
        producer = value.producer()
        if producer is None or producer.op_type in MATRIX_PRODUCTS | {"Einsum"}:
            return producer is not None
        first = producer.inputs[0] if producer.op_type in ARITHMETIC and producer.inputs else None
        if first is None:
            return False
        value = first
    return False
