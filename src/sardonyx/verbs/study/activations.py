"""Encodings of Conv + ReLU: which of them ONNX Runtime accepts, what they compute, and which kernels run.

Every encoding is a graph built here, run with the runtime's own optimizations off and compared with Conv → Relu. If the
runtime rejects it, its message is recorded. The graph into which the runtime itself optimizes Conv → Relu is the
baseline that an encoding would have to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure
from sardonyx.fleet.cells import Cell
from sardonyx.ir import io
from sardonyx.ir.scopes import operator
from sardonyx.records.study import Finding, Table
from sardonyx.runtime import Session
from sardonyx.runtime.timed import Level, Settings, TimedModel
from sardonyx.verbs.study.experiment import Answer, Answers, Experiment, StudyOptions, Subject, Tables, several

_SHAPE = (1, 3, 12, 12)
_CUSTOM = "ai.example.fused"  # a domain that no runtime knows
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


def _last(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with the output of the graph as its output."""
    node.output[0] = "y"
    return node


def _attribute(name: str, *, keeps_relu: bool) -> onnx.ModelProto:
    conv = _conv(**{name: "Relu"})
    return _model([conv, _relu()] if keeps_relu else [_last(conv)])


def _metadata(*, keeps_relu: bool) -> onnx.ModelProto:
    conv = _conv()
    conv.metadata_props.add(key="activation", value="Relu")
    return _model([conv, _relu()] if keeps_relu else [_last(conv)])


def _after(op_type: str, **constants: float) -> onnx.ModelProto:
    """Return Conv → another operator, with scalars as its other inputs."""
    scalars = {name: np.array(value, np.float32) for name, value in constants.items()}
    return _model([_conv(), helper.make_node(op_type, ["c", *scalars], ["y"], "after")], scalars)


def _with_fused(activation: str, *parameters: float) -> onnx.ModelProto:
    return _model([_fused(activation, **({"activation_params": list(parameters)} if parameters else {}))])


_CALL = helper.make_node("ConvRelu", ["x", "w", "b"], ["y"], "fused", domain=_CUSTOM)


def _function() -> onnx.ModelProto:
    """Return a model of one node, whose operator is a function of the model."""
    inner = [_conv(), _relu()]
    body = helper.make_function(_CUSTOM, "ConvRelu", ["x", "w", "b"], ["y"], inner, [helper.make_opsetid("", 17)])
    return _model([_CALL], functions=[body])


REFERENCE = "Conv → Relu"
_HARD = "Conv → HardSigmoid(0.2, 0.5)"
OTHER_REFERENCE = {_HARD: _HARD, "com.microsoft FusedConv, activation HardSigmoid(0.2, 0.5)": _HARD}
ENCODINGS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    REFERENCE: lambda: _model([_conv(), _relu()]),
    "Conv with the attribute activation, no Relu": lambda: _attribute("activation", keeps_relu=False),
    "Conv with the attribute activation_hint → Relu": lambda: _attribute("activation_hint", keeps_relu=True),
    "Conv with the attribute __activation, no Relu": lambda: _attribute("__activation", keeps_relu=False),
    "Conv with the attribute __activation → Relu": lambda: _attribute("__activation", keeps_relu=True),
    "Conv with metadata, no Relu": lambda: _metadata(keeps_relu=False),
    "Conv with metadata → Relu": lambda: _metadata(keeps_relu=True),
    "Conv → Clip(0, ∞)": lambda: _after("Clip", low=0.0, high=float("inf")),
    "Conv → Clip(0)": lambda: _after("Clip", low=0.0),
    "Conv → Max(0)": lambda: _after("Max", zero=0.0),
    "Conv → PRelu(0)": lambda: _after("PRelu", slope=0.0),
    _HARD: lambda: _model([_conv(), helper.make_node("HardSigmoid", ["c"], ["y"], "after", alpha=0.2, beta=0.5)]),
    "com.microsoft FusedConv, activation Relu": lambda: _with_fused("Relu"),
    "com.microsoft FusedConv, activation Clip(0, 3.4e38)": lambda: _with_fused("Clip", 0.0, 3.4e38),
    "com.microsoft FusedConv, activation LeakyRelu(0)": lambda: _with_fused("LeakyRelu", 0.0),
    "com.microsoft FusedConv, activation HardSigmoid(0.2, 0.5)": lambda: _with_fused("HardSigmoid", 0.2, 0.5),
    "com.microsoft FusedConv, activation Gelu": lambda: _with_fused("Gelu"),
    "a function of the model itself": _function,
    "an operator of a domain that the runtime does not know": lambda: _model([_CALL]),
}


LEVELS = ("off", "basic", "extended", "all")
_SEEDS = 3
_ARROW = " → "
_RUNS = ("runs", "runs_extended")


