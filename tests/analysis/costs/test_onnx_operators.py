"""Costs of ONNX operators: computed by hand, and fused operators against the operators they replace."""

from __future__ import annotations

import onnx.defs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import integer
from sardonyx.ir.shapes.expr import Size
from sardonyx.verbs.analyze.costs.onnx_operators import describe
from sardonyx.verbs.analyze.costs.program import Description, OpKind, Value

SMALL = st.integers(1, 6)


def value(*shape: Size, dtype: str = "float32") -> Value:
    """A tensor of this shape."""
    return Value("", shape, dtype, 0)


def cost(operator: str, *shapes: tuple[int, ...] | None, out: tuple[int, ...], **attributes: object) -> Description:
    """The description at these shapes of inputs, None for one that is left out."""
    reads = [None if shape is None else value(*shape) for shape in shapes]
    return describe(operator, reads, [value(*out)], attributes)


def both(description: Description) -> tuple[Size, Size]:
    """Multiply-adds and other flops."""
    return description.macs, description.other_flops


def test_products():
    assert both(cost("MatMul", (2, 3, 4), (4, 5), out=(2, 3, 5))) == (2 * 3 * 4 * 5, 0)
    assert both(cost("MatMul", (4,), (4,), out=())) == (4, 0)
    assert both(cost("Gemm", (4, 3), (5, 4), (5,), out=(3, 5), transA=1, transB=1)) == (60, 15)
    assert both(cost("com.microsoft::FusedMatMul", (2, 4, 3), (2, 4, 5), out=(2, 3, 5), transA=1)) == (120, 0)
    assert both(cost("com.microsoft::FusedMatMul", (3, 4), (4, 5), out=(3, 5), alpha=0.5)) == (60, 15)
    assert both(cost("com.microsoft::FusedGemm", (3, 4), (4, 5), (5,), out=(3, 5), activation="Relu")) == (60, 30)
    assert both(cost("Einsum", (2, 3, 4), (2, 5, 4), out=(2, 3, 5), equation="bik,bjk->bij")) == (120, 0)
    assert both(cost("com.microsoft::MatMulNBits", (2, 3, 8), (5, 1, 4), out=(2, 3, 5), K=8, N=5)) == (240, 0)


def test_integer_products_add_no_other_flops():
    reads = [value(3, 4, dtype="uint8"), value(), value(dtype="uint8"), value(4, 5, dtype="int8")]
    counted = describe("QLinearMatMul", reads, [value(3, 5, dtype="uint8")], {})
    assert both(counted) == (60, 0)
    assert both(describe("MatMulInteger", [reads[0], reads[3]], [value(3, 5, dtype="int32")], {})) == (60, 0)


def test_convolutions():
    assert both(cost("Conv", (2, 6, 9, 9), (8, 3, 3, 3), (8,), out=(2, 8, 7, 7), group=2)) == (
        2 * 8 * 49 * 27,
        2 * 8 * 49,
    )
    assert both(cost("ConvTranspose", (2, 6, 5), (6, 4, 3), out=(2, 4, 7))) == (2 * 6 * 5 * 4 * 3, 0)
    fused = cost("com.microsoft::FusedConv", (1, 2, 4), (3, 2, 1), (3,), (1, 3, 4), out=(1, 3, 4), activation="Relu")
    assert both(fused) == (24, 3 * 12)
    strange = cost("com.microsoft::FusedConv", (1, 2, 4), (3, 2, 1), out=(1, 3, 4), activation="Strange")
    assert not strange.known


