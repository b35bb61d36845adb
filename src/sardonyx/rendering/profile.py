"""A Profile as text: how it was measured, what each file takes as a whole, and the module tree with its times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sardonyx.profile_record import Profile, ProfiledModel, TracedBy
from sardonyx.rendering import words
from sardonyx.rendering.model import titled
from sardonyx.rendering.modules import module_label
from sardonyx.rendering.profile_figures import ModuleLine, change, module_lines, ms, operator_lines, share
from sardonyx.rendering.profile_kernels import kernel_block, operator_block, unattributed_block
from sardonyx.rendering.table import Column, Line, table, text_column
from sardonyx.rendering.view import View

BAR = 12  # cells of a bar


def render_profile(found: Profile, view: View | None = None) -> str:
    """The whole answer of `profile`; its last line is the sentence."""
    view = view or View()
    blocks = [
        titled(" → ".join(words.visible(model.label) for model in found.models), measured(found), view),
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
    hot = f", most in {words.name(most[0].op_type)} ({share(most[0].spent[0][1] / last.kernel_ms)})" if most else ""
    modules = words.plural(sum(module.kernels > 0 for module in last.modules), "module")
    return f"{times} ms in kernels, {share(last.attributed)} of it attributed to {modules}{hot}"


def measured(found: Profile) -> dict[str, str]:
    """How the numbers were got."""
    options = found.options
    runs, threads = (int(number) for number in (found.models[0].runs, options.get("threads") or 0))
    level = words.name(str(options.get("level")))
    facts = {
        "measured": f"median of {words.plural(runs, 'run')} on {words.name(str(options.get('provider')))}, "
        f"{words.plural(threads, 'thread')}, the runtime's optimizations: {level}"
    }
    sizes: dict[str, int] = options.get("sizes") or {}
    at: list[dict[str, int]] = options.get("at") or []
    sizes = {dim: size for dim, size in sizes.items() if not any(dim in each for each in at)}
    if sizes:
        facts["sizes"] = ", ".join(f"{words.name(dim)}={size}" for dim, size in sizes.items())
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
        cells = [words.count(numbers[0])]
        for number in numbers[1:]:
            cells += [words.count(number), words.change(number - numbers[0])]
        lines.append(Line((label, *cells)))
    attributed = [share(model.attributed) for model in models]
    cells = [attributed[0], *(cell for each in attributed[1:] for cell in (each, ""))]
    lines.append(Line(("time in kernels with a module", *cells)))
    lines += [Line((f"  {label}", *cells)) for label, cells in _traced(models)]
    return table((text_column(""), *map(Column, headings(models))), lines, view.style)


def headings(models: Sequence[ProfiledModel]) -> list[str]:
    """Each file, and after every one but the first what changed."""
    first, *others = (words.name(model.label, 28) for model in models)
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
    first, *others = (words.name(model.label, 28) for model in found.models)
    more = ["self"] if view.verbose else []
    return [first, *more, *(cell for label in others for cell in (label, *more, "change")), "share"]


def _module_cells(line: ModuleLine, view: View) -> list[str]:
    first = line.times[0]
    if len(line.times) == 1:
        counts = [words.count(number) if number else "·" for number in (first.kernels, first.calls)]
        return [*counts, ms(first.self_ms), ms(first.total_ms), share(first.share)]
    cells = [ms(first.total_ms), *([ms(first.self_ms)] if view.verbose else [])]
    for each in line.times[1:]:
        own = [ms(each.self_ms)] if view.verbose else []
        cells += [ms(each.total_ms), *own, change(first.total_ms, each.total_ms)]
    return [*cells, share(line.times[-1].share)]


def _kind(line: ModuleLine) -> str:
    return words.name(line.row.branch.tag)


def _bar(part: float) -> str:
    """A bar of the share; a little one for what would round to nothing."""
    cells = round(BAR * min(max(part, 0.0), 1.0))
    return "█" * cells if cells else "▏" if part else ""


def remarks(found: Profile) -> list[str]:
    """What a reader should know besides."""
    own = [f"  {words.name(model.label)}: {words.one_line(note)}" for model in found.models for note in model.notes]
    return [*(f"  {words.one_line(note)}" for note in found.notes), *own]
