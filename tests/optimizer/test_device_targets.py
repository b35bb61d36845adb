"""`optimize --target DEVICE`: every new node has a kernel on the device, if those that it replaces have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx
import pytest

import sardonyx
from sardonyx.errors import UsageError
from sardonyx.ir.device import read_profile, target_named
from sardonyx.verbs.optimize.pipeline import Optimized

SmallModel = Callable[[str, str], Path]
NORM = """
    n{i} = Mul(x{i}, x{i})  m{i} = ReduceMean <keepdims = 1> (n{i}, last)  e{i} = Add(m{i}, small)
    s{i} = Sqrt(e{i})  d{i} = Div(x{i}, s{i})  x{j} = Mul(d{i}, scale)
"""


def operators(run: Optimized) -> Counter[str]:
    return Counter(f"{node.domain}:{node.op_type}".lstrip(":") for node in run.to_proto().graph.node)


def norms(count: int) -> onnx.ModelProto:
    """Cos, which WebGPU has up to opset 21, and norms that need opset 23 to be one node."""
    body = "".join(NORM.format(i=index, j=index + 1) for index in range(count))
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 18]>
        agraph (float[N, 8] x) => (float[N, 8] y)
        <int64[1] last = {{-1}}, float[1] small = {{1e-5}}, float[8] scale = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
            x0 = Cos(x) {body} y = Identity(x{count})
        }}""")


@pytest.mark.parametrize(("device", "model"), [("webgpu", "bert"), ("cuda", "mobilenet")])
def test_new_nodes_have_kernels(device: str, model: str, small_model: SmallModel) -> None:
    source = small_model(model, "torchscript")
    made = sardonyx.optimize(source, target=device, verify="off")
    before, after = sardonyx.placement(source, device), sardonyx.placement(made.to_proto(), device)
    assert after.unsupported_nodes == after.unknown_nodes == 0
    assert after.fallback_nodes <= before.fallback_nodes
    away = sardonyx.placement(sardonyx.optimize(source, target="ort", verify="off").to_proto(), device)
    assert away.unsupported_nodes + away.fallback_nodes > after.fallback_nodes  # so the device decided something
    reasons = {each.reason.partition(" kernel")[0].partition(":")[0] for rule in made.passes for each in rule.refusals}
    assert {"webgpu": "webgpu has no", "cuda": "slower there"}[device] in reasons


def test_a_fusion_may_pass_through_an_operator_that_the_device_lacks(small_model: SmallModel) -> None:
    made = sardonyx.optimize(small_model("bert", "torchscript"), target="webgpu")
    found = operators(made)
    assert found["com.microsoft:Attention"] == 2
    assert "Attention" not in found
    assert found["com.microsoft:SkipLayerNormalization"] > 0  # slower on a CPU alone
    assert made.verdict is not None
    assert made.verdict.passed
    assert made.verdict.rewrites is not None
    replaced = [event for event in made.events if event.kind not in ("drop", "share")]
    assert 0 < made.verdict.rewrites.rewrites <= len(made.events)  # none of the runs before the last one
    assert made.verdict.rewrites.rewrites >= len(replaced)


def test_the_opset_is_raised_if_the_fusions_are_worth_a_node_that_falls_back() -> None:
    one, many = (sardonyx.optimize(norms(count), target="webgpu", verify="off") for count in (1, 8))
    assert operators(one)["RMSNormalization"] == 0
    assert sardonyx.placement(one.to_proto(), "webgpu").fallback_nodes == 0
    assert operators(many)["RMSNormalization"] == 8
    assert sardonyx.placement(many.to_proto(), "webgpu").fallback_nodes == 1
    assert operators(sardonyx.optimize(norms(1), target="cuda", verify="off"))["RMSNormalization"] == 1


def test_a_profile_of_ones_own_is_a_target(tmp_path: Path, small_model: SmallModel) -> None:
    data = msgspec.to_builtins(read_profile("webgpu"))
    data["operators"]["com.microsoft:Attention"] = {"1": {"fails": ["float,float,float"]}}
    data["runtime"] = "onnxruntime 1.0.0"
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(data))
    made = sardonyx.optimize(small_model("bert", "torchscript"), target=str(path), verify="off")
    assert not {"com.microsoft:Attention", "Attention"} & operators(made).keys()
    assert made.options["target"] == str(path)
    assert any("measured with onnxruntime 1.0.0, and" in note for note in made.notes)


def test_other_runtimes_get_standard_operators(small_model: SmallModel) -> None:
    assert target_named("openvino").operators == "portable"
    assert target_named("cuda").operators == "ort"
    made = sardonyx.optimize(small_model("bert", "torchscript"), target="openvino", verify="off")
    assert {node.domain for node in made.to_proto().graph.node} == {""}


def test_a_target_that_nobody_knows_is_an_error(small_model: SmallModel) -> None:
    with pytest.raises(UsageError, match="there is no target 'gpu'"):
        sardonyx.optimize(small_model("bert", "torchscript"), target="gpu")
