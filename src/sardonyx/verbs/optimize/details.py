"""What only reports tell about the graphs of a run: the architecture, the wiring, and the attention sites.

It takes as long as a fifth of the passes, so it is computed when a record is written or shown in full. The fingerprint
finds the attention sites; here each is described in strings and numbers that outlive the graph (module, heads, mask,
whether it is one operator or decomposed), and those before optimization are paired with those after.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.ir import ops, origins
from sardonyx.ir.facts import Dependence, Dim, Facts
from sardonyx.ir.scopes import label, operator
from sardonyx.records import provenance as p
from sardonyx.records.run import ArchitectureGuess, AttentionForm, AttentionSite, Refusal, RolledBack, Wiring
from sardonyx.verbs.analyze.fingerprint import fingerprint
from sardonyx.verbs.analyze.fingerprint.attention import Attention, GraphView, Site, is_causal_operator
from sardonyx.verbs.optimize.run_tables import wiring


class RunDetails(Struct, frozen=True, eq=False):
    """The fields of a Run that only reports read."""

    fingerprint: ArchitectureGuess
    wiring_before: Wiring
    wiring_after: Wiring
    attention: tuple[AttentionSite, ...]


def describe(before: Facts, after: Facts, refusals: Iterable[Refusal], rolled_back: Iterable[RolledBack]) -> RunDetails:
    """Describe a source and its result, whose nodes have origins."""
    with gc_pause.paused():
        guess = fingerprint(after.model)  # it computes the same as the source with far fewer nodes
        return RunDetails(
            fingerprint=ArchitectureGuess(guess.family.value, guess.confidence, guess.evidence),
            wiring_before=wiring(before.model, before),
            wiring_after=wiring(after.model, after),
            attention=pair_sites(find_sites(before), find_sites(after), refusals, rolled_back),
        )


NONE = "none"
_CAUSAL, _INPUT, _COMPUTED, _BY_POSITION, _CONSTANT = (
    "causal", "from an input", "computed from activations", "a bias by position", "a constant",
)  # fmt: skip
_ORDER = (_CAUSAL, _INPUT, _COMPUTED, _BY_POSITION, _CONSTANT)
_MIXES = frozenset({"Add", "Sub", "Where", "Max", "Min", "Sum"})
_FACTORS = frozenset({"Mul", "Div"})
_MASK_MOVES = ops.MOVES_DATA - ops.LOOKUPS | ops.CASTS  # the result of a lookup depends on the indices, not the table
_MAX_VISITED = 32  # values visited between the product with the values and the next layer
# Operators after which the last axis still holds the results of all heads: moves and elementwise operators.
_MOVES = ops.KEEPS_ORDER | ops.CASTS | {"Dropout", "Transpose"}
_KEEPS = _MOVES | ops.ARITHMETIC | ops.UNARY | ops.LAYER_NORMS | ops.RMS_NORMS | ops.QUANTIZES | {"Where"}


# The heads of the queries, of the keys and values, and the size of each; None for what the graph does not determine.
HeadSizes = tuple[int | None, int | None, int | None]


class SiteDescription(Struct, frozen=True):
    """One attention site of one graph, without references to nodes."""

    module: str  # instance path of the owning module
    heads: int | None  # of the queries; None if the graph does not determine it
    key_value_heads: int | None
    head_size: int | None
    mask: str
    causal: bool
    cached: bool
    cross: bool
    form: AttentionForm
    softmax: str  # the label of the Softmax node; "" for a fused operator
    result: str  # the name of the result, which identifies a rewrite of the site


def _listed(kinds: Iterable[str]) -> str:
    present = set(kinds)
    *others, last = [kind for kind in _ORDER if kind in present] or [NONE]
    return f"{', '.join(others)} and {last}" if others else last


class _SiteDescriber:
    """Describes the attention sites of one graph."""

    def __init__(self, facts: Facts, view: GraphView, attention: Attention) -> None:
        self._facts = facts
        self._view = view
        self._layers = attention.layers
        self._causal = attention.masks.causal
        self._mask_kinds: dict[ir.Value, frozenset[str]] = {}  # layers share masks
        self._order = {node: index for index, node in enumerate(view.names)}

    def describe(self, site: Site) -> SiteDescription:
        """Describe one site."""
        slots = ops.attention_operands(site.first)
        nodes = self._nodes(site) if slots is None else site.nodes
        sizes = self._decomposed_heads(site) if slots is None else self._fused_heads(site.first)
        return SiteDescription(
            p.owner_of(p.merge(origins.origins(node) for node in site.nodes)),
            *sizes,
            mask=self._decomposed_mask(site, nodes) if slots is None else self._fused_mask(site.first, slots),
            causal=site.causal,
            cached=site.cached,
            cross=site.cross,
            form=AttentionForm("" if slots is None else operator(site.first), tuple(map(label, nodes))),
            softmax=label(site.nodes[1]) if slots is None else "",
            result=site.nodes[-1].outputs[0].name or "",
        )

    # The mask of a site: what its scores are added to, multiplied with or selected by.

    def _decomposed_mask(self, site: Site, nodes: Sequence[ir.Node]) -> str:
        """Describe what enters a decomposed site between the product of queries and keys and the Softmax."""
        softmax = site.nodes[1]
        inner = nodes[nodes.index(site.first) + 1 : nodes.index(softmax)]
        own = {output for node in (site.first, *inner) for output in node.outputs}
        return _listed(kind for node in inner for mask in self._entering(node, own) for kind in self._kinds(mask))

    def _fused_mask(self, node: ir.Node, slots: ops.AttentionOperands) -> str:
        """Describe the mask of an attention operator: by definition, by attribute, and by its mask operands."""
        kinds = {_CAUSAL} if is_causal_operator(node, slots) else set[str]()
        masks = (node.inputs[index] for index in slots.masks if index < len(node.inputs))
        return _listed(kinds.union(*(self._kinds(mask) for mask in masks if mask is not None)))

    def _entering(self, node: ir.Node, own: set[ir.Value]) -> Iterator[ir.Value]:
        """Yield the operands of a node that are masks, not scales."""
        name = self._view.names[node]
        for index, value in enumerate(node.inputs):
            if value is None or value in own:
                continue
            shape = self._facts.shape(value)
            condition = name == "Where" and index == 0
            mixed_in = name in _MIXES and (condition or not self._is_single(value))
            factor = name in _FACTORS and bool(shape) and shape[-1] != 1  # one learned number per head is a scale too
            if mixed_in or factor:
                yield value

    def _kinds(self, value: ir.Value) -> frozenset[str]:
        """Return the kinds of one mask; each term of a sum is classified separately."""
        kinds = self._mask_kinds.get(value)
        if kinds is None:
            kinds = frozenset(kind for term in self._terms(value) for kind in self._of_term(term))
            self._mask_kinds[value] = kinds
        return kinds

    def _terms(self, value: ir.Value) -> Iterator[ir.Value]:
        waiting, seen = [value], {value}
        while waiting:
            term = waiting.pop()
            producer = term.producer()
            name = self._view.names.get(producer, "") if producer is not None else ""
            if producer is None or producer in self._layers or name not in _MASK_MOVES | {"Add"}:
                yield term
                continue
            operands = [operand for operand in producer.inputs if operand is not None]
            for operand in operands if name == "Add" else operands[:1]:
                is_constant = self._view.dependence(operand) is Dependence.CONSTANT
                if operand not in seen and not (is_constant and self._is_single(operand)):
                    seen.add(operand)
                    waiting.append(operand)

    def _is_single(self, value: ir.Value) -> bool:
        """Return whether a value has one element."""
        shape = self._facts.shape(value)
        return shape is not None and set(shape) <= {1}

    def _of_term(self, term: ir.Value) -> Iterator[str]:
        kind, causal = self._view.dependence(term), self._causal(term)
        if causal:
            yield _CAUSAL
        if kind is Dependence.DATA:
            from_input = any(value.producer() is None for value in self._view.upward(term, self._layers))
            yield _INPUT if from_input else _COMPUTED
        elif not causal:
            yield _CONSTANT if kind is Dependence.CONSTANT else _BY_POSITION

    # The nodes of a decomposed site: from the scale of its operands to the product with the values.

    def _nodes(self, site: Site) -> tuple[ir.Node, ...]:
        """Return the two products, all nodes between them and those that scale queries and keys, in execution order."""
        first, last = site.first, site.nodes[-1]
        nodes = {*site.nodes, *self._between(first, last)}
        for value in first.inputs[:2]:
            nodes.update(self._scaling(value))
        return tuple(sorted(nodes, key=self._order.__getitem__))

    def _between(self, first: ir.Node, last: ir.Node) -> set[ir.Node]:
        """Return the nodes on the paths from one node to the other."""
        ahead = set(self._view.downward(first.outputs[0], self._layers))
        nodes: set[ir.Node] = set()
        waiting = [last]
        while waiting:
            for value in waiting.pop().inputs:
                producer = value.producer() if value is not None else None
                if producer in ahead and producer not in nodes:
                    nodes.add(producer)
                    waiting.append(producer)
        return nodes

    def _scaling(self, value: ir.Value | None) -> Iterator[ir.Node]:
        """Yield the nodes right before the product that multiply an operand by a scalar, and the moves between them."""
        moves: list[ir.Node] = []
        for producer, source in self._view.chain(value, self._layers):
            name = self._view.names[producer]
            others = [operand for operand in producer.inputs if operand is not None and operand is not source]
            if name in _FACTORS and all(map(self._is_single, others)):
                yield from (*moves, producer)
                moves = []
            elif name in ops.CASTS or name in ("Identity", "Transpose"):
                moves.append(producer)
            else:
                return

    # The number and width of the heads, as far as shapes and attributes determine them.

    def _fused_heads(self, node: ir.Node) -> HeadSizes:
        """Return the sizes of an attention operator, from its attributes and the widths of its operands."""
        query, key = self._shape(node, 0), self._shape(node, 1)
        attribute = node.attributes.get_int
        heads = attribute("num_heads", 0) or attribute("q_num_heads", 0)
        shared = attribute("kv_num_heads", 0) or heads
        size = self._head_width(node, query, heads, shared)
        if not node.domain and query is not None and len(query) == 4:  # batch, heads, length, width
            heads, size = _number(query[1]), _number(query[3])
            shared = _number(key[1]) if key is not None and len(key) == 4 else None
        if heads == shared == 1:  # they may be folded into the batch, so that the operator sees only one
            heads = shared = self._heads_after(node) or 1
        return heads or None, shared or None, size

    def _head_width(self, node: ir.Node, query: tuple[Dim, ...] | None, heads: int, shared: int) -> int | None:
        if query is not None and len(query) == 5:  # batch, length, heads, query/key/value, width
            return _number(query[4])
        widths = node.attributes.get_ints("qkv_hidden_sizes", ())
        if widths:
            return _quotient(widths[0], heads)
        slots, packed, parts = ops.attention_operands(node), query, heads
        if slots is not None and slots.key < 0:  # one weight for query, key and value
            packed, parts = self._shape(node, 1), 3 * heads
        elif len(node.inputs) < 2 or node.inputs[1] is None:
            parts = heads + 2 * shared
        return _quotient(packed[-1], parts) if packed else None

    def _decomposed_heads(self, site: Site) -> HeadSizes:
        """Return the sizes of a decomposed site, from its products and the layers before and after it."""
        scores, result = site.first, site.nodes[-1]
        size = self._contracted(scores)
        heads = self._heads_after(result) or self._heads_before(scores, size)
        heads = heads or self._heads_between(scores) or self._heads_between(result)
        return heads, _quotient(heads, self._repeated(scores)), size

    def _contracted(self, product: ir.Node) -> int | None:
        """Return how many elements a product sums over."""
        shape = self._shape(product, 0) or ()
        if product.op_type != "Einsum":
            transposed = product.attributes.get_int("transA", 0)
            return _number(shape[-2 if transposed else -1]) if len(shape) >= 2 else None
        inputs, _, output = product.attributes.get_string("equation", "").replace(" ", "").partition("->")
        first, _, second = inputs.partition(",")
        summed = [axis for axis, letter in enumerate(first) if letter in second and letter not in output]
        return _number(shape[summed[0]]) if len(summed) == 1 and len(shape) == len(first) else None

    def _heads_after(self, result: ir.Node) -> int | None:
        """Count the heads at the next layer, which reads all of them: its input width divided by that of one head."""
        values = self._facts.shape(result.outputs[0])
        width = _number(values[-1]) if values else None
        waiting, seen = [result.outputs[0]], {result.outputs[0]}
        while waiting and len(seen) < _MAX_VISITED:
            value = waiting.pop(0)
            for reader in self._view.readers(value):
                if reader in self._layers:
                    heads = _quotient(self._read(reader, value), width)
                    return heads if heads and self._fits(result, heads) else None
                output = reader.outputs[0]
                if self._view.names[reader] in _KEEPS and output not in seen:
                    seen.add(output)
                    waiting.append(output)
        return None

    def _read(self, layer: ir.Node, value: ir.Value) -> int | None:
        """Return the size of a layer's input on the axis that it sums over."""
        shape, name = self._facts.shape(value), self._view.names[layer]
        if shape is None or len(shape) < 2 or name not in ops.ALL_PRODUCTS | ops.ALL_CONVOLUTIONS:
            return None
        from_left = value is layer.inputs[0]
        return _number(shape[1] if name in ops.ALL_CONVOLUTIONS else shape[-1] if from_left else shape[-2])

    def _fits(self, result: ir.Node, heads: int) -> bool:
        """Return whether the number of matrices in a batched product is a multiple of the number of heads."""
        shape = self._facts.shape(result.outputs[0]) or ()
        numbers = [dim for dim in shape[:-2] if isinstance(dim, int)]
        if len(numbers) != len(shape[:-2]) or self._view.names[result] == "Einsum":
            return True
        return math.prod(numbers) % heads == 0

    def _heads_before(self, scores: ir.Node, size: int | None) -> int | None:
        """Count the heads at the layer that computes the queries of all heads, if only moves follow it."""
        value = scores.inputs[0]
        for node, source in itertools.islice(self._view.chain(value, self._layers), _MAX_VISITED):
            if self._view.names[node] not in _KEEPS:
                return None
            value = source
        layer, shape = value.producer() if value is not None else None, self._facts.shape(value)
        is_product = layer in self._layers and layer.op_type in ops.ALL_PRODUCTS
        return _quotient(_number(shape[-1]), size) if shape and is_product else None

    def _heads_between(self, product: ir.Node) -> int | None:
        """Return the size of the axis before rows and columns."""
        shape = self._facts.shape(product.outputs[0])
        return _number(shape[-3]) if shape is not None and len(shape) >= 4 else None

    def _repeated(self, scores: ir.Node) -> int:
        """Return how many heads of the queries share one head of the keys."""
        query, key = self._shape(scores, 0), self._shape(scores, 1)
        times = 1
        if query is not None and key is not None and scores.op_type != "Einsum":
            for one, other in zip(query[-3::-1], key[-3::-1], strict=False):
                times *= one if other == 1 and isinstance(one, int) else 1
        for node, _ in self._view.chain(scores.inputs[1], self._layers):
            name = self._view.names[node]
            if name not in ops.REPEATS | _MOVES | {"Mul", "Div"}:
                break
            times *= self._factor(node) if name in ops.REPEATS else 1
        return times

    def _factor(self, repeats: ir.Node) -> int:
        """Return how many times a node repeats its input."""
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
    """Return whole / part if both are known and it is an integer, otherwise None."""
    return whole // part if isinstance(whole, int) and part and whole and whole % part == 0 else None


