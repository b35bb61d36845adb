"""Which kernels belong to which modules, on models with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from measurement.profiling.traced import traced
from sardonyx.records.bench import TracedBy
from sardonyx.runtime.timed import Level


class Net:
    """A model under construction, with weights by name."""

    def __init__(self, shape: tuple[int, ...], output: str, shape_out: tuple[int, ...] | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shape, self.output, self.shape_out = shape, output, shape_out or shape

    def node(self, name: str, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        """Add one node."""
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))

    def weight(self, name: str, *shape: int) -> str:
        """A weight whose elements all differ."""
        values = np.random.default_rng(len(self.weights)).uniform(0.5, 1.5, size=shape)
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def number(self, name: str, value: float) -> str:
        """A scalar."""
        self.weights.append(numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def model(self, opset: int = 17) -> onnx.ModelProto:
        """The finished model."""
        take = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        give = helper.make_tensor_value_info(self.output, TensorProto.FLOAT, self.shape_out)
        graph = helper.make_graph(self.nodes, "net", [take], [give], self.weights)
        return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", opset)])


def convolution(*, named: bool = True) -> onnx.ModelProto:
    """Two blocks of Conv, BatchNorm and Relu, the second with a residual from the first."""
    net = Net((1, 32, 8, 8), "out")
    source = "x"
    for block in ("a", "b"):
        weight = net.weight(f"{block}.w", 32, 32, 3, 3)
        statistics = [net.weight(f"{block}.{name}", 32) for name in ("scale", "shift", "mean", "var")]

        def name(what: str, block: str = block) -> str:
            return f"/{block}/{what}" if named else ""

        net.node(name("conv/Conv"), "Conv", [source, weight], f"{block}_conv", pads=[1, 1, 1, 1])
        net.node(name("bn/BatchNormalization"), "BatchNormalization", [f"{block}_conv", *statistics], f"{block}_bn")
        if block == "b":
            net.node(name("Add"), "Add", ["b_bn", "a_relu"], "b_sum")
        net.node(name("act/Relu"), "Relu", ["b_sum" if block == "b" else "a_bn"], f"{block}_relu")
        source = f"{block}_relu"
    net.node("/head/Exp" if named else "", "Exp", ["b_relu"], "out")
    return net.model()


@pytest.mark.parametrize("level", [Level.EXTENDED, Level.ALL])
def test_a_fused_convolution_belongs_to_the_common_module_of_its_parts(level: Level) -> None:
    trace = traced(convolution(), level)
    first, second = [kernel for kernel in trace.kernels if "Conv" in kernel.op_type]
    assert first.nodes == {"/a/conv/Conv", "/a/bn/BatchNormalization", "/a/act/Relu"}
    assert first.owner == "a"
    assert {"/b/conv/Conv", "/b/bn/BatchNormalization", "/b/Add", "/b/act/Relu"} >= second.nodes
    assert second.nodes >= {"/b/conv/Conv", "/b/bn/BatchNormalization"}
    assert second.owner == "b"
    assert trace.only("Exp").owner == "head"


def test_a_blocked_kernel_includes_the_following_sum_and_activation() -> None:
    trace = traced(convolution())
    if not any(step.domain == "com.microsoft.nchwc" for step in trace.stages[-1].steps):
        pytest.skip("the runtime changes no layouts on this machine")
    _, second = [kernel for kernel in trace.kernels if kernel.op_type == "Conv"]
    assert second.nodes == {"/b/conv/Conv", "/b/bn/BatchNormalization", "/b/Add", "/b/act/Relu"}
    assert trace.only("ReorderOutput").owner == "b"  # it brings the output of b into the layout of the file
    assert trace.only("ReorderOutput").by is TracedBy.NEIGHBOURS


def test_nodes_without_names_are_traced_by_values() -> None:
    first, second = [kernel for kernel in traced(convolution(named=False)).kernels if "Conv" in kernel.op_type]
    assert first.nodes == {"a_conv", "a_bn", "a_relu"}
    assert second.nodes >= {"b_conv", "b_bn"}
    assert not second.nodes & {"a_conv", "a_bn", "a_relu"}


def linear(net: Net, module: str, source: str, output: str, rows: int, columns: int) -> None:
    """A product and a bias, as exporters write a Linear."""
    net.node(f"/{module}/MatMul", "MatMul", [source, net.weight(f"{module}.w", rows, columns)], f"{output}_product")
    net.node(f"/{module}/Add", "Add", [f"{output}_product", net.weight(f"{module}.b", columns)], output)


def test_a_product_its_bias_and_the_surrounding_reshapes_are_one_kernel() -> None:
    net = Net((2, 3, 8), "out", (2, 3, 4))
    net.node("/before/Exp", "Exp", ["x"], "e")
    linear(net, "fc", "e", "y", 8, 4)
    net.node("/after/Sin", "Sin", ["y"], "out")
    trace = traced(net.model())
    assert trace.only("Gemm").nodes == {"/fc/MatMul", "/fc/Add"}
    assert [kernel.owner for kernel in trace.kernels if kernel.op_type == "Reshape"] == ["fc", "fc"]
    assert (trace.only("Exp").owner, trace.only("Sin").owner) == ("before", "after")


def test_a_merged_reshape_is_traced_to_the_file() -> None:
    net = Net((6, 8), "out", (2, 3, 4))
    net.node("/view/Exp", "Exp", ["x"], "e")
    net.weights.append(numpy_helper.from_array(np.array([2, 3, 8], np.int64), "sizes"))
    net.node("/view/Reshape", "Reshape", ["e", "sizes"], "r")
    linear(net, "fc", "r", "y", 8, 4)
    net.node("/after/Sin", "Sin", ["y"], "out")
    trace = traced(net.model())
    assert trace.only("Gemm").nodes == {"/fc/MatMul", "/fc/Add"}
    assert {kernel.owner for kernel in trace.kernels if kernel.op_type == "Reshape"} <= {"view", "fc"}


def test_a_transpose_merged_with_leaving_the_blocked_layout_is_traced_to_the_file() -> None:
    net = Net((1, 32, 8, 8), "out", (1, 8, 8, 32))
    net.node("/conv/Conv", "Conv", ["x", net.weight("w", 32, 32, 3, 3)], "c", pads=[1, 1, 1, 1])
    net.node("/turn/Transpose", "Transpose", ["c"], "t", perm=[0, 2, 3, 1])
    net.node("/after/Sin", "Sin", ["t"], "out")
    trace = traced(net.model())
    assert trace.only("Conv").nodes == {"/conv/Conv"}
    assert {kernel.owner for kernel in trace.kernels if kernel.op_type in ("Transpose", "ReorderOutput")} >= {"turn"}


def test_a_name_generated_by_the_runtime_is_not_taken_for_one_of_the_file() -> None:
    net = Net((2, 3, 8), "out", (2, 3, 4))
    net.node("gemm_input_reshape", "Exp", ["x"], "e")
    linear(net, "fc", "e", "y", 8, 4)
    net.node("gemm_output_reshape", "Sin", ["y"], "out")
    trace = traced(net.model())
    reshapes = [kernel for kernel in trace.kernels if kernel.op_type == "Reshape"]
    assert [kernel.nodes for kernel in reshapes] == [{"/fc/MatMul", "/fc/Add"}] * 2


def normalised(net: Net, module: str, source: str, output: str, width: int) -> set[str]:
    """Add a decomposed layer norm and return the names of its nodes."""
    last = [-1]
    nodes = [
        ("ReduceMean", [source], {"axes": last}),
        ("Sub", [source, f"{output}0"], {}),
        ("Pow", [f"{output}1", net.number(f"{module}.two", 2.0)], {}),
        ("ReduceMean_1", [f"{output}2"], {"axes": last}),
        ("Add", [f"{output}3", net.number(f"{module}.eps", 1e-5)], {}),
        ("Sqrt", [f"{output}4"], {}),
        ("Div", [f"{output}1", f"{output}5"], {}),
        ("Mul", [f"{output}6", net.weight(f"{module}.gamma", width)], {}),
        ("Add_1", [f"{output}7", net.weight(f"{module}.beta", width)], {}),
    ]
    for place, (name, inputs, attributes) in enumerate(nodes):
        made = output if place == len(nodes) - 1 else f"{output}{place}"
        net.node(f"/{module}/{name}", name.partition("_")[0], inputs, made, **attributes)
    return {f"/{module}/{name}" for name, _, _ in nodes}


def test_a_norm_in_single_steps_is_one_kernel() -> None:
    net = Net((2, 3, 8), "out")
    nodes = normalised(net, "block/norm", "x", "n", 8)
    net.node("/block/Exp", "Exp", ["n"], "out")
    kernel = traced(net.model()).only("LayerNormalization")
    assert kernel.nodes == nodes
    assert kernel.owner == "block.norm"


def test_a_sum_and_the_norm_after_it_belong_to_both_modules() -> None:
    net = Net((2, 3, 16), "out")
    net.node("/block/left/Exp", "Exp", ["x"], "a")
    net.node("/block/right/Sin", "Sin", ["x"], "b")
    net.node("/block/attention/Add", "Add", ["a", "b"], "s")
    nodes = normalised(net, "block/norm", "s", "n", 16)
    net.node("/head/Cos", "Cos", ["n"], "out")
    kernel = traced(net.model()).only("SkipLayerNormalization")
    assert kernel.nodes == nodes | {"/block/attention/Add"}
    assert kernel.owner == "block"
    assert kernel.by is TracedBy.VALUES


def test_merged_equal_nodes_belong_to_all_their_modules() -> None:
    net = Net((2, 8), "out")
    for module in ("one", "two"):
        net.node(f"/{module}/mask/Exp", "Exp", ["x"], f"{module}_e")
    net.node("/one/Sin", "Sin", ["one_e"], "one_y")
    net.node("/two/Cos", "Cos", ["two_e"], "two_y")
    net.node("/Add", "Add", ["one_y", "two_y"], "out")
    trace = traced(net.model())
    assert trace.only("Exp").nodes == {"/one/mask/Exp", "/two/mask/Exp"}
    assert (trace.only("Sin").owner, trace.only("Cos").owner) == ("one", "two")


def test_a_kernel_with_the_result_of_another_is_traced_to_its_own_node() -> None:
    net = Net((2, 3), "last")
    net.node("/first/Relu", "Relu", ["x"], "first")
    net.node("/second/Relu", "Relu", ["x"], "second")  # equal to the first
    net.node("/second/Transpose", "Transpose", ["second"], "middle", perm=[0, 1])  # the runtime removes both
    net.node("/second/Transpose_1", "Transpose", ["middle"], "last", perm=[0, 1])
    model = net.model()
    model.graph.output.append(helper.make_tensor_value_info("first", TensorProto.FLOAT, (2, 3)))
    nodes = [kernel.nodes for kernel in traced(model).kernels]
    assert len(nodes) == 2
    assert all(any(node.endswith("Relu") for node in kernel) for kernel in nodes)


def test_folded_constants_are_no_part_of_a_kernel() -> None:
    net = Net((2, 8, 8), "out")
    net.node("/sizes/Shape", "Shape", ["x"], "s")
    net.node("/sizes/Cast", "Cast", ["s"], "f", to=TensorProto.FLOAT)
    net.node("/sizes/ReduceSum", "ReduceSum", ["f"], "n", keepdims=0)
    net.node("/block/Exp", "Exp", ["x"], "e")
    net.node("/block/scores/MatMul", "MatMul", ["e", "x"], "p")
    net.node("/block/scores/Div", "Div", ["p", "n"], "q")
    net.node("/block/Sin", "Sin", ["q"], "out")
    trace = traced(net.model())
    assert {kernel.owner for kernel in trace.kernels} == {"block", "block.scores"}
    assert trace.only("FusedMatMul").nodes == {"/block/scores/MatMul", "/block/scores/Div"}
