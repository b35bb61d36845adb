"""A Comparison as a document: the module tree of both models, then what was removed, added, moved and changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sardonyx.records.comparison import Comparison, OpRef, Pair, Side
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Column,
    Document,
    Facts,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Tone,
    View,
    text_column,
)
from sardonyx.reporting.module_rows import module_cell, module_rows

_SHOWN = 8  # rows of a list that is not asked for in full


def comparison_document(comparison: Comparison, view: View) -> Document:
    """Return the answer of `compare`."""
    return Document(
        title="Comparison",
        head=(Facts({"first": _side(comparison.before), "second": _side(comparison.after)}),),
        blocks=(
            _operators(comparison, view),
            _modules(comparison, view),
            _paths("Modules only in the first", comparison.only_before, view),
            _paths("Modules only in the second", comparison.only_after, view),
            _nodes("Removed", comparison.removed, view),
            _nodes("Added", comparison.added, view),
            _pairs("Moved", comparison.moved, view),
            _pairs("Changed", comparison.changed, view),
        ),
        sentence=Span(comparison_sentence(comparison), Tone.STRONG),
    )


def comparison_sentence(comparison: Comparison) -> str:
    """Return the difference in one line."""
    before, after = comparison.before.nodes, comparison.after.nodes
    if comparison.same:
        return f"{formatting.plural(after, 'node')} in both: the same operators in the same modules"
    changes = {
        "removed": comparison.removed,
        "added": comparison.added,
        "moved": comparison.moved,
        "changed": comparison.changed,
    }
    counts = ", ".join(f"{formatting.count(len(items))} {word}" for word, items in changes.items())
    return f"{formatting.count(before)} → {formatting.count(after)} nodes: {counts}"


def _side(side: Side) -> str:
    constants = formatting.plural(side.constants, "constant")
    initializers = formatting.plural(side.initializers, "initializer")
    nodes = f"{formatting.plural(side.nodes, 'node')} (plus {constants}), {initializers}"
    wrapper = f"; everything is in {formatting.name(side.wrapper)}, which is left out below" if side.wrapper else ""
    return f"{side.name}: {nodes}{wrapper}"


def _operators(comparison: Comparison, view: View) -> Section:
    columns = (text_column("operator"), Column("first"), Column("second"), Column("change"))
    rows = [
        Row(
            (
                formatting.name(op.op_type),
                formatting.count(op.before),
                formatting.count(op.after),
                formatting.change(op.after - op.before),
            )
        )
        for op in comparison.ops
        if op.before != op.after or view.verbose
    ]
    return Section("Operators", (Table(columns, rows),))


def _modules(comparison: Comparison, view: View) -> Section:
    headings = ("first", "second", "removed", "added", "moved here", "changed")
    modules = [(m.path, m.tag, (m.before, m.after, m.removed, m.added, m.moved, m.changed)) for m in comparison.modules]
    rows = [
        Row(
            (
                module_cell(row),
                *map(formatting.count, row.total[:2]),
                *(formatting.count(number) if number else "·" for number in row.total[2:]),
                formatting.name(row.branch.tag),
            )
        )
        for row in module_rows(modules, view)
    ]
    columns = (text_column("module"), *map(Column, headings), text_column("kind"))
    return Section("Modules", (Table(columns, rows),))


def _paths(title: str, paths: Sequence[str], view: View) -> Section:
    return _list(title, ("module",), [Row((formatting.name(path),)) for path in paths], view)


def _nodes(title: str, nodes: Iterable[OpRef], view: View) -> Section:
    rows = [Row((formatting.name(op.op_type), formatting.module(op.module), formatting.name(op.name))) for op in nodes]
    return _list(title, ("operator", "module", "node"), rows, view)


def _pairs(title: str, pairs: Iterable[Pair], view: View) -> Section:
    rows = [
        Row(
            (
                formatting.name(pair.after.op_type),
                _from_to(formatting.module(pair.before.module), formatting.module(pair.after.module)),
                _from_to(formatting.name(pair.before.name), formatting.name(pair.after.name)),
                "; ".join(pair.what),
            )
        )
        for pair in pairs
    ]
    return _list(title, ("operator", "module", "node", "what"), rows, view)


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _list(title: str, headings: Sequence[str], rows: Sequence[Row], view: View) -> Section:
    shown = rows if view.verbose else rows[:_SHOWN]
    more = "" if len(shown) == len(rows) else f"and {len(rows) - len(shown)} more; -v lists all"
    table = Table([text_column(heading) for heading in headings], shown)
    return Section(f"{title} ({formatting.count(len(rows))})", (table, Paragraph(more, Tone.FAINT)))
