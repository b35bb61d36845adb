"""Show which nodes and modules of a model a device runs.

Example:
  sardonyx placement model.onnx webgpu
  sardonyx placement model.onnx cuda --fail-if fallback_nodes
  sardonyx placement model.onnx openvino --json | jq .away

Says which nodes fall back to the CPU, from the profile of the device. It was measured with the device's runtime: here
no runtime is loaded, and no weight is read. A node that computes a shape stays on the CPU on purpose and is not
counted. docs/placement.md lists the devices and says how their profiles are measured.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.cli.options import DEPTH, FORCE, MODEL, PRINTING, RECORD, argument
from sardonyx.cli.verb import Verb
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

_REASONS = {
    "elsewhere": "no kernel: falls back to the CPU",
    "fails": "not supported: the model does not load",
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
    lines = [Row(tuple(_group(each))) for each in shown]
    if len(record.away) > len(shown):
        lines.append(Row((f"and {formatting.count(len(record.away) - len(shown))} more: -v",)))
    columns = (text_column("operator"), text_column("types", detail=1), Column("nodes"), text_column("why"))
    yield Section("Nodes away from the device", (Table(columns, lines),))


def _share(flops: int, record: Placement) -> str:
    everything = sum(each.flops for each in record.modules)
    return SHARE.write(flops / everything) if everything else ""


def _group(each: AwayNodes) -> Iterator[str]:
    domain, _, name = each.operator.rpartition(":")
    yield (f"{formatting.name(domain)}::" if domain else "") + formatting.name(name)
    yield ", ".join(kind or "–" for kind in each.types)
    yield formatting.count(len(each.nodes))
    yield _REASONS[each.where]


VERB = Verb(
    of=("placement",),
    options=(
        MODEL,
        argument("device", "DEVICE", "A device with a profile, or the file of a profile."),
        DEPTH, RECORD, FORCE, *PRINTING,
    ),
    record="placement",
    document=placement_document,
    sentence=placement_sentence,
)  # fmt: skip
