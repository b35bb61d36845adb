"""The driver: what it does with a match, how often it calls passes, and what it refuses."""

from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir
import pytest

from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import EndlessRewriting, Log, Rewriter
from sardonyx.ir.rules import Builder, Match, NodeRule, Refused, Replacement, Rule
from sardonyx.ir.scopes import is_sorted
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.records.run import Accuracy, NodeRef, RewriteKind

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'


class FuseReluNeg(NodeRule):
    """Relu(Neg(x)) => Neg(Min(x, x)): wrong, but two nodes become two others."""

    name = "fuse"
    accuracy = Accuracy.EXACT
    roots = ("Relu",)

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        self.asked[node.name or ""] += 1
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        return Match((inner, node)) if inner is not None and inner.op_type == "Neg" else None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        source = match.nodes[0].inputs[0]
        return op.Neg(op.Min(source, source))


def replace(before: str, after: str) -> NodeRule:
    """A rule that replaces one operator by another: a rule and its inverse never terminate."""

    class Replace(NodeRule):
        name = f"{before}-to-{after}"
        accuracy = Accuracy.EXACT
        roots = (before,)

        def match(self, node: ir.Node, graph: Facts) -> Match | None:
            return Match((node,))

        def rewrite(self, match: Match, op: Builder) -> Replacement:
            return op.node(after, tuple(match.root.inputs))

    return Replace()


def load(text: str) -> ir.Model:
    model = io.from_proto(onnx.parser.parse_model(HEAD + text))
    origins.attach(model)
    return model


def run(
    model: ir.Model, *rules: Rule, limit: int | None = None, forbidden: frozenset[tuple[str, str]] = frozenset()
) -> Log:
    return Rewriter(Facts(model), rules, limit=limit, forbidden=forbidden).run()


def tower(height: int) -> ir.Model:
    """A chain of Relu(Neg(…)), each node in its own module."""
    steps = " ".join(f"n{i} = Neg({f'r{i - 1}' if i else 'x'}) r{i} = Relu(n{i})" for i in range(height))
    text = f"{HEAD} g (float[N] x) => (float[N] y) {{ {steps} y = Exp(r{height - 1}) }}"
    proto = onnx.parser.parse_model(text)
    for place, node in enumerate(proto.graph.node[:-1]):
        node.name = f"/net/block.{place // 2}/{'ab'[place % 2]}/{node.op_type}"
    model = io.from_proto(proto)
    origins.attach(model)
    return model


def test_new_nodes_get_the_union_and_the_lowest_common_owner() -> None:
    model = tower(1)
    (event,) = run(model, FuseReluNeg()).events
    assert event.kind == RewriteKind.FUSE
    assert (event.origins, event.owner) == (("net.block.0.a", "net.block.0.b"), "net.block.0")
    assert [ref.op_type for ref in event.after] == ["Min", "Neg"]
    for node in list(model.graph)[:2]:
        assert origins.owner(node) == "net.block.0"


def test_the_last_new_node_gets_the_name_of_the_root() -> None:
    model = tower(1)
    run(model, FuseReluNeg())
    assert [node.name for node in model.graph][1] == "/net/block.0/b/Relu"


def test_an_event_lists_inputs_and_outputs_of_its_nodes() -> None:
    model = tower(2)
    log = run(model, FuseReluNeg())
    first, second = log.events
    old = (NodeRef("/net/block.0/a/Neg", "Neg", ("x",), ("n0",), "net.block.0.a"),)
    assert first.before[:1] == old
    assert first.before[1].inputs == ("n0",)
    assert first.before[1].outputs == (first.root,) == ("r0",)
    low, high = first.after
    assert (low.inputs, high.inputs) == (("x", "x"), low.outputs)
    assert (high.name, high.owner) == ("/net/block.0/b/Relu", "net.block.0")
    assert second.before[0].inputs == high.outputs  # as they were when matched: after the first rewrite


def test_an_event_names_the_graphs_output_before_and_after() -> None:
    model = load("g (float[N] x, float[N] z) => (float[N] y) { n = Neg(x)  y = Relu(n) }")
    (event,) = run(model, FuseReluNeg()).events
    assert event.before[-1].outputs == event.after[-1].outputs == ("y",)


def test_an_omitted_input_keeps_its_place_in_the_event() -> None:
    model = load("g (float[N] x, float m) => (float[N] y) { a = Clip(x, , m)  y = Neg(a) }")
    (event,) = run(model, replace("Clip", "Clip2"), limit=1).events
    assert event.before[0].inputs == event.after[0].inputs == ("x", "", "m")


def test_a_matched_node_that_others_read_stays() -> None:
    model = load("g (float[N] x) => (float[N] y, float[N] z) { n = Neg(x)  y = Relu(n)  z = Exp(n) }")
    run(model, FuseReluNeg())
    assert sorted(node.op_type for node in model.graph) == ["Exp", "Min", "Neg", "Neg"]


def test_a_forbidden_rewrite_is_left_out_and_the_others_are_applied() -> None:
    model = tower(5)
    events = run(model, FuseReluNeg(), forbidden=frozenset({("fuse", "r2")})).events
    assert sorted(event.root for event in events) == ["r0", "r1", "r3", "r4"]


