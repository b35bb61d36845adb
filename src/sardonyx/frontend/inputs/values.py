"""Generates values for example inputs: ids from the whole vocabulary, masks with padding, floats of both signs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import Tensor

from sardonyx.frontend.inputs.candidates import Candidate, Role
from sardonyx.frontend.inputs.facts import Facts

_MODALITIES = {"image": 1, "video": 2, "audio": 3}  # segment ids of tokens that are not text


class Slot(Struct, frozen=True):
    """Placeholders in a text that another input fills: the same number of one token in every row."""

    kind: str  # "image" …
    token: int
    count: int


def generate(
    candidate: Candidate, facts: Facts, generator: torch.Generator, *, padded: bool, slots: Sequence[Slot] = ()
) -> Tensor:
    """Generate one input; `padded` if a mask hides the ends of some rows, `slots` are placeholders in the text."""
    spec = candidate.spec
    dtype: torch.dtype = getattr(torch, spec.dtype)
    shape = spec.shape
    if candidate.role is Role.SEGMENTS and slots:
        return _filled(torch.zeros(shape, dtype=dtype), slots, [_MODALITIES.get(slot.kind, 1) for slot in slots])
    if candidate.role is Role.MASK and len(shape) >= 2:
        return _mask(shape).to(dtype)
    if candidate.role is Role.BOXES and shape[-1:] == (4,):
        return _boxes(shape, dtype, candidate.high, generator)
    if candidate.role is Role.POSITIONS and shape:
        return torch.arange(shape[-1]).expand(shape).clone().to(dtype)
    if candidate.role is Role.LENGTHS and candidate.high and len(shape) == 1:
        return torch.tensor(_real_lengths((shape[0], candidate.high - 1))).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    high = candidate.high or facts.vocabulary or 2
    ids = torch.randint(0, min(high, torch.iinfo(dtype).max), shape, generator=generator)
    if candidate.role is Role.IDS and len(shape) >= 2:
        _place_specials(ids.view(-1, shape[-1]), spec.name, high, facts, padded=padded)
        if not spec.name.startswith("decoder_"):
            _filled(ids, slots, [slot.token for slot in slots])
    return ids.to(dtype)


def _filled(ids: Tensor, slots: Sequence[Slot], values: Sequence[int]) -> Tensor:
    """Write the slots one after another behind the first token."""
    start = 1
    for slot, value in zip(slots, values, strict=True):
        ids[:, start : start + slot.count] = value
        start += slot.count
    return ids


def _real_lengths(shape: Sequence[int]) -> list[int]:
    """Return how much of each row is not padding: the first row is full, unless it is the only one."""
    rows, length = shape
    steps = [2] if rows == 1 else [3 * row for row in range(rows)]
    return [length - step % length for step in steps]


def _mask(shape: Sequence[int]) -> Tensor:
    lengths = torch.tensor(_real_lengths((math.prod(shape[:-1]), shape[-1])))
    return (torch.arange(shape[-1]) < lengths[:, None]).long().reshape(tuple(shape))


def _boxes(shape: Sequence[int], dtype: torch.dtype, high: int | None, generator: torch.Generator) -> Tensor:
    """Generate boxes (left, top, right, bottom): integers below `high`, or fractions of the image."""
    corners = torch.rand((*shape[:-1], 2, 2), generator=generator).sort(dim=-2).values.reshape(tuple(shape))
    return corners.to(dtype) if dtype.is_floating_point else (corners * ((high or 1000) - 1)).to(dtype)


def _place_specials(ids: Tensor, name: str, high: int, facts: Facts, *, padded: bool) -> None:
    """Put special tokens where a tokenizer puts them and nowhere else: models search for them."""
    padding, end, start = (facts.token(meaning, high) for meaning in ("padding", "end", "start"))
    specials = {token for token in (padding, end, start, *facts.placeholders(high).values()) if token is not None}
    for _ in range(len(specials)):
        for token in specials:
            ids[ids == token] = (token + 1) % high
    if name.startswith("decoder_"):
        if start is not None:
            ids[:, 0] = start
        return
    lengths = _real_lengths(ids.shape) if padded else [ids.shape[1]] * ids.shape[0]
    for row, length in enumerate(lengths):
        if end is not None:
            ids[row, length - 1] = end
        if padding is not None:
            ids[row, length:] = padding
