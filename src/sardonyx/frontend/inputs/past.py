"""Decoders with a key-value cache: example inputs that continue a past, and the sizes of the cache.

The cache's shapes come from the module itself, which fills one. A decoder that reads an encoder's output continues with
that output, and with the keys and values that its cross-attention computed from it.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any, cast

import torch
from msgspec import Struct
from torch import Tensor, nn

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.inputs.candidates import Role, role_of
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.module_state import restoring_state
from sardonyx.frontend.running import probe, quietly, run
from sardonyx.frontend.tracing.structure import Pair, keeping_all, named_pairs, window, windows, with_pairs

PAST, SWITCH, MASK = "past_key_values", "use_cache", "attention_mask"  # parameter names of all decoders with a cache
_DECODER, _ENCODED = "decoder_", "encoder_outputs"  # the same for decoders with an encoder
_SHORTEST_PAST = 3
_HINT = "leave out `with_past`"
_SHORT_RUN, _BEYOND_WINDOW = 2, 3  # tokens of the short run, and those of the long run beyond the longest window


class _Filled(Struct, frozen=True):
    """The state of a module after reading some tokens."""

    cache: object
    pairs: Mapping[str, Pair]
    encoded: object  # the encoder's output; None if the module has no encoder


def with_past(module: nn.Module, example: Example) -> Example:
    """Return the example as the continuation of a past that the module has computed.

    The past's length differs from every other size, the mask covers the past and the new tokens, and the start of the
    past is padding in all rows but the first.

    Raises:
        UsageError: If the module takes no past, or does not continue its own.
    """
    kind, parameters = type(module).__name__, inspect.signature(module.forward).parameters
    if PAST not in parameters:
        raise UsageError(f"{kind} takes no {PAST}", hint=_HINT)
    arguments = dict(inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments)
    ids = _token_ids(arguments)
    if ids is None:
        raise UsageError(f"{kind} takes no token ids that could follow a past", hint=_HINT)
    filled = _filled(module, arguments, ids, _SHORTEST_PAST)
    length = _distinct_length(arguments, filled.pairs, new=arguments[ids].shape[1])
    if length != _SHORTEST_PAST:
        filled = _filled(module, arguments, ids, length)
    continued = _continued(arguments, ids, filled, length, parameters)
    order = [*parameters, SWITCH]
    kwargs = {name: continued[name] for name in sorted(continued, key=order.index)}
    fresh = with_pairs(filled.cache, list(filled.pairs.values()))
    refusal = probe(module, (), {**kwargs, PAST: fresh})
    if refusal is not None:
        raise UsageError(f"{kind} does not continue its own past: {reason(refusal)}", hint=_HINT) from refusal
    keys = next(iter(filled.pairs.values()))[0]
    shape, count = "x".join(map(str, keys.shape)), len(filled.pairs)
    layers = f"{count} layers of {shape}"
    if filled.encoded is not None:
        layers = f"{count // 2} layers of {shape} and their cross-attention"
    return Example((), kwargs, (*example.notes, f"{PAST}: {layers}, computed from {length} tokens"))


def _token_ids(named: Mapping[str, Any]) -> str | None:
    """Return the name of the argument with the decoded tokens, or None."""
    ids = [name for name, value in named.items() if role_of(name) is Role.IDS and isinstance(value, Tensor)]
    return next((name for name in ids if name.startswith(_DECODER)), ids[0] if ids else None)


def _filled(module: nn.Module, named: Mapping[str, Any], ids: str, length: int) -> _Filled:
    """Return the cache of the module after reading some tokens, with every position in it."""
    tokens = cast("Tensor", named[ids])
    read = tokens[:, torch.arange(length) % tokens.shape[1]]
    follow = {  # an entry for each decoded token: masks, segments, positions, the tokens
        name
        for name, value in named.items()
        if (name.startswith(_DECODER) if ids.startswith(_DECODER) else _has_shape_of(value, tokens))
    }
    rest = {name: value for name, value in named.items() if name not in {*follow, SWITCH}}
    cache, encoded = _read(module, {**rest, ids: read, SWITCH: True})
    if window(cache) is not None:
        cache, encoded = _read(module, {**rest, ids: read, SWITCH: True, PAST: keeping_all(cache)})
    pairs = named_pairs(cache)
    if pairs is None:
        kind = type(module).__name__
        raise UsageError(
            f"the {type(cache).__name__} of {kind} does not have keys and values in every layer, which is required",
            hint=_HINT,
        )
    detached = {name: (keys.detach().clone(), values.detach().clone()) for name, (keys, values) in pairs.items()}
    return _Filled(with_pairs(cache, list(detached.values())), detached, encoded)


def _read(module: nn.Module, arguments: Mapping[str, Any]) -> tuple[object, object]:
    """Return the cache that a call returns, and the output of the module's encoder if it ran."""
    kind, encoded = type(module).__name__, list[object]()
    get_encoder = getattr(module, "get_encoder", None) if any(name.startswith(_DECODER) for name in arguments) else None
    encoder: Any = get_encoder() if callable(get_encoder) else None

    def keep(_module: nn.Module, _args: object, output: object) -> None:
        encoded.append(output)

    hook = encoder.register_forward_hook(keep) if encoder is not None else None
    try:
        output = run(module, (), arguments)
    except Exception as error:  # a forward may raise anything; it is reported
        raise UsageError(f"{kind} cannot fill a cache: {reason(error)}", hint=_HINT) from error
    finally:
        if hook is not None:
            hook.remove()
    cache = getattr(output, PAST, None)
    if cache is None:
        raise UsageError(f"{kind} returns no cache", hint=_HINT)
    return cache, encoded[0] if encoded else None


