"""A model in which every name is hostile, and which still runs and can be optimized."""

from __future__ import annotations

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hostile import VECTORS

WIDTH = 3


def hostile_model() -> onnx.ModelProto:
    """A layer for each vector; each layer's result is an output, so that the verification names all of them."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    dim = VECTORS["image"]
    source = f"input {VECTORS['script']}"
    for place, vector in enumerate(VECTORS.values()):
        weight, turned, product, result = f"w {vector}", f"t {vector}", f"p {vector}", vector
        matrix = np.random.default_rng(place).normal(size=(WIDTH, WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, weight))
        layer = [
            helper.make_node("Transpose", [weight], [turned], perm=[1, 0], name=f"turn {vector}"),
            helper.make_node("MatMul", [source, turned], [product], name=vector),
            helper.make_node("Identity", [product], [result], name=f"same {vector}"),
        ]
        for node in layer:
            node.doc_string = vector
            _tag(node, f"layers.{vector}", f"/Net/{vector}")
        nodes += layer
        outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, [dim, WIDTH]))
    graph = helper.make_graph(
        nodes,
        VECTORS["closed script"],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, [dim, WIDTH])],
        outputs,
        weights,
        doc_string=VECTORS["closed title"],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
        producer_name=VECTORS["svg"],
        doc_string=VECTORS["comment"],
    )


def foreign_model() -> onnx.ModelProto:
    """Operators with hostile names and domains, which no runtime has, all in one module."""
    domain = VECTORS["svg"]
    names = ["x", *(f"v{place}" for place in range(len(VECTORS)))]
    nodes = [
        helper.make_node(vector, [before], [after], name=f"n {vector}", domain=domain, a=vector)
        for vector, before, after in zip(VECTORS.values(), names, names[1:], strict=False)
    ]
    nodes.append(helper.make_node("Identity", [names[-1]], ["y"], name="end"))
    for node in nodes:
        _tag(node, "net", "/Net/Foreign")
    inputs, results = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH])] for name in "xy")
    graph = helper.make_graph(nodes, "foreign", inputs, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _tag(node: onnx.NodeProto, path: str, tag: str) -> None:
    for key, value in (
        ("sardonyx.module_path", path),
        ("sardonyx.source_module", tag),
        ("sardonyx.module_paths", json.dumps([path])),
        ("sardonyx.hierarchy_tags", json.dumps([tag])),
    ):
        node.metadata_props.add(key=key, value=value)