@pytest.mark.parametrize("limit", range(6))
def test_a_limit_gives_the_first_rewrites(limit: int) -> None:
    whole = run(tower(5), FuseReluNeg()).events
    assert run(tower(5), FuseReluNeg(), limit=limit).events == whole[:limit]


@pytest.mark.slow
def test_the_number_of_match_calls_is_linear_in_the_graph() -> None:
    asked: list[int] = []
    for height in (200, 400):
        rule = FuseReluNeg()
        run(tower(height), rule)
        asked.append(rule.asked.total())
    assert asked[1] <= 2.05 * asked[0]


@pytest.mark.slow
def test_a_value_with_many_consumers_does_not_make_it_quadratic() -> None:
    """All nodes are neighbours of such a value, but not all of them are scheduled again after each rewrite."""
    asked: list[int] = []
    for width in (200, 400):
        body = " ".join(f"n{i} = Neg(h)  r{i} = Relu(n{i})" for i in range(width))
        total = ", ".join(f"r{i}" for i in range(width))
        rule = FuseReluNeg()
        run(load(f"g (float[N] x) => (float[N] y) {{ h = Exp(x) {body} y = Sum({total}) }}"), rule)
        asked.append(rule.asked.total())
    assert asked[1] <= 2.05 * asked[0]


def test_rules_that_undo_each_other_are_stopped_by_name() -> None:
    with pytest.raises(EndlessRewriting, match="Abs-to-Neg, Neg-to-Abs"):
        run(load("g (float[N] x) => (float[N] y) { y = Neg(x) }"), replace("Neg", "Abs"), replace("Abs", "Neg"))


def test_an_output_keeps_its_name_type_and_shape() -> None:
    model = load("g (float[N, 3] x) => (float[N, 3] y) { a = Relu(x)  y = Identity(a) }")
    run(model, EliminateIdentity())
    (output,) = model.graph.outputs
    assert (output.name, output.dtype, [str(dim) for dim in output.shape or ()]) == ("y", ir.DataType.FLOAT, ["N", "3"])
    assert [node.op_type for node in model.graph] == ["Relu"]


def test_an_input_keeps_its_declaration() -> None:
    """What a file declares of an inner value may be wrong, and holds for no other input."""
    text = """g (float[N] x, float[2] w = {1, 2}) => (float[N] y) <float[7] a, float[7] b> {
        a = Identity(x)  b = Identity(w)  c = Relu(a)  y = Add(b, c) }"""
    model = load(text)
    for value in model.graph.inputs:
        value.shape = None
    run(model, EliminateIdentity())
    assert [node.op_type for node in model.graph] == ["Relu", "Add"]
    assert [value.shape for value in model.graph.inputs] == [None, None]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N] x) => (float[N] y) { y = Identity(x) }",
        "g (float[N] x) => (float[1] y) <float[1] w = {2}> { y = Identity(w) }",
        "g (float[N] x) => (float[N] a, float[N] y) { a = Relu(x)  y = Identity(a) }",
        "g (float[N] x) => (float[N] a, float[N] b) { r = Relu(x) a = Identity(r)  b = Identity(r) }",
    ],
)
def test_two_names_for_one_value_stay_two(text: str) -> None:
    model = load(text)
    names = [output.name for output in model.graph.outputs]
    log = run(model, EliminateIdentity())
    assert [output.name for output in model.graph.outputs] == names
    assert any(node.op_type == "Identity" for node in model.graph)
    assert any("lose its name" in refusal.reason for refusal in log.refusals)


BRANCHES = """
    g (bool c, float[N] x) => (float[N] y) {
        a = Neg(x)
        b = Exp(x)
        y = If (c) <
            then_branch = t () => (float[N] p) { q = Identity(a)  p = Relu(q) },
            else_branch = e () => (float[N] s) { s = Identity(b) }
        >
    }
"""


def test_bodies_are_rewritten_and_cannot_return_what_is_outside_them() -> None:
    model = load(BRANCHES)
    log = run(model, EliminateIdentity())
    assert [(event.graph.split("/")[-1], event.root) for event in log.events] == [("then_branch", "q")]
    assert [refusal.reason for refusal in log.refusals] == ["a body cannot return a value from outside it"]


def test_what_a_body_reads_is_not_dead_until_the_body_is() -> None:
    model = load(BRANCHES)
    assert not run(model, EliminateDeadNodes()).events
    model = load(BRANCHES.replace("(float[N] y) {", "(float[N] z) {\n z = Sin(x)", 1))
    events = run(model, EliminateDeadNodes()).events
    assert [node.op_type for node in model.graph] == ["Sin"]
    assert {ref.op_type for event in events for ref in event.before} == {"If", "Neg", "Exp"}


def test_order_takes_bodies_into_account() -> None:
    model = load(BRANCHES)
    assert is_sorted(model.graph)
    neg, exp, choice = model.graph
    model.graph.remove(exp)
    model.graph.insert_after(choice, exp)
    assert not is_sorted(model.graph)
    model.graph.sort()
    assert is_sorted(model.graph)
    assert list(model.graph)[-1] is choice
    assert neg in model.graph
