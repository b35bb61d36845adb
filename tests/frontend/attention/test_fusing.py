"""Attention written by hand becomes one call with equal results and gradients, in torch and aten graphs."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from frontend.attention.by_hand import (
    BATCH,
    HEADS,
    LENGTH,
    WAYS,
    WIDTH,
    Batched,
    Causal,
    Modules,
    Projected,
    SharedHeads,
    built,
    exported,
)
from sardonyx.errors import UsageError
from sardonyx.frontend.attention.fuse import fuse_attention, fusion_of

_SDPA = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_NEED_FACTS = {"Batched", "AddedInProduct", "Windowed"}  # regrouped scores: only sizes show that rows stay rows


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.target in _SDPA]


def softmaxes(module: fx.GraphModule) -> int:
    return sum("softmax" in str(node.target).lower() for node in module.graph.nodes)


def same(module: nn.Module, other: nn.Module, *inputs: torch.Tensor, limit: float = 1e-5) -> None:
    """The outputs are the same relative to their size, and the gradients relative to the largest of them."""
    (output, gradients), (other_output, other_gradients) = _run(module, inputs), _run(other, inputs)
    assert (output - other_output).abs().max() <= limit * output.abs().max()
    assert gradients.keys() == other_gradients.keys()
    largest = torch.stack([each.abs().max() for each in gradients.values()]).max()
    for key, gradient in gradients.items():
        assert (gradient - other_gradients[key]).abs().max() <= limit * largest


def _run(module: nn.Module, inputs: Iterable[torch.Tensor]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    parameters = list(module.parameters())
    output = module(*leaves)
    weights = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
    gradients = torch.autograd.grad((output * weights).sum(), [*leaves, *parameters], allow_unused=True)
    keys = [*range(len(leaves)), *(id(parameter) for parameter in parameters)]
    return output.detach(), {key: each for key, each in zip(keys, gradients, strict=True) if each is not None}


@pytest.mark.parametrize("way", WAYS)
def test_symbolic(way: str) -> None:
    module, x = built(WAYS[way])
    traced = fx.symbolic_trace(module)
    code = traced.code
    fused = fuse_attention(traced, x)
    assert (len(calls(fused)), softmaxes(fused)) == (1, 0)
    assert traced.code == code
    same(module, fused, x)


@pytest.mark.parametrize("way", WAYS)
def test_exported(way: str) -> None:
    module, x, graph_module = exported(way)
    fused = fuse_attention(graph_module)
    assert (len(calls(fused)), softmaxes(fused)) == (1, 0), fusion_of(fused)
    assert torch.allclose(fused(x), module(x), atol=1e-6, rtol=1e-5)
    assert all("val" in node.meta for node in calls(fused))


@pytest.mark.parametrize("way", WAYS)
def test_without_example_inputs(way: str) -> None:
    module, x = built(WAYS[way])
    fused = fuse_attention(fx.symbolic_trace(module))
    fusion = fusion_of(fused)
    assert fusion is not None
    assert len(calls(fused)) == (way not in _NEED_FACTS)
    assert all("example inputs are needed to decide" in each.reason for each in fusion.refused)
    same(module, fused, x)


def test_projections_of_one_input_become_one_on_request() -> None:
    module, x = built(Projected)
    traced = fx.symbolic_trace(module)
    fused, packed = fuse_attention(traced, x), fuse_attention(traced, x, pack_projections=True)
    assert [node.target for node in fused.graph.nodes if node.op == "call_module"] == ["query", "key", "value", "out"]
    assert [node.target for node in packed.graph.nodes if node.op == "call_module"] == ["out"]
    fusion = fusion_of(packed)
    assert fusion is not None
    assert fusion.packed == (("query", "key", "value"),)
    assert packed.get_parameter("query.weight") is module.query.weight
    same(module, packed, x)


def test_projections_that_a_view_reads_stay_separate_if_sizes_are_unknown() -> None:
    module, x = built(Projected)
    packed = fuse_attention(fx.symbolic_trace(module), pack_projections=True)
    fusion = fusion_of(packed)
    assert fusion is not None
    assert fusion.packed == ()
    same(module, packed, x)


def test_dropout_follows_the_mode() -> None:
    module, x = built(Modules)
    fused = fuse_attention(fx.symbolic_trace(module))
    (call,) = calls(fused)
    rate = call.kwargs["dropout_p"]
    assert isinstance(rate, fx.Node)
    assert fused.get_submodule(str(rate.target))() == 0.0
    same(module, fused, x)
    fused.train()
    assert fused.get_submodule(str(rate.target))() == 0.25
    torch.manual_seed(0)
    assert not torch.equal(fused(x), fused(x))
    assert "dropout" not in dict(fused.named_modules())
    fused.eval()
    same(module, fused, x)


@pytest.mark.parametrize("training", [False, True])
def test_dropout_written_as_a_function_keeps_its_flag(training: bool) -> None:
    module, x = built(Batched)
    fused = fuse_attention(fx.symbolic_trace(module.train(training)), x)
    (call,) = calls(fused)
    assert call.kwargs.get("dropout_p", 0.0) == (0.3 if training else 0.0)


def test_heads_are_shared_by_the_call() -> None:
    module, x = built(SharedHeads)
    (call,) = calls(fuse_attention(fx.symbolic_trace(module), x))
    assert call.kwargs["enable_gqa"] is True
    (call,) = calls(fuse_attention(fx.symbolic_trace(module)))
    assert "enable_gqa" not in call.kwargs


def test_core_operators_with_a_dynamic_batch() -> None:
    """Torch's own decomposition writes products with merged axes; the result works for every batch size."""

    class Open(Projected):
        def forward(self, x):
            q, k, v = (
                each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
            )
            return (torch.softmax(q @ k.mT * 0.5 + self.bias, -1) @ v).transpose(1, 2).flatten(2)

    module, x = built(Open)
    program: Any = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}}, strict=False)
    fused = fuse_attention(program.run_decompositions().module())
    assert (len(calls(fused)), softmaxes(fused)) == (1, 0)
    larger = torch.randn(5, LENGTH, WIDTH)
    assert torch.allclose(fused(larger), module(larger), atol=1e-6)


