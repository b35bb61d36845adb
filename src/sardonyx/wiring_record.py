"""What a graph is made of and where it attends, as plain data that a Run keeps: enough to draw any module of it.

Nothing here knows ONNX. Columns instead of objects: a graph of ten thousand nodes stays a megabyte.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wiring:
    """Which node of a graph feeds which. Constants are left out, bodies and functions are in."""

    modules: tuple[str, ...]  # instance paths of the owners
    names: tuple[str, ...]  # of the nodes, in the order they run
    ops: tuple[str, ...]  # theirs, with the domain where it is not ONNX's own
    owners: tuple[int, ...]  # places in `modules`
    edges: tuple[tuple[int, int], ...]  # from maker to reader, places in `names`; each pair once
    inputs: dict[str, tuple[int, ...]]  # of the graph, and who reads them
    outputs: dict[str, int]  # of the graph, and who makes them; -1: a constant or an input


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """How an attention is written in one graph."""

    operator: str  # "Attention", "com.microsoft::MultiHeadAttention"; "" where it is spelled out in parts
    nodes: tuple[str, ...]  # names of the nodes that are it, in the order they run


@dataclass(frozen=True, slots=True)
class AttentionSite:
    """One place where a model attends, before and after."""

    module: str  # instance path of its owner
    heads: int | None  # of the queries; None: the graph does not say
    key_value_heads: int | None
    head_size: int | None
    mask: str  # "none", "causal", "from an input", "causal and from an input", "a constant", … in words
    causal: bool
    cached: bool  # continues keys that are handed in, or hands them out
    cross: bool  # keys come from elsewhere than the queries
    before: AttentionForm | None  # None: not found there
    after: AttentionForm | None
    why: str = ""  # where it is still spelled out: what the pass said that came near
