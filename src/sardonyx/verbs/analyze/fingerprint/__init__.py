"""Guess the architecture family of a model from its structure alone: names and weights are not read, nothing is run.

A few rules in order, each with its evidence in words, look at what mixes positions (attention, convolutions,
recurrences), never at sizes: two layers and two hundred layers of one kind are the same family. Confidence is the share
of the mixing operations that support the family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator

import onnx_ir as ir
from msgspec import Struct

from sardonyx.common import gc_pause
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, LOOPS, PARTS, POOLS, RECURRENT
from sardonyx.ir.scopes import bodies
from sardonyx.records.inspection import Family, Features, Fingerprint
from sardonyx.verbs.analyze.fingerprint.attention import NEAR_VALUES, Attention, GraphView, above

# Count how often each way of mixing positions occurs in a model: the numbers that a fingerprint is based on.

_TRANSFORMS = frozenset({"DFT", "STFT", "Rfft", "Irfft"})
_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})
_COUNTED = ALL_CONVOLUTIONS | ALL_PRODUCTS | POOLS | _TRANSFORMS | _LOOKUPS
_RECURRENT = RECURRENT | {"AttnLSTM", "DynamicQuantizeLSTM"}
_FEATURES = (
    "stem_convolutions", "convolutions", "flat_convolutions", "patches", "pictures", "windows", "products",
    "mutual_products", "lookups", "transforms",
)  # fmt: skip
_MIN_STEPS = 4  # an unrolled recurrence has at least this many steps


class Window(Struct, frozen=True):
    """The kernel sizes and strides of a convolution or pooling, of the axes on which the kernel is wider than one."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node) -> Window:
        """Return the window of a node; without `kernel_shape` it is taken from the shape of the weight."""
        weight = node.inputs[3 if node.op_type == "QLinearConv" else 1] if len(node.inputs) > 1 else None
        shape = (weight.shape if weight is not None else None) or ()
        known = tuple(dim for dim in shape[2:] if isinstance(dim, int))
        sizes = tuple(node.attributes.get_ints("kernel_shape", ())) or known
        strides = tuple(node.attributes.get_ints("strides", ())) or (1,) * len(sizes)
        wide = [(size, stride) for size, stride in zip(sizes, strides, strict=False) if size > 1]
        return cls(tuple(size for size, _ in wide), tuple(stride for _, stride in wide))

    @property
    def overlaps(self) -> bool:
        """Whether neighbouring positions share inputs."""
        return any(size > stride for size, stride in zip(self.sizes, self.strides, strict=True))


def features(model: ir.Model) -> Features:
    """Return the counts of one model."""
    view = GraphView(model)
    attention = Attention(view)
    sites, layers = attention.sites, attention.layers
    in_sites = {node for site in sites for node in site.nodes}
    before_attention = above(sites[0].first) if sites else set[ir.Node]()
    counts: Counter[str] = Counter()
    explicit = 0
    for node, name in view.names.items():
        if name in _COUNTED and node not in in_sites and any(map(view.is_data, node.outputs)):
            counts.update(_features_of(node, view, attention, node in before_attention))
        has_layers = name in LOOPS and any(inner in layers for _, body in bodies(node) for inner in body)
        explicit += name in _RECURRENT or has_layers
    return Features(
        attention=len(sites),
        causal=sum(site.causal for site in sites),
        cached=sum(site.cached for site in sites),
        cross=sum(site.cross for site in sites),
        pooling=attention.pooling,
        recurrences=explicit + _count_unrolled(view, layers),
        **{feature: counts[feature] for feature in _FEATURES},
    )


