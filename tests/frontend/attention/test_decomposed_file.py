"""Decomposed models are written and read without a line of code in the file."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import sardonyx
from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decomposed_file import load_decomposed, save_decomposed
from sardonyx.frontend.attention.roles import decomposition_of

KEY = "sardonyx.decomposed"
RUN = "__import__('pathlib').Path('ran').touch()"


class Answer(NamedTuple):
    mean: torch.Tensor
    others: list[torch.Tensor]


class Net(nn.Module):
    """Has layers with and without bias, tied weights, statistics, a buffer that is not saved, and an attention."""

    offset: torch.Tensor

    def __init__(self, branch: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.outer.weight = self.inner.weight
        self.register_buffer("offset", torch.arange(8.0), persistent=False)
        self.branch = branch

    def forward(self, x: torch.Tensor, scale: float = 1.5) -> Any:
        if self.branch and x.shape[0] > 64:  # stops symbolic tracing
            x = x[:64]
        y = nn.functional.gelu(self.norm(self.stem(x))).flatten(2).transpose(1, 2)
        y = y + self.attention(y, y, y, need_weights=False)[0] * scale
        z = self.outer(self.inner(y)[:, ..., :8:1] / y.shape[1] + self.offset)
        return Answer(z.mean(1), [z.to(torch.float64), z.clamp(max=float("inf"))])


def tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [tensor for item in value for tensor in tensors(item)]


def example() -> torch.Tensor:
    return torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def decomposed(*, branch: bool = False) -> Any:
    torch.manual_seed(0)
    return sardonyx.decompose(Net(branch).eval(), example())


@pytest.mark.slow
@pytest.mark.parametrize("branch", [False, True], ids=["symbolic-trace", "torch-export"])
def test_what_is_loaded_is_what_was_written(branch: bool, tmp_path: Path) -> None:
    module = decomposed(branch=branch)
    save_decomposed(module, tmp_path / "net.safetensors")
    loaded = sardonyx.load_decomposed(tmp_path / "net.safetensors")
    results = zip(tensors(module(example())), tensors(loaded(example())), strict=True)
    assert all(torch.equal(a, b) for a, b in results)
    decomposition = decomposition_of(module)
    assert decomposition is not None
    assert decomposition.method == ("torch-export" if branch else "symbolic-trace")
    assert decomposition_of(loaded) == decomposition  # the module and the role of every node
    plain = [(a, b) for a, b in zip(module.graph.nodes, loaded.graph.nodes, strict=True) if a.target is not Answer]
    assert [b.format_node() for _, b in plain] == [a.format_node() for a, _ in plain]
    assert {*loaded.state_dict()} == {*module.state_dict()}
    assert loaded.get_parameter("outer.weight") is loaded.get_parameter("inner.weight")
    assert not loaded.training
    if not branch:  # sizes stay dynamic
        assert tensors(loaded(example()[:1, :, :2]))[0].shape == (1, 8)
    fused = sardonyx.fuse_attention(loaded)
    torch.testing.assert_close(tensors(fused(example())), tensors(module(example())))


def test_a_layer_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be written to a file"):
        save_decomposed(sardonyx.decompose(nn.Sequential(nn.LSTM(4, 4)).eval()), tmp_path / "net.safetensors")
    assert not any(tmp_path.iterdir())


def test_conditions_on_sizes_are_refused(tmp_path: Path) -> None:
    """They are code."""
    module: Any = sardonyx.decompose(Net(branch=True).eval(), example(), dynamic={"x": {0: "batch", 2: "height"}})
    assert module.sardonyx_interface.guards
    with pytest.raises(ModelError, match="conditions on dynamic sizes"):
        save_decomposed(module, tmp_path / "net.safetensors")


def calling(target: str, *args: Any, op: str = "call_function") -> Callable[[dict[str, Any]], None]:
    def change(graph: dict[str, Any]) -> None:
        node = {"op": op, "name": "extra", "target": target, "args": {"tuple": [*args]}, "kwargs": {"dict": {}}}
        graph["nodes"].insert(1, node)

    return change


def renaming(op: str, name: str) -> Callable[[dict[str, Any]], None]:
    def change(graph: dict[str, Any]) -> None:
        node = next(node for node in graph["nodes"] if node["op"] == op)
        node["target"] = name

    return change


def naming(graph: dict[str, Any]) -> None:
    graph["nodes"][-2]["name"] = f"x; {RUN}"


def passing(graph: dict[str, Any]) -> None:
    graph["nodes"][-2]["kwargs"] = {"dict": {f"a={RUN}, b": 1}}


def layering(graph: dict[str, Any]) -> None:
    next(iter(graph["modules"].values()))["class"] = "modules"


def layering_with_code(graph: dict[str, Any]) -> None:
    next(iter(graph["modules"].values()))["values"] = {"forward": {"call": RUN}}


def constant(graph: dict[str, Any]) -> None:
    graph["nodes"][-2]["args"] = {"tuple": [{"torch": "load"}]}


X = {"node": "x"}
HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "function of Python": calling("os.system", "touch ran"),
    "builtin": calling("eval", RUN),
    "import": calling("builtins.__import__", "os"),
    "calls a value": calling("operator.call", X),
    "method caller": calling("operator.methodcaller", "tofile", "ran"),
    "unpickles": calling("torch.load", "ran"),
    "downloads": calling("torch.hub.load", "ran", "ran"),
    "saves": calling("torch.save", X, "ran"),
    "compiles": calling("torch.jit.script", X),
    "operator on files": calling("aten::from_file", "ran", True, 8),
    "operator of TorchScript": calling("aten::save", X, "ran"),
    "operator of another library": calling("quantized::linear", X),
    "attribute": calling("getattr", X, "__class__"),
    "method": calling("__reduce_ex__", X, 2, op="call_method"),
    "method of text": calling("format", "{}", op="call_method"),
    "kind of node": calling("x", op="exec"),
    "argument": renaming("placeholder", f"x={RUN}"),
    "weight": renaming("get_attr", f'a"), {RUN}, ("'),
    "path of a layer": renaming("call_module", f'stem"), {RUN}, ("'),
    "name": naming,
    "keyword": passing,
    "class": layering,
    "attribute of a layer": layering_with_code,
    "value of torch": constant,
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("valid") / "net.safetensors"
    save_decomposed(decomposed(), path)
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], None], output: Path) -> Path:
    with safe_open(path, "pt") as file:
        graph = json.loads(file.metadata()[KEY])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(graph)
    save_file(weights, output, {KEY: json.dumps(graph)})
    return output


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_runs_nothing(
    valid: Path, change: Callable[[dict[str, Any]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="is not a valid decomposed model"):
        load_decomposed(changed(valid, change, tmp_path / "hostile.safetensors"))
    assert os.listdir() == ["hostile.safetensors"]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (RUN,)


@pytest.mark.parametrize(
    "write", [lambda path: torch.save(Bomb(), path), lambda path: path.write_bytes(pickle.dumps(Bomb()))]
)
def test_a_pickle_is_not_loaded(write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "net.pt")
    with pytest.raises(ModelError, match="cannot be read"):
        load_decomposed(tmp_path / "net.pt")
    assert os.listdir() == ["net.pt"]


@pytest.mark.parametrize("text", [None, "", "{}", "[1]", '{"nodes": 3}', "[" * 100_000])
def test_other_files_are_refused_in_one_line(text: str | None, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors", None if text is None else {KEY: text})
    with pytest.raises(ModelError, match=r"is not a (valid )?decomposed model"):
        load_decomposed(tmp_path / "w.safetensors")
