"""Products, convolutions, pools, normalizations with statistics, and recurrent operators."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto

from sardonyx.ir.exact.arithmetic import converted, extreme
from sardonyx.ir.exact.call import Array, Invalid, OperatorCall, Undecided, Value, defines
from sardonyx.ir.exact.reals import Numbers, Real, joined


def _times(n: Numbers, x: Real, number: float) -> Real:
    return x if number == 1.0 else n.attribute(number, x.dtype) * x


def turned(x: Real) -> Real:
    """Return matrices transposed."""
    return x.moved(lambda v: np.swapaxes(v, -1, -2))


def product(numbers: Numbers, a: Value, b: Value) -> Value:
    """Return a matrix product of real numbers or integers."""
    try:
        return numbers.matmul(a, b) if isinstance(a, Real) else np.matmul(a, b)
    except ValueError as error:
        raise Invalid(str(error)) from None


@defines("MatMulInteger")
def _matmul_integer(call: OperatorCall) -> Value:
    a, b = call[0].astype(np.int32), call[1].astype(np.int32)
    if call[2] is not None:
        zero = call[2].astype(np.int32)
        a = a - (zero[..., None] if zero.ndim == 1 and zero.size > 1 else zero)
    if call[3] is not None:
        b = b - call[3].astype(np.int32)
    return np.matmul(a, b).astype(np.int32)


@defines("Gemm")
def _gemm(call: OperatorCall) -> Value:
    n = call.numbers
    a, b = call.real(0), call.real(1)
    result = product(n, turned(a) if call.get("transA", 0) else a, turned(b) if call.get("transB", 0) else b)
    result = _times(n, result, call.get("alpha", 1.0))
    return result if call[2] is None else result + _times(n, call.real(2), call.get("beta", 1.0))


@defines("Einsum")
def _einsum(call: OperatorCall) -> Value:
    """Return a sum of products over named axes, two operands at a time."""
    equation = call.text("equation", "").replace(" ", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    if "..." in equation:
        terms, right = _without_ellipsis(
            terms, right, [len(operand.shape) for operand in call.operands], "->" in equation
        )
    if "->" not in equation and "..." not in equation:
        letters = "".join(terms)
        right = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    result, names = call.real(0), terms[0]
    result, names = _diagonal(result, names)
    for index in range(1, len(terms)):
        other, theirs = _diagonal(call.real(index), terms[index])
        kept = "".join(dict.fromkeys(n for n in names + theirs if n in right or n in "".join(terms[index + 1 :])))
        result, names = _contracted(call.numbers, result, names, other, theirs, kept), kept
    dropped = tuple(index for index, name in enumerate(names) if name not in right)
    if dropped:
        result = result.total(dropped)
        names = "".join(name for name in names if name in right)
    return result.moved(lambda v: np.transpose(v, [names.index(name) for name in right]))


def _without_ellipsis(terms: Sequence[str], right: str, ranks: Sequence[int], explicit: bool) -> tuple[list[str], str]:
    spare = [chr(code) for code in range(192, 222)]
    longest = max(rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "..." in term)
    names = "".join(spare[:longest])
    new: list[str] = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        new.append(term.replace("...", names[longest - count :]))
    if not explicit:
        letters = "".join(terms).replace(".", "")
        right = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return new, right.replace("...", names)


def _diagonal(x: Real, names: str) -> tuple[Real, str]:
    """Return an operand in which every name occurs once."""
    unique = "".join(dict.fromkeys(names))
    if unique == names:
        return x, names
    indices = [range(len(names))[names.index(name)] for name in unique]
    grid = np.ix_(*(np.arange(x.shape[index]) for index in indices))
    places = tuple(grid[unique.index(name)] for name in names)
    return x.moved(lambda v: v[places]), unique


def _contracted(numbers: Numbers, a: Real, left: str, b: Real, right: str, kept: str) -> Real:
    """Return the product of two operands summed over the names that are not kept."""
    shared = [name for name in left if name in right]
    batch = [name for name in shared if name in kept]
    inner = [name for name in shared if name not in kept]
    rows = [name for name in left if name not in shared]
    columns = [name for name in right if name not in shared]
    sizes = {**dict(zip(right, b.shape, strict=True)), **dict(zip(left, a.shape, strict=True))}
    for name in shared:
        if a.shape[left.index(name)] != b.shape[right.index(name)]:
            raise Undecided("Einsum that repeats an operand")

    def ordered(x: Real, names: str, groups: Sequence[Sequence[str]]) -> Real:
        axes = [names.index(name) for group in groups for name in group]
        shape = [sizes[name] for name in groups[0]]
        shape += [math.prod(sizes[name] for name in group) for group in groups[1:]]
        return x.moved(lambda v: np.transpose(v, axes).reshape(shape))

    result = numbers.matmul(ordered(a, left, (batch, rows, inner)), ordered(b, right, (batch, inner, columns)))
    names = [*batch, *rows, *columns]
    kept_axes = [names.index(name) for name in kept]
    result = result.moved(lambda v: v.reshape([sizes[name] for name in names]))
    order = [*kept_axes, *(axis for axis in range(len(names)) if axis not in kept_axes)]
    result = result.moved(lambda v: np.transpose(v, order))
    extra = tuple(range(len(kept_axes), len(names)))
    return result.total(extra) if extra else result


class _Window:
    """Where a window of a convolution or a pool lies: sizes, steps and borders of each spatial axis."""

    def __init__(self, call: OperatorCall, spatial: Sequence[int], kernel: Sequence[int]) -> None:
        count = len(spatial)
        self.kernel = list(kernel)
        self.strides = list(call.get("strides") or [1] * count)
        self.dilations = list(call.get("dilations") or [1] * count)
        self.reach = [d * (k - 1) + 1 for d, k in zip(self.dilations, self.kernel, strict=True)]
        pads = list(call.get("pads") or [0] * (2 * count))
        automatic = call.text("auto_pad", "NOTSET")
        self.before, self.after = pads[:count], pads[count:]
        ceiling = bool(call.get("ceil_mode", 0))
        self.extra = [0] * count  # beyond the last window where sizes are rounded up
        self.sizes: list[int] = []
        for axis, (size, step, reach) in enumerate(zip(spatial, self.strides, self.reach, strict=True)):
            if automatic in ("SAME_UPPER", "SAME_LOWER"):
                needed = max(0, (-(-size // step) - 1) * step + reach - size)
                small, large = needed // 2, needed - needed // 2
                upper = automatic == "SAME_UPPER"
                self.before[axis], self.after[axis] = (small, large) if upper else (large, small)
            elif automatic == "VALID":
                self.before[axis], self.after[axis] = 0, 0
            spare = size + self.before[axis] + self.after[axis] - reach
            if spare < 0:
                raise Invalid("a window is larger than the tensor")
            out = spare // step + 1
            if ceiling and spare % step and out * step < size + self.before[axis]:
                out += 1  # the last window starts inside the tensor or its first border
            self.extra[axis] = max(0, (out - 1) * step - spare)
            self.sizes.append(out)

    def rows(self, x: Real, fill: float = 0.0) -> Real:
        """Return [batch, channels, windows..., elements of a window]."""
        widths = [(0, 0), (0, 0)]
        widths += [(b, a + e) for b, a, e in zip(self.before, self.after, self.extra, strict=True)]
        padded = Real(np.pad(x.residues, widths), np.pad(x.doubles, widths, constant_values=fill), x.dtype)
        axes, shape = tuple(range(2, x.ndim)), (*x.shape[:2], *self.sizes, math.prod(self.kernel))
        steps = (..., *(slice(None, None, step) for step in (*self.strides, *self.dilations)))
        return padded.moved(lambda v: sliding_window_view(v, self.reach, axes)[steps].reshape(shape))


def convolved(call: OperatorCall, x: Real, weight: Real, bias: Real | None) -> Real:
    """Return a convolution with the attributes of a call."""
    n, groups = call.numbers, call.get("group", 1)
    window = _Window(call, x.shape[2:], weight.shape[2:])
    channels = weight.shape[1]
    if x.shape[1] != channels * groups:
        raise Invalid("channels that do not fit")
    rows = window.rows(x)  # [b, c, out..., k]
    batch, out = x.shape[0], math.prod(window.sizes)
    size = math.prod(weight.shape[2:])
    apart, together = (batch, groups, channels, out, size), (batch, groups, out, channels * size)
    left = rows.moved(lambda v: v.reshape(apart).transpose(0, 1, 3, 2, 4).reshape(together))
    right = weight.moved(lambda v: v.reshape(groups, v.shape[0] // groups, channels * size).transpose(0, 2, 1))
    result = n.matmul(left, right).moved(lambda v: np.swapaxes(v, 2, 3).reshape(batch, weight.shape[0], *window.sizes))
    return result if bias is None else result + _per_channel(bias, result.ndim)


def _per_channel(x: Real, rank: int) -> Real:
    return x.moved(lambda v: v.reshape(-1, *[1] * (rank - 2)))


@defines("ConvTranspose")
def _conv_transpose(call: OperatorCall) -> Value:
    """Return the adjoint of a convolution: every element is spread over a window."""
    x, weight, n, groups = call.real(0), call.real(1), call.numbers, call.get("group", 1)
    spatial, kernel = x.shape[2:], weight.shape[2:]
    count = len(spatial)
    strides, dilations = call.get("strides") or [1] * count, call.get("dilations") or [1] * count
    beyond = call.get("output_padding") or [0] * count
    full = [
        s * (i - 1) + d * (k - 1) + 1 + o
        for s, i, d, k, o in zip(strides, spatial, dilations, kernel, beyond, strict=True)
    ]
    pads = list(call.get("pads") or [0] * (2 * count))
    automatic, wanted = call.text("auto_pad", "NOTSET"), call.get("output_shape")
    if wanted is not None or automatic.startswith("SAME"):
        sizes = list(wanted)[-count:] if wanted is not None else [i * s for i, s in zip(spatial, strides, strict=True)]
        for axis in range(count):
            total = full[axis] - sizes[axis]
            if total < 0:
                raise Undecided("ConvTranspose to a larger shape")
            small = total // 2
            upper = automatic == "SAME_UPPER"
            pads[axis], pads[axis + count] = (small, total - small) if upper else (total - small, small)
    batch, width = x.shape[0], weight.shape[1]
    left = x.moved(lambda v: v.reshape(batch, groups, -1, math.prod(spatial)).swapaxes(2, 3))
    right = weight.moved(lambda v: v.reshape(groups, -1, width * math.prod(kernel)))
    spread = n.matmul(left, right).moved(lambda v: v.reshape(batch, groups, *spatial, width, *kernel))
    order = (0, 1, count + 2, *range(2, count + 2), *range(count + 3, 2 * count + 3))
    spread = spread.moved(lambda v: v.transpose(order).reshape(batch, groups * width, *spatial, *kernel))
    result = Real.of(np.zeros((batch, groups * width, *full)), x.dtype)
    for place in itertools.product(*map(range, kernel)):
        starts = [step * dilation for step, dilation in zip(place, dilations, strict=True)]
        at = tuple(slice(a, a + s * (i - 1) + 1, s) for a, s, i in zip(starts, strides, spatial, strict=True))

        def put(v: Array, place: tuple[int, ...] = place, at: tuple[slice, ...] = at) -> Array:
            zeros = np.zeros((batch, groups * width, *full), v.dtype)
            zeros[(slice(None), slice(None), *at)] = v[(..., *place)]
            return zeros

        result = result + spread.moved(put)
    crop = tuple(slice(pads[axis], full[axis] - pads[axis + count]) for axis in range(count))
    result = result.moved(lambda v: v[(slice(None), slice(None), *crop)])
    return result if call[2] is None else result + _per_channel(call.real(2), result.ndim)


@defines("AveragePool", "MaxPool", "LpPool")
def _pool(call: OperatorCall) -> Value:
    name, x, n = call.node.op_type, call.real(0), call.numbers
    window = _Window(call, x.shape[2:], call.get("kernel_shape"))
    if name == "MaxPool":
        if len(call.node.output) > 1:
            raise Undecided("MaxPool with indices")
        rows = window.rows(x, -np.inf)
        return extreme(n, rows, (rows.ndim - 1,), keepdims=False)
    rows = window.rows(x)
    if name == "LpPool":
        p = x.like(call.get("p", 2))
        return n.power(n.power(n.largest(rows, -rows), p).total(-1), 1 / p)
    ones = np.ones((1, 1, *x.shape[2:]))
    counted = Real.of(ones, x.dtype)
    if call.get("count_include_pad", 0):
        widths = [(0, 0), (0, 0), *zip(window.before, window.after, strict=True)]
        counted = Real.of(np.pad(ones, widths, constant_values=1), x.dtype)
        window.before, window.after = [0] * len(window.before), [0] * len(window.after)
    return rows.total(-1) / window.rows(counted).total(-1)


@defines("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(call: OperatorCall) -> Value:
    x = call.real(0)
    axes = tuple(range(2, x.ndim))
    return extreme(call.numbers, x, axes, keepdims=True) if call.node.op_type == "GlobalMaxPool" else _mean(x, axes)


def _mean(x: Real, axes: tuple[int, ...]) -> Real:
    return x.total(axes, keepdims=True) / math.prod(x.shape[axis] for axis in axes)


@defines("BatchNormalization")
def _batch_normalization(call: OperatorCall) -> Value:
    if call.get("training_mode", 0) or len([name for name in call.node.output if name]) > 1:
        raise Undecided("BatchNormalization in training mode")
    x = call.real(0)
    scale, shift, mean, variance = (_per_channel(call.real(index), x.ndim) for index in range(1, 5))
    return (x - mean) / _deviation(call, variance) * scale + shift


def _deviation(call: OperatorCall, variance: Real) -> Real:
    return (variance + call.numbers.attribute(call.get("epsilon", 1e-5), variance.dtype)).root()


@defines("InstanceNormalization")
def _instance_normalization(call: OperatorCall) -> Value:
    x = call.real(0)
    axes = tuple(range(2, x.ndim))
    centred = x - _mean(x, axes)
    scale, shift = (_per_channel(call.real(index), x.ndim) for index in (1, 2))
    return centred / _deviation(call, _mean(centred * centred, axes)) * scale + shift


@defines("LRN")
def _local_response(call: OperatorCall) -> Value:
    """Return every element divided by a power of the squares of nearby channels."""
    n, x, size = call.numbers, call.real(0), call.get("size")
    low, high = (size - 1) // 2, size // 2
    spans = [slice(max(0, channel - low), channel + high + 1) for channel in range(x.shape[1])]
    sums = joined([(x * x).moved(lambda v, span=span: v[:, span]).total(1, keepdims=True) for span in spans], 1)
    alpha, beta, bias = (
        n.attribute(call.get(name, default), x.dtype)
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    return x / n.power(bias + alpha / size * sums, beta)


def _along_axis(v: Array, axis: int, rank: int) -> Array:
    """Return scales or zero points in a shape that broadcasts: one for all elements, or one for each along an axis."""
    return v.reshape(()) if v.size == 1 else v.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


@defines("DequantizeLinear")
def _dequantize(call: OperatorCall) -> Value:
    x, scale, zero = call[0], call.real(1), call[2]
    if isinstance(x, Real) or call.get("block_size", 0):
        raise Undecided("DequantizeLinear of floats or in blocks")
    placed = functools.partial(_along_axis, axis=call.get("axis", 1), rank=x.ndim)
    numbers = x.astype(np.int64) - (0 if zero is None else placed(zero).astype(np.int64))
    return Real.of(numbers, scale.dtype) * scale.moved(placed)


@defines("LSTM", "GRU", "RNN")
def _recurrent(call: OperatorCall) -> Value:
    """Return the states of a recurrent layer, step by step, in one or both directions."""
    if call.get("layout", 0) or call.get("clip") or call[4] is not None or call.get("activations"):
        raise Undecided(f"{call.node.op_type} with lengths, a limit or activations of its own")
    x, own = call.real(0), call.real(2)
    direction = call.text("direction", "forward")
    both = direction == "bidirectional"
    hidden, batch = own.shape[-1], x.shape[1]
    outputs: list[Real] = []
    states: list[tuple[Real, Real]] = []
    for number in range(2 if both else 1):
        part = _Direction(call, number, hidden, batch)
        reverse = direction == "reverse" or number == 1
        sequence, last = part.run(x.moved(lambda v, r=reverse: v[::-1] if r else v))
        outputs.append(sequence.moved(lambda v, r=reverse: (v[::-1] if r else v)[:, None]))
        states.append(last)
    ends = [joined([state[i].moved(lambda v: v[None]) for state in states], 0) for i in range(2)]
    results = (joined(outputs, 1), *ends)
    return results if call.node.op_type == "LSTM" else results[:2]


class _Direction:
    """One direction of a recurrent layer."""

    def __init__(self, call: OperatorCall, number: int, hidden: int, batch: int) -> None:
        self._call, self._n, self._hidden = call, call.numbers, hidden

        def one(index: int) -> Real | None:
            return None if call[index] is None else call.real(index).moved(lambda v: v[number])

        self._kernel, self._own = (call.real(index).moved(lambda v: v[number]) for index in (1, 2))
        zeros = Real.of(np.zeros((batch, hidden)), call.real(0).dtype)
        self._bias, self._peepholes = one(3), one(7)
        self._state, self._cell = one(5) or zeros, one(6) or zeros

    def run(self, x: Real) -> tuple[Real, tuple[Real, Real]]:
        """Return the state after every step, and the last state and cell."""
        step: Callable[[Real], None] = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._call.node.op_type]
        steps: list[Real] = []
        for time in range(x.shape[0]):
            step(x.moved(lambda v, time=time: v[time]))
            steps.append(self._state.moved(lambda v: v[None]))
        if not steps:
            raise Undecided(f"{self._call.node.op_type} of no steps")
        return joined(steps, 0), (self._state, self._cell)

    def _weighted(self, x: Real | None, state: Real | None, index: int) -> Real:
        """Return a weighted sum of an input and a state, with the weights of the gate at an index."""
        gates = self._own.shape[0] // self._hidden
        terms: list[Real] = []
        for operand, weight, place in ((x, self._kernel, index), (state, self._own, gates + index)):
            if operand is None:
                continue
            rows = self._rows(index)
            terms.append(self._n.matmul(operand, weight.moved(lambda v, rows=rows: v[rows].T)))
            if self._bias is not None:
                terms.append(self._bias.moved(operator.itemgetter(self._rows(place))))
        return functools.reduce(operator.add, terms)

    def _rows(self, index: int) -> slice:
        return slice(index * self._hidden, (index + 1) * self._hidden)

    def _rnn(self, x: Real) -> None:
        self._state = self._n.apply("Tanh", self._weighted(x, self._state, 0))

    def _lstm(self, x: Real) -> None:
        if self._call.get("input_forget", 0):
            raise Undecided("LSTM with coupled gates")
        n = self._n

        def gate(index: int, cell: Real) -> Real:
            total, weights = self._weighted(x, self._state, index), self._peepholes
            total = total if weights is None else total + weights.moved(operator.itemgetter(self._rows(index))) * cell
            return n.apply("Sigmoid", total)

        kept = gate(2, self._cell) * self._cell
        self._cell = kept + gate(0, self._cell) * n.apply("Tanh", self._weighted(x, self._state, 3))
        self._state = gate(1, self._cell) * n.apply("Tanh", self._cell)

    def _gru(self, x: Real) -> None:
        update, reset = (self._n.apply("Sigmoid", self._weighted(x, self._state, gate)) for gate in (0, 1))
        if self._call.get("linear_before_reset", 0):
            candidate = self._weighted(x, None, 2) + reset * self._weighted(None, self._state, 2)
        else:
            candidate = self._weighted(x, reset * self._state, 2)
        self._state = (1 - update) * self._n.apply("Tanh", candidate) + update * self._state


# How coordinates are rounded where a whole factor repeats every pixel.
_REPEATS = {"asymmetric": ("floor",)} | dict.fromkeys(
    ("half_pixel", "pytorch_half_pixel"), ("round_prefer_floor", "round_prefer_ceil")
)


@defines("Upsample", "Resize")
def _resize(call: OperatorCall) -> Value:
    """Return an image of other sizes: the nearest pixel, or a mean of pixels weighted by distance."""
    x = call[0]
    undecided = Undecided("Resize other than by whole numbers to the nearest pixel")
    way = call.text("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    rounding = call.text("nearest_mode", "round_prefer_floor" if call.opset >= 11 else "floor")
    if call.text("mode", "nearest") != "nearest" or rounding not in _REPEATS.get(way, ()):
        raise undecided
    if call.get("axes") is not None or call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise undecided
    scales = _scales(call)
    if not all(scale >= 1 and scale == round(scale) for scale in scales):
        raise undecided

    def repeated(v: Array) -> Array:
        for axis, scale in enumerate(scales):
            v = np.repeat(v, round(scale), axis)
        return v

    return x.moved(repeated) if isinstance(x, Real) else repeated(x)


def _scales(call: OperatorCall) -> list[float]:
    x = call[0]
    if call.node.op_type == "Upsample":
        scales = call.get("scales") if call[1] is None else call.real(1).doubles.tolist()
        return [float(item) for item in scales]
    index = 2 if call.opset >= 11 else 1
    scales: Any = call[index]
    if scales is not None and scales.size:
        return [float(item) for item in scales.doubles]
    sizes = call.integers(3) or []
    return [new / old for new, old in zip(sizes, x.shape, strict=True)]


@defines("QuantizeLinear")
def _quantize(call: OperatorCall) -> Value:
    x, scale, zero = call.real(0), call.real(1), call[2]
    if call.get("block_size", 0) or isinstance(zero, Real):
        raise Undecided("QuantizeLinear in blocks or to floats")
    placed = functools.partial(_along_axis, axis=call.get("axis", 1), rank=x.ndim)
    steps = call.numbers.whole("Round", x / scale.moved(placed))
    target = np.dtype(np.uint8) if zero is None else zero.dtype
    limits = np.iinfo(target)
    whole = converted(call.numbers, steps, TensorProto.INT64) + (0 if zero is None else placed(zero).astype(np.int64))
    return np.clip(whole, limits.min, limits.max).astype(target)


defines("MatMul")(lambda call: product(call.numbers, call[0], call[1]))
defines("Conv")(lambda call: convolved(call, call.real(0), call.real(1), None if call[2] is None else call.real(2)))
