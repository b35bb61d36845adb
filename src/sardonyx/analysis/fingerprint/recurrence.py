"""Where a model carries a state from position to position: an operator, a loop, or step after step written out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container

import onnx_ir as ir

from sardonyx.analysis.fingerprint.graph_reading import NEAR, Reading
from sardonyx.ir.ops import LOOPS, PARTS, RECURRENT
from sardonyx.ir.scopes import bodies

_OPERATORS = RECURRENT | {"AttnLSTM", "DynamicQuantizeLSTM"}
_STEPS = 4  # as many steps written out, each on the next piece of a value and on what the last step made


def count_recurrences(reading: Reading, layers: Container[ir.Node]) -> int:
    """How many recurrences there are; one that is written out counts once."""
    spelled = sum(
        name in _OPERATORS or (name in LOOPS and _carries(node, layers)) for node, name in reading.names.items()
    )
    return spelled + _count_unrolled(reading, layers)


def _carries(node: ir.Node, layers: Container[ir.Node]) -> bool:
    """Whether the body of a loop computes layers."""
    return any(inner in layers for _, body in bodies(node) for inner in body)


def _count_unrolled(reading: Reading, layers: Container[ir.Node]) -> int:
    """Values whose pieces are taken in turn, each together with what was made of the one before."""
    pieces: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    for node, name in reading.names.items():
        if name in PARTS and node not in layers and node.inputs[0] is not None and reading.is_data(node.inputs[0]):
            pieces[node.inputs[0]].extend(node.outputs)
    several = [taken for taken in pieces.values() if len(taken) >= _STEPS]
    unlike = _single_layers(reading, layers) if several else set[ir.Node]()
    return sum(_is_chain(reading, [_join(reading, piece) for piece in taken], unlike) for taken in several)


def _single_layers(reading: Reading, layers: Container[ir.Node]) -> set[ir.Node]:
    """Layers whose weights are not used in step after step: what goes through one is no recurrence."""
    calls: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for node in reading.names:
        if node in layers:
            for weight in node.inputs[:2]:
                if weight is not None and not reading.is_data(weight):
                    calls[_root(weight)].append(node)
    return {node for nodes in calls.values() if len(nodes) < _STEPS for node in nodes}


def _root(weight: ir.Value) -> ir.Value:
    """The constant that a weight is made from: exporters transpose one anew at every use."""
    maker = weight.producer()
    while maker is not None and maker.inputs and maker.inputs[0] is not None:
        weight = maker.inputs[0]
        maker = weight.producer()
    return weight


def _join(reading: Reading, piece: ir.Value) -> ir.Node | None:
    """The nearest node in which a piece meets other data."""
    for _ in range(NEAR):
        readers = reading.readers(piece)
        meeting = next((node for node in readers if sum(1 for _ in reading.data(node)) > 1), None)
        if meeting is not None or not readers:
            return meeting
        piece = readers[0].outputs[0]
    return None


def _is_chain(reading: Reading, met: list[ir.Node | None], unlike: set[ir.Node]) -> bool:
    """Whether several nodes work each on what another of them made."""
    joins = {node for node in met if node is not None}
    if len(joins) < _STEPS:
        return False
    stop = joins | unlike
    follows = sum(
        any(value.producer() in joins for source in reading.data(node) for value in reading.upward(source, stop, NEAR))
        for node in joins
    )
    return follows >= _STEPS - 1
