"""The program of a model: its operations in order, the values each reads and writes, and the buffers they lie in.

A torch model is recorded while it runs and an ONNX file is read, both into this form, so that costs, fusion regions and
memory are computed by the same code. Sizes are integers or expressions in named dimensions (`batch`, `seq`).
"""

from __future__ import annotations

from enum import StrEnum
from itertools import groupby

from msgspec import Struct, field

from sardonyx.ir.shapes.expr import Size, add, multiply, product
from sardonyx.ir.shapes.polynomials import Monomial

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    **dict.fromkeys([f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)], 1),  # torch pads them to bytes
    **dict.fromkeys(["qint8", "quint8", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8"], 1),
    "bits16": 2,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "qint32": 4,
    "complex32": 4,
    "bcomplex32": 4,
    "complex64": 8,
    "complex128": 16,
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
    died: int | None = (
        None  # the step after which it was freed in the recorded run; None: not recorded, or it outlives the run
    )


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
    other_flops: Size = 0  # other arithmetic, by the table in operators/description.py
    workspace: Size = 0  # bytes allocated only while it runs
    role: str | None = None  # its part in an attention, if any

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
        base = str(atom) if not atom.args else f"({atom})"
        parts.append(base + (str(power).translate(_SUPERSCRIPTS) if power > 1 else ""))
    return ("-" if factor == -1 and atoms else "") + "·".join(parts)
