"""The sizes of the cache that a decoder keeps, found by running it without data at two lengths.

What grows with the tokens is the axis of positions; what stops growing keeps a window of them. No family is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sardonyx.source.inputs.candidates import Role, role_of
from sardonyx.source.inputs.examples import Example
from sardonyx.source.inputs.past import PAST, SWITCH
from sardonyx.source.quiet import quietly
from sardonyx.source.tracing.cache import named_pairs, windows
from sardonyx.source.untouched import left_as_it_was

_FEW, _MORE = 2, 3  # tokens of the short run, and those of the long one beyond the longest window


@dataclass(frozen=True, slots=True)
class Cached:
    """One tensor of a cache; `None` is the axis of positions."""

    shape: tuple[int | None, ...]
    kept: int | None  # at most so many positions; None: all of them
    element_bytes: int


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """The tensors of a cache, and the batch and the tokens that the example has."""

    tensors: tuple[Cached, ...]
    batch: int
    tokens: int


def cache_sizes(module: nn.Module, example: Example) -> CacheSizes | None:
    """The cache of a decoder; None for a module that keeps none, or one that looks at its data."""
    if not {PAST, SWITCH} <= inspect.signature(module.forward).parameters.keys():
        return None
    named = dict(inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments)
    texts = [name for name, value in named.items() if role_of(name) is Role.IDS and isinstance(value, Tensor)]
    if not texts:
        return None
    ids = next((name for name in texts if name.startswith("decoder_")), texts[0])
    try:
        with torch.no_grad(), quietly(), left_as_it_was(module):
            few = _filled(module, named, ids, _FEW)
            length = max(windows(few), default=0) + _FEW + _MORE
            more = _filled(module, named, ids, length)
    except Exception:  # a forward may raise anything without data; then nothing is known of its cache
        return None
    short, long = named_pairs(few), named_pairs(more)
    if short is None or long is None:
        return None
    pairs = zip(short.values(), long.values(), strict=True)
    found = [_cached(*tensors, length) for one, other in pairs for tensors in zip(one, other, strict=True)]
    return CacheSizes(tuple(found), named[ids].shape[0], named[ids].shape[1])


def _filled(module: nn.Module, named: Mapping[str, Any], ids: str, length: int) -> object:
    """The cache that the module leaves after reading so many tokens, all tensors without data."""
    tokens = named[ids]
    arguments = {name: _bare(value) for name, value in named.items() if name == ids or not _follows(value, tokens)}
    arguments |= {ids: torch.zeros(tokens.shape[0], length, dtype=tokens.dtype, device="meta"), SWITCH: True}
    state = {name: _bare(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    return getattr(torch.func.functional_call(module, state, (), arguments), PAST, None)


def _bare(value: Any) -> Any:
    return value.detach().to("meta") if isinstance(value, Tensor) else value


def _follows(value: Any, tokens: Tensor) -> bool:
    """Whether an argument runs along the tokens, as masks and positions do: it follows from them where it is absent."""
    return isinstance(value, Tensor) and not value.is_floating_point() and value.shape[:2] == tokens.shape


def _cached(short: Tensor, long: Tensor, length: int) -> Cached:
    shape = tuple(one if one == other else None for one, other in zip(short.shape, long.shape, strict=True))
    kept = [other for one, other in zip(short.shape, long.shape, strict=True) if one != other and other != length]
    return Cached(shape, kept[0] if kept else None, short.element_size())
