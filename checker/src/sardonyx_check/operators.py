"""What the operators of ONNX compute, on exact numbers; those with a function in the standard need no definition.

The methods of `Call` are the operators. Older operator sets have attributes in place of some inputs: both are read.
"""
# pyright: reportSelfClsParameterName=false

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sardonyx_check.graphs import FLOATS, Node
from sardonyx_check.numbers import STORED, Array, Numbers, Real, Undecided

Tensor = Any  # Real, an array of integers, truth values or strings, a list of these, or None


def moved(x: Tensor, move: Callable[[Array], Array]) -> Tensor:
    """Move elements."""
    return x.map(move) if isinstance(x, Real) else move(x)


def joined(values: Sequence[Tensor], join: Callable[[list[Array]], Array]) -> Tensor:
    """Join tensors of one kind."""
    if not isinstance(values[0], Real):
        return join(list(values))
    known = min(v.known for v in values)
    return Real(join([v.m for v in values]), join([v.f for v in values]), values[0].type, known)


def tensor(n: Numbers, array: Array, type: int) -> Tensor:
    """Return a stored tensor as a value."""
    return n.stored(np.asarray(array).astype(np.float64), type) if type in FLOATS else np.asarray(array)


def cast(n: Numbers, x: Tensor, to: int) -> Tensor:
    """Return a value in another type."""
    if not isinstance(x, Real):
        if x.dtype == object or to == onnx.TensorProto.STRING:
            raise Undecided("numbers as strings")
        return n.integers(x, to) if to in FLOATS else x.astype(helper.tensor_dtype_to_np_dtype(to))
    if to in FLOATS or to == onnx.TensorProto.BOOL:
        return Real(x.m, x.f, to, x.known) if to in FLOATS else x.m != 0
    any_number = n.opaque and x.known != STORED
    whole = n.hash("cast", x.m) % 97 if any_number else np.trunc(x.f).astype(np.int64)
    return whole.astype(helper.tensor_dtype_to_np_dtype(to))


def mean_of(n: Numbers, x: Real, axes: tuple[int, ...]) -> Real:
    """Return means over axes, which stay."""
    total, count = n.sum(x, axes, keep=True), math.prod(x.shape[a] for a in axes)
    if not count:
        return n.fixed(Real(total.m, np.full(total.shape, np.nan), x.type, x.known))
    return n.divide(total, n.number(float(count), x))


def largest(n: Numbers, x: Real, axes: tuple[int, ...], sign: int = 1) -> Real:
    """Return the largest elements over axes, which stay; with sign -1, the smallest."""
    rest = [a for a in range(len(x.shape)) if a not in axes]
    flat = x.map(lambda a: a.transpose([*rest, *axes]).reshape([*(a.shape[k] for k in rest), -1]))
    if not flat.shape[-1]:
        raise Undecided("the largest of no elements")
    place = np.argmax(sign * n.row_order(flat, (flat.f.ndim - 1,)), -1)[..., None]
    return flat.map(
        lambda a: np.take_along_axis(a, place, -1).reshape([1 if k in axes else s for k, s in enumerate(x.shape)])
    )


def _index(index: Array, size: int) -> Array:
    if index.size and (index.min() < -size or index.max() >= size):
        raise ValueError("an index is out of range")
    return np.where(index < 0, index + size, index)


def _divided(a: Array, b: Array) -> Array:
    if (np.asarray(b) == 0).any():
        raise Undecided("an integer division by zero")
    return a // b if a.dtype.kind == "u" else np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _put(a: Array, b: Array, place: tuple[Array, ...]) -> Array:
    a = a.copy()
    a[place] = b
    return a


def _along(index: Array, axis: int) -> tuple[Array, ...]:
    """Return indices of all axes for those of one axis."""
    own = list(np.ogrid[tuple(map(slice, index.shape))])
    own[axis] = index
    return tuple(own)