def _features_of(node: ir.Node, view: GraphView, attention: Attention, stem: bool) -> Iterator[str]:
    """Yield the features that one node counts towards."""
    name = view.names[node]
    if name in ALL_CONVOLUTIONS:
        window = Window.of(node)
        if not window.sizes:
            yield "products"  # one position at a time
            return
        if len(window.sizes) > 1:
            yield "pictures"
        yield "patches" if not window.overlaps else "stem_convolutions" if stem else "convolutions"
        if window.overlaps and len(window.sizes) == 1:
            yield "flat_convolutions"
    elif name in ALL_PRODUCTS:
        yield "mutual_products" if attention.is_activation_product(node) else "products"
    elif name in POOLS and Window.of(node).overlaps and set(Window.of(node).strides) == {1}:
        yield "windows"
    elif name in _LOOKUPS and not view.is_data(node.inputs[0]) and view.is_data(node.inputs[1]):
        yield "lookups"
    elif name in _TRANSFORMS:
        yield "transforms"


# A recurrence carries a state from step to step: an operator, a loop with layers in its body, or unrolled steps.


def _count_unrolled(view: GraphView, layers: Container[ir.Node]) -> int:
    """Count the values whose slices are processed in turn, each together with the result of the step before."""
    slices: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    for node, name in view.names.items():
        if name in PARTS and node not in layers and node.inputs[0] is not None and view.is_data(node.inputs[0]):
            slices[node.inputs[0]].extend(node.outputs)
    candidates = [pieces for pieces in slices.values() if len(pieces) >= _MIN_STEPS]
    unshared = _unshared_layers(view, layers) if candidates else set[ir.Node]()
    return sum(_is_chain(view, [_join(view, piece) for piece in pieces], unshared) for pieces in candidates)


def _unshared_layers(view: GraphView, layers: Container[ir.Node]) -> set[ir.Node]:
    """Return the layers whose weights are used too rarely to be the steps of a recurrence."""
    uses: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for node in view.names:
        for weight in node.inputs[:2] if node in layers else ():
            if weight is None or view.is_data(weight):
                continue
            # The constant that it is computed from: exporters transpose it again at every use.
            while (producer := weight.producer()) is not None and producer.inputs and producer.inputs[0] is not None:
                weight = producer.inputs[0]
            uses[weight].append(node)
    return {node for nodes in uses.values() if len(nodes) < _MIN_STEPS for node in nodes}


def _join(view: GraphView, piece: ir.Value) -> ir.Node | None:
    """Return the nearest node that combines a slice with other data, otherwise None."""
    for _ in range(NEAR_VALUES):
        readers = view.readers(piece)
        join = next((node for node in readers if sum(1 for _ in view.data(node)) > 1), None)
        if join is not None or not readers:
            return join
        piece = readers[0].outputs[0]
    return None


def _is_chain(view: GraphView, joins: list[ir.Node | None], unshared: set[ir.Node]) -> bool:
    """Return whether at least `_MIN_STEPS` nodes depend on one another in a chain without layers of their own."""
    steps = {node for node in joins if node is not None}
    if len(steps) < _MIN_STEPS:
        return False
    stop = steps | unshared
    dependent = sum(
        any(value.producer() in steps for source in view.data(node) for value in view.upward(source, stop, NEAR_VALUES))
        for node in steps
    )
    return dependent >= _MIN_STEPS - 1


_MAX_SINGLE_CONFIDENCE = 0.9  # the highest confidence that a single attention block, convolution or product gives


class Thresholds(Struct, frozen=True):
    """The numbers that separate one family from the next."""

    stem: int = 3  # overlapping convolutions over images that a transformer may have around it
    few: float = 0.25  # convolutions per attention block, up to which they are ignored
    rare: float = 0.05  # attention blocks per convolution, below which the attention is ignored
    reads: float = 0.2  # least share of cross-attention in an encoder-decoder
    hides: float = 0.5  # least share of causal self-attention in a decoder
    sparse: float = 0.125  # convolutions per product with weights, below which a network without attention is an MLP


THRESHOLDS = Thresholds()


