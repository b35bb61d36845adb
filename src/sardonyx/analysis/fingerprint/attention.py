"""Where a model attends: a Softmax between two products of activations, or an operator that is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.analysis.fingerprint.graph_reading import NEAR, Reading
from sardonyx.analysis.fingerprint.masks import Masks
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, ATTENTION_NAMES, AttentionOperands, attention_operands

_TURNS = frozenset({"Sin", "Cos"})  # what rotates queries and keys is no source of them
_LAYERS = ALL_PRODUCTS | ALL_CONVOLUTIONS | _TURNS


@dataclass(frozen=True, slots=True)
class Site:
    """One place of attention."""

    first: ir.Node  # the node that multiplies queries and keys
    nodes: tuple[ir.Node, ...]  # it, the Softmax and the node that multiplies the values
    causal: bool
    cached: bool
    cross: bool


class Attention:
    """The places of attention of one model."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        names = reading.names
        named = (
            node for node, name in names.items() if name in ATTENTION_NAMES
        )  # most are none: a set is quick to ask
        self._fused = {node: way for node in named if (way := attention_operands(node)) is not None}
        self.layers = {node for node, name in names.items() if name in _LAYERS or node in self._fused}
        self.layers.update(node for node, name in names.items() if name == "Gather" and self._looks_up(node))
        self.masks = Masks(reading, self.layers)
        softmaxes = (node for node, name in names.items() if name == "Softmax")
        self._softmaxes = [node for node in softmaxes if reading.is_data(node.outputs[0])]
        self._ends = {*self.layers, *self._softmaxes}  # behind the next Softmax it is that one's weights
        self._weighs = {node: product for node in self._softmaxes if (product := self._weighed(node)) is not None}
        self._results = {*self._weighs.values(), *self._fused}
        self.sites = tuple(self._sites())
        self.pooling = self._count_pooling()

    def _looks_up(self, node: ir.Node) -> bool:
        return not self._reading.is_data(node.inputs[0])

    def mutual(self, node: ir.Node) -> bool:
        """Whether a node multiplies activations with activations."""
        if self._reading.names[node] not in ALL_PRODUCTS or len(node.inputs) < 2:
            return False
        return all(map(self._reading.is_data, node.inputs[:2]))

    def _weighed(self, softmax: ir.Node) -> ir.Node | None:
        """The product in which the result of a Softmax weighs activations."""
        for reader in self._reading.downward(softmax.outputs[0], self._ends):
            if self.mutual(reader):
                return reader
        return None

    def _sites(self) -> Iterator[Site]:
        for node in self._reading.names:
            if node in self._fused:
                yield self._fused_site(node, self._fused[node])
            elif node in self._weighs:
                site = self._spelled_site(node, self._weighs[node])
                if site is not None:
                    yield site

    def _spelled_site(self, softmax: ir.Node, result: ir.Node) -> Site | None:
        start = softmax.inputs[0]
        assert start is not None  # a Softmax that made data has read some
        for value in self._reading.upward(start, self.layers):
            scores = value.producer()
            if scores in self.layers and self.mutual(scores):
                query, key = scores.inputs[0], scores.inputs[1]
                assert query is not None  # mutual() has looked at both
                assert key is not None
                cached = self._cached(key)
                causal = cached or self.masks.causal(start)
                return Site(scores, (scores, softmax, result), causal, cached, self._is_cross(query, key))
        return None

    def _fused_site(self, node: ir.Node, shape: AttentionOperands) -> Site:
        def given(index: int) -> ir.Value | None:
            return node.inputs[index] if 0 <= index < len(node.inputs) else None

        asked = any(node.attributes.get_int(name, 0) for name in ("is_causal", "unidirectional"))
        query, key = given(0), given(shape.key)
        cached = given(shape.past) is not None or (key is not None and self._cached(key))
        masked = any(self.masks.causal(mask) for index in shape.masks if (mask := given(index)) is not None)
        cross = query is not None and key is not None and self._is_cross(query, key)
        return Site(node, (node,), shape.causal or asked or cached or masked, cached, cross)

    def _cached(self, key: ir.Value) -> bool:
        """Whether keys continue ones that are handed in, or are handed out."""
        for value in self._reading.upward(key, self.layers):
            if value.is_graph_output():
                return True
            maker = value.producer()
            if maker is not None and self._reading.names[maker] == "Concat" and any(map(_is_input, maker.inputs)):
                return True
        return False

    def _is_cross(self, query: ir.Value, key: ir.Value) -> bool:
        """Whether keys come from elsewhere than queries: nothing near is what both are made from."""
        return not (self._sources(query) & self._sources(key))

    def _sources(self, value: ir.Value) -> set[ir.Value]:
        """What a query or key is made from: the input of the nearest layer, and what that is made from in turn.

        Where there is no layer it is what is handed in, such as the keys of a memory; beside one that is a cache.
        """
        source = value
        for near in self._reading.upward(value, self.layers):
            maker = near.producer()
            if maker is None:
                source = near
            elif maker in self.layers and self._reading.names[maker] not in _TURNS:
                source = next(self._reading.data(maker), near)
                break
        return set(self._reading.upward(source, self._results, NEAR))

    def _count_pooling(self) -> int:
        """Softmaxes that weigh activations without scores between activations."""
        known = {node for site in self.sites for node in site.nodes}
        return sum(node in self._weighs or self._scales(node) for node in self._softmaxes if node not in known)

    def _scales(self, softmax: ir.Node) -> bool:
        """Whether the result of a Softmax is multiplied with activations, element by element."""
        return any(
            self._reading.names[reader] == "Mul" and all(map(self._reading.is_data, reader.inputs))
            for reader in self._reading.downward(softmax.outputs[0], self._ends)
        )


def _is_input(value: ir.Value | None) -> bool:
    return value is not None and value.is_graph_input() and not value.is_initializer()
