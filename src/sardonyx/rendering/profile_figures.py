"""What of a Profile stands side by side: modules as lines with the times of every file, and time by operator.

Text and Markdown draw the same lines, so that no view can say something else than another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sardonyx import tree
from sardonyx.profile_record import KernelTime, ModuleTime, Profile, ProfiledModel
from sardonyx.rendering.modules import module_kind, module_rows
from sardonyx.rendering.view import View


@dataclass(frozen=True, slots=True)
class Times:
    """What one file spends on one line."""

    self_ms: float
    total_ms: float
    kernels: int
    calls: int
    share: float  # of all its time in kernels, 0 to 1


@dataclass(frozen=True, slots=True)
class ModuleLine:
    """A module, or equal ones together, with the times of every file."""

    row: tree.Row
    times: tuple[Times, ...]


def module_lines(found: Profile, view: View) -> list[ModuleLine]:
    """The module tree; layers with equally many kernels in every file are one line with the sums of all."""
    by_path = [{module.path: module for module in model.modules} for model in found.models]
    tags: dict[str, str] = {}
    for model in found.models:
        first = first_kernels(model)
        for module in sorted(model.modules, key=lambda each: first.get(each.path, -1)):
            tags[module.path] = tags.get(module.path) or module.tag
    known = [
        (path, tag, tuple(modules[path].kernels if path in modules else 0 for modules in by_path))
        for path, tag in tags.items()
    ]
    return [
        ModuleLine(
            row,
            tuple(_times(row.paths, modules, model) for modules, model in zip(by_path, found.models, strict=True)),
        )
        for row in module_rows(known, view)
    ]


def _times(paths: Iterable[str], modules: dict[str, ModuleTime], model: ProfiledModel) -> Times:
    own = [modules[path] for path in paths if path in modules]
    total = sum(module.total_ms for module in own)
    return Times(
        sum(module.self_ms for module in own),
        total,
        sum(module.kernels for module in own),
        sum(module.calls for module in own),
        total / model.kernel_ms if model.kernel_ms else 0.0,
    )


def first_kernels(model: ProfiledModel) -> dict[str, int]:
    """When each module first runs, or one below it."""
    first: dict[str, int] = {}
    for place, kernel in enumerate(model.kernels):
        path = kernel.owner
        while path and path not in first:
            first[path] = place
            path = path.rpartition(".")[0]
    return first


def kinds(model: ProfiledModel) -> dict[str, str]:
    """The class of every module, by path; nothing where none is known."""
    tags = {module.path: module.tag for module in model.modules}
    return {path: module_kind(path, tags) for path in tags}


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """All kernels of one operator: (kernels, milliseconds) in every file."""

    op_type: str
    spent: tuple[tuple[int, float], ...]


def operator_lines(models: Sequence[ProfiledModel]) -> list[OperatorLine]:
    """By operator, those that take longest in any file first."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(lambda: [(0, 0.0)] * len(models))
    for place, model in enumerate(models):
        for kernel in model.kernels:
            spent = found[kernel.op_type]
            spent[place] = (spent[place][0] + 1, spent[place][1] + kernel.milliseconds)
    lines = [OperatorLine(op_type, tuple(spent)) for op_type, spent in found.items()]
    return sorted(lines, key=lambda line: (-max(ms for _, ms in line.spent), line.op_type))


def hottest(model: ProfiledModel, most: int | None = None) -> list[KernelTime]:
    """Kernels by their time, longest first."""
    return sorted(model.kernels, key=lambda kernel: (-kernel.milliseconds, kernel.name))[:most]


def ms(milliseconds: float) -> str:
    """Milliseconds with three digits, as far as a microsecond."""
    if 0 < milliseconds < 0.0005:
        return "<0.001"
    if milliseconds >= 99.95:
        return f"{milliseconds:,.0f}"
    digits = 1 if milliseconds >= 9.995 else 2 if milliseconds >= 0.9995 else 3
    return f"{milliseconds:.{digits}f}" if milliseconds else "·"


def share(part: float) -> str:
    """A share in percent."""
    return "·" if not part else "<0.1 %" if part < 0.0005 else f"{100 * part:.1f} %"


def change(before: float, after: float) -> str:
    """From one time to another in percent, with its sign."""
    if before == after:
        return "·"
    if not before:
        return f"+{ms(after)} ms"
    percent = 100 * (after - before) / before
    sign = "+" if percent > 0 else "−"
    return f"{sign}<0.1 %" if abs(percent) < 0.05 else f"{sign}{abs(percent):.{0 if abs(percent) >= 10 else 1}f} %"
