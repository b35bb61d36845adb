"""Raising the opset of a model: when the driver does it, that it is one step, and what stays unchanged."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import sardonyx
from passes.util import compare, draw, graph_text, outputs
from raised import raise_model
from sardonyx.errors import UsageError
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.opset_raising import HIGHEST, RAISE
from sardonyx.ir.rewriter import Log, Rewriter
from sardonyx.ir.rules import Builder, Match, NodeRule, Refused, Replacement
from sardonyx.records.run import Accuracy, RewriteKind
from sardonyx.verbs.optimize.options import OptimizeOptions

MEANS = """
    g (float[N, 8] x) => (float[N, 8] y) {
        a = Relu(x)
        m = ReduceMean <axes = [1]> (a)
        b = Sub(a, m)
        c = Abs(b)
        y = Neg(c)
    }
"""


class FuseNegAbs(NodeRule):
    """Neg(Abs(x)) => Neg(Max(x, Neg(x))): stands for a fusion that needs a newer opset."""

    name = "fuse"
    accuracy = Accuracy.EXACT
    roots = ("Neg",)
    needs = 20

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        return Match((inner, node)) if inner is not None and inner.op_type == "Abs" else None

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        source = match.nodes[0].inputs[0]
        return op.Neg(op.Max(source, op.Neg(source)))


def load(text: str, opset: int = 14, ir_version: int = 7) -> ir.Model:
    proto = onnx.parser.parse_model(graph_text(text, opset))
    proto.ir_version = ir_version
    model = io.from_proto(proto)
    origins.attach(model)
    return model


def run(
    model: ir.Model,
    *,
    limit: int | None = None,
    forbidden: frozenset[tuple[str, str]] = frozenset(),
    max_opset: int = HIGHEST,
) -> Log:
    rewriter = Rewriter(Facts(model), [FuseNegAbs()], limit=limit, forbidden=forbidden, max_opset=max_opset)
    return rewriter.run()


def test_a_fusion_gets_the_opset_it_needs_and_no_newer_one() -> None:
    model = load(MEANS)
    log = run(model)
    assert [(event.pass_name, event.kind, event.root) for event in log.events] == [
        (RAISE.name, RewriteKind.FUSE, "opset 20"),
        ("fuse", RewriteKind.FUSE, "y"),
    ]
    assert (dict(model.opset_imports), model.ir_version) == ({"": 20}, 9)
    (mean,) = (node for node in model.graph if node.op_type == "ReduceMean")
    assert (list(mean.attributes), len(mean.inputs)) == ([], 2)
    assert [ref.op_type for ref in log.events[0].before] == ["ReduceMean"]
    assert log.tallies[RAISE.name].rewrites == 1


def test_without_a_fusion_nothing_is_raised() -> None:
    model = load(MEANS.replace("c = Abs(b)", "c = Exp(b)"))
    assert not run(model).events
    assert (dict(model.opset_imports), model.ir_version) == ({"": 14}, 7)


def test_a_model_of_a_sufficient_opset_is_not_raised() -> None:
    model = load(MEANS.replace("ReduceMean <axes = [1]>", "ReduceMean"), opset=21, ir_version=10)
    assert [event.pass_name for event in run(model).events] == ["fuse"]
    assert (dict(model.opset_imports), model.ir_version) == ({"": 21}, 10)


@pytest.mark.parametrize("bound", [0, 14, 17, 19])
def test_raising_respects_the_given_limit(bound: int) -> None:
    model = load(MEANS)
    log = run(model, max_opset=bound)
    assert not log.events
    assert [refusal.reason for refusal in log.refusals] == ["needs opset 20; the opset may not be raised that far"]
    assert dict(model.opset_imports) == {"": 14}


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_limit_on_rewrites_never_gives_a_partial_raise(limit: int) -> None:
    whole = run(load(MEANS)).events
    model = load(MEANS)
    assert run(model, limit=limit).events == whole[:limit]
    assert model.opset_imports[""] == (20 if limit else 14)
    onnx.checker.check_model(io.to_proto(model), full_check=True)


def test_a_rolled_back_raise_stays_rolled_back() -> None:
    model = load(MEANS)
    log = run(model, forbidden=frozenset({(RAISE.name, "opset 20")}))
    assert not log.events
    assert [refusal.reason for refusal in log.refusals] == ["needs opset 20; raising it was rolled back"]


def test_a_forbidden_fusion_raises_nothing() -> None:
    model = load(MEANS)
    assert not run(model, forbidden=frozenset({("fuse", "y")})).events
    assert dict(model.opset_imports) == {"": 14}


def test_the_whole_model_is_raised_or_nothing() -> None:
    model = load(MEANS.replace("a = Relu(x)", "a = Nonsense(x)"))
    log = run(model)
    assert [refusal.reason for refusal in log.refusals] == [
        "needs opset 20; Nonsense (a) is not an operator of opset 14"
    ]
    assert [node.op_type for node in model.graph if "axes" in node.attributes] == ["ReduceMean"]


def test_bodies_are_raised_with_the_graph_around_them() -> None:
    model = load(
        """
        g (bool c, float[N, 8] x) => (float[N, 8] y) {
            i = If (c) <
                then_branch = t () => (float[N, 1] p) { p = ReduceMean <axes = [1]> (x) },
                else_branch = e () => (float[N, 1] q) { q = ReduceMax <axes = [-1]> (x) }
            >
            b = Sub(x, i)
            c2 = Abs(b)
            y = Neg(c2)
        }
        """
    )
    before = io.to_proto(model)
    run(model)
    after = io.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert after.opset_import[0].version == 20
    for seed in range(4):
        feeds = draw(before, seed, {"*": 3})
        compare("y", outputs(before, feeds)[0], outputs(after, feeds)[0], exact=False)


FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 14, "own" : 1]>
g (float[N, 8] x) => (float[N, 8] y) { a = own.Half(x) c = Abs(a) y = Neg(c) }
<domain: "own", opset_import: ["" : %d]>
Half (x) => (y) { %s }
"""


