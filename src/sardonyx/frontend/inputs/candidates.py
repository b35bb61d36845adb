"""What can be passed for a parameter: its role, the sizes to try, and the values to generate."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn

from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.running import quietly
from sardonyx.records.input_specs import Spec

_SMALL_SIZES = (32, 28, 64, 16)
_LARGE_SIZES = (224, 256, 384, 96, 128, 299, 512)
_ANY_SIZES = tuple(range(8, 65))  # a linear layer after convolutions accepts only one size
_LARGE_STRIDE = 4  # a total stride from which a module is taken to expect large images
_LINE_SIZES = (64, 1000, 4000, 16000, *_ANY_SIZES)
_VOLUME_SIZES = ((16, 32, 32), (8, 112, 112), (16, 64, 64))
_WAVE_SIZES = (4000, 16000, 48000)
_FEW_FRAMES = 100
_BATCH = {"batch_size", "batch", "bs", "num_images"}
_LENGTH = {"sequence_length", "seq_length", "seq_len", "token_sequence_length", "text_sequence_length", "input_length"}
_SOME_CHANNELS, _SOME_FEATURES = 3, 16  # for lazy layers, which accept any number


class Role(StrEnum):
    """The purpose of a parameter."""

    IDS = "token ids"
    SEGMENTS = "segment ids"
    POSITIONS = "positions"
    BOXES = "bounding boxes"
    SIZES = "sizes"
    MASK = "mask"
    IMAGE = "image"
    WAVE = "audio samples"
    FEATURES = "audio features"
    HIDDEN = "hidden states"
    LENGTHS = "lengths"
    NUMBER = "a Python number"
    UNKNOWN = "data"


class Sizes(Struct, frozen=True):
    """The sizes that several inputs share; all different, so that dimensions can be distinguished."""

    batch: int
    length: int
    decoder_length: int
    texts: int | None = None  # of each item, such as the answers to choose from; None if an item is one text


class Candidate(Struct, frozen=True):
    """An input to try, and the meaning of its values."""

    spec: Spec
    role: Role
    high: int | None = None  # exclusive upper bound of ids
    value: int | float | None = None  # of a parameter that takes a Python number


_WORDS = (
    (Role.MASK, {"mask", "masks"}),
    (Role.BOXES, {"bbox", "boxes", "box"}),
    (Role.SIZES, {"sizes", "thw"}),
    (Role.SEGMENTS, {"type", "segment"}),
    (Role.POSITIONS, {"position", "positions"}),
    (Role.LENGTHS, {"lengths", "lens"}),
    (Role.IDS, {"ids", "idx", "tokens", "token", "indices"}),
    (Role.HIDDEN, {"embeds", "embeddings", "states"}),
    (Role.IMAGE, {"pixel", "image", "images", "img"}),
    (Role.FEATURES, {"features"}),
    (Role.WAVE, {"values", "waveform", "wav", "audio"}),
)


def role_of(name: str) -> Role:
    """Guess a parameter's role from its name."""
    words = set(name.lower().split("_"))
    return next((role for role, role_words in _WORDS if words & role_words), Role.UNKNOWN)


def candidates(name: str, facts: Facts, sizes: Sizes, *, layers: bool = True) -> list[Candidate]:
    """Return the candidates of a parameter in order, without repetition; those of layers come last."""
    role = role_of(name)
    by_role = [
        Candidate(Spec(name, dtype, shape), role, high) for dtype, shape, high in _by_role(name, role, facts, sizes)
    ]
    documented = list(_by_description(name, role, facts, sizes))
    described = facts.descriptions.get(name)
    words = [word for dims in described.shapes for word in dims] if described is not None else []
    # the documentation comes first if it defines a size by settings of the config
    is_first = role in (Role.SEGMENTS, Role.UNKNOWN) or any(facts.defined(word, name) is not None for word in words)
    result = [*documented, *by_role] if is_first else [*by_role, *documented]
    if layers and role in (Role.UNKNOWN, Role.IMAGE, Role.WAVE, Role.FEATURES, Role.HIDDEN):
        result.extend(_by_layers(name, facts, sizes))
    return list(dict.fromkeys(result))


