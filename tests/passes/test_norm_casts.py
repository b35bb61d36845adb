"""Normalisations with casts at any place: a fused one has the type and the numbers of the source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import graph_text, op_types, parse, reasons, run_passes
from sardonyx.errors import RuntimeFailure
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.eliminate_identity import EliminateIdentity
from sardonyx.passes.layout.merge_casts import MergeCasts
from sardonyx.passes.norms.fuse_layer_norm import FuseLayerNorm
from sardonyx.passes.norms.fuse_norm_affine import FuseNormAffine
from sardonyx.passes.norms.fuse_rms_norm import FuseRmsNorm
from sardonyx.runtime import Session

PASSES = (MergeCasts(), FuseLayerNorm(), FuseRmsNorm(), FuseNormAffine(), EliminateDeadNodes())
TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64, "int32": np.int32}
PLACES = ("mean", "centred", "square", "mean square", "root", "top", "result", "scaled")


@dataclass
class TypedGraph:
    """A graph under construction: the type of every value, and the casts to insert at some places."""

    casts: dict[str, str]
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    constants: list[onnx.TensorProto] = field(default_factory=list[onnx.TensorProto])

    def cast(self, value: str, kind: str | None) -> str:
        """The value in another type."""
        if kind is None or kind == self.kinds[value]:
            return value
        number = onnx.TensorProto.DataType.Value(kind.upper())
        return self.node("Cast", [value], kind, to=number)

    def at(self, place: str, value: str) -> str:
        """The value after the cast of that place, if there is one."""
        return self.cast(value, self.casts.get(place))

    def node(self, op_type: str, inputs: list[str], kind: str | None = None, **attributes: Any) -> str:
        """The result of a node; the second operand takes the type of the first."""
        own = self.kinds[inputs[0]]
        result = f"v{len(self.nodes)}"
        if op_type in ("Add", "Sub", "Mul", "Div"):
            inputs = [inputs[0], self.cast(inputs[1], own)]
            result = f"v{len(self.nodes)}"
        self.nodes.append(oh.make_node(op_type, inputs, [result], **attributes))
        self.kinds[result] = kind or own
        return result

    def number(self, values: float | list[float], kind: str) -> str:
        """A constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.array(values).astype(TYPES[kind]), name))
        self.kinds[name] = kind
        return name


def normalisation(source: str, casts: dict[str, str], centred: bool, epsilon: float, inverted: bool) -> onnx.ModelProto:
    """A normalisation over the last axis with these casts."""
    g = TypedGraph(casts, {"x": source})
    axes = onnx.numpy_helper.from_array(np.array([-1], np.int64), "last")
    top = "x"
    if centred:
        middle = g.node("ReduceMean", [g.at("mean", "x"), "last"])
        top = g.node("Sub", [g.at("centred", "x"), middle])
    bottom = g.at("square", top)
    square = g.node("Mul", [bottom, bottom])
    mean = g.at("mean square", g.node("ReduceMean", [square, "last"]))
    raised = g.node("Add", [mean, g.number(epsilon, g.kinds[mean])])
    if g.kinds[raised] == "int32":  # Sqrt has no int32 kernel
        raised = g.cast(raised, "float")
    root = g.node("Sqrt", [raised])
    root = g.at("root", g.node("Reciprocal", [root]) if inverted else root)
    result = g.at("result", g.node("Mul" if inverted else "Div", [g.at("top", top), root]))
    scaled = g.at("scaled", g.node("Mul", [result, g.number([1.0, 2.0, -3.0, 0.5], g.kinds[result])]))
    kinds = {name: onnx.TensorProto.DataType.Value(kind.upper()) for name, kind in g.kinds.items()}
    g.nodes.append(oh.make_node("Identity", [scaled], ["y"]))
    values = [oh.make_tensor_value_info(name, kinds[own], ["N", 4]) for name, own in (("x", "x"), ("y", scaled))]
    graph = oh.make_graph(g.nodes, "norm", values[:1], values[1:], [axes, *g.constants])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=11)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    source=st.sampled_from(["float", "float16", "float16", "double", "int32"]),
    casts=st.dictionaries(st.sampled_from(PLACES), st.sampled_from(["float", "float", *TYPES]), max_size=4).filter(
        lambda casts: "int32" not in (casts.get("result"), casts.get("scaled"))  # rounding alone would give steps there
    ),
    centred=st.booleans(),
    epsilon=st.sampled_from([1e-3, 1e-5, 1e-6, 1e-12, 0.0]),
    inverted=st.booleans(),
)
def test_casts_that_compute_are_kept(
    source: str, casts: dict[str, str], centred: bool, epsilon: float, inverted: bool
) -> None:
    model = normalisation(source, casts, centred, epsilon, inverted)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 4)) * np.array([1, 5, 100, 1e-2, 1e-3, 3])[:, None]
    feeds = {"x": rows.astype(TYPES[source])}
    try:
        wanted = np.asarray(Session(model, threads=1).run(feeds)[0])
    except RuntimeFailure:  # the runtime does not have every operator for every type
        return
    after, _ = run_passes(model, PASSES)
    got = np.asarray(Session(ir.to_proto(after), threads=1).run(feeds)[0])
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    tolerance = 1e-2 if "float16" in (source, *casts.values()) else 1e-4
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("casts", [{"mean": "float", "centred": "float", "square": "float", "top": "float"}])
def test_the_usual_export_of_half_precision_is_one_operator(casts: dict[str, str], centred: bool) -> None:
    """Half to float, normalised, back to half."""
    model = normalisation("float16", {**casts, "result": "float16"}, centred, 1e-5, True)
    after, _ = run_passes(model, PASSES)
    assert op_types(after) == ["LayerNormalization" if centred else "RMSNormalization", "Identity"]


