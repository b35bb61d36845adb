"""Tests of the node-suite harness: every kind of optimizer fault is reported by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest

from backend.cases import Case
from backend.harness import examine, nodes_of

MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 3] x, bool c) => (float[N, 3] y, float[N, 3] z) {
    h = Neg(x)
    y = Add(h, h)
    z = If(c) <
        then_branch = t () => (float[N, 3] p) { p = Relu(h) },
        else_branch = e () => (float[N, 3] q) { q = Exp(h) }
    >
}
"""
X = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]], np.float32)


def case() -> Case:
    inputs = {"x": X, "c": np.array(True)}
    return Case("c", onnx.parser.parse_model(MODEL), ((inputs, [-2 * X, np.maximum(-X, 0)]),), 1e-6, 1e-7)


def tag(model: onnx.ModelProto) -> None:
    for node in nodes_of(model):
        del node.metadata_props[:]
        node.metadata_props.add(key="sardonyx.module_path", value="somewhere")


def optimizer(change: Callable[[onnx.ModelProto], object]) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
        result = onnx.ModelProto()
        result.CopyFrom(model)
        tag(result)
        change(result)
        return result

    return optimize


def test_a_correct_optimizer_passes() -> None:
    report = examine(case(), optimizer(lambda model: None))
    assert report.runnable
    assert report.failures == ()


def test_a_case_that_no_engine_reproduces_is_not_runnable_but_still_examined() -> None:
    correct = case()
    inputs, (y, z) = correct.data[0]
    impossible = Case("c", correct.model, ((inputs, [y + 1, z]),), 1e-6, 1e-7)
    report = examine(impossible, optimizer(lambda model: model.graph.output.pop()))
    assert not report.runnable
    assert any("interface" in failure for failure in report.failures)


def unsorted(model: onnx.ModelProto) -> None:
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def rename_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = model.graph.node[1].output[0] = "other"


def freeze_dim(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


def grow(model: onnx.ModelProto) -> None:
    model.graph.node.append(onnx.helper.make_node("Abs", ["h"], ["unused"]))
    tag(model)


def drop_body_owner(model: onnx.ModelProto) -> None:
    del model.graph.node[2].attribute[0].g.node[0].metadata_props[:]


def subtract(model: onnx.ModelProto) -> None:
    model.graph.node[1].op_type = "Sub"


def crash(model: onnx.ModelProto) -> None:
    raise KeyError("gone")


def change_producer_name(model: onnx.ModelProto) -> None:
    model.producer_name += "!"


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        (crash, "crash"),
        (unsorted, "invalid"),
        (rename_output, "interface: output"),
        (freeze_dim, "interface: input"),
        (grow, "grew from 5 to 6 nodes"),
        (drop_body_owner, "no owner: Relu"),
        (subtract, "wrong: output 0"),
        (change_producer_name, "not idempotent"),
    ],
)
def test_every_fault_is_named(fault: Callable[[onnx.ModelProto], object], finding: str) -> None:
    report = examine(case(), optimizer(fault))
    assert any(finding in failure for failure in report.failures), report.failures


def test_changing_the_callers_model_is_reported() -> None:
    def in_place(model: onnx.ModelProto) -> onnx.ModelProto:
        tag(model)
        return model

    assert "c: the caller's model was changed" in examine(case(), in_place).failures
