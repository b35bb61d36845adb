"""Where a model carries a state from position to position: an operator, a loop, or step after step written out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import onnx_ir as ir

from sardonyx.graph.fingerprint.reading import Reading, operator
from sardonyx.graph.scopes import bodies

_OPERATORS = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "AttnLSTM"})
_LOOPS = frozenset({"Loop", "Scan"})
_STEPS = 4  # as many calls of one weight, each on what the one before it made, are a recurrence


def count_recurrences(reading: Reading, ends: Callable[[ir.Node], bool]) -> int:
    """How many recurrences there are; one that is written out counts once."""
    spelled = sum(
        operator(node) in _OPERATORS or (operator(node) in _LOOPS and _carries(node, ends)) for node in reading.nodes
    )
    return spelled + _count_unrolled(reading, ends)


def _carries(node: ir.Node, ends: Callable[[ir.Node], bool]) -> bool:
    """Whether the body of a loop computes layers."""
    return any(ends(inner) for _, body in bodies(node) for inner in body)


def _count_unrolled(reading: Reading, ends: Callable[[ir.Node], bool]) -> int:
    """Weights that are applied again and again, each time to what the last time made."""
    calls: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for node in reading.nodes:
        if ends(node) and len(node.inputs) > 1 and operator(node) != "Gather":
            for weight in node.inputs[:2]:
                if weight is not None and not reading.is_data(weight):
                    calls[_root(weight)].append(node)
    return sum(_is_chain(reading, nodes) for nodes in calls.values() if len(nodes) >= _STEPS)


def _root(weight: ir.Value) -> ir.Value:
    """The constant that a weight is made from: exporters transpose one anew at every use."""
    maker = weight.producer()
    while maker is not None and maker.inputs and maker.inputs[0] is not None:
        weight = maker.inputs[0]
        maker = weight.producer()
    return weight


def _is_chain(reading: Reading, nodes: list[ir.Node]) -> bool:
    """Whether each node, but for a few, works on what the one before it made."""
    members = set(nodes)
    follows = 0
    for node in nodes[1:]:
        source = next(reading.data(node), None)
        if source is None:
            continue
        follows += any(value.producer() in members for value in reading.upward(source, members.__contains__))
    return follows >= _STEPS - 1
