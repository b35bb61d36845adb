"""The bytes that a program moves with every operation as one kernel, and with every fusion region as one kernel.

Views move nothing; a value that one operation reads twice counts once; of a lookup table only the returned rows count.
The traffic reduction is (unfused - fused) / unfused.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sardonyx.analysis.costs.program import Program, Size
from sardonyx.analysis.costs.regions.dataflow import Flow
from sardonyx.analysis.costs.regions.region import Partition
from sardonyx.ir.shapes.expr import total, value_of


class Moved(Struct, frozen=True):
    """The bytes that one operation moves."""

    read: Size  # activations and inputs
    weights: Size
    written: Size

    @property
    def bytes(self) -> Size:
        """All bytes."""
        return total((self.read, self.weights, self.written))


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


def traffic(program: Program, partition: Partition) -> Traffic:
    """Return the bytes a program moves without fusion, and with each region of a partition as one kernel."""
    moves = moved(program)
    return Traffic(
        unfused=total(move.bytes for move in moves),
        fused=total(region.bytes for region in partition.regions),
        unfused_weights=total(move.weights for move in moves),
        fused_weights=total(region.weight_bytes for region in partition.regions),
        symbols=program.symbols,
    )


def moved(program: Program) -> tuple[Moved, ...]:
    """Return the bytes that each operation moves, in the order of the program."""
    flow = Flow(program)
    return tuple(
        Moved(
            read=total(flow.read_bytes(step, piece) for piece in flow.reads[step] if not flow.is_weight(piece)),
            weights=total(flow.read_bytes(step, piece) for piece in flow.reads[step] if flow.is_weight(piece)),
            written=total(flow.write_bytes(value) for value in flow.writes[step]),
        )
        for step in range(len(program.operations))
    )
