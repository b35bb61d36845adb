"""Regions of recorded real architectures: one per attention, one per convolution with its norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
import torch

import architectures
import zoo
from analysis.attention_choice import set_attention
from analysis.costs.building import run_in
from analysis.costs.traffic import by_rule, traffic
from narrowing import integer
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.ir.origins import tagged
from sardonyx.verbs.analyze.costs.dataflow import Region
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.program import OpKind, Program
from sardonyx.verbs.analyze.recorder import record

# how it is written: attentions, those whose projections read one tensor, pairs of linear layers that gate each other
COUNTS = {
    ("bert", "sdpa"): (2, 2, 0),
    ("gpt2", "eager"): (2, 0, 0),  # one packed projection
    ("gpt2-past", "sdpa"): (2, 0, 0),
    ("qwen3", "eager"): (2, 2, 2),
    ("llama-past", "sdpa"): (2, 2, 2),
    ("t5", "eager"): (
        6,
        6,
        0,
    ),  # 2 encoder layers, 2 decoder layers with two each, whose keys and values read the encoder
    ("whisper", "eager"): (6, 6, 0),
    ("bart", "sdpa"): (6, 6, 0),
    ("clip", "eager"): (4, 4, 0),
}


def _case(name: str, written: str | None = None) -> architectures.Case:
    """The model as built, which is enough where only shapes matter."""
    case = architectures.ARCHITECTURES[name]()
    if written:
        set_attention(case.module, written)
    return architectures.Case(case.module.eval(), case.args, case.kwargs)


def _checked(program: Program) -> Sequence[Region]:
    """The regions, after checks that hold for all: each operation once, and the same results in their order."""
    parts = partition(program)
    order = [step for region in parts for step in region.operations]
    assert sorted(order) == list(range(len(program.operations)))
    assert run_in(program, order) == run_in(program, range(len(program.operations)))
    whole = traffic(program, parts).at()
    assert 0 < whole.fused < whole.unfused
    return parts


def _counts(parts: Sequence[Region]) -> tuple[int, ...]:
    return tuple(by_rule(parts).get(rule, 0) for rule in ("attention", "parallel-qkv", "parallel-linears"))


@pytest.mark.parametrize(("name", "written"), COUNTS)
def test_every_attention_is_one_region(name: str, written: str) -> None:
    case = _case(name, written)
    assert _counts(_checked(record(case.module, case.args, case.kwargs))) == COUNTS[name, written]


def test_every_decomposed_attention_is_one_region() -> None:
    case = _case("bert", "sdpa")
    decomposed = decompose(case.module, case.args, kwargs=case.kwargs)
    assert _counts(_checked(record(decomposed, case.args, case.kwargs))) == (2, 2, 0)


def test_vit_b_16_with_fused_and_decomposed_attention() -> None:
    with torch.device("meta"):
        model, image = zoo.torchvision().models.vit_b_16().eval(), torch.empty(1, 3, 224, 224)
    program = record(model, (image,))
    parts = _checked(program)
    assert by_rule(parts) == {"alone": 39, "norm-residual": 25, "attention": 12, "linear-activation": 12}
    sums = [region for region in parts if region.escapes]
    assert len(sums) == 24  # each sum except the last is used by the next one
    assert all(integer(region.bytes_out) > 2 * 197 * 768 * 4 for region in sums)
    decomposed = _checked(record(decompose(model, (image,)), (image,)))
    assert by_rule(decomposed)["attention"] == 12
    inner = [region.internal_bytes for region in decomposed if region.rule == "attention"]
    assert all(
        integer(size) >= 6 * 12 * 197 * 197 * 4 for size in inner
    )  # scores, scaled, weights: each written and read


@pytest.mark.parametrize(("name", "convolutions"), [("resnet-50", 53), ("mobilenet-v3", 52)])
def test_every_convolution_is_one_region_with_its_norm(name: str, convolutions: int) -> None:
    case = _case(name)
    program = record(case.module, case.args)
    regions = [[program.operations[step].kind for step in region.operations] for region in _checked(program)]
    with_convolution = [kinds for kinds in regions if OpKind.CONVOLUTION in kinds]
    assert [kinds.count(OpKind.CONVOLUTION) for kinds in with_convolution] == [1] * convolutions
    assert not any(OpKind.BATCH_NORM in kinds for kinds in regions if OpKind.CONVOLUTION not in kinds)
    activations = [kinds for kinds in regions if OpKind.ACTIVATION in kinds]
    assert all(OpKind.CONVOLUTION in kinds or OpKind.MATMUL in kinds for kinds in activations)


def test_shifted_and_masked_windows() -> None:
    case = _case("swin")
    program = record(case.module, case.args, case.kwargs)
    softmaxes = sum(operation.kind in (OpKind.SOFTMAX, OpKind.ATTENTION) for operation in program.operations)
    assert by_rule(_checked(program))["attention"] == softmaxes > 1


def test_dynamic_dims_change_no_region() -> None:
    case = _case("bert", "eager")
    axes = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"},
            "token_type_ids": {0: "batch", 1: "seq"}}  # fmt: skip
    open_, closed = (record(case.module, case.args, case.kwargs, axes=one) for one in (axes, None))
    parts, expected = partition(open_), _checked(closed)
    assert set(open_.symbols) == {"batch", "seq"}
    assert _work(open_, parts) == _work(closed, expected)
    assert traffic(open_, parts).at() == traffic(closed, expected).at()
    square = "batch*seq*seq"  # the scores: gone except for the mask
    assert f"270*{square}" in repr(traffic(open_, parts).unfused)
    assert f"12*{square}" in repr(traffic(open_, parts).fused)


def _work(program: Program, parts: Sequence[Region]) -> list[tuple[str, list[str]]]:
    """Rules and operators without views, because dynamic dims add views."""
    return [(region.rule, [operation.operator for operation in map(program.operations.__getitem__, region.operations)
                           if operation.kind is not OpKind.VIEW]) for region in parts]  # fmt: skip


def test_the_same_rules_on_a_file(small_model: Callable[[str, str], Path]) -> None:
    program = program_of(tagged(onnx.load(small_model("bert", "torchscript"))).model)
    parts = _checked(program)
    assert _counts(parts) == (2, 2, 0)
    with_linear = [region for region in parts if region.rule == "linear-activation"]
    assert sum(len(region.operations) > 4 for region in with_linear) >= 2  # a decomposed GELU
    assert by_rule(parts)["norm-residual"] == 5
