"""What transformers' own processors make of a picture or a sound for a model type, in the sizes that its config names.

Some models take pictures in a form of their own: patches in rows with the grid they came from, tiles with masks. The
library declares which image processor or feature extractor makes it, and that works without a download.
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
_PICTURES = "image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES"
_SOUNDS = "feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES"
_PICTURE = (64, 64)  # where the config names no size
_SECONDS = 1


def processed(facts: Facts, batch: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Inputs by name as the model's processors make them of random pictures and sounds, most plausible first."""
    kind = getattr(getattr(facts.module, "config", None), "model_type", None)
    if not isinstance(kind, str) or "transformers" not in sys.modules:
        return
    numbers = np.random.default_rng(seed)
    height, width = facts.image or _PICTURE
    pictures = [numbers.integers(0, 256, (height, width, 3), np.uint8) for _ in range(batch)]
    for maker in _makers(_PICTURES, kind, facts):
        for images in ([[picture] for picture in pictures], pictures):  # by item of the batch, or one after another
            yield from _made(maker, images=images)
    for maker in _makers(_SOUNDS, kind, facts):
        rate = int(maker.sampling_rate)
        sounds = [np.asarray(numbers.standard_normal(_SECONDS * rate), np.float32) for _ in range(batch)]
        for made in _made(maker, sounds, sampling_rate=rate, return_attention_mask=True):
            yield {name: _shortened(value, facts) for name, value in made.items()}


def _makers(table: str, kind: str, facts: Facts) -> Iterator[Any]:
    """The processors that the library declares for a model type, in the sizes of its config."""
    module, _, name = table.partition(".")
    declared: Any = getattr(importlib.import_module(f"{_AUTO}.{module}"), name).get(kind)
    by_backend = {"": declared} if isinstance(declared, str) else cast("dict[str, str]", declared or {})
    for each in by_backend.values():
        try:
            with quietly():
                constructor: Any = getattr(sys.modules["transformers"], each)
                defaults = cast("dict[str, Any]", constructor().__dict__)
                maker = constructor(**_settings(defaults, facts))
        except (ImportError, TypeError, ValueError):  # a package that it needs is not there, or it takes no such sizes
            continue
        yield maker


def _settings(defaults: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """A processor's settings that the config has too: numbers by name, and the size of a picture."""
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
    """As many frames as the module has positions for, after a front end that halves them."""
    positions = facts.count("source positions")
    return value[..., : 2 * positions] if positions else value


def _sides(value: Any) -> list[str]:
    """The sides that a size of a picture names: height and width, or an edge."""
    named = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [side for side, size in named.items() if isinstance(size, int)]


def _made(maker: Any, *data: Sequence[Any], **how: Any) -> Iterator[dict[str, Tensor]]:
    try:
        with quietly():
            made = cast("Mapping[str, Any]", maker(*data, return_tensors="pt", **how))
    except Exception:  # the library's code on pictures that are not the model's; then it says nothing
        return
    tensors = {name: value for name, value in made.items() if isinstance(value, Tensor)}
    if tensors and all(torch.isfinite(value.float()).all() for value in tensors.values()):
        yield tensors
