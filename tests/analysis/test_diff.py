"""Two models are aligned by operators and modules of their nodes, and every node is in exactly one group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import graphs
from sardonyx.records.comparison import Comparison, OpRef, Pair
from sardonyx.verbs.compare.compare import Op, align, compare
from sardonyx.verbs.optimize.pipeline import optimize


@settings(max_examples=20)
@given(graphs.models())
def test_a_model_does_not_differ_from_itself(model: onnx.ModelProto) -> None:
    result = compare(model, model)
    assert result.same
    assert (result.only_before, result.only_after) == ((), ())
    assert all(module.before == module.after for module in result.modules)


@pytest.mark.slow
@settings(max_examples=20)
@given(graphs.models(), graphs.models())
def test_every_node_is_accounted_for_once(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    result = compare(one, other)
    computing = [[node for node in model.graph.node if node.op_type != "Constant"] for model in (one, other)]
    assert [result.before.nodes, result.after.nodes] == [len(nodes) for nodes in computing]
    kept = result.before.nodes - len(result.removed)
    assert kept == result.after.nodes - len(result.added)
    assert len(result.moved) <= kept
    for module in result.modules:
        assert sum(op.module == module.path for op in result.added) == module.added
        assert sum(op.module == module.path for op in result.removed) == module.removed
        assert sum(pair.after.module == module.path for pair in result.moved) == module.moved
        assert sum(pair.after.module == module.path for pair in result.changed) == module.changed
    assert sum(module.after for module in result.modules) == result.after.nodes
    assert sum(op.after for op in result.ops) == result.after.nodes
    assert Comparison.from_json(result.to_json()) == result
    jsonschema.validate(json.loads(result.to_json()), Comparison.json_schema())


Drawn = tuple[str, str, str, str]  # name, operator, module, traits
OPS = st.lists(
    st.tuples(
        st.sampled_from(("a", "b", "c", "d")),
        st.sampled_from(("Add", "Mul")),
        st.sampled_from(("", "m", "m.n", "k")),
        st.sampled_from(("", "x")),
    ),
    max_size=12,
)


@given(OPS, OPS)
def test_an_alignment_pairs_each_node_at_most_once(left: list[Drawn], right: list[Drawn]) -> None:
    before, after = ([Op(n, t, m, i, x) for i, (n, t, m, x) in enumerate(ops)] for ops in (left, right))
    pairs = align(before, after)
    assert {id(op) for op in before} == {id(old) for old, _ in pairs.pairs} | {id(op) for op in pairs.removed}
    assert {id(op) for op in after} == {id(new) for _, new in pairs.pairs} | {id(op) for op in pairs.added}
    assert len(before) == len(pairs.pairs) + len(pairs.removed)
    for old in pairs.removed:  # no unmatched node has an equal on the other side
        assert all((old.module, old.op_type) != (new.module, new.op_type) for new in pairs.added)


def _model(*nodes: onnx.NodeProto, opset: int = 18) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _node(op_type: str, source: str, target: str, name: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, [source], [target], name, **attributes)


def _tagged(node: onnx.NodeProto, path: str) -> onnx.NodeProto:
    node.metadata_props.add(key="sardonyx.module_path", value=path)
    node.metadata_props.add(key="sardonyx.source_module", value="/" + path.title())
    return node


def test_names_identify_moved_and_replaced_nodes() -> None:
    before = _model(
        _node("Relu", "x", "a", "/enc/one/Relu"),
        _node("Neg", "a", "b", "/enc/two/Neg"),
        _node("Transpose", "b", "c", "/enc/two/T", perm=[0, 1]),
        _node("Exp", "c", "d", "/enc/two/Exp"),
        _node("Abs", "d", "e", "/enc/two/Abs"),
        _node("Identity", "e", "y", "/drop/Identity"),
    )
    after = _model(
        _tagged(_node("Relu", "x", "a", "/enc/one/Relu"), "enc"),
        _node("Neg", "a", "b", "/enc/two/Neg"),
        _node("Transpose", "b", "c", "/enc/two/T", perm=[1, 0]),
        _node("Tanh", "c", "d", "/enc/two/Exp"),
        _node("Abs", "d", "e", "/enc/two/Abs"),
        _node("Sigmoid", "e", "y", "/new/part/Sigmoid"),
    )
    result = compare(before, after)
    relu = Pair(OpRef("/enc/one/Relu", "Relu", "enc.one"), OpRef("/enc/one/Relu", "Relu", "enc"))
    assert result.moved == (relu,)
    assert [pair.what for pair in result.changed] == [("perm: [0, 1] → [1, 0]",), ("operator: Exp → Tanh",)]
    assert result.removed == (OpRef("/drop/Identity", "Identity", "drop"),)
    assert result.added == (OpRef("/new/part/Sigmoid", "Sigmoid", "new.part"),)
    assert (result.only_before, result.only_after) == (("drop", "enc.one"), ("new",))
    assert not result.same


def test_without_common_names_nodes_are_aligned_by_module_operator_and_order() -> None:
    before = _model(
        _node("Transpose", "x", "a", "/m/enc/T", perm=[1, 0]),
        _node("Transpose", "a", "b", "/m/enc/T_1", perm=[0, 1]),
        _node("Relu", "b", "y", "/m/enc/act/Relu"),
    )
    after = _model(
        _tagged(_node("Transpose", "x", "a", "n0", perm=[0, 1]), "enc"),
        _tagged(_node("Transpose", "a", "b", "n1", perm=[1, 0]), "enc"),
        _tagged(_node("Relu", "b", "y", "n2"), "enc"),
    )
    result = compare(before, after)
    assert result.before.wrapper == "m"
    assert not result.changed  # equal nodes first: the two transposes only swapped places
    assert [(pair.before.name, pair.after.name) for pair in result.moved] == [("/m/enc/act/Relu", "n2")]
    assert not result.added
    assert not result.removed


def test_numbers_in_names_do_not_identify_nodes() -> None:
    """Two exports of a model with an added first layer: every name occurs again, on another node."""
    before = _model(*(_tagged(_node("Relu", "x", f"v{i}", f"relu_{i}"), f"layer.{i}.act") for i in range(3)))
    after = _model(*(_tagged(_node("Relu", "x", f"v{i}", f"relu_{i}"), f"layer.{i - 1}.act") for i in range(4)))
    result = compare(before, after)
    assert not result.moved
    assert not result.removed
    assert [op.module for op in result.added] == ["layer.-1.act"]


def test_an_explicit_default_is_no_change() -> None:
    plain = _model(_node("LeakyRelu", "x", "a", "l"), _node("Softmax", "a", "y", "s"))
    explicit = _model(_node("LeakyRelu", "x", "a", "l", alpha=0.01), _node("Softmax", "a", "y", "s", axis=-1))
    assert compare(plain, explicit).same
    assert compare(explicit, plain).same
    other = _model(_node("LeakyRelu", "x", "a", "l", alpha=0.02), _node("Softmax", "a", "y", "s", axis=-1))
    assert [pair.what for pair in compare(plain, other).changed] == [("alpha: 0.01 → 0.02",)]


def test_bodies_are_compared_node_by_node() -> None:
    def branching(op_type: str) -> onnx.ModelProto:
        out = [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 3])]
        then = helper.make_graph([_node(op_type, "x", "t", f"/head/{op_type}")], "then", [], out)
        other = helper.make_graph([_node("Neg", "x", "t", "/head/Neg")], "else", [], out)
        return _model(helper.make_node("If", ["x"], ["y"], "/head/If", then_branch=then, else_branch=other))

    result = compare(branching("Relu"), branching("Abs"))
    assert [op.op_type for op in result.removed] == ["Relu"]
    assert [op.op_type for op in result.added] == ["Abs"]
    assert not result.changed


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_raw_against_optimized_agrees_with_the_record(small_model, exporter: str, tmp_path: Path) -> None:
    raw = small_model("bert", exporter)
    run = optimize(raw, tmp_path / "small.onnx", verify="off")
    result = compare(raw, tmp_path / "small.onnx")
    assert (result.before.nodes, result.after.nodes) == (run.before.nodes, run.after.nodes)
    assert result.before.nodes - len(result.removed) + len(result.added) == result.after.nodes
    assert len(result.removed) >= run.before.nodes - run.after.nodes > 0
    assert not result.only_after