@settings(max_examples=40)
@given(SMALL, st.integers(1, 3), st.integers(1, 3), SMALL, SMALL, SMALL, SMALL, st.booleans())
def test_every_attention_costs_its_two_products(
    batch: int, fewer: int, shared: int, rows: int, keys: int, width: int, values: int, masked: bool
):
    heads = fewer * shared
    mask = (rows, keys) if masked else None
    scores = batch * heads * rows * keys
    expected = (scores * (width + values), scores * (6 + masked))
    apart = cost(
        "Attention",
        *((batch, heads, rows, width), (batch, fewer, keys, width), (batch, fewer, keys, values), mask),
        out=(batch, heads, rows, values),
    )
    together = cost(
        "Attention",
        *((batch, rows, heads * width), (batch, keys, fewer * width), (batch, keys, fewer * values), mask),
        out=(batch, rows, heads * values),
        q_num_heads=heads,
        kv_num_heads=fewer,
    )
    assert both(apart) == both(together) == expected
    runtime = cost(
        "com.microsoft::MultiHeadAttention",
        *((batch, rows, heads * width), (batch, keys, heads * width), (batch, keys, heads * values)),
        *(None, None, mask),
        out=(batch, rows, heads * values),
        num_heads=heads,
    )
    assert both(runtime) == expected
    assert apart.kind is together.kind is runtime.kind is OpKind.ATTENTION


def test_attention_with_a_past():
    out = (2, 4, 1, 8)
    past = cost("Attention", out, out, out, None, (2, 4, 6, 8), (2, 4, 6, 8), out=out)
    assert past.macs == 2 * 4 * 1 * 7 * 16
    grouped = cost(
        "com.microsoft::GroupQueryAttention",
        *((2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 2, 6, 8), (2, 2, 6, 8)),
        out=(2, 1, 32),
        num_heads=4,
        kv_num_heads=2,
    )
    assert grouped.macs == past.macs
    packed = cost("com.microsoft::GroupQueryAttention", (2, 1, 64), out=(2, 1, 32), num_heads=4, kv_num_heads=2)
    assert packed.macs == 2 * 4 * 16


def test_packed_attention_includes_its_projection():
    counted = cost("com.microsoft::Attention", (2, 5, 12), (12, 36), (36,), out=(2, 5, 12), num_heads=3)
    projected = 2 * 5 * 12 * 36
    scores = 2 * 3 * 5 * 5
    assert both(counted) == (projected + scores * 8, scores * 6 + 2 * 5 * 36)
    uneven = cost(
        "com.microsoft::Attention", (2, 5, 12), (12, 30), out=(2, 5, 6), num_heads=3, qkv_hidden_sizes=[12, 12, 6]
    )
    assert uneven.macs == 2 * 5 * 12 * 30 + scores * (4 + 2)


def test_multi_head_attention_of_the_runtime_in_every_operand_form():
    apart = cost("com.microsoft::MultiHeadAttention", *[(2, 5, 12)] * 3, out=(2, 5, 12), num_heads=3)
    with_heads = ((2, 5, 12), (2, 3, 5, 4), (2, 3, 5, 4))
    assert cost("com.microsoft::MultiHeadAttention", *with_heads, out=(2, 5, 12), num_heads=3) == apart
    assert cost("com.microsoft::MultiHeadAttention", (2, 5, 3, 3, 4), out=(2, 5, 12), num_heads=3) == apart
    pairs = ((2, 5, 12), (2, 5, 3, 2, 4))
    assert cost("com.microsoft::MultiHeadAttention", *pairs, out=(2, 5, 12), num_heads=3) == apart
    biased = cost("com.microsoft::MultiHeadAttention", *[(2, 5, 12)] * 3, (36,), out=(2, 5, 12), num_heads=3)
    assert biased.other_flops == integer(apart.other_flops) + 2 * 5 * 36


@pytest.mark.parametrize(("cell", "gates", "each"), [("LSTM", 4, 30), ("GRU", 3, 23), ("RNN", 1, 4)])
def test_recurrent_layers(cell: str, gates: int, each: int):
    counted = cost(cell, (7, 2, 5), (2, gates * 3, 5), (2, gates * 3, 3), out=(7, 2, 2, 3))
    assert both(counted) == (7 * 2 * 2 * gates * 3 * (5 + 3), 7 * 2 * 2 * 3 * each)
    assert counted.kind is OpKind.RECURRENT


