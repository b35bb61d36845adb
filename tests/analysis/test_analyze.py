"""`sardonyx.analyze`: real models in three forms, their exports in one, and consistent numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import models
import sardonyx
from sardonyx.errors import ModelError, UsageError
from sardonyx.records.analysis import ALONE, Analysis, Form
from sardonyx.verbs.analyze.costs import fusion_regions as regions


class Block(nn.Module):
    """One attention with torch's own module, and a linear layer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.attn(x, x, x, need_weights=False)[0])


def _small_t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import zoo

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 500}
    text = {"input_ids": torch.randint(1, 500, (2, 9)), "decoder_input_ids": torch.randint(1, 500, (2, 5))}
    return zoo.hugging_face("T5Model", "T5Config", lambda: text, use_cache=False, **sizes)


def _small_vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import zoo

    vision = zoo.torchvision().models.vision_transformer.VisionTransformer
    return vision(32, 8, 2, 4, 32, 64, num_classes=5), {"x": torch.randn(2, 3, 32, 32)}


BUILDERS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "bert": lambda: models.build("bert"),
    "gpt2": lambda: models.build("gpt2"),
    "t5": _small_t5,
    "vit": _small_vit,
}


def assert_coherent(analysis: Analysis) -> None:
    """Check any analysis: sums add up, the peak is on the timeline, and the record reads back from JSON."""
    assert Analysis.from_json(analysis.to_json()) == analysis
    for form in analysis.forms:
        work, memory = form.work, form.memory
        assert work.bytes_moved == form.traffic.without_fusion >= form.traffic.with_fusion > 0
        kept_out = sum(each.kept_out_bytes for each in form.regions)
        assert form.traffic.without_fusion - form.traffic.with_fusion == kept_out
        for name in ("operations", "macs", "flops", "bytes_moved", "parameters"):
            assert sum(getattr(each, name) for each in form.modules) == getattr(work, name), name
        assert sum(each.operations for each in form.regions) == work.operations
        costs = form.operations
        assert costs is not None
        assert len(costs.names) == work.operations
        assert (sum(costs.flops), sum(costs.bytes_moved)) == (work.flops, work.bytes_moved)
        assert max(live for _step, live in memory.timeline.points) == memory.peak.bytes
        assert max(each.peak for each in form.modules) == memory.peak.bytes
        assert sum(each.at_peak for each in form.modules) == memory.peak.bytes
        assert memory.timeline.steps == work.operations + work.views
        if memory.as_run is not None:
            assert memory.as_run.bytes >= memory.peak.bytes


def _counted_by_torch(model: nn.Module, inputs: dict[str, torch.Tensor]) -> int:
    """Flops by the torch counter with decomposed attention: it does not count the CPU's attention kernels."""
    shortcuts = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(**inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcuts)
    return counter.get_total_flops()


def by_name(analysis: Analysis) -> dict[str, Form]:
    return {form.name: form for form in analysis.forms}


@pytest.mark.parametrize(
    ("name", "attentions"),
    [("bert", 2), *(pytest.param(*case, marks=pytest.mark.campaign) for case in (("gpt2", 2), ("t5", 6), ("vit", 2)))],
)
def test_a_torch_model_in_three_forms(name: str, attentions: int) -> None:
    model, inputs = BUILDERS[name]()
    model = model.eval()
    analysis = sardonyx.analyze(model, inputs)
    assert_coherent(analysis)
    assert not analysis.missing
    forms = by_name(analysis)
    assert list(forms) == ["standard", "decomposed", "fused"]
    counted = _counted_by_torch(model, inputs)
    for form in forms.values():
        assert 2 * form.work.macs == counted
        assert len(form.attentions) == attentions
        assert form.work.parameters == sum(each.numel() for each in model.parameters())
        assert form.memory.inputs == sum(each.nbytes for each in inputs.values())
    assert all({"scores", "softmax", "mix"} <= each.roles.keys() for each in forms["decomposed"].attentions)
    assert all(sum(each.roles.values()) == 1 for each in forms["fused"].attentions), "one kernel each"
    assert forms["decomposed"].work.operations > forms["fused"].work.operations
    assert forms["decomposed"].traffic.without_fusion > forms["fused"].traffic.without_fusion
    assert forms["standard"].memory.as_run is not None


