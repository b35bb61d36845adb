"""How often each way of mixing positions occurs in a model: the numbers a fingerprint is told by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.analysis.fingerprint.attention import Attention
from sardonyx.analysis.fingerprint.graph_reading import Reading, above
from sardonyx.analysis.fingerprint.recurrence import count_recurrences
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, POOLS
from sardonyx.records.inspection import Features

_TRANSFORMS = frozenset({"DFT", "STFT", "Rfft", "Irfft"})
_LOOKUPS = frozenset({"Gather", "GatherBlockQuantized"})
_SPEAKING = ALL_CONVOLUTIONS | ALL_PRODUCTS | POOLS | _TRANSFORMS | _LOOKUPS


@dataclass(frozen=True, slots=True)
class Window:
    """What a convolution or a pooling sees at once, and how far it moves; only axes it is wider than one on."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node) -> Window:
        """The window of a node; of a convolution that does not say, the spatial dims of its weight."""
        sizes = tuple(node.attributes.get_ints("kernel_shape", ())) or _spatial_dims(node)
        strides = tuple(node.attributes.get_ints("strides", ())) or (1,) * len(sizes)
        wide = [(size, stride) for size, stride in zip(sizes, strides, strict=False) if size > 1]
        return cls(tuple(size for size, _ in wide), tuple(stride for _, stride in wide))

    @property
    def overlaps(self) -> bool:
        """Whether neighbours see some of the same."""
        return any(size > stride for size, stride in zip(self.sizes, self.strides, strict=True))


def features(model: ir.Model) -> Features:
    """Read a model once and count."""
    reading = Reading(model)
    attention = Attention(reading)
    sites = attention.sites
    parts = {node for site in sites for node in site.nodes}
    before = above(sites[0].first) if sites else set[ir.Node]()
    counts: Counter[str] = Counter()
    for node, name in reading.names.items():
        if name in _SPEAKING and node not in parts and any(map(reading.is_data, node.outputs)):
            counts.update(_says(node, reading, attention, node in before))
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
        mutual_products=counts["mutual"],
        lookups=counts["lookup"],
        recurrences=count_recurrences(reading, attention.layers),
        transforms=counts["transform"],
    )


def _says(node: ir.Node, reading: Reading, attention: Attention, stem: bool) -> Iterator[str]:
    """What a node speaks for."""
    name = reading.names[node]
    if name in ALL_CONVOLUTIONS:
        yield from _of_convolution(Window.of(node), stem)
    elif name in ALL_PRODUCTS:
        yield "mutual" if attention.mutual(node) else "product"
    elif name in POOLS and Window.of(node).overlaps and set(Window.of(node).strides) == {1}:
        yield "window"
    elif name in _LOOKUPS and not reading.is_data(node.inputs[0]) and reading.is_data(node.inputs[1]):
        yield "lookup"
    elif name in _TRANSFORMS:
        yield "transform"


def _of_convolution(window: Window, stem: bool) -> Iterator[str]:
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
    """The dims of a convolution's weight behind its channels, where the file knows them."""
    weight = node.inputs[3 if node.op_type == "QLinearConv" else 1] if len(node.inputs) > 1 else None
    shape = weight.shape if weight is not None else None
    return tuple(dim for dim in shape[2:] if isinstance(dim, int)) if shape is not None else ()
