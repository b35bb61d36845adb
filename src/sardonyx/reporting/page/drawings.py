"""The layout of the contents of every module in both graphs: data for `assets/drawings.js`.

Modules of equal form share one layout, so that a hundred equal layers take as much space as one and their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from sardonyx.records.run import Wiring
from sardonyx.reporting import formatting
from sardonyx.reporting.page.section import Section, Strings
from sardonyx.reporting.plots.drawing import LONGEST, Kind, box_width, frame_of
from sardonyx.reporting.plots.module_contents import (
    MOST_BOXES,
    ModuleContents,
    Nodes,
    Part,
    kind_of,
    module_contents,
    nodes_of,
)
from sardonyx.reporting.run_bundle import RunBundle

KINDS: tuple[Kind, ...] = ("op", "made", "gone", "module", "port")


def section(bundle: RunBundle) -> Section | None:
    """Return the graphs of all modules before and after, or None if the Run has no graphs."""
    before, after = bundle.run.wiring_before, bundle.run.wiring_after
    if before is None or after is None:
        return None
    return Section("drawings", "Graphs", Markup(), _LayoutData().data(before, after))


class _LayoutData:
    """Layouts ("frames") that modules share, and the modules that use them."""

    def __init__(self) -> None:
        self._places: dict[object, int] = {}
        self._frames: list[list[Any]] = []
        self._strings = Strings(())

    def data(self, before: Wiring, after: Wiring) -> dict[str, Any]:
        sides = (module_contents(before), module_contents(after))
        self._strings = Strings(text for side in sides for contents in side.values() for text in _texts(contents))
        other_nodes = (nodes_of(after), nodes_of(before))
        drawn = [
            [self._module(contents, others, kind) for contents in side.values()]
            for side, others, kind in zip(sides, other_nodes, ("gone", "made"), strict=True)
        ]
        return {"strings": self._strings.data(), "frames": self._frames, "before": drawn[0], "after": drawn[1]}

    def _module(self, contents: ModuleContents, others: Nodes, kind: Kind) -> list[Any]:
        """Return the path, the frame, the name of each box, and the texts that are not part of the frame."""
        path = self._strings.at[contents.path]
        if len(contents.parts) > MOST_BOXES:
            return [path, -1, len(contents.parts)]
        kinds = [KINDS.index(kind_of(part, others, kind)) for part in contents.parts]
        names = [self._strings.at[part.name or part.path or ""] for part in contents.parts]
        shown = [self._strings.at[_short(part)] for part in contents.parts if part.kind != "op"]
        return [path, self._frame(contents, kinds), names, shown]

    def _frame(self, contents: ModuleContents, kinds: list[int]) -> int:
        texts = [self._strings.at[_short(part)] if part.kind == "op" else -1 for part in contents.parts]
        widths = [box_width(re.sub(r"\d+", "00", _short(part))) for part in contents.parts]
        form = (tuple(kinds), tuple(texts), tuple(widths), contents.edges)
        if form not in self._places:
            self._places[form] = len(self._frames)
            frame = frame_of(widths, contents.edges)
            boxes = [[*box, kind, text] for box, kind, text in zip(frame["boxes"], kinds, texts, strict=True)]
            self._frames.append([frame["w"], frame["h"], boxes, frame["routes"]])
        return self._places[form]


def _short(part: Part) -> str:
    return formatting.name(part.text, LONGEST)


def _texts(contents: ModuleContents) -> Iterator[str]:
    yield contents.path
    for part in contents.parts:
        yield _short(part)
        yield part.name or part.path or ""
