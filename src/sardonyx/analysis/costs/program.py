"""A model as the list of operations it carries out: what each reads and writes, and which memory that lies in.

Both worlds become this, torch by being watched while it runs and an ONNX file by being read, so that costs, fused
regions and memory are worked out once. Sizes are integers or expressions in named dims (`batch`, `seq`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sardonyx.ir.shapes.expr import Size, add, multiply, product

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
    **dict.fromkeys([f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)], 1),  # torch fills up bytes
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
    "complex64": 8,
    "complex128": 16,
}


class OpKind(StrEnum):
    """What an operation is to those who ask what it costs and what it fuses with."""

    MATMUL = "matmul"  # a linear layer where it reads a weight, else a product of two activations
    CONVOLUTION = "convolution"
    ATTENTION = "attention"  # a whole attention as one kernel
    SOFTMAX = "softmax"
    NORM = "norm"  # over the features of one item: layer, rms, group, instance
    BATCH_NORM = "batch-norm"
    ACTIVATION = "activation"  # gelu, relu, silu, tanh, …
    ARITHMETIC = "arithmetic"  # add, mul, … element by element
    SELECT = "select"  # where, masked_fill, comparisons, casts: element by element, no arithmetic
    DROPOUT = "dropout"
    REDUCTION = "reduction"
    RECURRENT = "recurrent"
    VIEW = "view"  # moves nothing
    COPY = "copy"  # moves bytes and computes nothing: clone, transpose into memory, cat, pad
    LOOKUP = "lookup"  # gather, embedding
    CREATE = "create"  # makes a tensor out of nothing: arange, full
    OTHER = "other"


class Store(StrEnum):
    """Whose memory it is."""

    WEIGHT = "weight"  # parameters, buffers, constants: there before the model runs and after
    INPUT = "input"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory, which a tensor shares with its views and with what is written into it in place."""

    bytes: Size
    store: Store
    module: str  # the module that made it, or that holds the weight
    born: int | None  # the step that made it; None: it was there before
    died: int | None = None  # the step after which it was seen to be let go; None: not watched, or it outlives the run


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor."""

    name: str
    shape: tuple[Size, ...]
    dtype: str  # "float32"
    buffer: int  # which of the program's buffers it lies in

    @property
    def elements(self) -> Size:
        """How many numbers it has."""
        return product(self.shape)

    @property
    def bytes(self) -> Size:
        """What reading or writing all of it moves."""
        return product((*self.shape, ITEM_BYTES[self.dtype]))


@dataclass(frozen=True, slots=True)
class Operation:
    """One step."""

    name: str  # unique in its program
    operator: str  # as its own world calls it: "aten.addmm", "MatMul", "com.microsoft::Attention"
    kind: OpKind
    module: str  # dotted path of the module that ran it; "" is the model
    reads: tuple[int, ...]  # values, each once
    writes: tuple[int, ...]
    macs: Size = 0  # multiply-adds of its matrix products
    other_flops: Size = 0  # arithmetic beside those, by the table in docs/memory.md
    workspace: Size = 0  # bytes that it holds only while it runs
    role: str | None = None  # its part in an attention, where it has one

    @property
    def flops(self) -> Size:
        """All arithmetic: two for each multiply-add, and the rest."""
        return add(multiply(2, self.macs), self.other_flops)


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in the order in which they run, on values in buffers."""

    operations: tuple[Operation, ...]
    values: tuple[Value, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[int, ...]  # values
    outputs: tuple[int, ...]  # values
    symbols: dict[str, int] = field(default_factory=dict[str, int])  # open dims -> their size in the example
    notes: tuple[str, ...] = ()