class Call:
    """A node with the values of its inputs."""

    def __init__(self, node: Node, inputs: Sequence[Tensor], n: Numbers, parameters: dict[str, Any]) -> None:
        self.node, self.inputs, self.n, self._parameters = node, inputs, n, parameters

    def __getitem__(self, index: int) -> Tensor:
        return self.inputs[index] if index < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is not None and attribute.ref_attr_name:
            attribute = self._parameters.get(attribute.ref_attr_name)
        value = default if attribute is None else helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def ints(self, index: int, name: str) -> list[int] | None:
        """Return integers that are an input or an attribute."""
        given = self[index] if self[index] is not None else self.get(name)
        return None if given is None else [int(v) for v in np.asarray(given).reshape(-1)]

    @property
    def rank(self) -> int:
        """The rank of the first input."""
        return len(self[0].shape)

    @property
    def outputs(self) -> int:
        """The number of outputs that are used."""
        return len([v for v in self.node.outputs if v is not None])

    def axes(self, index: int = 1) -> list[int] | None:
        """Return axes that are not negative."""
        axes = self.ints(index, "axes")
        return None if axes is None else [a + self.rank if a < 0 else a for a in axes]

    def each(self, real: Callable[..., Tensor], whole: Callable[..., Any] | None) -> Tensor:
        """Combine all inputs from the first on, or change the only one."""
        is_real = isinstance(self[0], Real)
        if not is_real and whole is None:
            raise Undecided(f"{self.node.op} of integers")
        function: Any = (lambda *x: real(self.n, *x)) if is_real else whole
        return function(self[0]) if len(self.inputs) == 1 else _fold(function, self.inputs)

    # Operators that move elements

    def Dropout(c) -> Tensor:
        if c[2] is not None and np.asarray(c[2]).any():
            raise Undecided("Dropout in training")
        return c[0], np.ones(c[0].shape, bool)

    def Reshape(c) -> Tensor:
        shape, old = c.ints(1, "shape") or [], c[0].shape
        if not c.get("allowzero", 0):
            shape = [old[i] if d == 0 else d for i, d in enumerate(shape)]
        rest = math.prod(d for d in shape if d != -1)
        shape = [d if d != -1 else (math.prod(old) // rest if rest else 0) for d in shape]
        return moved(c[0], lambda a: a.reshape(shape))

    def Squeeze(c) -> Tensor:
        axes = c.axes()
        return moved(c[0], lambda a: a.squeeze(None if axes is None else tuple(axes)))

    def Flatten(c) -> Tensor:
        axis = c.get("axis", 1) + (c.rank if c.get("axis", 1) < 0 else 0)
        return moved(c[0], lambda a: a.reshape(math.prod(a.shape[:axis]), math.prod(a.shape[axis:])))

    def Split(c) -> Tensor:
        axis, count = c.get("axis", 0), c.get("num_outputs") or len(c.node.outputs)
        whole = c[0].shape[axis]
        part = -(-whole // count)
        sizes = c.ints(1, "split") or [part] * (count - 1) + [whole - part * (count - 1)]
        return tuple(c.parts(sizes, axis))

    def parts(c, sizes: Sequence[int], axis: int) -> list[Tensor]:
        """Return pieces of the first input."""
        if sum(sizes) != c[0].shape[axis]:
            raise ValueError("the parts do not add up")
        ends = [0, *itertools.accumulate(sizes)]
        ranges = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
        return [moved(c[0], lambda a, r=r: a.take(r, axis)) for r in ranges]

    def SplitToSequence(c) -> Tensor:
        axis, whole, given = c.get("axis", 0), c[0].shape[c.get("axis", 0)], c[1]
        part = 1 if given is None else int(given) if np.ndim(given) == 0 else 0
        sizes = [min(part, whole - at) for at in range(0, whole, part)] if part else np.asarray(given).tolist()
        parts = c.parts(sizes, axis)
        return (
            parts if given is not None or c.get("keepdims", 1) else [moved(v, lambda a: a.squeeze(axis)) for v in parts]
        )

    def ConcatFromSequence(c) -> Tensor:
        join = np.stack if c.get("new_axis", 0) else np.concatenate
        return joined(c[0], lambda parts: join(parts, axis=c.get("axis")))

    def Slice(c) -> Tensor:
        starts, ends = c.ints(1, "starts") or [], c.ints(2, "ends") or []
        steps, index = c.ints(4, "steps") or [1] * len(starts), [slice(None)] * c.rank
        for axis, start, end, step in zip(c.axes(3) or range(len(starts)), starts, ends, steps, strict=True):
            size = c[0].shape[axis]
            start, end = (v + size if v < 0 else v for v in (start, end))
            low, high = (0, size) if step > 0 else (-1, size - 1)
            start, end = max(min(start, high), 0), max(min(end, high), low)
            index[axis] = slice(start, None if end < 0 else end, step)
        return moved(c[0], lambda a: a[tuple(index)])

    def Gather(c) -> Tensor:
        axis = c.get("axis", 0)
        index = _index(c[1], c[0].shape[axis])
        return moved(c[0], lambda a: a.take(index, axis))

    def GatherElements(c) -> Tensor:
        axis = c.get("axis", 0)
        place = _along(_index(c[1], c[0].shape[axis]), axis)
        return moved(c[0], lambda a: a[place])

    def GatherND(c) -> Tensor:
        batch, index = c.get("batch_dims", 0), c[1]
        lead = np.ogrid[tuple(map(slice, index.shape[:-1]))][:batch]
        place = [_index(index[..., k], c[0].shape[batch + k]) for k in range(index.shape[-1])]
        return moved(c[0], lambda a: a[(*lead, *place)])

    def ScatterND(c) -> Tensor:
        place = tuple(_index(c[1][..., k], c[0].shape[k]) for k in range(c[1].shape[-1]))
        return c.scattered(place)

    def ScatterElements(c) -> Tensor:
        axis = c.get("axis", 0)
        return c.scattered(_along(_index(c[1], c[0].shape[axis]), axis))

    def scattered(c, place: tuple[Array, ...]) -> Tensor:
        """Return the first input with the third at some places."""
        if c.get("reduction", "none") != "none":
            raise Undecided(f"{c.node.op} with a reduction")
        return joined([c[0], c[2]], lambda parts: _put(parts[0], parts[1], place))

    def Expand(c) -> Tensor:
        shape = np.broadcast_shapes(c[0].shape, tuple(c.ints(1, "shape") or ()))
        return moved(c[0], lambda a: np.broadcast_to(a, shape))

    def Trilu(c) -> Tensor:
        cut = np.triu if c.get("upper", 1) else np.tril
        mask = cut(np.ones(c[0].shape[-2:], bool), 0 if c[1] is None else int(c[1]))
        return moved(c[0], lambda a: np.where(mask, a, np.zeros((), a.dtype)))

    def Pad(c) -> Tensor:
        pads, axes, widths = c.ints(1, "pads") or [], c.axes(3) or list(range(c.rank)), [(0, 0)] * c.rank
        for k, axis in enumerate(axes):
            widths[axis] = pads[k], pads[k + len(axes)]
        kept = tuple(slice(max(-w[0], 0), s - max(-w[1], 0)) for w, s in zip(widths, c[0].shape, strict=True))
        x, grown, mode = (
            moved(c[0], lambda a: a[kept]),
            [(max(a, 0), max(b, 0)) for a, b in widths],
            c.get("mode", "constant"),
        )
        if mode != "constant":
            return moved(x, lambda a: np.pad(a, grown, mode))
        fill = c[2] if c[2] is not None else c.get("value", 0.0)
        if not isinstance(x, Real):
            return np.pad(x, grown, constant_values=np.asarray(fill).item())
        fill = fill if isinstance(fill, Real) else c.n.number(fill, x)
        return joined([x, fill], lambda parts: np.pad(parts[0], grown, constant_values=parts[1].item()))

    # Shapes and constants

    def Constant(c) -> Tensor:
        for name, numbers in (
            ("value_float", True),
            ("value_floats", True),
            ("value_int", False),
            ("value_ints", False),
        ):
            if (value := c.get(name)) is not None:
                return c.n.stored(np.array(value, np.float64)) if numbers else np.array(value, np.int64)
        if c.get("value") is None:
            raise Undecided("a Constant of another kind")
        return tensor(c.n, numpy_helper.to_array(c.get("value")), c.get("value").data_type)

    def ConstantOfShape(c) -> Tensor:
        value = c.get("value")
        filled = np.zeros(()) if value is None else numpy_helper.to_array(value).reshape(())
        return tensor(c.n, np.broadcast_to(filled, [int(d) for d in c[0]]), 1 if value is None else value.data_type)

    def Range(c) -> Tensor:
        if not isinstance(c[0], Real):
            return np.arange(int(c[0]), int(c[1]), int(c[2])).astype(c[0].dtype)
        if any(v.known != STORED for v in c.inputs):
            raise Undecided("a Range of real numbers")
        count = max(math.ceil((c[1].f.item() - c[0].f.item()) / c[2].f.item()), 0)
        return c.n.add(c[0], c.n.multiply(c.n.integers(np.arange(count), c[0].type), c[2]))

    def CastLike(c) -> Tensor:
        return cast(c.n, c[0], c[1].type if isinstance(c[1], Real) else helper.np_dtype_to_tensor_dtype(c[1].dtype))

    # Arithmetic

    def Sign(c) -> Tensor:
        if not isinstance(c[0], Real):
            return np.sign(c[0])
        zero, one = c.n.number(0.0, c[0]), c.n.number(1.0, c[0])
        return c.n.where(c.n.less(c[0], zero), c.n.negate(one), c.n.where(c.n.less(zero, c[0]), one, zero))

    def Pow(c) -> Tensor:
        x, y, n = c[0], c[1], c.n
        if not isinstance(x, Real):
            return np.power(x, np.asarray(y.f if isinstance(y, Real) else y)).astype(x.dtype)
        y = y if isinstance(y, Real) else n.integers(y, x.type)
        f, twice = np.power(x.f, y.f), float(y.f.reshape(-1)[0]) * 2 if y.size else 0.0
        if y.known != STORED or not (y.f * 2 == twice).all() or twice != round(twice) or abs(twice) > 128:
            return n.function_of("pow", x, y, f)
        count = abs(int(twice))
        m = n.power(x.m, count // 2) if count % 2 == 0 else n.power(n.root(x.m, strict=x.known == STORED), count)
        m = np.broadcast_to(n.inverse(m) if twice < 0 else m, f.shape)
        return n.fixed(Real(m, f, x.type, min(x.known, y.known)))

    def Mod(c) -> Tensor:
        if isinstance(c[0], Real) or (c[1] == 0).any():
            raise Undecided("Mod of real numbers, or by zero")
        return np.fmod(c[0], c[1]) if c.get("fmod", 0) else np.mod(c[0], c[1])

    def Mean(c) -> Tensor:
        return c.n.divide(TABLE["Sum"](c), c.n.number(float(len(c.inputs)), c[0]))

    def Clip(c) -> Tensor:
        x, low, high = c[0], c[1], c[2]
        if not isinstance(x, Real):
            return np.minimum(np.maximum(x, x if low is None else low), x if high is None else high)
        for bound, name, choose in ((low, "min", c.n.larger), (high, "max", c.n.smaller)):
            if bound is None and (given := c.get(name)) is not None:
                bound = c.n.number(given, x)
            if bound is not None and bound.size != 1:
                raise ValueError("a bound is not one number")
            x = x if bound is None else choose(x, bound)
        return x

    def CumSum(c) -> Tensor:
        axis, x = int(c[1]), c[0]
        if c.get("exclusive", 0) or c.get("reverse", 0):
            raise Undecided("CumSum in another order")
        if isinstance(x, Real):
            return c.n.fixed(Real(x.m.cumsum(axis) % c.n.p, x.f.cumsum(axis), x.type, x.known))
        return x.cumsum(axis).astype(x.dtype)

    # Reductions

    def reduced(c, real: Callable[..., Real], whole: Callable[..., Any] | None) -> Tensor:
        """Reduce axes; those of the node, or all."""
        axes, keep = tuple(c.axes() or ()), bool(c.get("keepdims", 1))
        if not axes and c.get("noop_with_empty_axes", 0):
            return c[0]
        axes = axes or tuple(range(c.rank))
        if isinstance(c[0], Real):
            result = real(c.n, c[0], axes)
            return result if keep else moved(result, lambda a: a.squeeze(axes))
        if whole is None:
            raise Undecided(f"{c.node.op} of integers")
        return np.asarray(whole(c[0], axis=axes, keepdims=keep)).astype(c[0].dtype)

    def keys(c, axis: int) -> Array:
        """Return numbers in the order of the first input along an axis."""
        return c.n.row_order(c[0], (axis % c.rank,)) if isinstance(c[0], Real) else c[0].astype(np.float64)

    def ArgMax(c) -> Tensor:
        axis = c.get("axis", 0)
        if c.get("select_last_index", 0):
            raise Undecided("ArgMax of the last index")
        place = np.argmax(c.keys(axis) * (1 if c.node.op == "ArgMax" else -1), axis)
        return np.expand_dims(place, axis) if c.get("keepdims", 1) else place

    def TopK(c) -> Tensor:
        axis, count = c.get("axis", -1), (c.ints(1, "k") or [0])[0]
        keys = c.keys(axis) * (-1 if c.get("largest", 1) else 1)
        order = np.argsort(keys, axis, kind="stable").take(range(count), axis)
        return moved(c[0], lambda a: np.take_along_axis(a, order, axis)), order

    # Products, convolutions and normalization

    def Gemm(c) -> Tensor:
        n = c.n
        a, b = (moved(v, np.transpose) if c.get(t, 0) else v for v, t in ((c[0], "transA"), (c[1], "transB")))
        if not isinstance(a, Real):
            raise Undecided("Gemm of integers")
        alpha, beta = (n.stored(np.array(c.get(name, 1.0))) for name in ("alpha", "beta"))
        result = n.multiply(n.matmul(a, b), alpha)
        return result if c[2] is None else n.add(result, n.multiply(c[2], beta))

    def Einsum(c) -> Tensor:
        terms, arrow, out = c.get("equation").replace(" ", "").partition("->")
        parts, letters = terms.split(","), list(dict.fromkeys(out + terms.replace(",", "")))
        if "." in terms or not arrow or any(len(set(p)) < len(p) for p in parts):
            raise Undecided("this Einsum")
        values = []
        for value, part in zip(c.inputs, parts, strict=True):
            perm = sorted(range(len(part)), key=lambda k, part=part: letters.index(part[k]))
            shape = [value.shape[part.index(x)] if x in part else 1 for x in letters]
            values.append(moved(value, lambda a, perm=perm, shape=shape: a.transpose(perm).reshape(shape)))
        if math.prod(np.broadcast_shapes(*(v.shape for v in values))) > 1 << 24:
            raise Undecided("a large Einsum")
        return c.n.sum(_fold(c.n.multiply, values), tuple(range(len(out), len(letters))))

    def windows(c, x: Real, kernel: Sequence[int], fill: float) -> Real:
        """Return the windows of a convolution or pooling: batch, channels, places, elements of the kernel."""
        count = len(kernel)
        strides, dilations = c.get("strides") or [1] * count, c.get("dilations") or [1] * count
        pads, auto = list(c.get("pads") or [0] * 2 * count), c.get("auto_pad", "NOTSET")
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        sizes = list(zip(x.shape[2:], strides, reach, strict=True))
        if auto.startswith("SAME"):
            need = [max((-(-s // t) - 1) * t + r - s, 0) for s, t, r in sizes]
            small, large = [v // 2 for v in need], [v - v // 2 for v in need]
            pads = [*small, *large] if auto == "SAME_UPPER" else [*large, *small]
        for k, (s, t, r) in enumerate(sizes if c.get("ceil_mode", 0) else ()):
            whole = -(-(s + pads[k] + pads[k + count] - r) // t)
            whole -= (whole * t) >= s + pads[k]
            pads[k + count] = max(pads[k + count], whole * t + r - s - pads[k])
        widths = [(0, 0), (0, 0), *((pads[k], pads[k + count]) for k in range(count))]
        steps = [slice(None)] * 2 + [slice(None, None, t) for t in (*strides, *dilations)]

        def cut(a: Array) -> Array:
            a = np.pad(a, widths, constant_values=fill if a.dtype == np.float64 else 0)
            return np.lib.stride_tricks.sliding_window_view(a, reach, tuple(range(2, 2 + count)))[tuple(steps)]

        return c.n.fixed(x.map(cut))

    def Conv(c) -> Tensor:
        x, w, groups, count = c[0], c[1], c.get("group", 1), c.rank - 2
        if not isinstance(x, Real) or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ValueError("the channels do not fit")
        seen = c.windows(x, w.shape[2:], 0.0)
        places = seen.shape[2 : 2 + count]
        perm = [0, 1, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count)]
        shape = [x.shape[0], groups, math.prod(places), math.prod(w.shape[1:])]
        rows = seen.map(
            lambda a: a.reshape(a.shape[0], groups, w.shape[1], *a.shape[2:]).transpose(perm).reshape(shape)
        )
        kernels = w.map(lambda a: a.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1))
        result = c.n.matmul(rows, kernels).map(
            lambda a: a.transpose(0, 1, 3, 2).reshape(x.shape[0], w.shape[0], *places)
        )
        return result if c[2] is None else c.n.add(result, c[2].map(lambda a: a.reshape(-1, *[1] * count)))

    def pooled(c, x: Real, fill: float, reduce: Callable[[Real, tuple[int, ...]], Real]) -> Real:
        """Reduce the windows."""
        axes = tuple(range(c.rank, 2 * c.rank - 2))
        return reduce(c.windows(x, c.get("kernel_shape"), fill), axes).map(lambda a: a.squeeze(axes))

    def MaxPool(c) -> Tensor:
        if c.outputs > 1 or not isinstance(c[0], Real):
            raise Undecided("MaxPool with places")
        return c.pooled(c[0], -np.inf, lambda x, axes: largest(c.n, x, axes))

    def AveragePool(c) -> Tensor:
        if c.get("ceil_mode", 0):
            raise Undecided("AveragePool with ceil_mode")
        ones = Real(np.ones(c[0].shape, np.int64), np.ones(c[0].shape), c[0].type)
        total, count = (c.pooled(x, 0.0, lambda x, axes: c.n.sum(x, axes, keep=True)) for x in (c[0], ones))
        whole = c.n.number(float(math.prod(c.get("kernel_shape"))), c[0])
        return c.n.divide(total, whole if c.get("count_include_pad", 0) else count)

    def epsilon(c, default: float) -> Real:
        """Return the attribute."""
        return c.n.stored(np.array(np.float32(c.get("epsilon", default)), np.float64))

    def BatchNormalization(c) -> Tensor:
        if c.get("training_mode", 0) or c.outputs > 1:
            raise Undecided("BatchNormalization in training")
        n, shape = c.n, (-1, *[1] * (c.rank - 2))
        scale, shift, mean, variance = (v.map(lambda a: a.reshape(shape)) for v in c.inputs[1:5])
        factor = n.divide(scale, n.sqrt(n.add(variance, c.epsilon(1e-5))))
        return n.add(n.multiply(n.subtract(c[0], mean), factor), shift)

    def InstanceNormalization(c) -> Tensor:
        n, axes = c.n, tuple(range(2, c.rank))
        scale, shift = (v.map(lambda a: a.reshape(-1, *[1] * len(axes))) for v in c.inputs[1:3])
        centered = n.subtract(c[0], mean_of(n, c[0], axes))
        root = n.sqrt(n.add(mean_of(n, n.multiply(centered, centered), axes), c.epsilon(1e-5)))
        return n.add(n.multiply(n.divide(centered, root), scale), shift)

    def Softmax(c) -> Tensor:
        n, x, old = c.n, c[0], c.node.version < 13  # which reduces all axes from this one on
        axis = c.get("axis", 1 if old else -1) % max(c.rank, 1)
        return softmax(n, x, tuple(range(axis, c.rank)) if old else (axis,), logarithm=c.node.op == "LogSoftmax")

    def DequantizeLinear(c) -> Tensor:
        x, scale, zero, axis = c[0], c[1], c[2], c.get("axis", 1) % max(c.rank, 1)
        if c.get("block_size", 0) or isinstance(x, Real):
            raise Undecided("DequantizeLinear in blocks")
        shape = [-1 if k == axis else 1 for k in range(c.rank)] if scale.size > 1 else []
        whole = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64).reshape(shape))
        return c.n.multiply(c.n.integers(whole, scale.type), scale.map(lambda a: a.reshape(shape)))


def softmax(n: Numbers, x: Real, axes: tuple[int, ...], *, logarithm: bool = False) -> Real:
    """Return exp(x - max x) divided by its sum over axes, or the logarithm of that."""
    if not x.size:
        return x
    shifted = n.subtract(x, largest(n, x, axes))
    powers = n.exp(shifted)
    total = n.sum(powers, axes, keep=True)
    return n.subtract(shifted, n.log(total)) if logarithm else n.divide(powers, total)


def _fold(function: Callable[[Any, Any], Any], values: Sequence[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def _random(name: str, f: Callable[[Array], Array], symmetry: str = "") -> Callable[[Call], Tensor]:
    return lambda c: c.each(lambda n, x: n.function(name, x, f(x.f), symmetry), None)


def _whole(name: str, f: Callable[[Array], Array]) -> Callable[[Call], Tensor]:
    return lambda c: c.each(lambda n, x: n.whole(name, x, f(x.f)), None)


N = Numbers
TABLE: dict[str, Callable[[Call], Tensor]] = {
    **{name: method for name, method in vars(Call).items() if name[0].isupper()},
    "ArgMin": Call.ArgMax,
    "LogSoftmax": Call.Softmax,
    "Identity": lambda c: c[0],
    "Transpose": lambda c: moved(c[0], lambda a: a.transpose(c.get("perm"))),
    "Unsqueeze": lambda c: moved(c[0], lambda a: np.expand_dims(a, tuple(c.ints(1, "axes") or ()))),
    "Concat": lambda c: joined(c.inputs, lambda parts: np.concatenate(parts, c.get("axis", 1))),
    "Tile": lambda c: moved(c[0], lambda a: np.tile(a, c.ints(1, "repeats") or [])),
    "Where": lambda c: c.n.where(*c.inputs) if isinstance(c[1], Real) else np.where(*c.inputs),
    "SequenceConstruct": lambda c: list(c.inputs),
    "SequenceAt": lambda c: c[0][int(c[1])],
    "SequenceLength": lambda c: np.array(len(c[0]), np.int64),
    "Shape": lambda c: np.array(c[0].shape[slice(c.get("start", 0), c.get("end"))], np.int64),
    "Size": lambda c: np.array(c[0].size, np.int64),
    "NonZero": lambda c: np.array(np.nonzero(c[0].m if isinstance(c[0], Real) else c[0]), np.int64),
    "Cast": lambda c: cast(c.n, c[0], c.get("to")),
    "Add": lambda c: c.each(N.add, np.add),
    "Sub": lambda c: c.each(N.subtract, np.subtract),
    "Mul": lambda c: c.each(N.multiply, np.multiply),
    "Div": lambda c: c.each(N.divide, _divided),
    "Sum": lambda c: c.each(N.add, np.add),
    "Max": lambda c: c[0] if len(c.inputs) == 1 else c.each(N.larger, np.maximum),
    "Min": lambda c: c[0] if len(c.inputs) == 1 else c.each(N.smaller, np.minimum),
    "Less": lambda c: c.each(N.less, np.less),
    "Greater": lambda c: c.each(lambda n, a, b: n.less(b, a), np.greater),
    "LessOrEqual": lambda c: c.each(lambda n, a, b: ~n.less(b, a), np.less_equal),
    "GreaterOrEqual": lambda c: c.each(lambda n, a, b: ~n.less(a, b), np.greater_equal),
    "Equal": lambda c: c.each(lambda n, a, b: a.m == b.m, lambda a, b: np.asarray(a == b)),
    "And": lambda c: c[0] & c[1],
    "Or": lambda c: c[0] | c[1],
    "Xor": lambda c: c[0] ^ c[1],
    "Not": lambda c: ~c[0],
    "Neg": lambda c: c.each(N.negate, np.negative),
    "Sqrt": lambda c: c.each(N.sqrt, None),
    "Exp": lambda c: c.each(N.exp, None),
    "Log": lambda c: c.each(N.log, None),
    "Erf": lambda c: c.each(N.erf, None),
    "Sigmoid": lambda c: c.each(N.sigmoid, None),
    "Tanh": lambda c: c.each(N.tanh, None),
    "Reciprocal": lambda c: c.each(lambda n, x: n.divide(n.number(1.0, x), x), None),
    "Relu": lambda c: c.each(lambda n, x: n.larger(x, n.number(0.0, x)), lambda a: np.maximum(a, 0)),
    "Abs": lambda c: c.each(lambda n, x: n.where(n.less(x, n.number(0.0, x)), n.negate(x), x), np.abs),
    "IsNaN": lambda c: c.each(lambda n, x: np.isnan(x.f), None),
    "Floor": _whole("floor", np.floor),
    "Ceil": _whole("ceil", np.ceil),
    "Round": _whole("round", np.rint),
    "Sin": _random("sin", np.sin, "odd"),
    "Cos": _random("cos", np.cos, "even"),
    "Atan": _random("atan", np.arctan, "odd"),
    "ReduceSum": lambda c: c.reduced(lambda n, x, axes: n.sum(x, axes, keep=True), np.sum),
    "ReduceMean": lambda c: c.reduced(mean_of, None),
    "ReduceMax": lambda c: c.reduced(largest, np.max),
    "ReduceMin": lambda c: c.reduced(lambda n, x, axes: largest(n, x, axes, -1), np.min),
    "MatMul": lambda c: c.each(N.matmul, np.matmul),
    "GlobalAveragePool": lambda c: mean_of(c.n, c[0], tuple(range(2, c.rank))),
    "GlobalMaxPool": lambda c: largest(c.n, c[0], tuple(range(2, c.rank))),
}
