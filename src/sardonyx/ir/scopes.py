"""All graphs of a model: the main graph, the bodies of control flow, the bodies of functions.

Passes work in all of them, so everything that traverses a model uses `scopes`. Also what most code asks about single
nodes and values.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import cast

import onnx_ir as ir
from msgspec import Struct

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class Scope(Struct, frozen=True, eq=False):
    """One graph, its position in the model, and the operator sets that apply to it."""

    graph: ir.Graph
    path: str  # "" for the main graph; "function:Name" or "node/attribute" joined by "/" below it
    opsets: Mapping[str, int]
    in_function: bool  # functions hold no initializers
    holder: ir.Node | None  # the node whose attribute this body is

    @property
    def opset(self) -> int:
        """Return the version of the default operator set, or 0 if the graph imports none."""
        return self.opsets.get("", 0) or self.opsets.get("ai.onnx", 0)


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Yield all graphs of a model, outer ones first."""
    yield from _below(Scope(model.graph, "", model.opset_imports, False, None))
    for function in model.functions.values():
        imports = function.opset_imports or model.opset_imports
        yield from _below(Scope(function.graph, f"function:{function.name}", imports, True, None))


def _below(scope: Scope) -> Iterator[Scope]:
    yield scope
    for node in scope.graph:
        for name, body in bodies(node):
            path = "/".join(filter(None, (scope.path, label(node), name)))
            yield from _below(Scope(body, path, scope.opsets, scope.in_function, node))


def top_graphs(model: ir.Model) -> tuple[ir.Graph, ...]:
    """Return the main graph and the graphs of the functions, without the bodies inside them."""
    return (model.graph, *(function.graph for function in model.functions.values()))


def nested_graphs(graph: ir.Graph | ir.Function) -> Iterator[ir.Graph | ir.Function]:
    """Yield a graph and the bodies inside it."""
    yield graph
    for node in graph:
        for _, body in bodies(node):
            yield from nested_graphs(body)


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """Return the tensor of an attribute that holds one; `as_tensor` checks the whole protocol, which is slow."""
    return cast("ir.TensorProtocol", attribute.value)


def bodies(node: ir.Node) -> Sequence[tuple[str, ir.Graph]]:
    """Return the graphs that a node has in its attributes, with their names."""
    attributes = node.attributes.data  # the underlying dict is faster, and this runs for every node
    for attribute in attributes.values():
        if attribute.type in _GRAPHS:
            break
    else:
        return ()
    found: list[tuple[str, ir.Graph]] = []
    for name, attribute in attributes.items():
        if attribute.type not in _GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append((name, attribute.as_graph()))
        else:
            found += [(f"{name}[{index}]", body) for index, body in enumerate(attribute.as_graphs())]
    return found


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in the bodies of a node, at any depth."""
    for _, body in bodies(node):
        for inner in body:
            yield inner
            yield from nodes_inside(inner)


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes in its bodies read."""
    for reader in (node, *nodes_inside(node)):
        yield from (value for value in reader.inputs if value is not None)


def has_bodies(node: ir.Node) -> bool:
    """Return whether a node has graphs in its attributes."""
    attributes = node.attributes.data.values()
    return bool(attributes) and any(item.type in _GRAPHS and not item.is_ref() for item in attributes)


def is_sorted(graph: ir.Graph, seen: set[ir.Node] | None = None) -> bool:
    """Return whether every node follows the producers of the values that it or its bodies read.

    `seen` are the nodes before the graph.
    """
    seen = set() if seen is None else seen
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in seen:
                return False
        if not all(is_sorted(body, seen) for _, body in bodies(node)):
            return False
        seen.add(node)
    return True


def is_constant(node: ir.Node) -> bool:
    """Return whether a node only holds a constant; such nodes are counted separately."""
    return node.op_type == "Constant" and not node.domain


def has_references(node: ir.Node) -> bool:
    """Return whether an attribute of the node is a parameter of the enclosing function, whose value is unknown."""
    return any(attribute.is_ref() for attribute in node.attributes.data.values())


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def is_used_outside(value: ir.Value, nodes: Container[ir.Node]) -> bool:
    """Return whether a value is a graph output or has a consumer that is not one of these nodes."""
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def declared_shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return the declared shape: a size, a symbol's name, or None per dimension; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def label(node: ir.Node) -> str:
    """Return the name to show for a node: its own, or else that of its first named output, or else its operator."""
    return node.name or next((output.name for output in node.outputs if output.name), None) or node.op_type


def operator(node: ir.Node) -> str:
    """Return the operator of a node, with the domain if it is not the default one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
