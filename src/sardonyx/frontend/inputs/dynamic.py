"""`--dynamic auto`: finds the dynamic axes of the inputs by running the module with one group of axes changed.

Axes with the same size in the example form a group: batch is the first axis of all inputs, a sequence is an axis of ids
and masks alike. A mask over a past and the tokens after it grows with both. An axis stays fixed if the module refuses
another size; the note gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from msgspec import Struct
from torch import Tensor

from sardonyx.errors import reason
from sardonyx.frontend.inputs.candidates import Role, role_of
from sardonyx.frontend.running import quietly

InputAxis: TypeAlias = tuple[str, int]  # name of an input, and one of its axes
Run: TypeAlias = Callable[[Sequence[Tensor]], object]

BATCH, SEQUENCE, PAST, ENCODER = "batch", "sequence", "past_sequence", "encoder_sequence"
_MAX_TRIED_SIZE = 1024
_MAX_TABLE_OFFSET = 4  # position tables may reserve a few rows
_GENERIC = {"input", "inputs", "ids", "tokens", "attention", "mask"}  # words that say nothing about which sequence


class Dynamic(Struct, frozen=True):
    """The dynamic axes by input, and notes for the user."""

    axes: dict[str, dict[int, str]]
    notes: tuple[str, ...] = ()


def find_dynamic(run: Run, leaves: Mapping[str, Tensor], *, longest: int | None = None) -> Dynamic:
    """Find the axes that the module accepts in another size.

    Args:
        run: Calls the module on flat tensors, in the order of `leaves`; raises if it refuses them.
        leaves: The example's flat inputs by name.
        longest: The number of positions in the module's config; verified by running if it is small.
    """
    return _Finder(run, leaves, longest).find()


class _Finder:
    def __init__(self, run: Run, leaves: Mapping[str, Tensor], longest: int | None) -> None:
        self._run, self._leaves, self._longest = run, leaves, longest
        self._axes: dict[str, dict[int, str]] = {}
        self._notes: list[str] = []

    def find(self) -> Dynamic:
        """Try all groups, batch first."""
        places = [(name, axis) for name, leaf in self._leaves.items() for axis, size in enumerate(leaf.shape) if size]
        firsts = [place for place in places if place[1] == 0]
        batch = [place for place in firsts if self._size(place) == self._size(firsts[0])]
        if batch:
            self._settle(batch, BATCH)
        rest = [place for place in places if place not in batch]
        encoder = self._encoder(rest)
        if encoder:
            self._settle(encoder, ENCODER)
            rest = [place for place in rest if place not in encoder]
        past = [place for place in rest if self._is_past(place)]
        sequence = self._sequence([place for place in rest if place not in past])
        both: list[InputAxis] = []  # axes that span a past and the new tokens
        if past and sequence:
            total, taken = self._size(past[0]) + self._size(sequence[0]), (*past, *sequence)
            both = [p for p in rest if p not in taken and self._size(p) == total and not self._is_cache(p)]
        if past:
            self._settle(past, PAST, growing=both)
        if sequence:
            self._settle(sequence, SEQUENCE, growing=both)
            self._limit(sequence, SEQUENCE, both)
        if past and sequence:
            self._name(both, f"{PAST} + {SEQUENCE}")
        left = [place for place in rest if place not in (*sequence, *both) and not self._is_cache(place)]
        while other := self._sequence(left):
            name = other[0][0]  # `decoder_sequence` for `decoder_input_ids`
            words = [word for word in name.replace(".", "_").split("_") if word not in _GENERIC]
            dim = "_".join([*(words or [name]), SEQUENCE])
            self._conclude(other, dim, self._firm_refusal(other))
            self._limit(other, dim)
            left = [place for place in left if place not in other]
        groups: dict[int, list[InputAxis]] = {}
        for place in left:  # a cache's heads and widths are fixed by the module
            groups.setdefault(self._size(place), []).append(place)
        for group in groups.values():
            self._settle_apart(group)
        return Dynamic(self._axes, tuple(self._notes))

    def _size(self, place: InputAxis) -> int:
        return self._leaves[place[0]].shape[place[1]]

    def _is_past(self, place: InputAxis) -> bool:
        """Return whether this is the axis of positions of a cache: the last but one."""
        name, axis = place
        return name.endswith((".key", ".value")) and axis == self._leaves[name].dim() - 2

    def _encoder(self, places: Sequence[InputAxis]) -> list[InputAxis]:
        """Return the position axes of a cross-attention's cache, and all axes of the same length."""
        cached = [place for place in places if ".encoder." in place[0] and self._is_past(place)]
        sizes = {self._size(place) for place in cached}
        return [p for p in places if p in cached or (p[1] == 1 and self._size(p) in sizes and not self._is_cache(p))]

    def _sequence(self, places: Sequence[InputAxis]) -> list[InputAxis]:
        """Return the axis of positions of the first integer input, and all axes like it: second axes of its size.

        If other integer inputs have the same three axes, an item consists of several texts: positions are last.
        """
        integer = [p for p in places if p[1] == 1 and not self._leaves[p[0]].is_floating_point()]
        integer = [place for place in integer if role_of(place[0]) is not Role.SIZES]
        if not integer:
            return []
        shape = self._leaves[integer[0][0]].shape
        alike = [place for place in integer if self._leaves[place[0]].shape == shape]
        axis = 2 if len(shape) == 3 and len(alike) > 1 else 1
        return [place for place in places if place[1] == axis and self._size(place) == shape[axis]]

    def _is_cache(self, place: InputAxis) -> bool:
        return place[0].endswith((".key", ".value"))

    def _settle(self, group: Sequence[InputAxis], dim: str, growing: Sequence[InputAxis] = ()) -> None:
        """Name the axes of a group if the module accepts them one larger; otherwise note why they stay fixed."""
        self._conclude(group, dim, self._refusal(group, 1, growing))

    def _conclude(self, group: Sequence[InputAxis], dim: str, why: str | None) -> None:
        size = self._size(group[0])
        if size == 1:
            why = "a size of 1 may be a broadcast; give an example with a larger size"
        if why is None:
            self._name(group, dim)
        else:
            self._notes.append(f"{group[0][0]}:{group[0][1]} stays {size}: {why}")

    def _settle_apart(self, group: Sequence[InputAxis]) -> None:
        """Settle axes of one size without a common meaning: each by itself, or all together if required."""
        refusals = {place: self._firm_refusal([place]) for place in group}
        if len(group) > 1 and any(refusals.values()):
            self._conclude(group, _own_name(group[0]), self._firm_refusal(group))
            return
        for place, why in refusals.items():
            self._conclude([place], _own_name(place), why)

    def _firm_refusal(self, group: Sequence[InputAxis]) -> str | None:
        """Require two sizes to pass: a pooling layer may round one more element away."""
        return self._refusal(group, 1) or self._refusal(group, self._size(group[0]) // 4 + 2)

    def _limit(self, sequence: Sequence[InputAxis], dim: str, both: Sequence[InputAxis] = ()) -> None:
        """Note the maximum length of a sequence: the config's, corrected by trying."""
        configured, name = self._longest, sequence[0][0]
        if configured is None or dim not in self._axes.get(name, {}).values():
            return
        if both or configured > _MAX_TRIED_SIZE:
            dim = f"{PAST} + {dim}" if both else dim
            self._notes.append(f"{dim} at most {configured}, according to the config")
            return
        size = self._size(sequence[0])
        if self._refusal(sequence, configured + 1 - size) is None:
            return  # positions are computed, not read from a table
        for longest in range(configured, configured - _MAX_TABLE_OFFSET, -1):
            if self._refusal(sequence, longest - size) is None:
                self._notes.append(f"{dim} at most {longest}")
                return

    def _refusal(self, group: Sequence[InputAxis], more: int, growing: Sequence[InputAxis] = ()) -> str | None:
        """Return why the module refuses these axes in a larger size, or None."""
        return refusal(self._run, resized(self._leaves, (*group, *growing), more))

    def _name(self, places: Iterable[InputAxis], dim: str) -> None:
        for name, axis in places:
            self._axes.setdefault(name, {})[axis] = dim


def larger_examples(
    run: Run, leaves: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]], dims: Iterable[str]
) -> list[dict[str, Tensor]]:
    """Return the example with each of these dimensions one larger, if the module accepts it.

    Values of the example are repeated, so that dependencies between values remain.
    """
    named = [(place, dim_terms(dim)) for place, dim in places_of(axes)]
    examples = (resized(leaves, [place for place, terms in named if dim in terms], 1) for dim in dims)
    return [example for example in examples if refusal(run, example) is None]


