"""`opportunities` agrees with `optimize`, and gives a reason and a module for every remaining place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match, Refused, Replacement
from sardonyx.optimizer import opportunities as verb
from sardonyx.passes.base import NodePass, Pass
from sardonyx.records.inspection import Opportunities, PatternCount, WhyLeft
from sardonyx.records.run import Accuracy

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n,6,8] x) => (float[n,6,8] y)
<float[8,8] w = {WEIGHT}, float[8] b = {BIAS}>
{
    t = Transpose<perm = [0, 2, 1]> (x)
    u = Transpose<perm = [0, 2, 1]> (t)
    m = MatMul (u, w)
    y = Add (m, b)
}
"""


def _model() -> onnx.ModelProto:
    numbers = [str((3 * i % 7) - 2.5) for i in range(64)]
    text = MODEL.replace("WEIGHT", ", ".join(numbers)).replace("BIAS", ", ".join(numbers[:8]))
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = f"/encoder/layer.0/{node.op_type}_{node.output[0]}"
    return model


def _of(opportunities: Opportunities, name: str) -> PatternCount:
    (pattern,) = (pattern for pattern in opportunities.patterns if pattern.name == name)
    return pattern


class Shy(NodePass):
    """Refuses every sum, and its producers with a more distant reason."""

    name = "shy"
    accuracy = Accuracy.EXACT
    roots = ("Add", "MatMul")

    def match(self, node: ir.Node, graph: Facts) -> Refused:
        product = node.inputs[0].producer() if node.inputs[0] is not None else None
        if node.op_type == "Add" and product is not None:
            return Refused("it is shy", (product, node))
        return Refused("it is too far off", (node,))

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        raise NotImplementedError


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Use only these passes."""

    def choose(*passes: Pass) -> None:
        monkeypatch.setattr(verb, "select", lambda *_: passes)

    return choose


def test_a_pattern_that_a_pass_rewrites_is_gone_afterwards() -> None:
    chains = _of(sardonyx.opportunities(_model()), "transpose-chains")
    assert (chains.before, chains.after, chains.why) == (1, 0, ())
    assert chains.modules == {"encoder.layer.0": 1}


def test_a_remaining_place_has_the_nearest_reason_and_its_module(only: Callable[..., None]) -> None:
    only(Shy())
    products = _of(sardonyx.opportunities(_model()), "deep-products")
    where = {"encoder.layer.0": 1}
    assert products.why == (WhyLeft("shy", "it is shy", 1, where, ("/encoder/layer.0/Add_y",)),)
    assert (products.before, products.after, products.modules) == (1, 1, where)


def test_a_place_without_a_matching_pass_is_marked(only: Callable[..., None]) -> None:
    only(Shy())
    (why,) = _of(sardonyx.opportunities(_model()), "transpose-chains").why
    assert (why.pass_name, why.reason, why.count) == (None, verb.NO_NEAR_MISS, 1)


def test_the_model_is_unchanged() -> None:
    model = _model()
    before = model.SerializeToString()
    sardonyx.opportunities(model)
    assert model.SerializeToString() == before


def test_the_record_passes_through_json_unchanged() -> None:
    opportunities = sardonyx.opportunities(_model())
    assert Opportunities.from_json(opportunities.to_json()) == opportunities


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_the_patterns_of_a_real_model_match_its_architecture(
    small_model: Callable[[str, str], Path], exporter: str
) -> None:
    path = small_model("bert", exporter)
    opportunities = sardonyx.opportunities(path)
    had = {pattern.name: pattern.before for pattern in opportunities.patterns}
    assert (had["attention-cores"], had["qkv-products"], had["gelus"]) == (2, 2, 2)
    assert had["layer-norms"] + had["layer-norm-operators"] == 5
    assert had["deep-products"] == 12
    attention = _of(opportunities, "attention-cores").modules
    assert [path.rpartition("encoder.")[2] for path in attention] == [
        "layer.0.attention.self",
        "layer.1.attention.self",
    ]
    run = sardonyx.optimize(path, verify="off", dry_run=True)
    assert (opportunities.before, opportunities.after) == (run.before, run.after)
    assert {p.name: p.rewrites for p in opportunities.passes} == {p.name: p.rewrites for p in run.passes}


def test_every_remaining_place_is_explained_once(small_model: Callable[[str, str], Path]) -> None:
    for pattern in sardonyx.opportunities(small_model("gpt2", "torchscript"), target="ort").patterns:
        if not pattern.made:
            assert sum(why.count for why in pattern.why) == pattern.after
            assert all(sum(why.modules.values()) == why.count for why in pattern.why)
