"""The tables of a Run add up: modules own exactly the nodes of the graph, and every rewrite can be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from graphs import models
from sardonyx.ir.opset_raising import RAISE
from sardonyx.ir.origins import tagged
from sardonyx.passes import ALL
from sardonyx.records.run import Event, ModuleCount, RewriteKind, Run
from sardonyx.verbs.analyze.census import Census
from sardonyx.verbs.optimize.candidates import RewriteJob
from sardonyx.verbs.optimize.pipeline import optimize

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def adds_up(run: Run, source: Census) -> None:
    def total(amount: Callable[[ModuleCount], int]) -> int:
        return sum(map(amount, run.modules))

    assert total(lambda module: module.before) == run.before.nodes == source.counts.nodes
    assert total(lambda module: module.after) == run.after.nodes
    assert total(lambda module: module.bytes_before) == run.before.bytes == source.counts.bytes
    assert total(lambda module: module.bytes_after) == run.after.bytes
    assert total(lambda module: module.parameters) == source.parameters
    assert len({module.path for module in run.modules}) == len(run.modules)
    for record in run.passes:
        for group in record.refusals:
            assert sum(group.modules.values()) == group.count


def drawable(events: Sequence[Event]) -> None:
    """Every node of a rewrite lists its inputs and outputs, except where the opset was raised."""
    for event in events:
        for ref in (*event.before, *event.after):
            assert bool(ref.outputs) == (event.pass_name != RAISE.name), event
        made = {value for ref in event.before for value in ref.outputs}
        if event.before and event.pass_name != RAISE.name:
            assert event.root in (
                made if event.kind is not RewriteKind.DROP else made | {ref.name for ref in event.before}
            )


def wired_as_counted(run: Run) -> None:
    for wiring, counts in ((run.wiring_before, run.before), (run.wiring_after, run.after)):
        assert wiring is not None
        assert len(wiring.names) == counts.nodes
    owners = {module.path for module in run.modules}
    assert run.wiring_before is not None
    assert owners >= set(run.wiring_before.modules)


@pytest.mark.slow
@FEW
@given(models())
def test_the_record_of_any_graph_adds_up(proto: onnx.ModelProto) -> None:
    run = optimize(proto, verify="off")
    adds_up(run, Census.of(tagged(proto).model))
    drawable(run.events)
    wired_as_counted(run)


@pytest.mark.parametrize(("name", "exporter"), [("bert", "torchscript"), ("llama", "dynamo"), ("cnn", "dynamo")])
def test_the_record_of_a_real_model_adds_up(small_model: Callable[[str, str], Path], name: str, exporter: str) -> None:
    path = small_model(name, exporter)
    run = optimize(path, verify="off")
    adds_up(run, Census.of(tagged(path).model))
    drawable(run.events)
    wired_as_counted(run)


def _modules(text: str) -> dict[str, ModuleCount]:
    run = optimize(onnx.parser.parse_model(HEAD + text), verify="off", only=[])
    return {module.path: module for module in run.modules}


def test_a_constant_belongs_to_the_lowest_common_module_of_its_consumers() -> None:
    modules = _modules("""
        g (float[2] x) => (float[2] y) <float[2] own = {1, 2}, float[2] shared = {3, 4}, float[1] scale = {3}> {
            ["/net/a/p/Add"] a = Add(x, own)
            ["/net/a/q/Add"] b = Add(a, shared)
            ["/net/a/r/Mul"] c = Mul(b, shared)
            ["/net/b/Mul"] y = Mul(c, scale)
        }
    """)
    assert {path: (count.before, count.parameters, count.bytes_before) for path, count in modules.items()} == {
        "": (0, 0, 0),
        "net": (0, 0, 0),
        "net.a": (0, 2, 8),  # owns only what its parts share
        "net.a.p": (1, 2, 8),
        "net.a.q": (1, 0, 0),
        "net.a.r": (1, 0, 0),
        "net.b": (1, 0, 4),  # a single number is no parameter
    }


def test_the_source_is_analyzed_once_per_job() -> None:
    proto = onnx.parser.parse_model(
        HEAD + "g (float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) y = Neg(b) }"
    )
    job = RewriteJob(proto, ALL, "portable", lambda _phase, _fraction: None)
    whole, half = job.candidate(), job.candidate(1)
    assert len(half.log.events) == 1 < len(whole.log.events)
    assert half.before is whole.before
    assert whole.before.counts.nodes == 3


def test_every_pass_documents_when_it_refuses_and_why_it_helps() -> None:
    for each in (*ALL, RAISE):
        assert each.about.endswith("."), each.name
        assert "\n" not in each.about
        assert "  " not in each.about
        assert each.algebra not in each.about
    run = optimize(onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Neg(x) }"), verify="off")
    descriptions = {each.name: each.about for each in ALL}
    assert all(record.about == descriptions[record.name] for record in run.passes)


def test_ancestors_of_an_owner_are_listed_with_their_tags() -> None:
    modules = _modules("""
        g (float[2] x) => (float[2] y) {
            ["/net/a/p/Neg"] a = Neg(x)
            ["/net/a/q/Abs"] y = Abs(a)
        }
    """)
    assert list(modules) == ["", "net", "net.a", "net.a.p", "net.a.q"]
    assert (modules["net.a"].tag, modules["net.a"].before, modules["net.a"].bytes_before) == ("/net/a", 0, 0)
