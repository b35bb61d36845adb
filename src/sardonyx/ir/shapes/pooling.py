"""Shape rules for convolution, pooling and resizing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import GLOBAL_POOLS, POOLS
from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import number, numbers, text
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.operators import OutputShapes, Rule
from sardonyx.ir.shapes.queries import Shape, ShapeQueries


def conv_of(weights: int) -> Rule:
    """Return the rule for convolutions whose weights are the input at this index."""

    def rule(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
        shape, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[weights])
        if shape is None or weight is None or len(shape) < 3 or len(shape) != len(weight):
            return None
        return ((shape[0], weight[0], *_windows(node, shape[2:], weight[2:], ask)),)

    return rule


def _pool(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, kernel = ask.shape(node.inputs[0]), numbers(node, "kernel_shape")
    if shape is None or kernel is None or len(shape) != len(kernel) + 2:
        return None
    return ((*shape[:2], *_windows(node, shape[2:], tuple(kernel), ask)),) * 2


def _windows(node: ir.Node, sizes: Shape, kernel: Shape, ask: ShapeQueries) -> Shape:
    """Return the number of window positions on each axis.

    That is (size + pads - reach) // stride + 1, where a window reaches over (width - 1) * dilation + 1 elements.
    """
    count = len(sizes)
    strides = numbers(node, "strides") or [1] * count
    dilations = numbers(node, "dilations") or [1] * count
    pads = numbers(node, "pads") or [0] * (2 * count)
    padding, rounds_up = text(node, "auto_pad", "NOTSET"), number(node, "ceil_mode", 0) == 1
    if padding not in ("NOTSET", ""):
        pads = [0] * (2 * count)
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        stride = strides[axis]
        reach = expr.add(expr.multiply(expr.subtract(width, 1), dilations[axis]), 1)
        span = expr.subtract(expr.add(size, pads[axis] + pads[axis + count]), reach)
        if padding.startswith("SAME"):
            dims.append(expr.floor_quotient(expr.add(size, stride - 1), stride))
        elif rounds_up and stride > 1:
            dims.append(_rounded_up(span, expr.add(size, pads[axis]), stride, ask))
        else:
            dims.append(expr.add(expr.floor_quotient(span, stride), 1))
    return tuple(dims)


def _rounded_up(span: Size, start: Size, stride: int, ask: ShapeQueries) -> Size:
    """Return the number of positions if the last, partial window counts, unless it starts in the trailing padding."""
    if not isinstance(span, int) or not isinstance(start, int):
        return ask.unknown()
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= start else count


def _global_pool(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape = ask.shape(node.inputs[0])
    return (None if shape is None else (*shape[:2], *([1] * len(shape[2:]))),)


def _conv_transpose(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, weight = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    if shape is None or weight is None or len(shape) != len(weight) or text(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    channels, count = expr.multiply(weight[1], number(node, "group", 1)), len(shape) - 2
    wanted = numbers(node, "output_shape")
    if wanted is not None:
        return ((shape[0], channels, *wanted[-count:]),)
    strides, dilations = numbers(node, "strides") or [1] * count, numbers(node, "dilations") or [1] * count
    pads, added = numbers(node, "pads") or [0] * 2 * count, numbers(node, "output_padding") or [0] * count
    dims: list[Size] = []
    for axis, (size, width) in enumerate(zip(shape[2:], weight[2:], strict=True)):
        reach = expr.multiply(expr.subtract(width, 1), dilations[axis])
        steps = expr.multiply(expr.subtract(size, 1), strides[axis])
        dims.append(expr.total((steps, reach, 1 + added[axis] - pads[axis] - pads[axis + count])))
    return ((shape[0], channels, *dims),)


def _resize(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    """Infer the result from the sizes, or from the factors if they are integers."""
    shape = ask.shape(node.inputs[0])
    if shape is None or len(node.inputs) < 3 or text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    attribute = numbers(node, "axes")
    axes = range(len(shape)) if attribute is None else [axis % len(shape) for axis in attribute]
    dims: list[Size] = list(shape)
    sizes = ask.contents(operand(node, 3))
    if sizes:
        for axis, size in zip(axes, sizes, strict=True):
            dims[axis] = ask.unknown() if size is None else size
        return (tuple(dims),)
    value = node.inputs[2]
    factors = None if value is None else ask.small_array(value)
    if factors is None or not factors.size:
        return (tuple(ask.unknown() if axis in axes else dim for axis, dim in enumerate(dims)),)
    for axis, factor in zip(axes, factors.reshape(-1), strict=True):
        dims[axis] = _scaled(dims[axis], factor, ask)
    return (tuple(dims),)


def _scaled(size: Size, factor: np.floating, ask: ShapeQueries) -> Size:
    if factor == int(factor):
        return expr.multiply(size, int(factor))
    return int(np.floor(np.float32(size) * np.float32(factor))) if isinstance(size, int) else ask.unknown()


def _depth_to_space(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, block = ask.shape(node.inputs[0]), number(node, "blocksize", 0)
    if shape is None or len(shape) != 4 or block < 1:
        return None
    channels = expr.floor_quotient(shape[1], block * block)
    return ((shape[0], channels, *(expr.multiply(size, block) for size in shape[2:])),)


def _space_to_depth(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, block = ask.shape(node.inputs[0]), number(node, "blocksize", 0)
    if shape is None or len(shape) != 4 or block < 1:
        return None
    channels = expr.multiply(shape[1], block * block)
    return ((shape[0], channels, *(expr.floor_quotient(size, block) for size in shape[2:])),)


def _grid_sample(node: ir.Node, ask: ShapeQueries) -> OutputShapes | None:
    shape, grid = ask.shape(node.inputs[0]), ask.shape(node.inputs[1])
    return None if shape is None or grid is None else ((*shape[:2], *grid[1:-1]),)


RULES: Mapping[str, Rule] = {
    "Conv": conv_of(1),
    "ConvInteger": conv_of(1),
    "QLinearConv": conv_of(3),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(POOLS, _pool),
    **dict.fromkeys(GLOBAL_POOLS, _global_pool),
    "Resize": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "GridSample": _grid_sample,
}
