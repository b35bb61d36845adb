"""What operators do to tensors that are described by terms, and to sizes that are polynomials."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import TensorProto

from sardonyx.ir.exact.call import FLOATS, axis_of
from sardonyx.ir.exact.evaluate import Evaluator
from sardonyx.ir.exact.reals import Numbers, Order
from sardonyx.ir.ops import BINARY, PREDICATES, REDUCES, UNARY, VARIADIC
from sardonyx.ir.shapes.expr import (
    Expr,
    Size,
    add,
    at_least,
    equal,
    exact_quotient,
    floor_quotient,
    larger,
    multiply,
    product,
    smaller,
    subtract,
    total,
)
from sardonyx.verification.index_terms import (
    Applied,
    Digit,
    Index,
    Read,
    Tensor,
    Unproven,
    broadcast,
    digits_of,
    fresh,
    fused,
    joined,
    linear,
    matched,
    regrouped,
    source,
    substituted,
)

_ELEMENTWISE = BINARY | UNARY | VARIADIC | {"Where"}
_MOST_FILLED = 64  # elements of a constant of sizes
_ENDLESS_SLICE = 1 << 31  # from which on a number stands for the end of an axis


class Known(Struct, frozen=True, eq=False):
    """A tensor of integers that are known as sizes."""

    items: npt.NDArray[Any]  # of sizes, as objects


Value = Tensor | Known | None


def tensor_of(value: Value) -> Tensor:
    """Return a value as a tensor."""
    if isinstance(value, Tensor):
        return value
    if value is None:
        raise Unproven("an operand is missing")
    items = value.items.reshape(-1).tolist()
    mark = "?" if any(isinstance(item, Expr) for item in items) else ""
    return stored_tensor(f"{mark}{items}", value.items.shape, is_float=False)


def stored_tensor(text: str, shape: Sequence[int], *, is_float: bool) -> Tensor:
    """Return a constant; one number is the same in any shape."""
    if np.prod(shape) == 1:
        return Tensor(((),) * len(shape), Read(text, ()), is_float)
    return source(text, shape, is_float=is_float)


def number_text(array: npt.NDArray[Any]) -> str:
    """Return the name of a constant that is known by its values."""
    return f"{array.dtype} {array.tobytes().hex()}"


class SymbolicCall(Struct, frozen=True):
    """An operator with its operands."""

    node: onnx.NodeProto
    operands: list[Value]
    attributes: dict[str, Any]
    opset: int
    dims: frozenset[Size]  # of the border, which are not 0

    def value(self, index: int) -> Value:
        """Return an operand, or None if it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    def tensor(self, index: int) -> Tensor:
        """Return an operand that must be there."""
        return tensor_of(self.value(index))

    def sizes(self, index: int, name: str = "") -> list[Size] | None:
        """Return an operand of sizes, or the attribute that held them in older versions."""
        value = self.value(index)
        if value is None:
            found = self.attributes.get(name)
            return None if found is None else list(found)
        if not isinstance(value, Known):
            raise Unproven("sizes that are not known")
        return value.items.reshape(-1).tolist()

    def integers(self, index: int, name: str = "") -> list[int] | None:
        """Return the same if all are numbers."""
        sizes = self.sizes(index, name)
        return None if sizes is None else _numbers(sizes)

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)


def _numbers(sizes: Sequence[Size]) -> list[int]:
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) < len(sizes):
        raise Unproven("a dynamic size where a number is needed")
    return numbers


# Operators on sizes.


def _divided(one: Size, other: Size) -> Size:
    if not at_least(one, 0) or not at_least(other, 1):
        raise Unproven("a division of numbers that may be negative")
    return floor_quotient(one, other)


def _equal_sizes(one: Size, other: Size) -> bool:
    known = equal(one, other)
    if known is None:
        raise Unproven("sizes that may be equal")
    return known


_ON_SIZES: dict[str, Callable[[Size, Size], Any]] = {
    "Add": add, "Sub": subtract, "Mul": multiply, "Div": _divided, "Max": larger, "Min": smaller, "Equal": _equal_sizes,
}  # fmt: skip
_MOVES_SIZES = {"Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Where"}  # as exact arithmetic does


