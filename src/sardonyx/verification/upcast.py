"""Compute a model in a wider type, with all stored values unchanged: y₃₂ = f₃₂(x₁₆, w₁₆), y₆₄ = f₆₄(x₃₂, w₃₂).

That two float16 models agree up to rounding is weak evidence: a weight that is one percent off changes the output of a
deep network about as much as rounding does. In single precision the same two graphs agree to 1e-6 if the rewrite is
right. Inputs and stored weights keep their type and are cast where they are used, so feeds and files do not change.
Values computed from constants and sizes alone also keep their type, because a rewrite may have stored their rounded
result. In the same way a single-precision graph is computed in double precision, where rounding is no excuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import onnx_ir as ir

from sardonyx.ir.facts import Dataflow, Dependence, element_types
from sardonyx.ir.ops import CASTS, CONTROL_FLOW, KEEPS_ORDER
from sardonyx.ir.scopes import nested_graphs, tensor_of

NARROW = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_TYPE_ATTRIBUTES = ("to", "dtype", "softmax_precision")
_UNSUPPORTED = frozenset(("BitCast", "OptionalGetElement", "SequenceAt"))  # their element type is not known here
_MOVES = KEEPS_ORDER | {"Gather", "Transpose"}  # they round nothing, and have kernels for all types
Constants: TypeAlias = Literal["keep", "round", "widen"]
_ROUNDING = "upcast.rounded."
_BORDER = "upcast."  # prefix of the names of the added casts


_NARROWER = {ir.DataType.FLOAT: NARROW, ir.DataType.DOUBLE: NARROW | {ir.DataType.FLOAT}}  # types that are replaced


def upcast(
    model: ir.Model,
    *,
    constants: Constants = "keep",
    to: ir.DataType = ir.DataType.FLOAT,
    without_kernel: Collection[str] = (),
) -> ir.Model | None:
    """Return a copy that computes in `to` wherever the model computes in a narrower type; None if it never does.

    Args:
        model: The model; it is not changed.
        constants: How to treat values computed from constants and sizes alone. "keep" leaves their type; "round"
            computes them in float32 and rounds to their type after every operation, for a runtime without kernels for
            it; "widen" computes them in float32.
        to: FLOAT, which replaces float16 and bfloat16, or DOUBLE, which replaces float32 too.
        without_kernel: Operators that compute in their own types, between casts.
    """
    narrow = _NARROWER[to]
    if not _mentions(model, narrow):
        return None
    copy = model.clone()
    graphs = [inner for graph in (copy.graph, *copy.functions.values()) for inner in nested_graphs(graph)]
    if any(node.op_type in _UNSUPPORTED for graph in graphs for node in graph):
        return None
    types = element_types(copy)
    prefix = f"{_BORDER}{len(list(copy.graph.all_nodes()))}."  # another one in a copy of the copy
    kept = [node for graph in graphs for node in graph if node.op_type in without_kernel]
    computed = _computed(graphs, everything=constants != "keep")
    if to == ir.DataType.DOUBLE:  # a table of embeddings in double precision takes more memory than the rows read
        computed -= _moved_constants(graphs, computed)
    computed -= {value for node in kept for value in node.outputs}
    active = [node for graph in graphs for node in graph if any(value in computed for value in node.outputs)]
    border = [v for v in _border(graphs, active, computed) if (types.get(v) or v.dtype) in narrow]
    widened = [_widen(node, types, narrow, to) for node in active]
    for value in (value for graph in graphs[1:] for value in graph.inputs):
        _retype(value, narrow, to)
    for number, node in enumerate(kept):  # computes in its own types
        for index, value in enumerate(node.inputs):
            kind = types.get(value) if value in computed else None
            if value is not None and kind in narrow and kind is not None and node.graph is not None:
                cast = _new_cast(value, kind, f"{prefix}kept.{number}.{index}")
                node.graph.insert_before(node, [cast])
                node.replace_input_with(index, cast.outputs[0])
    for number, value in enumerate(border):  # consumers that do not compute in the wide type keep the original
        _insert_after(value, [_new_cast(value, to, f"{prefix}{number}")], graphs, set(active))
    if to == ir.DataType.DOUBLE:
        _read_weights_late(copy.graph)
    if constants == "round":  # float32 has enough digits for one operation to round the same
        varying = _computed(graphs, everything=False)
        folded = [value for node in active for value in node.outputs if value not in varying]
        for number, value in enumerate(folded):
            if types.get(value) in narrow:
                rounded = _new_cast(value, types[value], f"{_ROUNDING}{number}.narrow")
                wide = _new_cast(rounded.outputs[0], to, f"{_ROUNDING}{number}.wide")
                _insert_after(value, [rounded, wide], graphs)
    return copy if border or any(widened) else None


def round_results(model: ir.Model) -> None:
    """Change a model so that it computes in float32 and rounds every result to its own, narrow type.

    It then computes what kernels for the narrow types do, which accumulate in float32 too, on a runtime that has none.
    Names and types of inputs, outputs and weights stay.
    """
    types = element_types(model)
    for number, node in enumerate(list(model.graph.all_nodes())):
        if node.op_type in CASTS | CONTROL_FLOW | {"Constant"} or node.graph is None:
            continue
        for index, value in enumerate(node.inputs):
            if value is not None and types.get(value, value.dtype) in NARROW:
                cast = _tagged_cast(node, value, ir.DataType.FLOAT, f"float32.{number}.{index}")
                node.graph.insert_before(node, [cast])
                node.replace_input_with(index, cast.outputs[0])
        _widen(node, types, NARROW, ir.DataType.FLOAT)
        for value in [value for value in node.outputs if types.get(value) in NARROW]:
            name = value.name
            cast = _tagged_cast(node, value, types[value], f"{name}.rounded")
            _insert_after(value, [cast], [node.graph])
            types[cast.outputs[0]] = types.pop(value)
            value.name, cast.outputs[0].name = f"{name}.float32", name


def _tagged_cast(node: ir.Node, value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    """Return a Cast that belongs to the same module as a node."""
    from sardonyx.ir.origins import copy_origins  # only an export changes tagged graphs

    cast = _new_cast(value, to, name)
    cast.metadata_props.update(node.metadata_props)
    copy_origins(node, cast)
    return cast


def _new_cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    cast = ir.node("Cast", [value], attributes={"to": int(to)}, name=name)
    cast.outputs[0].name, cast.outputs[0].shape, cast.outputs[0].type = name, value.shape, ir.TensorType(to)
    return cast


def _insert_after(
    value: ir.Value,
    nodes: Sequence[ir.Node],
    graphs: Iterable[ir.Graph | ir.Function],
    consumers: set[ir.Node] | None = None,
) -> None:
    """Pass the result of a chain of Casts to the consumers of a value, or to some, and to the outputs of graphs."""
    result, producer, graph = nodes[-1].outputs[0], value.producer(), value.graph
    for consumer, index in list(value.uses()):
        if consumer not in nodes and (consumers is None or consumer in consumers):
            consumer.replace_input_with(index, result)
    for each in graphs:
        for index, output in enumerate(each.outputs):
            if output is value:
                each.outputs[index] = result
    if producer is not None and producer.graph is not None:
        producer.graph.insert_after(producer, nodes)
    elif graph is not None and len(graph):
        graph.insert_before(graph[0], nodes)
    elif graph is not None:
        graph.extend(nodes)


def new_constants(model: ir.Model, source: ir.Model) -> frozenset[str]:
    """Return the names of constants of a narrow type whose values equal no constant of the source."""
    stored = {digest for _, digest in _constants(source)}
    return frozenset(name for name, digest in _constants(model) if digest not in stored)


def constants_cast(wide: ir.Model) -> list[str]:
    """Return the names of the values of a narrow type that the copy casts: inputs, weights and other constants."""
    named = [(node.name or "", node) for graph in nested_graphs(wide.graph) for node in graph if node.op_type == "Cast"]
    casts = [node for name, node in named if name.startswith(_BORDER) and not name.startswith(_ROUNDING)]
    return [node.inputs[0].name or "" for node in casts if node.inputs[0] is not None]


def _constants(model: ir.Model) -> Iterator[tuple[str, bytes]]:
    for graph in nested_graphs(model.graph):
        tensors = [(value.name, value.const_value) for value in _stored(graph)]
        tensors += [
            (n.outputs[0].name, tensor_of(n.attributes["value"]))
            for n in graph
            if n.op_type == "Constant" and "value" in n.attributes
        ]
        for name, tensor in tensors:
            if tensor is not None and tensor.dtype in NARROW:
                yield name or "", hashlib.blake2b(tensor.tobytes()).digest()


def narrow_types(model: ir.Model) -> set[ir.DataType]:
    """Return which of float16 and bfloat16 some input, stored tensor or attribute has."""
    return {kind for kind in NARROW if _mentions(model, frozenset((kind,)))}


def _mentions(model: ir.Model, narrow: frozenset[ir.DataType]) -> bool:
    """Return whether an input, a stored tensor or an attribute has one of these types."""
    if any(value.dtype in narrow for value in model.graph.inputs):
        return True
    for graph in (*nested_graphs(model.graph), *model.functions.values()):
        if any(value.dtype in narrow for value in _stored(graph)):
            return True
        for node in graph:
            if any(_names(attribute, narrow) for attribute in node.attributes.values()):
                return True
    return False


def _names(attribute: ir.Attr, types: frozenset[ir.DataType]) -> bool:
    """Return whether an attribute is a type, or a tensor of a type, among these."""
    if attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.TENSOR:
        return tensor_of(attribute).dtype in types
    is_type = attribute.name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT
    return is_type and attribute.as_int() in types


def _stored(graph: ir.Graph | ir.Function) -> list[ir.Value]:
    return list(graph.initializers.values()) if isinstance(graph, ir.Graph) else []


def _computed(graphs: list[ir.Graph | ir.Function], *, everything: bool) -> set[ir.Value]:
    """Return values that may depend on more than constants and sizes; with `everything`, all results of operators."""
    computed = {value for graph in graphs for value in graph.inputs}
    flow = Dataflow(types_are_data=True)  # changes of type matter here
    for node in (node for graph in graphs for node in graph):  # outer graphs come first, and nodes in order
        varies = node.op_type != "Constant" if everything else flow.visit(node) is Dependence.DATA
        computed.update(node.outputs if varies else ())
    return computed


def _moved_constants(graphs: list[ir.Graph | ir.Function], computed: set[ir.Value]) -> set[ir.Value]:
    """Return the results of operators that only move the elements of a constant."""
    moved: set[ir.Value] = set()
    for node in (node for graph in graphs for node in graph if node.op_type in _MOVES):
        if node.inputs[0] in moved or node.inputs[0] not in computed:
            moved.update(node.outputs)
    return moved


def _read_weights_late(graph: ir.Graph) -> None:
    """Put nodes that cast or move weights in front of all others.

    Of the operands of a node, ONNX Runtime computes the one whose producer has the highest place in the graph first. A
    weight is then cast immediately before it is used, instead of all weights before the first layer.
    """
    ready, first = set(graph.initializers.values()), list[ir.Node]()
    for node in graph:
        if node.op_type in _MOVES | CASTS and all(value in ready for value in node.inputs):
            ready.update(node.outputs)
            first.append(node)
    if len(first) < len(graph):
        graph.remove(first)
        graph.insert_before(graph[0], first)


def _border(graphs: list[ir.Graph | ir.Function], active: list[ir.Node], computed: set[ir.Value]) -> list[ir.Value]:
    """Return the values that the computation reads from outside: model inputs and results of constants and sizes."""
    used = [value for node in active for value in node.inputs if value is not None and value not in computed]
    used += [value for graph in graphs for value in graph.outputs if value not in computed]
    return list(dict.fromkeys([*graphs[0].inputs, *used]))


def _widen(node: ir.Node, types: dict[ir.Value, ir.DataType], narrow: frozenset[ir.DataType], to: ir.DataType) -> bool:
    """Replace narrow types in the attributes of a node by a wide one; return whether its results were narrow."""
    for name, attribute in list(node.attributes.items()):
        if _names(attribute, narrow) and attribute.type == ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(tensor_of(attribute).numpy().astype(to.numpy())))
        elif _names(attribute, narrow):
            node.attributes[name] = ir.AttrInt64(name, int(to))
    for value in node.outputs:
        _retype(value, narrow, to)
    return any(types.get(value) in narrow for value in node.outputs)


def _retype(value: ir.Value, narrow: frozenset[ir.DataType], to: ir.DataType) -> None:
    """Declare the wide type in place of a narrow one, with a new type object: copies share those of the original."""
    if value.dtype in narrow:
        value.type = ir.TensorType(to) if isinstance(value.type, ir.TensorType) else None
