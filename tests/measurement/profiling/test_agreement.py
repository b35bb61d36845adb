"""Tracing by names agrees with tracing by values wherever both apply, and no work of the file is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

import graphs
import models
from measurement.profiling.traced import Traced, traced
from sardonyx.runtime.timed import Level
from sardonyx.verbs.profile.kernel_origins import NO_WORK, GraphStep, moves

EXPORTERS = ("torchscript", "dynamo")
GONE = ("Identity", "Dropout", "Slice", "Not", "Expand")  # no-ops are dropped, as data movement is


def agree(trace: Traced) -> int:
    """Return how often both apply; fail where they differ."""
    both = 0
    for tracer in trace.tracers():
        for step in tracer.run.steps:
            named, between = tracer.names.step(step.name), tracer.between(step)
            if named is None or not between or tracer.file.steps[named].op_type in NO_WORK:
                continue
            both += 1
            assert between.intersection(tracer.values.twins(named)), step.name
    return both


def missing(result: Traced) -> list[GraphStep]:
    """Steps of the file that depend on its inputs and belong to no kernel."""
    done = {step for trace in result.traces.values() for step in trace.steps}
    sizes = result.tracers()[0].values.is_size
    return [
        step
        for step in result.file.steps
        if step not in done and step.op_type not in GONE and not moves(step) and not all(map(sizes, step.outputs))
    ]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", models.names())
def test_small_models_are_traced_completely_and_names_agree_with_values(
    name: str, exporter: str, small_model: Callable[[str, str], Path]
) -> None:
    result = traced(small_model(name, exporter))
    assert all(trace.steps for trace in result.traces.values())
    assert agree(result) > len(result.stages[-1].steps) // 3
    assert not missing(result)


@pytest.mark.slow
@given(graphs.models())
@settings(max_examples=40)
def test_random_graphs_are_traced_completely_and_names_agree_with_values(model) -> None:
    result = traced(model)
    assert all(trace.steps for trace in result.traces.values())
    agree(result)


@pytest.mark.slow
@given(graphs.models())
@settings(max_examples=25)
def test_without_optimizations_every_kernel_is_one_node(model) -> None:
    trace = traced(model, Level.OFF)
    assert [kernel.nodes for kernel in trace.kernels] == [{step.name} for step in trace.stages[0].steps]
