"""A Placement as a document: which nodes and modules are on a device, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.records.bench import AwayNodes, Placement
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Block,
    Column,
    Document,
    Facts,
    Notes,
    Row,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    text_column,
)
from sardonyx.reporting.measures import SHARE
from sardonyx.reporting.module_rows import module_cell, module_rows

REASONS: dict[str, str] = {
    "elsewhere": "no kernel: falls back to the CPU",
    "fails": "not supported: the model does not load",
    "wrong": "other values than on the CPU",
    "depends": "on the device with some attributes only",
    "unknown": "not measured",
}
_GROUPS = 8  # shown; -v shows all


def placement_document(record: Placement, view: View) -> Document:
    """Return the answer of `placement`."""
    facts: dict[str, Text] = {
        "device": formatting.one_line(f"{record.device}, {record.runtime}"),
        "profile": formatting.one_line(f"measured {record.measured}"),
        "nodes": _counted(record),
        "arithmetic not on the device": SHARE.write(record.away_flops),
        "copies between device and CPU": formatting.count(record.copies),
    }
    return Document(
        title=record.model,
        head=(Facts(facts), *([Notes(list(map(formatting.one_line, record.notes)))] if record.notes else ())),
        blocks=tuple(_blocks(record, view)),
        sentence=Span(placement_sentence(record), Tone.STRONG),
    )


def placement_sentence(record: Placement) -> str:
    """Return how many nodes are on the device, in one line."""
    away = record.fallback_nodes + record.unsupported_nodes + record.unknown_nodes
    if not away:
        return f"all {formatting.plural(record.nodes, 'node')} run on {record.device}"
    modules = sum(bool(each.away) for each in record.modules)
    place = f", in {formatting.plural(modules, 'module')}" if any(each.path for each in record.modules) else ""
    return f"{formatting.count(away)} of {formatting.plural(record.nodes, 'node')} do not run on {record.device}{place}"


def _counted(record: Placement) -> str:
    parts = {
        "on the device": record.device_nodes,
        "shape computations on the CPU": record.host_nodes,
        "fall back to the CPU": record.fallback_nodes,
        "not supported": record.unsupported_nodes,
        "not measured": record.unknown_nodes,
    }
    return ", ".join(f"{formatting.count(number)} {name}" for name, number in parts.items() if number)


def _blocks(record: Placement, view: View) -> Iterator[Block]:
    if not record.away:
        return
    rows = [
        Row((module_cell(row), *map(formatting.count, row.total[:2]), _share(row.total[3], record)))
        for row in module_rows(
            ((each.path, each.tag, (each.nodes, each.away, each.flops, each.away_flops)) for each in record.modules),
            view,
        )
        if row.total[1]
    ]
    if rows:
        columns = (text_column("module"), Column("nodes"), Column("away"), Column("of all arithmetic", detail=1))
        yield Section("Modules with nodes away from the device", (Table(columns, rows),))
    shown = record.away if view.verbose else record.away[:_GROUPS]
    lines = [Row(_group(each)) for each in shown]
    if len(record.away) > len(shown):
        lines.append(Row((f"and {formatting.count(len(record.away) - len(shown))} more: -v",)))
    columns = (text_column("operator"), text_column("types", detail=1), Column("nodes"), text_column("why"))
    yield Section("Nodes away from the device", (Table(columns, lines),))


def _share(flops: int, record: Placement) -> str:
    everything = sum(each.flops for each in record.modules)
    return SHARE.write(flops / everything) if everything else ""


def _group(each: AwayNodes) -> tuple[str, ...]:
    operator, types, why = away_cells(each)
    return operator, types, formatting.count(len(each.nodes)), why


def away_cells(each: AwayNodes) -> tuple[str, str, str]:
    """Return the operator of a group of nodes, the types of its inputs, and why it is not on the device."""
    domain, _, name = each.operator.rpartition(":")
    operator = (f"{formatting.name(domain)}::" if domain else "") + formatting.name(name)
    return operator, formatting.one_line(", ".join(kind or "–" for kind in each.types)), REASONS[each.where]
