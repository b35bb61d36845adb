"""All passes in the order they run.

A new pass is one file, whose name is added to the list of its family.
"""

from __future__ import annotations

from sardonyx.passes.attention import ATTENTION
from sardonyx.passes.base import Example, ModelPass, NodePass, Pass
from sardonyx.passes.broadcasting import BROADCASTING
from sardonyx.passes.cleanup import NOOPS, SHARING, UNUSED
from sardonyx.passes.folding import FOLDING
from sardonyx.passes.layout import LAYOUT, REARRANGEMENTS
from sardonyx.passes.norms import NORMS
from sardonyx.passes.ort import ORT
from sardonyx.passes.products import PRODUCTS

ALL: tuple[Pass, ...] = (
    *NOOPS,
    *LAYOUT,
    *FOLDING,
    *SHARING,
    *BROADCASTING,
    *NORMS,
    *ATTENTION,
    *REARRANGEMENTS,
    *PRODUCTS,
    *ORT,
    *UNUSED,
)

__all__ = ["ALL", "Example", "ModelPass", "NodePass", "Pass"]
