"""What masks an attention, in words: what its scores are added to, multiplied with or chosen by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from sardonyx.graph.facts import Facts
from sardonyx.graph.fingerprint.attention import FUSED, Attention, Site
from sardonyx.graph.fingerprint.reading import Kind, Reading

NONE = "none"
_CAUSAL, _INPUT, _COMPUTED, _BY_POSITION, _CONSTANT = (
    "causal", "from an input", "computed from activations", "a bias by position", "a constant",
)  # fmt: skip
_ORDER = (_CAUSAL, _INPUT, _COMPUTED, _BY_POSITION, _CONSTANT)
_MIXES = frozenset({"Add", "Sub", "Where", "Max", "Min", "Sum"})
_FACTORS = frozenset({"Mul", "Div"})
_VIEWS = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Expand", "Cast", "Identity", "Transpose", "Slice"})


class Masking:
    """Reads the masks of one graph."""

    def __init__(self, facts: Facts, reading: Reading, attention: Attention) -> None:
        self._facts = facts
        self._reading = reading
        self._layers = attention.layers
        self._causal = attention.masks.causal
        self._known: dict[ir.Value, frozenset[str]] = {}  # layers share masks

    def spelled(self, site: Site, nodes: Sequence[ir.Node]) -> str:
        """Of one in parts: what comes in between the product and the Softmax."""
        softmax = site.nodes[1]
        inner = nodes[nodes.index(site.first) + 1 : nodes.index(softmax)]
        own = {output for node in (site.first, *inner) for output in node.outputs}
        found = {words for node in inner for mask in self._entering(node, own) for words in self._words(mask)}
        return _said(found)

    def fused(self, node: ir.Node) -> str:
        """Of an operator: what it is by nature or was told to be, and its masks."""
        way = FUSED["" if node.domain == "ai.onnx" else node.domain, node.op_type]
        asked = any(node.attributes.get_int(name, 0) for name in ("is_causal", "unidirectional"))
        found = {_CAUSAL} if way.causal or asked else set[str]()
        masks = (node.inputs[index] for index in way.masks if index < len(node.inputs))
        return _said(found.union(*(self._words(mask) for mask in masks if mask is not None)))

    def _entering(self, node: ir.Node, own: set[ir.Value]) -> Iterator[ir.Value]:
        """The operands of a node that mask; a scale does not."""
        name = self._reading.names[node]
        for index, value in enumerate(node.inputs):
            if value is None or value in own:
                continue
            shape = self._facts.shape(value)
            condition = name == "Where" and index == 0
            mixed_in = name in _MIXES and (condition or shape is None or not set(shape) <= {1})
            factor = name in _FACTORS and bool(shape) and shape[-1] != 1  # one per head, and learned, is a scale still
            if mixed_in or factor:
                yield value

    def _words(self, value: ir.Value) -> frozenset[str]:
        """What one mask is; sums of several are taken apart."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = frozenset(word for term in self._terms(value) for word in self._of_term(term))
        return known

    def _terms(self, value: ir.Value) -> Iterator[ir.Value]:
        waiting, seen = [value], {value}
        while waiting:
            term = waiting.pop()
            maker = term.producer()
            name = self._reading.names.get(maker, "") if maker is not None else ""
            if maker is None or maker in self._layers or name not in _VIEWS | {"Add"}:
                yield term
                continue
            inputs = [each for each in maker.inputs if each is not None]
            for each in inputs if name == "Add" else inputs[:1]:
                if each not in seen and not self._is_number(each):
                    seen.add(each)
                    waiting.append(each)

    def _is_number(self, value: ir.Value) -> bool:
        shape = self._facts.shape(value)
        return shape is not None and set(shape) <= {1} and self._reading.kind(value) is Kind.FIXED

    def _of_term(self, term: ir.Value) -> Iterator[str]:
        kind, causal = self._reading.kind(term), self._causal(term)
        if causal:
            yield _CAUSAL
        if kind is Kind.DATA:
            handed_in = any(value.producer() is None for value in self._reading.upward(term, self._layers))
            yield _INPUT if handed_in else _COMPUTED
        elif not causal:
            yield _CONSTANT if kind is Kind.FIXED else _BY_POSITION


def _said(found: set[str] | frozenset[str]) -> str:
    *others, last = (words for words in _ORDER if words in found) if found else (NONE,)
    return f"{', '.join(others)} and {last}" if others else last
