"""The program of a model: its operations in order, what each costs, and the buffers that its values lie in.

A torch model is recorded while it runs and an ONNX file is read, both into this form, so that costs, fusion regions and
memory are computed by the same code. Sizes are integers or expressions in named dimensions (`batch`, `seq`).

Multiply-adds are counted as in `torch.utils.flop_counter`, which counts two flops for each: every product over its full
size, so causal attention is not halved and padding counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby

from msgspec import Struct, field

from sardonyx.ir.shapes.expr import Atom, Monomial, Size, add, multiply, only_atom, product, total

_BY_ITEM_BYTES = {
    1: "bool qint8 quint8 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz "
    "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "float16 bfloat16 int16 uint16 bits16",
    4: "float32 int32 uint32 qint32 complex32 bcomplex32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
ITEM_BYTES = {
    **{name: size for size, names in _BY_ITEM_BYTES.items() for name in names.split()},
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 9)},  # torch pads those below a byte
}


class OpKind(StrEnum):
    """The kind of an operation, which decides what it costs and what it can be fused with."""

    MATMUL = "matmul"  # a linear layer if it reads a weight, otherwise a product of two activations
    CONVOLUTION = "convolution"
    ATTENTION = "attention"  # attention as one kernel
    SOFTMAX = "softmax"
    NORM = "norm"  # over the features of one item: layer, RMS, group, instance
    BATCH_NORM = "batch-norm"
    ACTIVATION = "activation"  # gelu, relu, silu, tanh, …
    ARITHMETIC = "arithmetic"  # elementwise: add, mul, …
    SELECT = "select"  # elementwise without arithmetic: where, masked_fill, comparisons, casts
    DROPOUT = "dropout"
    REDUCTION = "reduction"
    RECURRENT = "recurrent"
    VIEW = "view"  # moves no bytes
    COPY = "copy"  # moves bytes and computes nothing: clone, transpose into memory, cat, pad
    LOOKUP = "lookup"  # gather, embedding
    CREATE = "create"  # creates a tensor: arange, full
    OTHER = "other"


class Store(StrEnum):
    """What a buffer is used for."""

    WEIGHT = "weight"  # parameters, buffers, constants: they exist before and after the run
    INPUT = "input"
    ACTIVATION = "activation"


class Buffer(Struct, frozen=True):
    """A block of memory, which a tensor shares with its views and with results written in place."""

    bytes: Size
    store: Store
    module: str  # the module that allocates it, or that owns the weight
    born: int | None  # the step that allocates it; None: it exists before the run
    died: int | None = None  # the step after which the recorded run freed it; None: unknown, or it outlives the run


class Value(Struct, frozen=True):
    """A tensor."""

    name: str
    shape: tuple[Size, ...]
    dtype: str  # "float32"
    buffer: int  # index of its buffer in the program

    @property
    def elements(self) -> Size:
        """The number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> Size:
        """The bytes that reading or writing all of it moves."""
        return product((*self.shape, ITEM_BYTES[self.dtype]))


class Operation(Struct, frozen=True):
    """One step of a program."""

    name: str  # unique in its program
    operator: str  # "aten.addmm", "MatMul", "com.microsoft::Attention"
    kind: OpKind
    module: str  # dotted path of the module that runs it; "" is the model
    reads: tuple[int, ...]  # values, each once
    writes: tuple[int, ...]
    macs: Size = 0  # multiply-adds of its matrix products
    other_flops: Size = 0  # other arithmetic, by the tables below
    workspace: Size = 0  # bytes allocated only while it runs

    @property
    def flops(self) -> Size:
        """All arithmetic: two for each multiply-add, plus the rest."""
        return add(multiply(2, self.macs), self.other_flops)


