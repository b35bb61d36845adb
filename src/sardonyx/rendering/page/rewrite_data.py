"""All rewrites of a run for the data island: each once, as numbers that stand for names, modules and its shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from sardonyx.record import Event, PassRecord, Run
from sardonyx.rendering import words
from sardonyx.rendering.page.rewrite_shapes import Shape, Shaped, shaped
from sardonyx.rendering.page.strings import Strings
from sardonyx.rendering.places import where

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
        "algebra": words.one_line(record.algebra),
        "accuracy": record.accuracy.value,
        "about": words.one_line(record.about),
        "nodes": record.nodes,
        "constants": record.constants,
        "initializers": record.initializers,
        "bytes": record.bytes,
    }
