"""`--dynamic auto`: which axes of the inputs may change, found by running the module with one group of them changed.

Axes belong together where they have the same size in the example: batch is the first axis of all inputs, a sequence
runs through ids and masks alike. A mask that covers a past and what follows it grows with both. What the module
refuses stays fixed, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn

from sardonyx.errors import reason
from sardonyx.frontend.inputs.facts import Facts
from sardonyx.frontend.quiet import quietly

Place: TypeAlias = tuple[str, int]  # an input and one of its axes
Run: TypeAlias = Callable[[Sequence[Tensor]], object]

BATCH, SEQUENCE, PAST, ENCODER = "batch", "sequence", "past_sequence", "encoder_sequence"
_LONGEST_TRIED = 1024
_OFFSETS = 4  # position tables may keep a few rows for themselves


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The axes that may change by input, what is worth knowing about them, and the largest size of a named dim."""

    axes: dict[str, dict[int, str]]
    notes: tuple[str, ...] = ()
    maxima: dict[str, int] = field(default_factory=dict[str, int])


def find_dynamic(run: Run, leaves: Mapping[str, Tensor], *, longest: int | None = None) -> Dynamic:
    """Axes that the module accepts in another size.

    Args:
        run: calls the module on flat tensors, in the order of `leaves`; raises where it refuses them.
        leaves: the example's flat inputs by name.
        longest: how many positions the module says it has (`position_limit`), checked by running where it is small.
    """
    return _Finder(run, leaves, longest).find()


def position_limit(module: nn.Module) -> int | None:
    """How many positions the module's config gives a sequence."""
    return Facts(module).count("positions")


