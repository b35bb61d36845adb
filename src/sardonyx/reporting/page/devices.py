"""The devices on the page: which nodes and modules do not run on each of them, and why, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import quote

from sardonyx.records.bench import Placement
from sardonyx.records.run import Wiring
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Span, Text, Tone, View, text_column
from sardonyx.reporting.measures import SHARE
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.page.section import Section
from sardonyx.reporting.placement import REASONS, away_cells
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.writers import html

Devices: TypeAlias = Mapping[str, tuple[Placement, Placement]]
_MAX_MODULES = 40  # rows
_HOW = (
    "Predicted from profiles: what the runtime of each device did with single nodes. Nothing was run on a device for "
    "this page. Nodes that compute sizes stay on the CPU on purpose and are not counted."
)
ON_HOST = "computes sizes, which stay on the CPU on purpose"


def section(bundle: RunBundle) -> Section | None:
    """Return the numbers of each device, the nodes away by module, and the reasons, or None without a placement."""
    devices = bundle.devices
    if not devices:
        return None
    blocks = (doc.Paragraph(_HOW, Tone.FAINT), _summary(devices), _by_module(devices), *_reasons(devices))
    return Section("devices", "Devices", html.write(blocks))


def _summary(devices: Devices) -> doc.Table:
    columns = ("nodes on it", "fall back to the CPU", "not supported", "not measured", "copies", "arithmetic elsewhere")
    counted = ("device_nodes", "fallback_nodes", "unsupported_nodes", "unknown_nodes", "copies")
    rows = (
        (
            Span(fmt.name(device), target=f"#device={quote(device)}&section=graph"),
            fmt.one_line(before.runtime),
            *(_both(getattr(before, name), getattr(after, name)) for name in counted),
            fmt.from_to(SHARE.write(before.away_flops), SHARE.write(after.away_flops)),
        )
        for device, (before, after) in devices.items()
    )
    return doc.Table.of((text_column("device"), text_column("measured with"), *columns), rows)


def _both(before: int, after: int) -> Text:
    return before if before == after else fmt.counts(before, after)


def _by_module(devices: Devices) -> doc.Section:
    """Return the table of the modules with a node that does not run on one of the devices."""
    sides = [placed for both in devices.values() for placed in both]
    away = [{each.path: each.away for each in placed.modules} for placed in sides]
    tags = {each.path: each.tag for placed in reversed(sides) for each in placed.modules}
    modules = ((path, tag, tuple(counts.get(path, 0) for counts in away)) for path, tag in tags.items())
    rows: list[tuple[Text | doc.Cell, ...]] = []
    for row in module_rows(modules, View(rows=_MAX_MODULES)):
        if any(row.total):
            cell = module_cell(row)
            linked = doc.Cell(Span(str(cell.text), target=f"#module={quote(row.branch.path)}"), cell.depth)
            rows.append((linked, *map(_both, row.total[::2], row.total[1::2])))
    return doc.table_section(
        "Nodes that do not run on the device, by module", ("module", *map(fmt.name, devices)), rows
    )


def _reasons(devices: Devices) -> Iterator[doc.Section]:
    columns = (text_column("operator"), text_column("types of its inputs"), "before", "after", text_column("why"))
    for device, both in devices.items():
        counts = [{(each.operator, each.types, each.where): len(each.nodes) for each in side.away} for side in both]
        groups = {(each.operator, each.types, each.where): away_cells(each) for side in both for each in side.away}
        rows = ((*cells[:2], *(side.get(key, 0) for side in counts), cells[2]) for key, cells in groups.items())
        title = f"Operators that do not run on {fmt.name(device)}"
        yield doc.Section(title, (doc.Table.of(columns, rows),), folded=True)


def device_data(devices: Devices, before: Wiring, after: Wiring) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the names of the devices and the reasons, and for both graphs by device the reasons of their nodes."""
    reasons: dict[tuple[str, str], int] = {("host", ON_HOST): 0}
    sides = [
        {"placed": [_nodes(both[side], wiring, reasons) for both in devices.values()]}
        for side, wiring in enumerate((before, after))
    ]
    return {"devices": list(devices), "reasons": list(reasons)}, sides


def _nodes(placed: Placement, wiring: Wiring, reasons: dict[tuple[str, str], int]) -> list[int]:
    """Return node, reason, node, reason, … of the nodes that are not on the device."""
    found = dict.fromkeys(placed.host, 0)
    for each in placed.away:
        types = ", ".join(kind or "–" for kind in each.types)
        reason = reasons.setdefault((each.where, f"{REASONS[each.where]} (inputs: {types})"), len(reasons))
        found |= dict.fromkeys(each.nodes, reason)
    return [number for at, name in enumerate(wiring.names) if name in found for number in (at, found[name])]