def find_sites(facts: Facts) -> tuple[SiteDescription, ...]:
    """Describe all attention sites of a model in execution order; the model is not changed."""
    with gc_pause.paused():  # all objects allocated here live until the end
        view = GraphView(facts.model)
        if view.model is not facts.model:  # inlining functions made a copy
            facts = Facts(view.model)
        attention = Attention(view)
        return tuple(map(_SiteDescriber(facts, view, attention).describe, attention.sites))


# Pair the attention sites of a source with those of its optimized result: by module, then by execution order.
#
# A fused operator replaces nodes of several modules, so its module may be an ancestor of theirs.


def pair_sites(
    before: Sequence[SiteDescription],
    after: Sequence[SiteDescription],
    refusals: Iterable[Refusal] = (),
    rolled_back: Iterable[RolledBack] = (),
) -> tuple[AttentionSite, ...]:
    """Return every site once, in the order of the source; sites that only the result has come last."""
    partners = _partners(before, after)
    refused: dict[str, str] = {}
    for refusal in refusals:
        for node in refusal.nodes:
            refused.setdefault(node, refusal.reason)
    undone = {rewrite.root: f"{rewrite.pass_name} was rolled back: {rewrite.reason}" for rewrite in rolled_back}
    pairs = [(site, after[partners[index]] if index in partners else None) for index, site in enumerate(before)]
    alone = [(None, site) for index, site in enumerate(after) if index not in partners.values()]
    return tuple(_site(one, other, refused, undone) for one, other in [*pairs, *alone])


