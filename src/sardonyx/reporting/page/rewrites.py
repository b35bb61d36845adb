"""The rewrites and the missed fusions on the page: each rewrite by pass and shape, each near match with its reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct

from sardonyx.records.run import Event, NodeRef, PassRecord, RefusalGroup, RewriteKind, Run
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.module_rows import places, where
from sardonyx.reporting.page.section import Section, Strings, rendered
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import claims_cell, claims_line

SHOWN_PLACES = 3


def pass_table(run: Run) -> dict[str, Any]:
    """Return the values of the template: a row for each pass that rewrote something, and those that found nothing."""
    verdict, active = run.verdict, list[dict[str, Any]]()
    for record in run.passes:
        if record.rewrites:
            listed, claims = places(record.modules), claims_cell(verdict, record.name)
            shown, more = listed[:SHOWN_PLACES], max(0, len(listed) - SHOWN_PLACES)
            active.append({"record": record, "claims": claims, "places": shown, "more": more})
    return {
        "active": active,
        "silent": [record for record in run.passes if not record.rewrites],
        "claims": claims_line(verdict.rewrites) if verdict is not None and verdict.rewrites is not None else "",
        "seconds": sum(record.seconds for record in run.passes),
    }


UNFOLDED_PASSES = 3  # passes whose reasons are shown unfolded
PLACES_SHOWN = 2  # of a reason


class Refusing(Struct, frozen=True):
    """A pass that skipped matches, and its reasons, most frequent first."""

    record: PassRecord
    groups: tuple[RefusalGroup, ...]

    @property
    def count(self) -> int:
        """Skipped matches of all reasons."""
        return sum(group.count for group in self.groups)


def missed_section(bundle: RunBundle) -> Section:
    """Return all missed fusions as text; the script hides those outside the selected module."""
    skipping = refusing(bundle.run)
    total = sum(skipped.count for skipped in skipping)
    markup = rendered("missed", skipping=skipping, open=UNFOLDED_PASSES, places=places, most=PLACES_SHOWN, total=total)
    skips = [skipped.groups for skipped in skipping]  # in the order of the markup
    modules = list(dict.fromkeys(path for groups in skips for group in groups for path in group.modules))
    at = {path: place for place, path in enumerate(modules)}
    counted = [
        [[group.count, [[at[path], count] for path, count in group.modules.items()]] for group in groups]
        for groups in skips
    ]
    return Section("missed", "Missed fusions", markup, {"modules": modules, "passes": counted} if skipping else None)


def refusing(run: Run) -> list[Refusing]:
    """Return the passes that skipped matches, those with most of them first."""
    skipping = [
        Refusing(record, tuple(sorted(record.refusals, key=lambda group: (-group.count, group.reason))))
        for record in run.passes
        if record.refusals
    ]
    return sorted(skipping, key=lambda skipped: (-skipped.count, skipped.record.name))


# The shape of a rewrite: the operators it matched, how they were connected, and what replaced them, without names.
#
# Rewrites of one pass with one shape are shown as one, and drawn from one layout with the names of each.

MAX_DRAWN_NODES = 60  # nodes of a rewrite that is drawn and whose nodes are listed


class State(StrEnum):
    """What became of a node; the kinds of boxes in drawings."""

    KEPT = "op"  # matched, and still read by others
    GONE = "gone"
    MADE = "made"


class DrawnNode(NamedTuple):
    """A node without its name; values are numbered in the order in which the rewrite mentions them, -1 if omitted."""

    op_type: str
    state: State
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Shape(NamedTuple):
    """The common part of equal rewrites."""

    pass_: str
    kind: str
    source: str  # file:line of the pass
    root: int  # the number of the value that was replaced, -1 if no node mentions it
    parts: tuple[DrawnNode, ...]  # the matched nodes, then the new ones
    counted: tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]  # operators before and after


class Shaped(Struct, frozen=True):
    """A rewrite, split into its shape and its names."""

    shape: Shape
    nodes: tuple[NodeRef, ...]  # in the order of the shape's parts; empty if there are more than MAX_DRAWN_NODES
    values: tuple[str, ...]  # by number


def shaped(events: Sequence[Event], left: Iterable[str]) -> list[Shaped]:
    """Return every rewrite of a run with its shape; `left` are the nodes of the result.

    A record lists what a rewrite matched, not what it removed: a matched node that a later rewrite matches too, or that
    is in the result, was kept. So the events are read backwards.
    """
    alive, rewrites = set(left), list[Shaped]()
    for event in reversed(events):
        alive.difference_update(node.name for node in event.after)
        kept = {node.name for node in event.before if node.name in alive}
        rewrites.append(_shaped(event, kept))
        alive.update(node.name for node in event.before)
    return rewrites[::-1]


def _shaped(event: Event, kept: set[str]) -> Shaped:
    before, after = (Counter(node.op_type for node in nodes) for nodes in (event.before, event.after))
    counted = tuple(before.most_common()), tuple(after.most_common())
    if len(event.before) + len(event.after) > MAX_DRAWN_NODES:
        return Shaped(Shape(event.pass_name, event.kind.value, event.source, -1, (), counted), (), ())
    states = [State.KEPT if node.name in kept else State.GONE for node in event.before]
    nodes, numbers, parts = (*event.before, *event.after), dict[str, int](), list[DrawnNode]()
    for node, state in zip(nodes, [*states, *[State.MADE] * len(event.after)], strict=True):
        inputs, outputs = (
            tuple(numbers.setdefault(name, len(numbers)) if name else -1 for name in names)
            for names in (node.inputs, node.outputs)
        )
        parts.append(DrawnNode(node.op_type, state, inputs, outputs))
    root = numbers.get(event.root, -1)
    shape = Shape(event.pass_name, event.kind.value, event.source, root, tuple(parts), counted)
    return Shaped(shape, nodes, tuple(numbers))


# All rewrites of a run for the data island: each as numbers that refer to names, modules and its shape.


def rewrite_data(run: Run) -> dict[str, Any]:
    """Return the data that `assets/rewrites.js` reads.

    An event is `[shape, owner, origins, owners of its nodes, body, replaced value, names of nodes and of values …]`:
    modules are indices into `modules`, lists of modules indices into `lists`, everything else is an index into `names`.
    """
    rewrites = shaped(run.events, run.wiring_after.names if run.wiring_after else ())
    pairs = list(zip(run.events, rewrites, strict=True))
    named = [[event.graph, event.root, *(node.name for node in made.nodes), *made.values] for event, made in pairs]
    names = Strings(text for texts in named for text in texts)
    owners = ((event.owner, *event.origins, *(node.owner for node in made.nodes)) for event, made in pairs)
    modules = Strings(path for paths in owners for path in paths)
    lists: dict[tuple[int, ...], int] = {}

    def listed(paths: Sequence[str]) -> int:
        return lists.setdefault(tuple(modules.at[path] for path in paths), len(lists))

    by_shape = defaultdict[Shape, Counter[str]](Counter)  # its owners
    for event, made in pairs:
        by_shape[made.shape][event.owner] += 1
    places = {shape: place for place, shape in enumerate(by_shape)}
    events = [
        [
            *(places[made.shape], modules.at[event.owner]),
            *(listed(event.origins), listed([node.owner for node in made.nodes])),
            *(names.at[text] for text in texts),
        ]
        for (event, made), texts in zip(pairs, named, strict=True)
    ]
    shapes = [
        {name.rstrip("_"): value for name, value in shape._asdict().items()} | {"where": where(owned)}
        for shape, owned in by_shape.items()
    ]
    return {
        "names": names.data(),
        "modules": modules.data(),
        "lists": list(lists),
        "passes": _passes(run),
        "shapes": shapes,
        "events": events,
    }


def _passes(run: Run) -> list[dict[str, Any]]:
    used = dict.fromkeys(event.pass_name for event in run.events)
    recorded = [
        {
            "name": record.name,
            "algebra": fmt.one_line(record.algebra),
            "accuracy": record.accuracy.value,
            "about": fmt.one_line(record.about),
            **{name: getattr(record, name) for name in ("nodes", "constants", "initializers", "bytes")},
            "claims": claims_cell(run.verdict, record.name),
        }
        for record in run.passes
        if record.name in used
    ]
    known = {record.name for record in run.passes}
    return [*recorded, *({"name": name} for name in used if name not in known)]


KINDS = {
    RewriteKind.FUSE: "new nodes do the work of the old ones",
    RewriteKind.SHARE: "an existing equal node serves both",
    RewriteKind.FOLD: "a constant replaces the result",
    RewriteKind.BYPASS: "it was a no-op, and its consumers read its input",
    RewriteKind.DROP: "nothing used the result",
}


def section(bundle: RunBundle) -> Section:
    """Return the table of passes, and the data that the script needs to open each rewrite."""
    run = bundle.run
    used = {event.kind for event in run.events}
    kinds = {kind.value: meaning for kind, meaning in KINDS.items() if kind in used}
    markup = rendered("rewrites", total=len(run.events), kinds=kinds, **pass_table(run))
    return Section("rewrites", "What was rewritten, and why", markup, rewrite_data(run) if run.events else None)
