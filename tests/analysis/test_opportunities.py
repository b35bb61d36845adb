"""`opportunities` agrees with `optimize`, and gives a reason and a module for every skipped match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.records.inspection import Opportunities
from sardonyx.records.run import PassRecord

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


def _of(opportunities: Opportunities, name: str) -> PassRecord:
    (record,) = (record for record in opportunities.passes if record.name == name)
    return record


def test_a_match_that_a_pass_rewrites_is_counted_with_its_module() -> None:
    merged = _of(sardonyx.opportunities(_model()), "merge-transposes")
    assert (merged.rewrites, merged.refusals, merged.modules) == (1, (), {"encoder.layer.0": 1})


def test_a_skipped_match_has_its_reason_and_its_module() -> None:
    opportunities = sardonyx.opportunities(_model())
    (group,) = _of(opportunities, "fuse-matmul-add").refusals
    assert (group.count, group.modules) == (1, {"encoder.layer.0": 1})
    assert group.reason == "an operand of the product does not have two axes"
    rewrites = sum(record.rewrites for record in opportunities.passes)
    assert (opportunities.found, opportunities.left) == (rewrites + 1, 1)


def test_a_layer_norm_is_found_in_every_form_that_its_pass_fuses() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (float[2,6,8] x) => (float[2,6,8] y)
    <float n = {8}, float two = {2}, float eps = {1e-5}, int64[1] last = {-1}, float[8] w = {1,2,3,4,5,6,7,8}>
    {
        s = ReduceSum (x, last)  m = Div (s, n)  d = Sub (x, m)  q = Pow (d, two)
        v = ReduceSum (q, last)  a = Div (v, n)  e = Add (a, eps)  r = Sqrt (e)  z = Div (d, r)  y = Mul (z, w)
    }
    """
    opportunities = sardonyx.opportunities(onnx.parser.parse_model(text))
    assert _of(opportunities, "fuse-layer-norm").rewrites == 1


def test_the_model_is_unchanged() -> None:
    model = _model()
    before = model.SerializeToString()
    sardonyx.opportunities(model)
    assert model.SerializeToString() == before


def test_the_record_passes_through_json_unchanged() -> None:
    opportunities = sardonyx.opportunities(_model())
    assert Opportunities.from_json(opportunities.to_json()) == opportunities


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_the_matches_in_a_real_model_are_those_that_optimize_rewrites(
    small_model: Callable[[str, str], Path], exporter: str
) -> None:
    path = small_model("bert", exporter)
    opportunities = sardonyx.opportunities(path)
    attention = _of(opportunities, "fuse-attention").modules
    assert [path.rpartition("encoder.")[2] for path in attention] == [
        "layer.0.attention.self",
        "layer.1.attention.self",
    ]
    run = sardonyx.optimize(path, verify="off", dry_run=True)
    assert (opportunities.before, opportunities.after) == (run.before, run.after)
    assert [(p.name, p.rewrites, p.refusals) for p in opportunities.passes] == [
        (p.name, p.rewrites, p.refusals) for p in run.passes
    ]
