"""Every verb restores the caller's module, also if it fails."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import sardonyx
from sardonyx.errors import ModelError, SardonyxError
from sardonyx.frontend.module_state import restoring_state, unchanged, undoing_writes
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.traced import Exporter, TagStyle

Verb = Callable[[nn.Module, tuple[torch.Tensor, ...], Path], object]


class Stats:
    """Mutable state that a module may have."""

    def __init__(self) -> None:
        self.calls = 0
        self.sizes: list[int] = []


def _doubled(_module: nn.Module, _args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


class Restless(nn.Module):
    """Changes all of its state with every call, and fails halfway on request."""

    count: torch.Tensor
    cache: torch.Tensor

    def __init__(self, *, failing: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.old_norm = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.weight_norm = parametrizations.weight_norm(nn.Linear(4, 4))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(4, 4))
        self.dropout = nn.Dropout(0.5).eval()
        self.hidden = [nn.Linear(4, 4).requires_grad_(False)]  # not registered with torch
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(100, 100))  # too large to copy unnecessarily
        self.linear.bias.requires_grad_(False)
        self.linear.weight.grad = torch.ones(4, 4)
        self.linear.register_forward_hook(_doubled)
        self.kept: dict[str, torch.Tensor] = {}
        self.seen: list[torch.Tensor] = []
        self.stats, self.failing = Stats(), failing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.shape[0]
        self.stats.calls += 1
        self.stats.sizes.append(4)
        self.count += 1
        self.cache[0, :4] = x[0]
        self.linear.weight.data.mul_(0.9)
        if self.failing:
            self.hidden[0].training = False
            raise ValueError("halfway")
        self.kept["last"] = x
        self.seen.append(x)
        x = self.linear(x) + self.hidden[0](x) + self.count
        return self.dropout(self.orthogonal(self.weight_norm(self.old_norm(x))))


class Counting(nn.Module):
    """Counts its calls in a large buffer, and returns the count."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.zeros(5000))
        self.history: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table[:4] += 1
        self.history.append(1)
        self.answer = self.linear(x) + self.table[:4]
        return self.answer


def lazy() -> nn.Sequential:
    """Layers whose sizes are determined by their first input."""
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))


def _exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path) -> object:
    return sardonyx.export(module, inputs)


def _traced(module: nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path) -> object:
    return sardonyx.export(module, inputs, exporter="torchscript")


def _analyzed(module: nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path) -> object:
    return sardonyx.analyze(module, inputs)


def _decomposed(module: nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path) -> object:
    return sardonyx.decompose(module, inputs)


