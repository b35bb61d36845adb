"""A recording has the operations, modules and shared memory of a run, and when Python releases values."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import architectures
from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.ir.shapes.expr import total
from sardonyx.verbs.analyze.costs.peak_memory import liveness
from sardonyx.verbs.analyze.costs.program import OpKind, Program, Store
from sardonyx.verbs.analyze.recorder import record


def operators(program: Program) -> list[str]:
    return [each.operator.removeprefix("aten.") for each in program.operations]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu_()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.block.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.block(x)
        second = self.block(first)
        return self.tied(second.view(3, 4).reshape(2, 6)) + first


def test_every_operation_names_its_module_and_the_call() -> None:
    program = record(Twice(), (torch.randn(2, 6),))
    products = [each for each in program.operations if each.kind is OpKind.MATMUL]
    assert [each.module for each in products] == ["block.linear", "block@1.linear", "tied"]
    assert [each.macs for each in products] == [72, 72, 72]
    assert [each.module for each in program.operations if each.operator == "aten.relu_"] == ["block", "block@1"]
    assert program.operations[-1].module == ""


def test_views_and_in_place_operations_share_memory_and_tied_weights_count_once() -> None:
    program = record(Twice(), (torch.randn(2, 6),))
    weights = [each for each in program.buffers if each.store is Store.WEIGHT]
    assert total(each.bytes for each in weights) == (36 + 6 + 6) * 4
    for each in program.operations:
        buffers = {program.values[i].buffer for i in each.reads}
        shares = each.kind is OpKind.VIEW or each.operator == "aten.relu_"
        assert all((program.values[i].buffer in buffers) == shares for i in each.writes), each
        assert not set(each.reads) & set(each.writes)
    activations = [each.bytes for each in program.buffers if each.store is Store.ACTIVATION]
    assert activations == [48] * 4  # two blocks, the last linear, the sum


def test_it_records_how_long_python_holds_values() -> None:
    class Holding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = x + 1
            y = (kept * 2).exp().sin()
            del kept
            return y.cos()

    program = record(Holding(), (torch.randn(1000),))
    assert [each.died for each in program.buffers[1:]] == [3, 2, 3, 4, None]  # kept, mul, exp, sin, cos
    assert liveness(program).at().bytes == 8000
    assert liveness(program, as_run=True).at().bytes == 12000


@pytest.mark.parametrize("name", ["bert", "llama", "swin", "t5", "cnn-mlp", "cnn-attention", "gpt2-past", "wav2vec2"])
def test_a_run_without_data_matches_a_real_run(name: str) -> None:
    case = architectures.build(name)
    before = {key: value.clone() for key, value in case.module.state_dict().items()}
    kept = [dict(vars(each)) for each in case.module.modules()]
    without = record(case.module, case.args, case.kwargs)
    assert all(torch.equal(value, before[key]) for key, value in case.module.state_dict().items())
    for each, items in zip(case.module.modules(), kept, strict=True):
        assert vars(each).keys() == items.keys()
        assert all(vars(each)[key] is items[key] for key in items)
    real = record(case.module, copy.deepcopy(case.args), copy.deepcopy(dict(case.kwargs)), real=True)
    looks = ("all", "_local_scalar_dense")  # transformers inspects real masks and continues
    assert operators(without) == [each for each in operators(real) if each not in looks]
    for as_run in (False, True):
        one, other = (liveness(each, as_run=as_run).at() for each in (without, real))
        assert (one.bytes, one.weights, one.inputs) == (other.bytes, other.weights, other.inputs)


def test_weights_on_the_meta_device_give_the_same_program() -> None:
    case = architectures.build("vit")
    nowhere = copy.deepcopy(case.module).to("meta")
    for kwargs in (case.kwargs, {name: tensor.to("meta") for name, tensor in case.kwargs.items()}):
        assert record(nowhere, (), kwargs) == record(case.module, (), case.kwargs)


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x[x > 0] if x.sum() > -1e9 else x


def test_a_data_dependent_model_is_run_on_real_data_with_a_note() -> None:
    program = record(Looking(), (torch.ones(3, 4),))
    assert "index" in operators(program)
    assert any("depends on its data" in note for note in program.notes)
    with pytest.raises(ModelError, match="meta device"):
        record(Looking().to("meta"), (torch.ones(3, 4),))


def test_unregistered_constants_are_weights_and_new_tensors_are_not() -> None:
    table = torch.randn(50)

    class Constants(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * table + torch.tensor([1.0, 2.0]).sum()

    program = record(Constants(), (torch.randn(50),))
    assert [each.bytes for each in program.buffers if each.store is Store.WEIGHT] == [200]
    assert any(each.bytes == 8 and each.store is Store.ACTIVATION for each in program.buffers)


def test_torch_fast_paths_are_off_while_recording_and_restored_after() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    program = record(layer, (torch.randn(2, 5, 16),))
    assert operators(program).count("_scaled_dot_product_flash_attention_for_cpu") == 1
    assert not any("native_multi_head" in name or "encoder_layer_fwd" in name for name in operators(program))
    assert any("fast paths" in note for note in program.notes)
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_error_of_the_model_is_raised_and_leaves_no_hook() -> None:
    module = nn.Linear(4, 4)
    with pytest.raises(RuntimeError):
        record(module, (torch.ones(3, 5),))
    assert torch.backends.mha.get_fastpath_enabled()
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return F.scaled_dot_product_attention(mixed, x, x)


def test_a_decomposed_graph_gives_modules_to_its_operations() -> None:
    graph = decompose(Attending().eval(), (torch.randn(2, 5, 16),))
    program = record(graph, (torch.randn(2, 5, 16),))
    assert [each.module for each in program.operations if each.kind is OpKind.SOFTMAX] == ["attention", ""]
