"""What values depend on: constants, sizes or data."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from sardonyx.ir import io
from sardonyx.ir.facts import Dataflow, Dependence

CONSTANT, SIZE, DATA = Dependence
BODY = """
    <ir_version: 10, opset_import: ["" : 20, "other" : 1]>
    g (float[N, 4] x, float[4] d) => (float[N, 4] y) <float[4] d = {1, 2, 3, 4}, float[4] w = {1, 2, 3, 4}> {
        t = Neg (w)
        s = Shape (x)
        c = Cast <to = 1> (s)
        a = Add (x, w)
        z = Size (a)
        e = EyeLike (x)
        l = CastLike (w, x)
        r = RandomNormalLike (w)
        b = Bernoulli (w)
        o = other.Source ()
        p = other.Map (w)
        u = Where (t, c, l)
        k = Constant <value_float = 1.0> ()
        i = If (k) <
            then_branch = g1 () => (float[4] m) { m = Neg (w) }, else_branch = g2 () => (float[4] n) { n = Neg (w) }
        >
        f = Neg (d)
        y = Identity (a)
    }
"""
EXPECTED = {
    "t": CONSTANT, "s": SIZE, "c": SIZE, "a": DATA, "z": SIZE, "e": SIZE, "l": CONSTANT, "r": DATA, "b": DATA,
    "o": DATA, "p": CONSTANT, "u": SIZE, "k": CONSTANT, "i": DATA, "f": DATA, "y": DATA, "w": CONSTANT, "x": DATA,
}  # fmt: skip


def visited(**options: bool) -> dict[str, Dependence]:
    model: ir.Model = io.from_proto(onnx.parser.parse_model(BODY))
    flow = Dataflow(**options)
    for node in model.graph:
        flow.visit(node)
    values = [
        *model.graph.inputs,
        *model.graph.initializers.values(),
        *(v for node in model.graph for v in node.outputs),
    ]
    return {value.name or "": flow.of(value) for value in values}


def test_every_value_depends_on_what_its_operands_depend_on() -> None:
    assert {name: kind for name, kind in visited().items() if name != "d"} == EXPECTED


@pytest.mark.parametrize(("option", "changed"), [
    ("defaults_are_constants", {"f": CONSTANT}),
    ("types_are_data", {"e": DATA, "l": DATA, "u": DATA}),
])  # fmt: skip
def test_an_option_changes_only_what_it_names(option: str, changed: dict[str, Dependence]) -> None:
    assert {name: kind for name, kind in visited(**{option: True}).items() if name != "d"} == EXPECTED | changed


def test_results_of_nodes_that_were_not_visited_count_as_data() -> None:
    model = io.from_proto(onnx.parser.parse_model(BODY))
    assert Dataflow().of(model.graph[0].outputs[0]) is DATA