def places_of(axes: Mapping[str, Mapping[int, str]]) -> Iterator[tuple[InputAxis, str]]:
    """Yield every dynamic axis with the name of its dimension."""
    for name, spec in axes.items():
        for axis, dim in spec.items():
            yield (name, axis), dim


def dim_terms(dim: str) -> list[str]:
    """Return the dimensions that a size is the sum of; usually one."""
    return dim.split(" + ")


def resized(leaves: Mapping[str, Tensor], places: Iterable[InputAxis], more: int) -> dict[str, Tensor]:
    """Return the example with longer or shorter axes: their first elements are repeated at the end, or cut off."""
    tensors = dict(leaves)
    for name, axis in places:
        leaf = tensors[name]
        rows = torch.arange(leaf.shape[axis] + more) % leaf.shape[axis]
        tensors[name] = leaf.index_select(axis, rows)
    return tensors


def refusal(run: Run, tensors: Mapping[str, Tensor]) -> str | None:
    """Return why the module refuses the tensors, or None."""
    try:
        with torch.no_grad(), quietly():
            run(list(tensors.values()))
    except Exception as error:  # a forward may raise anything
        return reason(error)
    return None


def _own_name(place: InputAxis) -> str:
    return f"{place[0].replace('.', '_')}_{place[1]}"
