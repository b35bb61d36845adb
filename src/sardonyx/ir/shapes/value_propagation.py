"""Rules for the contents of small tensors that hold sizes: the operators with which exporters compute shapes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.movement import shape_window, slice_positions, slice_ranges, split_sizes
from sardonyx.ir.shapes.node_view import Contents, NodeView, Unknown, are_numbers

Rule = Callable[[NodeView], Contents | None]
Maybe = Size | None
_MAX_EXACT_DOUBLE = 2**53  # double precision represents every integer up to this
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _aligned(node: NodeView) -> list[Contents]:
    """Return the contents of the operands, scalars repeated to the common length."""
    parts = [node.elements(index) for index in range(len(node.node.inputs))]
    count = max(1, *map(len, parts))
    if any(len(part) not in (1, count) for part in parts):
        raise Unknown
    return [part * count if len(part) == 1 else part for part in parts]


def _combined(combine: Callable[[Size, Size], Maybe]) -> Rule:
    """Return the rule that applies `combine` element by element, over two or more operands."""

    def rule(node: NodeView) -> Contents | None:
        result, *others = _aligned(node)
        for part in others:
            pairs = zip(result, part, strict=True)
            result = tuple([None if one is None or other is None else combine(one, other) for one, other in pairs])
        return result if others else None

    return rule


def _of_numbers(combine: Callable[[int, int], int]) -> Rule:
    """Return the rule that applies `combine` to numbers only."""

    def combined(one: Size, other: Size) -> Maybe:
        return combine(one, other) if isinstance(one, int) and isinstance(other, int) else None

    return _combined(combined)


def _each(change: Callable[[Size], Maybe]) -> Rule:
    """Return the rule that applies `change` to each element."""
    return lambda node: tuple([None if item is None else change(item) for item in node.elements()])


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
    is_never_zero = other != 0 if isinstance(other, int) else expr.at_least(other, 1)
    return expr.exact_quotient(one, other) if is_never_zero else None


def _rounded(rounding: Callable[[Size, Size], Maybe]) -> Rule:
    """Return the rule for Floor or Ceil, which rounds a Div of floats that hold integers."""
    quotients = _combined(rounding)

    def rule(node: NodeView) -> Contents | None:
        value = node.operand()
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type == "Div" and not producer.domain:
            return quotients(NodeView(producer, node.ask))
        return node.contents()

    return rule


def _positive_remainder(one: Size, other: Size) -> Maybe:
    return expr.remainder(one, other) if other != 0 and expr.at_least(other, 0) else None


def _remainder_of_positive(one: Size, other: Size) -> Maybe:
    """Return the remainder of a non-negative dividend, which runtimes compute in double precision."""
    if expr.magnitude(one) > _MAX_EXACT_DOUBLE or expr.magnitude(other) > _MAX_EXACT_DOUBLE:
        return None
    return _positive_remainder(one, other) if expr.at_least(one, 0) else None


def _float_remainder(one: Size, other: Size) -> Maybe:
    return _remainder_of_positive(one, other) if expr.at_least(other, 1) else None


def _by_type(of_floats: Rule, of_integers: Rule) -> Rule:
    """Return the rule for an operator that is another one on floats."""
    return lambda node: (of_floats if node.ask.dtype(node.operand()) in _FLOATS else of_integers)(node)


_by_divisor, _by_dividend = _combined(_positive_remainder), _combined(_remainder_of_positive)


def _mod(node: NodeView) -> Contents | None:
    """Return the remainder with the sign of the divisor, or of the dividend if `fmod` is set."""
    return (_by_dividend if node.number("fmod", 0) else _by_divisor)(node)


def _power(one: Size, other: Size) -> Maybe:
    return expr.product([one] * other) if isinstance(other, int) and 0 <= other <= 3 else None


def _clip(node: NodeView) -> Contents | None:
    contents = node.elements()
    if node.has("min") or node.has("max"):
        return None
    for index, bound in ((1, expr.larger), (2, expr.smaller)):
        if node.operand(index) is not None:
            (limit,) = node.contents(index) or (None,)
            contents = tuple([None if item is None or limit is None else bound(item, limit) for item in contents])
    return contents


def _truth(test: Callable[[Size, Size], bool | None], *, when: bool = True) -> Rule:
    """Return the rule for 1 where the test gives this answer, and 0 where it gives the other one."""
    return _combined(lambda one, other: None if (answer := test(one, other)) is None else int(answer == when))


def _greater(one: Size, other: Size) -> bool | None:
    return expr.less(other, one)


def _where(node: NodeView) -> Contents | None:
    return tuple((one if condition else other) if isinstance(condition, int) or one == other else None
                 for condition, one, other in zip(*_aligned(node), strict=True))  # fmt: skip


_WHOLE = (ir.DataType.INT64, ir.DataType.INT32)
MAX_SIZE_WEIGHT = 96  # of a size; larger ones become unknown
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
    if tensor.dtype in _WHOLE:
        return tuple(elements)
    return tuple(int(each) if abs(each) < 2**63 and each == int(each) else None for each in elements)


def fitting(sizes: Contents, widest: int) -> Contents:
    """Return the sizes with None for those that the type may not represent exactly or that are too large to keep."""
    return tuple([size if size is None or _fits(size, widest) else None for size in sizes])


def _fits(size: Size, widest: int) -> bool:
    if isinstance(size, int):
        return -widest <= size < widest
    return size.weight <= MAX_SIZE_WEIGHT and expr.magnitude(size) <= widest


def is_certain(sizes: Contents) -> bool:
    """Return whether every size is known and none contains an unknown dimension."""
    return all(isinstance(size, int) or (size is not None and not size.is_vague) for size in sizes)


def _is_list(node: NodeView) -> bool:
    """Return whether the first operand has rank 1."""
    return len(node.known()) == 1


def _cast(node: NodeView) -> Contents | None:
    contents = node.elements()
    if node.ask.dtype(node.node.outputs[0]) != ir.DataType.BOOL:
        return contents
    return tuple(
        None if item is None or (is_zero := expr.equal(item, 0)) is None else int(not is_zero) for item in contents
    )


def _shape(node: NodeView) -> Contents | None:
    shape = node.known()
    return shape[shape_window(node, len(shape))]


def _gather(node: NodeView) -> Contents | None:
    contents, indices = node.elements(), node.elements(1)
    if not _is_list(node):
        return None
    count = len(contents)
    return tuple(contents[index] if isinstance(index, int) and -count <= index < count else None for index in indices)


def _slice(node: NodeView) -> Contents | None:
    grid, ranges = _grid(node), slice_ranges(node)
    if ranges is None:
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


def _transpose(node: NodeView) -> Contents | None:
    return tuple(_grid(node).transpose(node.numbers("perm")).reshape(-1))


def _grid(node: NodeView) -> np.ndarray:
    """Return the contents of the first operand as an array of its shape."""
    contents = node.elements()
    grid = np.empty(len(contents), dtype=object)
    grid[:] = contents
    return grid.reshape(cast("tuple[int, ...]", node.known()))


def _concat(node: NodeView) -> Contents | None:
    parts = [node.elements(index) for index in range(len(node.node.inputs))]
    return tuple(itertools.chain(*parts)) if _is_list(node) else None


def _expand(node: NodeView) -> Contents | None:
    contents = node.elements()
    return contents if len(contents) == 1 else None


def _constant_of_shape(node: NodeView) -> Contents | None:
    value = node.tensor("value")
    contents: Contents = (0,) if value is None else of_tensor(value)[:1]
    return None if None in contents else contents


def _range(node: NodeView) -> Contents | None:
    bounds = tuple(node.scalar(index) for index in range(3))
    return tuple(range(*cast("tuple[int, int, int]", bounds))) if are_numbers(bounds) and bounds[2] else None


def _reduce(combine: Callable[[Size, Size], Size], empty: int | None) -> Rule:
    def rule(node: NodeView) -> Contents | None:
        contents = node.elements()
        if None in contents or not _is_list(node):
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
    "Mod": _by_type(_combined(_float_remainder), _mod),
    "Div": _by_type(_combined(_float_quotient), _combined(_quotient)),
    "Floor": _rounded(_rounded_down),
    "Ceil": _rounded(_rounded_up),
    "Pow": _combined(_power),
    "Clip": _clip,
    "Equal": _truth(expr.equal),
    "Less": _truth(expr.less),
    "Greater": _truth(_greater),
    "LessOrEqual": _truth(_greater, when=False),
    "GreaterOrEqual": _truth(expr.less, when=False),
    "Not": _each(lambda item: 1 - item if isinstance(item, int) else None),
    "And": _of_numbers(min),
    "Or": _of_numbers(max),
    "Neg": _each(lambda item: expr.multiply(item, -1)),
    "Abs": _each(lambda item: item if expr.at_least(item, 0) else None),
    **dict.fromkeys(sorted(KEEPS_ORDER), NodeView.contents),
    "Cast": _cast,
    "CastLike": _cast,
    "Shape": _shape,
    "Size": lambda node: (expr.product(node.known()),),
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


def of_output(node: NodeView, value: ir.Value) -> Contents | None:
    """Return the elements of one output, or None if unknown."""
    op_type = node.node.op_type
    if node.node.domain:
        return None
    if op_type == "Split":
        contents = node.elements()
        sizes = split_sizes(node, len(contents)) if _is_list(node) else None
        if sizes is None or not are_numbers(tuple(sizes)):
            return None
        index = node.node.outputs.index(value)
        start = sum(cast("Sequence[int]", sizes[:index]))
        return contents[start : start + cast("int", sizes[index])]
    return RULES[op_type](node) if op_type in RULES else None