def _of_sizes(call: SymbolicCall) -> Known | None:
    """Return the result of an operator on sizes; None if it is none."""
    name, operands = call.node.op_type, [each.items for each in call.operands if isinstance(each, Known)]
    if len(operands) < len(call.operands):
        return None
    if name in _ON_SIZES:
        result = functools.reduce(np.frompyfunc(_ON_SIZES[name], 2, 1), operands)
    elif name in _MOVES_SIZES:
        result = Evaluator(onnx.ModelProto(), Numbers(Order.TRUE, 0)).standard(name, operands, call.attributes)[0]
    elif name == "Not":
        result = np.frompyfunc(operator.not_, 1, 1)(operands[0])
    elif name == "Identity" or (name == "Cast" and call.get("to", 0) in (TensorProto.INT64, TensorProto.INT32)):
        result = operands[0]
    else:
        return None
    return Known(np.asarray(result, object))


# Operators that move elements.


def _squeezed(call: SymbolicCall, shape: Sequence[Size]) -> Sequence[Size]:
    axes = call.integers(1, "axes")
    if axes is None:
        raise Unproven("axes that depend on sizes")
    dropped = {axis_of(axis, len(shape)) for axis in axes}
    if any(shape[axis] != 1 for axis in dropped):
        raise Unproven("an axis that may be longer than 1")
    return [size for axis, size in enumerate(shape) if axis not in dropped]


def _unsqueezed(call: SymbolicCall, shape: Sequence[Size]) -> Sequence[Size]:
    axes = call.integers(1, "axes") or []
    rank, old = len(shape) + len(axes), iter(shape)
    new = {axis_of(axis, rank) for axis in axes}
    return [1 if axis in new else next(old) for axis in range(rank)]


def _target(call: SymbolicCall, shape: Sequence[Size]) -> Sequence[Size]:
    """Return the shape that a Reshape results in."""
    wanted = call.sizes(1, "shape")
    if wanted is None:
        raise Unproven("no shape")
    copies = not call.get("allowzero", 0)
    sizes = [shape[place] if size == 0 and copies else size for place, size in enumerate(wanted)]
    if not all(size in call.dims or _is_positive(size) for size in sizes if isinstance(size, Expr)):
        raise Unproven("a size that may be 0")
    if -1 in sizes:
        rest = exact_quotient(product(shape), product(size for size in sizes if size != -1))
        if rest is None:
            raise Unproven("a size that is not known to divide another")
        sizes = [rest if size == -1 else size for size in sizes]
    return sizes


def _is_positive(size: Size) -> bool:
    """Return whether a size is not 0 if no dimension is."""
    if isinstance(size, int):
        return size > 0
    return at_least(size, 1) or (
        len(size.terms) == 1
        and size.terms[0][1] > 0
        and all(not atom.args and atom.least is not None for atom in size.terms[0][0])
    )


def _flattened(call: SymbolicCall) -> Value:
    tensor = call.tensor(0)
    shape = tensor.shape
    axis = call.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return regrouped(tensor, (product(shape[:axis]), product(shape[axis:])))


def _transposed(call: SymbolicCall) -> Value:
    tensor = call.tensor(0)
    perm = call.get("perm", None) or range(len(tensor.axes))[::-1]
    return replace(tensor, axes=tuple(tensor.axes[axis] for axis in perm))


def _expanded(call: SymbolicCall) -> Value:
    tensor, wanted = call.tensor(0), call.sizes(1) or []
    rank = max(len(wanted), len(tensor.axes))
    axes = [()] * (rank - len(tensor.axes)) + list(tensor.axes)
    sizes = [1] * (rank - len(wanted)) + list(wanted)
    result: list[tuple[Digit, ...]] = []
    for axis, size in zip(axes, sizes, strict=True):
        if axis and size not in (1, product(digit.size for digit in axis)):
            raise Unproven("sizes that may not fit")
        result.append(axis or digits_of(size))
    return replace(tensor, axes=tuple(result))


def _part(tensor: Tensor, axis: int, start: Size, length: Size, step: int = 1) -> Tensor:
    """Return a part of a tensor along an axis."""
    tensor = fused(tensor)
    if len(tensor.axes[axis]) > 1:
        raise Unproven("a part of an axis that is made up of others")
    new = digits_of(length)
    index = Index(start, dict.fromkeys(new, step))
    term = substituted(tensor.term, tensor.axes[axis][0], index) if tensor.axes[axis] else tensor.term
    return replace(tensor, axes=(*tensor.axes[:axis], new, *tensor.axes[axis + 1 :]), term=term)