def test_the_numbers_of_one_linear_layer_by_hand() -> None:
    analysis = sardonyx.analyze(nn.Linear(8, 4), torch.randn(3, 8))
    form = by_name(analysis)["standard"]
    assert (form.work.operations, form.work.macs, form.work.parameters) == (1, 3 * 8 * 4, 36)
    assert (form.work.bytes_read, form.work.bytes_written) == (4 * (3 * 8 + 36), 4 * 3 * 4)
    assert (form.memory.weights, form.memory.inputs, form.memory.peak.bytes) == (144, 96, 48)
    assert form.memory.peak.operator == "aten.addmm"
    assert not form.attentions


def test_dynamic_dims_give_formulas_that_agree_with_other_inputs() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    analysis = sardonyx.analyze(model, torch.randn(2, 5, 16), dynamic={"x": {0: "batch", 1: "seq"}})
    assert analysis.sizes == {"batch": 2, "seq": 5}
    assert analysis.sources[0].inputs[0].shape == ("batch", "seq", 16)
    assert_coherent(analysis)
    other = by_name(sardonyx.analyze(model, torch.randn(3, 7, 16)))
    for name, form in by_name(analysis).items():
        assert form.formulas is not None
        assert _value(form.formulas.macs, batch=3, seq=7) == other[name].work.macs
        assert _value(form.formulas.flops, batch=3, seq=7) == other[name].work.flops
        assert _value(form.formulas.bytes_moved, batch=3, seq=7) == other[name].traffic.without_fusion
        assert _value(form.formulas.peak, batch=3, seq=7) == other[name].memory.peak.bytes


def _value(formula: str, **sizes: int) -> int:
    powers = {"²": "**2", "³": "**3", "·": "*", "−": "-"}
    for sign, plain in powers.items():
        formula = formula.replace(sign, plain)
    return eval(formula, {"max": max, "min": min}, sizes)


@pytest.mark.campaign
def test_where_the_peak_moves_and_where_one_form_exceeds_another() -> None:
    torch.manual_seed(0)
    model = Block().eval()
    analysis = sardonyx.analyze(model, torch.randn(2, 5, 16), dynamic={"x": {1: "seq"}})

    @functools.cache
    def at(seq: int) -> dict[str, Form]:
        return by_name(sardonyx.analyze(model, torch.randn(2, seq, 16)))

    (turn,) = [each for each in analysis.overtaking if (each.less, each.more) == ("standard", "decomposed")]
    below, above = (
        {name: form.memory.peak.bytes for name, form in at(size).items()} for size in (turn.size - 1, turn.size)
    )
    assert below["decomposed"] <= below["standard"]
    assert above["decomposed"] > above["standard"]
    form = by_name(analysis)["decomposed"]
    assert form.formulas is not None
    assert form.formulas.crossovers
    for each in form.formulas.crossovers:
        peaks = [at(size)["decomposed"].memory.peak for size in (each.size - 1, each.size)]
        assert [f"{peak.operator} in {peak.module or 'the model'}" for peak in peaks] == [each.before, each.after]


def test_the_model_is_unchanged() -> None:
    torch.manual_seed(0)
    model = Block().train()
    before = {name: (id(value), value.clone()) for name, value in model.named_parameters()}
    sardonyx.analyze(model, torch.randn(2, 5, 16), dynamic="auto")
    assert all(each.training for each in model.modules())
    for name, value in model.named_parameters():
        assert before[name][0] == id(value)
        assert torch.equal(before[name][1], value)


