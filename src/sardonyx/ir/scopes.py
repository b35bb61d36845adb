"""Every graph inside a model: the main one, the bodies of control flow, the bodies of functions.

Passes work in all of them, so everything that walks a model walks through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """One graph, where it hangs, and which operator sets hold in it."""

    graph: ir.Graph
    path: str  # "" for the main graph; "function:Name" or "node/attribute" joined by "/" below it
    opsets: Mapping[str, int]
    in_function: bool  # functions hold no initializers
    holder: ir.Node | None  # the node whose attribute this body is

    @property
    def opset(self) -> int:
        """Version of the default operator set; 0 where the graph imports none."""
        return self.opsets.get("", 0) or self.opsets.get("ai.onnx", 0)


def scopes(model: ir.Model) -> Iterator[Scope]:
    """All graphs of a model, outer ones first."""
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


def bodies(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs a node carries in its attributes."""
    for name, attribute in node.attributes.data.items():  # the plain dict inside: this is asked of every node
        if attribute.type not in _GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        else:
            yield from ((f"{name}[{index}]", body) for index, body in enumerate(attribute.as_graphs()))


def has_bodies(node: ir.Node) -> bool:
    """Whether a node carries graphs in its attributes."""
    attributes = node.attributes.data.values()
    return bool(attributes) and any(each.type in _GRAPHS and not each.is_ref() for each in attributes)


def is_sorted(graph: ir.Graph, seen: set[ir.Node] | None = None) -> bool:
    """Whether every node comes after those whose values it or its bodies read; `seen` are those before the graph."""
    seen = set() if seen is None else seen
    for node in graph:
        for value in node.inputs:
            maker = value.producer() if value is not None else None
            if maker is not None and maker not in seen:
                return False
        if not all(is_sorted(body, seen) for _, body in bodies(node)):
            return False
        seen.add(node)
    return True


def is_constant(node: ir.Node) -> bool:
    """Whether a node only holds a constant, which is counted apart from nodes that compute."""
    return node.op_type == "Constant" and not node.domain


def label(node: ir.Node) -> str:
    """How a person would look a node up: its name, else what it makes."""
    return node.name or next((output.name for output in node.outputs if output.name), None) or node.op_type


def operator(node: ir.Node) -> str:
    """What a node does, with the domain where it is not ONNX's own."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
