"""What the operators of ONNX compute, on exact numbers; operators with a function in the standard are not listed."""

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
TABLE: dict[str, Callable[[Call], Tensor]] = {}
_FAR = 1 << 31


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
        if attribute is None:
            return default
        value = helper.get_attribute_value(attribute)
        return value.decode() if isinstance(value, bytes) else value

    def ints(self, index: int, name: str) -> list[int] | None:
        """Return integers that are an input, or an attribute in older operator sets."""
        given = self[index]
        if given is not None:
            return [int(v) for v in np.asarray(given).reshape(-1)]
        value = self.get(name)
        return None if value is None else [int(v) for v in np.atleast_1d(value)]

    def rank(self) -> int:
        """Return the rank of the first input."""
        return len(self[0].shape)

    def axes(self, index: int = 1, name: str = "axes") -> list[int] | None:
        """Return axes that are not negative."""
        axes = self.ints(index, name)
        return None if axes is None else [a + self.rank() if a < 0 else a for a in axes]


def op(*names: str) -> Callable[[Callable[[Call], Tensor]], Callable[[Call], Tensor]]:
    """Define operators."""

    def register(function: Callable[[Call], Tensor]) -> Callable[[Call], Tensor]:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return register


def moved(x: Tensor, move: Callable[[Array], Array]) -> Tensor:
    """Move elements."""
    return x.map(move) if isinstance(x, Real) else move(x)


def joined(values: Sequence[Tensor], join: Callable[[list[Array]], Array]) -> Tensor:
    """Join tensors of one kind."""
    if isinstance(values[0], Real):
        known = min(v.known for v in values)
        return Real(join([v.m for v in values]), join([v.f for v in values]), values[0].type, known)
    return join(list(values))


# Operators that move elements


@op("Identity", "Dropout")
def _identity(c: Call) -> Tensor:
    if c.node.op == "Dropout" and c[2] is not None and np.asarray(c[2]).any():
        raise Undecided("Dropout in training")
    return (c[0], np.ones(c[0].shape, bool)) if c.node.op == "Dropout" else c[0]


