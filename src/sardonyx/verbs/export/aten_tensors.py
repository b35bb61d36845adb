"""ATen operators that move elements, make tensors, look up indices, and slide windows, from torch's documentation."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto

from sardonyx.exact.call import FLOATS, Array, Invalid, Undecided, Value, moved
from sardonyx.exact.moves import concatenated
from sardonyx.exact.reals import Numbers, Real, joined
from sardonyx.verbs.export.aten_elements import (
    axes_of,
    defines,
    dtype_of,
    is_scalar,
    mean,
    number,
    per_channel,
    promoted,
    typed,
)


@defines("view", "reshape", "_unsafe_view", "_reshape_copy")
def view(_: Numbers, x: Value, sizes: Sequence[int]) -> Value:
    """Return the elements in another shape."""
    return moved(x, lambda v: v.reshape(sizes))


@defines("flatten")
def flatten(_: Numbers, x: Value, start: int = 0, end: int = -1) -> Value:
    """Return a tensor with neighbouring axes as one."""
    rank = len(x.shape)
    first, last = start % max(rank, 1), end % max(rank, 1)
    shape = (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :])
    return moved(x, lambda v: v.reshape(shape))


@defines("unflatten")
def unflatten(_: Numbers, x: Value, dim: int, sizes: Sequence[int]) -> Value:
    """Return a tensor with one axis as several."""
    axis = dim % len(x.shape)
    return moved(x, lambda v: v.reshape(*v.shape[:axis], *sizes, *v.shape[axis + 1 :]))


@defines("permute")
def permute(_: Numbers, x: Value, dims: Sequence[int]) -> Value:
    """Return a tensor with its axes in another order."""
    return moved(x, lambda v: np.transpose(v, [axis % v.ndim for axis in dims]))


@defines("transpose", "t", "numpy_T")
def transpose(_: Numbers, x: Value, a: int | None = None, b: int | None = None) -> Value:
    """Return a tensor with two axes exchanged."""
    return moved(x, np.transpose if a is None or b is None or len(x.shape) < 2 else lambda v: np.swapaxes(v, a, b))


@defines("expand", "broadcast_to")
def expand(_: Numbers, x: Value, sizes: Sequence[int], **_named: Any) -> Value:
    """Return a tensor repeated along axes of size 1."""
    wanted = list(sizes)
    for back in range(1, len(x.shape) + 1):
        wanted[-back] = x.shape[-back] if wanted[-back] == -1 else wanted[-back]
    return moved(x, lambda v: np.broadcast_to(v, wanted))


@defines("unsqueeze")
def unsqueeze(_: Numbers, x: Value, dim: int) -> Value:
    """Return a tensor with one more axis of size 1."""
    return moved(x, lambda v: np.expand_dims(v, dim))


@defines("squeeze")
def squeeze(_: Numbers, x: Value, dim: Any = None) -> Value:
    """Return a tensor without axes of size 1."""
    axes = range(len(x.shape)) if dim is None else axes_of(dim, len(x.shape))
    return moved(x, lambda v: np.squeeze(v, tuple(axis for axis in axes if v.ndim and v.shape[axis] == 1)))


@defines("slice")
def cut(_: Numbers, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    """Return a part of a tensor along one axis."""
    axis = dim % len(x.shape)
    return moved(x, lambda v: v[(slice(None),) * axis + (slice(start, end, step),)])


@defines("slice_scatter")
def slice_scatter(
    _: Numbers, x: Value, part: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """Return a tensor with a part of it replaced."""
    place = (slice(None),) * (dim % len(x.shape)) + (slice(start, end, step),)

    def put(v: Array, new: Array) -> Array:
        copy = np.array(v)
        copy[place] = new
        return copy

    if not isinstance(x, Real):
        return put(x, part)
    return Real(put(x.residues, part.residues), put(x.doubles, part.doubles), x.dtype)


@defines("narrow")
def narrow(_: Numbers, x: Value, dim: int, start: int, length: int) -> Value:
    """Return so many elements along one axis."""
    return moved(x, lambda v: v[(slice(None),) * (dim % v.ndim) + (slice(start, start + length),)])


@defines("select")
def select(_: Numbers, x: Value, dim: int, index: int) -> Value:
    """Return one slice of a tensor."""
    return moved(x, lambda v: np.take(v, index, dim))


@defines("cat", "concat")
def cat(n: Numbers, parts: Sequence[Value], dim: int = 0) -> Value:
    """Return tensors one after another; those of shape (0,) are left out."""
    rank = max(len(part.shape) for part in parts)
    return concatenated([part for part in promoted(n, *parts) if len(part.shape) == rank], dim)


@defines("stack")
def stack(n: Numbers, parts: Sequence[Value], dim: int = 0) -> Value:
    """Return tensors one after another along a new axis."""
    return cat(n, [moved(part, lambda v: np.expand_dims(v, dim)) for part in parts], dim)


@defines("split", "split_with_sizes", "chunk", "unbind")
def split(_: Numbers, x: Value, sizes: Any = 0, dim: int = 0, *, name: str) -> Value:
    """Return parts of a tensor along an axis."""
    axis = (sizes if name == "unbind" else dim) % len(x.shape)
    length = x.shape[axis]
    if name == "unbind":
        return tuple(moved(x, lambda v, i=i: np.take(v, i, axis)) for i in range(length))
    each = sizes if name != "chunk" else max(1, -(-length // sizes))
    ends = range(each, length, each) if isinstance(each, int) else np.cumsum(each)[:-1]
    if not isinstance(each, int) and sum(each) != length:
        raise Invalid("parts that do not add up")
    bounds = [0, *map(int, ends), length]
    before = (slice(None),) * axis
    parts = itertools.pairwise(bounds)
    return tuple(moved(x, lambda v, a=a, b=b: v[(*before, slice(a, b))]) for a, b in parts)


@defines("clone", "contiguous", "alias", "detach", "lift_fresh_copy", "dropout", "view_as", "positive", "expand_copy")
def same(_n: Numbers, x: Value, p: float = 0.0, train: bool = False, *, name: str, **_: Any) -> Value:
    """Return the same tensor."""
    if train or name in ("view_as", "expand_copy"):
        raise Undecided(f"{name} has no definition")
    return x


@defines("to", "_to_copy", "type_as", "convert_element_type")
def to(n: Numbers, x: Value, *args: Any, dtype: int | None = None, **_: Any) -> Value:
    """Return the elements in another type."""
    given = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
    others = [dtype_of(arg) for arg in args if isinstance(arg, Real | np.ndarray)]
    return typed(n, x, dtype or (given or others or [dtype_of(x)])[0])


@defines("repeat", "tile")
def repeat(_: Numbers, x: Value, times: Sequence[int]) -> Value:
    """Return a tensor repeated along its axes."""
    return moved(x, lambda v: np.tile(v, times))


@defines("repeat_interleave")
def repeat_interleave(_: Numbers, x: Value, times: Any, dim: int | None = None, **_named: Any) -> Value:
    """Return a tensor in which every element is repeated."""
    return moved(x, lambda v: np.repeat(v, times, dim))


@defines("flip")
def flip(_: Numbers, x: Value, dims: Sequence[int]) -> Value:
    """Return a tensor in reverse along axes."""
    return moved(x, lambda v: np.flip(v, tuple(dims)))


@defines("roll")
def roll(_: Numbers, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Return a tensor shifted along axes; what leaves at one end enters at the other."""
    return moved(x, lambda v: np.roll(v, tuple(shifts), tuple(dims)) if dims else np.roll(v, shifts))


