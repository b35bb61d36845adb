"""What operators make of sizes that tensors hold: the arithmetic exporters write to compute shapes."""

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
from sardonyx.ir.shapes.indexing import slice_ranges, split_sizes, window
from sardonyx.ir.shapes.queries import Ask, Contents
from sardonyx.ir.shapes.value_arithmetic import Rule
from sardonyx.ir.shapes.views import shape_window

Maybe = Size | None


_WHOLE = (ir.DataType.INT64, ir.DataType.INT32)
HEAVY = 96  # atoms in a size; of one that is made of more nothing is known
WIDEST = {  # whole numbers that fit; some exporters divide sizes as floating-point numbers
    ir.DataType.INT64: 2**63,
    ir.DataType.INT32: 2**31,
    ir.DataType.BOOL: 2,
    ir.DataType.FLOAT: 2**24,
    ir.DataType.DOUBLE: 2**53,
}


def of_tensor(tensor: ir.TensorProtocol) -> Contents:
    """The elements of a constant, None for those that no size can be."""
    elements = tensor.numpy().reshape(-1).tolist()
    return tuple(elements if tensor.dtype in _WHOLE else map(_whole, elements))


def _whole(number: float) -> int | None:
    return int(number) if number == number and abs(number) < 2**63 and number == int(number) else None


def fitting(sizes: Contents, widest: int) -> Contents:
    """Those that a type certainly holds as they are, and that are not too much to remember; None for the others."""
    return tuple([size if size is None or _fits(size, widest) else None for size in sizes])


def _fits(size: Size, widest: int) -> bool:
    if isinstance(size, int):
        return -widest <= size < widest
    return size.weight <= HEAVY and expr.magnitude(size) <= widest


def told(sizes: Contents) -> bool:
    """Whether nothing about them is unknown."""
    return all(isinstance(size, int) or (size is not None and not size.is_vague) for size in sizes)


def are_numbers(sizes: Contents) -> bool:
    """Whether each is certain and the same at every size."""
    return all(type(size) is int for size in sizes)


def _same(node: ir.Node, ask: Ask) -> Contents | None:
    return ask.contents(node.inputs[0])


def _is_list(node: ir.Node, ask: Ask) -> bool:
    """Whether what the node reads has one axis."""
    return len(ask.shape(node.inputs[0]) or ()) == 1


def _cast(node: ir.Node, ask: Ask) -> Contents | None:
    found = ask.contents(node.inputs[0])
    if found is None or ask.dtype(node.outputs[0]) != ir.DataType.BOOL:
        return found
    return tuple(None if item is None or (known := expr.equal(item, 0)) is None else int(not known) for item in found)


def _shape(node: ir.Node, ask: Ask) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else shape[shape_window(node, len(shape))]


def _size(node: ir.Node, ask: Ask) -> Contents | None:
    shape = ask.shape(node.inputs[0])
    return None if shape is None else (expr.product(shape),)


def _gather(node: ir.Node, ask: Ask) -> Contents | None:
    found, indices = ask.contents(node.inputs[0]), ask.contents(node.inputs[1])
    if found is None or indices is None or not _is_list(node, ask):
        return None
    picked: list[Maybe] = []
    for index in indices:
        inside = isinstance(index, int) and -len(found) <= index < len(found)
        picked.append(found[cast("int", index)] if inside else None)
    return tuple(picked)


def _slice(node: ir.Node, ask: Ask) -> Contents | None:
    grid, ranges = _grid(node, ask), slice_ranges(node, ask)
    if grid is None or ranges is None:
        return None
    picked: list[Sequence[int]] = [range(size) for size in grid.shape]
    for axis, start, end, step in ranges:
        if not (isinstance(start, int) and isinstance(end, int) and step):
            return None
        places = window(grid.shape[axis], start, end, step)
        if places is None:
            return None
        picked[axis] = places
    return tuple(grid[np.ix_(*(np.array(places, np.int64) for places in picked))].reshape(-1))


def _transpose(node: ir.Node, ask: Ask) -> Contents | None:
    grid = _grid(node, ask)
    return None if grid is None else tuple(grid.transpose(numbers(node, "perm")).reshape(-1))


def _split(node: ir.Node, ask: Ask) -> Sequence[Contents] | None:
    found = ask.contents(node.inputs[0])
    if found is None or not _is_list(node, ask):
        return None
    sizes = split_sizes(node, len(found), ask)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    ends = list(itertools.accumulate(cast("Sequence[int]", sizes)))
    return [found[start:end] for start, end in zip((0, *ends), ends, strict=False)]


def _grid(node: ir.Node, ask: Ask) -> np.ndarray | None:
    """The elements the node reads, in their places."""
    found, shape = ask.contents(node.inputs[0]), ask.shape(node.inputs[0])
    if found is None or shape is None:
        return None
    grid = np.empty(len(found), dtype=object)
    grid[:] = found
    return grid.reshape(cast("tuple[int, ...]", shape))


def _concat(node: ir.Node, ask: Ask) -> Contents | None:
    parts = [ask.contents(value) for value in node.inputs]
    if any(part is None for part in parts) or not _is_list(node, ask):
        return None
    return tuple(item for part in parts if part is not None for item in part)


def _expand(node: ir.Node, ask: Ask) -> Contents | None:
    found = ask.contents(node.inputs[0])
    return found if found is not None and len(found) == 1 else None


def _constant_of_shape(node: ir.Node, ask: Ask) -> Contents | None:
    value = tensor(node, "value")
    if value is None:
        return (0,)
    element = value.numpy().reshape(-1)[0]
    return (int(element),) if element == int(element) else None


def _range(node: ir.Node, ask: Ask) -> Contents | None:
    bounds = [(ask.contents(value) or (None,))[0] for value in node.inputs]
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    start, limit, step = cast("list[int]", bounds)
    return tuple(range(start, limit, step)) if step else None


def _reduce(combine: Callable[[Size, Size], Size], empty: int | None) -> Rule:
    def rule(node: ir.Node, ask: Ask) -> Contents | None:
        found = ask.contents(node.inputs[0])
        if found is None or None in found or not _is_list(node, ask):
            return None
        return (empty,) if not found else (functools.reduce(combine, cast("Sequence[Size]", found)),)

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


def of_output(node: ir.Node, value: ir.Value, ask: Ask) -> Contents | None:
    """The elements of one output; None where they are not known."""
    if node.domain:
        return None
    if node.op_type == "Split":
        parts = _split(node, ask)
        return None if parts is None else parts[node.outputs.index(value)]
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(node, ask)
