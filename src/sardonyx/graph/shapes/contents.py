"""What operators make of sizes that tensors hold: the arithmetic exporters write to compute shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx_ir as ir

from sardonyx.graph.shapes import expr
from sardonyx.graph.shapes.expr import Size
from sardonyx.graph.shapes.views import shape_window, slice_ranges

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
    window = [slice(None)] * grid.ndim
    for axis, start, end, step in ranges:
        if not (isinstance(start, int) and isinstance(end, int) and step):
            return None
        window[axis] = slice(start, None if step < 0 and end < -grid.shape[axis] else end, step)
    return tuple(grid[tuple(window)].reshape(-1))


def _transpose(node: ir.Node, ask: Shapes) -> Contents | None:
    grid = _grid(node, ask)
    return None if grid is None else tuple(grid.transpose(node.attributes.get_ints("perm")).reshape(-1))


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
    value = node.attributes.get("value")
    if value is None:
        return (0,)
    number = cast("ir.TensorProtocol", value.value).numpy().reshape(-1)[0]
    return (int(number),) if number == int(number) else None


def _range(node: ir.Node, ask: Shapes) -> Contents | None:
    bounds = [(ask.contents(value) or (None,))[0] for value in node.inputs]
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    start, limit, step = cast("list[int]", bounds)
    return tuple(range(start, limit, step)) if step else None


def _reduce(combine: Callable[[Size, Size], Size], start: int) -> Rule:
    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        found = ask.contents(node.inputs[0])
        if found is None or None in found or not _is_list(node, ask):
            return None
        result: Size = start if not found else cast("Size", found[0])
        for item in found[1:]:
            result = combine(result, cast("Size", item))
        return (result,)

    return rule


def _spread(node: ir.Node, ask: Shapes) -> list[Contents] | None:
    """The operands' elements, those of scalars repeated."""
    parts = [ask.contents(value) for value in node.inputs]
    if not parts or any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    count = max(map(len, known))
    if any(len(part) not in (1, count) for part in known):
        return None
    return [part * count if len(part) == 1 else part for part in known]


def _pairwise(combine: Callable[[Size, Size], Maybe]) -> Rule:
    def rule(node: ir.Node, ask: Shapes) -> Contents | None:
        spread = _spread(node, ask)
        if spread is None or len(spread) != 2:
            return None
        pairs = zip(*spread, strict=True)
        return tuple(None if one is None or other is None else combine(one, other) for one, other in pairs)

    return rule


def _div(node: ir.Node, ask: Shapes) -> Contents | None:
    """Integers are rounded towards zero, which for what is not negative is down."""
    floats = ask.dtype(node.inputs[0]) in _FLOATS

    def quotient(one: Size, other: Size) -> Maybe:
        if floats:
            return expr.exact_quotient(one, other)
        return expr.floor_quotient(one, other) if expr.at_least(one, 0) and expr.at_least(other, 0) else None

    return _pairwise(quotient)(node, ask)


def _floor(node: ir.Node, ask: Shapes) -> Contents | None:
    """Of a quotient of floating-point numbers that hold whole ones: a division rounded down."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Div" and not maker.domain:
        down = _pairwise(lambda one, other: expr.floor_quotient(one, other) if expr.at_least(other, 0) else None)
        return down(maker, ask)
    return ask.contents(value)


def _mod(one: Size, other: Size) -> Maybe:
    return expr.remainder(one, other) if expr.at_least(one, 0) and expr.at_least(other, 1) else None


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
    "ReduceMax": _reduce(expr.larger, 0),
    "ReduceMin": _reduce(expr.smaller, 0),
    "Add": _pairwise(expr.add),
    "Sub": _pairwise(expr.subtract),
    "Mul": _pairwise(expr.multiply),
    "Max": _pairwise(expr.larger),
    "Min": _pairwise(expr.smaller),
    "Mod": _pairwise(_mod),
    "Div": _div,
    "Floor": _floor,
    "Equal": _pairwise(_truth(expr.equal)),
    "Less": _pairwise(_truth(expr.less)),
    "Greater": _pairwise(_truth(_greater)),
    "LessOrEqual": _pairwise(_truth(_negated(_greater))),
    "GreaterOrEqual": _pairwise(_truth(_negated(expr.less))),
    "Not": _not,
    "And": _pairwise(_both),
    "Or": _pairwise(_either),
    "Neg": _negative,
    "Abs": _abs,
}
COMPUTES_SIZES = tuple(RULES)
