"""Normalisations over unusual axes and with unusual scales: a fused one has the shape and numbers of the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import op_types, run_passes
from sardonyx.errors import RuntimeFailure
from sardonyx.passes.norms.fuse_layer_norm import FuseLayerNorm
from sardonyx.passes.norms.fuse_norm_affine import FuseNormAffine
from sardonyx.passes.norms.fuse_rms_norm import FuseRmsNorm
from sardonyx.runtime import Session

PASSES = (FuseLayerNorm(), FuseRmsNorm(), FuseNormAffine())
SHAPES = (
    (),
    (1,),
    (4,),
    (3, 1),
    (3, 4),
    (1, 4),
    (2, 1, 1),
    (2, 3, 4),
    (1, 1, 4),
    (1, 1, 1, 1),
    (2, 1, 1, 4),
    (5, 1, 1, 4),
)
AXES = ((-1,), (2,), (-2, -1), (1, 2), (1,), (0, 2), (0, 1, 2), None)


def normalisation(
    dims: tuple[int | str, ...],
    axes: tuple[int, ...] | None,
    keepdims: bool,
    centred: bool,
    shapes: tuple[tuple[int, ...] | None, ...],
) -> onnx.ModelProto:
    """A normalisation with an epsilon, a scale before the division, one after it, and a bias, each in its shape."""
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {} if axes is None else {"axes": np.array(axes, np.int64)}
    reduce = ["axes"] if axes is not None else []
    nodes = list[onnx.NodeProto]()

    def node(op_type: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(oh.make_node(op_type, list(inputs), [f"v{len(nodes)}"], **attributes))
        return f"v{len(nodes) - 1}"

    def with_constant(op_type: str, value: str, shape: tuple[int, ...] | None) -> str:
        if shape is None:
            return value
        name = f"c{len(constants)}"
        constants[name] = rng.uniform(0.5, 2, shape).astype(np.float32)
        return node(op_type, value, name)

    epsilon, early, late, bias = shapes
    middle = node("ReduceMean", "x", *reduce, keepdims=int(keepdims)) if centred else ""
    top = node("Sub", "x", middle) if centred else "x"
    square = node("ReduceMean", node("Mul", top, top), *reduce, keepdims=int(keepdims))
    root = node("Sqrt", with_constant("Add", square, epsilon))
    result = node("Div", with_constant("Mul", top, early), root)
    result = with_constant("Add", with_constant("Mul", result, late), bias)
    nodes.append(oh.make_node("Neg", [result], ["y"]))
    values = [
        oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(dims)),
        oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
    ]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = oh.make_graph(nodes, "norm", values[:1], values[1:], tensors)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=11)


@pytest.mark.slow
@settings(max_examples=250)
@given(
    dims=st.sampled_from([(2, 3, 4), ("N", 3, 4), ("N", "S", 4), (2, 3, "D"), (1, 1, 1), (2, 3, 1), (4, 4, 4)]),
    axes=st.sampled_from([(-1,), (-1,), *AXES]),
    keepdims=st.sampled_from([True, True, True, False]),
    centred=st.booleans(),
    shapes=st.tuples(
        st.sampled_from([(), (1,), (1, 1, 1), (1, 1, 1, 1)]),
        *(st.one_of(st.none(), st.none(), st.sampled_from(SHAPES)) for _ in range(3)),
    ),
)
def test_shapes_and_numbers_stay(
    dims: tuple[int | str, ...],
    axes: tuple[int, ...] | None,
    keepdims: bool,
    centred: bool,
    shapes: tuple[tuple[int, ...] | None, ...],
) -> None:
    model = normalisation(dims, axes, keepdims, centred, shapes)
    sizes = [dim if isinstance(dim, int) else size for dim, size in zip(dims, (2, 3, 4), strict=True)]
    feeds = {"x": np.random.default_rng(1).standard_normal(sizes).astype(np.float32)}
    try:
        wanted = np.asarray(Session(model, threads=1).run(feeds)[0])
    except RuntimeFailure:  # shapes that do not broadcast
        return
    ranked = oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [f"y{axis}" for axis in range(wanted.ndim)])
    model.graph.output[0].CopyFrom(ranked)
    after, _ = run_passes(model, PASSES)
    got = np.asarray(Session(ir.to_proto(after), threads=1).run(feeds)[0])
    assert got.shape == wanted.shape, op_types(after)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