def test_an_onnx_file_beside_its_optimized_form(small_model: Callable[[str, str], Path], tmp_path: Path) -> None:
    raw = small_model("bert", "dynamo")
    sardonyx.optimize(raw, tmp_path / "small.onnx", verify="off")
    analysis = sardonyx.analyze(raw, beside=[tmp_path / "small.onnx"])
    assert_coherent(analysis)
    first, second = analysis.forms
    assert (first.name, second.name) == (raw.name, "small.onnx")
    assert first.work.macs == second.work.macs
    assert second.work.operations < first.work.operations
    assert second.traffic.without_fusion < first.traffic.without_fusion
    assert [each.written_as for each in first.attentions] == ["by hand"] * 2
    assert all(each.roles["Softmax"] == 1 and each.roles["MatMul"] == 2 for each in first.attentions)
    assert [(each.written_as, each.roles) for each in second.attentions] == [("Attention", {"Attention": 1})] * 2
    assert first.nodes == sardonyx.inspect(raw).counts.nodes
    assert first.work.parameters == sardonyx.inspect(raw).parameters


@pytest.mark.campaign
def test_an_export_has_the_same_products_as_its_module(small_model: Callable[[str, str], Path]) -> None:
    model, inputs = models.build("gpt2")
    module, file = sardonyx.analyze(model, inputs), sardonyx.analyze(small_model("gpt2", "dynamo"))
    assert file.forms[0].work.macs == by_name(module)["standard"].work.macs


def test_dynamic_dims_of_a_file_get_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "block.onnx"
    sardonyx.export(Block().eval(), torch.randn(2, 5, 16), path, dynamic={"x": {0: "batch", 1: "seq"}}, verify="off")
    assumed = sardonyx.analyze(path)
    assert assumed.sizes == {"batch": 1, "seq": 128}
    assert "batch=1, seq=128" in assumed.notes[0]
    asked = sardonyx.analyze(path, sizes={"batch": 3, "seq": 7})
    assert asked.notes == ()
    assert asked.forms[0].work.macs == by_name(sardonyx.analyze(Block(), torch.randn(3, 7, 16)))["standard"].work.macs
    with pytest.raises(UsageError, match="there is no dynamic dimension 'sequence'") as refused:
        sardonyx.analyze(path, sizes={"sequence": 3})
    assert "seq" in (refused.value.hint or "")


class Branches(nn.Module):
    """Branches on its data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x.exp()


def test_a_data_dependent_model_is_analyzed_as_written() -> None:
    analysis = sardonyx.analyze(Branches(), torch.ones(3))
    (form,) = analysis.forms
    assert form.name == "standard"
    assert any("depends on its data" in note for note in form.notes)
    assert [each.name for each in analysis.missing] == ["decomposed", "fused"]
    assert all(each.reason for each in analysis.missing)


def test_inputs_that_the_model_rejects_are_reported_in_one_line() -> None:
    with pytest.raises(ModelError, match="Block does not run on these inputs"):
        sardonyx.analyze(Block(), torch.randn(2, 5, 7))


class OnlyWithData(nn.Module):
    """Stands for kernels whose fake implementation is stricter than the real one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, FakeTensor):
            raise RuntimeError("only with data")
        return x.relu()


def test_a_model_that_needs_real_data_is_run_on_it() -> None:
    form = sardonyx.analyze(OnlyWithData(), torch.ones(3)).forms[0]
    assert (form.work.operations, form.memory.peak.bytes) == (1, 12)
    assert "only with data" in form.notes[0]


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ("nonsense", {}, UsageError),
        ("missing.onnx", {}, ModelError),
        ("file.py", {}, UsageError),
        ("torchvision:vit_b_16", {"sizes": {"batch": 2}}, UsageError),
        ("torchvision:vit_b_16", {"beside": ["b.onnx"]}, UsageError),
        ("a.onnx", {"inputs": [torch.ones(1)]}, UsageError),
        ("a.onnx", {"dynamic": "auto"}, UsageError),
    ],
)
def test_invalid_arguments_are_refused(source: str, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        sardonyx.analyze(source, **options)


def test_the_rule_for_single_operations_has_one_name() -> None:
    assert regions.ALONE == ALONE
