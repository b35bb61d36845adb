"""ATen operators that move elements, make tensors, look up indices, and slide windows, from torch's documentation."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from sardonyx.ir.exact.call import FLOATS, Array, Invalid, Undecided, Value, moved
from sardonyx.ir.exact.moves import concatenated
from sardonyx.ir.exact.reals import Numbers, Real, joined
from sardonyx.verbs.export.aten_elements import (
    axes_of,
    defines,
    dtype_of,
    is_scalar,
    mean,
    number,
    promoted,
    standard,
    typed,
)


def _place(v: Array, dim: int, *bounds: int | None) -> tuple[slice, ...]:
    """Return the index of a slice along one axis."""
    return (slice(None),) * (dim % v.ndim) + (slice(*bounds),)


def _flattened(v: Array, start: int = 0, end: int = -1) -> Array:
    first, last = start % max(v.ndim, 1), end % max(v.ndim, 1)
    return v.reshape(*v.shape[:first], math.prod(v.shape[first : last + 1]), *v.shape[last + 1 :])


def _unflattened(v: Array, dim: int, sizes: Sequence[int]) -> Array:
    axis = dim % v.ndim
    return v.reshape(*v.shape[:axis], *sizes, *v.shape[axis + 1 :])


def _transposed(v: Array, a: int | None = None, b: int | None = None) -> Array:
    return v.T if a is None or b is None or v.ndim < 2 else np.swapaxes(v, a, b)


def _expanded(v: Array, sizes: Sequence[int], **_: Any) -> Array:
    kept = (1,) * (len(sizes) - v.ndim) + v.shape
    return np.broadcast_to(v, [old if new == -1 else new for old, new in zip(kept, sizes, strict=True)])


def _squeezed(v: Array, dim: Any = None) -> Array:
    return np.squeeze(v, tuple(axis for axis in axes_of(dim, v.ndim) if v.ndim and v.shape[axis] == 1))


def _gathered(v: Array, dim: int, indices: Array, **_: Any) -> Array:
    axis = dim % max(v.ndim, 1)
    inside = tuple(slice(None) if i == axis else slice(0, size) for i, size in enumerate(indices.shape))
    return np.take_along_axis(v[inside], _checked(indices, v.shape[axis], least=0), axis)


def _checked(indices: Array, length: int, least: int | None = None) -> Array:
    if indices.size and not ((-length if least is None else least) <= indices.min() and indices.max() < length):
        raise Invalid("an index lies outside")
    return indices


def _cut(v: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return v[_place(v, dim, start, end, step)]


def _narrowed(v: Array, dim: int, start: int, length: int) -> Array:
    return _cut(v, dim, start, start + length)


def _selected(v: Array, dim: int, index: Any) -> Array:
    return np.take(v, _checked(np.asarray(index), v.shape[dim]), dim)


def _indexed(v: Array, indices: Sequence[Value]) -> Array:
    return v[tuple(slice(None) if each is None else each for each in indices)]


def _looked_up(v: Array, indices: Array, *_: Any) -> Array:
    return v[_checked(indices, v.shape[0], least=0)]


def _rolled(v: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    return np.roll(v, shifts, tuple(dims) or None)


def _repeated(v: Array, times: Any, dim: int | None = None, **_: Any) -> Array:
    return np.repeat(v, times, dim)


# What operators that only move elements do to an array.
_MOVES: dict[str, Callable[..., Array]] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "_reshape_copy"), np.reshape),
    **dict.fromkeys(("transpose", "t", "numpy_T"), _transposed),
    **dict.fromkeys(("expand", "broadcast_to"), _expanded),
    **dict.fromkeys(("select", "index_select"), _selected),
    **dict.fromkeys(("index", "_unsafe_index"), _indexed),
    **dict.fromkeys(("repeat", "tile"), np.tile),
    "flatten": _flattened,
    "unflatten": _unflattened,
    "permute": np.transpose,
    "unsqueeze": np.expand_dims,
    "squeeze": _squeezed,
    "slice": _cut,
    "narrow": _narrowed,
    "repeat_interleave": _repeated,
    "flip": np.flip,
    "roll": _rolled,
    "tril": np.tril,
    "triu": np.triu,
    "embedding": _looked_up,
    "gather": _gathered,
}


@defines(*_MOVES)
def _rearranged(_: Numbers, x: Value, *args: Any, name: str, **options: Any) -> Value:
    return moved(x, lambda v: _MOVES[name](v, *args, **options))


@defines("slice_scatter")
def _slice_scatter(
    _: Numbers, x: Value, part: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:

    def put(v: Array, new: Array) -> Array:
        copy = np.array(v)
        copy[_place(v, dim, start, end, step)] = new
        return copy

    if not isinstance(x, Real):
        return put(x, part)
    return Real(put(x.residues, part.residues), put(x.doubles, part.doubles), x.dtype)


@defines("cat", "concat")
def _cat(n: Numbers, parts: Sequence[Value], dim: int = 0) -> Value:
    """Return tensors one after another; those of shape (0,) are left out."""
    rank = max(len(part.shape) for part in parts)
    return concatenated([part for part in promoted(n, *parts) if len(part.shape) == rank], dim)


@defines("stack")
def _stack(n: Numbers, parts: Sequence[Value], dim: int = 0) -> Value:
    return _cat(n, [moved(part, lambda v: np.expand_dims(v, dim)) for part in parts], dim)


@defines("split", "split_with_sizes", "chunk", "unbind")
def _split(_: Numbers, x: Value, sizes: Any = 0, dim: int = 0, *, name: str) -> Value:
    axis = (sizes if name == "unbind" else dim) % len(x.shape)
    length = x.shape[axis]
    if name == "unbind":
        return tuple(moved(x, lambda v, i=i: np.take(v, i, axis)) for i in range(length))
    each = sizes if name != "chunk" else max(1, -(-length // sizes))
    ends = range(each, length, each) if isinstance(each, int) else np.cumsum(each)[:-1]
    if not isinstance(each, int) and sum(each) != length:
        raise Invalid("parts that do not add up")
    bounds = [0, *map(int, ends), length]
    return tuple(moved(x, lambda v, a=a, b=b: v[_place(v, axis, a, b)]) for a, b in itertools.pairwise(bounds))


@defines("clone", "contiguous", "alias", "detach", "lift_fresh_copy", "dropout", "view_as", "positive", "expand_copy")
def _same(_n: Numbers, x: Value, p: float = 0.0, train: bool = False, *, name: str, **_: Any) -> Value:
    if train or name in ("view_as", "expand_copy"):
        raise Undecided(f"{name} has no definition")
    return x


@defines("to", "_to_copy", "type_as", "convert_element_type")
def _to(n: Numbers, x: Value, *args: Any, dtype: int | None = None, **_: Any) -> Value:
    given = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)]
    others = [dtype_of(arg) for arg in args if isinstance(arg, Real | np.ndarray)]
    return typed(n, x, dtype or (given or others or [dtype_of(x)])[0])


@defines("constant_pad_nd", "pad")
def _pad(
    n: Numbers, x: Value, widths: Sequence[int], *rest: Any, name: str, value: Any = 0, mode: str = "constant"
) -> Value:
    """Return a tensor with elements added or removed at its borders, from the last axis on."""
    mode, value = (*rest, *(mode, value)[len(rest) :]) if name == "pad" else (mode, *rest, value)[:2]
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


@defines("full", "zeros", "ones", "full_like", "zeros_like", "ones_like", "new_full", "new_zeros", "new_ones")
def _full(n: Numbers, x: Any, *args: Any, name: str, dtype: int | None = None, **_: Any) -> Value:
    """Return a tensor that repeats one number: of some sizes, of another tensor's shape and type, or of its type."""
    form, rest = name.removeprefix("new_").removesuffix("_like"), list(args)
    sizes = x if form == name else x.shape if name.endswith("_like") else rest.pop(0)
    value = rest[0] if form == "full" else float(form == "ones")
    if not is_scalar(value):
        return moved(value, lambda v: np.broadcast_to(v, sizes))
    return _filled(n, sizes, value, dtype if form == name or dtype else dtype_of(x))