class _Finder:
    """One search over the axes of an example."""

    def __init__(self, run: Run, leaves: Mapping[str, Tensor], longest: int | None) -> None:
        self._run, self._leaves, self._longest = run, leaves, longest
        self._axes: dict[str, dict[int, str]] = {}
        self._notes: list[str] = []
        self._maxima: dict[str, int] = {}

    def find(self) -> Dynamic:
        """All groups in turn, batch first."""
        places = [(name, axis) for name, leaf in self._leaves.items() for axis in range(leaf.dim())]
        firsts = [place for place in places if place[1] == 0]
        batch = [place for place in firsts if self._size(place) == self._size(firsts[0])]
        self._settle(batch, BATCH)
        rest = [place for place in places if place not in batch]
        encoder = self._encoder(rest)
        if encoder:
            self._settle(encoder, ENCODER)
            rest = [place for place in rest if place not in encoder]
        past = [place for place in rest if self._is_past(place)]
        sequence = self._sequence([place for place in rest if place not in past])
        both = self._sums(rest, past, sequence)
        if past:
            self._settle(past, PAST, growing=both)
        if sequence:
            self._settle(sequence, SEQUENCE, growing=both)
            self._limit(sequence, both)
        if past and sequence:
            self._name(both, f"{PAST} + {SEQUENCE}")
        left = [place for place in rest if place not in (*sequence, *both) and not self._is_cache(place)]
        for group in self._by_size(left):  # a cache's heads and widths are the module's own
            self._settle_apart(group)
        return Dynamic(self._axes, tuple(self._notes), self._maxima)

    def _size(self, place: Place) -> int:
        return self._leaves[place[0]].shape[place[1]]

    def _is_past(self, place: Place) -> bool:
        """A cache's axis of positions: the last but one, everywhere the same."""
        name, axis = place
        return name.endswith((".key", ".value")) and axis == self._leaves[name].dim() - 2

    def _encoder(self, places: Sequence[Place]) -> list[Place]:
        """The axis of positions of a cross-attention's cache, and of all that runs along with it."""
        cached = [place for place in places if ".encoder." in place[0] and self._is_past(place)]
        sizes = {self._size(place) for place in cached}
        return [p for p in places if p in cached or (p[1] == 1 and self._size(p) in sizes and not self._is_cache(p))]

    def _sequence(self, places: Sequence[Place]) -> list[Place]:
        """The second axis of the first integer input, and all that have its size."""
        whole = [p for p in places if p[1] == 1 and not self._leaves[p[0]].is_floating_point()]
        if not whole:
            return []
        return [place for place in places if place[1] == 1 and self._size(place) == self._size(whole[0])]

    def _sums(self, places: Iterable[Place], past: Sequence[Place], sequence: Sequence[Place]) -> list[Place]:
        """Axes that span a past and what follows it."""
        if not past or not sequence:
            return []
        total = self._size(past[0]) + self._size(sequence[0])
        taken = (*past, *sequence)
        return [p for p in places if p not in taken and self._size(p) == total and not self._is_cache(p)]

    def _is_cache(self, place: Place) -> bool:
        return place[0].endswith((".key", ".value"))

    def _by_size(self, places: Iterable[Place]) -> list[list[Place]]:
        groups: dict[int, list[Place]] = {}
        for place in places:
            groups.setdefault(self._size(place), []).append(place)
        return list(groups.values())

    def _settle(self, group: Sequence[Place], dim: str, growing: Sequence[Place] = ()) -> None:
        """Name the axes of a group if the module takes them one larger; else say why they stay."""
        self._conclude(group, dim, self._refusal(group, 1, growing))

    def _conclude(self, group: Sequence[Place], dim: str, why: str | None) -> None:
        size = self._size(group[0])
        if size == 1:
            why = "a size of one is not told from a broadcast; give an example with a larger one"
        if why is None:
            self._name(group, dim)
        else:
            self._notes.append(f"{group[0][0]}:{group[0][1]} stays {size}: {why}")

    def _settle_apart(self, group: Sequence[Place]) -> None:
        """Axes of one size with no common meaning: each by itself where the module takes that, else all together."""
        refusals = {place: self._firm_refusal([place]) for place in group}
        if len(group) > 1 and any(refusals.values()):
            self._conclude(group, _own_name(group[0]), self._firm_refusal(group))
            return
        for place, why in refusals.items():
            self._conclude([place], _own_name(place), why)

    def _firm_refusal(self, group: Sequence[Place]) -> str | None:
        """Two sizes must pass: rounding in a pooling layer may hide that one more is too many."""
        return self._refusal(group, 1) or self._refusal(group, self._size(group[0]) // 4 + 2)

    def _limit(self, sequence: Sequence[Place], both: Sequence[Place]) -> None:
        """How long a sequence may get: what the config says, corrected by trying."""
        said, name = self._longest, sequence[0][0]
        if said is None or SEQUENCE not in self._axes.get(name, {}).values():
            return
        if both or said > _LONGEST_TRIED:
            dim = f"{PAST} + {SEQUENCE}" if both else SEQUENCE
            self._notes.append(f"{dim} at most {said}, says the config")
            return
        size = self._size(sequence[0])
        if self._refusal(sequence, said + 1 - size) is None:
            return  # positions are computed, not looked up
        for most in range(said, said - _OFFSETS, -1):
            if self._refusal(sequence, most - size) is None:
                self._maxima[SEQUENCE] = most
                self._notes.append(f"{SEQUENCE} at most {most}")
                return

    def _refusal(self, group: Sequence[Place], more: int, growing: Sequence[Place] = ()) -> str | None:
        """Why the module does not take these axes larger; None where it does."""
        return _refusal(self._run, _larger(self._leaves, (*group, *growing), more))

    def _name(self, places: Iterable[Place], dim: str) -> None:
        for name, axis in places:
            self._axes.setdefault(name, {})[axis] = dim


def larger_examples(
    run: Run, leaves: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]], dims: Iterable[str]
) -> list[dict[str, Tensor]]:
    """For each of these dynamic dimensions, the example with one more of it, where the module accepts that.

    Its values are the example's, repeated: values that depend on each other still do.
    """
    named = [(place, dim_terms(dim)) for place, dim in places_of(axes)]
    examples = (_larger(leaves, [place for place, terms in named if dim in terms], 1) for dim in dims)
    return [example for example in examples if _refusal(run, example) is None]


def places_of(axes: Mapping[str, Mapping[int, str]]) -> Iterator[tuple[Place, str]]:
    """Every dynamic axis with the name of its size."""
    for name, spec in axes.items():
        for axis, dim in spec.items():
            yield (name, axis), dim


def dim_terms(dim: str) -> list[str]:
    """The dimensions that a size is the sum of; most are one."""
    return dim.split(" + ")


def _larger(leaves: Mapping[str, Tensor], places: Iterable[Place], more: int) -> dict[str, Tensor]:
    """The example with longer axes: their first elements follow once more."""
    tensors = dict(leaves)
    for name, axis in places:
        leaf = tensors[name]
        rows = torch.arange(leaf.shape[axis] + more) % leaf.shape[axis]
        tensors[name] = leaf.index_select(axis, rows)
    return tensors


def _refusal(run: Run, tensors: Mapping[str, Tensor]) -> str | None:
    """Why the module does not accept the tensors; None where it does."""
    try:
        with torch.no_grad(), quietly():
            run(list(tensors.values()))
    except Exception as error:  # a forward may raise anything, and its refusal is the answer that is asked for
        return reason(error)
    return None


def _own_name(place: Place) -> str:
    return f"{place[0].replace('.', '_')}_{place[1]}"
