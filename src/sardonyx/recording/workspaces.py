"""Memory that a kernel takes only while it runs, by operator; what is not listed takes none worth counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.costs.program import Value
from sardonyx.graph.shapes.expr import Size


def workspace(
    operator: str, reads: Sequence[Value], writes: Sequence[Value], scalars: Mapping[str, object], device: str
) -> Size:
    """Bytes beside its inputs and outputs that the operation holds while it runs."""
    return 0
