"""Costs of torch's operators against torch's own counter, operator by operator and model by model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import architectures
import flops
from analysis.attention_choice import set_attention
from narrowing import integer
from sardonyx.ir.shapes.expr import Size, symbol, value_of
from sardonyx.verbs.analyze.costs import aten_operators
from sardonyx.verbs.analyze.costs.aten_operators import describe
from sardonyx.verbs.analyze.costs.program import Description, OpKind, Value

SMALL = st.integers(1, 7)
aten = torch.ops.aten


def value(*shape: Size, dtype: str = "float32", buffer: int = 0) -> Value:
    """A tensor of this shape."""
    return Value("", shape, dtype, buffer)


def zeros(*shape: int) -> torch.Tensor:
    """A tensor of torch's."""
    return torch.zeros(shape)


def check(func: Any, *args: Any) -> Description:
    """Ours is half of torch's count, which counts a multiply-add as two."""
    result = func(*args)
    cost = flops.described(func, args, {}, result)
    assert 2 * integer(cost.macs) == flop_registry[func.overloadpacket](*args, out_val=result)
    return cost


@settings(max_examples=50)
@given(SMALL, SMALL, SMALL, SMALL)
def test_matrix_products_are_counted_as_torch_does(batch: int, rows: int, inner: int, columns: int):
    one, two = zeros(rows, inner), zeros(inner, columns)
    assert check(aten.mm.default, one, two) == Description(OpKind.MATMUL, rows * inner * columns, 0)
    assert check(aten.addmm.default, zeros(columns), one, two).other_flops == rows * columns
    check(aten.bmm.default, zeros(batch, rows, inner), zeros(batch, inner, columns))
    check(aten.baddbmm.default, zeros(batch, rows, columns), zeros(batch, rows, inner), zeros(batch, inner, columns))


@settings(max_examples=50)
@given(SMALL, SMALL, SMALL, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.data())
def test_convolutions_are_counted_as_torch_does(
    batch: int, groups: int, each: int, axes: int, kernel: int, stride: int, transposed: bool, data: st.DataObject
):
    out = data.draw(SMALL)
    sizes = [data.draw(st.integers(kernel, 9)) for _ in range(axes)]
    weight = zeros(groups * each, out, *[kernel] * axes) if transposed else zeros(groups * out, each, *[kernel] * axes)
    image, bias = zeros(batch, groups * each, *sizes), zeros(groups * out)
    spread = [[stride] * axes, [0 if transposed else 1] * axes, [1] * axes, transposed, [0] * axes, groups]
    cost = check(aten.convolution.default, image, weight, bias, *spread)
    assert cost.kind is OpKind.CONVOLUTION
    assert integer(cost.other_flops) > 0


@settings(max_examples=50)
@given(SMALL, SMALL, st.integers(1, 3), SMALL, SMALL, SMALL)
def test_attention_is_counted_as_torch_does(batch: int, heads: int, shared: int, rows: int, keys: int, width: int):
    query, key = zeros(batch, heads * shared, rows, width), zeros(batch, heads, keys, width)
    args = (query, key, zeros(batch, heads, keys, width + 2))
    formula = flop_registry[aten._scaled_dot_product_flash_attention]
    reads, result = [flops.tensors(each)[0] for each in args], value(*query.shape)
    cost = describe("aten._scaled_dot_product_flash_attention_for_cpu", reads, [result], {})
    assert (cost.kind, 2 * integer(cost.macs)) == (OpKind.ATTENTION, formula(*args, out_val=query))
    assert cost.other_flops == 6 * batch * heads * shared * rows * keys


def test_sizes_may_be_symbolic():
    batch, seq = symbol("batch"), symbol("seq")
    sizes = {"batch": 3, "seq": 5}
    for open_, fixed in (((batch, 4, seq, 8), (3, 4, 5, 8)), ((batch, seq, seq, 8), (3, 5, 5, 8))):
        one = describe("aten.scaled_dot_product_attention", [value(*open_)] * 3, [value(*open_)], {})
        other = describe("aten.scaled_dot_product_attention", [value(*fixed)] * 3, [value(*fixed)], {})
        assert value_of(one.macs, sizes) == other.macs
        assert value_of(one.other_flops, sizes) == other.other_flops
    product = describe("aten.addmm", [value(6), value(seq, 4), value(4, 6)], [value(seq, 6)], {})
    assert (repr(product.macs), repr(product.other_flops)) == ("24*seq", "6*seq")


def _decomposed_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (torch.erf(x / 2**0.5) + 1)


def _decomposed_tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (torch.tanh((x + x.pow(3) * 0.044715) * 0.8) + 1)


