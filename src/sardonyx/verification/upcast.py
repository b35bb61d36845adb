"""Compute a half-precision model in single precision: y₃₂ = f₃₂(x₁₆, w₁₆), with all stored values unchanged.

That two float16 models agree up to rounding is weak evidence: a weight that is one percent off changes the output of a
deep network about as much as rounding does. In single precision the same two graphs agree to 1e-6 if the rewrite is
right. Inputs and stored weights keep their type and are cast where they are used, so feeds and files do not change.
Values computed from constants and sizes alone also keep their type, because a rewrite may have stored their rounded
result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.ir.dataflow import Dataflow, Dependence
from sardonyx.ir.element_types import element_types
from sardonyx.ir.scopes import nested_graphs
from sardonyx.verification.noise import NARROW

_TYPE_ATTRIBUTES = ("to", "dtype", "softmax_precision")
_UNSUPPORTED = frozenset(("BitCast", "OptionalGetElement", "SequenceAt"))  # their element type is not known here
Constants: TypeAlias = Literal["keep", "round", "widen"]
_ROUNDING = "upcast.rounded."
_BORDER = "upcast."  # prefix of the names of the added casts
_WIDE = ir.TensorType(ir.DataType.FLOAT)


def upcast(model: ir.Model, *, constants: Constants = "keep") -> ir.Model | None:
    """Return a copy that computes in float32 wherever the model computes in float16 or bfloat16; None if it never does.

    Args:
        model: The model; it is not changed.
        constants: How to treat values computed from constants and sizes alone. "keep" leaves their type; "round"
            computes them in float32 and rounds to their type after every operation, for a runtime without kernels for
            it; "widen" computes them in float32.
    """
    if not _mentions_narrow(model):
        return None
    copy = model.clone()
    graphs = [inner for graph in (copy.graph, *copy.functions.values()) for inner in nested_graphs(graph)]
    if any(node.op_type in _UNSUPPORTED for graph in graphs for node in graph):
        return None
    types = element_types(copy)
    computed = _computed(graphs, everything=constants != "keep")
    active = [node for graph in graphs for node in graph if any(value in computed for value in node.outputs)]
    border = [value for value in _border(graphs, active, computed) if (types.get(value) or value.dtype) in NARROW]
    widened = [_widen(node, types) for node in active]
    for graph in graphs[1:]:
        for value in graph.inputs:
            _retype(value)
    for number, value in enumerate(border):
        _cast(value, f"{_BORDER}{number}", graphs, set(active))
    if constants == "round":
        varying = _computed(graphs, everything=False)
        folded = [value for node in active for value in node.outputs if value not in varying]
        for number, value in enumerate(folded):
            if types.get(value) in NARROW:
                _round(value, types[value], f"{_ROUNDING}{number}", graphs)
    return copy if border or any(widened) else None


def new_constants(model: ir.Model, source: ir.Model) -> frozenset[str]:
    """Return the names of constants of a narrow type whose values equal no constant of the source."""
    stored = {digest for _, digest in _constants(source)}
    return frozenset(name for name, digest in _constants(model) if digest not in stored)


def constants_cast(wide: ir.Model) -> list[str]:
    """Return the names of the values of a narrow type that the copy casts: inputs, weights and other constants."""
    nodes = (node for graph in nested_graphs(wide.graph) for node in graph)
    return [node.inputs[0].name or "" for node in nodes if _is_border(node) and node.inputs[0] is not None]


def _is_border(node: ir.Node) -> bool:
    name = node.name or ""
    return node.op_type == "Cast" and name.startswith(_BORDER) and not name.startswith(_ROUNDING)


def _constants(model: ir.Model) -> Iterator[tuple[str, bytes]]:
    for graph in nested_graphs(model.graph):
        tensors = [(value.name, value.const_value) for value in _stored(graph)]
        tensors += [(n.outputs[0].name, n.attributes["value"].as_tensor()) for n in graph if _is_constant(n)]
        for name, tensor in tensors:
            if tensor is not None and tensor.dtype in NARROW:
                yield name or "", hashlib.blake2b(tensor.tobytes()).digest()


def _mentions_narrow(model: ir.Model) -> bool:
    """Return whether an input, a stored tensor or an attribute has a narrow type."""
    if any(value.dtype in NARROW for value in model.graph.inputs):
        return True
    for graph in (*nested_graphs(model.graph), *model.functions.values()):
        if any(value.dtype in NARROW for value in _stored(graph)):
            return True
        for node in graph:
            if any(_names_narrow(attribute) for attribute in node.attributes.values()):
                return True
    return False


def _names_narrow(attribute: ir.Attr) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().dtype in NARROW
    is_type = attribute.name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT
    return is_type and attribute.as_int() in NARROW


def _stored(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    return list(graph.initializers.values()) if isinstance(graph, ir.Graph) else []


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and "value" in node.attributes


def _computed(graphs: list[ir.Graph | ir.Function], *, everything: bool) -> set[ir.Value]:
    """Return values that may depend on more than constants and sizes; with `everything`, all results of operators."""
    computed = {value for graph in graphs for value in graph.inputs}
    flow = Dataflow(types_are_data=True)  # changes of type matter here
    for graph in graphs:  # outer graphs come first, and nodes in order
        for node in graph:
            if everything:
                computed.update(node.outputs if node.op_type != "Constant" else ())
                continue
            if flow.visit(node) is Dependence.DATA:
                computed.update(node.outputs)
    return computed


def _border(graphs: list[ir.Graph | ir.Function], active: list[ir.Node], computed: set[ir.Value]) -> list[ir.Value]:
    """Return the values that the computation reads from outside: model inputs and results of constants and sizes."""
    used = [value for node in active for value in node.inputs if value is not None and value not in computed]
    used += [value for graph in graphs for value in graph.outputs if value not in computed]
    return list(dict.fromkeys([*graphs[0].inputs, *used]))


def _widen(node: ir.Node, types: dict[ir.Value, ir.DataType]) -> bool:
    """Replace narrow types in the attributes of a node by float32; return whether its results were narrow."""
    for name, attribute in list(node.attributes.items()):
        if _names_narrow(attribute) and attribute.type == ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(attribute.as_tensor().numpy().astype(np.float32)))
        elif _names_narrow(attribute):
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
    for value in node.outputs:
        _retype(value)
    return any(types.get(value) in NARROW for value in node.outputs)


def _retype(value: ir.Value) -> None:
    """Declare float32 in place of a narrow type, with a new type object: copies share those of the original."""
    if value.dtype in NARROW:
        value.type = _WIDE if isinstance(value.type, ir.TensorType) else None


def _cast(value: ir.Value, name: str, graphs: list[ir.Graph | ir.Function], active: set[ir.Node]) -> None:
    """Pass this value in float32 to the consumers that compute in float32; the others keep the original."""
    cast = ir.node("Cast", [value], attributes={"to": int(ir.DataType.FLOAT)}, name=name)
    wide = cast.outputs[0]
    wide.name, wide.shape, wide.type = name, value.shape, _WIDE
    for consumer, index in list(value.uses()):
        if consumer in active:
            consumer.replace_input_with(index, wide)
    for graph in graphs:
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = wide
    node, graph = value.producer(), value.graph
    if node is not None and node.graph is not None:
        node.graph.insert_after(node, [cast])
    elif graph is not None and len(graph):
        graph.insert_before(graph[0], [cast])
    elif graph is not None:
        graph.append(cast)


def _round(value: ir.Value, kind: ir.DataType, name: str, graphs: list[ir.Graph | ir.Function]) -> None:
    """Round a float32 result to a narrow type; float32 has enough digits for one operation to round the same."""
    narrow = ir.node("Cast", [value], attributes={"to": int(kind)}, name=f"{name}.narrow")
    wide = ir.node("Cast", [narrow.outputs[0]], attributes={"to": int(ir.DataType.FLOAT)}, name=f"{name}.wide")
    for cast, type_ in ((narrow, ir.TensorType(kind)), (wide, _WIDE)):
        cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = cast.name, value.shape, type_
    for consumer, index in list(value.uses()):
        if consumer is not narrow:
            consumer.replace_input_with(index, wide.outputs[0])
    for graph in graphs:
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = wide.outputs[0]
    node = value.producer()
    if node is not None and node.graph is not None:
        node.graph.insert_after(node, [narrow, wide])
