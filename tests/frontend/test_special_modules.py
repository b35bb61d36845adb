"""Special modules: called twice, shared, wrapped, hooked, scripted; every node names its module."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from frontend.exported import exported
from sardonyx.errors import ModelError
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.frontend.tracing.traced import Exporter, TagStyle
from sardonyx.records import provenance as p

both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
X = torch.linspace(-1.5, 1.5, 8).reshape(2, 4)


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    torch.manual_seed(0)


class Block(nn.Module):
    """A linear layer between two operations of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(self.lin(torch.sin(x)))


class Chain(nn.Module):
    """Calls its children in the order of their names in `order`."""

    def __init__(self, order: str, **children: nn.Module) -> None:
        super().__init__()
        self.order = order.split()
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.order:
            x = self.get_submodule(name)(x)
        return torch.exp(x)


class Borrower(nn.Module):
    """Calls a module that it does not contain."""

    def __init__(self, lent: nn.Module) -> None:
        super().__init__()
        self._lent = [lent]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self._lent[0](x))


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        x = torch.sin(self.lin(x))
        return self(x, depth - 1) if depth else x


def absolute(_module: nn.Module, _args: Any, result: torch.Tensor) -> torch.Tensor:
    """A hook."""
    return torch.abs(result)


def negative(_module: nn.Module, _args: Any, result: torch.Tensor) -> torch.Tensor:
    """Another hook."""
    return torch.neg(result)


@both
def test_calls_of_one_module_have_separate_paths_and_one_tag(exporter: Exporter) -> None:
    made = exported(Chain("twice twice", twice=Block()), X, exporter=exporter)
    assert made.owners("Sin", "Gemm", "Cos") == ["twice", "twice.lin", "twice", "twice@1", "twice@1.lin", "twice@1"]
    assert made.owners("Exp") == [""]
    assert made.tags() == {"": {"/Chain"}, "twice": {"/Chain/Block"}, "twice.lin": {"/Chain/Block"}}
    calls = [node.metadata_props.get(p.CALL) for node in made.nodes if node.op_type == "Cos"]
    assert calls == [None, "twice@1"]


@both
def test_an_instance_with_two_names_uses_the_first(exporter: Exporter) -> None:
    shared = Block()
    made = exported(Chain("first second", first=shared, second=shared), X, exporter=exporter)
    assert made.owners("Sin") == ["first", "first@1"]
    table = p.ModuleTable.from_json(made.model.metadata_props[p.MODULES])
    assert table.aliases == {"second": "first", "second.lin": "first.lin"}


@both
def test_an_instance_in_two_modules_has_the_name_that_each_uses(exporter: Exporter) -> None:
    shared = Block()
    inner = {"encoder": Chain("table", table=shared), "decoder": Chain("table", table=shared)}
    made = exported(Chain("encoder decoder", shared=shared, **inner), X, exporter=exporter)
    assert made.owners("Sin") == ["encoder.table", "decoder.table"]
    assert made.owners("Gemm") == ["encoder.table.lin", "decoder.table.lin"]
    weight = made.model.graph.initializers["shared.lin.weight"]
    assert weight.metadata_props[p.MODULE_PATHS] == '["decoder.table.lin", "encoder.table.lin"]'


@both
def test_parametrizations_belong_to_the_parametrization(exporter: Exporter) -> None:
    module = Chain("normed turned", normed=parametrizations.weight_norm(nn.Linear(4, 4)), turned=nn.Linear(4, 4))
    parametrizations.orthogonal(module.get_submodule("turned"))  # by a matrix exponential, which ONNX does not have
    made = exported(module, X, exporter=exporter)
    assert made.owners("Gemm") == ["normed", "turned"]
    assert set(made.owners("ReduceL2", "Div")) == {"normed.parametrizations.weight.0"}
    assert len(made.owners("Exp")) == 1
    assert all(path != "turned.parametrizations.weight.0" for path in made.tags())


