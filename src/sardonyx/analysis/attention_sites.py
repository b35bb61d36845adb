"""Every place where a graph attends: where it is, how many heads it has, what masks it, and how it is written.

The fingerprint finds the places, from structure alone; this room says what each is like, in strings that outlive the
graph, and puts what was found before optimizing beside what was found after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import provenance as p
from sardonyx.analysis.fingerprint.attention import Attention, Site
from sardonyx.analysis.fingerprint.graph_reading import Reading
from sardonyx.ir import origins
from sardonyx.ir.dataflow import Dependence
from sardonyx.ir.facts import Dim, Facts
from sardonyx.ir.ops import (
    ALL_CONVOLUTIONS,
    ALL_PRODUCTS,
    ARITHMETIC,
    CASTS,
    KEEPS_ORDER,
    LAYER_NORMS,
    LOOKUPS,
    MOVES_DATA,
    QUANTIZES,
    REPEATS,
    RMS_NORMS,
    UNARY,
    attention_operands,
)
from sardonyx.ir.scopes import label
from sardonyx.records import gc_pause
from sardonyx.records.run import AttentionForm, AttentionSite, Refusal, RolledBack

# What masks an attention, in words: what its scores are added to, multiplied with or chosen by.

NONE = "none"
_CAUSAL, _INPUT, _COMPUTED, _BY_POSITION, _CONSTANT = (
    "causal", "from an input", "computed from activations", "a bias by position", "a constant",
)  # fmt: skip
_ORDER = (_CAUSAL, _INPUT, _COMPUTED, _BY_POSITION, _CONSTANT)
_MIXES = frozenset({"Add", "Sub", "Where", "Max", "Min", "Sum"})
_FACTORS = frozenset({"Mul", "Div"})
_MASK_MOVES = MOVES_DATA - LOOKUPS | CASTS  # what is looked up follows from the indices, not from the table


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
        way = attention_operands(node)
        assert way is not None
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
            if maker is None or maker in self._layers or name not in _MASK_MOVES | {"Add"}:
                yield term
                continue
            inputs = [each for each in maker.inputs if each is not None]
            for each in inputs if name == "Add" else inputs[:1]:
                if each not in seen and not self._is_number(each):
                    seen.add(each)
                    waiting.append(each)

    def _is_number(self, value: ir.Value) -> bool:
        shape = self._facts.shape(value)
        return shape is not None and set(shape) <= {1} and self._reading.dependence(value) is Dependence.CONSTANT

    def _of_term(self, term: ir.Value) -> Iterator[str]:
        kind, causal = self._reading.dependence(term), self._causal(term)
        if causal:
            yield _CAUSAL
        if kind is Dependence.DATA:
            handed_in = any(value.producer() is None for value in self._reading.upward(term, self._layers))
            yield _INPUT if handed_in else _COMPUTED
        elif not causal:
            yield _CONSTANT if kind is Dependence.CONSTANT else _BY_POSITION


def _said(found: set[str] | frozenset[str]) -> str:
    *others, last = (words for words in _ORDER if words in found) if found else (NONE,)
    return f"{', '.join(others)} and {last}" if others else last


# Which nodes an attention that is spelled out consists of: from the scale of its operands to the product of values.

_MOVES_OF_PARTS = CASTS | {"Identity", "Transpose"}


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
            if name in _FACTORS and self._is_one_number(maker, data[0]):
                yield from (*moves, maker)
                moves = []
            elif name in _MOVES_OF_PARTS:
                moves.append(maker)
            else:
                return
            value = data[0]

    def _is_one_number(self, node: ir.Node, data: ir.Value) -> bool:
        """Whether what data is multiplied with, or divided by, has one element."""
        others = [value for value in node.inputs if value is not None and value is not data]
        return all((shape := self._facts.shape(value)) is not None and set(shape) <= {1} for value in others)


# How many heads an attention has and how wide they are, as far as shapes and attributes tell.

_FAR = 32  # values looked at between the product of values and the layer that follows
# Ways on which the last axis keeps all that heads made: moves, and whatever works element by element.
_MOVES = KEEPS_ORDER | CASTS | {"Dropout", "Transpose"}
_KEEPS = _MOVES | ARITHMETIC | UNARY | LAYER_NORMS | RMS_NORMS | QUANTIZES | {"Where"}


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
        if shape is None or len(shape) < 2 or name not in ALL_PRODUCTS | ALL_CONVOLUTIONS:
            return None
        from_left = value is layer.inputs[0]
        return _number(shape[1] if name in ALL_CONVOLUTIONS else shape[-1] if from_left else shape[-2])

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
                return _quotient(_number(shape[-1]), size) if shape and maker.op_type in ALL_PRODUCTS else None
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
            if len(data) != 1 or name not in REPEATS | _MOVES | {"Mul", "Div"}:
                break
            times *= self._factor(maker) if name in REPEATS else 1
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


# The places of attention of one graph, each described in words and numbers; no node is held on to.


@dataclass(frozen=True, slots=True)
class FoundSite:
    """One place of attention in one graph."""

    module: str  # instance path of its owner
    heads: int | None  # of the queries; None: the graph does not say
    key_value_heads: int | None
    head_size: int | None
    mask: str
    causal: bool
    cached: bool
    cross: bool
    form: AttentionForm
    softmax: str  # the node; "" where it is inside an operator
    result: str  # the value that comes out: what a rewrite of the whole would be named after


def found(facts: Facts) -> tuple[FoundSite, ...]:
    """All places of attention of a model, in the order they run; the model is not changed."""
    with gc_pause.paused():  # nothing made here is garbage before the end
        reading = Reading(facts.model)
        if reading.model is not facts.model:  # functions were written out in a copy
            facts = Facts(reading.model)
        attention = Attention(reading)
        if not attention.sites:
            return ()
        describe = _Describe(facts, reading, attention)
        return tuple(map(describe, attention.sites))


class _Describe:
    """Says what a place is like."""

    def __init__(self, facts: Facts, reading: Reading, attention: Attention) -> None:
        self._parts = Parts(facts, reading, attention)
        self._masking = Masking(facts, reading, attention)
        self._measuring = Measuring(facts, reading, attention)

    def __call__(self, site: Site) -> FoundSite:
        last = site.nodes[-1]
        spelled = attention_operands(site.first) is None
        nodes = self._parts.of(site) if spelled else site.nodes
        sizes = self._measuring.spelled(site) if spelled else self._measuring.fused(site.first)
        operator = "" if spelled else _operator(site.first)
        return FoundSite(
            module=p.owner_of(p.merge(origins.origins(node) for node in site.nodes)),
            heads=sizes.heads,
            key_value_heads=sizes.key_value_heads,
            head_size=sizes.head_size,
            mask=self._masking.spelled(site, nodes) if spelled else self._masking.fused(site.first),
            causal=site.causal,
            cached=site.cached,
            cross=site.cross,
            form=AttentionForm(operator, tuple(map(label, nodes))),
            softmax=label(site.nodes[1]) if spelled else "",
            result=last.outputs[0].name or "",
        )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


# Puts the places of attention of a source beside those of its result: by module, then by the order they run in.
#
# A fused operator does the work of nodes of several modules, so that its module may lie above that of what it replaced.

Fits = Callable[[FoundSite, FoundSite], bool]


def paired(
    before: Sequence[FoundSite],
    after: Sequence[FoundSite],
    refusals: Iterable[Refusal] = (),
    rolled_back: Iterable[RolledBack] = (),
) -> tuple[AttentionSite, ...]:
    """Every place once, in the order of the source; what only the result has comes last."""
    partners = _partners(before, after)
    taken = set(partners.values())
    why_not = _Reasons(refusals, rolled_back)
    sites = [_site(each, after[partners[place]] if place in partners else None, why_not)
             for place, each in enumerate(before)]  # fmt: skip
    sites += [_site(None, each, why_not) for place, each in enumerate(after) if place not in taken]
    return tuple(sites)


def _partners(before: Sequence[FoundSite], after: Sequence[FoundSite]) -> dict[int, int]:
    """Places in `before`, and their partners' in `after`."""
    found: dict[int, int] = {}
    ways: tuple[Fits, ...] = (
        lambda one, other: one.module == other.module,
        lambda one, other: p.is_within(one.module, other.module) or p.is_within(other.module, one.module),
    )
    for fits in ways:
        free = [place for place in range(len(after)) if place not in set(found.values())]
        for place, one in enumerate(before):
            partner = None if place in found else next((each for each in free if fits(one, after[each])), None)
            if partner is not None:
                found[place] = partner
                free.remove(partner)
    rest = [place for place in range(len(before)) if place not in found]
    free = [place for place in range(len(after)) if place not in set(found.values())]
    if len(rest) == len(free):  # modules say nothing, but all are there
        found.update(zip(rest, free, strict=True))
    return found


