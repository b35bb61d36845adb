"""Symbolic tracing: like torch's except for attention; the model is unchanged, and the result can be pickled."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.nn import functional as F

from frontend.attention import comparing
from frontend.attention.comparing import random_tensor, random_weights
from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompose import trace
from sardonyx.frontend.attention.roles import Role, decomposition_of


class Block(nn.Module):
    """Attention called twice with the same weights, with other operations around it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.register_buffer("table", torch.randn(5, 8))

    def forward(self, x: Any, mask: Any = None) -> Any:
        y = self.norm(x) + self.table
        y = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        again, weights = self.attention(y, x, x)
        return self.dense(again) * torch.tensor([2.0]), weights.sum()


def _doubled(_module: nn.Module, _args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def _tripled_output(_module: nn.Module, _args: Any, result: tuple[Any, Any]) -> tuple[Any, Any]:
    return result[0] * 3, result[1]


def _x() -> torch.Tensor:
    return random_tensor(2, 5, 8)


def test_everything_but_attention_equals_symbolic_trace() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dense = nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("table", torch.ones(4))

        def forward(self, x, *, factor=2.0):  # annotations have their own test
            a, b = self.norm(x).chunk(2, dim=-1)
            return {"y": self.dense(torch.cat((a, b), -1)) * self.scale + self.table, "x": [x.sum(-1) * factor, None]}

    model = Plain()
    ours, theirs = trace(model), fx.symbolic_trace(model)
    assert ours.code == theirs.code
    assert str(ours.graph) == str(theirs.graph)
    assert [node.meta.keys() for node in ours.graph.nodes] == [node.meta.keys() for node in theirs.graph.nodes]
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_nodes_know_their_module_and_role() -> None:
    traced = trace(random_weights(Block(dropout=0.1)))
    decomposition = decomposition_of(traced)
    assert decomposition is not None
    assert (decomposition.method, decomposition.why, decomposition.opaque) == ("symbolic-trace", "", ())
    assert [a.module for a in decomposition.attentions] == ["attention", "attention@1"]
    names = {node.name for node in traced.graph.nodes}
    assert set(decomposition.modules) == names
    assert set(decomposition.primitives) <= names
    first = {p.role for p in decomposition.primitives.values() if p.attention == 0}
    assert first == set(Role)
    second = {p.role for p in decomposition.primitives.values() if p.attention == 1}
    assert second == set(Role) - {Role.MASK}
    assert decomposition.modules["norm"] == "norm"
    for name, primitive in decomposition.primitives.items():
        assert decomposition.modules[name] == decomposition.attentions[primitive.attention].module
    scaled = [n for n in traced.graph.nodes if n.name in decomposition.primitives and n.target is torch.mul]
    assert len(scaled) == 2
    assert all(n.args[0].target is torch.matmul and n.args[1] == pytest.approx(0.5) for n in scaled)


def test_the_model_is_unchanged() -> None:
    class Careless(Block):
        calls: torch.Tensor

        def forward(self, x: Any, mask: Any = None) -> Any:
            self.seen = x
            self.attention.remembered = x
            self.calls += 1
            return super().forward(x, mask)

    model = random_weights(Careless(dropout=0.3))
    model.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    model.dense[2].weight = nn.Parameter(model.dense.get_parameter("0.weight").detach().t().contiguous())
    model.dense[1].register_forward_hook(_doubled)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    identity = {name: id(value) for name, value in model.named_parameters()}
    before_trace = {name: (dict(vars(m)), dict(m._parameters), dict(m._buffers)) for name, m in model.named_modules()}
    forwards = [cls.forward for cls in (nn.MultiheadAttention, nn.TransformerEncoder, nn.Transformer)]
    traced = trace(model)
    assert identity == {name: id(value) for name, value in model.named_parameters()}
    assert identity == {name: id(value) for name, value in traced.named_parameters()}
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for name, module in model.named_modules():
        for now, before in zip((vars(module), module._parameters, module._buffers), before_trace[name], strict=True):
            assert {k: id(v) for k, v in now.items()} == {k: id(v) for k, v in before.items()}
    assert forwards == [cls.forward for cls in (nn.MultiheadAttention, nn.TransformerEncoder, nn.Transformer)]
    model.eval()
    traced.eval()
    comparing.agree(comparing.run(traced, {"x": _x()}, grad=True), comparing.run(model, {"x": _x()}, grad=True))


def test_classes_are_restored_after_a_failure() -> None:
    class Stuck(Block):
        def forward(self, x: Any, mask: Any = None) -> Any:
            result = super().forward(x, mask)
            return result if x.sum() > 0 else x

    before = nn.MultiheadAttention.forward
    model = Stuck()
    before_trace = dict(vars(model))
    with pytest.raises(TraceError):
        trace(model)
    assert nn.MultiheadAttention.forward is before
    assert vars(model).keys() == before_trace.keys()


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 4)
            self.two.in_proj_weight = self.one.in_proj_weight

        def forward(self, x: Any) -> Any:
            return self.two(self.one(x, x, x)[0], x, x)[0]

    model = random_weights(Tied())
    traced = trace(model)
    assert {id(p) for p in traced.parameters()} == {id(p) for p in model.parameters()}
    comparing.agree(comparing.run(traced, {"x": _x()}, grad=True), comparing.run(model, {"x": _x()}, grad=True))


