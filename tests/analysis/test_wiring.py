"""The wiring a page draws is the graph's: every node that computes once, every edge once, bodies joined to the rest."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from onnx import helper

from graphs import models
from sardonyx.analysis.wiring import wiring
from sardonyx.ir.tagged_model import tagged
from sardonyx.records.run import Wiring

HEAD = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>'


def wired(text: str) -> Wiring:
    return wiring(tagged(onnx.parser.parse_model(HEAD + text)).model)


def by_name(drawn: Wiring) -> set[tuple[str, str]]:
    return {(drawn.names[maker], drawn.names[reader]) for maker, reader in drawn.edges}


def test_nodes_edges_inputs_and_outputs_are_the_graphs() -> None:
    drawn = wired("""
        g (float[2] x, float[2] unused) => (float[2] y, float[2] c, float[2] x) <float[2] w = {1, 2}> {
            [one] c = Constant <value = float[2] {3, 4}> ()
            [add] a = Add(x, c)
            [twice] b = Mul(a, a)
            [own] d = own.Fast(b, w)
            [last] y = Sub(d, a)
        }
    """)
    assert drawn.names == ("add", "twice", "own", "last")
    assert drawn.ops == ("Add", "Mul", "own::Fast", "Sub")
    assert drawn.edges == ((0, 1), (1, 2), (2, 3), (0, 3))
    assert drawn.inputs == {"x": (0,), "unused": ()}
    assert drawn.outputs == {"y": 3, "c": -1, "x": -1}


def test_a_body_is_joined_to_what_it_reads_and_to_who_holds_it() -> None:
    drawn = wired("""
        g (float[2] x, bool b) => (float[2] y) {
            [outer] a = Neg(x)
            [choice] y = If (b) <
                then_branch = t () => (float[2] p) { [inner] i = Abs(a) [end] p = Exp(i) },
                else_branch = e () => (float[2] q) { [other] q = Sqrt(x) }
            >
        }
    """)
    assert drawn.names == ("outer", "inner", "end", "other", "choice")
    assert by_name(drawn) == {("outer", "inner"), ("inner", "end"), ("end", "choice"), ("other", "choice")}
    assert drawn.inputs == {"x": (0, 3), "b": (4,)}
    assert drawn.outputs == {"y": 4}


def test_a_function_is_a_graph_of_its_own() -> None:
    proto = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { [call] y = own.Both(x) }")
    steps = [helper.make_node("Neg", ["p"], ["n"], name="n1"), helper.make_node("Abs", ["n"], ["q"], name="n2")]
    proto.functions.append(helper.make_function("own", "Both", ["p"], ["q"], steps, proto.opset_import))
    drawn = wiring(tagged(proto).model)
    assert drawn.names == ("call", "n1", "n2")
    assert drawn.edges == ((1, 2),)


def test_weights_that_old_files_list_as_inputs_are_no_inputs() -> None:
    drawn = wired("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    assert list(drawn.inputs) == ["x"]


def test_the_owners_are_the_nodes_modules() -> None:
    drawn = wired("""
        g (float[2] x) => (float[2] y) {
            ["/net/a/Neg"] p = Neg(x)
            ["/net/b/Abs"] q = Abs(p)
            ["/net/a/Exp"] y = Exp(q)
        }
    """)
    assert [drawn.modules[place] for place in drawn.owners] == ["net.a", "net.b", "net.a"]
    assert len(drawn.modules) == 2


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(models())
def test_any_graphs_wiring_says_what_its_file_says(proto: onnx.ModelProto) -> None:
    drawn = wiring(tagged(proto).model)
    computing = [node for node in proto.graph.node if node.op_type != "Constant"]
    makers = {value: node.name for node in computing for value in node.output}
    read = {(makers[value], node.name) for node in computing for value in node.input if value in makers}
    assert sorted(drawn.names) == sorted(node.name for node in computing)
    assert by_name(drawn) == read
    assert len(set(drawn.edges)) == len(drawn.edges) == len(read)
    assert all(maker < reader for maker, reader in drawn.edges)
    for name, place in drawn.outputs.items():
        assert makers.get(name) == (None if place < 0 else drawn.names[place])


@pytest.mark.parametrize("size", [10, 20])
def test_columns_have_one_entry_a_node(size: int) -> None:
    steps = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(size))
    drawn = wired(f"g (float[2] v0) => (float[2] v{size}) {{ {steps} }}")
    assert len(drawn.names) == len(drawn.ops) == len(drawn.owners) == size
    assert len(drawn.edges) == size - 1