def classify(counts: Features, at: Thresholds = THRESHOLDS) -> Fingerprint:
    """Return the family that the features indicate, the confidence and the evidence."""
    if counts.attention and counts.recurrences <= counts.attention:
        family, share, evidence = _with_attention(counts, at)
    elif counts.recurrences:
        family, evidence = Family.RECURRENT, [_count(counts.recurrences, "recurrence")]
        share = counts.recurrences / (counts.recurrences + counts.attention)
        share *= 1.0 if counts.convolutions <= 4 * counts.recurrences else 0.7
    else:
        family, share, evidence = _feed_forward(counts, at)
    return Fingerprint(family, round(share, 2), tuple(evidence), counts)


def _with_attention(counts: Features, at: Thresholds) -> tuple[Family, float, list[str]]:
    sites = counts.attention
    evidence = [_count(sites, "attention block")]
    convolutions = counts.convolutions  # that form stages: not a stem along one axis, and not few around a transformer
    if counts.pictures:
        total = counts.stem_convolutions + counts.convolutions
        convolutions = total if total > at.stem else 0
    self_attention = sites - counts.cross
    highest = 1.0 if sites > 1 else _MAX_SINGLE_CONFIDENCE
    if sites < at.rare * convolutions:
        return Family.CONVOLUTIONAL, 1 - sites / convolutions, [_count(convolutions, "convolution"), *evidence]
    if convolutions > at.few * sites:
        evidence.append(_count(convolutions, "convolution") + " besides patches and a stem")
        return Family.HYBRID, highest * min(1.0, 0.5 + min(convolutions, sites) / (convolutions + sites)), evidence
    if counts.cross >= at.reads * sites:
        evidence.append(f"{counts.cross} with keys from another stream than the queries")
        evidence += [f"{counts.causal} causal"] if counts.causal else []
        return Family.ENCODER_DECODER, highest * (1.0 if counts.causal else 0.7), evidence
    if counts.causal >= at.hides * self_attention:
        evidence.append("all causal" if counts.causal == sites else f"{counts.causal} of them causal")
        evidence += [f"{counts.cached} with a key cache"] if counts.cached else []
        return Family.DECODER, highest * counts.causal / sites, evidence
    evidence.append("none causal" if not counts.causal else f"only {counts.causal} causal")
    share = highest * (1 - counts.causal / sites)
    if counts.pictures:
        evidence.append("over patches of an image")
        return Family.VISION_TRANSFORMER, share, evidence
    evidence += [_count(counts.lookups, "embedding lookup")] if counts.lookups else []
    return Family.ENCODER, share, evidence


def _feed_forward(counts: Features, at: Thresholds) -> tuple[Family, float, list[str]]:
    convolutions = counts.convolutions + counts.windows
    if counts.transforms:
        return Family.OTHER, 0.5, [_count(counts.transforms, "Fourier transform")]
    if convolutions > at.stem and counts.pooling >= max(1.0, at.few * convolutions):
        weighting = _count(counts.pooling, "softmax", "softmaxes") + " that weigh positions"
        return Family.HYBRID, 0.7, [_count(convolutions, "convolution"), weighting]
    if convolutions and convolutions >= at.sparse * counts.products:
        evidence = [_count(convolutions, "convolution"), "no attention, no recurrence"]
        return Family.CONVOLUTIONAL, 1.0 if convolutions > 1 else _MAX_SINGLE_CONFIDENCE, evidence
    if counts.mutual_products >= max(1.0, at.few * counts.products):
        return Family.OTHER, 0.5, [_count(counts.mutual_products, "product") + " of two activations outside attention"]
    if counts.products:
        evidence = [
            _count(counts.products, "product") + " with weights",
            "no attention, no recurrence, few convolutions",
        ]
        return Family.MLP, 1.0 if counts.products > 1 else _MAX_SINGLE_CONFIDENCE, evidence
    return Family.OTHER, 0.5, ["no attention, convolution, recurrence or product with weights"]


def _count(count: int, thing: str, plural: str = "") -> str:
    return f"{count} {thing if count == 1 else plural or thing + 's'}"


def fingerprint(model: ir.Model) -> Fingerprint:
    """Return the family of a model, the confidence of the guess and the evidence; the model is not changed."""
    with gc_pause.paused():  # all objects allocated here live until the end
        return classify(features(model))