def test_a_function_keeps_its_opset_where_its_operators_did_not_change() -> None:
    model = io.from_proto(onnx.parser.parse_model(FUNCTIONS % (14, "b = Sigmoid(x) y = Abs(b)")))
    origins.attach(model)
    assert [event.pass_name for event in run(model).events] == [RAISE.name, "fuse"]
    proto = io.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert {entry.domain: entry.version for entry in proto.functions[0].opset_import} == {"": 14}
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 20, "own": 1}


def test_a_function_whose_operators_changed_prevents_raising() -> None:
    model = io.from_proto(onnx.parser.parse_model(FUNCTIONS % (14, "y = ReduceMean <axes = [1]> (x)")))
    origins.attach(model)
    log = run(model)
    assert [refusal.reason for refusal in log.refusals] == [
        "needs opset 20; the function Half uses ReduceMean of opset 14"
    ]


def test_nothing_is_raised_for_a_function() -> None:
    text = FUNCTIONS.replace("c = Abs(a)", "c = Exp(a)") % (14, "b = Abs(x) y = Neg(b)")
    model = io.from_proto(onnx.parser.parse_model(text))
    origins.attach(model)
    log = run(model)
    assert [refusal.reason for refusal in log.refusals] == ["needs opset 20, but the opset of a function is not raised"]
    assert model.opset_imports[""] == 14


def test_weights_that_old_files_list_as_inputs_stay_constants() -> None:
    text = "g (float[N] x, float[1] w) => (float[N] y) <float[1] w = {2}> { a = Mul(x, w) c = Abs(a) y = Neg(c) }"
    model = load(text, opset=8, ir_version=3)
    assert model.graph.initializers["w"].is_graph_input()
    assert "would no longer be constants" in run(model).refusals[0].reason
    assert model.ir_version == 3
    model = load(text, opset=9, ir_version=4)
    assert [event.pass_name for event in run(model).events] == [RAISE.name, "fuse"]


def test_the_alias_of_the_standard_domain_is_removed() -> None:
    model = load(MEANS)
    model.opset_imports["ai.onnx"] = model.opset_imports.pop("")
    run(model)
    assert dict(model.opset_imports) == {"": 20}


def test_nodes_keep_their_names_modules_and_notes() -> None:
    proto = onnx.parser.parse_model(graph_text(MEANS, 14))
    proto.graph.node[1].name = "/net/norm/ReduceMean"
    proto.graph.node[1].doc_string = "the mean"
    proto.graph.node[1].metadata_props.add(key="who", value="me")
    model = io.from_proto(proto)
    raise_model(model, 18)
    (mean,) = (node for node in model.graph if node.op_type == "ReduceMean")
    assert (mean.name, mean.doc_string, mean.metadata_props["who"]) == ("/net/norm/ReduceMean", "the mean", "me")
    assert origins.owner(mean) == "net.norm"


