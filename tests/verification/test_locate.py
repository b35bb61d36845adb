"""`sardonyx.locate` names the module with a planted fault, its share, and errors that accumulate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.records.comparison import Location

WIDTH, BLOCKS = 8, 6
RUNTIME_NAMES = {"reference": "onnx.reference", "openvino": "openvino"}


def network(changed: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None) -> onnx.ModelProto:
    """Linear and Tanh in each of six blocks with a residual connection; `changed` replaces weights by name."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    value = "x"
    for block in range(BLOCKS):
        name, scope = f"blocks.{block}.linear.weight", f"/blocks.{block}"
        array = (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32)
        array = (changed or {}).get(name, lambda same: same)(array)
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        nodes += [
            helper.make_node("MatMul", [value, name], [f"{scope}/linear/out"], f"{scope}/linear/MatMul"),
            helper.make_node("Tanh", [f"{scope}/linear/out"], [f"{scope}/act/out"], f"{scope}/act/Tanh"),
            helper.make_node("Add", [value, f"{scope}/act/out"], [f"{scope}/out"], f"{scope}/Add"),
        ]
        value = f"{scope}/out"
    nodes[-1].output[0] = "y"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def nudged(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[2, 3] += 0.1
    return array


def test_a_module_that_was_left_in_training_mode_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)).eval()
    example = (torch.randn(5, 8),)
    sardonyx.export(model, example, tmp_path / "m.onnx")
    mean = model[1].running_mean.clone()
    model[1].train()
    location = sardonyx.locate(model, tmp_path / "m.onnx", inputs=example)
    assert not location.same
    assert location.module is not None
    assert location.module.module == "1"
    assert "in training mode, as they were given: 1" in location.notes
    assert torch.equal(mean, model[1].running_mean)
    assert model[1].training
    whole = sardonyx.locate(model.train(), tmp_path / "m.onnx", inputs=example)
    assert whole.same
    assert whole.notes == ("the PyTorch module is in training mode, and was compared in eval mode",)


def untagged(model: onnx.ModelProto) -> onnx.ModelProto:
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    return model


@pytest.mark.parametrize("block", [0, 3, 5])
@pytest.mark.parametrize("other", ["second", "first", "both"])
def test_a_file_without_tags_is_paired_by_the_names_of_values(block: int, other: str) -> None:
    a, b = network(), network({f"blocks.{block}.linear.weight": nudged})
    a, b = (untagged(a) if other != "second" else a), (untagged(b) if other != "first" else b)
    location = sardonyx.locate(a, b, threads=1)
    assert location.module is not None
    named = f"n{3 * block}" if other == "both" else f"blocks.{block}.linear"
    assert location.module.module == named
    assert location.module.nodes[-1] == (f"n{3 * block}" if other != "first" else f"/blocks.{block}/linear/MatMul")
    assert [share.module for share in location.shares] == [named]


@pytest.mark.parametrize("block", [0, 3, 5])
def test_the_module_with_a_changed_weight_causes_the_whole_error(block: int) -> None:
    location = sardonyx.locate(network(), network({f"blocks.{block}.linear.weight": nudged}), threads=1)
    assert not location.same
    assert not location.gradual
    assert location.module is not None
    assert location.module.module == f"blocks.{block}.linear"
    assert location.module.share == pytest.approx(1.0, abs=1e-3)
    assert [share.module for share in location.shares] == [f"blocks.{block}.linear"]
    assert Location.from_json(location.to_json()) == location


def test_equal_models_have_no_differing_module() -> None:
    location = sardonyx.locate(network(), network(), threads=1)
    assert (location.same, location.module, location.shares, location.error) == (True, None, (), 0.0)


@pytest.mark.medium
def test_an_error_of_all_modules_accumulates() -> None:
    changed = {f"blocks.{block}.linear.weight": lambda w: w.astype(np.float16).astype(np.float32) for block in range(6)}
    location = sardonyx.locate(network(), network(changed), threads=1)
    assert location.gradual
    assert location.spread >= 4
    assert location.module is not None
    assert location.module.module == "blocks.0.linear"


@pytest.mark.medium
def test_a_module_of_the_first_model_is_put_into_the_second_alone() -> None:
    """Two faults: without either one, the error of the other is left."""
    faults = ["blocks.1.linear.weight", "blocks.4.linear.weight"]
    changed = dict(zip(faults, (nudged, lambda array: array * 1.2), strict=True))
    location = sardonyx.locate(network(), network(changed), threads=1)
    errors = [sardonyx.locate(network(), network({fault: changed[fault]}), threads=1).error for fault in faults]
    alone = {share.module: share.alone for share in location.shares}
    assert alone == {
        "blocks.1.linear": pytest.approx(1 - (errors[1] / location.error) ** 2, abs=0.03),
        "blocks.4.linear": pytest.approx(1 - (errors[0] / location.error) ** 2, abs=0.03),
    }
    assert [one.place for one in location.substitutions] == sorted({one.place for one in location.substitutions})
    assert (location.substitutions[0].error, location.substitutions[-1].error) == (location.error, 0.0)


