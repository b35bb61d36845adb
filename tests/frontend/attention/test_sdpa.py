"""SDPA in exported graphs with known tensors, and calls that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from frontend.attention import comparing, random_modules
from sardonyx.errors import ModelError
from sardonyx.frontend.attention import decompositions, opaque_ops
from sardonyx.frontend.attention.decompose import trace
from sardonyx.frontend.attention.decompositions import AttentionWriter
from sardonyx.frontend.attention.roles import Primitive, Role


def _exported(case: random_modules.Sdpa, inputs: dict[str, Any]) -> tuple[fx.GraphModule, dict[str, Primitive]]:
    """The call in a graph whose inputs have metadata."""
    graph, mode = fx.Graph(), FakeTensorMode()
    nodes: dict[str, fx.Node | None] = {}
    for name, value in inputs.items():
        node = graph.placeholder(name)
        nodes[name] = node if value is not None else None
        if value is not None:
            node.meta["val"] = mode.from_tensor(value)
    primitives: dict[str, Primitive] = {}
    writer = AttentionWriter(graph.create_node, True, 0, primitives)
    query, key, value, mask = nodes.values()
    assert query is not None
    assert key is not None
    assert value is not None
    causal, shared = case.mask == "causal", case.groups is not None
    result = decompositions.write_sdpa(
        writer, query, key, value, mask, case.dropout, causal, scale=case.scale, enable_gqa=shared
    )
    graph.output(result)
    graph.lint()
    return fx.GraphModule({}, graph), primitives


@settings(max_examples=100)
@given(random_modules.sdpas())
def test_exported_operators_compute_the_same(case: random_modules.Sdpa) -> None:
    inputs = random_modules.sdpa_inputs(case)
    written, primitives = _exported(case, inputs)
    assert all(isinstance(n.target, torch._ops.OpOverload) for n in written.graph.nodes if n.op == "call_function")
    assert {n.name for n in written.graph.nodes if n.op == "call_function"} == set(primitives)
    with random_modules.kernel(case):
        expected = comparing.run(random_modules.Sdpas(case), inputs, grad=True)
        truth = comparing.run(random_modules.Sdpas(case).double(), comparing.doubled(inputs), grad=True)
    comparing.agree(comparing.run(written, inputs, grad=True), expected, truth)


def test_the_steps_are_in_order() -> None:
    class Call(nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask, 0.1)

    decomposition: Any = trace(Call()).sardonyx_decomposition
    roles = list(dict.fromkeys(p.role for p in decomposition.primitives.values()))
    assert roles == [Role.SCORES, Role.SCALE, Role.MASK, Role.SOFTMAX, Role.DROPOUT, Role.MIX]


class Masked(nn.Module):
    """SDPA with a mask argument."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def test_a_mask_may_be_omitted_at_run_time() -> None:
    q = torch.randn(2, 3, 4)
    torch.testing.assert_close(trace(Masked())(q, q, q), F.scaled_dot_product_attention(q, q, q))


def test_a_mask_and_causal_together_are_refused() -> None:
    with pytest.raises(ModelError, match="attn_mask or is_causal"):
        trace(Masked(is_causal=True))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.uint8])
def test_masks_of_other_dtypes_are_refused_at_run_time(dtype: torch.dtype) -> None:
    q, mask = torch.randn(2, 3, 4), torch.ones(3, 3, dtype=dtype)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    with pytest.raises(RuntimeError, match="mask must be bool"):
        trace(Masked())(q, q, q, mask)


@pytest.mark.parametrize(("heads", "groups"), [(3, 2), (1, 2)])
def test_heads_that_cannot_be_shared_are_refused_at_run_time(heads: int, groups: int) -> None:
    q, k = torch.randn(heads, 3, 4), torch.randn(groups, 3, 4)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    with pytest.raises(RuntimeError, match="cannot share"):
        trace(Masked(enable_gqa=True))(q, k, k)


def test_large_half_precision_scores_do_not_overflow() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(64, 64, dtype=torch.float16)

        def forward(self, q: Any) -> Any:
            return F.scaled_dot_product_attention(self.dense(q), q, q)

    model = Model()
    model.dense.weight.data.copy_(torch.eye(64))
    q = torch.full((1, 2, 64), 40.0, dtype=torch.float16)  # q kᵀ overflows float16, its scaled value does not
    expected = model(q)
    assert expected.isfinite().all()
    torch.testing.assert_close(trace(model)(q), expected)


def test_opaque_operators_stay_single_nodes_when_traced_again() -> None:
    def uses(x: Any, y: Any) -> Any:
        return (
            opaque_ops.widen(x) * opaque_ops.default_scale(x)
            + opaque_ops.heads_per_group(x, y)
            + opaque_ops.additive_mask(y, x, False)
        )

    graph = fx.symbolic_trace(uses).graph
    names = [n.target.__name__ for n in graph.nodes if n.op == "call_function"]
    assert [name for name in names if hasattr(opaque_ops, name)] == [
        "widen",
        "default_scale",
        "heads_per_group",
        "additive_mask",
    ]
