"""Ways to write Conv + ReLU in a file, the standard one first: each a small model of one input and one output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_SHAPE = (1, 3, 12, 12)
_OURS = "ai.example.fused"  # a domain that no runtime knows
_MICROSOFT = "com.microsoft"


def _conv(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1], **attributes)


def _fused(activation: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        "FusedConv", ["x", "w", "b"], ["y"], "conv",
        domain=_MICROSOFT, pads=[1, 1, 1, 1], activation=activation, **attributes,
    )  # fmt: skip


def _relu() -> onnx.NodeProto:
    return helper.make_node("Relu", ["c"], ["y"], "relu")


def _model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, np.ndarray[Any, np.dtype[Any]]] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weight = 0.3 * rng.standard_normal((4, 3, 3, 3))
    numbers: dict[str, Any] = {"w": weight.astype(np.float32), "b": rng.standard_normal(4).astype(np.float32)}
    initializers = [numpy_helper.from_array(array, name) for name, array in (numbers | dict(constants or {})).items()]
    graph = helper.make_graph(
        list(nodes), "conv_relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, _SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 12, 12))],
        initializers,
    )  # fmt: skip
    domains = {"": 17} | {node.domain: 1 for node in nodes if node.domain}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=list(functions))


def _plain() -> onnx.ModelProto:
    return _model([_conv(), _relu()])


def _last(node: onnx.NodeProto) -> onnx.NodeProto:
    """The same node, giving the output itself."""
    node.output[0] = "y"
    return node


def _attribute(name: str, *, keeps_relu: bool) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        conv = _conv(**{name: "Relu"})
        return _model([conv, _relu()] if keeps_relu else [_last(conv)])

    return build


def _metadata(*, keeps_relu: bool) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        conv = _conv()
        conv.metadata_props.add(key="activation", value="Relu")
        return _model([conv, _relu()] if keeps_relu else [_last(conv)])

    return build


def _after(op_type: str, **constants: float) -> Callable[[], onnx.ModelProto]:
    """Another operator in place of the Relu, with scalars as its further inputs."""

    def build() -> onnx.ModelProto:
        scalars = {name: np.array(value, np.float32) for name, value in constants.items()}
        return _model([_conv(), helper.make_node(op_type, ["c", *scalars], ["y"], "after")], scalars)

    return build


def _hard_sigmoid() -> onnx.ModelProto:
    """Another activation, as the standard writes it: what a fused one of that kind is held against."""
    return _model([_conv(), helper.make_node("HardSigmoid", ["c"], ["y"], "after", alpha=0.2, beta=0.5)])


def _with_fused(activation: str, *parameters: float) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        return _model([_fused(activation, **({"activation_params": list(parameters)} if parameters else {}))])

    return build


def _function() -> onnx.ModelProto:
    """One node that a function of the model itself spells out."""
    inner = [_conv(), _relu()]
    body = helper.make_function(_OURS, "ConvRelu", ["x", "w", "b"], ["y"], inner, [helper.make_opsetid("", 17)])
    return _model([helper.make_node("ConvRelu", ["x", "w", "b"], ["y"], "fused", domain=_OURS)], functions=[body])


def _foreign() -> onnx.ModelProto:
    return _model([helper.make_node("ConvRelu", ["x", "w", "b"], ["y"], "fused", domain=_OURS)])


REFERENCE = "Conv → Relu"
_HARD = "Conv → HardSigmoid(0.2, 0.5)"
OTHER_REFERENCE = {_HARD: _HARD, "com.microsoft FusedConv, activation HardSigmoid(0.2, 0.5)": _HARD}
ENCODINGS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    REFERENCE: _plain,
    "Conv with the attribute activation, no Relu": _attribute("activation", keeps_relu=False),
    "Conv with the attribute activation_hint → Relu": _attribute("activation_hint", keeps_relu=True),
    "Conv with the attribute __activation, no Relu": _attribute("__activation", keeps_relu=False),
    "Conv with the attribute __activation → Relu": _attribute("__activation", keeps_relu=True),
    "Conv with metadata, no Relu": _metadata(keeps_relu=False),
    "Conv with metadata → Relu": _metadata(keeps_relu=True),
    "Conv → Clip(0, ∞)": _after("Clip", low=0.0, high=float("inf")),
    "Conv → Clip(0)": _after("Clip", low=0.0),
    "Conv → Max(0)": _after("Max", zero=0.0),
    "Conv → PRelu(0)": _after("PRelu", slope=0.0),
    _HARD: _hard_sigmoid,
    "com.microsoft FusedConv, activation Relu": _with_fused("Relu"),
    "com.microsoft FusedConv, activation Clip(0, 3.4e38)": _with_fused("Clip", 0.0, 3.4e38),
    "com.microsoft FusedConv, activation LeakyRelu(0)": _with_fused("LeakyRelu", 0.0),
    "com.microsoft FusedConv, activation HardSigmoid(0.2, 0.5)": _with_fused("HardSigmoid", 0.2, 0.5),
    "com.microsoft FusedConv, activation Gelu": _with_fused("Gelu"),
    "a function of the model itself": _function,
    "an operator of a domain that the runtime does not know": _foreign,
}