def _site(before: FoundSite | None, after: FoundSite | None, why_not: _Reasons) -> AttentionSite:
    one = before or after
    assert one is not None, "a place was found somewhere"
    other = after or one
    return AttentionSite(
        module=one.module,
        heads=one.heads or other.heads,
        key_value_heads=one.key_value_heads or other.key_value_heads,
        head_size=one.head_size or other.head_size,
        mask=NONE if other.mask == NONE else one.mask,  # one of zeros is only seen through when it is folded
        causal=one.causal,
        cached=one.cached,
        cross=one.cross,
        before=before.form if before is not None else None,
        after=after.form if after is not None else None,
        why="" if after is None or after.form.operator else why_not(after),
    )


class _Reasons:
    """Why a place is still in parts: what a pass said that looked at its Softmax, or that a fusion did not hold."""

    def __init__(self, refusals: Iterable[Refusal], rolled_back: Iterable[RolledBack]) -> None:
        self._by_node: dict[str, str] = {}
        for refusal in refusals:
            for node in refusal.nodes:
                self._by_node.setdefault(node, refusal.reason)
        self._undone = {each.root: each for each in rolled_back}

    def __call__(self, site: FoundSite) -> str:
        undone = self._undone.get(site.result)
        if undone is not None:
            return f"{undone.pass_name} was rolled back: {undone.reason}"
        return self._by_node.get(site.softmax, "")


__all__ = ["FoundSite", "found", "paired"]
