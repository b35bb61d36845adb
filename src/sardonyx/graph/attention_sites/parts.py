"""Which nodes an attention that is spelled out consists of: from the scale of its operands to the product of values."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.graph.fingerprint.attention import Attention, Site
from sardonyx.graph.fingerprint.reading import Reading

_SCALES = frozenset({"Mul", "Div"})
_MOVES = frozenset({"Transpose", "Identity", "Cast"})


class Parts:
    """Finds the nodes of places of attention in one graph."""

    def __init__(self, facts: Facts, reading: Reading, attention: Attention) -> None:
        self._facts = facts
        self._reading = reading
        self._layers = attention.layers
        self._order = {node: place for place, node in enumerate(reading.names)}

    def of(self, site: Site) -> tuple[ir.Node, ...]:
        """All nodes between the two products, both included, and what scales queries and keys, as they run."""
        first, last = site.first, site.nodes[-1]
        nodes = {*site.nodes, *self._between(first, last)}
        for value in first.inputs[:2]:
            nodes.update(self._scaling(value))
        return tuple(sorted(nodes, key=self._order.__getitem__))

    def _between(self, first: ir.Node, last: ir.Node) -> set[ir.Node]:
        """The nodes that carry the result of the one to the other."""
        ahead = set(self._reading.downward(first.outputs[0], self._layers))
        found: set[ir.Node] = set()
        waiting = [last]
        while waiting:
            for value in waiting.pop().inputs:
                maker = value.producer() if value is not None else None
                if maker in ahead and maker not in found:
                    found.add(maker)
                    waiting.append(maker)
        return found

    def _scaling(self, value: ir.Value | None) -> Iterator[ir.Node]:
        """What multiplies an operand by one number, right before the product, and what moves it in between."""
        moves: list[ir.Node] = []
        while (maker := value.producer() if value is not None else None) in self._reading.names:
            assert maker is not None
            data = list(self._reading.data(maker))
            name = self._reading.names[maker]
            if len(data) != 1 or maker in self._layers:
                return
            if name in _SCALES and self._is_one_number(maker, data[0]):
                yield from (*moves, maker)
                moves = []
            elif name in _MOVES:
                moves.append(maker)
            else:
                return
            value = data[0]

    def _is_one_number(self, node: ir.Node, data: ir.Value) -> bool:
        """Whether what data is multiplied with, or divided by, has one element."""
        others = [value for value in node.inputs if value is not None and value is not data]
        return all((shape := self._facts.shape(value)) is not None and set(shape) <= {1} for value in others)
