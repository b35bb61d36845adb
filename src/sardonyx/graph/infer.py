"""Types and shapes by onnx's own inference, from what can be trusted: inputs, constants, operators.

Declared shapes of intermediate and output values are left out, since a file may be wrong about them; those made by
operators onnx does not know are kept, being all there is.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx.shape_inference import infer_shapes

from sardonyx.graph.scopes import bodies

Shape = tuple[int | str | None, ...]
Typed = tuple[ir.DataType | None, Shape | None]
_DTYPES = {dtype.value: dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED}  # calling the enum is slow


def inferred_types(model: ir.Model, skeleton: onnx.ModelProto) -> dict[ir.Value, Typed]:
    """The element type and shape of every value of `model`, of which `skeleton` is the proto without large weights."""
    _drop_claims(skeleton.graph)
    try:
        inferred = infer_shapes(skeleton, check_type=False, strict_mode=False, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return {}  # no knowledge is sound; passes that need shapes will not apply
    return dict(_pairs(model.graph, inferred.graph))


def _drop_claims(graph: onnx.GraphProto, *, body: bool = False) -> None:
    foreign = {name for node in graph.node if node.domain for name in node.output}
    claims = [info for info in graph.output if info.name not in foreign]
    if body:  # what a loop carries may change its shape from turn to turn
        claims.extend(graph.input)
    for info in claims:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _drop_claims(attribute.g, body=True)
            for inner in attribute.graphs:
                _drop_claims(inner, body=True)


def _pairs(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, Typed]]:
    known = {info.name: info.type for group in (proto.value_info, proto.input, proto.output) for info in group}
    for value in graph.inputs:
        yield from _typed(value, known)
    for place, node in enumerate(graph):
        for output in node.outputs:
            yield from _typed(output, known)
        for name, body in bodies(node):
            base, _, index = name.partition("[")
            attribute = next(each for each in proto.node[place].attribute if each.name == base)
            yield from _pairs(body, attribute.graphs[int(index[:-1])] if index else attribute.g)


def _typed(value: ir.Value, known: dict[str, onnx.TypeProto]) -> Iterator[tuple[ir.Value, Typed]]:
    proto = known.get(value.name or "")
    if proto is None or not proto.HasField("tensor_type"):
        return
    tensor = proto.tensor_type
    dtype = _DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        yield value, (dtype, None)
        return
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)  # some writers put -1 for "any"
        else:
            dims.append(dim.dim_param or None)
    yield value, (dtype, tuple(dims))
