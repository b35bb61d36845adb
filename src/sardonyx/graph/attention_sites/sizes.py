"""How many heads an attention has and how wide they are, as far as shapes and attributes tell."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.graph.facts import Dim, Facts
from sardonyx.graph.fingerprint.attention import CONVOLUTIONS, PRODUCTS, Attention, Site
from sardonyx.graph.fingerprint.reading import Reading

_FAR = 32  # values looked at between the product of values and the layer that follows
# Ways on which the last axis keeps all that heads made: moves, and whatever works element by element.
_MOVES = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "Dropout"})
_KEEPS = _MOVES | {
    "Add", "Mul", "Sub", "Div", "Relu", "Gelu", "Sigmoid", "Tanh", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Where",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
}  # fmt: skip
_REPEATS = frozenset({"Expand", "Tile"})


@dataclass(frozen=True, slots=True)
class Sizes:
    """None: the graph does not say."""

    heads: int | None = None
    key_value_heads: int | None = None
    head_size: int | None = None


class Measuring:
    """Tells the sizes of places of attention of one graph."""

    def __init__(self, facts: Facts, reading: Reading, attention: Attention) -> None:
        self._facts = facts
        self._reading = reading
        self._layers = attention.layers

    def fused(self, node: ir.Node) -> Sizes:
        """Of an attention operator: from its attributes, and the widths of what it reads."""
        query, key = self._shape(node, 0), self._shape(node, 1)
        given = node.attributes.get_int
        heads = given("num_heads", 0) or given("q_num_heads", 0)
        shared = given("kv_num_heads", 0) or heads
        sizes = Sizes(heads or None, shared or None, self._width_of_head(node, query, heads, shared))
        if node.domain in ("", "ai.onnx") and query is not None and len(query) == 4:  # batch, heads, length, width
            shared = _number(key[1]) if key is not None and len(key) == 4 else None
            sizes = Sizes(_number(query[1]), shared, _number(query[3]))
        return self._seen_whole(node, sizes) if sizes.heads == sizes.key_value_heads == 1 else sizes

    def _seen_whole(self, node: ir.Node, sizes: Sizes) -> Sizes:
        """Heads may lie in the batch, so that the operator sees one at a time; the layer after it sees all."""
        values = self._facts.shape(node.outputs[0])
        heads = self._heads_after(node, _number(values[-1]) if values else None) or 1
        return Sizes(heads, heads, sizes.head_size)

    def _width_of_head(self, node: ir.Node, query: tuple[Dim, ...] | None, heads: int, shared: int) -> int | None:
        if query is not None and len(query) == 5:  # batch, length, heads, which of the three, width
            return _number(query[4])
        packed, parts = query, heads
        if node.domain not in ("", "ai.onnx") and node.op_type.endswith("Attention"):
            widths = node.attributes.get_ints("qkv_hidden_sizes", ())
            if widths:
                return _quotient(widths[0], heads)
            if node.op_type in ("Attention", "QAttention", "PackedAttention", "DecoderMaskedSelfAttention"):
                packed, parts = self._shape(node, 1), 3 * heads  # one weight for all three
            elif len(node.inputs) < 2 or node.inputs[1] is None:
                parts = heads + 2 * shared
        return _quotient(packed[-1], parts) if packed else None

    def spelled(self, site: Site) -> Sizes:
        """Of one in parts: from the shapes of its products, and what layers make before and read after it."""
        scores, result = site.first, site.nodes[-1]
        size = self._contracted(scores)
        values = self._facts.shape(result.outputs[0])
        heads = self._heads_after(result, _number(values[-1]) if values else None)
        heads = heads or self._heads_before(scores, size)
        heads = heads or self._heads_between(scores) or self._heads_between(result)
        return Sizes(heads, _quotient(heads, self._repeated(scores)), size)

    def _contracted(self, product: ir.Node) -> int | None:
        """Over how many elements a product sums."""
        shape = self._shape(product, 0)
        if product.op_type == "Einsum":
            return self._contracted_letters(product, shape)
        turned = product.attributes.get_int("transA", 0)
        return _number(shape[-2 if turned else -1]) if shape is not None and len(shape) >= 2 else None

    def _contracted_letters(self, product: ir.Node, shape: tuple[Dim, ...] | None) -> int | None:
        inputs, _, output = product.attributes.get_string("equation", "").replace(" ", "").partition("->")
        first, _, second = inputs.partition(",")
        summed = [place for place, letter in enumerate(first) if letter in second and letter not in output]
        if shape is None or len(shape) != len(first) or len(summed) != 1:
            return None
        return _number(shape[summed[0]])

    def _heads_after(self, result: ir.Node, width: int | None) -> int | None:
        """All heads together are as wide as what the next layer reads."""
        waiting, seen = [result.outputs[0]], {result.outputs[0]}
        while waiting and len(seen) < _FAR:
            value = waiting.pop(0)
            for reader in self._reading.readers(value):
                if reader in self._layers:
                    heads = _quotient(self._read(reader, value), width)
                    return heads if heads and self._fits(result, heads) else None
                output = reader.outputs[0]
                if self._reading.names[reader] in _KEEPS and output not in seen:
                    seen.add(output)
                    waiting.append(output)
        return None

    def _read(self, layer: ir.Node, value: ir.Value) -> int | None:
        """How wide a layer's input is, on the axis that it sums over."""
        shape, name = self._facts.shape(value), self._reading.names[layer]
        if shape is None or len(shape) < 2 or name not in PRODUCTS | CONVOLUTIONS:
            return None
        from_left = value is layer.inputs[0]
        return _number(shape[1] if name in CONVOLUTIONS else shape[-1] if from_left else shape[-2])

    def _fits(self, result: ir.Node, heads: int) -> bool:
        """Whether there are as many matrices in a product as heads, or a multiple."""
        shape = self._facts.shape(result.outputs[0]) or ()
        numbers = [dim for dim in shape[:-2] if isinstance(dim, int)]
        if len(numbers) != len(shape[:-2]) or self._reading.names[result] == "Einsum":
            return True
        product = 1
        for number in numbers:
            product *= number
        return product % heads == 0

    def _heads_before(self, scores: ir.Node, size: int | None) -> int | None:
        """A layer makes all heads of the queries at once, where only moves follow it."""
        value = scores.inputs[0]
        for _ in range(_FAR):
            maker = value.producer() if value is not None else None
            if maker is None or value is None:
                return None
            if maker in self._layers:
                shape = self._facts.shape(value)
                return _quotient(_number(shape[-1]), size) if shape and maker.op_type in PRODUCTS else None
            data = list(self._reading.data(maker))
            if len(data) != 1 or self._reading.names[maker] not in _KEEPS:
                return None
            value = data[0]
        return None

    def _heads_between(self, product: ir.Node) -> int | None:
        """The axis before rows and columns."""
        shape = self._facts.shape(product.outputs[0])
        return _number(shape[-3]) if shape is not None and len(shape) >= 4 else None

    def _repeated(self, scores: ir.Node) -> int:
        """For how many heads of the queries each head of the keys serves."""
        query, key = self._shape(scores, 0), self._shape(scores, 1)
        times = 1
        if query is not None and key is not None and scores.op_type != "Einsum":
            for one, other in zip(query[-3::-1], key[-3::-1], strict=False):
                times *= one if other == 1 and isinstance(one, int) else 1
        value = scores.inputs[1]
        while (maker := value.producer() if value is not None else None) is not None and maker not in self._layers:
            data = list(self._reading.data(maker))
            name = self._reading.names[maker]
            if len(data) != 1 or name not in _REPEATS | _MOVES | {"Mul", "Div"}:
                break
            times *= self._factor(maker) if name in _REPEATS else 1
            value = data[0]
        return times

    def _factor(self, repeats: ir.Node) -> int:
        """How many times a node says the same."""
        before, after = self._shape(repeats, 0), self._facts.shape(repeats.outputs[0])
        times = 1
        for one, other in zip((before or ())[::-1], (after or ())[::-1], strict=False):
            if isinstance(one, int) and isinstance(other, int) and one and one != other:
                times *= other // one
        return times

    def _shape(self, node: ir.Node, index: int) -> tuple[Dim, ...] | None:
        return self._facts.shape(node.inputs[index]) if index < len(node.inputs) else None


def _number(dim: Dim | None) -> int | None:
    return dim if isinstance(dim, int) else None


def _quotient(whole: Dim | None, part: int | None) -> int | None:
    """How often one number goes into another, where it does without a rest."""
    return whole // part if isinstance(whole, int) and part and whole and whole % part == 0 else None
