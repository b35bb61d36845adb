"""A Profile as text: how it was measured, what each file takes as a whole, and the module tree with its times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sardonyx.records import module_tree
from sardonyx.records.profile import KernelTime, ModuleTime, Profile, ProfiledModel, TracedBy
from sardonyx.reporting import formatting
from sardonyx.reporting.inspection import module_name, titled
from sardonyx.reporting.module_rows import module_kind, module_label, module_rows
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column

# What of a Profile stands side by side: modules as lines with the times of every file, and time by operator.
#
# Text and Markdown draw the same lines, so that no view can say something else than another.


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

    row: module_tree.Row
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


# Operators and kernels of a Profile as text: which take the time, and which belong to no module.

KERNELS_SHOWN, OPERATORS_SHOWN = 8, 12


def operator_block(found: Profile, view: View) -> list[str]:
    """Time by operator, side by side."""
    every = operator_lines(found.models)
    shown = every if view.verbose else every[:OPERATORS_SHOWN]
    lines = [Line((formatting.name(line.op_type), *_operator_cells(line))) for line in shown]
    rest = every[len(shown) :]
    if rest:
        spent = tuple(
            (sum(line.spent[at][0] for line in rest), sum(line.spent[at][1] for line in rest))
            for at in range(len(found.models))
        )
        label = f"({formatting.plural(len(rest), 'other')})"
        lines.append(Line((label, *_operator_cells(OperatorLine("", spent))), view.style.faint))
    first, *others = (formatting.name(model.label, 28) for model in found.models)
    heads = ["kernels", first if others else "ms"]
    heads += [cell for label in others for cell in ("kernels", label, "change")]
    return [view.style.strong("By operator"), *table((text_column("operator"), *map(Column, heads)), lines, view.style)]


def _operator_cells(line: OperatorLine) -> list[str]:
    (kernels, first), *others = line.spent
    cells = [formatting.count(kernels) if kernels else "·", ms(first)]
    for number, spent in others:
        cells += [formatting.count(number) if number else "·", ms(spent), change(first, spent)]
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
        formatting.name(kernel.name, 40),
        formatting.name(kernel.op_type),
        formatting.count(kernel.calls),
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
    return ", ".join(formatting.name(node, 40) for node in shown) + more


def unattributed_block(model: ProfiledModel, found: Profile, view: View) -> list[str]:
    """What belongs to no module is named, not hidden."""
    kernels = [kernel for kernel in hottest(model) if kernel.owner is None]
    if not kernels:
        return []
    spent = sum(kernel.milliseconds for kernel in kernels)
    part = share(spent / model.kernel_ms if model.kernel_ms else 0.0)
    heading = (
        f"Not attributed{of(model, found)}: {ms(spent)} ms ({part}) in {formatting.plural(len(kernels), 'kernel')}"
    )
    shown = kernels if view.verbose else kernels[:KERNELS_SHOWN]
    lines = [
        f"  {formatting.name(kernel.op_type)} {formatting.name(kernel.name)}: {ms(kernel.milliseconds)} ms"
        for kernel in shown
    ]
    more = [f"  and {len(kernels) - len(shown)} more"] if len(kernels) > len(shown) else []
    return [view.style.strong(heading), *lines, *more]


def of(model: ProfiledModel, found: Profile) -> str:
    """Which file is meant, where there are several."""
    return "" if len(found.models) == 1 else f" ({formatting.name(model.label)})"


BAR = 12  # cells of a bar


def render_profile(found: Profile, view: View | None = None) -> str:
    """The whole answer of `profile`; its last line is the sentence."""
    view = view or View()
    blocks = [
        titled(" → ".join(formatting.visible(model.label) for model in found.models), measured(found), view),
        _whole(found, view),
        _modules(found, view),
        operator_block(found, view),
        *(kernel_block(model, found, view) for model in found.models),
        *(unattributed_block(model, found, view) for model in found.models),
        remarks(found),
        [view.style.strong(profile_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def profile_sentence(found: Profile) -> str:
    """Where the time goes, in one line; whether one file is faster is for `bench` to say."""
    last = found.models[-1]
    times = " → ".join(ms(model.kernel_ms) for model in found.models)
    most = operator_lines([last])[:1]
    hot = (
        f", most in {formatting.name(most[0].op_type)} ({share(most[0].spent[0][1] / last.kernel_ms)})" if most else ""
    )
    modules = formatting.plural(sum(module.kernels > 0 for module in last.modules), "module")
    return f"{times} ms in kernels, {share(last.attributed)} of it attributed to {modules}{hot}"


def measured(found: Profile) -> dict[str, str]:
    """How the numbers were got."""
    options = found.options
    runs, threads = (int(number) for number in (found.models[0].runs, options.get("threads") or 0))
    level = formatting.name(str(options.get("level")))
    facts = {
        "measured": f"median of {formatting.plural(runs, 'run')} on {formatting.name(str(options.get('provider')))}, "
        f"{formatting.plural(threads, 'thread')}, the runtime's optimizations: {level}"
    }
    sizes: dict[str, int] = options.get("sizes") or {}
    at: list[dict[str, int]] = options.get("at") or []
    sizes = {dim: size for dim, size in sizes.items() if not any(dim in each for each in at)}
    if sizes:
        facts["sizes"] = ", ".join(f"{formatting.name(dim)}={size}" for dim, size in sizes.items())
    if len(found.models) > 1:
        facts["changes"] = "without an interval; `sardonyx bench` says whether a file is faster"
    return facts


def _whole(found: Profile, view: View) -> list[str]:
    """What is true of each file as a whole, side by side."""
    models = found.models
    rows = [
        ("one run, not profiled, ms", [model.plain_ms for model in models]),
        ("one run, profiled, ms", [model.wall_ms for model in models]),
        ("in kernels, ms", [model.kernel_ms for model in models]),
        ("outside of them, not profiled, ms", [max(0.0, model.plain_ms - model.kernel_ms) for model in models]),
    ]
    lines = [Line((label, *_side_by_side(values))) for label, values in rows]
    counts = [("kernels", [len(model.kernels) for model in models]), ("nodes of the file", [m.nodes for m in models])]
    for label, numbers in counts:
        cells = [formatting.count(numbers[0])]
        for number in numbers[1:]:
            cells += [formatting.count(number), formatting.change(number - numbers[0])]
        lines.append(Line((label, *cells)))
    attributed = [share(model.attributed) for model in models]
    cells = [attributed[0], *(cell for each in attributed[1:] for cell in (each, ""))]
    lines.append(Line(("time in kernels with a module", *cells)))
    lines += [Line((f"  {label}", *cells)) for label, cells in _traced(models)]
    return table((text_column(""), *map(Column, headings(models))), lines, view.style)


def headings(models: Sequence[ProfiledModel]) -> list[str]:
    """Each file, and after every one but the first what changed."""
    first, *others = (formatting.name(model.label, 28) for model in models)
    return [first, *(text for label in others for text in (label, "change"))]


def _side_by_side(values: Sequence[float]) -> list[str]:
    return [ms(values[0]), *(cell for value in values[1:] for cell in (ms(value), change(values[0], value)))]


_TRACES = {
    TracedBy.NAME: "by its name",
    TracedBy.ATTRIBUTE: "by a tag it carries",
    TracedBy.VALUES: "by what it reads and writes",
    TracedBy.NEIGHBOURS: "by its neighbours",
    TracedBy.NOTHING: "not traced",
}


def _traced(models: Sequence[ProfiledModel]) -> list[tuple[str, list[str]]]:
    """Which share of the time was attributed by what."""
    spent = [_by_trace(model) for model in models]
    lines: list[tuple[str, list[str]]] = []
    for trace, label in _TRACES.items():
        if any(each[trace] for each in spent):
            parts = [
                share(each[trace] / model.kernel_ms if model.kernel_ms else 0.0)
                for each, model in zip(spent, models, strict=True)
            ]
            lines.append((label, [parts[0], *(cell for part in parts[1:] for cell in (part, ""))]))
    return lines


def _by_trace(model: ProfiledModel) -> dict[TracedBy, float]:
    spent: dict[TracedBy, float] = defaultdict(float)
    for kernel in model.kernels:
        spent[kernel.traced_by] += kernel.milliseconds
    return spent


def _modules(found: Profile, view: View) -> list[str]:
    lines = module_lines(found, view)
    if not lines:
        return []
    shown = [
        Line((module_label(line.row), *_module_cells(line, view), _bar(line.times[-1].share), _kind(line)))
        for line in lines
    ]
    columns = (text_column("module"), *map(Column, _module_heads(found, view)), text_column(""), text_column("kind"))
    return [view.style.strong("Modules, milliseconds a run"), *table(columns, shown, view.style)]


def _module_heads(found: Profile, view: View) -> list[str]:
    if len(found.models) == 1:
        return ["kernels", "calls", "self", "total", "share"]
    first, *others = (formatting.name(model.label, 28) for model in found.models)
    more = ["self"] if view.verbose else []
    return [first, *more, *(cell for label in others for cell in (label, *more, "change")), "share"]


def _module_cells(line: ModuleLine, view: View) -> list[str]:
    first = line.times[0]
    if len(line.times) == 1:
        counts = [formatting.count(number) if number else "·" for number in (first.kernels, first.calls)]
        return [*counts, ms(first.self_ms), ms(first.total_ms), share(first.share)]
    cells = [ms(first.total_ms), *([ms(first.self_ms)] if view.verbose else [])]
    for each in line.times[1:]:
        own = [ms(each.self_ms)] if view.verbose else []
        cells += [ms(each.total_ms), *own, change(first.total_ms, each.total_ms)]
    return [*cells, share(line.times[-1].share)]


def _kind(line: ModuleLine) -> str:
    return formatting.name(line.row.branch.tag)


def _bar(part: float) -> str:
    """A bar of the share; a little one for what would round to nothing."""
    cells = round(BAR * min(max(part, 0.0), 1.0))
    return "█" * cells if cells else "▏" if part else ""


def remarks(found: Profile) -> list[str]:
    """What a reader should know besides."""
    own = [
        f"  {formatting.name(model.label)}: {formatting.one_line(note)}"
        for model in found.models
        for note in model.notes
    ]
    return [*(f"  {formatting.one_line(note)}" for note in found.notes), *own]