def _saved(module: fx.GraphModule) -> fx.GraphModule:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _pickled(module: fx.GraphModule) -> fx.GraphModule:
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("way", [_saved, _pickled, copy.deepcopy])
def test_the_result_keeps_its_decomposition_when_saved(way: Callable[[fx.GraphModule], fx.GraphModule]) -> None:
    traced = trace(random_weights(Block(dropout=0.1)).eval())
    there = way(traced)
    assert [n.name for n in there.graph.nodes] == [n.name for n in traced.graph.nodes]
    assert decomposition_of(there) == decomposition_of(traced)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    inputs = {"x": _x(), "mask": mask}
    comparing.agree(comparing.run(there, inputs, grad=True), comparing.run(traced, inputs, grad=True))


def test_it_follows_training_and_evaluation() -> None:
    model = random_weights(Block(dropout=0.5)).eval()
    traced = trace(model)
    quiet = comparing.run(traced, {"x": _x()}, grad=False)
    comparing.agree(quiet, comparing.run(model, {"x": _x()}, grad=False))
    model.train()
    traced.train()
    loud = comparing.run(traced, {"x": _x()}, grad=True)
    comparing.agree(loud, comparing.run(model, {"x": _x()}, grad=True))
    assert not torch.allclose(loud[0], quiet[0])


def test_it_changes_dtype() -> None:
    model = random_weights(Block()).eval()
    traced = trace(model).to(torch.float64)
    inputs = {"x": _x().double()}
    comparing.agree(comparing.run(traced, inputs, grad=False), comparing.run(model.double(), inputs, grad=False))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_has_no_graph_break(backend: str) -> None:
    model = random_weights(Block()).eval()
    compiled = torch.compile(trace(model), backend=backend, fullgraph=True)
    inputs = {"x": _x(), "mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}
    comparing.agree(comparing.run(compiled, inputs, grad=False), comparing.run(model, inputs, grad=False))


def test_it_can_be_exported_to_onnx() -> None:
    model = random_weights(Block()).eval()
    inputs = {"x": _x(), "mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}
    program = torch.onnx.export(trace(model), kwargs=inputs, dynamo=True, verbose=False)
    assert program is not None
    results = [torch.as_tensor(result) for result in program(**inputs)]
    comparing.agree(results, comparing.run(model, inputs, grad=False))


def test_string_annotations_do_not_prevent_saving() -> None:
    """Postponed annotations are strings; torch writes them into its code, which cannot import them."""

    class Annotated(nn.Module):
        def forward(self, x: NotThere) -> NotThere:  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
            return x + 1

    assert _pickled(trace(Annotated()))(torch.ones(1)) == 2


def test_hooks_are_traced() -> None:
    model = random_weights(Block()).eval()
    model.attention.register_forward_hook(_tripled_output)
    comparing.agree(comparing.run(trace(model), {"x": _x()}, grad=False), comparing.run(model, {"x": _x()}, grad=False))


def test_a_wrapped_function_is_listed() -> None:
    class Wrapping(nn.Module):
        def forward(self, x: Any) -> Any:
            return hidden(x)

    decomposition = decomposition_of(trace(Wrapping()))
    assert decomposition is not None
    assert [name.rpartition(".")[2] for name in decomposition.opaque] == ["hidden"]


@fx.wrap
def hidden(x: torch.Tensor) -> torch.Tensor:
    """A function that the author excluded from tracing."""
    return F.scaled_dot_product_attention(x, x, x)


def test_a_branch_on_values_stops_the_trace() -> None:
    class Asks(nn.Module):
        def forward(self, x: Any, causal: Any) -> Any:
            return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    with pytest.raises(TraceError, match="is_causal is computed"):
        trace(Asks())


def test_a_quantizable_attention_is_refused_by_name() -> None:
    holder = nn.Sequential(torch.ao.nn.quantizable.MultiheadAttention(8, 2))
    with pytest.raises(ModelError, match="0: MultiheadAttention"):
        trace(holder)
