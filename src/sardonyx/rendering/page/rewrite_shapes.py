"""The shape of a rewrite: which operators it found, how they were joined, what it put there. Names are no part of it.

Rewrites of one pass with one shape are told as one, and drawn from one layout with the names of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sardonyx.record import Event, NodeRef
from sardonyx.rendering import words
from sardonyx.rendering.pictures.drawing import LONGEST, box_width, frame_of

LARGEST = 60  # nodes of a rewrite that is drawn and whose nodes are named one by one
PORT = 15  # characters of a value's name that have room in a layout for many names; REWRITE_PORT in rewrite_detail.js


class State(StrEnum):
    """What became of a node; the kinds of boxes in drawings."""

    KEPT = "op"  # matched, and still read by others
    GONE = "gone"
    MADE = "made"


@dataclass(frozen=True, slots=True)
class Part:
    """A node without its name; values are numbered in the order in which the rewrite mentions them, -1: left out."""

    op_type: str
    state: State
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What equal rewrites have in common."""

    pass_name: str
    kind: str
    source: str  # file:line of the pass
    root: int  # the number of the value that was replaced; -1: not among those of the nodes
    parts: tuple[Part, ...]  # what was found, then what was made
    counted: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]  # operators before, after; most first

    @property
    def is_wired(self) -> bool:
        """Whether the record says what the nodes read and make."""
        return any(part.inputs or part.outputs for part in self.parts)

    def drawings(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Before and after; None where there is nothing to draw."""
        if not self.is_wired:
            return None, None
        before = [at for at, part in enumerate(self.parts) if part.state is not State.MADE]
        after = [at for at, part in enumerate(self.parts) if part.state is not State.GONE]
        return self._drawn(before), self._drawn(after) if after else None

    def _drawn(self, shown: Sequence[int]) -> dict[str, Any]:
        """The nodes, and the values that come in and go out as boxes of their own (their numbers in `ports`)."""
        parts = [self.parts[at] for at in shown]
        makers = {value: at for at, part in enumerate(parts) for value in part.outputs if value >= 0}
        read = {value for part in parts for value in part.inputs if value >= 0}
        come_in = sorted(read - makers.keys())
        go_out = sorted(value for value in makers if value not in read or value == self.root)
        ports = [*come_in, *go_out]
        place = {value: len(parts) + at for at, value in enumerate(come_in)} | makers
        edges = [(place[value], at) for at, part in enumerate(parts) for value in part.inputs if value >= 0]
        edges += [(makers[value], len(parts) + len(come_in) + at) for at, value in enumerate(go_out)]
        widths = [box_width(f"− {words.name(part.op_type, LONGEST)}") for part in parts]
        widths += [box_width("n" * PORT)] * len(ports)
        return {"nodes": shown, "ports": ports, "frame": frame_of(widths, list(dict.fromkeys(edges)))}


@dataclass(frozen=True, slots=True)
class Shaped:
    """A rewrite as its shape and its names."""

    shape: Shape
    nodes: tuple[NodeRef, ...]  # in the order of the shape's parts; none where they are too many to name
    values: tuple[str, ...]  # by number


def shaped(events: Sequence[Event], left: Iterable[str]) -> list[Shaped]:
    """Every rewrite of a run with its shape; `left` are the nodes of the result.

    A record says what a rewrite matched, not what it could remove: a matched node that is there later, as something
    that another rewrite finds or in the result, was kept. So the run is read backwards.
    """
    alive, found = set(left), list[Shaped]()
    for event in reversed(events):
        alive.difference_update(node.name for node in event.after)
        kept = {node.name for node in event.before if node.name in alive}
        found.append(_shaped(event, kept))
        alive.update(node.name for node in event.before)
    return found[::-1]


def _shaped(event: Event, kept: set[str]) -> Shaped:
    counted = _counted(event.before), _counted(event.after)
    if len(event.before) + len(event.after) > LARGEST:
        return Shaped(Shape(event.pass_name, event.kind.value, event.source, -1, (), counted), (), ())
    numbers: dict[str, int] = {}
    parts = [_part(node, State.KEPT if node.name in kept else State.GONE, numbers) for node in event.before]
    parts += [_part(node, State.MADE, numbers) for node in event.after]
    root = numbers.get(event.root, -1)
    shape = Shape(event.pass_name, event.kind.value, event.source, root, tuple(parts), counted)
    return Shaped(shape, (*event.before, *event.after), tuple(numbers))


def _part(node: NodeRef, state: State, numbers: dict[str, int]) -> Part:
    inputs, outputs = (
        tuple(numbers.setdefault(name, len(numbers)) if name else -1 for name in names)
        for names in (node.inputs, node.outputs)
    )
    return Part(node.op_type, state, inputs, outputs)


def _counted(nodes: Sequence[NodeRef]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(node.op_type for node in nodes).most_common())