class ConvRelu(Experiment):
    """Encodings of an activation after a convolution."""

    name = "conv-relu"
    of_models = False
    key = "encodings"
    reads = ("seed",)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Run every encoding, and optimize Conv → Relu with the runtime at every level."""
        models = {name: build() for name, build in ENCODINGS.items()}
        tried: list[Answer] = []
        for name, model in models.items():
            against = OTHER_REFERENCE.get(name, REFERENCE)
            result = _try(model, models[against], cell.options["seed"])
            tried.append({"encoding": name, "against": against, **result})
        levels = [{"level": level, "operators": _optimized(models[REFERENCE], level)} for level in LEVELS]
        return {"tried": tried, "levels": levels}

    def tables(self, answers: Answers, options: StudyOptions, others: Tables) -> Sequence[Table]:
        """Return the encodings, and what the runtime does by itself."""
        tried = [entry for answer in answers for entry in answer.answer["tried"]]
        levels = [entry for answer in answers for entry in answer.answer["levels"]]
        columns = ("encoding", "against", "nodes", "accepted", "max_difference", *_RUNS, "runtime_says")
        return (
            Table(
                "conv_relu",
                "Encodings of Conv + ReLU that the runtime accepts",
                columns,
                tuple(tuple(entry[column] for column in columns) for entry in tried),
                f"Run on the CPU with the runtime's optimizations off, on {_SEEDS} random inputs; max_difference is "
                "the largest difference from the graph under against. runs, runs_extended: the operators of the "
                "runtime's graph with its optimizations off and at the level extended.",
            ),
            Table(
                "conv_relu_levels",
                "How the runtime itself optimizes Conv → Relu",
                ("level", "operators", "fuses"),
                tuple((entry["level"], entry["operators"], _fuses(entry["operators"])) for entry in levels),
                "The graph of the runtime after its own optimizations at each level.",
            ),
        )

    def findings(self, tables: Tables) -> Sequence[Finding]:
        """Return which encodings need one kernel, which are rejected or wrong, and what the runtime does itself."""
        table = tables["conv_relu"]
        rows = table.named_rows()
        if not rows:
            return ()
        right = [row for row in rows if row["max_difference"] == 0 and row["encoding"] != row["against"]]
        one_kernel = [row for row in right if _ARROW not in str(row["runs"])]
        groups = {
            "Accepted, and bit-identical results": right,
            "Of these, one kernel without the runtime's optimizations": one_kernel,
            "Accepted, but different results": [r for r in rows if r["accepted"] and r["max_difference"] != 0],
            "Rejected": [row for row in rows if not row["accepted"]],
        }
        texts: list[str] = []
        for title, group in groups.items():
            names = "; ".join(str(row["encoding"]) for row in group) or "none"
            texts.append(f"{title} ({len(group)} of {several(len(rows), 'encoding')}): {names}.")
        own = _runtime_finding(tables["conv_relu_levels"])
        return (*(Finding(text, table.name) for text in texts), own)


def _try(model: onnx.ModelProto, baseline: onnx.ModelProto, seed: int) -> Answer:
    result: Answer = {"nodes": len(model.graph.node), "accepted": False}
    result |= dict.fromkeys(("max_difference", *_RUNS, "runtime_says"))
    rng = np.random.default_rng(seed)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    reference, worst = Session(baseline, threads=1), 0.0
    try:
        session = Session(model, threads=1)
        for _ in range(_SEEDS):
            feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
            (expected,), (actual,) = reference.run(feeds), session.run(feeds)
            worst = max(worst, float(np.max(np.abs(np.asarray(expected) - np.asarray(actual)))))
        runs = dict(zip(_RUNS, (_optimized(model, "off"), _optimized(model, "extended")), strict=True))
    except RuntimeFailure as error:
        return result | {"runtime_says": error.message.partition(": ")[2]}
    return result | {"accepted": True, "max_difference": worst, **runs}


def _optimized(model: onnx.ModelProto, level: str) -> str:
    """Return the operators of the graph after the runtime's optimizations, in order."""
    with temporary_folder() as folder:
        path = Path(folder) / "optimized.onnx"
        TimedModel(model, Settings(level=Level(level)), optimized=path)
        nodes = list(io.load(path).graph)
    return _ARROW.join(map(operator, nodes))


def _fuses(operators: str) -> bool:
    return not any(name.rpartition("::")[2] == "Relu" for name in operators.split(_ARROW))


def _runtime_finding(table: Table) -> Finding:
    fusing = [str(level) for level, _, fuses in table.rows if fuses]
    levels = several(len(table.rows), "level")
    if not fusing:
        return Finding(f"The runtime fuses Conv → Relu by itself at none of {levels}.", table.name)
    text = f"The runtime fuses Conv → Relu by itself at {', '.join(fusing)} ({len(fusing)} of {levels})"
    return Finding(f"{text}: at these levels, one node in the file saves no kernel.", table.name)