@defines("tril", "triu")
def triangle(_: Numbers, x: Value, diagonal: int = 0, *, name: str) -> Value:
    """Return the lower or upper triangle, with zeros elsewhere."""
    return moved(x, lambda v: np.tril(v, diagonal) if name == "tril" else np.triu(v, diagonal))


@defines("constant_pad_nd", "pad")
def pad(
    n: Numbers, x: Value, widths: Sequence[int], *rest: Any, name: str, value: Any = 0, mode: str = "constant"
) -> Value:
    """Return a tensor with elements added or removed at its borders, from the last axis on."""
    mode, value = (
        (rest[0] if rest else mode, rest[1] if len(rest) > 1 else value)
        if name == "pad"
        else ("constant", *rest, value)[:2]
    )
    pairs = [(0, 0)] * (len(x.shape) - len(widths) // 2) + list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    inside = tuple(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(pairs, x.shape, strict=True))
    added = [(max(a, 0), max(b, 0)) for a, b in pairs]
    if mode != "constant":
        how: Any = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
        return moved(x, lambda v: np.pad(v[inside], added, how))
    return _bordered(moved(x, lambda v: v[inside]), added, number(n, value or 0, dtype_of(x)))


def _bordered(x: Value, widths: Sequence[tuple[int, int]], fill: Value) -> Value:
    if not isinstance(x, Real):
        return np.pad(x, widths, constant_values=fill.item())
    packed = np.pad(x.residues, widths, constant_values=fill.residues.item())
    return Real(packed, np.pad(x.doubles, widths, constant_values=fill.doubles.item()), x.dtype)


def _filled(n: Numbers, sizes: Sequence[int], value: Any, dtype: int | None) -> Value:
    kind = dtype or {bool: TensorProto.BOOL, int: TensorProto.INT64, float: TensorProto.FLOAT}[type(value)]
    return moved(number(n, value, kind), lambda v: np.broadcast_to(v, tuple(sizes)))


@defines("full", "zeros", "ones")
def full(
    n: Numbers, sizes: Sequence[int], value: Any = None, *, name: str, dtype: int | None = None, **_: Any
) -> Value:
    """Return a tensor that repeats one number."""
    if name == "full":
        return (
            _filled(n, sizes, value, dtype) if is_scalar(value) else moved(value, lambda v: np.broadcast_to(v, sizes))
        )
    return _filled(n, sizes, float(name == "ones"), dtype)


@defines("fill")
def fill(n: Numbers, x: Value, value: Value) -> Value:
    """Return a tensor of another's shape and type that repeats one number."""
    return moved(typed(n, value, dtype_of(x)), lambda v: np.broadcast_to(v, x.shape))


@defines("full_like", "zeros_like", "ones_like")
def like(n: Numbers, x: Value, value: Any = None, *, name: str, dtype: int | None = None, **_: Any) -> Value:
    """Return a tensor of another's shape that repeats one number."""
    return _filled(n, x.shape, value if name == "full_like" else int(name == "ones_like"), dtype or dtype_of(x))


@defines("new_full", "new_zeros", "new_ones")
def new(
    n: Numbers, x: Value, sizes: Sequence[int], value: Any = None, *, name: str, dtype: int | None = None, **_: Any
) -> Value:
    """Return a tensor of another's type that repeats one number."""
    return _filled(n, sizes, value if name == "new_full" else int(name == "new_ones"), dtype or dtype_of(x))


@defines("scalar_tensor")
def scalar_tensor(n: Numbers, value: Any, *, dtype: int | None = None, **_: Any) -> Value:
    """Return one number as a tensor."""
    return _filled(n, (), float(value) if dtype is None else value, dtype)


@defines("arange")
def arange(n: Numbers, *bounds: Any, dtype: int | None = None, **_: Any) -> Value:
    """Return numbers with equal steps."""
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    kind = dtype or (TensorProto.FLOAT if any(isinstance(each, float) for each in bounds) else TensorProto.INT64)
    counts = np.arange(max(0, math.ceil((end - start) / step)), dtype=np.int64)
    if kind not in FLOATS:
        return typed(n, start + counts * step, kind)
    return n.add(number(n, start, kind), n.multiply(Real.of(counts, kind), number(n, step, kind)))


def _checked(indices: Array, length: int) -> Array:
    if indices.size and not (-length <= indices.min() and indices.max() < length):
        raise Invalid("an index lies outside")
    return indices


@defines("embedding")
def embedding(_n: Numbers, weight: Value, indices: Value, *_: Any) -> Value:
    """Return rows of a table."""
    if indices.size and indices.min() < 0:
        raise Invalid("an index lies outside")
    return moved(weight, lambda v: v[_checked(indices, v.shape[0])])


@defines("index", "_unsafe_index")
def index(_: Numbers, x: Value, indices: Sequence[Value]) -> Value:
    """Return elements at indices, as indexing a tensor does."""
    places = tuple(slice(None) if each is None else each for each in indices)
    return moved(x, lambda v: v[places])


@defines("index_select")
def index_select(_: Numbers, x: Value, dim: int, indices: Value) -> Value:
    """Return slices at indices along an axis."""
    return moved(x, lambda v: np.take(v, _checked(indices, v.shape[dim]), dim))


@defines("gather")
def gather(_n: Numbers, x: Value, dim: int, indices: Value, **_: Any) -> Value:
    """Return single elements at indices along an axis."""
    axis = dim % max(len(x.shape), 1)
    if bool(np.any(indices < 0)):
        raise Invalid("an index lies outside")
    inside = tuple(slice(None) if i == axis else slice(0, size) for i, size in enumerate(indices.shape))
    return moved(x, lambda v: np.take_along_axis(v[inside], _checked(indices, v.shape[axis]), axis))


@defines("sym_size", "sym_numel")
def sym_size(_: Numbers, x: Value, dim: int | None = None) -> Value:
    """Return a size of a tensor, or the number of its elements."""
    return math.prod(x.shape) if dim is None else x.shape[dim]


_SIZES: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "truediv", "pow")},
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_")},
    "sym_max": max,
    "sym_min": min,
    "sym_float": float,
    "sym_int": int,
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
}