@op("Reshape")
def _reshape(c: Call) -> Tensor:
    shape, old = c.ints(1, "shape") or [], c[0].shape
    if not c.get("allowzero", 0):
        shape = [old[i] if d == 0 else d for i, d in enumerate(shape)]
    if -1 in shape and 0 in old:
        rest = math.prod(d for d in shape if d != -1)
        shape = [d if d != -1 else (math.prod(old) // rest if rest else 0) for d in shape]
    return moved(c[0], lambda a: a.reshape(shape))


@op("Transpose")
def _transpose(c: Call) -> Tensor:
    perm = c.get("perm") or list(range(c.rank()))[::-1]
    return moved(c[0], lambda a: a.transpose(perm))


@op("Squeeze")
def _squeeze(c: Call) -> Tensor:
    axes = c.axes()
    return moved(c[0], lambda a: a.squeeze(None if axes is None else tuple(axes)))


@op("Unsqueeze")
def _unsqueeze(c: Call) -> Tensor:
    axes = c.ints(1, "axes") or []
    return moved(c[0], lambda a: np.expand_dims(a, tuple(axes)))


@op("Flatten")
def _flatten(c: Call) -> Tensor:
    axis = c.get("axis", 1)
    axis += c.rank() if axis < 0 else 0
    shape = math.prod(c[0].shape[:axis]), math.prod(c[0].shape[axis:])
    return moved(c[0], lambda a: a.reshape(shape))


@op("Concat")
def _concat(c: Call) -> Tensor:
    return joined(c.inputs, lambda parts: np.concatenate(parts, c.get("axis", 1)))


@op("Split")
def _split(c: Call) -> Tensor:
    axis, count = c.get("axis", 0), c.get("num_outputs") or len(c.node.outputs)
    sizes, whole = c.ints(1, "split"), c[0].shape[axis]
    part = -(-whole // count)
    sizes = sizes or [part] * (count - 1) + [whole - part * (count - 1)]
    if sum(sizes) != whole:
        raise ValueError("the parts do not add up")
    starts = [0, *itertools.accumulate(sizes)]
    index = [np.arange(a, b) for a, b in itertools.pairwise(starts)]
    return tuple(moved(c[0], lambda a, i=i: a.take(i, axis)) for i in index)


@op("SplitToSequence")
def _split_to_sequence(c: Call) -> Tensor:
    axis, keep = c.get("axis", 0), c.get("keepdims", 1)
    whole, given = c[0].shape[axis], c[1]
    if given is None:
        sizes = [1] * whole
    elif np.ndim(given) == 0:
        part = int(given)
        sizes = [min(part, whole - at) for at in range(0, whole, part)]
    else:
        sizes = [int(s) for s in given]
    starts = [0, *itertools.accumulate(sizes)]
    parts = [moved(c[0], lambda a, r=np.arange(s, e): a.take(r, axis)) for s, e in itertools.pairwise(starts)]
    return parts if given is not None or keep else [moved(v, lambda a: a.squeeze(axis)) for v in parts]


@op("SequenceConstruct")
def _sequence(c: Call) -> Tensor:
    return list(c.inputs)


@op("SequenceAt")
def _sequence_at(c: Call) -> Tensor:
    return c[0][int(c[1])]


@op("SequenceLength")
def _sequence_length(c: Call) -> Tensor:
    return np.array(len(c[0]), np.int64)


@op("ConcatFromSequence")
def _concat_sequence(c: Call) -> Tensor:
    join = np.stack if c.get("new_axis", 0) else np.concatenate
    return joined(c[0], lambda parts: join(parts, axis=c.get("axis")))


@op("Slice")
def _slice(c: Call) -> Tensor:
    starts, ends = c.ints(1, "starts") or [], c.ints(2, "ends") or []
    axes, steps = c.axes(3), c.ints(4, "steps") or [1] * len(starts)
    index: list[Any] = [slice(None)] * c.rank()
    for axis, start, end, step in zip(axes or range(len(starts)), starts, ends, steps, strict=True):
        size = c[0].shape[axis]
        start, end = (v + size if v < 0 else v for v in (start, end))
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start, end = max(min(start, high if step < 0 else size), 0), max(min(end, high), low)
        index[axis] = slice(start, None if step < 0 and end < 0 else end, step)
    return moved(c[0], lambda a: a[tuple(index)])


@op("Gather")
def _gather(c: Call) -> Tensor:
    axis = c.get("axis", 0)
    index = _index(c[1], c[0].shape[axis])
    return moved(c[0], lambda a: a.take(index, axis))


def _index(index: Array, size: int) -> Array:
    if index.size and (index.min() < -size or index.max() >= size):
        raise ValueError("an index is out of range")
    return np.where(index < 0, index + size, index)


@op("GatherElements")
def _gather_elements(c: Call) -> Tensor:
    axis = c.get("axis", 0)
    index = _index(c[1], c[0].shape[axis])
    own = [np.arange(s).reshape([-1 if i == k else 1 for k in range(c.rank())]) for i, s in enumerate(index.shape)]
    own[axis] = index
    return moved(c[0], lambda a: a[tuple(own)])


@op("GatherND")
def _gather_nd(c: Call) -> Tensor:
    batch, index = c.get("batch_dims", 0), c[1]
    lead = [np.arange(s).reshape([-1 if i == k else 1 for k in range(index.ndim - 1)])
            for i, s in enumerate(index.shape[:batch])]  # fmt: skip
    place = [_index(index[..., k], c[0].shape[batch + k]) for k in range(index.shape[-1])]
    return moved(c[0], lambda a: a[(*lead, *place)])


@op("ScatterND")
def _scatter_nd(c: Call) -> Tensor:
    if c.get("reduction", "none") != "none":
        raise Undecided("ScatterND with a reduction")
    index = c[1]
    place = tuple(_index(index[..., k], c[0].shape[k]) for k in range(index.shape[-1]))

    def put(a: Array, b: Array) -> Array:
        a = a.copy()
        a[place] = b
        return a

    return joined([c[0], c[2]], lambda parts: put(*parts))


@op("ScatterElements")
def _scatter_elements(c: Call) -> Tensor:
    if c.get("reduction", "none") != "none":
        raise Undecided("ScatterElements with a reduction")
    axis = c.get("axis", 0)
    index = _index(c[1], c[0].shape[axis])
    join = lambda parts: _scattered(parts[0], index, parts[1], axis)  # noqa: E731
    return joined([c[0], c[2]], join)


def _scattered(a: Array, index: Array, b: Array, axis: int) -> Array:
    a = a.copy()
    np.put_along_axis(a, index, b, axis)
    return a


@op("Expand")
def _expand(c: Call) -> Tensor:
    shape = np.broadcast_shapes(c[0].shape, tuple(c.ints(1, "shape") or ()))
    return moved(c[0], lambda a: np.broadcast_to(a, shape))


@op("Tile")
def _tile(c: Call) -> Tensor:
    return moved(c[0], lambda a: np.tile(a, c.ints(1, "repeats") or []))


@op("Trilu")
def _trilu(c: Call) -> Tensor:
    k = 0 if c[1] is None else int(c[1])
    cut = np.triu if c.get("upper", 1) else np.tril
    mask = cut(np.ones(c[0].shape[-2:], bool), k)
    return moved(c[0], lambda a: np.where(mask, a, np.zeros((), a.dtype)))


@op("Pad")
def _pad(c: Call) -> Tensor:
    pads, axes = c.ints(1, "pads") or [], c.axes(3) or list(range(c.rank()))
    value = c[2] if c[2] is not None else c.get("value", 0)
    widths = [[0, 0] for _ in c[0].shape]
    for k, axis in enumerate(axes):
        widths[axis] = [pads[k], pads[k + len(axes)]]
    mode = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}[c.get("mode", "constant")]
    x = moved(
        c[0],
        lambda a: a[tuple(slice(max(-lo, 0), s - max(-hi, 0)) for (lo, hi), s in zip(widths, a.shape, strict=False))],
    )
    widths = [[max(lo, 0), max(hi, 0)] for lo, hi in widths]
    if mode != "constant":
        return moved(x, lambda a: np.pad(a, widths, mode=mode))  # type: ignore[call-overload]
    if isinstance(x, Real):
        fill = value if isinstance(value, Real) else c.n.number(float(value), x)
        m, f = (np.pad(a, widths, constant_values=b.item()) for a, b in ((x.m, fill.m), (x.f, fill.f)))
        return Real(m, f, x.type, x.known)
    return np.pad(x, widths, constant_values=np.asarray(value).item())


@op("Where")
def _where(c: Call) -> Tensor:
    return c.n.where(c[0], c[1], c[2]) if isinstance(c[1], Real) else np.where(c[0], c[1], c[2])


@op("Compress")
def _compress(c: Call) -> Tensor:
    return moved(c[0], lambda a: np.compress(c[1], a, c.get("axis")))


# Shapes and constants


@op("Shape")
def _shape(c: Call) -> Tensor:
    return np.array(c[0].shape[slice(c.get("start", 0), c.get("end"))], np.int64)


@op("Size")
def _size(c: Call) -> Tensor:
    return np.array(c[0].size, np.int64)


@op("Constant")
def _constant(c: Call) -> Tensor:
    for name in ("value_float", "value_floats"):
        if c.get(name) is not None:
            return c.n.stored(np.array(c.get(name), np.float64))
    for name in ("value_int", "value_ints"):
        if c.get(name) is not None:
            return np.array(c.get(name), np.int64)
    if c.get("value") is None:
        raise Undecided("a Constant of another kind")
    return tensor(c.n, numpy_helper.to_array(c.get("value")), c.get("value").data_type)


def tensor(n: Numbers, array: Array, type: int) -> Tensor:
    """Return a stored tensor as a value."""
    if type in FLOATS:
        return n.stored(np.asarray(array).astype(np.float64), type)
    return np.asarray(array)


@op("ConstantOfShape")
def _constant_of_shape(c: Call) -> Tensor:
    value, shape = c.get("value"), [int(d) for d in c[0]]
    if value is None:
        return c.n.stored(np.zeros(shape))
    filled = np.broadcast_to(numpy_helper.to_array(value).reshape(()), shape)
    return tensor(c.n, filled, value.data_type)


@op("Range")
def _range(c: Call) -> Tensor:
    if isinstance(c[0], Real):
        if any(v.known != STORED for v in c.inputs):
            raise Undecided("a Range of real numbers")
        count = max(math.ceil((c[1].f.item() - c[0].f.item()) / c[2].f.item()), 0)
        steps = c.n.integers(np.arange(count), c[0].type)
        return c.n.add(c[0], c.n.multiply(steps, c[2]))
    return np.arange(int(c[0]), int(c[1]), int(c[2])).astype(c[0].dtype)


@op("EyeLike")
def _eye(c: Call) -> Tensor:
    own = c[0].type if isinstance(c[0], Real) else helper.np_dtype_to_tensor_dtype(c[0].dtype)
    return cast(c.n, np.eye(*c[0].shape, c.get("k", 0), dtype=np.int64), c.get("dtype", own))


@op("OneHot")
def _one_hot(c: Call) -> Tensor:
    depth, axis = int(np.asarray(c[1].f if isinstance(c[1], Real) else c[1]).item()), c.get("axis", -1)
    index = c[0].f.astype(np.int64) if isinstance(c[0], Real) else c[0]
    hot = np.moveaxis((index[..., None] % depth) == np.arange(depth), -1, axis)
    return moved(c[2], lambda a: np.where(hot, a[1], a[0]))


@op("NonZero")
def _non_zero(c: Call) -> Tensor:
    return np.array(np.nonzero(c[0].m if isinstance(c[0], Real) else c[0]), np.int64)


@op("Cast")
def _cast(c: Call) -> Tensor:
    return cast(c.n, c[0], c.get("to"))


@op("CastLike")
def _cast_like(c: Call) -> Tensor:
    like = c[1]
    return cast(c.n, c[0], like.type if isinstance(like, Real) else helper.np_dtype_to_tensor_dtype(like.dtype))


def cast(n: Numbers, x: Tensor, to: int) -> Tensor:
    """Return a value in another type."""
    if isinstance(x, Real):
        if to in FLOATS:
            return Real(x.m, x.f, to, x.known)
        if to == onnx.TensorProto.BOOL:
            return x.m != 0
        dtype = helper.tensor_dtype_to_np_dtype(to)
        if n.opaque and x.known != STORED:
            return (n.hash("cast", x.m) % 97).astype(dtype)
        return np.trunc(x.f).astype(np.int64).astype(dtype)
    if x.dtype == object or to == onnx.TensorProto.STRING:
        raise Undecided("numbers as strings")
    return n.integers(x, to) if to in FLOATS else x.astype(helper.tensor_dtype_to_np_dtype(to))


# Elementwise arithmetic


def _binary(real: Callable[[Numbers, Real, Real], Tensor], whole: Callable[[Array, Array], Array]) -> Any:
    def evaluate(c: Call) -> Tensor:
        return real(c.n, c[0], c[1]) if isinstance(c[0], Real) else whole(c[0], c[1])

    return evaluate


def _divided(a: Array, b: Array) -> Array:
    if (np.asarray(b) == 0).any():
        raise Undecided("an integer division by zero")
    return a // b if a.dtype.kind == "u" else np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


op("Add")(_binary(Numbers.add, np.add))
op("Sub")(_binary(Numbers.subtract, np.subtract))
op("Mul")(_binary(Numbers.multiply, np.multiply))
op("Div")(_binary(Numbers.divide, _divided))
op("Less")(_binary(Numbers.less, np.less))
op("Greater")(_binary(lambda n, a, b: n.less(b, a), np.greater))
op("LessOrEqual")(_binary(lambda n, a, b: ~n.less(b, a), np.less_equal))
op("GreaterOrEqual")(_binary(lambda n, a, b: ~n.less(a, b), np.greater_equal))
op("Equal")(_binary(lambda n, a, b: a.m == b.m, lambda a, b: np.asarray(a == b)))
op("And")(lambda c: c[0] & c[1])
op("Or")(lambda c: c[0] | c[1])
op("Xor")(lambda c: c[0] ^ c[1])
op("BitwiseAnd")(lambda c: c[0] & c[1])
op("BitwiseOr")(lambda c: c[0] | c[1])
op("Not")(lambda c: ~c[0])


def _unary(real: Callable[[Numbers, Real], Tensor], whole: Callable[[Array], Array] | None = None) -> Any:
    def evaluate(c: Call) -> Tensor:
        if isinstance(c[0], Real):
            return real(c.n, c[0])
        if whole is None:
            raise Undecided(f"{c.node.op} of integers")
        return whole(c[0])

    return evaluate


def _simple(name: str, f: Callable[[Array], Array], symmetry: str = "") -> None:
    op(name)(_unary(lambda n, x: n.function(name, x, f(x.f), symmetry)))


op("Neg")(_unary(Numbers.negate, np.negative))
op("Sqrt")(_unary(Numbers.sqrt))
op("Exp")(_unary(Numbers.exp))
op("Log")(_unary(Numbers.log))
op("Sigmoid")(_unary(Numbers.sigmoid))
op("Tanh")(_unary(Numbers.tanh))
op("Reciprocal")(_unary(lambda n, x: n.divide(n.number(1.0, x), x)))
op("Relu")(_unary(lambda n, x: n.larger(x, n.number(0.0, x)), lambda a: np.maximum(a, 0)))
op("Abs")(_unary(lambda n, x: n.where(n.less(x, n.number(0.0, x)), n.negate(x), x), np.abs))
op("Floor")(_unary(lambda n, x: n.whole("floor", x, np.floor(x.f))))
op("Ceil")(_unary(lambda n, x: n.whole("ceil", x, np.ceil(x.f))))
op("Round")(_unary(lambda n, x: n.whole("round", x, np.rint(x.f))))
op("IsNaN")(_unary(lambda n, x: np.isnan(x.f)))
op("Erf")(_unary(Numbers.erf))
_simple("Sin", np.sin, "odd")
_simple("Cos", np.cos, "even")
_simple("Tan", np.tan, "odd")
_simple("Atan", np.arctan, "odd")
_simple("Asin", np.arcsin, "odd")
_simple("Acos", np.arccos)
_simple("Sinh", np.sinh, "odd")
_simple("Cosh", np.cosh, "even")


@op("Sign")
def _sign(c: Call) -> Tensor:
    if not isinstance(c[0], Real):
        return np.sign(c[0])
    zero, one = c.n.number(0.0, c[0]), c.n.number(1.0, c[0])
    positive = c.n.where(c.n.less(zero, c[0]), one, zero)
    return c.n.where(c.n.less(c[0], zero), c.n.negate(one), positive)


@op("IsInf")
def _is_inf(c: Call) -> Tensor:
    positive, negative = c.get("detect_positive", 1), c.get("detect_negative", 1)
    return (np.isposinf(c[0].f) & bool(positive)) | (np.isneginf(c[0].f) & bool(negative))


@op("Pow")
def _pow(c: Call) -> Tensor:
    x, y, n = c[0], c[1], c.n
    if not isinstance(x, Real):
        return np.power(x, np.asarray(y.f if isinstance(y, Real) else y)).astype(x.dtype)
    if not isinstance(y, Real):
        y = n.integers(y, x.type)
    f = np.power(x.f, y.f)
    twice = float(y.f.reshape(-1)[0]) * 2 if y.size else 0.0
    if y.known != STORED or not (y.f * 2 == twice).all() or twice != round(twice) or abs(twice) > 128:
        return n.function_of("pow", x, y, f)
    count = abs(int(twice))
    m = n.power(x.m, count // 2) if count % 2 == 0 else n.power(n.root(x.m, strict=x.known == STORED), count)
    m = np.broadcast_to(n.inverse(m) if twice < 0 else m, f.shape)
    return n.fixed(Real(m, f, x.type, min(x.known, y.known)))


@op("Mod")
def _mod(c: Call) -> Tensor:
    if isinstance(c[0], Real):
        raise Undecided("Mod of real numbers")
    if (c[1] == 0).any():
        raise Undecided("an integer division by zero")
    return np.fmod(c[0], c[1]) if c.get("fmod", 0) else np.mod(c[0], c[1])


def _folded(real: Callable[[Numbers, Real, Real], Real], whole: Callable[[Array, Array], Array]) -> Any:
    def evaluate(c: Call) -> Tensor:
        result = c[0]
        for other in c.inputs[1:]:
            result = real(c.n, result, other) if isinstance(result, Real) else whole(result, other)
        return result

    return evaluate


op("Max")(_folded(Numbers.larger, np.maximum))
op("Min")(_folded(Numbers.smaller, np.minimum))
op("Sum")(_folded(Numbers.add, np.add))


@op("Mean")
def _mean(c: Call) -> Tensor:
    return c.n.divide(TABLE["Sum"](c), c.n.number(float(len(c.inputs)), c[0]))


@op("Clip")
def _clip(c: Call) -> Tensor:
    x, low, high = c[0], c[1], c[2]
    if not isinstance(x, Real):
        return np.minimum(np.maximum(x, x if low is None else low), x if high is None else high)
    bounds = [
        v if v is not None else (None if (given := c.get(name)) is None else c.n.number(given, x))
        for v, name in ((low, "min"), (high, "max"))
    ]
    if any(bound is not None and bound.size != 1 for bound in bounds):
        raise ValueError("a bound is not one number")
    x = x if bounds[0] is None else c.n.larger(x, bounds[0])
    return x if bounds[1] is None else c.n.smaller(x, bounds[1])


@op("CumSum")
def _cumsum(c: Call) -> Tensor:
    axis, x = int(c[1]), c[0]
    if c.get("exclusive", 0) or c.get("reverse", 0):
        raise Undecided("CumSum in another order")
    if isinstance(x, Real):
        return c.n.fixed(Real(x.m.cumsum(axis) % c.n.p, x.f.cumsum(axis), x.type, x.known))
    return x.cumsum(axis).astype(x.dtype)


# Reductions


def _reduction(real: Callable[[Numbers, Real, tuple[int, ...]], Real], whole: Callable[..., Any] | None) -> Any:
    def evaluate(c: Call) -> Tensor:
        axes, keep = c.axes(), bool(c.get("keepdims", 1))
        if not axes:
            if c.get("noop_with_empty_axes", 0):
                return c[0]
            axes = list(range(c.rank()))
        if not isinstance(c[0], Real):
            if whole is None:
                raise Undecided(f"{c.node.op} of integers")
            return np.asarray(whole(c[0], axis=tuple(axes), keepdims=keep)).astype(c[0].dtype)
        result = real(c.n, c[0], tuple(axes))
        return result if keep else moved(result, lambda a: a.squeeze(tuple(axes)))

    return evaluate


def mean_of(n: Numbers, x: Real, axes: tuple[int, ...]) -> Real:
    """Return means over axes, which stay."""
    total = n.sum(x, axes, keep=True)
    count = math.prod(x.shape[a] for a in axes)
    if not count:
        return n.fixed(Real(total.m, np.full(total.shape, np.nan), x.type, x.known))
    return n.divide(total, n.number(float(count), x))


def _product_of(n: Numbers, x: Real, axes: tuple[int, ...]) -> Real:
    if len(axes) != 1:
        raise Undecided("a product over several axes")
    parts = [x.map(lambda a, k=k: a.take([k], axes[0])) for k in range(x.shape[axes[0]])]
    result = parts[0]
    for part in parts[1:]:
        result = n.multiply(result, part)
    return result


def largest(n: Numbers, x: Real, axes: tuple[int, ...], sign: int = 1) -> Real:
    """Return the largest elements over axes, which stay; with sign -1, the smallest."""
    rest = [a for a in range(len(x.shape)) if a not in axes]
    flat = x.map(lambda a: a.transpose([*rest, *axes]).reshape([*(a.shape[k] for k in rest), -1]))
    if not flat.shape[-1]:
        raise Undecided("the largest of no elements")
    place = np.argmax(sign * n.row_order(flat, (flat.f.ndim - 1,)), -1)[..., None]
    shape = [1 if k in axes else s for k, s in enumerate(x.shape)]
    return flat.map(lambda a: np.take_along_axis(a, place, -1).reshape(shape))


op("ReduceSum")(_reduction(lambda n, x, axes: n.sum(x, axes, keep=True), np.sum))
op("ReduceMean")(_reduction(mean_of, None))
op("ReduceProd")(_reduction(_product_of, np.prod))
op("ReduceMax")(_reduction(largest, np.max))
op("ReduceMin")(_reduction(lambda n, x, axes: largest(n, x, axes, -1), np.min))


@op("ArgMax", "ArgMin")
def _arg_max(c: Call) -> Tensor:
    axis, sign = c.get("axis", 0), 1 if c.node.op == "ArgMax" else -1
    keys = sign * (c.n.row_order(c[0], (axis,)) if isinstance(c[0], Real) else c[0].astype(np.float64))
    place = keys.shape[axis] - 1 - np.argmax(np.flip(keys, axis), axis) if c.get("select_last_index", 0) else None
    place = np.argmax(keys, axis) if place is None else place
    return np.expand_dims(place, axis) if c.get("keepdims", 1) else place


@op("TopK")
def _top_k(c: Call) -> Tensor:
    axis, count = c.get("axis", -1), (c.ints(1, "k") or [0])[0]
    keys = c.n.row_order(c[0], (axis % c.rank(),)) if isinstance(c[0], Real) else c[0].astype(np.float64)
    order = np.argsort(-keys if c.get("largest", 1) else keys, axis, kind="stable").take(range(count), axis)
    return moved(c[0], lambda a: np.take_along_axis(a, order, axis)), order


# Products, convolutions and pooling


@op("MatMul")
def _matmul(c: Call) -> Tensor:
    return c.n.matmul(c[0], c[1]) if isinstance(c[0], Real) else np.matmul(c[0], c[1])


@op("Gemm")
def _gemm(c: Call) -> Tensor:
    n = c.n
    a, b = (moved(v, np.transpose) if c.get(t, 0) else v for v, t in ((c[0], "transA"), (c[1], "transB")))
    if not isinstance(a, Real):
        raise Undecided("Gemm of integers")
    result = n.matmul(a, b)
    alpha, beta = c.get("alpha", 1.0), c.get("beta", 1.0)
    result = result if alpha == 1.0 else n.multiply(n.stored(np.array(alpha)), result)
    if c[2] is None:
        return result
    return n.add(result, c[2] if beta == 1.0 else n.multiply(n.stored(np.array(beta)), c[2]))


@op("Einsum")
def _einsum(c: Call) -> Tensor:
    terms, _, out = c.get("equation").replace(" ", "").partition("->")
    parts = terms.split(",")
    if "." in terms or len(set("".join(parts))) > 20 or any(len(set(p)) < len(p) for p in parts) or not _:
        raise Undecided("this Einsum")
    letters = list(dict.fromkeys(out + "".join(parts)))
    result = None
    for value, part in zip(c.inputs, parts, strict=True):
        perm = sorted(range(len(part)), key=lambda k, part=part: letters.index(part[k]))
        shape = [value.shape[part.index(x)] if x in part else 1 for x in letters]
        value = moved(value, lambda a, perm=perm, shape=shape: a.transpose(perm).reshape(shape))
        result = value if result is None else c.n.multiply(result, value)
    if result.size > 1 << 24:
        raise Undecided("a large Einsum")
    return c.n.sum(result, tuple(range(len(out), len(letters))))


def _windows(c: Call, x: Tensor, kernel: Sequence[int], fill: tuple[int, float]) -> Tensor:
    """Return the windows of a convolution or pooling: batch, channels, places, elements of the kernel."""
    spatial, count = x.shape[2:], len(kernel)
    strides, dilations = c.get("strides") or [1] * count, c.get("dilations") or [1] * count
    pads, auto = list(c.get("pads") or [0] * 2 * count), c.get("auto_pad", "NOTSET")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=False)]
    if auto.startswith("SAME"):
        need = [max((-(-s // t) - 1) * t + r - s, 0) for s, t, r in zip(spatial, strides, reach, strict=False)]
        small, large = [v // 2 for v in need], [v - v // 2 for v in need]
        pads = [*small, *large] if auto == "SAME_UPPER" else [*large, *small]
    if c.get("ceil_mode", 0):
        for k, (s, t, r) in enumerate(zip(spatial, strides, reach, strict=False)):
            whole = -(-(s + pads[k] + pads[k + count] - r) // t)
            whole -= (whole * t) >= s + pads[k]
            pads[k + count] = max(pads[k + count], whole * t + r - s - pads[k])
    widths = [(0, 0), (0, 0), *((pads[k], pads[k + count]) for k in range(count))]

    def cut(a: Array, value: float) -> Array:
        a = np.pad(a, widths, constant_values=value)
        seen = np.lib.stride_tricks.sliding_window_view(a, reach, tuple(range(2, 2 + count)))
        steps = (slice(None), slice(None), *(slice(None, None, t) for t in strides))
        return seen[(*steps, *(slice(None, None, d) for d in dilations))]

    return Real(cut(x.m, fill[0]), cut(x.f, fill[1]), x.type, x.known)


@op("Conv")
def _conv(c: Call) -> Tensor:
    x, w, n, groups = c[0], c[1], c.n, c.get("group", 1)
    if not isinstance(x, Real):
        raise Undecided("Conv of integers")
    count = len(x.shape) - 2
    seen = _windows(c, x, w.shape[2:], (0, 0.0))
    places = seen.shape[2 : 2 + count]
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError("the channels do not fit")
    perm = [0, 1, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count)]
    shape = [x.shape[0], groups, math.prod(places), math.prod(w.shape[1:])]
    rows = seen.map(lambda a: a.reshape(a.shape[0], groups, w.shape[1], *a.shape[2:]).transpose(perm).reshape(shape))
    kernels = w.map(lambda a: a.reshape(groups, w.shape[0] // groups, -1).transpose(0, 2, 1))
    result = n.matmul(rows, kernels).map(lambda a: a.transpose(0, 1, 3, 2).reshape(x.shape[0], w.shape[0], *places))
    return result if c[2] is None else n.add(result, c[2].map(lambda a: a.reshape(-1, *[1] * count)))


@op("MaxPool")
def _max_pool(c: Call) -> Tensor:
    if len([v for v in c.node.outputs if v is not None]) > 1 or not isinstance(c[0], Real):
        raise Undecided("MaxPool with places")
    seen = c.n.fixed(_windows(c, c[0], c.get("kernel_shape"), (0, -np.inf)))
    count = len(c[0].shape) - 2
    axes = tuple(range(2 + count, 2 + 2 * count))
    return largest(c.n, seen, axes).map(lambda a: a.squeeze(axes))


@op("AveragePool")
def _average_pool(c: Call) -> Tensor:
    if c.get("ceil_mode", 0):
        raise Undecided("AveragePool with ceil_mode")
    kernel, n, x = c.get("kernel_shape"), c.n, c[0]
    axes = tuple(range(2 + len(kernel), 2 + 2 * len(kernel)))
    total = n.sum(_windows(c, x, kernel, (0, 0.0)), axes)
    if c.get("count_include_pad", 0):
        return n.divide(total, n.number(float(math.prod(kernel)), x))
    ones = Real(np.ones(x.shape, np.int64), np.ones(x.shape), x.type)
    return n.divide(total, n.sum(_windows(c, ones, kernel, (0, 0.0)), axes))


@op("GlobalAveragePool")
def _global_average(c: Call) -> Tensor:
    return mean_of(c.n, c[0], tuple(range(2, c.rank())))


@op("GlobalMaxPool")
def _global_max(c: Call) -> Tensor:
    return largest(c.n, c[0], tuple(range(2, c.rank())))


@op("BatchNormalization")
def _batch_norm(c: Call) -> Tensor:
    if c.get("training_mode", 0) or len([v for v in c.node.outputs if v is not None]) > 1:
        raise Undecided("BatchNormalization in training")
    n, x = c.n, c[0]
    scale, shift, mean, variance = (v.map(lambda a: a.reshape(-1, *[1] * (c.rank() - 2))) for v in c.inputs[1:5])
    root = n.sqrt(n.add(variance, n.stored(np.array(np.float32(c.get("epsilon", 1e-5))))))
    return n.add(n.multiply(n.subtract(x, mean), n.divide(scale, root)), shift)


@op("InstanceNormalization")
def _instance_norm(c: Call) -> Tensor:
    n, x, axes = c.n, c[0], tuple(range(2, c.rank()))
    scale, shift = (v.map(lambda a: a.reshape(-1, *[1] * len(axes))) for v in c.inputs[1:3])
    centered = n.subtract(x, mean_of(n, x, axes))
    variance = mean_of(n, n.multiply(centered, centered), axes)
    root = n.sqrt(n.add(variance, n.stored(np.array(np.float32(c.get("epsilon", 1e-5))))))
    return n.add(n.multiply(n.divide(centered, root), scale), shift)


@op("Softmax", "LogSoftmax")
def _softmax(c: Call) -> Tensor:
    n, x, axis = c.n, c[0], c.get("axis", -1 if c.node.version >= 13 else 1)
    if c.node.version < 13:  # over all axes from this one on
        axis += c.rank() if axis < 0 else 0
        axes = tuple(range(axis, c.rank()))
    else:
        axes = (axis % c.rank(),)
    if not x.size:
        return x
    shifted = n.subtract(x, largest(n, x, axes))
    powers = n.exp(shifted)
    total = n.sum(powers, axes, keep=True)
    return n.divide(powers, total) if c.node.op == "Softmax" else n.subtract(shifted, n.log(total))


@op("DequantizeLinear")
def _dequantize(c: Call) -> Tensor:
    x, scale, zero, n = c[0], c[1], c[2], c.n
    if c.get("block_size", 0) or isinstance(x, Real):
        raise Undecided("DequantizeLinear in blocks")
    axis = c.get("axis", 1) % max(c.rank(), 1)
    shape = [-1 if k == axis else 1 for k in range(c.rank())] if scale.size > 1 else []
    scale = scale.map(lambda a: a.reshape(shape))
    whole = x.astype(np.int64) - (0 if zero is None else zero.astype(np.int64).reshape(shape))
    return n.multiply(n.integers(whole, scale.type), scale)