def turning(prefix: str, angle: float = 1.0, factors: tuple[float, ...] = (1.0, 1.0, 1.0)) -> onnx.ModelProto:
    """Three blocks that read two values of another module, computed from a size; their names begin with `prefix`."""
    sizes, cosine, sine = (f"/angles/{prefix}{name}" for name in ("sizes", "cos", "sin"))
    nodes = [
        helper.make_node("Shape", ["x"], ["/angles/shape"], "/angles/Shape"),
        helper.make_node("Cast", ["/angles/shape"], [sizes], "/angles/Cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [sizes, "angle"], [f"{sizes}.scaled"], "/angles/Mul"),
        helper.make_node("Cos", [f"{sizes}.scaled"], [cosine], "/angles/Cos"),
        helper.make_node("Sin", [f"{sizes}.scaled"], [sine], "/angles/Sin"),
    ]
    value = "x"
    for block in range(len(factors)):
        scope, factor = f"/blocks.{block}", f"factor{block}"
        nodes += [
            helper.make_node("Mul", [value, cosine], [f"{scope}/turned"], f"{scope}/Mul"),
            helper.make_node("Mul", [sine, factor], [f"{scope}/factor"], f"{scope}/Mul_1"),
            helper.make_node("Add", [f"{scope}/turned", f"{scope}/factor"], [f"{scope}/out"], f"{scope}/Add"),
        ]
        value = f"{scope}/out"
    nodes[-1].output[0] = "y"
    numbers = {"angle": angle} | {f"factor{block}": factor for block, factor in enumerate(factors)}
    weights = [numpy_helper.from_array(np.array(number, np.float32), name) for name, number in numbers.items()]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy"]
    graph = helper.make_graph(nodes, "turning", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_a_module_whose_values_several_modules_read_without_a_common_border() -> None:
    """The angles of the two models have other names: a fault in them shows as errors of all blocks that read them."""
    shared = sardonyx.locate(turning("a"), turning("b", angle=1.1), threads=1).module
    assert shared is not None
    assert (shared.module, "angles" in shared.modules) == ("", True)
    own = sardonyx.locate(turning("a"), turning("b", factors=(1.0, 1.2, 1.0)), threads=1).module
    assert own is not None
    assert own.module == "blocks.1"


@pytest.mark.parametrize("runtime", ["reference", "openvino"])
def test_two_runtimes(runtime: str) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    assert sardonyx.locate(network(), network(), runtimes=("ort", runtime), threads=1).same
    faulty = network({"blocks.2.linear.weight": nudged})
    location = sardonyx.locate(network(), faulty, runtimes=("ort", runtime), threads=1)
    assert location.module is not None
    assert (location.module.module, location.second.runtime.split()[0]) == ("blocks.2.linear", RUNTIME_NAMES[runtime])


def test_a_quantized_file(small_model: Callable[[str, str], Path]) -> None:
    """The first quantized module differs, and only quantized modules have a share."""
    source = small_model("bert", "torchscript")
    quantized = sardonyx.quantize(source, to="int4", keep_modules=["m.encoder.layer.0", "m.embeddings"], threads=1)
    location = sardonyx.locate(source, quantized.to_proto(), threads=1)
    assert location.module is not None
    assert location.module.module.startswith("m.encoder.layer.1.attention.")
    assert {share.module.split(".layer.0")[0] for share in location.shares} == {
        share.module for share in location.shares
    }
    assert sum(share.share for share in location.shares) > 0.9


def test_the_given_arrays_are_the_only_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, WIDTH), np.float32))
    faulty = network({"blocks.1.linear.weight": nudged})
    assert sardonyx.locate(network(), faulty, inputs=tmp_path / "x.npz", threads=1).same
    assert not sardonyx.locate(network(), faulty, inputs={"x": np.ones((2, WIDTH), np.float32)}, threads=1).same


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_a_fault_in_an_optimized_file(small_model: Callable[[str, str], Path], exporter: str) -> None:
    source = small_model("bert", exporter)
    optimized = sardonyx.optimize(source, verify="off").to_proto()
    assert sardonyx.locate(source, optimized, threads=1).same
    norm = next(node for node in reversed(optimized.graph.node) if node.op_type == "LayerNormalization")
    gain = next(tensor for tensor in optimized.graph.initializer if tensor.name == norm.input[1])
    gain.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(gain) * np.float32(1.1), gain.name))
    location = sardonyx.locate(source, optimized, threads=1)
    assert location.module is not None
    assert location.module.module.endswith("encoder.layer.1.output.LayerNorm")


def test_a_module_against_its_file() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
    example = (torch.randn(3, 8),)
    proto = sardonyx.export(model, inputs=example).to_proto()
    same = sardonyx.locate(model, proto, inputs=example, threads=1)
    assert (same.same, same.runs) == (True, 3)  # of the module: one to count the tensors, one for the outputs
    with torch.no_grad():
        model[2].weight[1, 2] += 0.2
    location = sardonyx.locate(model, proto, inputs=example, threads=1)
    assert location.module is not None
    assert location.module.module == "2"


def test_a_module_put_into_its_file_alone() -> None:
    """A residual connection reads the replaced value outside of any call of a module."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return x + torch.tanh(self.linear(self.norm(x)))

    model = torch.nn.Sequential(*(Block() for _ in range(4))).eval()
    example = (torch.randn(3, 8),)
    proto = sardonyx.export(model, inputs=example).to_proto()
    with torch.no_grad():
        model[1].linear.weight[1, 2] += 0.2
        model[2].linear.weight[1, 2] += 0.2
    location = sardonyx.locate(model, proto, inputs=example, threads=1)
    with torch.no_grad():
        model[2].linear.weight[1, 2] -= 0.2
    only_first = sardonyx.locate(model, proto, inputs=example, threads=1).error
    alone = {share.module: share.alone for share in location.shares}
    assert set(alone) == {"1.linear", "2.linear"}
    assert alone["2.linear"] == pytest.approx(1 - (only_first / location.error) ** 2, abs=0.05)


def test_models_with_other_inputs_are_refused() -> None:
    other = network()
    other.graph.input[0].name = other.graph.node[0].input[0] = other.graph.node[2].input[0] = "z"
    with pytest.raises(sardonyx.UsageError, match="other inputs"):
        sardonyx.locate(network(), other)