@defines(*(f"builtin.{name}" for name in _SIZES))
def size_arithmetic(_: Numbers, *operands: Any, name: str) -> Value:
    """Return a number that is computed from sizes."""
    return _SIZES[name.removeprefix("builtin.")](*operands)


@defines("builtin.getitem")
def getitem(_: Numbers, sequence: Sequence[Value], place: int) -> Value:
    """Return one tensor of several."""
    return sequence[place]


def _spread(values: Any, count: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


def _windows(x: Real, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Real:
    """Return [batch, channels, windows..., elements of a window...] of a tensor that has its borders."""
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    axes = tuple(range(2, 2 + len(reach)))
    steps = tuple(slice(None, None, step) for step in (*stride, *dilation))
    return x.moved(lambda v: sliding_window_view(v, reach, axes)[(slice(None), slice(None), *steps)])


def _convolved(n: Numbers, x: Real, weight: Real, stride: Any, dilation: Any, groups: int) -> Real:
    count = weight.ndim - 2
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise Invalid("channels that do not fit")
    windows = _windows(x, weight.shape[2:], stride, dilation)
    spatial, batch = windows.shape[2 : 2 + count], x.shape[0]
    order = (0, 1, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count))  # batch, group, windows, elements
    rows = windows.moved(
        lambda v: (
            v.reshape(batch, groups, -1, *v.shape[2:]).transpose(order).reshape(batch, groups, math.prod(spatial), -1)
        )
    )
    columns = weight.moved(lambda v: np.swapaxes(v.reshape(groups, v.shape[0] // groups, -1), 1, 2))
    return n.matmul(rows, columns).moved(lambda v: np.swapaxes(v, 2, 3).reshape(batch, -1, *spatial))


@defines("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
def convolution(n: Numbers, x: Real, weight: Real, bias: Real | None = None, *args: Any, name: str) -> Value:
    """Return a convolution: the product of every window with the kernels of its group."""
    count = weight.ndim - 2
    if x.ndim != weight.ndim:
        raise Undecided("a convolution without a batch")
    if name == "convolution":
        stride, padding, dilation, transposed, beyond, groups = args
    elif "transpose" in name:
        stride, padding, beyond, groups, dilation = (*args, *(1, 0, 0, 1, 1)[len(args) :])
        transposed = True
    else:
        stride, padding, dilation, groups = (*args, *(1, 0, 1, 1)[len(args) :])
        transposed, beyond = False, 0
    stride, dilation, beyond = (_spread(each, count) for each in (stride, dilation, beyond))
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        borders = [(r // 2, r - r // 2) if padding == "same" else (0, 0) for r in reach]
    else:
        borders = [(each, each) for each in _spread(padding, count)]
    if transposed:
        x, weight, borders = _turned(x, weight, stride, dilation, borders, beyond, groups)
        stride = [1] * count
    x = _bordered(x, [(0, 0), (0, 0), *borders], number(n, 0.0, x.dtype))
    result = _convolved(n, x, weight, stride, dilation, groups)
    return result if bias is None else n.add(result, per_channel(bias, result.ndim))


def _turned(x: Real, weight: Real, stride: Any, dilation: Any, borders: Any, beyond: Any, groups: int) -> Any:
    """Return the ordinary convolution that a transposed one is: with zeros between elements, and kernels in reverse."""
    sizes = (*x.shape[:2], *((size - 1) * step + 1 for size, step in zip(x.shape[2:], stride, strict=True)))
    places = (slice(None), slice(None), *(slice(None, None, step) for step in stride))

    def apart(v: Array) -> Array:
        zeros = np.zeros(sizes, v.dtype)
        zeros[places] = v
        return zeros

    def reverse(v: Array) -> Array:
        parts = np.flip(v, tuple(range(2, v.ndim))).reshape(groups, v.shape[0] // groups, *v.shape[1:])
        return np.swapaxes(parts, 1, 2).reshape(-1, v.shape[0] // groups, *v.shape[2:])

    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    borders = [(r - a, r - b + o) for r, (a, b), o in zip(reach, borders, beyond, strict=True)]
    if min(map(min, borders)) < 0:
        raise Undecided("a transposed convolution with wide borders")
    return x.moved(apart), weight.moved(reverse), borders


@defines("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")
def pool(
    n: Numbers, x: Real, kernel: Any, stride: Any = (), padding: Any = 0, *args: Any, name: str, **_: Any
) -> Value:
    """Return the largest element or the mean of every window."""
    count = int(name[-2])
    kernel, padding = _spread(kernel, count), _spread(padding, count)
    stride = _spread(stride, count) if stride else kernel
    largest = name.startswith("max")
    dilation = _spread(args[0], count) if largest and args else [1] * count
    ceil_mode, inclusive, divisor = (*args[int(largest) :], *(False, True, None)[len(args[int(largest) :]) :])[:3]
    if ceil_mode or divisor or x.ndim != count + 2:
        raise Undecided(f"{name} with rounded sizes, a divisor or no batch")
    widths = [(0, 0), (0, 0), *((each, each) for each in padding)]
    axes = tuple(range(2 + count, 2 + 2 * count))
    windows = _windows(
        _bordered(x, widths, number(n, -math.inf if largest else 0.0, x.dtype)), kernel, stride, dilation
    )
    if largest:
        rows = windows.moved(lambda v: v.reshape(*v.shape[: 2 + count], -1))
        places = np.expand_dims(np.argmax(n.keys(rows), -1), -1)
        return rows.moved(lambda v: np.take_along_axis(v, places, -1).squeeze(-1))
    ones = Real.of(np.ones((1, 1, *x.shape[2:])), x.dtype)
    counted = _bordered(ones, widths, number(n, 1.0 if inclusive else 0.0, x.dtype))
    counts = n.total(_windows(counted, kernel, stride, dilation), axes, keepdims=False)
    return n.divide(n.total(windows, axes, keepdims=False), counts)


@defines("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_pool(n: Numbers, x: Real, sizes: Sequence[int]) -> Value:
    """Return means over as many ranges of about equal length as the result has elements."""
    for axis, size in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        length, before = x.shape[axis], (slice(None),) * axis
        ends = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
        parts = [x.moved(lambda v, a=a, b=b, before=before: v[(*before, slice(a, b))]) for a, b in ends]
        x = joined([mean(n, part, (axis,)) for part in parts], axis)
    return x
