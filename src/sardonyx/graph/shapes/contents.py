"""What operators make of sizes that tensors hold: the arithmetic exporters write to compute shapes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx_ir as ir

from sardonyx.graph.shapes import expr
from sardonyx.graph.shapes.expr import Size
from sardonyx.graph.shapes.given import attributes, number, numbers, operand, tensor
from sardonyx.graph.shapes.picking import slice_ranges, split_sizes, window
from sardonyx.graph.shapes.views import shape_window

if TYPE_CHECKING:
    from sardonyx.graph.shapes.engine import Contents, Shapes

Rule = Callable[[ir.Node, "Shapes"], "Contents | None"]
Maybe = Size | None
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _same(node: ir.Node, ask: Shapes) -> Contents | None:
    return ask.contents(node.inputs[0])


def _is_list(node: ir.Node, ask: Shapes) -> bool:
    """Whether what the node reads has one axis."""
    return len(ask.shape(node.inputs[0]) or ()) == 1


def _cast(node: ir.Node, ask: Shapes) -> Contents | None:
    found = ask.contents(node.inputs[0])
    if found is None or ask.dtype(node.outputs[0]) != ir.DataType.BOOL:
        return found
    return tuple(None if item is None or (known := expr.equal(item, 0)) is None else int(not known) for item in found)


def _shape(node: ir.Node, ask: Shapes) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else shape[shape_window(node, len(shape))]


def _size(node: ir.Node, ask: Shapes) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else (expr.product(shape),)


def _gather(node: ir.Node, ask: Shapes) -> Contents | None:
    found, indices = ask.contents(node.inputs[0]), ask.contents(node.inputs[1])
    if found is None or indices is None or not _is_list(node, ask):
        return None
    picked: list[Maybe] = []
    for index in indices:
        inside = isinstance(index, int) and -len(found) <= index < len(found)
        picked.append(found[cast("int", index)] if inside else None)
    return tuple(picked)


def _slice(node: ir.Node, ask: Shapes) -> Contents | None:
    grid, ranges = _grid(node, ask), slice_ranges(node, ask)
    if grid is None or ranges is None:
        return None
    picked: list[Sequence[int]] = [range(size) for size in grid.shape]
    for axis, start, end, step in ranges:
        if not (isinstance(start, int) and isinstance(end, int) and step):
            return None
        picked[axis] = window(grid.shape[axis], start, end, step)
    return tuple(grid[np.ix_(*(np.array(places, np.int64) for places in picked))].reshape(-1))


def _transpose(node: ir.Node, ask: Shapes) -> Contents | None:
    grid = _grid(node, ask)
    return None if grid is None else tuple(grid.transpose(numbers(node, "perm")).reshape(-1))


def _split(node: ir.Node, ask: Shapes) -> Sequence[Contents] | None:
    found = ask.contents(node.inputs[0])
    if found is None or not _is_list(node, ask):
        return None
    sizes = split_sizes(node, len(found), ask)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    ends = list(itertools.accumulate(cast("Sequence[int]", sizes)))
    return [found[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def _grid(node: ir.Node, ask: Shapes) -> np.ndarray | None:
    """The elements the node reads, in their places."""
    found, shape = ask.contents(node.inputs[0]), ask.shape(node.inputs[0])
    if found is None or shape is None:
        return None
    grid = np.empty(len(found), dtype=object)
    grid[:] = found
    return grid.reshape(cast("tuple[int, ...]", shape))


def _concat(node: ir.Node, ask: Shapes) -> Contents | None:
    parts = [ask.contents(value) for value in node.inputs]
    if any(part is None for part in parts) or not _is_list(node, ask):
        return None
    return tuple(item for part in parts if part is not None for item in part)


def _where(node: ir.Node, ask: Shapes) -> Contents | None:
    spread = _spread(node, ask)
    if spread is None:
        return None
    return tuple((one if chosen else other) if isinstance(chosen, int) else _agreed(one, other)
                 for chosen, one, other in zip(*spread, strict=True))  # fmt: skip


def _agreed(one: Maybe, other: Maybe) -> Maybe:
    return one if one is not None and one == other else None


def _expand(node: ir.Node, ask: Shapes) -> Contents | None:
    found = ask.contents(node.inputs[0])
    return found if found is not None and len(found) == 1 else None


def _constant_of_shape(node: ir.Node, ask: Shapes) -> Contents | None:
    value = tensor(node, "value")
    if value is None:
        return (0,)
    element = value.numpy().reshape(-1)[0]
    return (int(element),) if element == int(element) else None


def _range(node: ir.Node, ask: Shapes) -> Contents | None:
    bounds = [(ask.contents(value) or (None,))[0] for value in node.inputs]
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    start, limit, step = cast("list[int]", bounds)
    return tuple(range(start, limit, step)) if step else None


def _reduce(combine: Callable[[Size, Size], Size], empty: int | None) -> Rule:
    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        found = ask.contents(node.inputs[0])
        if found is None or None in found or not _is_list(node, ask):
            return None
        return (empty,) if not found else (functools.reduce(combine, cast("Sequence[Size]", found)),)

    return rule


def _spread(node: ir.Node, ask: Shapes) -> list[Contents] | None:
    """The operands' elements, those of scalars repeated."""
    parts: list[Contents] = []
    count = 1
    for value in node.inputs:
        part = ask.contents(value)
        if part is None:
            return None
        parts.append(part)
        count = max(count, len(part))
    if any(len(part) not in (1, count) for part in parts):
        return None
    return [part * count if len(part) == 1 else part for part in parts]


