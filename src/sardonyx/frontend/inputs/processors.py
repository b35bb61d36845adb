"""Runs transformers' processors for a model type on random images and sounds, in the sizes of its config.

Some models take images in a special form: patches in rows with their grid, tiles with masks. The library declares the
image processor or feature extractor of each model type, which works without a download.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.quiet import quietly

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