def test_squares_in_half_precision_stay() -> None:
    """They overflow above 256 and underflow below 2**-12; the operator does neither."""
    model = normalisation("float16", {}, False, 1e-3, False)
    after, log = run_passes(model, PASSES)
    assert "RMSNormalization" not in op_types(after)
    assert any("half precision" in reason for reason in reasons(log))


@pytest.mark.parametrize(("epsilon", "fuses"), [(1e-5, True), (1e-12, False)])
def test_a_root_applied_in_half_precision_must_fit(epsilon: float, fuses: bool) -> None:
    """1 / sqrt(1e-12) is infinite in half precision."""
    after, _ = run_passes(
        normalisation("float16", {"square": "float", "root": "float16"}, False, epsilon, True), PASSES
    )
    assert ("RMSNormalization" in op_types(after)) == fuses


@pytest.mark.parametrize(
    ("shape", "body", "fuses"),
    [
        ("64, 128", "y = Div(c, d)", True),
        ("64, 129", "y = Div(c, d)", False),
        ("64, 129", "n = Div(c, d)  g = Mul(n, half)  y = Add(g, half)", False),
        ("2, 64", "n = Div(c, d)  g = Mul(n, half)  y = Add(g, half)", True),
    ],
)
def test_a_missing_scale_is_stored_only_if_it_is_small(shape: str, body: str, fuses: bool) -> None:
    text = graph_text(
        f"""agraph (float[N, {shape}] x) => (float[N, {shape}] y)
        <float eps = {{0.001}}, float half = {{0.5}}, int64[2] last = {{-2, -1}}> {{
        m = ReduceMean(x, last)  c = Sub(x, m)  s = Mul(c, c)  v = ReduceMean(s, last)  e = Add(v, eps)  d = Sqrt(e)
        {body} }}"""
    )
    after, log = run_passes(text, PASSES)
    assert op_types(after)[:1] == (["LayerNormalization"] if fuses else ["ReduceMean"])
    assert fuses or any("would be larger" in reason for reason in reasons(log))


@pytest.mark.parametrize("centred", [True, False])
def test_brain_floats_stay_runnable(centred: bool) -> None:
    """The runtime casts them and has a LayerNormalization for them, but no RMSNormalization."""
    middle = "m = ReduceMean(w, last)  c = Sub(w, m)" if centred else "c = Identity(w)"
    text = graph_text(
        f"""agraph (float[N, 4] f) => (float[N, 4] y) <float eps = {{0.001}}, int64[1] last = {{-1}}> {{
        x = Cast <to = 16> (f)  w = Cast <to = 1> (x)  {middle}  s = Mul(c, c)  v = ReduceMean(s, last)
        e = Add(v, eps)  d = Sqrt(e)  n = Div(c, d)  h = Cast <to = 16> (n)  y = Cast <to = 1> (h) }}""",
        23,
    )
    after, _ = run_passes(text, (EliminateIdentity(), *PASSES))
    assert ("LayerNormalization" if centred else "RMSNormalization") in op_types(after)
    feeds = {"f": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    wanted, got = (np.asarray(Session(model, threads=1).run(feeds)[0]) for model in (parse(text), ir.to_proto(after)))
    np.testing.assert_allclose(got, wanted, rtol=1e-2)
