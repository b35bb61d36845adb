"""The passes, in the order they run. A new pass is one file and one line in the list of its family."""

from __future__ import annotations

from sardonyx.passes.attention import ATTENTION
from sardonyx.passes.base import Example, ModelPass, NodePass, Pass
from sardonyx.passes.broadcasting import MASKS
from sardonyx.passes.cleanup import SHARING, SWEEPING, TIDY
from sardonyx.passes.folding import FOLDING
from sardonyx.passes.layout import LAYOUT, MOVES
from sardonyx.passes.norms import NORMS
from sardonyx.passes.ort import ORT
from sardonyx.passes.products import PRODUCTS

ALL: tuple[Pass, ...] = (
    *TIDY,
    *LAYOUT,
    *FOLDING,
    *SHARING,
    *MASKS,
    *NORMS,
    *ATTENTION,
    *MOVES,
    *PRODUCTS,
    *ORT,
    *SWEEPING,
)

__all__ = ["ALL", "Example", "ModelPass", "NodePass", "Pass"]