def _combined(combine: Callable[[Size, Size], Maybe]) -> Rule:
    """Element by element, over two operands or more."""

    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        spread = _spread(node, ask)
        if spread is None or len(spread) < 2:
            return None
        result = spread[0]
        for part in spread[1:]:
            pairs = zip(result, part, strict=True)
            result = tuple([None if one is None or other is None else combine(one, other) for one, other in pairs])
        return result

    return rule


def _quotient(one: Size, other: Size) -> Maybe:
    """Integers are rounded towards zero, which for what is not negative is down."""
    if isinstance(one, int) and isinstance(other, int) and other:
        whole = abs(one) // abs(other)
        return whole if (one < 0) == (other < 0) else -whole
    return expr.floor_quotient(one, other) if other != 0 and expr.at_least(one, 0) and expr.at_least(other, 0) else None


def _rounded_down(one: Size, other: Size) -> Maybe:
    return expr.floor_quotient(one, other) if other != 0 and expr.at_least(other, 0) else None


def _rounded_up(one: Size, other: Size) -> Maybe:
    down = _rounded_down(expr.multiply(one, -1), other)
    return None if down is None else expr.multiply(down, -1)


_whole_quotients, _exact_quotients = _combined(_quotient), _combined(expr.exact_quotient)


def _div(node: ir.Node, ask: Shapes) -> Contents | None:
    return (_exact_quotients if ask.dtype(node.inputs[0]) in _FLOATS else _whole_quotients)(node, ask)


def _rounded(rounding: Callable[[Size, Size], Maybe]) -> Rule:
    """Of a quotient of floating-point numbers that hold whole ones: a division that is rounded."""
    quotients = _combined(rounding)

    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        value = node.inputs[0]
        maker = None if value is None else value.producer()
        if maker is not None and maker.op_type == "Div" and not maker.domain:
            return quotients(maker, ask)
        return ask.contents(value)

    return rule


def _positive_remainder(one: Size, other: Size) -> Maybe:
    return expr.remainder(one, other) if other != 0 and expr.at_least(other, 0) else None


def _remainder_of_positive(one: Size, other: Size) -> Maybe:
    return _positive_remainder(one, other) if expr.at_least(one, 0) else None


_by_divisor, _by_dividend = _combined(_positive_remainder), _combined(_remainder_of_positive)