@both
def test_hooks_belong_to_the_module_they_are_registered_on(exporter: Exporter) -> None:
    module = Chain("a b", a=Block(), b=Block())
    module.get_submodule("a").register_forward_pre_hook(lambda _module, args: (torch.tanh(args[0]),))
    module.get_submodule("a").register_forward_hook(absolute)
    module.get_submodule("b.lin").register_forward_hook(negative)
    helper = nn.Sigmoid()
    module.add_module("helper", helper)
    module.get_submodule("b").register_forward_pre_hook(lambda _module, args: (helper(args[0]),))
    made = exported(module, X, exporter=exporter)
    assert made.owners("Tanh") == ["a"]
    assert made.owners("Abs") == ["a"]
    assert made.owners("Neg") == ["b.lin"]
    assert made.owners("Sigmoid") == ["helper"]


@both
def test_containers_are_on_the_path(exporter: Exporter) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.ModuleList([nn.Sequential(nn.Tanh(), nn.Sequential(nn.ReLU())), Block()])
            self.sides = nn.ModuleDict({"x": nn.ModuleDict({"op": nn.Tanh()}), "y": nn.ModuleDict({"op": nn.Tanh()})})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for item in self.items:
                x = item(x)
            return self.get_submodule("sides.x.op")(x) + self.get_submodule("sides.y.op")(x * 2.0)

    made = exported(Nested(), X, exporter=exporter)
    assert made.owners("Tanh") == ["items.0.0", "sides.x.op", "sides.y.op"]
    assert made.owners("Relu", "Sin", "Add") == ["items.0.1.0", "items.1", ""]


@both
def test_the_path_of_a_module_does_not_depend_on_its_caller(exporter: Exporter) -> None:
    owner = Chain("inner", inner=Chain("leaf", leaf=nn.Tanh()))
    module = Chain("owner borrower owner.inner.leaf", owner=owner, borrower=Borrower(owner.get_submodule("inner")))
    made = exported(module, X, exporter=exporter)
    assert made.owners("Tanh") == ["owner.inner.leaf", "owner.inner@1.leaf", "owner.inner.leaf@1"]
    assert made.owners("Sigmoid") == ["borrower"]
    assert made.owners("Exp") == ["owner.inner", "owner", "owner.inner@1", ""]


@both
def test_recursive_calls_are_numbered(exporter: Exporter) -> None:
    made = exported(Chain("deep", deep=Recursive()), X, exporter=exporter)
    assert made.owners("Sin") == ["deep", "deep@1", "deep@2"]
    assert made.owners("Gemm") == ["deep.lin", "deep@1.lin", "deep@2.lin"]


@both
def test_names_may_look_like_paths_of_sardonyx_and_contain_special_characters(exporter: Exporter) -> None:
    names = ["sardonyx0x0", "module", "a@1", "a", "layer-1", "x y", "größe", "_", "0"]
    children = {name: Chain("op", op=nn.Tanh()) for name in names}
    module = Chain("", **children)
    module.order = names
    made = exported(module, X, exporter=exporter)
    escaped = ["a%401" if name == "a@1" else name for name in names]
    assert made.owners("Tanh") == [f"{name}.op" for name in escaped]
    assert made.owners("Exp") == [*escaped, ""]
    tags = [tag for each in made.tags().values() for tag in each]
    assert len({node.name for node in made.nodes}) == len(made.nodes)
    assert len(set(tags)) == len(names) + 1


@dataclass
class Answer:
    """A result that is neither a tensor nor a tuple."""

    first: torch.Tensor
    rest: tuple[torch.Tensor, dict[str, torch.Tensor]]


