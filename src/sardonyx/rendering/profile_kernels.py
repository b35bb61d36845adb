"""Operators and kernels of a Profile as text: which take the time, and which belong to no module."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.profile_record import KernelTime, Profile, ProfiledModel
from sardonyx.rendering import words
from sardonyx.rendering.model import module_name
from sardonyx.rendering.profile_figures import OperatorLine, change, hottest, ms, operator_lines, share
from sardonyx.rendering.table import Column, Line, table, text_column
from sardonyx.rendering.view import View

KERNELS_SHOWN, OPERATORS_SHOWN = 8, 12


def operator_block(found: Profile, view: View) -> list[str]:
    """Time by operator, side by side."""
    every = operator_lines(found.models)
    shown = every if view.verbose else every[:OPERATORS_SHOWN]
    lines = [Line((words.name(line.op_type), *_operator_cells(line))) for line in shown]
    rest = every[len(shown) :]
    if rest:
        spent = tuple(
            (sum(line.spent[at][0] for line in rest), sum(line.spent[at][1] for line in rest))
            for at in range(len(found.models))
        )
        label = f"({words.plural(len(rest), 'other')})"
        lines.append(Line((label, *_operator_cells(OperatorLine("", spent))), view.style.faint))
    first, *others = (words.name(model.label, 28) for model in found.models)
    heads = ["kernels", first if others else "ms"]
    heads += [cell for label in others for cell in ("kernels", label, "change")]
    return [view.style.strong("By operator"), *table((text_column("operator"), *map(Column, heads)), lines, view.style)]


def _operator_cells(line: OperatorLine) -> list[str]:
    (kernels, first), *others = line.spent
    cells = [words.count(kernels) if kernels else "·", ms(first)]
    for number, spent in others:
        cells += [words.count(number) if number else "·", ms(spent), change(first, spent)]
    return cells


def kernel_block(model: ProfiledModel, found: Profile, view: View) -> list[str]:
    """The kernels that take longest, each with its module and the nodes whose work it does."""
    columns = (
        text_column("kernel"),
        text_column("operator"),
        *map(Column, ("calls", "ms", "share")),
        text_column("module"),
        text_column("nodes of the file"),
    )
    kernels = hottest(model, None if view.verbose else KERNELS_SHOWN)
    lines = [Line(_kernel_cells(kernel, model, view)) for kernel in kernels]
    if not lines:
        return []
    return [view.style.strong(f"Hottest kernels{of(model, found)}"), *table(columns, lines, view.style)]


def _kernel_cells(kernel: KernelTime, model: ProfiledModel, view: View) -> tuple[str, ...]:
    return (
        words.name(kernel.name, 40),
        words.name(kernel.op_type),
        words.count(kernel.calls),
        ms(kernel.milliseconds),
        share(kernel.milliseconds / model.kernel_ms if model.kernel_ms else 0.0),
        "not attributed" if kernel.owner is None else module_name(kernel.owner),
        _nodes(kernel.nodes, all_of_them=view.verbose),
    )


def _nodes(nodes: Sequence[str], *, all_of_them: bool) -> str:
    if not nodes:
        return "put in by the runtime"
    shown = nodes if all_of_them else nodes[:1]
    more = f" and {len(nodes) - len(shown)} more" if len(nodes) > len(shown) else ""
    return ", ".join(words.name(node, 40) for node in shown) + more


def unattributed_block(model: ProfiledModel, found: Profile, view: View) -> list[str]:
    """What belongs to no module is named, not hidden."""
    kernels = [kernel for kernel in hottest(model) if kernel.owner is None]
    if not kernels:
        return []
    spent = sum(kernel.milliseconds for kernel in kernels)
    part = share(spent / model.kernel_ms if model.kernel_ms else 0.0)
    heading = f"Not attributed{of(model, found)}: {ms(spent)} ms ({part}) in {words.plural(len(kernels), 'kernel')}"
    shown = kernels if view.verbose else kernels[:KERNELS_SHOWN]
    lines = [
        f"  {words.name(kernel.op_type)} {words.name(kernel.name)}: {ms(kernel.milliseconds)} ms" for kernel in shown
    ]
    more = [f"  and {len(kernels) - len(shown)} more"] if len(kernels) > len(shown) else []
    return [view.style.strong(heading), *lines, *more]


def of(model: ProfiledModel, found: Profile) -> str:
    """Which file is meant, where there are several."""
    return "" if len(found.models) == 1 else f" ({words.name(model.label)})"
