"""What the reader asked for: how much, how deep, in colour or not."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.reporting.formatting import Style

PLAIN = Style()


@dataclass(frozen=True, slots=True)
class View:
    """How much to show and how."""

    style: Style = PLAIN
    verbose: bool = False
    depth: int | None = None  # levels of the module tree; None: as many as read well, or all where verbose
