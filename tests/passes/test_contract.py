"""The contract that every pass fulfils, run over the list of passes."""

from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir
import pytest

from sardonyx import runtime
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Log, Rewriter
from sardonyx.passes import ALL, Pass
from sardonyx.passes.base import ALL_TARGETS, NodePass
from sardonyx.records import provenance as p
from sardonyx.records.run import RewriteKind
from sardonyx.verification import verify

pytestmark = pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)


def target_of(one: Pass) -> str:
    """The first target for which the pass rewrites."""
    return one.targets[0]


def read(text: str) -> ir.Model:
    """A model from ONNX text, every node in its own module."""
    proto = onnx.parser.parse_model(text)
    for index, node in enumerate(proto.graph.node):
        node.name = f"/net/part.{index}/{node.op_type}"
    return io.from_proto(proto)


def run(one: Pass, model: ir.Model, target: str | None = None) -> Log:
    """The pass alone, to its fixed point."""
    facts = Facts(model, target=target or target_of(one), evaluate=runtime.evaluate)
    return Rewriter(facts, [one]).run()


def expression(value: ir.Value | None, graph: ir.Graph) -> object:
    """The expression of a value, independent of names."""
    if value is None:
        return None
    if value.is_graph_input():
        return ("input", list(graph.inputs).index(value))
    if value.const_value is not None:
        return ("constant", value.const_value.dtype, tuple(value.const_value.shape), value.const_value.tobytes())
    node = value.producer()
    assert node is not None
    attributes = tuple(sorted((name, _attribute(attribute)) for name, attribute in node.attributes.items()))
    return (node.domain, node.op_type, attributes, tuple(expression(i, graph) for i in node.inputs), value.index())


def _attribute(attribute: ir.Attr) -> object:
    return attribute.as_tensor().tobytes() if attribute.type == ir.AttributeType.TENSOR else repr(attribute.value)


def shape_of(model: ir.Model) -> object:
    """The structure of a model: the expression of each output, and the count of each operator."""
    ops = Counter(node.op_type for node in model.graph)
    return [expression(output, model.graph) for output in model.graph.outputs], ops


def test_its_example_becomes_the_documented_result(one: Pass) -> None:
    model = read(one.example.before)
    log = run(one, model)
    assert log.events
    assert shape_of(model) == shape_of(read(one.example.after))


def test_it_rewrites_for_its_targets_only(one: Pass) -> None:
    for target in ALL_TARGETS:
        assert bool(run(one, read(one.example.before), target).events) == (target in one.targets)


def test_its_near_miss_is_unchanged_and_refused_with_its_reason(one: Pass) -> None:
    model = read(one.example.near_miss)
    before = shape_of(model)
    log = run(one, model)
    assert not log.events
    assert shape_of(model) == before
    assert any(one.example.refusal in refusal.reason for refusal in log.refusals) or not one.example.refusal


def test_a_second_run_changes_nothing(one: Pass) -> None:
    model = read(one.example.before)
    run(one, model)
    again = io.from_proto(io.to_proto(model))
    assert not run(one, again).events


def test_origins_are_kept(one: Pass) -> None:
    model = read(one.example.before)
    tags = origins.attach(model)
    had = p.merge(origins.origins(node) for node in model.graph)
    log = run(one, model)
    origins.write(model, tags)
    things = [*model.graph, *model.graph.initializers.values()]
    gone = p.merge(
        frozenset(event.origins) for event in log.events if event.kind in (RewriteKind.BYPASS, RewriteKind.DROP)
    )
    assert had - gone <= p.merge(map(origins.origins, things)), "a module that still contributes was lost"
    for node in model.graph:
        assert node.metadata_props[p.MODULE_PATH] == origins.owner(node)
        assert node.metadata_props[p.SOURCE_MODULE].startswith("/")


def test_outputs_agree_within_its_class(one: Pass) -> None:
    before, after = read(one.example.before), read(one.example.before)
    run(one, after)
    verdict = verify(before, after, accuracy=one.accuracy)
    assert verdict.passed, verdict.failures


def test_checker_and_shape_inference_accept_the_result(one: Pass) -> None:
    model = read(one.example.before)
    run(one, model)
    proto = io.to_proto(model)
    if target_of(one) == "portable":
        onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def test_an_intermediate_graph_output_survives(one: Pass) -> None:
    """Every inner value is made an output in turn: names, order and values must stay."""
    text = one.example.before
    inner = [output.name for node in onnx.parser.parse_model(text).graph.node for output in [*map(_named, node.output)]]
    for name in inner:
        proto = onnx.parser.parse_model(text)
        if name in {output.name for output in proto.graph.output}:
            continue
        inferred = {v.name: v for v in onnx.shape_inference.infer_shapes(proto).graph.value_info}
        if name not in inferred:
            continue
        proto.graph.output.append(inferred[name])
        before, after = io.from_proto(proto), io.from_proto(proto)
        log = run(one, after)
        assert [o.name for o in after.graph.outputs] == [o.name for o in before.graph.outputs]
        if log.events:
            verdict = verify(before, after, accuracy=one.accuracy)
            assert verdict.passed, (name, verdict.failures)


def test_it_works_in_bodies_that_capture_values(one: Pass) -> None:
    """The whole example as the branch of an If that captures the inputs."""
    proto = onnx.parser.parse_model(one.example.before)
    inner = proto.graph
    branch = onnx.GraphProto()
    branch.CopyFrom(inner)
    del branch.input[:]
    branch.name = "branch"
    condition = onnx.helper.make_tensor_value_info("take", onnx.TensorProto.BOOL, [])
    outputs = [onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in inner.output]
    for output in outputs:
        output.name = f"outer_{output.name}"
    node = onnx.helper.make_node("If", ["take"], [o.name for o in outputs], then_branch=branch, else_branch=branch)
    proto.graph.CopyFrom(onnx.helper.make_graph([node], "main", [condition, *inner.input], outputs))
    before, after = io.from_proto(proto), io.from_proto(proto)
    log = run(one, after)
    if isinstance(one, NodePass):
        assert log.events, "the pass does not see bodies"
    verdict = verify(before, after, accuracy=one.accuracy)
    assert verdict.passed, verdict.failures


def test_it_has_a_description(one: Pass) -> None:
    assert "=>" in one.algebra
    assert type(one).__module__.endswith(one.name.replace("-", "_")), "a pass goes by the name of its file"
    assert type(one).__doc__


def _named(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)
