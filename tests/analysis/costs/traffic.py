"""The bytes that a program moves with and without fusion, added up for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from sardonyx.ir.shapes.expr import Size, total, value_of
from sardonyx.verbs.analyze.costs.dataflow import Region, moved
from sardonyx.verbs.analyze.costs.program import Program


class TrafficAt(Struct, frozen=True):
    """The totals at given sizes of the dynamic dimensions."""

    unfused: int
    fused: int
    unfused_weights: int
    fused_weights: int

    @property
    def kept_out(self) -> int:
        """The bytes that fusion saves."""
        return self.unfused - self.fused

    @property
    def reduction(self) -> float:
        """The traffic reduction: the share of the unfused bytes that fusion saves."""
        return self.kept_out / self.unfused if self.unfused else 0.0


class Traffic(Struct, frozen=True):
    """All bytes that are moved; the totals include weights, which are also listed separately."""

    unfused: Size
    fused: Size
    unfused_weights: Size
    fused_weights: Size
    symbols: Mapping[str, int]  # dynamic dimensions -> their size in the example

    def at(self, sizes: Mapping[str, int] | None = None) -> TrafficAt:
        """Return the totals at these sizes; other dimensions have the size of the example."""
        values = {**self.symbols, **(sizes or {})}
        totals = (self.unfused, self.fused, self.unfused_weights, self.fused_weights)
        return TrafficAt(*(value_of(size, values) for size in totals))


def traffic(program: Program, partition: Sequence[Region]) -> Traffic:
    """Return the bytes a program moves without fusion, and with each region of a partition as one kernel."""
    moves = moved(program)
    return Traffic(
        unfused=total(move.bytes for move in moves),
        fused=total(region.bytes for region in partition),
        unfused_weights=total(move.weights for move in moves),
        fused_weights=total(region.weight_bytes for region in partition),
        symbols=program.symbols,
    )


def by_rule(parts: Sequence[Region]) -> dict[str, int]:
    """The number of regions of each rule, the most frequent first."""
    return dict(Counter(region.rule for region in parts).most_common())


def bytes_unfused(region: Region) -> Size:
    """All bytes that the operations of a region move if each is one kernel."""
    return total((region.bytes, region.internal_bytes, region.reread_bytes))
