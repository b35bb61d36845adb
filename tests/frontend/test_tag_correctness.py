"""Tags are correct: an independent tracer of the eager run finds the same modules, and notices wrong ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import architectures
import handmade
import tracer
import truth
from sardonyx.records.run import How

SLICE = [("called-twice", "dynamo"), ("bert", "dynamo")]
SLICE += [
    (name, "torchscript") for name in ("called-twice", "two-names", "cnn-mlp", "cnn-attention", "bert", "gpt2-past")
]


def test_an_operation_belongs_to_the_module_that_is_running() -> None:
    module = handmade.ConvolutionAndPerceptron().eval()
    traced = tracer.trace(module, (torch.randn(2, 3, 16, 16),), {})
    ran = [(one.op.split(".")[1], set(one.modules)) for one in traced]
    assert ("convolution", {"features.0"}) in ran
    assert ("relu", {"features.2"}) in ran
    assert ("mul", {""}) in ran  # between the modules, in the model's own forward
    assert ("sigmoid", {""}) in ran
    assert [modules for op, modules in ran if op == "addmm"] == [{"heads.a"}, {"heads.b"}]


def test_an_instance_has_all_its_names() -> None:
    traced = tracer.trace(handmade.TwoNames().eval(), (torch.randn(2, 12),), {})
    assert [set(one.modules) for one in traced if "sigmoid" in one.op] == [{"first.1", "second.1"}] * 2


def test_calls_are_distinguished() -> None:
    traced = tracer.trace(handmade.CalledTwice().eval(), (torch.randn(2, 12),), {})
    assert [set(one.calls) for one in traced if "tanh" in one.op] == [{"twice.1"}, {"twice@1.1"}]


def test_a_result_is_kept_from_before_it_was_overwritten() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    traced = tracer.trace(module, (torch.randn(3, 4),), {})
    before = next(one for one in traced if "addmm" in one.op)
    after = next(one for one in traced if "relu" in one.op)
    assert before.value.min() < 0 <= after.value.min()
    assert not after.passes_through


def test_hooks_are_gone_after_a_trace() -> None:
    module = handmade.CalledTwice()
    tracer.trace(module, (torch.randn(2, 12),), {})
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


@pytest.mark.parametrize(("name", "exporter"), SLICE)
def test_every_tag_names_the_module_that_ran(name: str, exporter: str) -> None:
    verdict = truth.check(name, exporter)
    assert not verdict.disagreements
    decisive = verdict.traced.total() - verdict.traced["untelling"]
    assert verdict.traced["agree"] + verdict.traced["elided"] >= 0.6 * decisive  # otherwise the test would show nothing
    assert verdict.unique >= 0.9 * verdict.nodes["agree"]


def test_a_tag_of_a_neighbouring_module_is_detected(tmp_path: Path) -> None:
    """Sensitivity: moving any decisive node to its parent, a sibling or the root is a disagreement."""
    case = architectures.build("bert")
    path = tmp_path / "model.onnx"
    architectures.export(case, path, "torchscript", verify="off")
    exported = truth.run_exposed(path, truth.feeds_of(case))
    traced = tracer.trace(case.module, case.args, case.kwargs)
    assert not truth.judge(exported, traced).disagreements
    for wrong in (lambda path: path.rpartition(".")[0], lambda path: path.replace("layer.0", "layer.1"), lambda _: ""):
        moved = [dataclasses.replace(each, owner=wrong(each.owner)) for each in exported if each.how is How.DIRECT]
        changed = sum(
            a.owner != b.owner for a, b in zip(moved, (e for e in exported if e.how is How.DIRECT), strict=True)
        )
        verdict = truth.judge(moved, traced)
        assert len(verdict.disagreements) >= 0.3 * changed


@pytest.mark.parametrize("name", ["called-twice", "two-names", "cnn-attention"])
def test_torchs_own_graph_runs_the_same_operations_in_the_same_modules(name: str) -> None:
    both, only_eager, only_graph = truth.structure(architectures.build(name))
    assert both
    assert not only_eager
    assert not only_graph