def _partners(before: Sequence[SiteDescription], after: Sequence[SiteDescription]) -> dict[int, int]:
    """Return a mapping from indices in `before` to those of their partners in `after`."""
    partners: dict[int, int] = {}
    free = list(range(len(after)))
    for nested in (False, True):
        for index, site in enumerate(before):
            fits = (other for other in free if _is_near(site.module, after[other].module, nested=nested))
            if index not in partners and (partner := next(fits, None)) is not None:
                partners[index] = partner
                free.remove(partner)
    rest = [index for index in range(len(before)) if index not in partners]
    if len(rest) == len(free):  # the modules do not match, but the numbers do
        partners.update(zip(rest, free, strict=True))
    return partners


def _is_near(one: str, other: str, *, nested: bool) -> bool:
    return one == other or (nested and (p.is_within(one, other) or p.is_within(other, one)))


def _site(
    before: SiteDescription | None, after: SiteDescription | None, refused: Mapping[str, str], undone: Mapping[str, str]
) -> AttentionSite:
    one = before or after
    assert one is not None, "a site exists before or after"
    other = after or one
    return AttentionSite(
        module=one.module,
        heads=one.heads or other.heads,
        key_value_heads=one.key_value_heads or other.key_value_heads,
        head_size=one.head_size or other.head_size,
        mask=NONE if other.mask == NONE else one.mask,  # a mask of zeros is only recognized once it is folded
        causal=one.causal,
        cached=one.cached,
        cross=one.cross,
        before=before.form if before is not None else None,
        after=after.form if after is not None else None,
        why="" if after is None or after.form.operator else undone.get(after.result) or refused.get(after.softmax, ""),
    )
