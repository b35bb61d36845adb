"""The cache of a torch module: its sizes as formulas of the batch and of the tokens it has read."""

from __future__ import annotations

from torch import nn

from sardonyx.analysis_record import Cache, CachePart
from sardonyx.analyzing.caches import cache_of
from sardonyx.source.inputs.cache_sizes import Cached, cache_sizes
from sardonyx.source.inputs.examples import Example

_TOKENS = "past_sequence + sequence"


def cache_of_module(module: nn.Module, example: Example) -> Cache | None:
    """The cache that a torch module keeps, at the example's sizes; None where it keeps none."""
    found = cache_sizes(module, example)
    if found is None:
        return None
    sizes = {"batch": found.batch, "past_sequence": 0, "sequence": found.tokens}
    return cache_of([_part(each, found.batch) for each in found.tensors], sizes)


def _part(tensor: Cached, batch: int) -> CachePart:
    length = _TOKENS if tensor.kept is None else f"min({tensor.kept}, {_TOKENS})"
    first: int | str = "batch" if tensor.shape[0] == batch else (tensor.shape[0] or length)
    return CachePart(1, (first, *(size or length for size in tensor.shape[1:])), tensor.element_bytes)
