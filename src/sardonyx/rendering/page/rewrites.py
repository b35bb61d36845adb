"""What was rewritten where and why: every rewrite of the run, by pass and shape, each with its small graph."""

from __future__ import annotations

from sardonyx.record import Kind
from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page.rewrite_data import rewrite_data
from sardonyx.rendering.page.section import Section, rendered
from sardonyx.rendering.places import where

KINDS = {
    Kind.FUSE: "new nodes do the work of the old ones",
    Kind.SHARE: "an equal one that was there already works for both",
    Kind.FOLD: "a constant holds the result",
    Kind.BYPASS: "it computed nothing, and its readers read what it read",
    Kind.DROP: "nothing used the result",
}


def section(dossier: Dossier) -> Section:
    """The table that reads and prints by itself, and what the script needs to open each rewrite."""
    run = dossier.run
    active = sorted((each for each in run.passes if each.rewrites), key=lambda each: (-each.rewrites, each.name))
    rows = [(each, where(each.modules)) for each in active]
    used = {event.kind for event in run.events}
    kinds = {kind.value: said for kind, said in KINDS.items() if kind in used}
    html = rendered("rewrites", rows=rows, total=len(run.events), kinds=kinds)
    return Section("rewrites", "What was rewritten, and why", html, rewrite_data(run) if run.events else None)
