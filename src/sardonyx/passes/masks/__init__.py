"""Masks and positions: what exporters compute element by element although it follows from the sizes."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.masks.gather_everything import GatherEverything

MASKS: tuple[Pass, ...] = (GatherEverything(),)
