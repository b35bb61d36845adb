"""Bytes that a program moves with every operation a kernel of its own, and with every region one kernel.

Views move nothing; what one operation reads twice counts once; of a table only the rows that are taken out count.
`traffic_reduction` is the share that fusing keeps out of memory: what is moved without it less what is moved with it,
through what is moved without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.analysis.costs.program import Program, Size
from sardonyx.analysis.costs.regions.dataflow import Flow
from sardonyx.analysis.costs.regions.region import Partition
from sardonyx.ir.shapes.expr import total, value_of


@dataclass(frozen=True, slots=True)
class Moved:
    """What one operation moves."""

    read: Size  # activations and inputs
    weights: Size
    written: Size

    @property
    def bytes(self) -> Size:
        """All of it."""
        return total((self.read, self.weights, self.written))


@dataclass(frozen=True, slots=True)
class TrafficAt:
    """The totals at some sizes of the open dims."""

    unfused: int
    fused: int
    unfused_weights: int
    fused_weights: int

    @property
    def kept_out(self) -> int:
        """Bytes that fusing keeps out of memory."""
        return self.unfused - self.fused

    @property
    def reduction(self) -> float:
        """`traffic_reduction`: the kept out share of what is moved without fusing."""
        return self.kept_out / self.unfused if self.unfused else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """All that is moved, in bytes; weights are part of the totals and told apart as well."""

    unfused: Size
    fused: Size
    unfused_weights: Size
    fused_weights: Size
    symbols: Mapping[str, int]  # open dims -> their size in the example

    def at(self, sizes: Mapping[str, int] | None = None) -> TrafficAt:
        """The numbers at these sizes of open dims; those not named have their example's size."""
        where = {**self.symbols, **(sizes or {})}
        totals = (self.unfused, self.fused, self.unfused_weights, self.fused_weights)
        return TrafficAt(*(value_of(size, where) for size in totals))


def traffic(program: Program, partition: Partition) -> Traffic:
    """What the program moves, without fusing and with the regions of this partition each as one kernel."""
    each = moved(program)
    return Traffic(
        unfused=total(one.bytes for one in each),
        fused=total(region.bytes for region in partition.regions),
        unfused_weights=total(one.weights for one in each),
        fused_weights=total(region.weight_bytes for region in partition.regions),
        symbols=program.symbols,
    )


def moved(program: Program) -> tuple[Moved, ...]:
    """What each operation moves by itself, in the order of the program."""
    flow = Flow(program)
    return tuple(
        Moved(
            read=total(flow.read_bytes(step, piece) for piece in flow.reads[step] if not flow.is_weight(piece)),
            weights=total(flow.read_bytes(step, piece) for piece in flow.reads[step] if flow.is_weight(piece)),
            written=total(flow.write_bytes(value) for value in flow.writes[step]),
        )
        for step in range(len(program.operations))
    )
