"""Rules for the contents of small tensors that hold sizes: the operators with which exporters compute shapes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.shapes import expr, value_arithmetic
from sardonyx.ir.shapes.attributes import numbers, tensor
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.indexing import slice_positions, slice_ranges, split_sizes
from sardonyx.ir.shapes.queries import Contents, ShapeQueries
from sardonyx.ir.shapes.value_arithmetic import Rule
from sardonyx.ir.shapes.views import shape_window

Maybe = Size | None


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


def _same(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    return ask.contents(node.inputs[0])


def _is_list(node: ir.Node, ask: ShapeQueries) -> bool:
    """Return whether the first operand has rank 1."""
    return len(ask.shape(node.inputs[0]) or ()) == 1


def _cast(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    if contents is None or ask.dtype(node.outputs[0]) != ir.DataType.BOOL:
        return contents
    return tuple(
        None if item is None or (is_zero := expr.equal(item, 0)) is None else int(not is_zero) for item in contents
    )


def _shape(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else shape[shape_window(node, len(shape))]


def _size(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else (expr.product(shape),)


def _gather(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents, indices = ask.contents(node.inputs[0]), ask.contents(node.inputs[1])
    if contents is None or indices is None or not _is_list(node, ask):
        return None
    selected: list[Maybe] = []
    for index in indices:
        is_in_range = isinstance(index, int) and -len(contents) <= index < len(contents)
        selected.append(contents[cast("int", index)] if is_in_range else None)
    return tuple(selected)


def _slice(node: ir.Node, ask: ShapeQueries) -> Contents | None:
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


def _transpose(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    grid = _grid(node, ask)
    return None if grid is None else tuple(grid.transpose(numbers(node, "perm")).reshape(-1))


def _split(node: ir.Node, ask: ShapeQueries) -> Sequence[Contents] | None:
    contents = ask.contents(node.inputs[0])
    if contents is None or not _is_list(node, ask):
        return None
    sizes = split_sizes(node, len(contents), ask)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    ends = list(itertools.accumulate(cast("Sequence[int]", sizes)))
    return [contents[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def _grid(node: ir.Node, ask: ShapeQueries) -> np.ndarray | None:
    """Return the contents of the first operand as an array of its shape."""
    contents, shape = ask.contents(node.inputs[0]), ask.shape(node.inputs[0])
    if contents is None or shape is None:
        return None
    grid = np.empty(len(contents), dtype=object)
    grid[:] = contents
    return grid.reshape(cast("tuple[int, ...]", shape))


def _concat(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    parts = [ask.contents(value) for value in node.inputs]
    if any(part is None for part in parts) or not _is_list(node, ask):
        return None
    return tuple(item for part in parts if part is not None for item in part)


def _expand(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    return contents if contents is not None and len(contents) == 1 else None


def _constant_of_shape(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    value = tensor(node, "value")
    if value is None:
        return (0,)
    element = value.numpy().reshape(-1)[0]
    return (int(element),) if element == int(element) else None


def _range(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    bounds = [(ask.contents(value) or (None,))[0] for value in node.inputs]
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    start, limit, step = cast("list[int]", bounds)
    return tuple(range(start, limit, step)) if step else None


def _reduce(combine: Callable[[Size, Size], Size], empty: int | None) -> Rule:
    def rule(node: ir.Node, ask: ShapeQueries) -> Contents | None:
        contents = ask.contents(node.inputs[0])
        if contents is None or None in contents or not _is_list(node, ask):
            return None
        return (empty,) if not contents else (functools.reduce(combine, cast("Sequence[Size]", contents)),)

    return rule


RULES: Mapping[str, Rule] = {
    **value_arithmetic.RULES,
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


def of_output(node: ir.Node, value: ir.Value, ask: ShapeQueries) -> Contents | None:
    """Return the elements of one output, or None if unknown."""
    if node.domain:
        return None
    if node.op_type == "Split":
        parts = _split(node, ask)
        return None if parts is None else parts[node.outputs.index(value)]
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(node, ask)