class Program(Struct, frozen=True):
    """Operations in execution order, on values in buffers."""

    operations: tuple[Operation, ...]
    values: tuple[Value, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[int, ...]  # values
    outputs: tuple[int, ...]  # values
    symbols: dict[str, int] = field(default_factory=dict[str, int])  # dynamic dimensions -> their size in the example
    notes: tuple[str, ...] = ()


_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_size(size: Size) -> str:
    """Format a size with the highest powers first: `12·batch·seq² + 3072·batch·seq`."""
    if isinstance(size, int):
        return str(size)
    terms = sorted(size.terms, key=lambda term: (-len(term[0]), term[0]))
    text = " + ".join(_format_term(atoms, factor) for atoms, factor in terms)
    return text.replace("+ -", "− ")


def _format_term(atoms: Monomial, factor: int) -> str:
    parts = [str(factor)] if factor not in (1, -1) or not atoms else []
    for atom, same in groupby(atoms):
        power = len(list(same))
        base = _format_atom(atom)
        if atom.kind == "or" or (atom.kind in _BETWEEN and (factor, len(atoms)) != (1, 1)):
            base = f"({base})"
        parts.append(base + (str(power).translate(_SUPERSCRIPTS) if power > 1 else ""))
    return ("-" if factor == -1 and atoms else "") + "·".join(parts)


_BETWEEN = {"//": "//", "%": "%", "or": " or "}  # functions of sizes that are written between their arguments


def _format_atom(atom: Atom) -> str:
    """Format a dimension, or a function of sizes: seq//16, (2·seq + 1)//16, max(8, seq)."""
    if atom.kind not in _BETWEEN:
        return f"{atom.kind}({', '.join(map(format_size, atom.args))})" if atom.args else str(atom)
    return _BETWEEN[atom.kind].join(map(_format_side, atom.args))


def _format_side(size: Size) -> str:
    atom, text = only_atom(size), format_size(size)
    is_plain = text.isdecimal() or (atom is not None and atom.kind not in _BETWEEN)
    return text if is_plain else f"({text})"


ATTENTION_FLOPS = 6  # per score: scaled, and a softmax of five
RECURRENT_FLOPS = {"lstm": 30, "gru": 23, "rnn": 4}


class Description(Struct, frozen=True):
    """The kind and the costs of an operator."""

    kind: OpKind
    macs: Size = 0
    other_flops: Size = 0
    known: bool = True  # False: it is in no table, so its costs are missing, not zero


UNKNOWN = Description(OpKind.OTHER, known=False)


def floating(value: Value, factor: int | Size) -> Size:
    """Return `factor` flops for each element of a tensor; 0 if it has integers, since these are not flops."""
    return multiply(factor, value.elements) if value.dtype.startswith(("float", "bfloat", "complex")) else 0


def matrix_product(summed: Size, result: Value, *, more: int = 0) -> Description:
    """Describe a product that sums over so many elements, with `more` flops for each one of the result (a bias: 1)."""
    return Description(OpKind.MATMUL, multiply(summed, result.elements), floating(result, more))


def convolution(image: Value, weight: Value, result: Value, *, transposed: bool, more: int = 0) -> Description:
    """Describe a convolution: the filter is applied at every position of the result, or if transposed, of the image."""
    places = image if transposed else result
    return Description(OpKind.CONVOLUTION, product((places.elements, *weight.shape[1:])), floating(result, more))


def attention(query: Value, key: Value, value: Value, *, mask: bool) -> Description:
    """Describe both products of attention over the full lengths; the number of heads is that of the queries."""
    return attention_of(query, query.shape[:-1], key.shape[-2], query.shape[-1], value.shape[-1], mask=mask)


def attention_of(
    query: Value, rows: Sequence[Size], keys: Size, width: Size, value_width: Size, *, mask: bool
) -> Description:
    """Describe attention by its sizes: `rows` are batch, heads and queries; the widths are those of one head."""
    scores = product((*rows, keys))
    flops = multiply(ATTENTION_FLOPS + mask, scores) if floating(query, 1) != 0 else 0
    return Description(OpKind.ATTENTION, multiply(scores, add(width, value_width)), flops)


def recurrent(rows: Size, matrices: Sequence[Value], hidden: Size, cell: str) -> Description:
    """Describe a recurrent layer: each row of each step is multiplied with all matrices; `hidden` counts the states."""
    macs = product((rows, total(matrix.elements for matrix in matrices)))
    return Description(OpKind.RECURRENT, macs, multiply(RECURRENT_FLOPS[cell], hidden))


def einsum(call: OperatorUse) -> Description:
    """Describe an einsum: n - 1 multiply-adds for each combination of all indices of its n operands."""
    sizes: dict[str, Size] = {}
    operands = call.operands(len(call.reads))
    subscripts = str(call.attributes.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    for letters, operand in zip(subscripts, operands, strict=True):
        before, dots, after = letters.partition("...")
        hidden = len(operand.shape) - len(before) - len(after)  # axes of the ellipsis, numbered from the right
        middle = [f".{hidden - axis}" for axis in range(hidden)] if dots else []
        for letter, size in zip([*before, *middle, *after], operand.shape, strict=True):
            if sizes.get(letter, 1) == 1:  # an axis of size 1 is broadcast
                sizes[letter] = size
    macs = multiply(product(tuple(sizes.values())), max(1, len(operands) - 1))
    if len(operands) > 1:
        return Description(OpKind.MATMUL, macs, 0)
    return Description(OpKind.REDUCTION, 0, macs)


# Flops per element, in addition to the products.
#
# One for each addition, multiplication, division, maximum and each elementary function (exp, log, sqrt, tanh, erf, sin,
# power) in the usual formula, so that a fused function costs as much as its decomposition:
#
#     operator                        flops per element of the result
#     add, sub, mul, div, max, neg    1 (exp, log, sqrt, tanh, erf, sin, cos, pow, abs too)
#     rsqrt                           2: a root and a division
#     sigmoid                         4: 1 / (1 + exp(-x))
#     silu, hardswish                 5: x times its gate
#     quick gelu                      6: x sigmoid(1.702 x)
#     gelu                            5: x / 2 (1 + erf(x / sqrt 2))
#     gelu by tanh                    8: x / 2 (1 + tanh(c (x + 0.044715 x^3)))
#     softplus 3, mish 5, elu 3, leaky relu 2, clamp 2, lerp 3
#     softmax, log softmax            5: maximum, difference, exp, sum, division
#     layer, group, instance norm     5: sum, difference, square, sum, scaling; 1 more for a weight and for a bias
#     rms norm                        3: square, sum, scaling; 1 more for a weight
#     batch norm                      2 (scale and shift of a channel); 6 in training, which measures mean and variance
#     attention as one kernel         6 per score (scale, softmax); 1 more for a mask
#     lstm 30, gru 23, rnn 4          per state of each step: additions, gates, cell
#     bias of a product               1
#     interpolation                   linear 3, bilinear 7, trilinear 15, bicubic 31; nearest 0
#
#     reductions (sum, mean, max)     1 per element read; a norm 2, a variance 3
#     pooling                         1 per element of the window and result
#
# Comparisons, selections, casts, copies and lookups do no arithmetic. What is computed once for a row or channel (the
# root in a norm) is left out, and so is arithmetic on integers: both are negligible.

_ARITHMETIC = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "true_divide", "neg", "abs", "maximum", "minimum"), 1),
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "pow", "square", "reciprocal"), 1
    ),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"), 1),
    **dict.fromkeys(("atan2", "erf", "erfc", "erfinv", "floor", "ceil", "round", "trunc", "frac", "sign", "sgn"), 1),
    **dict.fromkeys(("remainder", "fmod", "floor_divide", "fmax", "fmin", "clamp_min", "clamp_max", "max", "min"), 1),
    **dict.fromkeys(("float_power", "ldexp", "angle", "deg2rad", "rad2deg"), 1),
    **dict.fromkeys(("rsqrt", "clamp", "clip", "addcmul", "addcdiv", "xlogy"), 2),
    **dict.fromkeys(("logaddexp", "logaddexp2", "lerp", "hypot", "logit", "polar"), 3),
}
_ACTIVATIONS = {
    **dict.fromkeys(("relu", "tanh", "threshold"), 1),
    **dict.fromkeys(("leaky_relu", "prelu", "hardtanh", "relu6", "rrelu_with_noise", "hardshrink", "softshrink"), 2),
    **dict.fromkeys(("elu", "softplus", "softsign"), 3),
    **dict.fromkeys(("selu", "celu", "sigmoid", "log_sigmoid", "log_sigmoid_forward", "hardsigmoid"), 4),
    **dict.fromkeys(("silu", "hardswish", "mish", "gelu", "glu"), 5),
    "quick_gelu": 6,
    "gelu_tanh": 8,
}
_SELECTING = (
    *("where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isin"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "nan_to_num", "tril", "triu"),
    *("isposinf", "isneginf", "signbit", "copysign", "heaviside"),
)