def test_omitted_outputs_stay_omitted() -> None:
    node = onnx.helper.make_node("Dropout", ["x"], ["y", ""], ratio=0.5)
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", info[:1], info[1:])
    model = io.from_proto(onnx.helper.make_model(graph, ir_version=7, opset_imports=[onnx.helper.make_opsetid("", 11)]))
    raise_model(model, 13)
    (after,) = io.to_proto(model).graph.node
    assert (list(after.output), list(after.attribute), len(after.input)) == (["y", ""], [], 2)


def test_repeated_requests_examine_the_model_once_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.ir import rewriter

    planned: list[int] = []
    plan = rewriter.plan
    monkeypatch.setattr(rewriter, "plan", lambda facts, nodes, new: planned.append(new) or plan(facts, nodes, new))
    steps = " ".join(f"a{i} = Abs(x) n{i} = Neg(a{i})" for i in range(50))
    total = ", ".join(f"n{i}" for i in range(50))
    log = run(load(f"g (float[N] x) => (float[N] y) {{ {steps} z = Sum({total}) y = Nonsense(z) }}"))
    assert len(log.refusals) == 50
    assert planned == [20]


GELU = """
    g (float[N, 8] x) => (float[N, 8] y)
    <float r = {1.4142135623730951}, float o = {1}, float h = {0.5}> {
        m = ReduceMean <axes = [1]> (x)
        a = Sub(x, m)
        b = Div(a, r)
        c = Erf(b)
        d = Add(c, o)
        e = Mul(a, d)
        y = Mul(e, h)
    }
"""


@pytest.mark.parametrize(
    ("options", "opset"),
    [
        (OptimizeOptions(), 20),
        (OptimizeOptions(max_opset=23), 20),
        (OptimizeOptions(max_opset=19), 14),
        (OptimizeOptions(max_opset=9), 14),
        (OptimizeOptions(keep_opset=True), 14),
    ],
)
def test_optimize_raises_up_to_the_limit_and_reports_it(options: OptimizeOptions, opset: int) -> None:
    model = onnx.parser.parse_model(graph_text(GELU, 14))
    result = sardonyx.optimize(model, options=options)
    assert result.verdict is not None
    assert result.verdict.passed
    assert not result.rolled_back
    assert result.result.opsets == {"": opset}
    assert result.opset_changes == ({"": (14, opset)} if opset > 14 else {})
    assert ("raise-opset" in [record.name for record in result.passes]) == (opset > 14)
    assert result.options["max_opset"] == options.max_opset
    assert result.options["keep_opset"] == options.keep_opset


def test_the_record_knows_both_names_of_the_standard_domain() -> None:
    model = ir.from_proto(onnx.parser.parse_model(graph_text(GELU, 14)))
    model.opset_imports["ai.onnx"] = model.opset_imports.pop("")
    assert sardonyx.optimize(model, verify="off").opset_changes == {"": (14, 20)}


def test_keeping_and_limiting_the_opset_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="contradict"):
        sardonyx.optimize(
            onnx.parser.parse_model(graph_text(GELU, 14)),
            options=OptimizeOptions(max_opset=20, keep_opset=True),
        )


def test_a_raise_that_fails_verification_is_undone_with_all_rewrites_that_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong adapter loses the axis, so the mean is taken over all axes."""
    from sardonyx.ir import opset_raising
    from sardonyx.ir.opset_raising import OpsetStep, Rewrite, rewritten

    def wrong(step: OpsetStep) -> Rewrite:
        return rewritten(step, axes=None)

    monkeypatch.setitem(opset_raising.CHANGES, "ReduceMean", (wrong, (18,)))
    result = sardonyx.optimize(onnx.parser.parse_model(graph_text(GELU, 14)))
    assert [(each.pass_name, each.root) for each in result.rolled_back] == [("raise-opset", "opset 20")]
    assert result.verdict is not None
    assert result.verdict.passed
    assert result.result.opsets == {"": 14}
    reasons = [group.reason for record in result.passes for group in record.refusals]
    assert "needs opset 20; raising it was rolled back" in reasons
