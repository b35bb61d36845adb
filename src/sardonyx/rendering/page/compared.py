"""What changed from one run to another, as the first thing on a page of both."""

from __future__ import annotations

from sardonyx.rendering.changes import changes
from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page.section import Section, rendered


def compared(first: Dossier, second: Dossier) -> Section:
    """The sentence, what differs besides, and a table for each thing that changed."""
    html = rendered("compared", found=changes(first, second), first=first, second=second)
    return Section("compared", "What changed", html)
