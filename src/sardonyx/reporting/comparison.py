"""A Comparison as text: the module tree of both models, then what is new, gone, moved and changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sardonyx.records.comparison import Comparison, OpRef, Pair, Side
from sardonyx.reporting import formatting
from sardonyx.reporting.inspection import module_name, titled
from sardonyx.reporting.module_rows import module_label, module_rows
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column

_SHOWN = 8  # rows of a list that is not asked for in full


def render_comparison(found: Comparison, view: View | None = None) -> str:
    """The whole answer of `compare`; its last line is the sentence."""
    view = view or View()
    blocks = [
        _sides(found, view),
        _operators(found, view),
        _modules(found, view),
        _only("Modules only in the first", found.only_before, view),
        _only("Modules only in the second", found.only_after, view),
        _ops("Removed", found.removed, view),
        _ops("Added", found.added, view),
        _pairs("Moved", found.moved, view),
        _pairs("Changed", found.changed, view),
        [view.style.strong(comparison_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def comparison_sentence(found: Comparison) -> str:
    """The difference in one line."""
    if found.same:
        return f"{formatting.plural(found.after.nodes, 'node')} in both: the same operators in the same modules"
    nodes = f"{formatting.count(found.before.nodes)} → {formatting.count(found.after.nodes)} nodes"
    counts = {"removed": found.removed, "added": found.added, "moved": found.moved, "changed": found.changed}
    return f"{nodes}: " + ", ".join(f"{formatting.count(len(items))} {word}" for word, items in counts.items())


def _sides(found: Comparison, view: View) -> list[str]:
    facts = {"first": _side(found.before), "second": _side(found.after)}
    return titled("Comparison", facts, view)


def _side(side: Side) -> str:
    counts = (
        formatting.plural(side.nodes, "node"),
        f"{formatting.plural(side.constants, 'Constant')} apart",
        formatting.plural(side.initializers, "initializer"),
    )
    wrapper = f"; all of it in {formatting.name(side.wrapper)}, which is left out below" if side.wrapper else ""
    return f"{formatting.visible(side.name)}: {', '.join(counts)}{wrapper}"


def _operators(found: Comparison, view: View) -> list[str]:
    columns = (text_column("operator"), Column("first"), Column("second"), Column("change"))
    rows = [op for op in found.ops if op.before != op.after or view.verbose]
    lines = [
        Line(
            (
                formatting.name(op.op_type),
                formatting.count(op.before),
                formatting.count(op.after),
                formatting.change(op.after - op.before),
            )
        )
        for op in rows
    ]
    return [view.style.strong("Operators"), *table(columns, lines, view.style)] if lines else []


def _modules(found: Comparison, view: View) -> list[str]:
    heads = ("first", "second", "removed", "added", "moved here", "changed")
    columns = (text_column("module"), *map(Column, heads), text_column("kind"))
    numbers = ((m.before, m.after, m.removed, m.added, m.moved, m.changed) for m in found.modules)
    modules = [(m.path, m.tag, own) for m, own in zip(found.modules, numbers, strict=True)]
    lines = [
        Line(
            (
                module_label(row),
                *map(formatting.count, row.total[:2]),
                *map(_some, row.total[2:]),
                formatting.name(row.branch.tag),
            )
        )
        for row in (module_rows(modules, view) if modules else ())
    ]
    return [view.style.strong("Modules"), *table(columns, lines, view.style)] if lines else []


def _some(number: int) -> str:
    return formatting.count(number) if number else "·"


def _only(heading: str, paths: Sequence[str], view: View) -> list[str]:
    return _listed(heading, [Line((formatting.name(path),)) for path in paths], (text_column("module"),), view)


def _ops(heading: str, ops: Iterable[OpRef], view: View) -> list[str]:
    columns = (text_column("operator"), text_column("module"), text_column("node"))
    lines = [Line((formatting.name(op.op_type), module_name(op.module), formatting.name(op.name))) for op in ops]
    return _listed(heading, lines, columns, view)


def _pairs(heading: str, pairs: Iterable[Pair], view: View) -> list[str]:
    columns = (text_column("operator"), text_column("module"), text_column("node"), text_column("what"))
    lines = [
        Line(
            (
                formatting.name(pair.after.op_type),
                _from_to(module_name(pair.before.module), module_name(pair.after.module)),
                _from_to(formatting.name(pair.before.name), formatting.name(pair.after.name)),
                formatting.visible("; ".join(pair.what)),
            )
        )
        for pair in pairs
    ]
    return _listed(heading, lines, columns, view)


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _listed(heading: str, lines: Sequence[Line], columns: Sequence[Column], view: View) -> list[str]:
    if not lines:
        return []
    shown = lines if view.verbose else lines[:_SHOWN]
    more = [] if len(shown) == len(lines) else [view.style.faint(f"  and {len(lines) - len(shown)} more; -v lists all")]
    return [view.style.strong(f"{heading} ({formatting.count(len(lines))})"), *table(columns, shown, view.style), *more]
