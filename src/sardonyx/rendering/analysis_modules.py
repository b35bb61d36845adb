"""What each module costs, as lines of the module tree."""

from __future__ import annotations

from sardonyx.analysis_record import Form, ModuleCost
from sardonyx.rendering import words
from sardonyx.rendering.modules import module_label, module_rows
from sardonyx.rendering.table import Column, Line, table, text_column
from sardonyx.rendering.view import View

_HEADS = ("operations", "flops", "moved", "parameters", "highest while it runs")


def module_lines(form: Form, view: View, *, alone: bool) -> list[str]:
    """The tree with totals; equal layers are one line."""
    if not form.modules:
        return []
    highest = _highest(form)
    known = [(each.path, each.kind, _numbers(each)) for each in form.modules]
    lines = [
        Line(
            (
                module_label(row),
                words.count(row.total[0]),
                words.amount(row.total[1]),
                words.size(row.total[2]),
                words.count(row.total[3]),
                words.size(highest[row.branch.path]) if highest.get(row.branch.path) else "·",
                words.name(row.branch.tag),
            )
        )
        for row in module_rows(known, view)
    ]
    columns = (text_column("module"), *map(Column, _HEADS), text_column("kind"))
    heading = "Modules" if alone else f"Modules ({words.name(form.name)})"
    return [view.style.strong(heading), *table(columns, lines, view.style)]


def _numbers(each: ModuleCost) -> tuple[int, ...]:
    """What is shown, and last what only keeps layers apart that differ in it: a highest value is no sum."""
    return (each.operations, each.flops, each.bytes_moved, each.parameters, each.peak)


def _highest(form: Form) -> dict[str, int]:
    """Most bytes alive while a module or one below it runs."""
    found: dict[str, int] = {}
    for each in form.modules:
        path = each.path
        while True:
            found[path] = max(found.get(path, 0), each.peak)
            if not path:
                break
            path = path.rpartition(".")[0]
    return found