def _mod(node: ir.Node, ask: Shapes) -> Contents | None:
    """The sign is the divisor's, or with `fmod` the dividend's."""
    return (_by_dividend if number(node, "fmod", 0) else _by_divisor)(node, ask)


def _power(one: Size, other: Size) -> Maybe:
    return expr.product([one] * other) if isinstance(other, int) and 0 <= other <= 3 else None


def _clip(node: ir.Node, ask: Shapes) -> Contents | None:
    found = ask.contents(node.inputs[0])
    if found is None or "min" in attributes(node) or "max" in attributes(node):
        return None
    for index, bound in ((1, expr.larger), (2, expr.smaller)):
        if operand(node, index) is not None:
            (limit,) = ask.contents(operand(node, index)) or (None,)
            found = tuple([None if item is None or limit is None else bound(item, limit) for item in found])
    return found


def _truth(test: Callable[[Size, Size], bool | None]) -> Callable[[Size, Size], Maybe]:
    def told(one: Size, other: Size) -> Maybe:
        known = test(one, other)
        return None if known is None else int(known)

    return told


def _negated(test: Callable[[Size, Size], bool | None]) -> Callable[[Size, Size], bool | None]:
    def told(one: Size, other: Size) -> bool | None:
        known = test(one, other)
        return None if known is None else not known

    return told


def _greater(one: Size, other: Size) -> bool | None:
    return expr.less(other, one)


def _not(node: ir.Node, ask: Shapes) -> Contents | None:
    found = ask.contents(node.inputs[0])
    return None if found is None else tuple(1 - item if isinstance(item, int) else None for item in found)


def _both(one: Size, other: Size) -> Maybe:
    return int(bool(one) and bool(other)) if isinstance(one, int) and isinstance(other, int) else None


def _either(one: Size, other: Size) -> Maybe:
    return int(bool(one) or bool(other)) if isinstance(one, int) and isinstance(other, int) else None


def _negative(node: ir.Node, ask: Shapes) -> Contents | None:
    found = ask.contents(node.inputs[0])
    return None if found is None else tuple(None if item is None else expr.multiply(item, -1) for item in found)


def _abs(node: ir.Node, ask: Shapes) -> Contents | None:
    found = ask.contents(node.inputs[0])
    if found is None:
        return None
    return tuple(item if item is not None and expr.at_least(item, 0) else None for item in found)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _same),
    "Cast": _cast,
    "CastLike": _cast,
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Transpose": _transpose,
    "Concat": _concat,
    "Where": _where,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "ReduceProd": _reduce(expr.multiply, 1),
    "ReduceSum": _reduce(expr.add, 0),
    "ReduceMax": _reduce(expr.larger, None),
    "ReduceMin": _reduce(expr.smaller, None),
    "Add": _combined(expr.add),
    "Sum": _combined(expr.add),
    "Sub": _combined(expr.subtract),
    "Mul": _combined(expr.multiply),
    "Max": _combined(expr.larger),
    "Min": _combined(expr.smaller),
    "Mod": _mod,
    "Div": _div,
    "Floor": _rounded(_rounded_down),
    "Ceil": _rounded(_rounded_up),
    "Pow": _combined(_power),
    "Clip": _clip,
    "Equal": _combined(_truth(expr.equal)),
    "Less": _combined(_truth(expr.less)),
    "Greater": _combined(_truth(_greater)),
    "LessOrEqual": _combined(_truth(_negated(_greater))),
    "GreaterOrEqual": _combined(_truth(_negated(expr.less))),
    "Not": _not,
    "And": _combined(_both),
    "Or": _combined(_either),
    "Neg": _negative,
    "Abs": _abs,
}
COMPUTES_SIZES = tuple(RULES)


def of_output(node: ir.Node, value: ir.Value, ask: Shapes) -> Contents | None:
    """The elements of one output; None where they are not known."""
    if node.domain:
        return None
    if node.op_type == "Split":
        parts = _split(node, ask)
        return None if parts is None else parts[node.outputs.index(value)]
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(node, ask)
