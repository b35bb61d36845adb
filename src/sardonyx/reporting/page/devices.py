"""The devices on the page: which nodes and modules do not run on each of them, and why, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from sardonyx.records.bench import AwayNodes, Placement
from sardonyx.records.run import Wiring
from sardonyx.reporting import formatting
from sardonyx.reporting.document import Block, Cell, Column, Paragraph, Row, Span, Table, Text, Tone, View, text_column
from sardonyx.reporting.document import Section as Blocks
from sardonyx.reporting.measures import SHARE
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.page.section import Section
from sardonyx.reporting.placement import REASONS, away_cells
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.writers import html

Devices: TypeAlias = Mapping[str, tuple[Placement, Placement]]
_MODULES = 40  # rows
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
    blocks = (Paragraph(_HOW, Tone.FAINT), _summary(devices), *_by_module(devices), *_reasons(devices))
    return Section("devices", "Devices", html.write(blocks))


def _summary(devices: Devices) -> Table:
    columns = ("nodes on it", "fall back to the CPU", "not supported", "not measured", "copies", "arithmetic elsewhere")
    rows = (
        (
            Span(formatting.name(device), target=f"#device={quote(device)}&section=graph"),
            formatting.one_line(before.runtime),
            _both(before.device_nodes, after.device_nodes),
            _both(before.fallback_nodes, after.fallback_nodes),
            _both(before.unsupported_nodes, after.unsupported_nodes),
            _both(before.unknown_nodes, after.unknown_nodes),
            _both(before.copies, after.copies),
            formatting.from_to(SHARE.write(before.away_flops), SHARE.write(after.away_flops)),
        )
        for device, (before, after) in devices.items()
    )
    return Table.of((text_column("device"), text_column("measured with"), *columns), rows)


def _both(before: int, after: int) -> str:
    return formatting.count(before) if before == after else f"{formatting.count(before)} → {formatting.count(after)}"


def _by_module(devices: Devices) -> Iterator[Block]:
    """Yield the table of the modules with a node that does not run on one of the devices."""
    sides = [placed for both in devices.values() for placed in both]
    away = [{each.path: each.away for each in placed.modules} for placed in sides]
    tags = {each.path: each.tag for placed in reversed(sides) for each in placed.modules}
    modules = ((path, tag, tuple(counts.get(path, 0) for counts in away)) for path, tag in tags.items())
    rows = [row for row in module_rows(modules, View(rows=_MODULES)) if any(row.total)]
    columns = (text_column("module"), *(Column(formatting.name(device)) for device in devices))
    cells = (
        Row((_linked(module_cell(row), row.branch.path), *map(_both, row.total[::2], row.total[1::2]))) for row in rows
    )
    if rows:
        yield Blocks("Nodes that do not run on the device, by module", (Table(columns, list(cells)),))


def _linked(cell: Cell, path: str) -> Cell:
    return Cell(Span(str(cell.text), target=f"#module={quote(path)}"), cell.depth)


def _reasons(devices: Devices) -> Iterator[Block]:
    columns = (text_column("operator"), text_column("types of its inputs"), "before", "after", text_column("why"))
    for device, (before, after) in devices.items():
        counts = [{_key(each): len(each.nodes) for each in placed.away} for placed in (before, after)]
        groups = {_key(each): each for each in (*before.away, *after.away)}
        rows: list[Sequence[Text]] = []
        for key, each in groups.items():
            operator, types, why = away_cells(each)
            rows.append((operator, types, *(formatting.count(side.get(key, 0)) for side in counts), why))
        title = f"Operators that do not run on {formatting.name(device)}"
        yield Blocks(title, (Table.of(columns, rows),) if rows else (), folded=True)


def _key(each: AwayNodes) -> tuple[str, tuple[str, ...], str]:
    return each.operator, each.types, each.where


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