def _by_role(name: str, role: Role, facts: Facts, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    batch, real = sizes.batch, facts.dtype
    length = sizes.decoder_length if name.startswith("decoder_") else sizes.length
    text = (batch, length) if sizes.texts is None else (batch, sizes.texts, length)
    if role in (Role.IDS, Role.SEGMENTS, Role.POSITIONS):
        yield "int64", text, _high(role, facts)
        for count in facts.tables if role is Role.IDS else ():
            yield "int64", (batch, length, count), _high(role, facts)
    elif role is Role.BOXES:
        documented = facts.descriptions.get(name)
        is_real = documented is not None and documented.dtype == "float"
        for dtype in (real, "int64") if is_real else ("int64", real):
            yield dtype, (batch, length, 4), facts.count("coordinates")
    elif role is Role.MASK:
        yield "int64", text, None
        yield "bool", text, None
    elif role is Role.LENGTHS:
        yield "int64", (batch,), length + 1
    elif role is Role.IMAGE:
        for shape in _images(facts):
            yield real, (batch, *shape), None
    elif role is Role.WAVE:
        bins, frames = facts.count("mel bins"), facts.count("mel frames")
        if bins and frames:
            yield real, (batch, frames, bins), None
        for samples in _WAVE_SIZES:
            yield real, (batch, samples), None
    elif role is Role.FEATURES:
        bins, positions = facts.count("mel bins") or facts.count("width") or 80, facts.count("source positions")
        # few frames first; a front end may halve the frames before the config's positions
        lengths = [2 * positions, positions, 4 * positions] if positions else []
        for frames in (_FEW_FRAMES, *lengths, facts.count("mel frames") or _FEW_FRAMES):
            yield real, (batch, bins, frames), None
            yield real, (batch, frames, bins), None
    elif role is Role.HIDDEN and (width := facts.count("width")):
        yield real, (batch, length, width), None


def _by_description(name: str, role: Role, facts: Facts, sizes: Sizes) -> Iterator[Candidate]:
    """Yield the shapes in the forward's documentation whose sizes are all known."""
    documented = facts.descriptions.get(name)
    for dims in documented.shapes if documented is not None else ():
        resolved = [_size_of(dim, name, facts, sizes) for dim in dims]
        shape = tuple(size for size in resolved if size is not None)
        if documented is not None and len(shape) == len(resolved):
            dtype = facts.dtype if documented.dtype in (None, "float") else documented.dtype
            if role in (Role.IDS, Role.SEGMENTS, Role.POSITIONS, Role.MASK) and dtype == facts.dtype:
                dtype = "int64"  # masks are documented as floats of 0 and 1
            yield Candidate(Spec(name, dtype, shape), role, _high(role, facts))


def _high(role: Role, facts: Facts) -> int | None:
    return {Role.IDS: facts.vocabulary, Role.SEGMENTS: facts.count("segments") or 2}.get(role)


def _size_of(dim: str, name: str, facts: Facts, sizes: Sizes) -> int | None:
    """Return a documented size: a number, a size that inputs share, a setting of the config, or a product of these."""
    if "*" in dim:
        factors = [_size_of(factor.strip(), name, facts, sizes) for factor in dim.split("*")]
        return None if None in factors else math.prod(factor for factor in factors if factor is not None)
    if dim.isdecimal():
        return int(dim)
    word = dim.removeprefix("config.")
    if word in _BATCH:
        return sizes.batch
    if (defined := facts.defined(word, name)) is not None:
        return defined
    if facts.setting(word) is not None:
        return facts.setting(word)
    if word.startswith("target_") or (name.startswith("decoder_") and word in _LENGTH):
        return sizes.decoder_length
    if word in _LENGTH:
        return sizes.length
    if word in ("height", "width", "image_size") and facts.image is not None:
        return facts.image[word == "width"]
    return facts.count("channels") if word == "num_channels" else None


def _images(facts: Facts) -> Iterator[tuple[int, ...]]:
    first = (layer.in_channels for layer in facts.module.modules() if isinstance(layer, nn.Conv2d))
    channels, frames, configured = facts.count("channels") or next(first, 0), facts.count("frames"), facts.image
    channels = channels or _SOME_CHANNELS
    sizes = [configured] if configured else [(size, size) for size in _image_sizes(facts)]
    for height, width in sizes:
        if frames:
            yield frames, channels, height, width
        yield channels, height, width
        if configured:
            yield 1, channels, height, width  # several images per item: here one


def _image_sizes(facts: Facts) -> tuple[int, ...]:
    """Return image sizes to try, the most likely first."""
    layers = [layer for layer in facts.module.modules() if isinstance(layer, (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d))]
    strides = [layer.stride if isinstance(layer.stride, int) else layer.stride[0] for layer in layers]
    large = math.prod(strides) >= _LARGE_STRIDE
    return (*_LARGE_SIZES, *_SMALL_SIZES, *_ANY_SIZES) if large else (*_SMALL_SIZES, *_LARGE_SIZES, *_ANY_SIZES)


def _by_layers(name: str, facts: Facts, sizes: Sizes) -> Iterator[Candidate]:
    """Yield what the first layer of each class accepts; the first registered layer usually reads the input."""
    seen: set[type] = set()
    for layer in facts.module.modules():
        if type(layer) in seen:
            continue
        shapes = list(_by_layer(layer, facts, sizes))
        if shapes:
            seen.add(type(layer))
        for shape in shapes:
            if isinstance(layer, nn.Embedding):
                yield Candidate(Spec(name, "int64", shape), Role.IDS, layer.num_embeddings)
            else:
                yield Candidate(Spec(name, facts.dtype, shape), Role.UNKNOWN)


def _by_layer(layer: nn.Module, facts: Facts, sizes: Sizes) -> Iterator[tuple[int, ...]]:
    batch, length = sizes.batch, sizes.length
    match layer:
        case nn.Embedding():
            yield batch, length
        case nn.Conv1d() | nn.ConvTranspose1d():
            yield from ((batch, layer.in_channels or _SOME_CHANNELS, size) for size in _LINE_SIZES)
        case nn.Conv2d() | nn.ConvTranspose2d():
            yield from ((batch, layer.in_channels or _SOME_CHANNELS, size, size) for size in _image_sizes(facts))
        case nn.Conv3d() | nn.ConvTranspose3d():
            yield from ((batch, layer.in_channels or _SOME_CHANNELS, *size) for size in _VOLUME_SIZES)
        case nn.RNNBase():
            yield (batch, length, layer.input_size) if layer.batch_first else (length, batch, layer.input_size)
        case nn.RNNCellBase():
            yield batch, layer.input_size
        case nn.MultiheadAttention():
            width = layer.out_proj.in_features
            yield (batch, length, width) if layer.batch_first else (length, batch, width)
        case nn.Linear():
            yield batch, layer.in_features or _SOME_FEATURES
            yield batch, length, layer.in_features or _SOME_FEATURES
        case nn.LayerNorm():
            yield batch, *layer.normalized_shape
            yield batch, length, *layer.normalized_shape
        case nn.BatchNorm1d():
            yield batch, layer.num_features or _SOME_FEATURES
        case nn.BatchNorm2d():
            yield batch, layer.num_features or _SOME_CHANNELS, _SMALL_SIZES[0], _SMALL_SIZES[0]
        case _:
            return


# Runs transformers' processors for a model type on random images and sounds, in the sizes of its config.
#
# Some models take images in a special form: patches in rows with their grid, tiles with masks. The library declares the
# image processor or feature extractor of each model type, which works without a download.

_AUTO = "transformers.models.auto"
_IMAGES = "image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES"
_SOUNDS = "feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES"
_IMAGE_SIZE = (64, 64)  # if the config has no size
_SOUND_SECONDS = 1


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
        sounds = [np.asarray(numbers.standard_normal(_SOUND_SECONDS * rate), np.float32) for _ in range(batch)]
        for outputs in _outputs(processor, sounds, sampling_rate=rate, return_attention_mask=True):
            positions = facts.count("source positions")  # a front end may halve the frames
            last = 2 * positions if positions else None
            yield {name: value[..., :last] for name, value in outputs.items()}


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
        elif name.endswith("size") and facts.image is not None:
            height, width = facts.image
            named = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            if sides := [side for side, size in named.items() if isinstance(size, int)]:  # both, or an edge
                chosen[name] = {side: width if side == "width" else height for side in sides}
    return chosen


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
        lengths = torch.tensor(_real_lengths((math.prod(shape[:-1]), shape[-1])))
        return (torch.arange(shape[-1]) < lengths[:, None]).long().reshape(shape).to(dtype)
    if candidate.role is Role.BOXES and shape[-1:] == (4,):
        # left, top, right, bottom: integers below `high`, or fractions of the image
        corners = torch.rand((*shape[:-1], 2, 2), generator=generator).sort(dim=-2).values.reshape(shape)
        return (corners if dtype.is_floating_point else corners * ((candidate.high or 1000) - 1)).to(dtype)
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