def test_three_axes_become_four() -> None:
    """Torch's fast kernels, which never store all scores, need four axes."""
    module, _ = built(WAYS["Merged"])
    (call,) = calls(fuse_attention(fx.symbolic_trace(module)))
    assert [getattr(each, "target", None) for each in call.args] == [torch.unsqueeze] * 3


def test_a_mask_made_above_the_diagonal_is_causal() -> None:
    module, _ = built(Causal)
    (call,) = calls(fuse_attention(fx.symbolic_trace(module)))
    assert call.kwargs["is_causal"] is True
    assert "attn_mask" not in call.kwargs


def test_a_causal_mask_may_come_before_the_scale() -> None:
    class ScaledLate(Projected):
        def attend(self, q: Any, k: Any, v: Any) -> Any:
            later = q.new_ones((q.size(-2), k.size(-2)), dtype=torch.bool).triu(1)
            return torch.softmax((q @ k.mT).masked_fill(later, -torch.inf) * 0.5, -1) @ v

    module, x = built(ScaledLate)
    fused = fuse_attention(fx.symbolic_trace(module))
    (call,) = calls(fused)
    assert call.kwargs == {"is_causal": True, "scale": 0.5}
    same(module, fused, x)


def test_fully_masked_rows() -> None:
    """With -inf they were NaN and become 0, with a note; with a finite value they stay the mean of the values."""

    class Emptied(Projected):
        filling = -torch.inf

        def attend(self, q: Any, k: Any, v: Any) -> Any:
            gone = self.seen.new_zeros(LENGTH, LENGTH)
            gone[0] = True
            return torch.softmax((q @ k.mT).masked_fill(gone, self.filling), -1) @ v

    class Low(Emptied):
        filling = -1e9

    module, x = built(Emptied)
    fused = fuse_attention(fx.symbolic_trace(module))
    fusion = fusion_of(fused)
    assert fusion is not None
    assert fusion.fused[0].notes == ("a fully masked row is 0 instead of NaN",)
    assert module(x)[:, 0].isnan().all()
    assert torch.allclose(fused(x)[:, 0], module.out.bias.expand(BATCH, -1))
    assert torch.allclose(fused(x)[:, 1:], module(x)[:, 1:], atol=1e-6)
    module, x = built(Low)
    assert torch.allclose(fuse_attention(fx.symbolic_trace(module))(x), module(x), atol=1e-6)


