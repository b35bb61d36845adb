"""What is left out of torch's export does not change the graph."""

from __future__ import annotations

import contextlib
import cProfile
from collections.abc import Iterator
from types import CodeType
from typing import Any

import onnx_ir as ir
import pytest
import torch
from onnxscript.rewriter import pattern
from torch import Tensor, nn

from sardonyx.frontend.tracing import dynamo, traced
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.dynamo import quick_mismatches


class Mixed(nn.Module):
    """Operators on several types, for which torch inserts casts, before and after operators on one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        scaled = self.norm(x) * count + x.double().sum()
        chosen = torch.where(x > count, scaled, count)
        return (chosen / (count > 1)).clamp(max=3) + chosen.shape[0]


def exported() -> ir.Model:
    call = ModuleCall(Mixed().eval(), (torch.randn(3, 4), torch.arange(1, 5)), {})
    return traced.export(call, "dynamo", {"x": {0: "batch"}}, None, traced.TagStyle())[0]


@pytest.mark.slow
def test_the_graph_is_the_same_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes() -> list[object]:
        return [
            (node.op_type, [value and value.name for value in node.inputs], str(node.outputs), str(node.attributes))
            for node in exported().graph
        ]

    short = nodes()
    monkeypatch.setattr(traced, "shortcuts", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(dynamo, "without_repetition", contextlib.nullcontext)
    assert short == nodes()
    assert sum(node[0] == "Cast" for node in short if isinstance(node, tuple)) > 3


@pytest.mark.slow
def test_a_second_export_does_not_read_torchs_translations_again() -> None:
    exported()
    profile = cProfile.Profile()
    profile.runcall(exported)
    calls = {each.code.co_name: each.callcount for each in profile.getstats() if isinstance(each.code, CodeType)}
    assert calls["from_torchlib"] == calls["_materialize_cpp_cia_ops"] == 1
    assert "translate_function_signature" not in calls, "from their source"
    assert "_get_allowed_types_from_type_annotation" not in calls, "for their signatures"


def test_torchs_optimizer_lists_the_graph_only_for_nodes_that_a_pattern_may_start_at() -> None:
    listed: list[str] = []

    class Listed(ir.Graph):
        def __iter__(self) -> Iterator[ir.Node]:
            listed.append("graph")
            return super().__iter__()

    def two_results(op: Any, x: Any) -> Any:
        return op.Neg(x), op.Abs(x)

    rule = pattern.RewriteRule(two_results, lambda op, x: (op.Neg(x), op.Abs(x)))
    x = ir.Value(name="x")
    nodes = [ir.node(name, [x]) for name in ("Relu", "Neg", "Abs")]
    graph = Listed([x], [node.outputs[0] for node in nodes], nodes=nodes, opset_imports={"": 18})
    model = ir.Model(graph, ir_version=9)
    with quick_mismatches():
        assert not rule.match(model, graph, nodes[0], check_nodes_are_removable=False)
        assert not listed
        found = rule.match(model, graph, nodes[1], check_nodes_are_removable=False)
    assert listed
    assert found
    assert [node.op_type for node in found.nodes] == ["Neg", "Abs"]
