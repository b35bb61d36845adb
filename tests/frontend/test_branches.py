"""Branches of Python code that torch's tracer fixes: inputs on both sides are found and compared, or a note says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sardonyx
from sardonyx.errors import ModelError, UsageError, VerificationFailed
from sardonyx.frontend.inputs.examples import derive, unpadded
from sardonyx.frontend.inputs.other_branches import Branch, find_branches
from sardonyx.frontend.models import resolve
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.verbs.export import export as exporting

X = torch.linspace(-1.0, 1.5, 48).reshape(2, 6, 4)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
LENGTHS = {"x": {1: "length"}, "mask": {1: "length"}}
Forward = Callable[["Model", Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Runs a function of its linear layer, a float input and a mask."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.linear, self.limit = nn.Linear(4, 4), 70.0
        self.function = function

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.function(self, x, mask)


def branches(function: Forward, axes: Mapping[str, Mapping[int, str]] | None = None) -> list[Branch]:
    return find_branches(ModuleCall(Model(function).eval(), (X, MASK), {}), axes or {}, search=True)


def exported(function: Forward, **options: Any) -> sardonyx.Exported:
    return sardonyx.export(Model(function), (X, MASK), **{"exporter": "torchscript", **options})


def large_values(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) - 300 if x.max() > 1e4 else model.linear(x)


def large_number(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) - 300 if x.max().item() > 1e4 else model.linear(x)


def attribute(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    number = float(x.mean())
    return model.linear(x) * 2 if number > model.limit else model.linear(x)


def between(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if 3.0 < x.mean() < 3.1 else model.linear(x)


def square(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    hidden = model.linear(x)
    return hidden.tanh() if (hidden * hidden).sum() > 5000 else hidden


def padding(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if mask.all() else model.linear(x) * mask[..., None]


def longest_row(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x[:, : int(mask.sum(1).max())])


def nested(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    if x.max() > 5:
        if x.max() > 50:
            return model.linear(x) * 2
        return model.linear(x) * 1
    return model.linear(x)


@pytest.mark.parametrize("side", [large_values, large_number, attribute, between, square, padding, longest_row, nested])
def test_values_on_the_other_side_of_a_branch_fail_and_name_the_line(side: Forward, tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed) as failure:
        exported(side, output=tmp_path / "model.onnx")
    assert re.search(rf"does not compute what the module does if {Path(__file__).name}:\d+ \(", failure.value.message)
    assert "torch.where" in (failure.value.hint or "")
    assert "exporter" not in (failure.value.hint or "")  # torch.export refuses them as well
    assert failure.value.__cause__ is not failure.value
    assert not list(tmp_path.iterdir())


def long_input(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if x.shape[1] > 16 else model.linear(x)


def long_hidden(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    hidden = model.linear(torch.cat([x, x], 1))
    return hidden * 2 if hidden.shape[-1] == 4 and torch.arange(hidden.shape[1]).max() + 1 > 40 else hidden


def one_length(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if x.shape[1] == 13 else model.linear(x)


@pytest.mark.parametrize(("side", "length"), [(long_input, 17), (long_hidden, 21), (one_length, 13)])
def test_lengths_on_the_other_side_of_a_branch_are_found(side: Forward, length: int) -> None:
    (branch,) = branches(side, LENGTHS)
    assert branch.trial is not None
    assert branch.trial["x"].shape == (2, length, 4)
    assert branch.trial["mask"].shape == (2, length)
    assert branches(side) == []  # a static length decides nothing


def test_the_other_exporter_is_a_hint_only_with_its_limits() -> None:
    with pytest.raises(VerificationFailed, match=r"long_input|shape\[1\] > 16") as failure:
        exported(long_input, dynamic=LENGTHS)
    hint = (
        r'use `exporter="dynamo"`, which matches PyTorch on \d trials \(length at most 16\); or write with torch.where'
    )
    assert re.match(hint, failure.value.hint or "")


def harmless(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) if mask.all() else model.linear(x) * 1


def never(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if (x.sin() > 2).any() else model.linear(x)


def test_an_exporter_is_recommended_if_it_was_verified_on_both_sides_of_every_branch() -> None:
    with pytest.raises(ModelError, match="control flow depends on values") as refusal:
        exported(harmless, exporter="dynamo")
    assert re.match(r'use `exporter="torchscript"`, which matches PyTorch on \d trials', refusal.value.hint or "")
    with pytest.raises(ModelError, match="control flow depends on values") as refusal:
        exported(never, exporter="dynamo")
    assert "exporter" not in (refusal.value.hint or "")


def narrow(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if 3.0 < x.mean() < 3.0001 else model.linear(x)


def test_half_of_a_condition_is_not_its_other_side() -> None:
    (branch,) = branches(narrow)
    assert branch.trial is None


def test_notes_say_which_branches_were_compared_on_both_sides() -> None:
    (note,) = exported(harmless).notes
    assert re.match(rf"{Path(__file__).name}:\d+ \(.*mask.all\(\).*\) is always False in the file", note)
    assert note.endswith("inputs that change it were compared")
    (note,) = exported(never).notes
    assert note.endswith("is always False in the file; no input was found that changes it: not compared")
    (note,) = exported(large_values, verify="off").notes
    assert "x.max() > 1e4" in note


def checked(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    if x.abs().max() > 1e3:
        raise ValueError("too large")
    if model.linear.weight.sum() > 1e3:  # no input decides it
        return x
    return model.linear(x)


def test_checks_and_branches_on_weights_have_no_note() -> None:
    assert exported(checked).notes == ()


def checked_outside(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    if not torch.jit.is_tracing() and bool(x.max() > 1e4):  # pyright: ignore[reportPrivateImportUsage]
        raise ValueError("too large")
    return model.linear(x) if x.max() > 1e4 else model.linear(x) * 1


def test_inputs_that_the_module_itself_refuses_are_no_trials() -> None:
    (note,) = exported(checked_outside).notes
    assert note.endswith("not compared")


def counted(model: Model, x: Tensor, mask: Tensor) -> Tensor:
    return model.linear(x) * 2 if mask.sum() > 2**62 else model.linear(x)


def test_thresholds_beyond_the_range_of_integers_are_not_reached() -> None:
    call = ModuleCall(Model(counted), (X, MASK + 1), {})
    (branch,) = find_branches(call, {})
    assert branch.trial is None


def test_branches_of_a_script_have_its_lines() -> None:
    script = torch.jit.script(Scripted())
    with pytest.raises(VerificationFailed, match=rf"{Path(__file__).name}:\d+ \(.*x.max\(\) > 50"):
        sardonyx.export(nn.Sequential(script), X, exporter="torchscript")


class Scripted(nn.Module):
    """Branches on its values, which scripting keeps."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.max() > 50):
            x = x * 2
        return x + 1


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(),
    "norm": lambda x: x.square().sum().sqrt(),
    "last": lambda x: x[-1, -1, -1],
}