def _per_key(self: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT * self.bias, -1) @ v


def _mild_fill(self: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax((q @ k.mT).masked_fill(self.seen, -5.0), -1) @ v


def _fill_then_bias(self: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax((q @ k.mT).masked_fill(~self.seen, -1e9) + self.bias, -1) @ v


def _overwritten(self: Any, q: Any, k: Any, v: Any) -> Any:
    weights = torch.softmax(q @ k.mT, -1)
    k.mul_(2.0)
    return weights @ v


def _read_scores(self: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v + scores.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("attend", "reason"),
    [
        (_per_key, "multiplied by a tensor that differs from key to key"),
        (_mild_fill, "filled with -5, which does not mask them"),
        (_fill_then_bias, "a mask is added to scores that were filled with a finite value"),
        (_overwritten, "an operand is overwritten by `mul_` before the end"),
        (_read_scores, "its scores are read elsewhere (`matmul`)"),
    ],
)
def test_what_the_call_cannot_express_stays(attend: Any, reason: str) -> None:
    module, x = built(type("Written", (Projected,), {"attend": attend}))
    fused = fuse_attention(fx.symbolic_trace(module), x)
    fusion = fusion_of(fused)
    assert fusion is not None
    assert [each.reason for each in fusion.refused] == [f"its scores are {reason}" if reason[0] in "mf" else reason]
    assert (len(calls(fused)), softmaxes(fused)) == (0, 1)
    with torch.no_grad():
        assert torch.allclose(fused(x), module(x), atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), "torch.save"])
def test_it_can_be_copied_pickled_and_saved(copied: Any) -> None:
    module, x = built(Modules)
    fused = fuse_attention(fx.symbolic_trace(module))
    if copied == "torch.save":
        stream = io.BytesIO()
        torch.save(fused, stream)
        stream.seek(0)
        other = torch.load(stream, weights_only=False)
    else:
        other = copied(fused)
    assert fusion_of(other) == fusion_of(fused)
    assert torch.equal(other(x), fused(x))
    other.train()
    assert not torch.equal(other(x), other(x))


def test_the_given_module_is_unchanged() -> None:
    module, x = built(Modules)
    traced = fx.symbolic_trace(module)
    state, code, names = copy.deepcopy(traced.state_dict()), traced.code, [name for name, _ in traced.named_modules()]
    fused = fuse_attention(traced, x)
    assert traced.code == code
    assert [name for name, _ in traced.named_modules()] == names
    assert all(torch.equal(state[name], tensor) for name, tensor in traced.state_dict().items())
    assert {id(parameter) for parameter in fused.parameters()} == {id(parameter) for parameter in traced.parameters()}
    assert not any("sardonyx_example" in node.meta for node in (*fused.graph.nodes, *traced.graph.nodes))


def test_wrong_example_inputs_are_refused() -> None:
    module, _ = built(Projected)
    with pytest.raises(UsageError, match="does not run on the example inputs"):
        fuse_attention(fx.symbolic_trace(module), torch.randn(1, 3, WIDTH))


def test_it_can_be_compiled_and_fused_in_half_precision() -> None:
    module, x = built(WAYS["AddedInProduct"])
    fused = fuse_attention(fx.symbolic_trace(module), x)
    compiled: Any = torch.compile(fused, backend="aot_eager")
    assert torch.allclose(compiled(x), module(x), atol=1e-6)
    half = module.to(torch.bfloat16)
    fused = fuse_attention(fx.symbolic_trace(half), x.bfloat16())
    assert len(calls(fused)) == 1
    assert (fused(x.bfloat16()) - half(x.bfloat16())).abs().max() < 0.02