@defines("fill")
def _fill(n: Numbers, x: Value, value: Value) -> Value:
    return moved(typed(n, value, dtype_of(x)), lambda v: np.broadcast_to(v, x.shape))


@defines("scalar_tensor")
def _scalar_tensor(n: Numbers, value: Any, *, dtype: int | None = None, **_: Any) -> Value:
    return _filled(n, (), float(value) if dtype is None else value, dtype)


@defines("arange")
def _arange(n: Numbers, *bounds: Any, dtype: int | None = None, **_: Any) -> Value:
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    kind = dtype or (TensorProto.FLOAT if any(isinstance(each, float) for each in bounds) else TensorProto.INT64)
    counts = np.arange(max(0, math.ceil((end - start) / step)), dtype=np.int64)
    if kind not in FLOATS:
        return typed(n, start + counts * step, kind)
    return number(n, start, kind) + Real.of(counts, kind) * number(n, step, kind)


@defines("sym_size", "sym_numel")
def _sym_size(_: Numbers, x: Value, dim: int | None = None) -> Value:
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
def _size_arithmetic(_: Numbers, *operands: Any, name: str) -> Value:
    return _SIZES[name.removeprefix("builtin.")](*operands)


@defines("builtin.getitem")
def _getitem(_: Numbers, sequence: Sequence[Value], place: int) -> Value:
    return sequence[place]