def _cut(call: SymbolicCall) -> Value:
    tensor = call.tensor(0)
    starts, ends = call.sizes(1, "starts") or [], call.sizes(2, "ends") or []
    axes, steps = call.integers(3, "axes") or [*range(len(starts))], call.integers(4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = axis_of(axis, len(tensor.axes))
        size = tensor.shape[place]
        first, last = _limited(start, size), _limited(end, size)
        if (first, last, step) == (0, size, 1):
            continue
        if step < 1 or not at_least(subtract(last, first), 0):
            raise Unproven("a part of unknown length")
        tensor = _part(tensor, place, first, floor_quotient(add(subtract(last, first), step - 1), step), step)
    return tensor


def _limited(place: Size, size: Size) -> Size:
    """Return a start or an end of a Slice as a place from 0 to the size."""
    if isinstance(place, int) and place >= _ENDLESS_SLICE:
        return size
    if isinstance(place, int) and place < 0:
        place = 0 if place <= -_ENDLESS_SLICE else larger(add(size, place), 0)
    if not at_least(place, 0):
        raise Unproven("a place that may be negative")
    return smaller(place, size)


def _split(call: SymbolicCall) -> list[Tensor]:
    tensor = call.tensor(0)
    axis = axis_of(call.get("axis", 0), len(tensor.axes))
    size, sizes = tensor.shape[axis], call.sizes(1, "split")
    if sizes is None:
        count = call.get("num_outputs", len(call.node.output))
        each = exact_quotient(size, count)
        if each is None:
            raise Unproven("parts of unknown length")
        sizes = [each] * count
    if total(sizes) != size:
        raise Unproven("parts that may not add up")
    starts = [total(sizes[:place]) for place in range(len(sizes))]
    return [_part(tensor, axis, start, length) for start, length in zip(starts, sizes, strict=True)]


def _gathered(call: SymbolicCall) -> Value:
    tensor, indices = call.tensor(0), call.value(1)
    axis = axis_of(call.get("axis", 0), len(tensor.axes))
    if isinstance(indices, Known) and indices.items.ndim == 0:
        index = indices.items.item()
        index = add(tensor.shape[axis], index) if isinstance(index, int) and index < 0 else index
        if not at_least(index, 0):
            raise Unproven("a place that may be negative")
        part = _part(tensor, axis, index, 1)
        return replace(part, axes=(*part.axes[:axis], *part.axes[axis + 1 :]))
    data, places = fresh(fused(tensor)), fresh(tensor_of(indices))
    term = Applied("Gather", (data.term, places.term), data.axes[axis])
    return Tensor((*data.axes[:axis], *places.axes, *data.axes[axis + 1 :]), term, tensor.is_float)


def _concatenated(call: SymbolicCall) -> Value:
    """Return tensors one after another: an element depends on its place, and on the rows of all operands."""
    tensors = [fresh(fused(call.tensor(place))) for place in range(len(call.operands))]
    rank = len(tensors[0].axes)
    axis = axis_of(call.get("axis", 1), rank)
    length = total(tensor.shape[axis] for tensor in tensors)
    rows = [replace(tensor, axes=(*tensor.axes[:axis], (), *tensor.axes[axis + 1 :])) for tensor in tensors]
    if len({tuple(row.shape) for row in rows}) > 1:
        raise Unproven("sizes that may not fit")
    bound = [tensor.axes[axis] for tensor in tensors]
    joined = [Applied("Row", (row.term,), digits) for row, digits in zip(rows, bound, strict=True)]
    axes, terms = broadcast([replace(row, term=term) for row, term in zip(rows, joined, strict=True)])
    new = digits_of(length)
    term = Applied("Concat", tuple(terms), at=(linear(new),))
    return Tensor((*axes[:axis], new, *axes[axis + 1 :]), term, tensors[0].is_float)


# Operators that compute.


def _elementwise(call: SymbolicCall) -> Value:
    tensors = [call.tensor(place) for place in range(len(call.operands))]
    name, attributes = call.node.op_type, sorted(call.attributes.items())
    if name == "Cast" and tensors[0].is_float and call.get("to", 0) in FLOATS:
        return tensors[0]  # all floats are real numbers
    axes, terms = broadcast(tensors)
    is_float = call.get("to", 0) in FLOATS if name == "Cast" else tensors[-1].is_float and name not in PREDICATES
    return Tensor(axes, Applied(f"{name}{attributes or ''}", tuple(terms)), is_float)


def _cast_like(call: SymbolicCall) -> Value:
    one, other = call.tensor(0), call.tensor(1)
    if not one.is_float or not other.is_float:
        raise Unproven("CastLike of integers")
    return one


def _reduced(call: SymbolicCall) -> Value:
    tensor, axes = fresh(fused(call.tensor(0))), call.integers(1, "axes")
    if not axes:
        raise Unproven("a reduction of all axes")
    places = sorted({axis_of(axis, len(tensor.axes)) for axis in axes})
    bound, term = joined([digit for place in places for digit in tensor.axes[place]], tensor.term)
    kept = [() if place in places else axis for place, axis in enumerate(tensor.axes)]
    if not call.get("keepdims", 1):
        kept = [axis for place, axis in enumerate(tensor.axes) if place not in places]
    return Tensor(tuple(kept), Applied(call.node.op_type, (term,), bound), tensor.is_float)


def _normalized(tensor: Tensor, places: Sequence[int], operator: str) -> Tensor:
    """Return a function of rows with as many elements: a softmax, a normalization."""
    tensor = fresh(fused(tensor))
    bound, term = joined([digit for place in places for digit in tensor.axes[place]], tensor.term)
    new = [digits_of(tensor.shape[place]) if place in places else axis for place, axis in enumerate(tensor.axes)]
    at = tuple(linear(new[place]) for place in places)
    return Tensor(tuple(new), Applied(operator, (term,), bound, at), tensor.is_float)


def _softmax(call: SymbolicCall) -> Value:
    if call.opset < 13:
        raise Unproven("Softmax of several axes")
    tensor = call.tensor(0)
    return _normalized(tensor, [axis_of(call.get("axis", -1), len(tensor.axes))], call.node.op_type)


def _layer_norm(call: SymbolicCall) -> Value:
    tensor = call.tensor(0)
    rank = len(tensor.axes)
    places = range(axis_of(call.get("axis", -1), rank), rank)
    rows = _normalized(tensor, places, f"{call.node.op_type} {call.get('epsilon', 1e-5)}")
    others = [call.tensor(place) for place in range(1, len(call.operands))]
    axes, terms = broadcast([rows, *others])
    return Tensor(axes, Applied("scaled", tuple(terms)), tensor.is_float)


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product."""
    if min(len(a.axes), len(b.axes)) < 2:
        raise Unproven("a product with a vector")
    a, b = fresh(fused(a)), fresh(fused(b))
    if a.shape[-1] != b.shape[-2]:
        raise Unproven("sizes that may not fit")
    bound, one, two = matched(a.axes[-1], b.axes[-2], a.term, b.term)
    left = Tensor((*a.axes[:-1], ()), one, is_float=True)
    right = Tensor((*b.axes[:-2], (), b.axes[-1]), two, is_float=True)
    axes, terms = broadcast([left, right])
    bound, term = joined(bound, Applied("Mul", tuple(terms)))
    return Tensor(axes, Applied("ReduceSum", (term,), bound), a.is_float)


def _product(call: SymbolicCall) -> Value:
    return _multiplied(call.tensor(0), call.tensor(1))


def _turned(tensor: Tensor) -> Tensor:
    return replace(tensor, axes=(*tensor.axes[:-2], tensor.axes[-1], tensor.axes[-2]))


def _gemm(call: SymbolicCall) -> Value:
    a, b = call.tensor(0), call.tensor(1)
    if (call.get("alpha", 1.0), call.get("beta", 1.0)) != (1.0, 1.0):
        raise Unproven("Gemm with factors")
    result = _multiplied(_turned(a) if call.get("transA", 0) else a, _turned(b) if call.get("transB", 0) else b)
    if call.value(2) is None:
        return result
    axes, terms = broadcast([result, call.tensor(2)])
    return Tensor(axes, Applied("Add", tuple(terms)), is_float=True)


def _attention(call: SymbolicCall) -> Value:
    """Return softmax(scale · q · kᵀ + mask) · v for as many keys as queries have heads."""
    if set(call.attributes) - {"q_num_heads", "kv_num_heads", "scale"} or len(call.operands) > 4:
        raise Unproven("Attention with other options")
    tensors = [call.tensor(place) for place in range(3)]
    merged = [len(tensor.axes) == 3 for tensor in tensors]
    if any(merged):
        counts = [call.get("q_num_heads", 0), *[call.get("kv_num_heads", 0)] * 2]
        tensors = [_heads(each, count) for each, count in zip(tensors, counts, strict=True)]
    q, k, v = tensors
    if len({each.shape[1] for each in tensors}) > 1 or not isinstance(q.shape[3], int):
        raise Unproven("heads that are shared")
    scores = _multiplied(q, _turned(k))
    scale = Read(number_text(np.array(call.get("scale", q.shape[3] ** -0.5), np.float32)), ())
    operands = [replace(scores, term=Applied("Mul", (scores.term, scale)))]
    operands += [call.tensor(3)] if call.value(3) is not None else []
    axes, terms = broadcast(operands)
    rows = _normalized(Tensor(axes, Applied("Add", tuple(terms)), is_float=True), [3], "Softmax")
    result = _multiplied(rows, v)
    if not any(merged):
        return result
    order = replace(result, axes=tuple(result.axes[axis] for axis in (0, 2, 1, 3)))
    batch, length, heads, width = order.shape
    return regrouped(order, (batch, length, multiply(heads, width)))


def _heads(tensor: Tensor, count: int) -> Tensor:
    batch, length, width = tensor.shape
    each = exact_quotient(width, count)
    if each is None:
        raise Unproven("heads of unknown width")
    apart = regrouped(tensor, (batch, length, count, each))
    return replace(apart, axes=tuple(apart.axes[axis] for axis in (0, 2, 1, 3)))


def _filled(call: SymbolicCall) -> Value:
    value = call.get("value", None)
    number = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    sizes = call.sizes(0) or []
    if number.dtype.kind in "iub" and all(isinstance(size, int) and size <= _MOST_FILLED for size in sizes):
        return Known(np.full(_numbers(sizes), number.item(), object))
    text = f"{[number.item()]}" if number.dtype.kind in "iub" else number_text(number)
    return Tensor(tuple(map(digits_of, sizes)), Read(text, ()), number.dtype.kind not in "iub")


def _counted(call: SymbolicCall) -> Value:
    """Return the numbers from 0 on; one at a dynamic place depends on it, and not only on other elements."""
    start, limit, step = (call.sizes(place) for place in range(3))
    if (start, step) != ([0], [1]) or not limit or not _is_positive(limit[0]):
        raise Unproven("Range of other numbers")
    axis = digits_of(limit[0])
    return Tensor((axis,), Applied("Range", (), at=(linear(axis),)), is_float=False)


def _shape(call: SymbolicCall) -> Value:
    sizes = call.tensor(0).shape[slice(call.get("start", 0), call.get("end", None))]
    return Known(np.array([*sizes, None], object)[:-1])


_DEFINITIONS: dict[str, Callable[[SymbolicCall], Any]] = {
    "Attention": _attention,
    "CastLike": _cast_like,
    "Concat": _concatenated,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Flatten": _flattened,
    "Gather": _gathered,
    "Gemm": _gemm,
    "Identity": lambda call: call.value(0),
    "LayerNormalization": _layer_norm,
    "MatMul": _product,
    "Range": _counted,
    "RMSNormalization": _layer_norm,
    "Reshape": lambda call: regrouped(call.tensor(0), _target(call, call.tensor(0).shape)),
    "Shape": _shape,
    "Size": lambda call: Known(np.array([product(call.tensor(0).shape), None], object)[:1].reshape(())),
    "Slice": _cut,
    "Softmax": _softmax,
    "Squeeze": lambda call: regrouped(call.tensor(0), _squeezed(call, call.tensor(0).shape)),
    "Transpose": _transposed,
    "Unsqueeze": lambda call: regrouped(call.tensor(0), _unsqueezed(call, call.tensor(0).shape)),
}


def evaluated(call: SymbolicCall) -> Sequence[Value]:
    """Return the results of a node."""
    name, sizes = call.node.op_type, _of_sizes(call)
    if sizes is not None:
        return (sizes,)
    if name == "Split":
        return _split(call)
    definition = _elementwise if name in _ELEMENTWISE else _reduced if name in REDUCES else _DEFINITIONS.get(name)
    if definition is None:
        raise Unproven(name)
    return (definition(call),)
