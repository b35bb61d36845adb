"""Properties of any graph: the result is verified, owned and stable, and keeps every module that contributes."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs import models
from sardonyx.ir import io, origins
from sardonyx.ir.scopes import scopes
from sardonyx.passes import ALL
from sardonyx.records import provenance as p
from sardonyx.records.run import RewriteKind
from sardonyx.verbs.optimize.pipeline import optimize

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.slow
@FEW
@given(models())
def test_any_graph_is_optimized_without_a_single_rollback(proto: onnx.ModelProto) -> None:
    run = optimize(proto)
    assert run.verdict is not None
    assert run.verdict.passed
    assert not run.rolled_back, "a pass is wrong, and only verification detected it"
    assert run.after.nodes <= run.before.nodes
    assert run.model is not None
    onnx.checker.check_model(io.to_proto(run.model), full_check=True)


@pytest.mark.slow
@FEW
@given(models())
def test_no_module_that_still_contributes_is_lost(proto: onnx.ModelProto) -> None:
    source = io.from_proto(proto)
    origins.attach(source)
    had = p.merge(origins.origins(node) for node in source.graph)
    run = optimize(proto, verify="off")
    assert run.model is not None
    left = p.UNKNOWN
    for scope in scopes(run.model):
        for thing in (*scope.graph, *scope.graph.initializers.values()):
            left |= origins.origins(thing)
        for node in scope.graph:
            assert node.metadata_props[p.MODULE_PATH] == p.owner_of(origins.origins(node))
            assert node.metadata_props[p.SOURCE_MODULE]
    gone = p.merge(
        frozenset(event.origins) for event in run.events if event.kind in (RewriteKind.BYPASS, RewriteKind.DROP)
    )
    assert had - gone <= left


@pytest.mark.slow
@FEW
@given(models())
def test_a_second_optimization_changes_nothing(proto: onnx.ModelProto) -> None:
    once = optimize(proto, verify="off").model
    assert once is not None
    again = optimize(io.to_proto(once), verify="off")
    assert not again.events, [event.pass_name for event in again.events]


@pytest.mark.slow
@FEW
@given(models(), st.integers(0, 30))
def test_a_limited_run_is_a_prefix_of_the_whole(proto: onnx.ModelProto, count: int) -> None:
    from sardonyx import runtime
    from sardonyx.ir.facts import Facts
    from sardonyx.ir.rewriter import Rewriter

    def events(limit: int | None) -> list[object]:
        model = io.from_proto(proto)
        origins.attach(model)
        facts = Facts(model, evaluate=runtime.evaluate)
        return list(Rewriter(facts, ALL, limit=limit).run().events)

    assert events(count) == events(None)[:count]