class Threshold(nn.Module):
    """Compares a number that it computes from its input with another."""

    def __init__(self, reduction: str, factor: float, threshold: float, above: bool) -> None:
        super().__init__()
        self.reduce, self.factor, self.threshold, self.above = REDUCTIONS[reduction], factor, threshold, above

    def forward(self, x: Tensor) -> Tensor:
        number = self.reduce(x * self.factor)
        return x + 1 if (number > self.threshold if self.above else number < self.threshold) else x


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    st.floats(0.01, 100) | st.floats(-100, -0.01),
    st.floats(1e-3, 1e5) | st.floats(-1e5, -1e-3),
    st.booleans(),
)
def test_every_threshold_that_inputs_reach_is_crossed(name: str, factor: float, threshold: float, above: bool) -> None:
    module = Threshold(name, factor, abs(threshold) if name == "norm" else threshold, above)
    (branch,) = find_branches(ModuleCall(module, (X,), {}), {}, search=True)
    assert branch.trial is not None
    x = branch.trial["x"]
    before, after = (bool(torch.equal(module(tensor), tensor)) for tensor in (X, x))
    assert before != after


RELATIONS: dict[str, Callable[[Tensor], bool]] = {
    "length != 9": lambda x: x.shape[1] == 9,
    "length != (2*batch)": lambda x: x.shape[1] == 2 * x.shape[0],
    "length*batch <= 100": lambda x: x.shape[1] * x.shape[0] > 100,
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_condition_on_sizes_that_torch_export_assumes_is_a_note(relation: str) -> None:
    model = Model(lambda model, x, mask: x * 2 if RELATIONS[relation](x) else model.linear(x))
    axes = {"x": {0: "batch", 1: "length"}}
    made = sardonyx.export(model, (X, MASK), dynamic=axes, verify="off")
    assert made.notes == (f"exported for sizes with {relation}",)


def test_limits_and_equal_sizes_are_not_noted_twice() -> None:
    model = Model(lambda model, x, mask: x * 2 if 2 * x.shape[1] > 40 else model.linear(x) * mask[..., None])
    axes = {"x": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}
    made = sardonyx.export(model, (X, MASK), dynamic=axes, verify="off")
    assert made.notes == ("length at most 20",)


def test_a_file_is_not_verified_beyond_the_sizes_that_it_declares(tmp_path: Path) -> None:
    def arrays(length: int) -> dict[str, np.ndarray]:
        return {"x": np.ones((2, length, 4), np.float32), "mask": np.ones((2, length), np.int64)}

    path = tmp_path / "model.onnx"
    model = Model(lambda model, x, mask: (model.linear(x) if 5 <= x.shape[1] < 9 else x * 2) * mask[..., None])
    made = sardonyx.export(model, (X, MASK), path, dynamic=LENGTHS)
    assert set(made.notes) == {"length at least 5", "length at most 8"}
    assert made.verdict is not None
    sizes = {trial.dims["length"] for trial in made.verdict.trials}
    assert len(sizes) > 1
    assert sizes <= {5, 6, 7, 8}
    for length in (4, 9):
        with pytest.raises(UsageError, match=f"length is {length}, at "):
            sardonyx.verify(path, path, inputs=arrays(length))
    assert sardonyx.verify(path, path, inputs=arrays(7)).passed


DYNAMIC_ROPE = (
    "LlamaForCausalLM?num_hidden_layers=1,hidden_size=32,intermediate_size=48,num_attention_heads=4,vocab_size=60,"
    "num_key_value_heads=2,max_position_embeddings=16,rope_parameters.rope_type=dynamic,rope_parameters.factor=4.0"
)


@pytest.mark.slow
def test_positions_beyond_the_original_ones_of_a_scaled_rope_are_found() -> None:
    module = resolve(f"hf-config:{DYNAMIC_ROPE}").module
    example = derive(module)
    axes = {name: {1: "sequence"} for name in ("input_ids", "attention_mask")}
    found = find_branches(ModuleCall(module, example.args, example.kwargs), axes, search=True)
    (growth,) = [branch for branch in found if "seq_len > max_seq_len_cached" in str(branch.place)]
    assert growth.trial is not None
    assert growth.trial["input_ids"].shape == (2, 17)
    assert all(branch.trial is not None for branch in found)


def test_the_first_trial_has_no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []

    class Spy(exporting.Oracle):
        def __init__(self, *args: Any, inputs: Any, **options: Any) -> None:
            first.append(inputs[0])
            super().__init__(*args, inputs=inputs, **options)

    monkeypatch.setattr(exporting, "Oracle", Spy)
    call = exported(lambda model, x, mask: model.linear(x) * mask[..., None])
    assert first[0]["mask"].all()
    assert call.verdict is not None
    assert call.verdict.trials[0].seed is None


@pytest.mark.parametrize("hides", [False, True])
def test_a_mask_without_padding_keeps_every_position(hides: bool) -> None:
    """Ones keep a position in one convention and hide it in the other, where a row of ones has no result."""

    def weighted(model: Model, x: Tensor, mask: Tensor) -> Tensor:
        scores = x.sum(-1).masked_fill((mask == 1) == hides, -torch.inf)
        return scores.softmax(-1)[..., None] * x

    feeds = unpadded(ModuleCall(Model(weighted), (X, MASK), {}))
    assert feeds is not None
    assert torch.equal(feeds["mask"], torch.full_like(MASK, 0 if hides else 1))
    assert unpadded(ModuleCall(Model(weighted), (X, torch.ones_like(MASK)), {})) is None
