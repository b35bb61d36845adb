"""The shortest way from one layout of the same parts to another: a Reshape, a Transpose, or up to three of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Shape
from sardonyx.passes._views import reshape_target
from sardonyx.passes.attention._heads import Axes, Axis, Part, fine, flat, same_axes, sizes


@dataclass(frozen=True)
class Steps:
    """Nodes that turn one layout into another."""

    steps: tuple[tuple[str, tuple[int, ...], Shape], ...] = ()  # operator, target or perm, shape after it

    def __len__(self) -> int:
        """How many nodes."""
        return len(self.steps)

    def write(self, value: ir.Value, op: Builder, dtype: ir.DataType | None) -> ir.Value:
        """The value in the new layout."""
        for kind, numbers, shape in self.steps:
            if kind == "Transpose":
                value = op.Transpose(value, perm=list(numbers))
            else:
                value = op.Reshape(value, op.constant(np.array(numbers, np.int64), "target"))
            op.learn(value, dtype, shape)
        return value


def way(have: Axes, want: Axes) -> Steps | None:
    """The fewest nodes from one layout to another of the same parts; None where a shape cannot be written down."""
    if same_axes(have, want):
        return Steps()
    if flat(have) == flat(want):
        return _reshape(have, want)
    if set(flat(have)) != set(flat(want)):
        return None
    apart, ordered = _pieces(have, want)
    perm = _permutation(apart, ordered)
    assert perm is not None, "the same pieces in another order"
    before, after = _reshape(have, apart), _reshape(ordered, want)
    if before is None or after is None:
        return None
    return Steps((*before.steps, ("Transpose", perm, sizes(ordered)), *after.steps))


def _reshape(have: Axes, want: Axes) -> Steps | None:
    """From one layout to another with the same order of parts."""
    if same_axes(have, want):
        return Steps()
    target = reshape_target(sizes(have), sizes(want))
    return None if target is None else Steps((("Reshape", target, sizes(want)),))


def _pieces(have: Axes, want: Axes) -> tuple[Axes, Axes]:
    """The axes that change places, in the order they are in and in the one they get.

    Dims of one are carried along so that, where one can be, one side is the layout itself and needs no Reshape.
    """
    places = [_places(axes) for axes in (have, want)]
    split_have, split_want = ([list(_runs(fine(axis), places)) for axis in axes] for axes in (have, want))
    if all(len(runs) <= 1 for runs in split_want):
        ordered, ones = [list(fine(axis)) for axis in want], split_want.count([])
    else:
        ones = split_have.count([]) if all(len(runs) <= 1 for runs in split_have) else 0
        ordered = [*([] for _ in range(ones)), *(run for runs in split_want for run in runs)]
    apart: Axes = []
    for runs in split_have:
        if runs:
            apart += runs
        elif ones:
            apart.append([])
            ones -= 1
    return [*([] for _ in range(ones)), *apart], ordered


def _permutation(have: Axes, want: Axes) -> tuple[int, ...] | None:
    """How whole axes change places; None where parts of them do."""
    if len(have) != len(want):
        return None
    left = list(range(len(have)))
    perm: list[int] = []
    for axis in want:
        found = next((index for index in left if fine(have[index]) == fine(axis)), None)
        if found is None:
            return None
        left.remove(found)
        perm.append(found)
    return tuple(perm)


def _places(axes: Axes) -> dict[Part, tuple[int, int]]:
    """On which axis each part stands, and where."""
    return {part: (index, place) for index, axis in enumerate(axes) for place, part in enumerate(fine(axis))}


def _runs(axis: Axis, places: Sequence[Mapping[Part, tuple[int, int]]]) -> Iterator[Axis]:
    """The longest runs of parts of an axis that stay together in all layouts."""
    run: Axis = []
    for part in axis:
        if run and any(place[part] != (place[run[-1]][0], place[run[-1]][1] + 1) for place in places):
            yield run
            run = []
        run.append(part)
    if run:
        yield run
