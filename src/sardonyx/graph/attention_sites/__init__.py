"""Every place where a graph attends: where it is, how many heads it has, what masks it, and how it is written.

The fingerprint finds the places, from structure alone; this room says what each is like, in strings that outlive the
graph, and puts what was found before optimizing beside what was found after.
"""

from __future__ import annotations

from sardonyx.graph.attention_sites.finding import FoundSite, found
from sardonyx.graph.attention_sites.pairing import paired

__all__ = ["FoundSite", "found", "paired"]
