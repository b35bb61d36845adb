"""Count how often each way of mixing positions occurs in a model: the numbers that a fingerprint is based on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator

import onnx_ir as ir
from msgspec import Struct

from sardonyx.analysis.fingerprint.attention import Attention
from sardonyx.analysis.fingerprint.graph_view import NEAR, GraphView, above
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, LOOPS, PARTS, POOLS, RECURRENT
from sardonyx.ir.scopes import bodies
from sardonyx.records.inspection import Features

_TRANSFORMS = frozenset({"DFT", "STFT", "Rfft", "Irfft"})
_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})
_COUNTED = ALL_CONVOLUTIONS | ALL_PRODUCTS | POOLS | _TRANSFORMS | _LOOKUPS
_RECURRENT = RECURRENT | {"AttnLSTM", "DynamicQuantizeLSTM"}
_MIN_STEPS = 4  # an unrolled recurrence has at least this many steps


class Window(Struct, frozen=True):
    """The kernel sizes and strides of a convolution or pooling, of the axes on which the kernel is wider than one."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node) -> Window:
        """Return the window of a node; without `kernel_shape` it is taken from the shape of the weight."""
        sizes = tuple(node.attributes.get_ints("kernel_shape", ())) or _spatial_dims(node)
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
    sites = attention.sites
    in_sites = {node for site in sites for node in site.nodes}
    before_attention = above(sites[0].first) if sites else set[ir.Node]()
    counts: Counter[str] = Counter()
    for node, name in view.names.items():
        if name in _COUNTED and node not in in_sites and any(map(view.is_data, node.outputs)):
            counts.update(_features_of(node, view, attention, node in before_attention))
    return Features(
        attention=len(sites),
        causal=sum(site.causal for site in sites),
        cached=sum(site.cached for site in sites),
        cross=sum(site.cross for site in sites),
        pooling=attention.pooling,
        stem_convolutions=counts["stem"],
        convolutions=counts["convolution"],
        flat_convolutions=counts["flat"],
        patches=counts["patches"],
        pictures=counts["picture"],
        windows=counts["window"],
        products=counts["product"],
        mutual_products=counts["activation product"],
        lookups=counts["lookup"],
        recurrences=_count_recurrences(view, attention.layers),
        transforms=counts["transform"],
    )


def _features_of(node: ir.Node, view: GraphView, attention: Attention, stem: bool) -> Iterator[str]:
    """Yield the features that one node counts towards."""
    name = view.names[node]
    if name in ALL_CONVOLUTIONS:
        yield from _features_of_convolution(Window.of(node), stem)
    elif name in ALL_PRODUCTS:
        yield "activation product" if attention.is_activation_product(node) else "product"
    elif name in POOLS and Window.of(node).overlaps and set(Window.of(node).strides) == {1}:
        yield "window"
    elif name in _LOOKUPS and not view.is_data(node.inputs[0]) and view.is_data(node.inputs[1]):
        yield "lookup"
    elif name in _TRANSFORMS:
        yield "transform"


def _features_of_convolution(window: Window, stem: bool) -> Iterator[str]:
    if not window.sizes:
        yield "product"  # one position at a time
        return
    if len(window.sizes) > 1:
        yield "picture"
    if not window.overlaps:
        yield "patches"
        return
    yield "stem" if stem else "convolution"
    if len(window.sizes) == 1:
        yield "flat"


def _spatial_dims(node: ir.Node) -> tuple[int, ...]:
    """Return the dimensions of a convolution's weight after its channels, as far as they are known."""
    weight = node.inputs[3 if node.op_type == "QLinearConv" else 1] if len(node.inputs) > 1 else None
    shape = weight.shape if weight is not None else None
    return tuple(dim for dim in shape[2:] if isinstance(dim, int)) if shape is not None else ()


# A recurrence carries a state from step to step: an operator, a loop with layers in its body, or unrolled steps.


def _count_recurrences(view: GraphView, layers: Container[ir.Node]) -> int:
    """Count the recurrences of a model; an unrolled one counts once."""
    explicit = sum(
        name in _RECURRENT or (name in LOOPS and any(inner in layers for _, body in bodies(node) for inner in body))
        for node, name in view.names.items()
    )
    return explicit + _count_unrolled(view, layers)


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
        if node in layers:
            for weight in node.inputs[:2]:
                if weight is not None and not view.is_data(weight):
                    uses[_root(weight)].append(node)
    return {node for nodes in uses.values() if len(nodes) < _MIN_STEPS for node in nodes}


def _root(weight: ir.Value) -> ir.Value:
    """Return the constant that a weight is computed from: exporters transpose it again at every use."""
    producer = weight.producer()
    while producer is not None and producer.inputs and producer.inputs[0] is not None:
        weight = producer.inputs[0]
        producer = weight.producer()
    return weight


def _join(view: GraphView, piece: ir.Value) -> ir.Node | None:
    """Return the nearest node that combines a slice with other data, otherwise None."""
    for _ in range(NEAR):
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
        any(value.producer() in steps for source in view.data(node) for value in view.upward(source, stop, NEAR))
        for node in steps
    )
    return dependent >= _MIN_STEPS - 1
