"""Dynamic dims: one recording holds at every size, and notes where it does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

import architectures
from analysis.attention_choice import set_attention
from sardonyx.errors import UsageError
from sardonyx.ir.shapes.expr import product, symbol, value_of
from sardonyx.verbs.analyze.costs.peak_memory import liveness
from sardonyx.verbs.analyze.costs.program import Program
from sardonyx.verbs.analyze.recorder import record

OTHER = {"batch": 3, "seq": 17, "target": 9}
OPEN = {"input_ids": {0: "batch", 1: "seq"}, "decoder_input_ids": {0: "batch", 1: "target"}}
OPEN |= {"attention_mask": OPEN["input_ids"], "token_type_ids": OPEN["input_ids"]}
OPEN |= {name: {0: "batch"} for name in ("pixel_values", "input_features", "input_values", "x", "input")}


def grown(tensor: torch.Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> torch.Tensor:
    for axis, name in axes.items():
        tensor = tensor.index_select(axis, torch.arange(sizes[name]) % tensor.shape[axis])
    return tensor


def figures(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    peaks = [liveness(program, as_run=as_run).at(sizes) for as_run in (False, True)]
    macs = sum(value_of(each.macs, sizes) for each in program.operations)
    other = sum(value_of(each.other_flops, sizes) for each in program.operations)
    counts = {"macs": macs, "flops": other, "inputs": peaks[0].inputs, "weights": peaks[0].weights}
    return counts | {"peak": peaks[0].bytes, "as run": peaks[1].bytes}


@pytest.mark.parametrize(
    ("name", "attention"),
    [("bert", "sdpa"), ("llama", "sdpa"), ("gpt2", "eager"), ("vit", "sdpa"), ("cnn-mlp", "")],
)
def test_one_recording_covers_every_size(name: str, attention: str) -> None:
    case = architectures.build(name)
    if attention:
        set_attention(case.module, attention)
    kwargs = {name: tensor for name, tensor in case.kwargs.items() if name != "decoder_attention_mask"}
    axes = {name: OPEN[name] for name in kwargs} if kwargs else {"x": {0: "batch"}}
    opened = record(case.module, case.args, kwargs, axes=axes)
    assert set(opened.symbols) == {dim for each in axes.values() for dim in each.values()}
    assert figures(opened, opened.symbols) == figures(record(case.module, case.args, kwargs), {})
    sizes = {dim: OTHER[dim] for dim in opened.symbols}
    others = {name: grown(tensor, axes[name], sizes) for name, tensor in kwargs.items()}
    args = [grown(tensor, axes["x"], sizes) for tensor in case.args]
    assert figures(opened, sizes) == figures(record(case.module, args, others), {})


def test_sizes_have_the_given_names() -> None:
    program = record(nn.Linear(4, 6), (torch.randn(3, 5, 4),), axes={"input": {0: "batch", 1: "seq"}})
    batch, seq = symbol("batch"), symbol("seq")
    assert program.symbols == {"batch": 3, "seq": 5}
    assert program.values[program.outputs[0]].shape == (batch, seq, 6)
    assert [each.macs for each in program.operations if each.macs] == [product((batch, seq, 24))]


def test_an_example_of_size_one_generalizes() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    opened = record(model, (torch.randn(1, 4),), axes={"input": {0: "batch"}})
    assert opened.symbols == {"batch": 1}
    for batch in (1, 2, 7):
        assert figures(opened, {"batch": batch}) == figures(record(model, (torch.randn(batch, 4),)), {})


def test_a_dim_fixed_by_the_model_becomes_a_number_with_a_note() -> None:
    class Insisting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(x.shape[0], 7)

    program = record(Insisting(), (torch.randn(3, 7),), axes={"x": {0: "batch", 1: "seq"}})
    assert program.symbols == {"batch": 3}
    assert program.notes == ("seq is not dynamic: the model requires 7",)
    assert program.values[program.outputs[0]].shape == (symbol("batch"), 7)


def test_dims_that_must_be_equal_share_a_name() -> None:
    class Adding(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    program = record(Adding(), (torch.randn(3, 2), torch.randn(3, 2)), axes={"x": {0: "left"}, "y": {0: "right"}})
    assert len(program.symbols) == 1
    assert program.notes == ("right is always equal to left, and is replaced by it",)
    assert record(Adding(), (torch.randn(1, 2), torch.randn(3, 2)), axes={"y": {0: "n"}}).symbols == {"n": 3}


def test_quotients_are_kept() -> None:
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.strided = nn.Conv1d(4, 4, 3, stride=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.strided(x)[:, :, : x.shape[2] // 3] * 2

    model = Halving()
    opened = record(model, (torch.randn(2, 4, 9),), axes={"x": {0: "batch", 2: "length"}})
    for length in (9, 10, 33):
        sizes = {"batch": 5, "length": length}
        assert figures(opened, sizes) == figures(record(model, (torch.randn(5, 4, length),)), {})


def test_a_note_is_given_where_torch_cannot_keep_sizes_symbolic() -> None:
    module = nn.LSTM(4, 6)
    program = record(module, (torch.randn(5, 2, 4),), axes={"input": {1: "batch"}})
    assert program.symbols == {}
    assert "at the sizes of the example only" in program.notes[0]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"nothing": {0: "batch"}}, "there is no input 'nothing'"),
        ({"x": {2: "batch"}}, "x has no axis 2"),
        ({"x": {0: "same", 1: "same"}}, "same is 3 in one input and 4 in x"),
    ],
)
def test_invalid_axes_are_refused(axes: dict[str, dict[int, str]], message: str) -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    with pytest.raises(UsageError, match=message):
        record(Same(), (torch.randn(3, 4),), axes=axes)
