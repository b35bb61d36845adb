"""Which node of one model does the work of which node of another.

Names decide where the two models share them; where they do not, the order of equal operators within a module does. What
is left over is the same operator in the module directly around or inside the old one, or is new, or is gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

_TRUSTED = 0.5  # share of equally named nodes that must be in the same module for a name to mean something


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """What an alignment knows of a node."""

    name: str
    op_type: str
    module: str
    place: int  # in the order of the file
    traits: str  # equal for nodes with equal attributes


Key = Callable[[Op], Hashable]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of nodes, and those without a partner, in the order of their files."""

    pairs: tuple[tuple[Op, Op], ...]
    removed: tuple[Op, ...]
    added: tuple[Op, ...]


def align(before: Sequence[Op], after: Sequence[Op]) -> Alignment:
    """Pair the nodes of two models, each with at most one of the other."""
    work = _Work(before, after)
    work.pair(lambda op: (op.name, op.op_type, op.module))
    if _names_mean_something(before, after):
        work.pair(lambda op: (op.name, op.op_type))  # moved
        work.pair(lambda op: (op.name, op.module))  # another operator in its place
    work.pair(lambda op: (op.module, op.op_type, op.traits))
    work.pair(lambda op: (op.module, op.op_type))
    work.pair_neighbours()
    return work.result()


def _names_mean_something(before: Iterable[Op], after: Iterable[Op]) -> bool:
    """Exporters number nodes anew for every model, so equal names alone prove nothing."""
    where = {(op.name, op.op_type): op.module for op in before}
    shared = [where[op.name, op.op_type] == op.module for op in after if (op.name, op.op_type) in where]
    return sum(shared) >= _TRUSTED * len(shared)


class _Work:
    def __init__(self, before: Sequence[Op], after: Sequence[Op]) -> None:
        self._before: dict[Op, None] = dict.fromkeys(before)
        self._after: dict[Op, None] = dict.fromkeys(after)
        self._pairs: list[tuple[Op, Op]] = []

    def pair(self, key: Key, other: Key | None = None) -> None:
        """Pair what has equal keys, in order; `other` is the key on the second side where it is not the same."""
        waiting: dict[Hashable, deque[Op]] = defaultdict(deque)
        for op in self._after:
            waiting[(other or key)(op)].append(op)
        for op in list(self._before):
            if partners := waiting.get(key(op)):
                self._join(op, partners.popleft())

    def pair_neighbours(self) -> None:
        """Pair equal operators where one is in the module directly around that of the other: it moved up or down."""
        self.pair(lambda op: (op.op_type, op.traits, op.module), lambda op: (op.op_type, op.traits, _around(op.module)))
        self.pair(lambda op: (op.op_type, op.traits, _around(op.module)), lambda op: (op.op_type, op.traits, op.module))

    def _join(self, old: Op, new: Op) -> None:
        del self._before[old]
        del self._after[new]
        self._pairs.append((old, new))

    def result(self) -> Alignment:
        pairs = sorted(self._pairs, key=lambda pair: pair[1].place)
        return Alignment(tuple(pairs), tuple(self._before), tuple(self._after))


def _around(module: str) -> str | None:
    return module.rpartition(".")[0] if module else None