# name -> kind, flops per element of the result
ELEMENTWISE: Mapping[str, tuple[OpKind, int]] = {
    **{name: (OpKind.ARITHMETIC, flops) for name, flops in _ARITHMETIC.items()},
    **{name: (OpKind.ACTIVATION, flops) for name, flops in _ACTIVATIONS.items()},
    **dict.fromkeys(_SELECTING, (OpKind.SELECT, 0)),
}

# name -> flops per element read
REDUCTIONS: Mapping[str, int] = {
    **dict.fromkeys(("sum", "mean", "prod", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin"), 1),
    **dict.fromkeys(("all", "any", "cumsum", "cumprod", "nansum", "count_nonzero"), 1),
    **dict.fromkeys(("linalg_vector_norm", "norm"), 2),
    **dict.fromkeys(("var", "var_mean", "std", "std_mean", "logsumexp", "mse_loss"), 3),
}

# flops per element
SOFTMAX = 5  # maximum, difference, exp, sum, quotient
LAYER_NORM, RMS_NORM, BATCH_NORM, BATCH_NORM_IN_TRAINING = 5, 3, 2, 6

# name -> flops per element of the result
INTERPOLATION: Mapping[str, int] = {"nearest": 0, "linear": 3, "bilinear": 7, "trilinear": 15, "bicubic": 31}


# The rules of operators: from one use of an operator to its description.


class UnknownSize(Exception):
    """A size that the costs depend on is unknown, or the operator is used in an invalid way."""


class OperatorUse(Struct, frozen=True):
    """One use of an operator."""

    reads: Sequence[Value | None]  # None: omitted, or of unknown rank
    writes: Sequence[Value | None]
    attributes: Mapping[str, object]

    def optional(self, index: int) -> Value | None:
        """Return an input, or None if it is omitted."""
        return self.reads[index] if index < len(self.reads) else None

    def has(self, *indices: int) -> int:
        """Count which of these inputs are present."""
        return sum(self.optional(index) is not None for index in indices)

    def operand(self, index: int, rank: int | None = None) -> Value:
        """Return an input that must be present, with this rank if one is given."""
        value = self.optional(index)
        if value is None or (rank is not None and len(value.shape) != rank):
            raise UnknownSize
        return value

    def operands(self, count: int) -> list[Value]:
        """Return the first inputs, which must be present."""
        return [self.operand(index) for index in range(count)]

    @property
    def result(self) -> Value:
        """The first output."""
        if not self.writes or self.writes[0] is None:
            raise UnknownSize
        return self.writes[0]


Rule = Callable[[OperatorUse], Description]


def each(kind: OpKind, flops: int | Callable[[OperatorUse], int], *, read: bool = False) -> Rule:
    """Return the rule of an operator with flops for each element of its result, or if `read`, of its first input."""

    def rule(call: OperatorUse) -> Description:
        counted = call.operand(0) if read else call.result
        return Description(kind, 0, floating(counted, flops if isinstance(flops, int) else flops(call)))

    return rule


def norm_of(flops: int, *more: int) -> Rule:
    """Return the rule of a norm; each of these optional inputs (weight, bias, residual) adds one flop per element."""
    return each(OpKind.NORM, lambda call: flops + call.has(*more), read=True)


def gelu(call: OperatorUse) -> int:
    """Return the flops of a GELU."""
    return ELEMENTWISE["gelu_tanh" if call.attributes.get("approximate") == "tanh" else "gelu"][1]