def _spread(values: Any, count: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


@defines("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d")
def _convolution(n: Numbers, x: Real, weight: Real, bias: Real | None = None, *args: Any, name: str) -> Value:
    """Return a convolution, or the adjoint of one."""
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
    dilation = _spread(dilation, count)
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [r // 2 for r in reach] + [r - r // 2 for r in reach] if padding == "same" else [0] * 2 * count
    else:
        pads = _spread(padding, count) * 2
    options = {"strides": _spread(stride, count), "dilations": dilation, "pads": pads, "group": groups}
    operands = (x, weight) if bias is None else (x, weight, bias)
    if transposed:
        return standard(n, "ConvTranspose", *operands, output_padding=_spread(beyond, count), **options)
    return standard(n, "Conv", *operands, **options)


@defines("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d")
def _pool(
    n: Numbers, x: Real, kernel: Any, stride: Any = (), padding: Any = 0, *args: Any, name: str, **_: Any
) -> Value:
    count, largest = int(name[-2]), name.startswith("max")
    sizes, rest = _spread(kernel, count), args if largest else (1, *args)
    options: list[Any] = [*rest, *(1, False, True, None)[len(rest) :]]
    dilation, ceil_mode, inclusive, divisor = options
    if ceil_mode or divisor or x.ndim != count + 2:
        raise Undecided(f"{name} with rounded sizes, a divisor or no batch")
    steps, pads = _spread(stride, count) if stride else sizes, _spread(padding, count) * 2
    own = {"dilations": _spread(dilation, count)} if largest else {"count_include_pad": int(inclusive)}
    name = "MaxPool" if largest else "AveragePool"
    return standard(n, name, x, kernel_shape=sizes, strides=steps, pads=pads, **own)


@defines("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def _adaptive_pool(n: Numbers, x: Real, sizes: Sequence[int]) -> Value:
    """Return means over as many ranges of about equal length as the result has elements."""
    for axis, size in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        length = x.shape[axis]
        ends = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
        parts = [_rearranged(n, x, axis, a, b, name="slice") for a, b in ends]
        x = joined([mean(part, (axis,)) for part in parts], axis)
    return x