class Mixed(nn.Module):
    """Arguments and results of every kind, in-place code, parameters in a list, a child without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.full((4,), 0.5)), nn.Parameter(torch.ones(4) * 2)])
        self.drop = nn.Dropout()
        self.act = nn.ReLU(inplace=True)

    def forward(self, pair: dict[str, torch.Tensor], power: int, name: str, flag: bool = False) -> Answer:
        y = pair["left"] * self.weights[0] + pair["right"] * self.weights[1]
        y.mul_(power).add_(1.0)
        y = self.act(self.drop(y)) if flag else y
        return Answer(y, (torch.sin(y), {name: torch.cos(y)}))


@both
def test_arguments_and_results_of_any_shape(exporter: Exporter) -> None:
    made = exported(Mixed(), {"left": X, "right": X + 1}, 3, "kept", exporter=exporter, flag=True)
    assert made.owners("Relu") == ["act"]
    assert made.owners("Sin", "Cos") == ["", ""]
    assert made.outputs == ["first", "rest.0", "rest.1.kept"]
    assert {"weights.0", "weights.1"} <= set(made.model.graph.initializers)


def compiled(module: nn.Module) -> nn.Module:
    """The module wrapped by torch.compile."""
    result = torch.compile(module)
    assert isinstance(result, nn.Module)
    return result


@both
def test_compiled_modules_have_the_paths_of_the_originals(exporter: Exporter) -> None:
    hooked = compiled(nn.Tanh())
    hooked.register_forward_hook(absolute)
    module = Chain("compiled hooked inplace", compiled=compiled(Block()), hooked=hooked, inplace=Block())
    module.get_submodule("inplace").compile()
    made = exported(compiled(module), X, exporter=exporter)
    assert made.owners("Gemm") == ["compiled.lin", "inplace.lin"]
    assert made.owners("Tanh", "Abs") == ["hooked", "hooked"]
    assert set(made.tags()) == {"", "compiled", "compiled.lin", "hooked", "inplace", "inplace.lin"}


def triple(x: torch.Tensor, times: int) -> torch.Tensor:
    """A function that scripted code calls."""
    return torch.abs(x) * times


class Scripted(nn.Module):
    """Code that only scripting preserves: a loop, branches, a helper, a function, sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.norm = nn.LayerNorm(4)
        self.layers = nn.ModuleList([nn.Tanh(), nn.Tanh()])
        self.rounds = 2

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.block(x))

    def forward(self, x: torch.Tensor, bias: float = 0.5, more: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(x) + bias
        for place in range(self.rounds):
            x = self.helper(x) + place
        for layer in self.layers:
            x = layer(x)
        if more and x.size(1) > 2:
            x = triple(x, 3)
        flat = x.view(x.size(0), 2, -1)
        return x, flat.sum(1)


class Holder(nn.Module):
    """Contains a scripted or traced module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.inner(x)
        return torch.exp(first).sum(1) + second.sum(1)


@both
@pytest.mark.parametrize("kind", ["scripted", "traced", "script of all"])
def test_nodes_inside_scripted_modules_have_their_paths(exporter: Exporter, kind: str) -> None:
    inner = Scripted().eval()
    wrapped: Any = inner
    if kind != "script of all":
        wrapped = torch.jit.script(inner) if kind == "scripted" else torch.jit.trace(inner, X)
    module: nn.Module = Holder(wrapped)
    module = torch.jit.script(module.eval()) if kind == "script of all" else module
    axes = {"x": {0: "batch"}}
    made = exported(module, X, exporter=exporter, axes=axes, others=[[torch.randn(5, 4)]])
    assert made.owners("Gemm") == ["inner.block.lin", "inner.block@1.lin"]
    assert made.owners("Cos") == ["inner.block", "inner.block@1"]
    assert made.owners("Sigmoid", "Abs") == ["inner"] * 3
    assert made.owners("Tanh") == ["inner.layers.0", "inner.layers.1"]
    assert made.owners("LayerNormalization") == ["inner.norm"]
    assert made.owners("Exp") == [""]
    assert made.tags()["inner.block.lin"] == {"/Holder/Scripted/Block"}
    assert "inner.block.lin.weight" in made.model.graph.initializers


class Library(nn.Module):
    """Torch's own modules, whose scripts check types, devices and sizes, and code with lists and dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Dropout())
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for part in self.conv(x).chunk(2, 1):
            parts.append(part / x.size(0))  # noqa: PERF401  # a comprehension is scripted differently
        x = torch.cat(parts, 1).transpose(1, 2)
        if x.dtype == torch.float32:
            x = {"attended": self.attend(x, x, x)[0]}["attended"]
        return self.lstm(x)[0]


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_torchs_own_modules_may_be_scripted(kind: str) -> None:
    x, module = torch.randn(2, 8, 5), Library().eval()
    wrapped: Any = torch.jit.script(module) if kind == "scripted" else torch.jit.trace(module, x, check_trace=False)
    made = exported(nn.Sequential(wrapped), x, exporter="torchscript")
    assert made.owners("Conv", "Softmax", "LSTM") == ["0.conv.0", "0.attend", "0.lstm"]
    assert made.tags()["0.attend"] == {"/Sequential/Library"}


def scripted_hook(self: Any, args: tuple[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
    """A hook that torch scripts together with its module."""
    return torch.abs(result)


@both
def test_hooks_of_scripted_modules_are_kept(exporter: Exporter) -> None:
    block = Block()
    block.register_forward_hook(scripted_hook)
    block.lin.register_forward_hook(scripted_hook)
    made = exported(Chain("block", block=torch.jit.script(block)), X, exporter=exporter)
    assert made.owners("Abs") == ["block", "block"]


class Assigning(nn.Module):
    """Changes itself while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


@both
def test_a_script_that_changes_itself_is_refused_in_one_line(exporter: Exporter) -> None:
    with pytest.raises(ModelError, match="a scripted module cannot be exported: it uses prim::SetAttr") as refusal:
        exported(Chain("inner", inner=torch.jit.script(Assigning())), X, exporter=exporter)
    assert "torch.jit.script" in str(refusal.value.hint)


def _everything(module: nn.Module) -> list[Any]:
    """All parts of a module, by identity if they have one."""
    parts: list[Any] = []
    for name, each in module.named_modules(remove_duplicate=False):
        hooks = [list(each.__dict__[table]) for table in each.__dict__ if table.endswith("hooks")]
        parts.append((name, id(each), type(each), each.training, hooks, each.__dict__.get("_compiled_call_impl")))
    return parts


@pytest.mark.parametrize("fails", [False, True])
def test_the_module_is_unchanged_afterwards(fails: bool) -> None:
    hooked = compiled(nn.Tanh())
    hooked.register_forward_hook(lambda _module, _args, result: result)
    turned = parametrizations.orthogonal(nn.Linear(4, 4))
    inside = {"compiled": compiled(Block()), "scripted": torch.jit.script(Block()), "turned": turned}
    module = Chain("", **inside, hooked=hooked, plain=Block(), evaluated=Block().eval())
    module.get_submodule("plain").compile()
    before, state = _everything(module), copy.deepcopy(module.state_dict())
    try:
        with prepared(module) as plain:
            assert not any(each.training for each in plain.modules())
            assert not any(isinstance(each, torch.jit.ScriptModule) for each in plain.modules())
            assert not any(hasattr(each, "_orig_mod") for each in plain.modules())
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert _everything(module) == before
    after = module.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], state[name]) for name in state)


@both
def test_tags_may_include_torchs_own_modules(exporter: Exporter) -> None:
    module = Chain("a b norm", a=Block(), b=Block(), norm=nn.LayerNorm(4))
    made = exported(module, X, exporter=exporter, style=TagStyle(include_torch_nn=True))
    assert made.tags()["a.lin"] == {"/Chain/Block.a/Linear"}
    assert made.tags()["norm"] == {"/Chain/LayerNorm"}
    tags = [tag for each in made.tags().values() for tag in each]
    assert len(tags) == len(set(tags)) == len(made.tags())