@pytest.mark.parametrize(
    ("operator", "inputs", "flops"),
    [
        ("LayerNormalization", 3, 7),
        ("LayerNormalization", 2, 6),
        ("RMSNormalization", 2, 4),
        ("SimplifiedLayerNormalization", 2, 4),
        ("com.microsoft::SkipLayerNormalization", 4, 8),
        ("com.microsoft::SkipLayerNormalization", 5, 9),
        ("com.microsoft::SkipSimplifiedLayerNormalization", 3, 5),
        ("com.microsoft::BiasGelu", 2, 6),
        ("com.microsoft::FastGelu", 1, 8),
        ("com.microsoft::QuickGelu", 1, 6),
        ("Gelu", 1, 5),
        ("Softmax", 1, 5),
        ("BatchNormalization", 5, 2),
        ("Sum", 3, 2),
        ("Mean", 3, 3),
        ("Max", 2, 1),
        ("Add", 2, 1),
        ("Sigmoid", 1, 4),
        ("Clip", 1, 2),
        ("ReduceL2", 1, 2),
        ("GlobalAveragePool", 1, 1),
        ("Where", 3, 0),
        ("Cast", 1, 0),
    ],
)
def test_cost_per_element(operator: str, inputs: int, flops: int):
    assert cost(operator, *[(4, 6)] * inputs, out=(4, 6)) == Description(
        cost(operator, *[(4, 6)] * inputs, out=(4, 6)).kind, 0, 24 * flops
    )


def test_pooling_and_attributes():
    assert cost("MaxPool", (1, 2, 8, 8), out=(1, 2, 4, 4), kernel_shape=[3, 2]).other_flops == 32 * 6
    assert cost("Gelu", (4,), out=(4,), approximate="tanh").other_flops == 32
    assert cost("com.microsoft::QuickGelu", (4,), out=(4,), alpha=1.0).other_flops == 20
    assert cost("Resize", (1, 2, 4, 4), out=(1, 2, 8, 8), mode="linear").other_flops == 128 * 7
    assert cost("Resize", (1, 2, 4, 4), out=(1, 2, 8, 8)).kind is OpKind.COPY
    assert cost("BatchNormalization", *[(4, 6)] * 5, out=(4, 6), training_mode=1).other_flops == 24 * 6


def test_an_unknown_size_gives_an_unknown_cost():
    assert not cost("MatMul", None, (4, 5), out=(3, 5)).known
    assert not describe("Add", [value(3), value(3)], [None], {}).known
    assert not cost("Attention", (2, 5, 12), (2, 5, 12), (2, 5, 12), out=(2, 5, 12)).known  # without a number of heads


# Operators of the standard that are not counted, with the reason.
UNCOUNTED = {
    *("If", "Loop", "Scan", "SequenceMap"),  # their cost is that of their bodies
    *("AffineGrid", "DFT", "STFT", "Det", "MelWeightMatrix", "MaxRoiPool", "MaxUnpool", "RoiAlign"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "CausalConvWithState", "LinearAttention", "SwiGLU"),
    *("ImageDecoder", "Multinomial", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
    "TfIdfVectorizer",
}


def test_every_operator_of_the_standard_is_known_or_listed():
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    attributes = {"kernel_shape": [2], "equation": "ab,bc,cd,de,ef,fg,gh,hi,ij->aj", "num_heads": 1, "size": 1}
    counts = {"q_num_heads": 1, "kv_num_heads": 1}
    unknown: set[str] = set()
    for name in names:
        rank = 2 if name in ("Gemm", "Einsum") else 3
        counted = describe(name, [value(*[2] * rank)] * 9, [value(*[2] * rank)] * 3, {**attributes, **counts})
        if not counted.known:
            unknown.add(name)
    assert unknown == UNCOUNTED & names