def _has_shape_of(value: Any, tokens: Tensor) -> bool:
    """Return whether a value has an integer for each token."""
    return isinstance(value, Tensor) and not value.is_floating_point() and value.shape[:2] == tokens.shape


def _distinct_length(named: Mapping[str, Any], pairs: Mapping[str, Pair], *, new: int) -> int:
    """Return the shortest length of a past that, alone and with the new tokens, differs from all other sizes."""
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    sizes = {size for tensor in tensors for size in tensor.shape}
    for name, pair in pairs.items():
        for tensor in pair:
            past = () if name.endswith("encoder") else (tensor.dim() - 2,)
            sizes.update(size for axis, size in enumerate(tensor.shape) if axis not in past)
    return next(length for length in range(_SHORTEST_PAST, 999) if not {length, length + new} & sizes)


def _continued(
    named: Mapping[str, Any], ids: str, filled: _Filled, length: int, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the call that reads the example's tokens after the past."""
    tokens = cast("Tensor", named[ids])
    continued = {**named, PAST: filled.cache, SWITCH: True}
    if filled.encoded is not None:  # the encoder's input is not needed any more, but its mask is
        kept = {name for name in continued if name.startswith(_DECODER)} | {PAST, SWITCH, MASK}
        continued = {name: value for name, value in continued.items() if name in kept} | {_ENCODED: filled.encoded}
    prefix = _DECODER if ids.startswith(_DECODER) else ""
    mask_name = prefix + MASK
    if mask_name in parameters:
        like = named.get(mask_name)
        mask = torch.ones(tokens.shape[0], length + tokens.shape[1], dtype=torch.int64)
        mask[1:, : length - 1] = torch.arange(length - 1) > 0
        continued[mask_name] = mask.to(like.dtype) if isinstance(like, Tensor) else mask
    for name, value in named.items():
        if role_of(name) is Role.POSITIONS and name.startswith(prefix) and isinstance(value, Tensor):
            continued[name] = value + length
    return continued


class Cached(Struct, frozen=True):
    """One tensor of a cache; `None` is the axis of positions."""

    shape: tuple[int | None, ...]
    kept: int | None  # the maximum number of positions; None if unlimited
    element_bytes: int


class CacheSizes(Struct, frozen=True):
    """The tensors of a cache, and the example's batch size and number of tokens."""

    tensors: tuple[Cached, ...]
    batch: int
    tokens: int


def cache_sizes(module: nn.Module, example: Example) -> CacheSizes | None:
    """Return the sizes of a decoder's cache; None for a module without one, or one that reads values.

    The module runs on the meta device at two lengths. The axis that grows with the tokens is the axis of positions; one
    that stops growing keeps a window of them.
    """
    if not {PAST, SWITCH} <= inspect.signature(module.forward).parameters.keys():
        return None
    named = dict(inspect.signature(module.forward).bind(*example.args, **example.kwargs).arguments)
    ids = _token_ids(named)
    if ids is None:
        return None
    try:
        with torch.no_grad(), quietly(), restoring_state(module):
            few = _cache_filled(module, named, ids, _SHORT_RUN)
            length = max(windows(few), default=0) + _SHORT_RUN + _BEYOND_WINDOW
            more = _cache_filled(module, named, ids, length)
    except Exception:  # a forward may raise anything on the meta device
        return None
    short, long = named_pairs(few), named_pairs(more)
    if short is None or long is None:
        return None
    cached: list[Cached] = []
    for one, other in zip(itertools.chain(*short.values()), itertools.chain(*long.values()), strict=True):
        sizes = list(zip(one.shape, other.shape, strict=True))
        kept = next((b for a, b in sizes if a != b and b != length), None)
        cached.append(Cached(tuple(a if a == b else None for a, b in sizes), kept, one.element_size()))
    return CacheSizes(tuple(cached), named[ids].shape[0], named[ids].shape[1])


def _cache_filled(module: nn.Module, named: Mapping[str, Any], ids: str, length: int) -> object:
    """Return the cache of the module after reading `length` tokens, on the meta device."""
    tokens = named[ids]
    arguments = {
        name: _on_meta(value) for name, value in named.items() if name == ids or not _has_shape_of(value, tokens)
    }
    arguments |= {ids: torch.zeros(tokens.shape[0], length, dtype=tokens.dtype, device="meta"), SWITCH: True}
    state = {name: _on_meta(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    return getattr(torch.func.functional_call(module, state, (), arguments), PAST, None)


def _on_meta(value: Any) -> Any:
    return value.detach().to("meta") if isinstance(value, Tensor) else value
