"""Modules that are kept: no rewrite merges across their borders, and `extract` finds them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import models as small
import sardonyx
from graphs import models
from ir.test_module_extraction import all_values, assert_correct_cut, cut, model, node, op_types
from sardonyx.errors import ModelError, UsageError
from sardonyx.ir import origins
from sardonyx.ir.io import from_proto, to_proto
from sardonyx.ir.module_region import extract
from sardonyx.records.provenance import lineage, module_of
from sardonyx.verbs.optimize.pipeline import Optimized

LINEAR = [
    node("MatMul", "x m", "a", "net.first"),
    node("Identity", "a", "b", "net.drop"),
    node("Add", "b w", "c", "net.second"),
    node("Relu", "c", "y", "net.second.act"),
]
W = {"w": np.arange(1, 5, dtype=np.float32), "m": np.ones((4, 4), np.float32)}


def _optimized(proto: onnx.ModelProto, *patterns: str) -> Optimized:
    return sardonyx.optimize(proto, verify="off", options=sardonyx.OptimizeOptions(keep_modules=patterns))


def _optimized_proto(proto: onnx.ModelProto, *patterns: str) -> onnx.ModelProto:
    model = _optimized(proto, *patterns).model
    assert model is not None
    return to_proto(model)


def _paths(proto: onnx.ModelProto) -> list[str]:
    loaded = from_proto(proto)
    origins.attach(loaded)
    paths = {above for each in loaded.graph for path in origins.origins(each) for above in lineage(module_of(path))}
    return sorted(paths - {""})


@settings(max_examples=25)
@given(models(), st.data())
def test_a_kept_module_of_any_graph_can_be_extracted_exactly(proto: onnx.ModelProto, data: st.DataObject) -> None:
    kept = data.draw(st.sampled_from(_paths(proto)))
    whole = cut(proto, kept, exact=True)
    optimized = _optimized_proto(proto, kept)
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in proto.graph.input
    }
    if kept not in _paths(optimized):
        assert set(op_types(whole)) <= {"Constant"} or not _reaches_an_output(proto, whole.outputs)
        return
    loaded = from_proto(optimized)
    after = extract(loaded, origins.attach(loaded), kept, exact=True)
    assert_correct_cut(after, all_values(optimized, feeds))
    if not _reaches_an_output(proto, whole.outputs):
        return  # the model does not use the module: its nodes may all be dead
    before = all_values(proto, feeds)
    there = all_values(optimized, feeds)
    for name in after.outputs:
        assert any(_equal(there[name], before[other]) for other in whole.outputs), "it gives what the module gave"


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5)


def _reaches_an_output(proto: onnx.ModelProto, names: tuple[str, ...]) -> bool:
    needed = {value.name for value in proto.graph.output}
    for each in reversed(proto.graph.node):
        if needed & set(each.output):
            needed |= set(each.input)
    return bool(needed & set(names))


LIVE = [
    ("bert", ["encoder.layer.1", "encoder.layer.0.attention.self.value", "pooler"]),
    ("llama", ["model.layers.0", "model.layers.1.post_attention_layernorm"]),
    ("cnn", ["block", "head", "up"]),
]


@pytest.mark.parametrize(("name", "kept"), LIVE)
@pytest.mark.parametrize("target", ["portable", "ort"])
def test_kept_modules_compute_what_the_live_ones_do(
    name: str, kept: list[str], target: Literal["portable", "ort"], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    live, inputs = small.build(name)
    raw, fast = tmp_path / "raw.onnx", tmp_path / "small.onnx"
    sardonyx.export(live, inputs, raw, exporter="torchscript", verify="off")
    run = sardonyx.optimize(raw, fast, options=sardonyx.OptimizeOptions(keep_modules=tuple(kept)), target=target)
    assert run.options["keep_modules"] == tuple(kept)
    for module in kept:
        extraction = sardonyx.extract(fast, module, exact=True, live=live, kwargs=inputs)
        before = sardonyx.extract(raw, module, verify="off")
        assert extraction.live is not None
        assert extraction.live.passed
        assert [each.shape for each in extraction.inputs] == [each.shape for each in before.inputs]
        assert [each.shape for each in extraction.outputs] == [each.shape for each in before.outputs]


def test_a_skipped_rewrite_names_the_module_whose_border_it_would_cross() -> None:
    free = _optimized(model(LINEAR, **W))
    kept = _optimized(model(LINEAR, **W), "net.second")
    assert (free.after.nodes, kept.after.nodes) == (2, 3)
    refusals = {refusal.reason for each in kept.passes for refusal in each.refusals}
    assert "it crosses the border of module net.second, which is kept" in refusals


def test_rewrites_inside_and_outside_of_a_kept_module_are_applied() -> None:
    nodes = [
        node("MatMul", "x m", "a", "net.first"),
        node("Add", "a w", "b", "net.first"),
        node("MatMul", "b m", "c", "net.second"),
        node("Add", "c w", "y", "net.second"),
    ]
    kept = _optimized_proto(model(nodes, **W), "net.first")
    assert [each.op_type for each in kept.graph.node] == ["Gemm", "Gemm"]


def test_a_kept_module_still_computes_what_others_read() -> None:
    nodes = [node("Identity", "x", "a", "net.drop"), node("Relu", "a", "y", "net.act")]
    assert _optimized(model(nodes)).after.nodes == 1
    kept = _optimized_proto(model(nodes), "net.drop")
    assert [each.op_type for each in kept.graph.node] == ["Identity", "Relu"]


def test_equal_work_of_two_kept_modules_is_not_shared() -> None:
    nodes = [node("Exp", "x", "a", "net.one"), node("Exp", "x", "b", "net.two"), node("Add", "a b", "y", "net")]
    assert _optimized(model(nodes)).after.nodes == 2
    kept = _optimized_proto(model(nodes), "net.*")
    for path in ("net.one", "net.two"):
        loaded = from_proto(kept)
        assert extract(loaded, origins.attach(loaded), path, exact=True).path == path


def test_modules_are_named_by_path_glob_or_class(tmp_path: Path) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    path = tmp_path / "model.onnx"
    sardonyx.export(layers, torch.ones(2, 4), path, exporter="torchscript", verify="off")
    free = sardonyx.optimize(path, verify="off", target="ort").after.nodes
    for pattern in ("BatchNorm1d", "1", "?"):
        assert (
            sardonyx.optimize(
                path, verify="off", target="ort", options=sardonyx.OptimizeOptions(keep_modules=(pattern,))
            ).after.nodes
            > free
        )


def test_a_pattern_that_names_nothing_is_a_usage_error_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"no module 'net\.secnd'") as caught:
        _optimized(model(LINEAR, **W), "net.secnd")
    assert "net.second" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no border"):
        _optimized(model(LINEAR, **W), "/")


def test_a_border_that_no_longer_exists_is_a_usage_error() -> None:
    fused = _optimized_proto(model(LINEAR, **W))
    with pytest.raises(UsageError, match=r"net\.second no longer has a border"):
        _optimized(fused, "net.second")


def test_extract_refuses_what_only_the_whole_model_contains_and_keeping_it_helps() -> None:
    fused = _optimized_proto(model(LINEAR, **W))
    with pytest.raises(ModelError, match=r"only the whole model contains net\.second"):
        cut(fused, "net.second")
    kept = _optimized_proto(model(LINEAR, **W), "net.second")
    assert op_types(cut(kept, "net.second")) == ["Add", "Relu"]
