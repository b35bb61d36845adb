"""All families of random models, and one model of a family by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from fuzzing import (
    family_attention,
    family_control,
    family_examples,
    family_layout,
    family_norms,
    family_products,
    family_soup,
)
from fuzzing.draft import Draft, Input

OPSETS = (9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 17, 18, 20, 23)
DRAFTED: dict[str, Callable[[Draft], None]] = {
    "attention": family_attention.attention,
    "contrib": family_attention.contrib_attention,
    "rotary": family_attention.rotary,
    "norms": family_norms.norms,
    "clips": family_norms.clips,
    "activations": family_norms.activations,
    "layout": family_layout.layout,
    "sizes": family_layout.sizes,
    "masks": family_layout.masks,
    "products": family_products.products,
    "control": family_control.control,
    "functions": family_control.functions,
    "sequences": family_control.sequences,
    "soup": family_soup.soup,
}
FAMILIES = (*DRAFTED, "examples")
SHARES = {
    "attention": 6,
    "norms": 4,
    "soup": 6,
    "examples": 10,
    "layout": 4,
    "products": 6,
    "control": 4,
    "activations": 3,
}
SHARES |= {"contrib": 1, "sequences": 1, "functions": 2}
_CYCLE = [family for family in FAMILIES for _ in range(SHARES.get(family, 2))]


@dataclass(frozen=True)
class Drawn:
    """A random model and what its inputs may hold."""

    family: str
    seed: int
    model: onnx.ModelProto
    inputs: list[Input]
    sizes: dict[str, int]


def family_of(seed: int) -> str:
    """The family that a seed draws from: every run of seeds has all of them, by their shares."""
    return _CYCLE[seed * 23 % len(_CYCLE)]


def draw(seed: int, family: str | None = None) -> Drawn:
    """The model of a seed, always the same.

    Raises:
        Rejected: where the draw comes to nothing that the runtime takes.
    """
    rng = random.Random(seed)
    family = family or family_of(seed)
    if family == "examples":
        return Drawn(family, seed, *family_examples.examples(rng))
    draft = Draft(rng, rng.choice(OPSETS))
    DRAFTED[family](draft)
    return Drawn(family, seed, draft.model(), draft.inputs, draft.sizes)
