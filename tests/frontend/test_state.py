"""What a forward keeps for its next call: inputs and outputs of the graph, or an error that names it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import sardonyx
from sardonyx.errors import ModelError, VerificationFailed
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.frontend.tracing.rehearsal import CallsInARow, mode_notes, with_state
from sardonyx.frontend.tracing.traced import Exporter
from sardonyx.ir import io
from sardonyx.ir import metadata as states
from sardonyx.runtime import Session

X = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


class Store:
    """An object that is no module."""

    def __init__(self) -> None:
        self.sum = torch.zeros(1, 4)


class Streaming(nn.Module):
    """Keeps tensors in all places where modules keep them, and other things that do not matter."""

    keys: torch.Tensor
    values: torch.Tensor
    position: torch.Tensor
    scratch: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project, self.recurrent = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)
        self.register_buffer("keys", torch.zeros(1, 16, 4))  # written in place, at a position
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("values", torch.full((1, 4), 0.5))  # replaced
        self.register_buffer("scratch", torch.ones(1, 3, 4))  # overwritten before it is read
        self.hidden = (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
        self.past = torch.zeros(1, 0, 4)  # grows
        self.norm = nn.BatchNorm1d(3)
        self.stores = [Store()]
        self.calls, self.seen = 0, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(x)
        if not hasattr(self, "table"):
            self.table = torch.arange(16)
        self.scratch.copy_(x)
        at = self.position + self.table[: x.shape[1]]
        self.keys[:, at] = self.project(self.scratch)
        self.position += x.shape[1]
        self.values = 0.9 * self.values + 0.1 * x.mean(1)
        y, self.hidden = self.recurrent(x, self.hidden)
        self.past = torch.cat([self.past, y], 1)
        self.stores[0].sum = self.stores[0].sum + y.sum(1)
        return self.norm(y) + self.keys.sum(1) + self.values + self.past.mean(1) + self.stores[0].sum


STATE = ["values", "keys", "position", "past", "hidden.0", "hidden.1", "stores.0.sum"]


def _in_a_row(path: Path, module: nn.Module, calls: int = 4) -> None:
    """Run the file, fed with its own state from what its metadata says, and compare with the module."""
    session, module = Session(path), copy.deepcopy(module).eval()
    model = ir.load(path)
    declared = json.loads(model.metadata_props[states.STATE])
    outputs = [value.name for value in model.graph.outputs]
    held = {name: np.broadcast_to(np.array(s["initial"], s["dtype"]), s["shape"]) for name, s in declared.items()}
    for seed in range(calls):
        x = torch.randn(X.shape, generator=torch.Generator().manual_seed(seed))
        results = dict(zip(outputs, session.run({"x": x.numpy(), **held}), strict=True))
        held = {name: np.asarray(results[s["output"]]) for name, s in declared.items()}
        with torch.no_grad():
            np.testing.assert_allclose(np.asarray(results["output"]), module(x).numpy(), rtol=1e-4, atol=1e-5)


@both
def test_state_is_an_input_and_an_output(exporter: Exporter, tmp_path: Path) -> None:
    torch.manual_seed(200)  # with these weights the runtime's LSTM and PyTorch's differ by more than their noise
    module = Streaming().eval()
    made = sardonyx.export(module, X, tmp_path / "m.onnx", exporter=exporter, optimize=exporter == "dynamo")
    assert sorted(each.name for each in made.state) == sorted(STATE)
    assert all(each.output == f"{each.name}_out" for each in made.state)
    assert [each.name for each in made.inputs] == ["x"]
    assert made.verdict is not None
    assert sum("3 calls in a row" in trial.style for trial in made.verdict.trials) == 4
    model = ir.load(tmp_path / "m.onnx")
    assert {value.name for value in model.graph.inputs} == {"x", *STATE}
    assert {value.name for value in model.graph.outputs} == {"output", *(f"{name}_out" for name in STATE)}
    _in_a_row(tmp_path / "m.onnx", module)
    assert module.calls == 0  # and everything else is as before
    assert not hasattr(module, "table")


def test_the_first_call_alone_is_exported_on_request() -> None:
    made = sardonyx.export(Streaming().eval(), X, exporter="torchscript", state="fixed", verify="off")
    assert made.outputs == ("output",)
    start, _, names = made.notes[0].partition(": ")
    assert start == "every run is a first call, because state is fixed"
    assert sorted(names.split(", ")) == ["calls", "hidden", "keys", "past", "position", "stores.0.sum", "values"]


class Counting(nn.Module):
    """A linear layer and a given function of it."""

    def __init__(self, work: Callable[[Any, torch.Tensor], torch.Tensor], **attributes: Any) -> None:
        super().__init__()
        self.linear, self.work = nn.Linear(4, 4), work
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.work(self, self.linear(x))


def _by_number(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.step += 1
    return y * self.step


def _by_first_call(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.before = y if self.before is None else y + self.before
    return self.before


def _by_view(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.view.add_(y.mean(1))
    return y + self.whole[0]


def _by_list(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.seen.append(y)
    return torch.stack(self.seen).sum(0)


def _by_type(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.count = self.count + 0.5
    return y * self.count


def _shared() -> dict[str, torch.Tensor]:
    whole = torch.zeros(2, 4)
    return {"whole": whole, "view": whole[:1]}


@pytest.mark.parametrize(
    ("work", "attributes", "names"),
    [
        (_by_number, {"step": 0}, "step"),
        (_by_first_call, {"before": None}, "before"),
        (_by_view, _shared(), "whole, view"),
        (_by_list, {"seen": []}, "seen"),
        (_by_type, {"count": torch.tensor(1)}, "count"),
    ],
)
def test_state_that_no_graph_can_have_is_named(work: Any, attributes: dict[str, Any], names: str) -> None:
    call = ModuleCall(Counting(work, **attributes).eval(), (X,), {})
    with pytest.raises(ModelError, match=f"cannot be an input and an output: {names}$") as caught:
        with_state(call, "io")
    assert "buffers" in str(caught.value.hint)
    _, notes = with_state(call, "fixed")
    assert notes == (f"every run is a first call, because state is fixed: {names}",)


def _by_place(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.cache[:, self.at + torch.arange(3)] = y
    self.at += 3
    return y + self.cache.sum(1, keepdim=True)


def test_fewer_calls_in_a_row_are_compared_if_there_is_room_for_fewer() -> None:
    module = Counting(_by_place, cache=torch.zeros(1, 6, 4), at=torch.zeros(1, dtype=torch.int64)).eval()
    made = sardonyx.export(module, X, exporter="torchscript")
    assert made.verdict is not None
    assert any(trial.style.startswith("2 calls in a row") for trial in made.verdict.trials)


def _unchanged(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.count.mul_(1)
    self.same = self.same.clone()
    return y + self.count


def _only_stored(self: Any, y: torch.Tensor) -> torch.Tensor:
    self.last, self.number = y, self.number + 1
    return y


@pytest.mark.parametrize(
    ("work", "attributes"),
    [
        (_unchanged, {"count": torch.ones(4), "same": torch.ones(4)}),
        (_only_stored, {"last": torch.zeros(1, 3, 4), "number": 0}),
    ],
)
def test_what_carries_nothing_is_no_state(work: Any, attributes: dict[str, Any]) -> None:
    call = ModuleCall(Counting(work, **attributes).eval(), (X,), {})
    assert with_state(call, "io") == (call, ())
    assert with_state(call, "fixed") == (call, ())


def test_names_of_state_avoid_those_of_arguments_and_outputs() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.total = torch.zeros(4), torch.zeros(4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            self.x, self.total = self.x + x[0, 0], self.total + 1
            return {"total": self.x + x, "out": self.total}

    call, _ = with_state(ModuleCall(Named().eval(), (X,), {}), "io")
    call.run(call.tensors)
    assert call.inputs == ["x", "x_state", "total_state"]
    assert call.outputs == ["total", "out", "x_state_out", "total_state_out"]


def test_calls_in_a_row_are_the_reference_of_the_graph_in_a_row() -> None:
    """A graph that starts again with every call is right in the first, and wrong in a row."""
    module = Counting(_by_type, count=torch.tensor(1.0)).eval()
    row = CallsInARow(with_state(ModuleCall(module, (X,), {}), "io")[0])
    expected = [to_array(tensor) for tensor in row.run(row.tensors)]
    assert float(expected[-1]) == 2.5
    model = sardonyx.export(module, X, exporter="torchscript", verify="off").model
    assert model is not None
    graph = states.in_a_row(model, {"count": np.ones((), np.float32)}, 3)
    feeds = dict(zip(row.inputs, map(to_array, row.tensors), strict=True))
    for is_right in (True, False):
        results = Session(io.to_proto(graph)).run(feeds)
        equal = [np.allclose(a, np.asarray(b), atol=1e-5) for a, b in zip(expected, results, strict=True)]
        assert equal[0]
        assert all(equal) == is_right
        first = graph.graph.initializers["count"]
        for node in [node for node in graph.graph if any("count_out" in (v.name or "") for v in node.inputs if v)]:
            if (node.name or "").endswith((".run2", ".run3")):
                for index, value in enumerate(node.inputs):
                    if value is not None and value.name in ("count_out", "count_out.run2"):
                        node.replace_input_with(index, first)


def test_training_mode_is_noted_if_it_computes_something_else() -> None:
    plain, dropped = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    for module, count in ((plain, 0), (dropped, 1)):
        notes = mode_notes(ModuleCall(module.eval(), (X,), {}), training=True)
        assert len(notes) == count
        assert mode_notes(ModuleCall(module.eval(), (X,), {}), training=False) == ()
    made = sardonyx.export(dropped.train(), X, exporter="torchscript", verify="off")
    assert any("in training mode, and is exported in eval mode" in note for note in made.notes)


@both
def test_training_mode_is_exported_on_request(exporter: Exporter) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(3), nn.ReLU()).eval()
    before = copy.deepcopy(module.state_dict())
    made = sardonyx.export(module, X.repeat(2, 1, 1), exporter=exporter, training=True)
    assert [each.name for each in made.state] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [each.initial for each in made.state] == [0.0, 1.0, 0]
    assert made.verdict is not None
    assert "train mode" in made.verdict.reference
    assert not made.notes
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_random_outputs_are_not_verified_by_the_state_beside_them() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.count = nn.Dropout(0.5), torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return self.drop(x)

    with pytest.raises(VerificationFailed, match="no element was compared") as caught:
        sardonyx.export(Dropped(), X, training=True, exporter="torchscript")
    assert '`verify="off"`' in str(caught.value.hint)


def test_arguments_that_are_no_tensors_are_reported() -> None:
    class Scaled(nn.Module):
        def forward(
            self, x: torch.Tensor, sizes: list[int], how: str = "add", scale: float = 2.0, more: Any = None
        ) -> torch.Tensor:
            y = x[:, : sizes[0]]
            return y + scale if how == "add" else y * scale

    made = sardonyx.export(Scaled().eval(), (X, [2]), kwargs={"how": "mul"}, exporter="torchscript", verify="off")
    assert made.fixed == {"sizes.0": 2, "how": "mul", "scale": 2.0}
    assert made.model is not None
    assert json.loads(made.model.metadata_props["sardonyx.options"])["export"]["fixed"] == made.fixed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"x":1}',
        '{"x":{"output":"y"}}',
        '{"z":{"output":"y","dtype":"float32","shape":[],"initial":0}}',
        "[" * 9999,
    ],
)
def test_a_declaration_that_does_not_fit_the_model_is_ignored(text: str) -> None:
    x = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Neg", [x])
    node.outputs[0].name = "y"
    model = ir.Model(ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18}), ir_version=10)
    model.metadata_props[states.STATE] = text
    assert states.read_state(model) == {}


@pytest.mark.parametrize("first", [np.zeros((2, 0)), np.full((2, 3), -np.inf), np.array([[1.5, np.nan]]), np.int64(7)])
def test_first_values_read_back(first: Any) -> None:
    array = np.asarray(first)
    declared = states.declared_state("x", "y", array)
    np.testing.assert_array_equal(states.first_value(declared, array), array)
    assert json.loads(json.dumps(declared.initial, allow_nan=False)) == declared.initial
