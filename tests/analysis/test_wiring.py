"""The wiring for a page matches the graph: every computing node and edge once, bodies connected to the rest."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from onnx import helper

from graphs import models
from sardonyx.ir.facts import Facts
from sardonyx.ir.origins import tagged
from sardonyx.records.run import Wiring
from sardonyx.verbs.optimize.run_tables import wiring

HEAD = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>'


def wired(text: str) -> Wiring:
    return wiring(tagged(onnx.parser.parse_model(HEAD + text)).model)


def by_name(wires: Wiring) -> set[tuple[str, str]]:
    return {(wires.names[producer], wires.names[reader]) for producer, reader in wires.edges}


def test_nodes_edges_inputs_and_outputs_match_the_graph() -> None:
    wires = wired("""
        g (float[2] x, float[2] unused) => (float[2] y, float[2] c, float[2] x) <float[2] w = {1, 2}> {
            [one] c = Constant <value = float[2] {3, 4}> ()
            [add] a = Add(x, c)
            [twice] b = Mul(a, a)
            [own] d = own.Fast(b, w)
            [last] y = Sub(d, a)
        }
    """)
    assert wires.names == ("add", "twice", "own", "last")
    assert wires.ops == ("Add", "Mul", "own::Fast", "Sub")
    assert wires.edges == ((0, 1), (1, 2), (2, 3), (0, 3))
    assert wires.inputs == {"x": (0,), "unused": ()}
    assert wires.outputs == {"y": 3, "c": -1, "x": -1}


def test_a_body_is_connected_to_its_captured_values_and_its_owner() -> None:
    wires = wired("""
        g (float[2] x, bool b) => (float[2] y) {
            [outer] a = Neg(x)
            [choice] y = If (b) <
                then_branch = t () => (float[2] p) { [inner] i = Abs(a) [end] p = Exp(i) },
                else_branch = e () => (float[2] q) { [other] q = Sqrt(x) }
            >
        }
    """)
    assert wires.names == ("outer", "inner", "end", "other", "choice")
    assert by_name(wires) == {("outer", "inner"), ("inner", "end"), ("end", "choice"), ("other", "choice")}
    assert wires.inputs == {"x": (0, 3), "b": (4,)}
    assert wires.outputs == {"y": 4}


def test_edges_inputs_and_outputs_have_the_types_that_follow_from_the_graph() -> None:
    model = tagged(
        onnx.parser.parse_model(
            HEAD
            + """
        g (float[batch,3,4] x, int64[2] to) => (float[] y, float[a,b] z) {
            [turn] t = Transpose <perm = [0, 2, 1]> (x)
            [many] m = Mul(t, t)
            [sum] y = ReduceSum <keepdims = 0> (m)
            [reshape] z = Reshape(m, to)
            [own] unknown = own.Fast(m)
            [end] last = Abs(unknown)
        }
    """
        )
    ).model
    wires = wiring(model, Facts(model))
    typed = {
        (wires.names[producer], wires.names[reader]): wires.types[place] if place >= 0 else None
        for (producer, reader), place in zip(wires.edges, wires.edge_types, strict=True)
    }
    turned = "float[batch,4,3]"
    assert typed == {("turn", "many"): turned, ("many", "sum"): turned, ("many", "reshape"): turned,
                     ("many", "own"): turned, ("own", "end"): None}  # fmt: skip
    assert [wires.types[place] for place in wires.input_types] == ["float[batch,3,4]", "int64[2]"]
    assert [wires.types[place] for place in wires.output_types] == ["float[]", "float[?,?]"]
    assert wiring(model).edge_types == ()


def test_a_function_is_a_graph_of_its_own() -> None:
    proto = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { [call] y = own.Both(x) }")
    steps = [helper.make_node("Neg", ["p"], ["n"], name="n1"), helper.make_node("Abs", ["n"], ["q"], name="n2")]
    proto.functions.append(helper.make_function("own", "Both", ["p"], ["q"], steps, proto.opset_import))
    wires = wiring(tagged(proto).model)
    assert wires.names == ("call", "n1", "n2")
    assert wires.edges == ((1, 2),)


def test_weights_that_old_files_list_as_inputs_are_no_inputs() -> None:
    wires = wired("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    assert list(wires.inputs) == ["x"]


def test_owners_are_the_modules_of_the_nodes() -> None:
    wires = wired("""
        g (float[2] x) => (float[2] y) {
            ["/net/a/Neg"] p = Neg(x)
            ["/net/b/Abs"] q = Abs(p)
            ["/net/a/Exp"] y = Exp(q)
        }
    """)
    assert [wires.modules[place] for place in wires.owners] == ["net.a", "net.b", "net.a"]
    assert len(wires.modules) == 2


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(models())
def test_the_wiring_of_any_graph_matches_its_file(proto: onnx.ModelProto) -> None:
    wires = wiring(tagged(proto).model)
    computing = [node for node in proto.graph.node if node.op_type != "Constant"]
    producers = {value: node.name for node in computing for value in node.output}
    read = {(producers[value], node.name) for node in computing for value in node.input if value in producers}
    assert sorted(wires.names) == sorted(node.name for node in computing)
    assert by_name(wires) == read
    assert len(set(wires.edges)) == len(wires.edges) == len(read)
    assert all(producer < reader for producer, reader in wires.edges)
    for name, place in wires.outputs.items():
        assert producers.get(name) == (None if place < 0 else wires.names[place])


@pytest.mark.parametrize("size", [10, 20])
def test_columns_have_one_entry_per_node(size: int) -> None:
    steps = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(size))
    wires = wired(f"g (float[2] v0) => (float[2] v{size}) {{ {steps} }}")
    assert len(wires.names) == len(wires.ops) == len(wires.owners) == size
    assert len(wires.edges) == size - 1
