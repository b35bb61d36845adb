"""What a fused region is, and what it moves: worked out from who reads what whom wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.costs.program import Size
from sardonyx.costs.regions.flow import Flow, Piece
from sardonyx.graph.shapes.expr import add, subtract, total, value_of
from sardonyx.provenance.paths import lowest_common

ALONE = "alone"  # no rule took it


@dataclass(frozen=True, slots=True)
class Region:
    """Operations that could be one kernel. What crosses its border is moved; the rest need never be in memory.

    Without fusion its operations move `bytes_in + weight_bytes + bytes_out + internal_bytes + reread_bytes`.
    """

    rule: str
    operations: tuple[int, ...]  # steps of the program, views among them
    module: str  # the lowest module that holds all of them
    depends_on: tuple[int, ...]  # regions, all of them earlier
    macs: Size
    flops: Size
    bytes_in: Size  # activations and inputs that come in, each once
    weight_bytes: Size  # weights that come in, each once
    bytes_out: Size  # what others read, what outlives the run, and what an operator writes though nobody reads it
    internal_bytes: Size  # written and read back within, if it is not fused
    reread_bytes: Size  # what comes in, read again by a second operation, if it is not fused
    escapes: tuple[int, ...]  # values that are used within and are needed outside too; part of `bytes_out`
    ended: str  # why it ends where it does

    @property
    def bytes(self) -> Size:
        """All that crosses its border."""
        return total((self.bytes_in, self.weight_bytes, self.bytes_out))

    @property
    def bytes_unfused(self) -> Size:
        """All that its operations move if each is a kernel of its own."""
        return total((self.bytes, self.internal_bytes, self.reread_bytes))

    def intensity(self, sizes: Mapping[str, int]) -> float:
        """Arithmetic per byte that crosses the border, at these sizes of open dims."""
        moved = value_of(self.bytes, sizes)
        return value_of(self.flops, sizes) / moved if moved else 0.0


@dataclass(frozen=True, slots=True)
class Partition:
    """Every operation of a program in exactly one region, in an order in which the regions can run."""

    regions: tuple[Region, ...]

    @property
    def by_rule(self) -> dict[str, int]:
        """How many regions each rule made, most first."""
        return dict(Counter(region.rule for region in self.regions).most_common())


def region_of(flow: Flow, rule: str, steps: Sequence[int], views: Sequence[int], depends_on: Iterable[int]) -> Region:
    """What these steps move and compute as one; `views` ride along."""
    inside = set(steps)
    entering, internal, reads = dict[Piece, Size](), list[Size](), list[Size]()
    for step in steps:
        for piece in flow.reads[step]:
            size = flow.read_bytes(step, piece)
            if piece.is_mixed or piece.writer not in inside:
                entering[piece] = size
                reads.append(size)
            else:
                internal.append(size)
    out, inner, escapes = _written(flow, inside)
    taken = flow.distinct(entering)
    weights = total(entering[piece] for piece in taken if flow.is_weight(piece))
    activations = total(entering[piece] for piece in taken if not flow.is_weight(piece))
    operations = [flow.program.operations[step] for step in (steps or views)]
    return Region(
        rule=rule,
        operations=tuple(sorted((*steps, *views))),
        module=lowest_common(operation.module for operation in operations),
        depends_on=tuple(sorted(depends_on)),
        macs=total(operation.macs for operation in operations),
        flops=total(operation.flops for operation in operations),
        bytes_in=activations,
        weight_bytes=weights,
        bytes_out=total(flow.write_bytes(value) for value in out),
        internal_bytes=total((*internal, *(flow.write_bytes(value) for value in inner))),
        reread_bytes=subtract(total(reads), add(weights, activations)),
        escapes=tuple(dict.fromkeys(escapes)),
        ended=_ended(flow, inside),
    )


def _written(flow: Flow, steps: set[int]) -> tuple[list[int], list[int], list[int]]:
    """The values that must be written, those that need not be, and those that are used within and written all the same.

    What nobody reads is written too: it is the operator's own second result, and no rule says that it can be left out.
    """
    leaving = set(flow.leaving(steps))
    out, inner, escapes = list[int](), list[int](), list[int]()
    for write in flow.written(sorted(steps)):
        readers = flow.readers.get(write, ())
        (out if write in leaving or not readers else inner).append(write[1])
        if write in leaving and not steps.isdisjoint(readers):
            escapes.append(write[1])
    return out, inner, escapes


def _ended(flow: Flow, steps: set[int]) -> str:
    leaving = flow.leaving(steps)
    readers = sorted({reader for write in leaving for reader in flow.readers.get(write, ()) if reader not in steps})
    said = ["its result outlives the run"] if any(write in flow.kept for write in leaving) else []
    if readers:
        first = flow.program.operations[readers[0]]
        more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
        said.append(f"read by {first.name} ({first.kind}){more}")
    return ", ".join(said) or "nothing reads its result"
