"""Capture with torch.export: the result is called, trained, saved and moved like the model."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frontend.attention.comparing import close
from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.roles import Role, decomposition_of
from sardonyx.frontend.attention.torch_export import FrozenModule

WIDTH, HEADS = 12, 3


class Attention(nn.Module):
    """Self-attention in the form of many libraries."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = dropout

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropped)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Has tied weights, an unused weight, buffers of both kinds, and code with a branch."""

    shift: torch.Tensor
    hidden: torch.Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.unused = nn.Linear(WIDTH, 2)
        self.first = Attention(dropout)
        self.second = self.first  # the same block twice
        self.norm = nn.LayerNorm(WIDTH)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.first.q.weight
        self.register_buffer("shift", torch.randn(WIDTH))
        self.register_buffer("hidden", torch.randn(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *, double: bool = False) -> torch.Tensor:
        if x.shape[1] > 2:  # stops symbolic tracing
            x = x + self.shift
        x = x + self.first(x, mask)
        x = self.drop(self.second(self.norm(x), mask)) + torch.arange(WIDTH, device=x.device) * self.hidden
        return self.head(x * 2 if double else x)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 5, WIDTH)


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def test_decomposes_every_attention_and_gives_the_reason_for_the_method(model: Model, x: torch.Tensor) -> None:
    result = decompose(model, x)
    decomposition = decomposition_of(result)
    assert decomposition is not None
    assert decomposition.method == "torch-export"
    assert "symbolic tracing stopped" in decomposition.why
    assert [each.module for each in decomposition.attentions] == ["first", "first@1"]
    assert not any("scaled_dot" in str(node.target) for node in result.graph.nodes)
    for number in (0, 1):
        roles = [each.role for each in decomposition.primitives.values() if each.attention == number]
        assert {Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V, Role.SPLIT_HEADS, Role.PROJECT_OUT} <= set(roles)
        assert [roles.count(role) for role in (Role.SCALE, Role.SOFTMAX, Role.MERGE_HEADS)] == [1, 1, 2]
    assert set(decomposition.modules) == {node.name for node in result.graph.nodes}
    assert {"", "first", "first.q", "first@1", "first@1.out", "norm", "head"} <= set(decomposition.modules.values())
    close(result(x), model(x))


def test_gradients_are_the_model_s_own(model: Model, x: torch.Tensor) -> None:
    mask = torch.randn(5, 5)
    result = decompose(model, (x, mask))
    wanted = torch.autograd.grad(model(x, mask).sin().sum(), list(model.parameters()), allow_unused=True)
    got = torch.autograd.grad(result(x, mask).sin().sum(), list(result.parameters()), allow_unused=True)
    for one, other in zip(got, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            close(one, other)


def test_shares_the_weights_and_does_not_change_the_model(model: Model, x: torch.Tensor) -> None:
    model.norm.train()  # a different mode
    before, flags = state(model), [each.training for each in model.modules()]
    hook = model.first.register_forward_hook(lambda *_: None)
    result = decompose(model, x)
    assert state(model) == before == state(result)
    assert list(result.state_dict()) == list(model.state_dict())
    assert [id(each) for each in result.parameters()] == [id(each) for each in model.parameters()]
    assert result.get_parameter("head.weight") is result.get_parameter("first.q.weight")
    assert [each.training for each in model.modules()] == flags
    assert list(model.first._forward_hooks) == [hook.id]
    assert result.get_buffer("hidden") is model.hidden


def state(module: nn.Module) -> dict[str, tuple[int, bytes]]:
    kept = module.state_dict(keep_vars=True)
    return {name: (id(value), value.detach().numpy().tobytes()) for name, value in kept.items()}


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("again", [saved, pickled, copy.deepcopy, copy.copy])
def test_can_be_saved_pickled_and_copied(again: Callable[[Any], Any], model: Model, x: torch.Tensor) -> None:
    result = decompose(model, x)
    other = again(result)
    assert isinstance(other, FrozenModule)
    assert torch.equal(other(x), result(x))
    assert decomposition_of(other) == decomposition_of(result)
    assert [node.name for node in other.graph.nodes] == [node.name for node in result.graph.nodes]
    assert list(other.state_dict()) == list(model.state_dict())
    assert other.get_parameter("head.weight") is other.get_parameter("first.q.weight")
    assert (other.get_parameter("head.weight") is model.head.weight) == (again is copy.copy)
    other.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    assert torch.equal(other(x), result(x)) == (again is copy.copy)


def test_training_mode_keeps_dropout_and_the_other_mode_is_refused(x: torch.Tensor) -> None:
    model = Model(dropout=0.4).train()
    result = decompose(model, x)
    assert result.training
    decomposition = decomposition_of(result)
    assert decomposition is not None
    assert [each.role for each in decomposition.primitives.values()].count(Role.DROPOUT) == 2
    torch.manual_seed(3)
    wanted = model(x)
    torch.manual_seed(3)
    close(result.train()(x), wanted)  # the same elements are dropped
    assert not torch.allclose(result(x), wanted)
    with pytest.raises(UsageError, match=r"exported by torch.export in training mode") as caught:
        nn.Sequential(result).eval()
    assert "eval mode" in str(caught.value.hint)
    assert result.training
    with pytest.raises(UsageError, match="in eval mode and cannot change to training mode"):
        decompose(model.eval(), x).train()


def test_moves_to_another_device(model: Model, x: torch.Tensor) -> None:
    moved = decompose(model, x).to("meta")
    assert moved(x.to("meta")).shape == x.shape  # fails if an arange stayed on the old device
    assert {value.device.type for value in moved.state_dict().values()} == {"meta"}
    assert not any(str(argument) == "cpu" for node in moved.graph.nodes for argument in node.kwargs.values())


def test_computes_in_another_precision_unless_the_code_fixed_one(model: Model, x: torch.Tensor) -> None:
    result = decompose(copy.deepcopy(model), x).double()
    close(result(x.double()), model.double()(x.double()))
    with pytest.raises(UsageError, match=r"x must be torch.float64"):
        result(x)

    class Casting(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to(torch.float32))

    with pytest.raises(UsageError, match=r"casts to torch.float32"):
        decompose(Casting().eval(), x).half()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(backend: str, model: Model, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    result = decompose(model, (x, torch.randn(5, 5)))
    mask = torch.randn(5, 5)
    close(torch.compile(result, backend=backend, fullgraph=True)(x, mask), model(x, mask))


def test_exports_again_and_to_onnx(model: Model, x: torch.Tensor) -> None:
    result = decompose(model, x)
    close(torch.export.export(result, (x,)).module()(x), model(x))
    program = torch.onnx.export(result, (x,), dynamo=True, verbose=False)
    assert program is not None
    close(program(x)[0], model(x))


def test_is_called_like_the_model_and_refuses_other_arguments(model: Model, x: torch.Tensor) -> None:
    mask = torch.randn(5, 5)
    result = decompose(model, kwargs={"mask": mask, "x": x, "double": True})
    wanted = model(x, mask, double=True)
    close(result(x, mask, double=True), wanted)
    close(result(double=True, mask=mask, x=x), wanted)
    with pytest.raises(UsageError, match="double is fixed at True"):
        result(x, mask)
    with pytest.raises(UsageError, match=r"x must have the sizes \[2, 5, 12\], not \[2, 6, 12\]") as caught:
        result(torch.randn(2, 6, WIDTH), mask, double=True)
    assert "`dynamic`" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"mask must be torch.float32, not torch.bool"):
        result(x, mask > 0, double=True)
    with pytest.raises(UsageError, match="mask must be a tensor, not NoneType"):
        result(x, double=True)
    with pytest.raises(UsageError, match="mask is fixed at None"):
        decompose(model, x)(x, mask)


def test_keeps_dims_dynamic_and_checks_the_assumptions_of_the_code(model: Model, x: torch.Tensor) -> None:
    result = decompose(model, x, dynamic={"x": {0: "batch", 1: "sequence"}})
    for batch, length in ((2, 5), (3, 7)):
        other = torch.randn(batch, length, WIDTH)
        close(result(other), model(other))
    for copied in (result, pickled(result)):
        with pytest.raises(UsageError, match=r"the graph holds only if x.shape\[1\] > 2"):
            copied(torch.randn(2, 2, WIDTH))
    with pytest.raises(ModelError, match=r"dimension x:2 \('width'\) cannot be dynamic: the model fixes it at 12"):
        decompose(model, x, dynamic={"x": {2: "width"}})
