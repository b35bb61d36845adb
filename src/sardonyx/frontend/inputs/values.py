"""Generates values for example inputs: ids from the whole vocabulary, masks with padding, floats of both signs."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from sardonyx.frontend.inputs.candidates import Candidate, Role
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.quiet import quietly

# Runs transformers' processors for a model type on random images and sounds, in the sizes of its config.
#
# Some models take images in a special form: patches in rows with their grid, tiles with masks. The library declares the
# image processor or feature extractor of each model type, which works without a download.

_AUTO = "transformers.models.auto"
_IMAGES = "image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES"
_SOUNDS = "feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES"
_IMAGE_SIZE = (64, 64)  # if the config has no size
_SECONDS = 1


def processed(facts: Facts, batch: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield inputs by name from the model's processors, the most plausible first."""
    kind = getattr(getattr(facts.module, "config", None), "model_type", None)
    if not isinstance(kind, str) or "transformers" not in sys.modules:
        return
    numbers = np.random.default_rng(seed)
    height, width = facts.image or _IMAGE_SIZE
    images = [numbers.integers(0, 256, (height, width, 3), np.uint8) for _ in range(batch)]
    for processor in _processors(_IMAGES, kind, facts):
        for batched in ([[image] for image in images], images):  # a list per item of the batch, or a flat list
            yield from _outputs(processor, images=batched)
    for processor in _processors(_SOUNDS, kind, facts):
        rate = int(processor.sampling_rate)
        sounds = [np.asarray(numbers.standard_normal(_SECONDS * rate), np.float32) for _ in range(batch)]
        for outputs in _outputs(processor, sounds, sampling_rate=rate, return_attention_mask=True):
            yield {name: _shortened(value, facts) for name, value in outputs.items()}


def _processors(table: str, kind: str, facts: Facts) -> Iterator[Any]:
    """Yield the processors that the library declares for a model type, in the sizes of its config."""
    module, _, name = table.partition(".")
    declared: Any = getattr(importlib.import_module(f"{_AUTO}.{module}"), name).get(kind)
    by_backend = {"": declared} if isinstance(declared, str) else cast("dict[str, str]", declared or {})
    for class_name in by_backend.values():
        try:
            with quietly():
                constructor: Any = getattr(sys.modules["transformers"], class_name)
                defaults = cast("dict[str, Any]", constructor().__dict__)
                processor = constructor(**_settings(defaults, facts))
        except (ImportError, TypeError, ValueError):  # a package is missing, or it does not support these sizes
            continue
        yield processor


def _settings(defaults: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return the processor's settings that the config has too: numbers by name, and the image size."""
    chosen: dict[str, Any] = {}
    for name, value in defaults.items():
        same = facts.setting(name) or facts.setting(f"spatial_{name}")
        if isinstance(value, int) and not isinstance(value, bool) and same:
            chosen[name] = same
        elif name == "feature_size" and facts.count("mel bins"):
            chosen[name] = facts.count("mel bins")
        elif name.endswith("size") and facts.image is not None and (sides := _sides(value)):
            height, width = facts.image
            chosen[name] = {side: width if side == "width" else height for side in sides}
    return chosen


def _shortened(value: Tensor, facts: Facts) -> Tensor:
    """Cut the frames to the module's number of positions, for a front end that halves them."""
    positions = facts.count("source positions")
    return value[..., : 2 * positions] if positions else value


def _sides(value: Any) -> list[str]:
    """Return the sides in an image size: height and width, or an edge."""
    named = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [side for side, size in named.items() if isinstance(size, int)]


def _outputs(processor: Any, *data: Sequence[Any], **how: Any) -> Iterator[dict[str, Tensor]]:
    try:
        with quietly():
            outputs = cast("Mapping[str, Any]", processor(*data, return_tensors="pt", **how))
    except Exception:  # the library's code may raise anything on random data
        return
    tensors = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
    if tensors and all(torch.isfinite(value.float()).all() for value in tensors.values()):
        yield tensors


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
