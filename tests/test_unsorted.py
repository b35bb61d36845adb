"""A model whose nodes are in no topological order is loaded sorted, and optimized like any other."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace

import onnx
import pytest

import sardonyx
from backend.cases import node_cases
from backend.harness import examine
from fuzzing import families, judging, running
from fuzzing.draft import Rejected
from sardonyx.errors import ModelError, SardonyxError
from sardonyx.ir import io
from sardonyx.ir.scopes import is_sorted, top_graphs

FIRST = 700_000  # fixed, so that a failure is reproducible
HEAD = '<ir_version: 10, opset_import: ["" : 18]>'


def shuffled(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """A copy with the nodes of every graph, body and function in random order."""
    copy, rng = onnx.ModelProto(), random.Random(seed)
    copy.CopyFrom(model)
    for owner in _owners(copy):
        nodes = list(owner.node)
        rng.shuffle(nodes)
        del owner.node[:]
        owner.node.extend(nodes)
    return copy


def _owners(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    waiting: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while waiting:
        owner = waiting.pop()
        attributes = [attribute for node in owner.node for attribute in node.attribute]
        waiting += [attribute.g for attribute in attributes if attribute.HasField("g")]
        yield owner


def check_drawn(seed: int) -> onnx.ModelProto | None:
    """Loading sorts it, and every optimized form computes what the runtime computes from the shuffled source."""
    try:
        draw = families.draw(seed)
        model = shuffled(draw.model, seed)
        source = judging.Source(model, running.feeds(draw.inputs, draw.sizes, seed))
    except (Rejected, running.Failed):
        return None
    assert all(map(is_sorted, top_graphs(io.from_proto(model))))
    if not source.answers:
        return None
    assert not [finding for finding in judging.judge(source).findings if finding.grave], seed
    return model


@pytest.mark.slow
def test_random_models_in_random_order() -> None:
    assert sum(check_drawn(seed) is not None for seed in range(FIRST, FIRST + 25)) > 15


@pytest.mark.campaign
def test_many_random_models_in_random_order() -> None:
    for seed in range(FIRST, FIRST + 1000):
        model = check_drawn(seed)
        if model is not None and seed % 10 == 0:
            with contextlib.suppress(SardonyxError):  # such as: it accepts none of the generated inputs
                sardonyx.optimize(model)


@pytest.mark.campaign
def test_models_of_onnx_in_random_order() -> None:
    cases = [case for case in node_cases() if any(len(owner.node) > 1 for owner in _owners(case.model))]
    assert len(cases) > 400
    mixed = [replace(case, model=shuffled(case.model, 1)) for case in cases]
    failures = [line for case in mixed for line in examine(case, _optimized).failures]
    assert not failures


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    return sardonyx.optimize(model, verify="off").to_proto()


def test_the_source_is_noted_and_the_result_is_sorted() -> None:
    text = f"{HEAD} g (float[N, 4] x) => (float[N, 4] y) {{ a = Relu(x)  b = Tanh(a)  y = Neg(b) }}"
    model = onnx.parser.parse_model(text)
    run = sardonyx.optimize(shuffled(model, 3))
    assert [node.op_type for node in run.to_proto().graph.node] == ["Relu", "Tanh", "Neg"]
    assert any("topological order" in note for note in run.notes)
    assert not any("topological order" in note for note in sardonyx.optimize(model).notes)


BRANCH = (
    """If <then_branch = t () => (float[N] u) { u = Relu(%s) }, else_branch = e () => (float[N] v) { v = Neg(x) }>"""
)


def test_a_body_that_reads_what_depends_on_it_is_a_cycle() -> None:
    body = BRANCH % "x"
    model = onnx.parser.parse_model(f"{HEAD} g (float[N] x, bool c) => (float[N] y) {{ a = {body} (c)  y = Abs(a) }}")
    model.graph.node[0].attribute[0].g.node[0].input[0] = "y"
    with pytest.raises(ModelError, match="the graph of the model has a cycle through a body"):
        io.from_proto(model)
