"""Decoders with a key/value cache: an example that continues a past.

The cache's shapes come from the module itself, which is asked to fill one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from sardonyx.errors import UsageError
from sardonyx.source.inputs.candidates import Role, role_of
from sardonyx.source.inputs.examples import Example
from sardonyx.source.running import probe, run
from sardonyx.source.tracing.cache import Pair, join_cache, split_cache
from sardonyx.source.words import reason

PAST, SWITCH, MASK = "past_key_values", "use_cache", "attention_mask"  # what every cached decoder calls them
_SHORTEST_PAST = 3
_HINT = "leave out --with-past"


def with_past(module: nn.Module, example: Example) -> Example:
    """The example as the continuation of a past that the module itself has read.

    The past's length differs from every other size, the mask covers the past and the new tokens, and the start of the
    past is padding in all rows but the first.
    """
    kind, parameters = type(module).__name__, inspect.signature(module.forward).parameters
    if PAST not in parameters:
        raise UsageError(f"{kind} takes no {PAST}", hint=_HINT)
    named = dict(inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments)
    ids = next((name for name, value in named.items() if role_of(name) is Role.IDS and isinstance(value, Tensor)), None)
    if ids is None:
        raise UsageError(f"{kind} reads no token ids that could follow a past", hint=_HINT)
    pairs, cache = _filled(module, named, ids, _SHORTEST_PAST)
    length = _unlike(named, pairs, new=named[ids].shape[1])
    if length != _SHORTEST_PAST:
        pairs, cache = _filled(module, named, ids, length)
    continued = _continued(named, ids, cache, length, has_mask=MASK in parameters)
    order = [*parameters, SWITCH]
    kwargs = {name: continued[name] for name in sorted(continued, key=order.index)}
    refusal = probe(module, (), {**kwargs, PAST: join_cache(cache, pairs)})
    if refusal is not None:
        raise UsageError(f"{kind} does not continue its own past: {reason(refusal)}", hint=_HINT) from refusal
    shape = "x".join(map(str, pairs[0][0].shape))
    return Example((), kwargs, (*example.notes, f"{PAST}: {len(pairs)} layers of {shape}, read from {length} tokens"))


def _filled(module: nn.Module, named: Mapping[str, Any], ids: str, length: int) -> tuple[list[Pair], object]:
    """The cache that the module leaves after reading some tokens."""
    tokens = cast("Tensor", named[ids])
    some = tokens[:, torch.arange(length) % tokens.shape[1]]
    rest = {name: value for name, value in named.items() if not _is_text(name, value, tokens) and name != SWITCH}
    kind = type(module).__name__
    try:
        answer = run(module, (), {**rest, ids: some, SWITCH: True})
    except Exception as error:  # a forward may raise anything; it is reported, not hidden
        raise UsageError(f"{kind} cannot fill a cache: {reason(error)}", hint=_HINT) from error
    cache = getattr(answer, PAST, None)
    if cache is None:
        raise UsageError(f"{kind} returns no cache", hint="is it a decoder? " + _HINT)
    pairs = split_cache(cache)
    if pairs is None:
        raise UsageError(
            f"the {type(cache).__name__} of {kind} is more than one list of keys and values, which is not supported",
            hint=_HINT,
        )
    detached = [(keys.detach().clone(), values.detach().clone()) for keys, values in pairs]
    return detached, join_cache(cache, detached)


def _is_text(name: str, value: Any, tokens: Tensor) -> bool:
    """Whether an argument runs along the tokens: masks, segments, positions and the tokens themselves."""
    return isinstance(value, Tensor) and not value.is_floating_point() and value.shape[:2] == tokens.shape


def _unlike(named: Mapping[str, Any], pairs: Sequence[Pair], *, new: int) -> int:
    """The shortest past whose length, alone and with the new tokens, is no other size here."""
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    sizes = {size for tensor in tensors for size in tensor.shape}
    for keys, values in pairs:
        sizes.update(*(set(tensor.shape[:-2]) | {tensor.shape[-1]} for tensor in (keys, values)))
    return next(length for length in range(_SHORTEST_PAST, 99) if not {length, length + new} & sizes)


def _continued(named: Mapping[str, Any], ids: str, cache: object, length: int, *, has_mask: bool) -> dict[str, Any]:
    tokens = cast("Tensor", named[ids])
    continued = {**named, PAST: cache, SWITCH: True}
    if has_mask:
        like = named.get(MASK)
        mask = torch.ones(tokens.shape[0], length + tokens.shape[1], dtype=torch.int64)
        mask[1:, : length - 1] = torch.arange(length - 1) > 0
        continued[MASK] = mask.to(like.dtype) if isinstance(like, Tensor) else mask
    for name, value in named.items():
        if role_of(name) is Role.POSITIONS and isinstance(value, Tensor):
            continued[name] = value + length
    return continued
