"""A Placement as a document: which nodes and modules are on a device, and why the others are not."""

from __future__ import annotations

from sardonyx.records.bench import AwayNodes, Placement
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, View, text_column
from sardonyx.reporting.measures import SHARE
from sardonyx.reporting.module_rows import module_cell, module_rows

REASONS: dict[str, str] = {
    "elsewhere": "no kernel: falls back to the CPU",
    "fails": "not supported: the model does not load",
    "wrong": "other values than on the CPU",
    "depends": "on the device with some attributes only",
    "unknown": "not measured",
}
_GROUPS_SHOWN = 8  # shown; -v shows all


def placement_document(record: Placement, view: View) -> doc.Document:
    """Return the answer of `placement`."""
    counts = {
        "on the device": record.device_nodes,
        "shape computations on the CPU": record.host_nodes,
        "fall back to the CPU": record.fallback_nodes,
        "not supported": record.unsupported_nodes,
        "not measured": record.unknown_nodes,
    }
    facts: dict[str, Text] = {
        "device": fmt.one_line(f"{record.device}, {record.runtime}"),
        "profile": fmt.one_line(f"measured {record.measured}"),
        "nodes": ", ".join(f"{fmt.count(number)} {name}" for name, number in counts.items() if number),
        "arithmetic not on the device": SHARE.write(record.away_flops),
        "copies between device and CPU": record.copies,
    }
    modules = ((each.path, each.tag, (each.nodes, each.away, each.flops, each.away_flops)) for each in record.modules)
    flops = sum(each.flops for each in record.modules)
    rows = [
        Row((module_cell(row), *row.total[:2], SHARE.write(row.total[3] / flops) if flops else ""))
        for row in (module_rows(modules, view) if record.away else ())
        if row.total[1]
    ]
    groups: list[Row] = []
    for each in record.away if view.verbose else record.away[:_GROUPS_SHOWN]:
        operator, types, why = away_cells(each)
        groups.append(Row((operator, types, len(each.nodes), why)))
    if (rest := len(record.away) - len(groups)) > 0:
        groups.append(Row((f"and {fmt.count(rest)} more: -v",)))
    columns = (text_column("module"), Column("nodes"), Column("away"), Column("of all arithmetic", 1))
    of_groups = (text_column("operator"), text_column("types", 1), Column("nodes"), text_column("why"))
    return doc.Document(
        title=record.model,
        head=(doc.Facts(facts), doc.Notes(list(map(fmt.one_line, record.notes)))),
        blocks=(
            doc.Section("Modules with nodes away from the device", (doc.Table(columns, rows),)),
            doc.Section("Nodes away from the device", (doc.Table(of_groups, groups),)),
        ),
        sentence=Span(placement_sentence(record), Tone.STRONG),
    )


def placement_sentence(record: Placement) -> str:
    """Return how many nodes are on the device, in one line."""
    away = record.fallback_nodes + record.unsupported_nodes + record.unknown_nodes
    if not away:
        return f"all {fmt.plural(record.nodes, 'node')} run on {record.device}"
    modules = sum(bool(each.away) for each in record.modules)
    place = f", in {fmt.plural(modules, 'module')}" if any(each.path for each in record.modules) else ""
    return f"{fmt.count(away)} of {fmt.plural(record.nodes, 'node')} do not run on {record.device}{place}"


def away_cells(each: AwayNodes) -> tuple[str, str, str]:
    """Return the operator of a group of nodes, the types of its inputs, and why it is not on the device."""
    domain, _, name = each.operator.rpartition(":")
    operator = (f"{fmt.name(domain)}::" if domain else "") + fmt.name(name)
    return operator, fmt.one_line(", ".join(kind or "–" for kind in each.types)), REASONS[each.where]
