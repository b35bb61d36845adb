"""The size of a decoder's key-value cache in bytes, as a formula of the batch size and the number of tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.inputs.state import find_state
from sardonyx.ir.scopes import declared_shape
from sardonyx.records.analysis import Cache, CachePart


def cache_of_graph(model: ir.Model, sizes: Mapping[str, int]) -> Cache | None:
    """Return the cache of an ONNX graph: the outputs that are inputs of the next run."""
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    parts: list[CachePart] = []
    for state in find_state(model, inputs):
        value = model.graph.outputs[state.output]
        shape = declared_shape(value)
        if shape is None or value.dtype is None or any(dim is None for dim in shape):
            return None
        parts.append(CachePart(1, tuple(dim for dim in shape if dim is not None), value.dtype.bitwidth // 8))
    return cache_of(parts, sizes)


def cache_of(tensors: Sequence[CachePart], sizes: Mapping[str, int]) -> Cache | None:
    """Return the sum over all tensors, grouped by shape, or None if there are no tensors."""
    groups = Counter((tensor.shape, tensor.element_bytes) for tensor in tensors)
    if not groups:
        return None
    parts = tuple(CachePart(count, shape, size) for (shape, size), count in groups.items())
    values = [_value(part, sizes) for part in parts]
    known = [value for value in values if value is not None]
    return Cache(" + ".join(map(_formula, parts)), sum(known) if len(known) == len(values) else None, parts)


def _formula(part: CachePart) -> str:
    """Return the bytes of one group as a product of a number and the dynamic dimensions."""
    factors = [dim if dim.isidentifier() or dim.endswith(")") else f"({dim})" for dim in _dynamic_dims(part)]
    return " · ".join([f"{_static_bytes(part):,}", *factors])


def _static_bytes(part: CachePart) -> int:
    return part.tensors * part.element_bytes * math.prod(dim for dim in part.shape if isinstance(dim, int))


def _dynamic_dims(part: CachePart) -> list[str]:
    return [dim for dim in part.shape if isinstance(dim, str)]


def _value(part: CachePart, sizes: Mapping[str, int]) -> int | None:
    """Return the bytes of one group at these sizes, or None if a size is unknown."""
    octets = _static_bytes(part)
    for dim in _dynamic_dims(part):
        limit, _, inner = dim.removeprefix("min(").removesuffix(")").rpartition(", ")
        terms = [sizes.get(term, int(term) if term.isdecimal() else None) for term in inner.split(" + ")]
        if any(term is None for term in terms):
            return None
        total = sum(term for term in terms if term is not None)
        octets *= min(int(limit), total) if limit else total
    return octets
