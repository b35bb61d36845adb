"""What was rewritten where and why: every rewrite of the run, by pass and shape, each with its small graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sardonyx.records.run import Event, NodeRef, PassRecord, RewriteKind, Run
from sardonyx.reporting import formatting
from sardonyx.reporting.module_paths import where
from sardonyx.reporting.page.section import Section, Strings, rendered
from sardonyx.reporting.plots.drawing import LONGEST, box_width, frame_of
from sardonyx.reporting.run_bundle import RunBundle

# The shape of a rewrite: which operators it found, how they were joined, what it put there. Names are no part of it.
#
# Rewrites of one pass with one shape are told as one, and drawn from one layout with the names of each.

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
        widths = [box_width(f"− {formatting.name(part.op_type, LONGEST)}") for part in parts]
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


# All rewrites of a run for the data island: each once, as numbers that stand for names, modules and its shape.

DRAWN = 1000  # shapes, the most frequent: where all rewrites differ, their drawings would outgrow the page


def rewrite_data(run: Run) -> dict[str, Any]:
    """What `assets/rewrites.js` reads.

    An event is `[shape, owner, origins, owners of its nodes, body, replaced value, names of nodes and of values …]`:
    modules are places in `modules`, lists of modules places in `lists`, everything else is a place in `names`.
    """
    found = shaped(run.events, run.wiring_after.names if run.wiring_after else ())
    names = Strings(text for event, each in zip(run.events, found, strict=True) for text in _names(event, each))
    modules = Strings(path for event, each in zip(run.events, found, strict=True) for path in _modules(event, each))
    shapes = {shape: place for place, shape in enumerate(dict.fromkeys(each.shape for each in found))}
    lists: dict[tuple[int, ...], int] = {}

    def listed(paths: Sequence[str]) -> int:
        return lists.setdefault(tuple(modules.at[path] for path in paths), len(lists))

    events = [
        [
            shapes[each.shape],
            modules.at[event.owner],
            listed(event.origins),
            listed([node.owner for node in each.nodes]),
            *(names.at[text] for text in _names(event, each)),
        ]
        for event, each in zip(run.events, found, strict=True)
    ]
    return {
        "names": names.data(),
        "modules": modules.data(),
        "lists": list(lists),
        "passes": _passes(run),
        "shapes": _shapes(run.events, found, list(shapes)),
        "events": events,
    }


def _names(event: Event, each: Shaped) -> list[str]:
    """Everything a rewrite names: body, replaced value, nodes, values."""
    return [event.graph, event.root, *(node.name for node in each.nodes), *each.values]


def _modules(event: Event, each: Shaped) -> list[str]:
    return [event.owner, *event.origins, *(node.owner for node in each.nodes)]


def _shapes(events: Sequence[Event], found: Sequence[Shaped], shapes: Sequence[Shape]) -> list[dict[str, Any]]:
    owners = defaultdict[Shape, Counter[str]](Counter)
    for event, each in zip(events, found, strict=True):
        owners[each.shape][event.owner] += 1
    drawn = {shape for shape, _count in Counter(each.shape for each in found).most_common(DRAWN)}
    return [{**_shape(shape, shape in drawn), "where": where(owners[shape])} for shape in shapes]


def _shape(shape: Shape, is_drawn: bool) -> dict[str, Any]:
    before, after = shape.drawings() if is_drawn else (None, None)
    return {
        "pass": shape.pass_name,
        "kind": shape.kind,
        "source": shape.source,
        "root": shape.root,
        "parts": [[part.op_type, part.state.value, part.inputs, part.outputs] for part in shape.parts],
        "counted": shape.counted,
        "before": before,
        "after": after,
    }


def _passes(run: Run) -> list[dict[str, Any]]:
    """What is said of each pass that rewrote something, in the order they ran."""
    names = dict.fromkeys(event.pass_name for event in run.events)
    known = {record.name: record for record in run.passes}
    order = [name for name in known if name in names] + [name for name in names if name not in known]
    return [_pass(name, known.get(name)) for name in order]


def _pass(name: str, record: PassRecord | None) -> dict[str, Any]:
    if record is None:
        return {"name": name}
    return {
        "name": name,
        "algebra": formatting.one_line(record.algebra),
        "accuracy": record.accuracy.value,
        "about": formatting.one_line(record.about),
        "nodes": record.nodes,
        "constants": record.constants,
        "initializers": record.initializers,
        "bytes": record.bytes,
    }


KINDS = {
    RewriteKind.FUSE: "new nodes do the work of the old ones",
    RewriteKind.SHARE: "an equal one that was there already works for both",
    RewriteKind.FOLD: "a constant holds the result",
    RewriteKind.BYPASS: "it computed nothing, and its readers read what it read",
    RewriteKind.DROP: "nothing used the result",
}


def section(dossier: RunBundle) -> Section:
    """The table that reads and prints by itself, and what the script needs to open each rewrite."""
    run = dossier.run
    active = sorted((each for each in run.passes if each.rewrites), key=lambda each: (-each.rewrites, each.name))
    rows = [(each, where(each.modules)) for each in active]
    used = {event.kind for event in run.events}
    kinds = {kind.value: said for kind, said in KINDS.items() if kind in used}
    html = rendered("rewrites", rows=rows, total=len(run.events), kinds=kinds)
    return Section("rewrites", "What was rewritten, and why", html, rewrite_data(run) if run.events else None)
