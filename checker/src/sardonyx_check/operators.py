"""What operators compute on exact numbers.

On integers, truth values and strings, the reference implementation in the onnx package computes all operators. On real
numbers there are four kinds: `LINEAR` ones move, add or multiply elements, so that the reference computes them on
residues and on doubles. `TABLE` defines others. What has a function in the ONNX standard is computed by that. Any other
operator is a random function of its inputs.
"""
# pyright: reportSelfClsParameterName=false

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference.ops import load_op

from sardonyx_check.numbers import STORED, Array, Numbers, Real, Undecided

Tensor = Any  # Real, an array of integers, truth values or strings, a list of these, or None
FLOATS = {1, 10, 11, 16, *range(17, 21), 23, 24, 25}  # ONNX element types that are real numbers here
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
LINEAR = {
    *("Add", "Sub", "Mul", "Neg", "Sum", "ReduceSum", "CumSum", "Einsum"),
    *("Identity", "Dropout", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile", "Concat"),
    *("Split", "Slice", "Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements", "Where", "Trilu"),
    *("Pad", "OneHot", "Compress", "ReverseSequence", "DepthToSpace", "SpaceToDepth"),
    *("SplitToSequence", "ConcatFromSequence", "SequenceConstruct", "SequenceAt"),
}
_OF_DOUBLES = {"Shape", "Size", "SequenceLength", "IsNaN", "IsInf"}
_MOST_OPAQUE = 1 << 16  # elements


class Call:
    """A node with the values of its inputs; the methods with the names of operators define them on real numbers."""

    def __init__(
        self, proto: onnx.NodeProto, version: int, inputs: Sequence[Tensor], n: Numbers, standard: Callable[..., Tensor]
    ) -> None:
        """`standard` evaluates an operator of the ONNX standard: its name, inputs and attributes."""
        self.proto, self.op, self.version, self.inputs = proto, proto.op_type, version, inputs
        self.n, self.standard = n, standard
        self._attributes = {a.name: a for a in proto.attribute}

    def __getitem__(self, index: int) -> Tensor:
        return self.inputs[index] if index < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        value = helper.get_attribute_value(self._attributes[name]) if name in self._attributes else default
        return value.decode() if isinstance(value, bytes) else value

    def results(self, *, has_function: bool) -> Sequence[Tensor] | None:
        """Return the outputs, or None if a function of the standard is to compute them."""
        single = [x for v in self.inputs for x in (v if isinstance(v, list) else [v])]
        reals, name = [x for x in single if isinstance(x, Real)], f"{self.proto.domain}::{self.op}".removeprefix("::")
        if self.op == "Cast" or (reals and name in TABLE):
            result = TABLE[name](self)
            return result if isinstance(result, tuple) else (result,)
        if self.proto.domain or self.op in RANDOM:
            raise Undecided(f"operator {self.op} is not supported")
        if self.op in _OF_DOUBLES or not reals:
            if self.op == "ReduceMean" or (self.op in ("Div", "Mod") and (self[1] == 0).any()):
                raise Undecided(f"{self.op} of integers")
            return [_each(self._lifted, value) for value in self._reference("f")]
        if self.op in LINEAR:
            self._refuse_unchecked()
            both = zip(self._reference("m"), self._reference("f"), strict=True)
            return [_each(lambda m, f: self.n.real(m, f, *reals), m, f) for m, f in both]
        return None if has_function else self._opaque(reals)

    def _reference(self, part: str) -> Sequence[Tensor]:
        """Return what the reference implementation of the ONNX standard computes on residues or doubles."""
        inputs = [_each(lambda x: getattr(x, part) if isinstance(x, Real) else x, value) for value in self.inputs]
        return _implementation(self.proto.SerializeToString(), self.version).run(*inputs)

    def _lifted(self, value: Array) -> Tensor:
        """Return floats of the reference implementation as real numbers."""
        type_ = 8 if value.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(value.dtype)
        return self.n.stored(value, type_) if type_ in FLOATS else value

    def _refuse_unchecked(self) -> None:
        """Refuse what the reference implementation does not check, or computes with other numbers than the inputs."""
        many = self.op == "Einsum" and len(self.inputs) > 2
        if many or self.get("value") or self.get("reduction", "none") != "none":
            raise Undecided(f"this {self.op}")
        sizes = self[1] if self.version >= 13 else self.get("split")
        if self.op == "Split" and sizes is not None and sum(sizes) != self[0].shape[self.get("axis", 0)]:
            raise ValueError("the parts do not add up")
        if self.op == "Pad" and (np.asarray(self.get("pads") if self[1] is None else self[1]) < 0).any():
            raise Undecided("Pad that removes elements")

    def _opaque(self, reals: list[Real]) -> Sequence[Tensor]:
        """Return a random function of all inputs; of other outputs than real numbers, one order only is tried."""
        if sum(v.f.size for v in reals) > _MOST_OPAQUE:
            raise Undecided(f"a large {self.op}")
        given = [(np.shape(v), np.asarray(v.m if isinstance(v, Real) else v).tolist()) for v in self.inputs]
        outputs = self._reference("f")
        if self.n.free and any(v.dtype != np.float64 for v in outputs):
            raise Undecided(f"{self.op} depends on the order")
        key = hashlib.sha256(self.proto.SerializeToString() + repr(given).encode()).hexdigest()
        draw = functools.partial(self.n.random, type=reals[0].type, known=min(v.known for v in reals))
        return [draw(v, key=f"{key} {k}") if v.dtype == np.float64 else v for k, v in enumerate(outputs)]

    # Parts of definitions

    @property
    def spatial(self) -> tuple[int, ...]:
        """The axes after batch and channels."""
        return tuple(range(2, self[0].rank))

    def channels(self, index: int) -> Real:
        """Return an input with one number for each channel, so that it broadcasts."""
        return self[index].map(lambda a: a.reshape(-1, *[1] * len(self.spatial)))

    def reduced(self, reduce: Callable[[Real, tuple[int, ...]], Real]) -> Real:
        """Reduce axes, which are an input or an attribute."""
        given, rank = self.get("axes", ()) if self[1] is None else self[1], self[0].rank
        everything = () if self.get("noop_with_empty_axes") else range(rank)
        result = reduce(self[0], axes := tuple(int(a) % rank for a in given) or tuple(everything))
        return result if self.get("keepdims", 1) else result.map(lambda a: a.squeeze(axes))

    def windows(self, x: Real, kernel: Sequence[int], fill: float) -> tuple[Real, tuple[int, ...]]:
        """Return windows (batch, channels, places, elements of the kernel), and the shape of the places."""
        count = len(kernel)
        strides, dilations = self.get("strides") or [1] * count, self.get("dilations") or [1] * count
        pads = self.get("pads") or [0] * 2 * count
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        if self.get("ceil_mode") or self.get("auto_pad", "NOTSET") != "NOTSET":
            raise Undecided(f"{self.op} with computed pads")
        widths = [(0, 0), (0, 0), *((pads[k], pads[k + count]) for k in range(count))]
        steps = [slice(None)] * 2 + [slice(None, None, t) for t in (*strides, *dilations)]

        def cut(a: Array) -> Array:
            a = np.pad(a, widths, constant_values=fill if a.dtype == np.float64 else 0)
            return np.lib.stride_tricks.sliding_window_view(a, reach, self.spatial)[tuple(steps)]

        seen = x.map(cut)
        places = seen.shape[2 : 2 + count]
        shape = (*x.shape[:2], math.prod(places), math.prod(kernel))
        return self.n.real(seen.m.reshape(shape), seen.f.reshape(shape), x), places

    def pooled(self, x: Real, fill: float, reduce: Callable[[Real, tuple[int, ...]], Real]) -> Real:
        """Reduce windows."""
        seen, places = self.windows(x, self.get("kernel_shape"), fill)
        return reduce(seen, (3,)).map(lambda a: a.reshape(*x.shape[:2], *places))

    def with_bias(self, x: Real, index: int) -> Real:
        """Add an optional input."""
        return x if self[index] is None else x + self[index]

    # Operators

    def Cast(c) -> Tensor:
        x, n, to = c[0], c.n, c.get("to")
        if to == onnx.TensorProto.STRING or (not isinstance(x, Real) and x.dtype.kind in "OU"):
            raise Undecided("numbers as strings")
        if to in FLOATS:
            return Real(n, x.m, x.f, to, x.known) if isinstance(x, Real) else n.integers(x, to)
        if isinstance(x, Real) and to == onnx.TensorProto.BOOL:
            return x.m != 0
        if isinstance(x, Real):
            x = n.hash("cast", x.m) % 97 if n.free and x.known != STORED else np.trunc(x.f).astype(np.int64)
        return x.astype(helper.tensor_dtype_to_np_dtype(to))

    def Range(c) -> Tensor:
        start, end, step = (x.f.item() for x in c.inputs)
        if any(x.known != STORED for x in c.inputs):
            raise Undecided("a Range of any numbers")
        return c[0] + c.n.integers(np.arange(max(math.ceil((end - start) / step), 0))) * c[2]

    def Pow(c) -> Tensor:
        x, y, n = c[0], c[1], c.n
        if not isinstance(x, Real):
            raise Undecided("an integer to the power of a real number")
        y = y if isinstance(y, Real) else n.integers(y, x.type)
        f, twice = np.power(x.f, y.f), float(y.f.reshape(-1)[0]) * 2 if y.f.size else 0.0
        if y.known != STORED or not (y.f * 2 == twice).all() or twice != round(twice) or abs(twice) > 128:
            return n.function("pow", f, x, y)
        count = abs(int(twice))
        m = n.power(x.m, count // 2) if count % 2 == 0 else n.power(n.root(x.m), count)
        return n.real(np.broadcast_to(n.inverse(m) if twice < 0 else m, f.shape), f, x, y)

    def product(c) -> Real:
        """Return a matrix product of operands that may be transposed, times alpha."""
        a, b = (v.map(lambda m: m.swapaxes(-1, -2)) if c.get(t) else v for v, t in ((c[0], "transA"), (c[1], "transB")))
        return a @ b * c.n.literal(c.get("alpha", 1.0))

    def Gemm(c) -> Tensor:
        return c.product() if c[2] is None else c.product() + c[2] * c.n.literal(c.get("beta", 1.0))

    def Conv(c) -> Tensor:
        x, w, groups = c[0], c[1], c.get("group", 1)
        if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ValueError("the channels do not fit")
        seen, places = c.windows(x, w.shape[2:], 0.0)
        split, rows = (x.shape[0], groups, w.shape[1], *seen.shape[2:]), (seen.shape[2], math.prod(w.shape[1:]))
        left = seen.map(lambda a: a.reshape(split).swapaxes(2, 3).reshape(x.shape[0], groups, *rows))
        kernels = w.map(lambda a: a.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2))
        result = (left @ kernels).map(lambda a: a.swapaxes(2, 3).reshape(x.shape[0], w.shape[0], *places))
        return result if c[2] is None else result + c.channels(2)

    def MaxPool(c) -> Tensor:
        if len(c.proto.output) > 1:
            raise Undecided("MaxPool with places")
        return c.pooled(c[0], -np.inf, c.n.largest)

    def AveragePool(c) -> Tensor:
        ones = c.n.integers(np.ones(c[0].shape, np.int64), c[0].type)
        count = math.prod(c.get("kernel_shape")) if c.get("count_include_pad") else c.pooled(ones, 0.0, Real.sum)
        return c.pooled(c[0], 0.0, Real.sum) / count

    def BatchNormalization(c) -> Tensor:
        if c.get("training_mode") or len(c.proto.output) > 1:
            raise Undecided("BatchNormalization in training")
        scale, shift, mean, variance = map(c.channels, (1, 2, 3, 4))
        return (c[0] - mean) * (scale / c.n.sqrt(variance + c.n.literal(c.get("epsilon", 1e-5)))) + shift

    # Operators of ONNX Runtime

    def activated(c, x: Real) -> Tensor:
        """Return the activation that an attribute of a fused operator names, with its parameters."""
        name, both = c.get("activation"), [c.get("activation_alpha"), c.get("activation_beta")]
        given = c.get("activation_params") or [value for value in both if value is not None]
        if name == "Clip":
            return c.standard("Clip", x, *(c.n.literal(p, x.type) for p in given))
        return c.standard(name, x, **dict(zip(("alpha", "beta"), given, strict=False))) if name else x

    def FusedMatMul(c) -> Tensor:
        if c.get("transBatchA") or c.get("transBatchB"):
            raise Undecided("FusedMatMul with transposed batches")
        return c.product()

    def gelu(c, **attributes: str) -> Tensor:
        """Return a Gelu after an optional bias."""
        if c[1] is not None and c[1].shape != c[0].shape[-1:]:
            raise ValueError("the bias is not a vector of the last dimension")
        return c.standard("Gelu", c.with_bias(c[0], 1), **attributes)

    def SkipLayerNormalization(c) -> Tensor:
        if any(v is not None and v.shape != c[0].shape[-1:] for v in c.inputs[2:]) or c[1].shape != c[0].shape:
            raise ValueError("operands of other shapes")
        simplified = c.op == "SkipSimplifiedLayerNormalization"
        total = c.with_bias(c[0] + c[1], 3 if simplified else 4)
        name, operands = ("RMSNormalization", c.inputs[2:3]) if simplified else ("LayerNormalization", c.inputs[2:4])
        result = c.standard(name, total, *operands, axis=-1, epsilon=c.get("epsilon", 1e-5 if simplified else 1e-12))
        return result, None, None, total

    def packed_attention(c) -> Tensor:
        """Return the Attention of ONNX Runtime, which computes queries, keys and values by one product."""
        if c[3] is not None or c[4] is not None or c.get("unidirectional") or c.get("do_rotary"):
            raise Undecided("Attention with a mask index, a past or a direction")
        product = c.with_bias(c[0] @ c[1], 2)
        ends = np.cumsum(c.get("qkv_hidden_sizes") or [product.shape[-1] // 3] * 3)[:2]
        operands = [product.map(lambda a, k=k: np.split(a, ends, -1)[k]) for k in range(3)]
        given = {"q_num_heads": c.get("num_heads"), "kv_num_heads": c.get("num_heads"), "scale": c.get("scale")}
        return c.standard("Attention", *operands, c[5], **{name: value for name, value in given.items() if value})


@functools.cache
def _implementation(proto: bytes, version: int) -> Any:
    node = onnx.NodeProto.FromString(proto)
    settings = {"log": lambda *_: None, "opsets": {"": version}, "new_ops": None, "verbose": 0}
    return load_op("", node.op_type, version)(node, settings)


def _each(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Apply a function to values, or to each element of sequences."""
    if isinstance(values[0], list):
        return [_each(function, *each) for each in zip(*values, strict=True)]
    return function(*values)


def _function(name: str, f: Callable[[Array], Array], symmetry: str = "") -> Callable[[Call], Tensor]:
    return lambda c: c.n.function(name, f(c[0].f), c[0], symmetry=symmetry)


def _rounding(name: str, f: Callable[[Array], Array]) -> Callable[[Call], Tensor]:
    """Return an operator that rounds to integers; it is a random function if numbers are free."""

    def operator(c: Call) -> Tensor:
        x, whole = c[0], f(c[0].f)
        is_any = c.n.free and x.known != STORED
        return c.n.function(name, whole, x) if is_any else c.n.real(c.n.residues(whole), whole, x)

    return operator


_ORT = "com.microsoft::"
TABLE: dict[str, Callable[[Call], Tensor]] = {
    **{name: method for name, method in vars(Call).items() if name[0].isupper()},
    "Abs": lambda c: c.n.where(c.n.less(c[0], 0), c[0] * -1, c[0]),
    "Ceil": _rounding("ceil", np.ceil),
    "Cos": _function("cos", np.cos, "even"),
    "Div": lambda c: c[0] / c[1],
    "Equal": lambda c: c[0].m == c[1].m,
    "Erf": _function("erf", np.vectorize(math.erf, otypes=[np.float64]), "odd"),
    "Exp": lambda c: c.n.exp(c[0]),
    "Floor": _rounding("floor", np.floor),
    "GlobalAveragePool": lambda c: c[0].mean(c.spatial),
    "GlobalMaxPool": lambda c: c.n.largest(c[0], c.spatial),
    "Greater": lambda c: c.n.less(c[1], c[0]),
    "Less": lambda c: c.n.less(c[0], c[1]),
    "Log": _function("log", np.log),
    "MatMul": lambda c: c[0] @ c[1],
    "Max": lambda c: functools.reduce(c.n.larger, c.inputs),
    "Min": lambda c: functools.reduce(c.n.larger, (x * -1 for x in c.inputs)) * -1,
    "NonZero": lambda c: np.array(np.nonzero(c[0].m), np.int64),
    "Reciprocal": lambda c: 1 / c[0],
    "ReduceMax": lambda c: c.reduced(c.n.largest),
    "ReduceMean": lambda c: c.reduced(Real.mean),
    "ReduceMin": lambda c: c.reduced(lambda x, axes: c.n.largest(x * -1, axes) * -1),
    "Round": _rounding("round", np.rint),
    "Sigmoid": lambda c: 1 / (1 + c.n.exp(c[0] * -1)),
    "Sin": _function("sin", np.sin, "odd"),
    "Sqrt": lambda c: c.n.sqrt(c[0]),
    "Tanh": lambda c: 2 / (1 + c.n.exp(c[0] * -2)) - 1,
    _ORT + "Attention": Call.packed_attention,
    _ORT + "BiasGelu": Call.gelu,
    _ORT + "FastGelu": lambda c: c.gelu(approximate="tanh"),
    _ORT + "FusedConv": lambda c: c.activated(c.with_bias(c.Conv(), 3)),
    _ORT + "FusedGemm": lambda c: c.activated(c.Gemm()),
    _ORT + "FusedMatMul": Call.FusedMatMul,
    _ORT + "Gelu": Call.gelu,
    _ORT + "QuickGelu": lambda c: c[0] / (1 + c.n.exp(c[0] * c.n.literal(c.get("alpha", 1.702)) * -1)),
    _ORT + "SkipLayerNormalization": Call.SkipLayerNormalization,
    _ORT + "SkipSimplifiedLayerNormalization": Call.SkipLayerNormalization,
}