def _decomposed_softmax(x: torch.Tensor) -> torch.Tensor:
    grown = torch.exp(x - x.amax(-1, keepdim=True))
    return grown / grown.sum(-1, keepdim=True)


def _decomposed_norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def _rows(x: torch.Tensor) -> int:
    """The work done once per row, which the table leaves out (a root, and the epsilon before it)."""
    return 3 * x[..., 0].numel()


@pytest.mark.parametrize(
    ("whole", "written", "by_row"),
    [
        (F.gelu, _decomposed_gelu, 0),
        (lambda x: F.gelu(x, approximate="tanh"), _decomposed_tanh_gelu, 0),
        (F.silu, lambda x: x * torch.sigmoid(x), 0),
        (torch.sigmoid, lambda x: torch.reciprocal(torch.exp(-x) + 1), 0),
        (F.softplus, lambda x: torch.log(torch.exp(x) + 1), 0),
        (F.mish, lambda x: x * torch.tanh(F.softplus(x)), 0),
        (torch.rsqrt, lambda x: torch.reciprocal(torch.sqrt(x)), 0),
        (lambda x: torch.lerp(x, x, 0.3), lambda x: x + (x - x) * 0.3, 0),
        (lambda x: F.softmax(x, -1), _decomposed_softmax, 0),
        (lambda x: F.layer_norm(x, x.shape[-1:]), _decomposed_norm, _rows),
    ],
)
def test_a_function_costs_the_same_as_its_decomposition(whole: Any, written: Any, by_row: Any):
    x = torch.rand(3, 5, 64)
    extra = by_row(x) if by_row else 0
    assert _other_flops(whole, x) + extra == _other_flops(written, x) > 0


def _other_flops(function: Any, x: torch.Tensor) -> int:
    counted = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal counted
            result = func(*args, **(kwargs or {}))
            cost = flops.described(func, args, kwargs or {}, result)
            assert cost.known, func
            counted += integer(cost.other_flops)
            return result

    with Watch():
        function(x)
    return counted


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten.add_", OpKind.ARITHMETIC),
        ("aten.__and__", OpKind.SELECT),
        ("aten.__ior__", OpKind.SELECT),
        ("aten.view", OpKind.VIEW),
        ("aten.clone", OpKind.COPY),
        ("aten.embedding", OpKind.LOOKUP),
        ("aten.zeros_like", OpKind.CREATE),
        ("aten.bernoulli_", OpKind.DROPOUT),
        ("aten.native_dropout", OpKind.DROPOUT),
        ("aten.mean", OpKind.REDUCTION),
        ("aten.max", OpKind.REDUCTION),
        ("aten._softmax", OpKind.SOFTMAX),
        ("aten.native_layer_norm", OpKind.NORM),
        ("aten._native_batch_norm_legit_no_training", OpKind.BATCH_NORM),
        ("aten._batch_norm_with_update", OpKind.BATCH_NORM),
        ("aten._thnn_fused_gru_cell", OpKind.RECURRENT),
    ],
)
def test_operators_are_classified(operator: str, kind: OpKind):
    cost = describe(operator, [value(3, 4)], [value(3, 4)], {})
    assert (cost.kind, cost.known, cost.macs) == (kind, True, 0)


def test_costs_that_depend_on_operands():
    one, other = value(3, 4, buffer=1), value(3, 4, buffer=2)
    assert describe("aten.reshape", [one], [one], {}).kind is OpKind.VIEW
    assert describe("aten.reshape", [one], [other], {}).kind is OpKind.COPY
    assert describe("aten._to_copy", [one], [other], {}).kind is OpKind.COPY
    assert describe("aten._to_copy", [one], [value(3, 4, dtype="float16")], {}).kind is OpKind.SELECT
    assert describe("aten.max", [one, other], [other], {}).kind is OpKind.ARITHMETIC
    assert describe("aten.add", [value(3, dtype="int64")] * 2, [value(3, dtype="int64")], {}).other_flops == 0
    assert describe("aten.native_batch_norm", [one], [one], {"training": True}).other_flops == 6 * 12
    pooled = describe("aten.max_pool2d_with_indices", [value(1, 2, 8, 8)], [value(1, 2, 4, 4)], {"kernel_size": [3, 2]})
    assert pooled == Description(OpKind.REDUCTION, 0, 2 * 16 * 6)


def test_an_unknown_operator_is_reported_as_unknown():
    assert not describe("aten._fft_r2c", [value(3)], [value(3)], {}).known
    assert not describe("mylib.gelu_of_mine", [value(3)], [value(3)], {}).known


