"""Finds attention in a graph by its structure: softmax between two products, however each step is spelled."""

from __future__ import annotations

from torch import fx

from sardonyx.attention.recognition.found import Recognised, Refused


def recognise(graph: fx.Graph) -> list[Recognised]:
    """Every attention of the graph, in the order in which they run."""
    return [found for found in survey(graph) if isinstance(found, Recognised)]


def survey(graph: fx.Graph) -> list[Recognised | Refused]:
    """Every softmax of the graph: the attention that it is in, or why it is in none."""
    return []
