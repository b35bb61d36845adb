"""Profiles add up: kernels to modules, modules to the whole, calls to one run; also with bodies, functions, no tags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.records.bench import Profile, ProfiledModel, TracedBy
from sardonyx.verbs.profile import kernel_origins, profiler

CONTROL_FLOW = """
    <ir_version: 10, opset_import: ["" : 18]>
    net (float[16, 16] x) => (float[16, 16] y, float[16, 16] z) {
        zero = Constant<value = float {0.0}>()  five = Constant<value = int64 {5}>()  yes = Constant<value = bool {1}>()
        [a__Sum] s = ReduceSum<keepdims = 0>(x)
        [a__Less] c = Less(s, zero)
        [b__If] y = If (c) <
            then_branch = th () => (float[16, 16] t) { [b__then__Sin] q = Sin(x)  [b__then__MatMul] t = MatMul(q, x) },
            else_branch = el () => (float[16, 16] e) { [b__else__Exp] e = Exp(x) }
        >
        [c__Loop] z = Loop (five, yes, x) <
            body = lp (int64 i, bool on, float[16, 16] v) => (bool go, float[16, 16] w) {
                [c__body__Identity] go = Identity(on)  [c__body__MatMul] u = MatMul(v, x)  [c__body__Tanh] w = Tanh(u)
            }
        >
    }
"""
FUNCTION = """
    <ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    net (float[8, 8] x) => (float[8, 8] y) {
        [a__block] h = own.Block(x)  [b__block] g = own.Block(h)  [c__Sin] y = Sin(g)
    }
    <domain: "own", opset_import: ["" : 18]>
    Block (x) => (y) { a = Exp(x)  b = MatMul(a, x)  y = Tanh(b) }