def _extracted(module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> object:
    sardonyx.export(module, inputs, folder / "model.onnx", exporter="torchscript")
    return sardonyx.extract(folder / "model.onnx", "linear", live=module, inputs=inputs)


class Memoizing(nn.Module):
    """Creates a table in its first call, and may fail after that."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.linear, self.fails = nn.Linear(4, 4), fails
        self.cosines: torch.Tensor | None = None
        self.register_buffer("copied", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "table"):
            self.table = torch.arange(4.0)
        if self.cosines is None or len(self.cosines) < len(x):
            self.cosines = torch.cos(torch.arange(len(x)))[:, None]
        self.register_buffer("copied", self.table * 1)
        if self.fails:
            raise ValueError("no")
        return self.linear(x) * self.cosines[: len(x)] + self.table


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_trace_leaves_nothing_on_a_module(exporter: Exporter, fails: bool) -> None:
    module = Memoizing(fails=fails).eval()
    before, buffers = dict(vars(module)), list(module.buffers())
    call = ModuleCall(module, (torch.randn(2, 4),), {})
    with pytest.raises(ModelError) if fails else contextlib.nullcontext():
        traced.export(call, exporter, {}, None, TagStyle())
    assert vars(module) == before
    assert [*map(id, module.buffers())] == [*map(id, buffers)]


def test_a_batch_norm_that_updates_its_statistics_is_restored() -> None:
    module = nn.BatchNorm1d(4)
    with undoing_writes(module):
        module(torch.randn(3, 4))
        assert bool(module.running_mean.any())  # pyright: ignore[reportOptionalMemberAccess]
    assert not bool(module.running_mean.any())  # pyright: ignore[reportOptionalMemberAccess]


def test_values_attributes_and_random_numbers_are_restored_at_once() -> None:
    module = Counting()
    before, seed = _described(module), torch.get_rng_state()
    with unchanged(module) as written:
        module(torch.randn(3, 4))
        assert written.covers(module.table)
    assert _described(module) == before
    assert torch.equal(torch.get_rng_state(), seed)


def _described(module: nn.Module) -> dict[str, Any]:
    """All state of a module, including the contents of its tensors."""
    description: dict[str, Any] = {}
    hidden = [each for own in module.modules() for each in getattr(own, "hidden", ())]
    for place, each in enumerate([*module.modules(), *hidden]):
        attributes = {name: _value(value) for name, value in vars(each).items()}
        description[f"{place}"] = (type(each), each.training, list(attributes), attributes)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        description[name] = (id(tensor), type(tensor), tensor.requires_grad, id(tensor.grad))
    return description


def _value(value: Any) -> Any:
    """A value that compares equal later if and only if nothing has changed."""
    if nn.parameter.is_lazy(value):
        return id(value), type(value)
    if isinstance(value, torch.Tensor):
        return id(value), value.detach().numpy().tobytes(), value.shape
    if isinstance(value, dict):
        return [(key, _value(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [_value(each) for each in value]
    return [_value(vars(value))] if isinstance(value, Stats) else id(value)


def _chance() -> tuple[Any, ...]:
    state: Any = np.random.get_state()  # the global state, which must not change
    return torch.get_rng_state().tolist(), state[1].tolist(), state[2], random.getstate()


CHEAP: list[Verb] = [_traced, _analyzed, _decomposed]
PICTURES = (torch.ones(2, 3, 8, 8),)
ROWS = (torch.ones(2, 4),)


@pytest.mark.parametrize("verb", [*CHEAP, _exported, _extracted])
@pytest.mark.parametrize("make", [Restless, Counting])
def test_a_module_is_unchanged(verb: Verb, make: Callable[[], nn.Module], tmp_path: Path) -> None:
    module = make().train()
    run(module, ROWS, {})  # what a first run imports may use random numbers
    before, chance = _described(module), _chance()
    try:
        verb(module, ROWS, tmp_path)
    except SardonyxError:
        assert make is Restless, "only a module whose weights shrink with every call has an excuse"
    assert _described(module) == before
    assert _chance() == chance


@pytest.mark.parametrize("verb", [*CHEAP, _exported])
def test_a_module_that_fails_halfway_is_unchanged(verb: Verb, tmp_path: Path) -> None:
    module = Restless(failing=True)
    before, chance = _described(module), _chance()
    with pytest.raises(SardonyxError, match="halfway"):
        verb(module, ROWS, tmp_path)
    assert _described(module) == before
    assert _chance() == chance


@pytest.mark.parametrize(
    ("verb", "inputs"),
    [(_traced, PICTURES), (_traced, None), (_analyzed, PICTURES), (_analyzed, None), (_exported, PICTURES)],
)
def test_lazy_modules_stay_lazy(verb: Verb, inputs: Any, tmp_path: Path) -> None:
    module = lazy()
    before = _described(module)
    result: Any = verb(module, inputs, tmp_path)
    assert _described(module) == before
    assert any("lazy" in note for note in result.notes)
    if inputs is None:
        assert any("[2,3," in note for note in result.notes)


def test_an_exported_lazy_module_has_the_weights_that_the_next_call_creates(tmp_path: Path) -> None:
    module = lazy()
    made = sardonyx.export(module, PICTURES, tmp_path / "lazy.onnx", exporter="torchscript")
    module.eval()(*PICTURES)
    assert made.model is not None
    weight = made.model.graph.initializers["0.weight"].const_value
    assert weight is not None
    assert np.array_equal(weight.numpy(), module.get_parameter("0.weight").detach().numpy())
    assert weight.shape.numpy() == (8, 3, 3, 3)


def test_decompose_shares_weights_and_so_refuses_lazy_modules() -> None:
    with pytest.raises(SardonyxError, match="lazy modules"):
        sardonyx.decompose(lazy(), PICTURES)


def test_every_trial_of_a_verification_starts_from_the_same_state(tmp_path: Path) -> None:
    exported = sardonyx.export(Counting(), ROWS, tmp_path / "model.onnx", exporter="torchscript")
    assert exported.verdict is not None
    assert exported.verdict.passed


def test_only_what_is_written_to_is_copied() -> None:
    module = Counting()
    with undoing_writes(module) as written, torch.no_grad():
        module(*ROWS)
    assert written.covers(module.get_buffer("table"))
    assert not written.covers(module.linear.weight)
    assert not module.get_buffer("table").any()


def test_classes_without_a_hash_are_refused_in_one_line() -> None:
    class Equal(nn.Module):
        def __eq__(self, other: object) -> bool:
            return self is other

    with pytest.raises(SardonyxError, match="__hash__"), restoring_state(nn.Sequential(Equal())):
        pass