@pytest.mark.parametrize("equation", ["bik,bkj->bij", "...ik,kj->...ij", "bhqd,bhkd->bhqk", "i,j->ij"])
def test_einsum_counts_every_combination(equation: str):
    sizes = {"b": 2, "i": 3, "k": 4, "j": 5, "h": 3, "q": 7, "d": 6}
    terms = equation.split("->")[0].replace("...", "b").split(",")
    operands = [value(*(sizes[letter] for letter in letters)) for letters in terms]
    cost = describe("aten.einsum", operands, [value(1)], {"equation": equation})
    combinations = 1
    for letter in {*"".join(terms)}:
        combinations *= sizes[letter]
    assert cost.macs == combinations


def test_native_attention_costs_the_sum_of_its_parts():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 40, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    parts = flops.count(layer, (x,))
    watch = flops.Watch()
    with torch.no_grad(), watch:
        layer(x)
    assert set(watch.count.ours) == {"aten._transformer_encoder_layer_fwd"}
    assert sum(watch.count.ours.values()) == sum(parts.ours.values())
    with torch.no_grad(), flops.Watch() as watch:
        layer.self_attn(x, x, x)
    assert "aten._native_multi_head_attention" in watch.count.ours
    assert sum(watch.count.ours.values()) == sum(flops.count(layer.self_attn, (x, x, x)).ours.values())


def test_recurrent_layers_count_their_weights_and_not_their_states():
    layer = torch.nn.LSTM(5, 3, num_layers=2, bidirectional=True)
    counted = flops.count(layer, (torch.randn(7, 4, 5),))
    gates = 2 * 4 * 3  # two ways, four gates, three states
    assert dict(counted.beyond) == {"aten.mkldnn_rnn_layer": 2 * 7 * 4 * gates * ((5 + 3) + (2 * 3 + 3))}
    weights = [value(12, 5), value(12, 3), value(12), value(12)]
    whole = describe(
        "aten._cudnn_rnn", [value(7, 4, 5), *weights, value(1, 4, 3), value(1, 4, 3)], [value(7, 4, 3)], {}
    )
    assert (whole.macs, whole.other_flops) == (7 * 4 * 12 * (5 + 3), 7 * 4 * 3 * 30)


BACKWARD = "backward"
UNCOUNTED = {"_fft_c2r", "_fft_r2c", "_pdist_forward"}  # of torch's core operators; no model of ours runs them


def _torch_operator_names() -> tuple[set[str], set[str]]:
    """All of torch's operators, and the core of them that computes forward."""
    every = {name[6:].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    core = set[str]()
    for name in every:
        packet = getattr(aten, name, None)
        overloads = [getattr(packet, each) for each in packet.overloads()] if packet is not None else []
        if any(torch.Tag.core in each.tags for each in overloads) and BACKWARD not in name:
            core.add(name)
    return every, {name for name in core if not name.startswith("sym_")}


def test_every_core_operator_of_torch_is_known_or_listed():
    every, core = _torch_operator_names()
    ours = {*aten_operators.KNOWN}
    assert {name for name in core if aten_operators.plain_name(f"aten.{name}") not in ours} == UNCOUNTED
    in_onnx_alone = {"gelu_tanh", "quick_gelu", "softsign"}
    assert {name for name in ours if name not in every and f"{name}_" not in every} == in_onnx_alone


DISTINCT = [  # between them every operator that the architectures run; benchmarks/flops.py goes over all of them
    *("bert", "roberta", "gpt2-past", "llama", "qwen3", "t5", "whisper", "swin", "sam-vision", "wav2vec2", "clip"),
    *("mobilenet-v3", "convnext", "cnn-mlp", "cnn-attention", "transformer-encoder", "lstm"),
]
CALLED_APART = {
    "lstm": "aten.mkldnn_rnn_layer"
}  # besides attention, the operators for which torch's counter has no formula


@pytest.mark.parametrize("name", DISTINCT)
def test_every_architecture_is_counted_as_torch_does(name: str):
    case = architectures.build(name)
    eager = flops.count(case.module, case.args, case.kwargs)
    in_training = flops.count(copy.deepcopy(case.module).train(), case.args, case.kwargs)
    for counted in (eager, in_training):
        assert counted.agrees
        assert not counted.unknown
        uncounted = {each for each in counted.beyond if "scaled_dot_product" not in each}
        assert uncounted == ({CALLED_APART[name]} if name in CALLED_APART else set())
    if not hasattr(case.module, "set_attn_implementation") or not case.module._supports_sdpa:
        return
    set_attention(case.module, "sdpa")
    fused = flops.count(case.module, case.args, case.kwargs)
    assert fused.agrees
    assert not fused.unknown
    assert sum(fused.ours.values()) == sum(eager.ours.values()), "one kernel does what its parts do"
