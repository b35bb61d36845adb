"""Encodings of Conv + ReLU: which of them ONNX Runtime accepts, what they compute, and which kernels run.

Every encoding is a graph built here, run with the runtime's own optimizations off and compared with Conv → Relu. If the
runtime rejects it, its message is recorded. The graph into which the runtime itself optimizes Conv → Relu is the
baseline that an encoding would have to beat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import RuntimeFailure
from sardonyx.fleet.cells import Cell
from sardonyx.ir import io
from sardonyx.ir.scopes import operator
from sardonyx.records.study import Finding, Table
from sardonyx.runtime import Session
from sardonyx.runtime.timed import Level, Settings, TimedModel
from sardonyx.verbs.study.experiment import Answer, Answers, Experiment, StudyOptions, Subject, Tables, several

REFERENCE = "Conv → Relu"
_HARD = "Conv → HardSigmoid(0.2, 0.5)"
OTHER_REFERENCE = {_HARD: _HARD, "com.microsoft FusedConv, activation HardSigmoid(0.2, 0.5)": _HARD}
_OWN_FUNCTION = "a function of the model itself"
_PADS = "pads = [1, 1, 1, 1]"
_CONV = f"[conv] c = Conv<{_PADS}>(x, w, b)"
_CALL = "[fused] y = ai.example.fused.ConvRelu(x, w, b)"  # of a domain that no runtime knows


def _conv(output: str, attribute: str) -> str:
    return f'[conv] {output} = Conv<{_PADS}, {attribute} = "Relu">(x, w, b)'


def _fused(activation: str, parameters: str = "") -> str:
    more = f", activation_params = [{parameters}]" if parameters else ""
    return f'[conv] y = com.microsoft.FusedConv<{_PADS}, activation = "{activation}"{more}>(x, w, b)'


ENCODINGS: Mapping[str, str] = {  # as nodes in the textual syntax of ONNX
    REFERENCE: f"{_CONV} [relu] y = Relu(c)",
    "Conv with the attribute activation, no Relu": _conv("y", "activation"),
    "Conv with the attribute activation_hint → Relu": f"{_conv('c', 'activation_hint')} [relu] y = Relu(c)",
    "Conv with the attribute __activation, no Relu": _conv("y", "__activation"),
    "Conv with the attribute __activation → Relu": f"{_conv('c', '__activation')} [relu] y = Relu(c)",
    "Conv with metadata, no Relu": f"[conv] y = Conv<{_PADS}>(x, w, b)",
    "Conv with metadata → Relu": f"{_CONV} [relu] y = Relu(c)",
    "Conv → Clip(0, ∞)": f"{_CONV} [after] y = Clip(c, zero, infinity)",
    "Conv → Clip(0)": f"{_CONV} [after] y = Clip(c, zero)",
    "Conv → Max(0)": f"{_CONV} [after] y = Max(c, zero)",
    "Conv → PRelu(0)": f"{_CONV} [after] y = PRelu(c, zero)",
    _HARD: f"{_CONV} [after] y = HardSigmoid<alpha = 0.2, beta = 0.5>(c)",
    "com.microsoft FusedConv, activation Relu": _fused("Relu"),
    "com.microsoft FusedConv, activation Clip(0, 3.4e38)": _fused("Clip", "0.0, 3.4e38"),
    "com.microsoft FusedConv, activation LeakyRelu(0)": _fused("LeakyRelu", "0.0"),
    "com.microsoft FusedConv, activation HardSigmoid(0.2, 0.5)": _fused("HardSigmoid", "0.2, 0.5"),
    "com.microsoft FusedConv, activation Gelu": _fused("Gelu"),
    _OWN_FUNCTION: _CALL,
    "an operator of a domain that the runtime does not know": _CALL,
}
_FUNCTION = f"""<domain: "ai.example.fused", opset_import: ["": 17]>
ConvRelu (x, w, b) => (y) {{ {ENCODINGS[REFERENCE]} }}"""


def model(encoding: str) -> onnx.ModelProto:
    """Return a model of one encoding, with a random weight and bias."""
    text = f"conv_relu (float[1,3,12,12] x) => (float[1,4,12,12] y) {{ {ENCODINGS[encoding]} }}"
    graph = onnx.parser.parse_graph(text)
    rng = np.random.default_rng(0)
    numbers: dict[str, Any] = {"w": 0.3 * rng.standard_normal((4, 3, 3, 3)), "b": rng.standard_normal(4)}
    numbers |= {"zero": 0.0, "infinity": np.inf}
    used = {name for node in graph.node for name in node.input}
    constants = {name: np.asarray(number, np.float32) for name, number in numbers.items() if name in used}
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    if "metadata" in encoding:
        graph.node[0].metadata_props.add(key="activation", value="Relu")
    domains = {"": 17} | {node.domain: 1 for node in graph.node if node.domain}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    functions = [onnx.parser.parse_function(_FUNCTION)] if encoding == _OWN_FUNCTION else []
    return helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions)


LEVELS = ("off", "basic", "extended", "all")
_SEEDS = 3
_ARROW = " → "
_RUNS = ("runs", "runs_extended")
_RELU = re.compile(r"\bRelu\b")


class ConvRelu(Experiment):
    """Encodings of an activation after a convolution."""

    name = "conv-relu"
    of_models = False
    key = "encodings"
    reads = ("seed",)

    def run(self, cell: Cell, subject: Subject) -> Answer:
        """Run every encoding, and optimize Conv → Relu with the runtime at every level."""
        models = {name: model(name) for name in ENCODINGS}
        tried: list[Answer] = []
        for name in ENCODINGS:
            against = OTHER_REFERENCE.get(name, REFERENCE)
            result = _try(models[name], models[against], cell.options["seed"])
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
                tuple((each["level"], each["operators"], _RELU.search(each["operators"]) is None) for each in levels),
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
        fusing = [str(level) for level, _, fuses in tables["conv_relu_levels"].rows if fuses]
        levels = several(len(tables["conv_relu_levels"].rows), "level")
        own = f"The runtime fuses Conv → Relu by itself at none of {levels}."
        if fusing:
            own = f"The runtime fuses Conv → Relu by itself at {', '.join(fusing)} ({len(fusing)} of {levels})"
            own += ": at these levels, one node in the file saves no kernel."
        return (*(Finding(text, table.name) for text in texts), Finding(own, "conv_relu_levels"))


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
