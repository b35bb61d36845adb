"""Rules for the contents of small tensors that hold sizes: the operators with which exporters compute shapes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import Contents, attributes, number, numbers, tensor
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.movement import shape_window, slice_positions, slice_ranges, split_sizes

if TYPE_CHECKING:
    from sardonyx.ir.shapes.engine import Shapes

Rule = Callable[[ir.Node, "Shapes"], Contents | None]
Maybe = Size | None
_DOUBLE = 2**53  # double precision represents every integer up to this
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _broadcast_operands(node: ir.Node, ask: Shapes) -> list[Contents] | None:
    """Return the contents of the operands, scalars repeated to the common length; None if unknown."""
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
    """Return the rule that applies `combine` element by element, over two or more operands."""

    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        operands = _broadcast_operands(node, ask)
        if operands is None or len(operands) < 2:
            return None
        result = operands[0]
        for part in operands[1:]:
            pairs = zip(result, part, strict=True)
            result = tuple([None if one is None or other is None else combine(one, other) for one, other in pairs])
        return result

    return rule


def _quotient(one: Size, other: Size) -> Maybe:
    """Return the quotient of integers, which ONNX rounds towards zero: down if both are non-negative."""
    if isinstance(one, int) and isinstance(other, int) and other:
        whole = abs(one) // abs(other)
        return whole if (one < 0) == (other < 0) else -whole
    return expr.floor_quotient(one, other) if other != 0 and expr.at_least(one, 0) and expr.at_least(other, 0) else None


def _rounded_down(one: Size, other: Size) -> Maybe:
    return expr.floor_quotient(one, other) if expr.at_least(other, 1) else None


def _rounded_up(one: Size, other: Size) -> Maybe:
    down = _rounded_down(expr.multiply(one, -1), other)
    return None if down is None else expr.multiply(down, -1)


def _float_quotient(one: Size, other: Size) -> Maybe:
    """Return the quotient of floats if it is exact; a float division by zero is not an error."""
    return expr.exact_quotient(one, other) if _is_never_zero(other) else None


def _is_never_zero(size: Size) -> bool:
    return size != 0 if isinstance(size, int) else expr.at_least(size, 1)


_whole_quotients, _float_quotients = _combined(_quotient), _combined(_float_quotient)


def _div(node: ir.Node, ask: Shapes) -> Contents | None:
    return (_float_quotients if ask.dtype(node.inputs[0]) in _FLOATS else _whole_quotients)(node, ask)


def _rounded(rounding: Callable[[Size, Size], Maybe]) -> Rule:
    """Return the rule for Floor or Ceil, which rounds a Div of floats that hold integers."""
    quotients = _combined(rounding)

    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        value = node.inputs[0]
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type == "Div" and not producer.domain:
            return quotients(producer, ask)
        return ask.contents(value)

    return rule


def _positive_remainder(one: Size, other: Size) -> Maybe:
    return expr.remainder(one, other) if other != 0 and expr.at_least(other, 0) else None


def _remainder_of_positive(one: Size, other: Size) -> Maybe:
    """Return the remainder of a non-negative dividend, which runtimes compute in double precision."""
    if expr.magnitude(one) > _DOUBLE or expr.magnitude(other) > _DOUBLE:
        return None
    return _positive_remainder(one, other) if expr.at_least(one, 0) else None


def _float_remainder(one: Size, other: Size) -> Maybe:
    return _remainder_of_positive(one, other) if expr.at_least(other, 1) else None


_by_divisor, _by_dividend = _combined(_positive_remainder), _combined(_remainder_of_positive)
_of_floats = _combined(_float_remainder)


def _mod(node: ir.Node, ask: Shapes) -> Contents | None:
    """Return the remainder with the sign of the divisor, or of the dividend if `fmod` is set."""
    if ask.dtype(node.inputs[0]) in _FLOATS:
        return _of_floats(node, ask)
    return (_by_dividend if number(node, "fmod", 0) else _by_divisor)(node, ask)


def _power(one: Size, other: Size) -> Maybe:
    return expr.product([one] * other) if isinstance(other, int) and 0 <= other <= 3 else None


def _clip(node: ir.Node, ask: Shapes) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    if contents is None or "min" in attributes(node) or "max" in attributes(node):
        return None
    for index, bound in ((1, expr.larger), (2, expr.smaller)):
        if operand(node, index) is not None:
            (limit,) = ask.contents(operand(node, index)) or (None,)
            contents = tuple([None if item is None or limit is None else bound(item, limit) for item in contents])
    return contents


def _truth(test: Callable[[Size, Size], bool | None], *, when: bool = True) -> Callable[[Size, Size], Maybe]:
    """Return 1 where the test gives this answer, 0 where it gives the other one."""

    def truth(one: Size, other: Size) -> Maybe:
        answer = test(one, other)
        return None if answer is None else int(answer == when)

    return truth


def _greater(one: Size, other: Size) -> bool | None:
    return expr.less(other, one)


def _each(change: Callable[[Size], Maybe]) -> Rule:
    """Return the rule that applies `change` to each element."""

    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        contents = ask.contents(node.inputs[0])
        return None if contents is None else tuple(None if item is None else change(item) for item in contents)

    return rule


def _both(one: Size, other: Size) -> Maybe:
    return int(bool(one) and bool(other)) if isinstance(one, int) and isinstance(other, int) else None


def _either(one: Size, other: Size) -> Maybe:
    return int(bool(one) or bool(other)) if isinstance(one, int) and isinstance(other, int) else None


def _where(node: ir.Node, ask: Shapes) -> Contents | None:
    operands = _broadcast_operands(node, ask)
    if operands is None:
        return None
    return tuple((one if condition else other) if isinstance(condition, int) else _agreed(one, other)
                 for condition, one, other in zip(*operands, strict=True))  # fmt: skip


def _agreed(one: Maybe, other: Maybe) -> Maybe:
    return one if one is not None and one == other else None


_WHOLE = (ir.DataType.INT64, ir.DataType.INT32)
MAX_WEIGHT = 96  # of a size; larger ones become unknown
WIDEST = {  # bounds of the integers that each type represents exactly; some exporters divide sizes as floats
    ir.DataType.INT64: 2**63,
    ir.DataType.INT32: 2**31,
    ir.DataType.BOOL: 2,
    ir.DataType.FLOAT: 2**24,
    ir.DataType.DOUBLE: 2**53,
}


def of_tensor(tensor: ir.TensorProtocol) -> Contents:
    """Return the elements of a constant, with None for those that are not integers."""
    elements = tensor.numpy().reshape(-1).tolist()
    return tuple(elements if tensor.dtype in _WHOLE else map(_whole, elements))


def _whole(number: float) -> int | None:
    return int(number) if number == number and abs(number) < 2**63 and number == int(number) else None


def fitting(sizes: Contents, widest: int) -> Contents:
    """Return the sizes with None for those that the type may not represent exactly or that are too large to keep."""
    return tuple([size if size is None or _fits(size, widest) else None for size in sizes])


def _fits(size: Size, widest: int) -> bool:
    if isinstance(size, int):
        return -widest <= size < widest
    return size.weight <= MAX_WEIGHT and expr.magnitude(size) <= widest


def is_certain(sizes: Contents) -> bool:
    """Return whether every size is known and none contains an unknown dimension."""
    return all(isinstance(size, int) or (size is not None and not size.is_vague) for size in sizes)


def are_numbers(sizes: Contents) -> bool:
    """Return whether all sizes are numbers."""
    return all(type(size) is int for size in sizes)


def _same(node: ir.Node, ask: Shapes) -> Contents | None:
    return ask.contents(node.inputs[0])


def _is_list(node: ir.Node, ask: Shapes) -> bool:
    """Return whether the first operand has rank 1."""
    return len(ask.shape(node.inputs[0]) or ()) == 1


def _cast(node: ir.Node, ask: Shapes) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    if contents is None or ask.dtype(node.outputs[0]) != ir.DataType.BOOL:
        return contents
    return tuple(
        None if item is None or (is_zero := expr.equal(item, 0)) is None else int(not is_zero) for item in contents
    )


def _shape(node: ir.Node, ask: Shapes) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else shape[shape_window(node, len(shape))]


def _size(node: ir.Node, ask: Shapes) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else (expr.product(shape),)


def _gather(node: ir.Node, ask: Shapes) -> Contents | None:
    contents, indices = ask.contents(node.inputs[0]), ask.contents(node.inputs[1])
    if contents is None or indices is None or not _is_list(node, ask):
        return None
    selected: list[Maybe] = []
    for index in indices:
        is_in_range = isinstance(index, int) and -len(contents) <= index < len(contents)
        selected.append(contents[cast("int", index)] if is_in_range else None)
    return tuple(selected)


def _slice(node: ir.Node, ask: Shapes) -> Contents | None:
    grid, ranges = _grid(node, ask), slice_ranges(node, ask)
    if grid is None or ranges is None:
        return None
    selected: list[Sequence[int]] = [range(size) for size in grid.shape]
    for axis, start, end, step in ranges:
        if not (isinstance(start, int) and isinstance(end, int) and step):
            return None
        positions = slice_positions(grid.shape[axis], start, end, step)
        if positions is None:
            return None
        selected[axis] = positions
    return tuple(grid[np.ix_(*(np.array(positions, np.int64) for positions in selected))].reshape(-1))


def _transpose(node: ir.Node, ask: Shapes) -> Contents | None:
    grid = _grid(node, ask)
    return None if grid is None else tuple(grid.transpose(numbers(node, "perm")).reshape(-1))


def _split(node: ir.Node, ask: Shapes) -> Sequence[Contents] | None:
    contents = ask.contents(node.inputs[0])
    if contents is None or not _is_list(node, ask):
        return None
    sizes = split_sizes(node, len(contents), ask)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    ends = list(itertools.accumulate(cast("Sequence[int]", sizes)))
    return [contents[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def _grid(node: ir.Node, ask: Shapes) -> np.ndarray | None:
    """Return the contents of the first operand as an array of its shape."""
    contents, shape = ask.contents(node.inputs[0]), ask.shape(node.inputs[0])
    if contents is None or shape is None:
        return None
    grid = np.empty(len(contents), dtype=object)
    grid[:] = contents
    return grid.reshape(cast("tuple[int, ...]", shape))


def _concat(node: ir.Node, ask: Shapes) -> Contents | None:
    parts = [ask.contents(value) for value in node.inputs]
    if any(part is None for part in parts) or not _is_list(node, ask):
        return None
    return tuple(item for part in parts if part is not None for item in part)


def _expand(node: ir.Node, ask: Shapes) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    return contents if contents is not None and len(contents) == 1 else None


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
        contents = ask.contents(node.inputs[0])
        if contents is None or None in contents or not _is_list(node, ask):
            return None
        return (empty,) if not contents else (functools.reduce(combine, cast("Sequence[Size]", contents)),)

    return rule


RULES: Mapping[str, Rule] = {
    "Where": _where,
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
    "LessOrEqual": _combined(_truth(_greater, when=False)),
    "GreaterOrEqual": _combined(_truth(expr.less, when=False)),
    "Not": _each(lambda item: 1 - item if isinstance(item, int) else None),
    "And": _combined(_both),
    "Or": _combined(_either),
    "Neg": _each(lambda item: expr.multiply(item, -1)),
    "Abs": _each(lambda item: item if expr.at_least(item, 0) else None),
    **dict.fromkeys(sorted(KEEPS_ORDER), _same),
    "Cast": _cast,
    "CastLike": _cast,
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Transpose": _transpose,
    "Concat": _concat,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "ReduceProd": _reduce(expr.multiply, 1),
    "ReduceSum": _reduce(expr.add, 0),
    "ReduceMax": _reduce(expr.larger, None),
    "ReduceMin": _reduce(expr.smaller, None),
}
COMPUTES_SIZES = tuple(RULES)


def of_output(node: ir.Node, value: ir.Value, ask: Shapes) -> Contents | None:
    """Return the elements of one output, or None if unknown."""
    if node.domain:
        return None
    if node.op_type == "Split":
        parts = _split(node, ask)
        return None if parts is None else parts[node.outputs.index(value)]
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(node, ask)