"""


def scoped(text: str) -> onnx.ModelProto:
    """A model whose node names are scopes, which the ONNX text form cannot express."""
    model = onnx.parser.parse_model(text)
    waiting = [model.graph]
    while waiting:
        for node in waiting.pop().node:
            node.name = "/" + node.name.replace("__", "/") if node.name else ""
            waiting += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return model


def linears(sizes: dict[str, int]) -> onnx.ModelProto:
    """Parallel products, one per module, of the given widths."""
    nodes, weights, outputs = [], [], []
    for name, size in sizes.items():
        weights.append(numpy_helper.from_array(np.ones((256, size), np.float32), f"{name}.w"))
        nodes.append(helper.make_node("MatMul", ["x", f"{name}.w"], [name], name=f"/net/{name}/MatMul"))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, size]))
    take = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 256])
    graph = helper.make_graph(nodes, "net", [take], outputs, weights)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def profiled(source, **options) -> ProfiledModel:
    [model] = sardonyx.profile(source, runs=3, **options).models
    return model


def adds_up(model: ProfiledModel) -> None:
    """Check what holds for every profile."""
    assert model.kernel_ms == pytest.approx(sum(kernel.milliseconds for kernel in model.kernels))
    owned = [kernel for kernel in model.kernels if kernel.owner is not None]
    assert model.attributed_ms == pytest.approx(sum(kernel.milliseconds for kernel in owned))
    by_path = {module.path: module for module in model.modules}
    assert by_path[""].total_ms == pytest.approx(model.attributed_ms)
    assert sum(module.self_ms for module in model.modules) == pytest.approx(model.attributed_ms)
    assert sum(module.kernels for module in model.modules) == len(owned)
    for path, module in by_path.items():
        children = [each for other, each in by_path.items() if other and other.rpartition(".")[0] == path]
        assert module.total_ms == pytest.approx(
            module.self_ms + sum(child.total_ms for child in children if child.path)
        )
        assert path == "" or path.rpartition(".")[0] in by_path
    assert sum(kernel.calls for kernel in model.kernels) == len(model.timeline)
    assert {each.kernel for each in model.timeline} == set(range(len(model.kernels)))
    assert list(model.timeline) == sorted(model.timeline, key=lambda each: (each.start_us, -each.duration_us))
    assert all(0 <= each.start_us <= each.start_us + each.duration_us for each in model.timeline)
    assert max(each.start_us + each.duration_us for each in model.timeline) <= 1000 * model.wall_ms + 1


@pytest.mark.parametrize(("name", "exporter"), [("bert", "torchscript"), ("mobilenet", "dynamo")])
def test_a_real_model_is_attributed_completely(
    name: str, exporter: str, small_model: Callable[[str, str], Path]
) -> None:
    model = profiled(small_model(name, exporter))
    adds_up(model)
    assert model.attributed >= 0.97
    assert model.runs == 3
    assert model.plain_ms > 0
    assert model.wall_ms > 0
    assert len(model.modules) > 20
    assert not model.notes


@pytest.mark.slow
def test_the_module_with_the_work_gets_the_time() -> None:
    model = profiled(linears({"large": 4096, "small": 4}))
    by_path = {module.path: module for module in model.modules}
    assert by_path["net.large"].self_ms > by_path["net.small"].self_ms
    assert by_path["net.large"].share > 0.5
    assert (by_path["net"].self_ms, by_path["net"].kernels) == (0, 0)


def test_files_are_profiled_side_by_side_on_the_same_inputs(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "net.onnx", tmp_path / "b" / "net.onnx"]
    for path in paths:
        path.parent.mkdir()
        onnx.save(linears({path.parent.name: 8}), path)
    profile = sardonyx.profile(paths, runs=2, threads=2, level="basic", seed=3)
    assert [model.label for model in profile.models] == [str(path) for path in paths]  # the names alone are ambiguous
    assert [module.path for module in profile.models[1].modules] == ["", "net", "net.b"]
    assert profile.options == {"threads": 2, "provider": "cpu", "level": "basic", "sizes": {}, "seed": 3, "runs": 2}
    assert Profile.from_json(profile.to_json()) == profile
    assert sorted(tmp_path.rglob("*.*")) == paths  # nothing is left behind


def test_bodies_of_control_flow_are_kernels_of_their_own_and_counted_once() -> None:
    model = profiled(scoped(CONTROL_FLOW))
    adds_up(model)
    by_name = {kernel.name: kernel for kernel in model.kernels}
    assert by_name["/c/body/MatMul"].calls == by_name["/c/body/Tanh"].calls == 5
    assert by_name["/c/body/MatMul"].owner == "c.body"
    assert by_name["/c/Loop"].calls == 1
    whole = next(each for each in model.timeline if model.kernels[each.kernel].name == "/c/Loop")
    inside = [each for each in model.timeline if model.kernels[each.kernel].owner == "c.body"]
    assert all(whole.start_us <= each.start_us for each in inside)
    assert ("/b/then/MatMul" in by_name) != ("/b/else/Exp" in by_name)


def test_the_nodes_of_a_function_belong_to_its_call() -> None:
    model = profiled(scoped(FUNCTION))
    adds_up(model)
    assert [kernel.owner for kernel in model.kernels] == ["a"] * 3 + ["b"] * 3 + ["c"]
    assert model.kernels[1].nodes == ("/a/block",)
    assert model.kernels[1].traced_by is TracedBy.NEIGHBOURS


def test_without_modules_all_time_belongs_to_the_model_with_a_note() -> None:
    model = linears({"a": 4, "b": 4})
    for place, node in enumerate(model.graph.node):
        node.name = f"n{place}"
    profile = profiled(model)
    adds_up(profile)
    assert [module.path for module in profile.modules] == [""]
    assert profile.attributed == 1
    assert "the file names no modules" in profile.notes[0]


def test_calls_of_one_module_are_separate_where_tagged() -> None:
    model = linears({"a": 4, "b": 8})
    for node, call in zip(model.graph.node, ("block", "block@1"), strict=True):
        tags = {"sardonyx.source_module": "/Net/Block", "sardonyx.module_path": "block", "sardonyx.call": call}
        node.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=text) for key, text in tags.items())
    profile = profiled(model)
    assert {kernel.owner for kernel in profile.kernels} == {"block", "block@1"}
    assert {module.path for module in profile.modules} == {"", "block", "block@1"}


def test_hostile_names_are_kept() -> None:
    model = linears({"a": 4})
    model.graph.node[0].name = 'x"}, {"cat" : "Node"\n\\ é'
    [kernel] = profiled(model).kernels
    assert kernel.name == model.graph.node[0].name


def test_a_provider_without_an_optimized_graph_is_traced_by_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeFailure("the model contains compiled nodes")

    monkeypatch.setattr(profiler, "saving", refuses)
    model = profiled(linears({"a": 4, "b": 8}))
    adds_up(model)
    assert {kernel.owner for kernel in model.kernels} == {"net.a", "net.b"}
    assert "by their names alone" in model.notes[0]


def test_weights_are_not_written_out(tmp_path: Path) -> None:
    model = linears({"a": 2048})
    profiler.saving(model, profiler.Settings(), tmp_path / "saved.onnx")
    assert len(kernel_origins.as_run(tmp_path / "saved.onnx").steps) == 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir() if path.is_file()) < 10_000 < model.ByteSize()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "most"}, "no level 'most'"),
        ({"runs": 0}, "0 runs measure nothing"),
        ({"sizes": {"q": 3}}, "dimension 'q'"),
        ({"provider": "none"}, "no provider 'none'"),
    ],
)
def test_invalid_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sardonyx.profile(linears({"a": 4}), **options)


def test_no_file_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no model to profile"):
        sardonyx.profile([])


def test_progress_reports_phases_and_the_record_matches_its_schema(small_model: Callable[[str, str], Path]) -> None:
    events: list[tuple[str, float | None]] = []
    profile = sardonyx.profile(small_model("cnn", "dynamo"), runs=2, progress=lambda *each: events.append(each))
    assert [phase for phase, fraction in events if fraction is None] == ["load", "run plain", "run profiled", "trace"]
    assert ("run profiled", 1.0) in events
    assert msgspec.json.decode(profile.to_json())["schema_version"] == 1


def test_one_file_at_several_sizes_is_shown_side_by_side() -> None:
    model = scoped("""
        <ir_version: 10, opset_import: ["" : 18]>
        net (float[new, 64] x, float[old, 64] past) => (float[all, 64] y) {
            [a__Sin] s = Sin(x)  [b__Concat] y = Concat<axis = 0>(past, s)
        }
    """)
    profile = sardonyx.profile(model, at=[{"new": 4096, "old": 0}, {"new": 1, "old": 8}], runs=5)
    assert [each.label for each in profile.models] == ["new=4096 old=0", "new=1 old=8"]
    many, one = ({module.path: module.total_ms for module in each.modules} for each in profile.models)
    assert many["a"] > one["a"]
    with pytest.raises(UsageError, match="dynamic dimension 'none'"):
        sardonyx.profile(model, at=[{"none": 1}])
