"""Finds the nodes before a given one that do nothing but move the elements of one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.ir.ops import SELECTS, VIEWS

LONGEST = 24  # nodes of a region; a longer one is taken in parts
KEEPS_SIZE = VIEWS | {"Transpose"}
MOVING = KEEPS_SIZE | SELECTS - {"GatherElements"} | {"Concat"}  # those that `Steps` can carry out


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that do nothing but move elements of one value, users before makers."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value


def regions_before(root: ir.Node) -> list[Region]:
    """Regions that end in a node, small ones first: each has one source, and nothing else reads what is inside."""
    inside: dict[ir.Node, None] = {root: None}
    found: list[Region] = []
    while len(inside) < LONGEST:
        edge = list(dict.fromkeys(value for node in inside for value in _moved(node) if value.producer() not in inside))
        if len(edge) == 1:
            found.append(Region(tuple(inside), edge[0]))
        more = next((node for value in edge if (node := _enclosed_maker(value, root, inside)) is not None), None)
        if more is None:
            break
        inside[more] = None
    return found


def _moved(node: ir.Node) -> Iterator[ir.Value]:
    """The values whose elements a node moves."""
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return (value for value in values if value is not None)


def _enclosed_maker(value: ir.Value, root: ir.Node, inside: Mapping[ir.Node, None]) -> ir.Node | None:
    """The maker of a value, where it only moves elements too and nothing outside reads its results."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in MOVING or node.graph is not root.graph:
        return None
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    for output in node.outputs:
        if output.is_graph_output() or any(use.node not in inside for use in output.uses()):
            return None
    return node
