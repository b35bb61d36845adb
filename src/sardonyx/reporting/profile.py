"""A Profile as a document: how it was measured, the whole files, and the module tree with its times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from sardonyx.records import module_tree
from sardonyx.records.bench import KernelTime, ModuleTime, Profile, ProfiledModel, TracedBy
from sardonyx.records.provenance import lineage
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Cell,
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
    table_section,
    text_column,
)
from sardonyx.reporting.module_rows import module_cell, module_kind, module_rows
from sardonyx.reporting.writers.tables import write_csv

OPERATORS_SHOWN = 3  # on one screen
BAR = 12  # characters of a bar
FIELDS = (
    "file", "scope", "name", "kind", "module", "self_ms", "total_ms", "share", "kernels", "calls", "traced_by", "nodes",
)  # fmt: skip
_TRACES = {
    TracedBy.NAME: "by its name",
    TracedBy.ATTRIBUTE: "by a tag it carries",
    TracedBy.VALUES: "by what it reads and writes",
    TracedBy.NEIGHBOURS: "by its neighbours",
    TracedBy.NOTHING: "not traced",
}


def profile_document(profile: Profile, view: View) -> Document:
    """Return the answer of `profile`: modules and operators, or everything if verbose."""
    title = " → ".join(model.label for model in profile.models)
    head = Facts(conditions(profile))
    own = (f"{formatting.name(model.label)}: {note}" for model in profile.models for note in model.notes)
    modules, notes = _modules(profile, view), Notes([formatting.one_line(note) for note in (*profile.notes, *own)])
    sentence = Span(profile_sentence(profile), Tone.STRONG)
    if not view.verbose:
        operators = _operators(profile, view)
        return Document(title=title, head=(head,), blocks=(modules, operators, notes), sentence=sentence)
    return Document(
        title=title,
        head=(head,),
        blocks=(
            _totals(profile.models),
            modules,
            _operators(profile, view),
            *(_kernels(model, profile) for model in profile.models),
            *(_unattributed(model, profile) for model in profile.models),
            notes,
        ),
        sentence=sentence,
    )


def profile_sentence(profile: Profile) -> str:
    """Return where the time goes in one line. Whether one file is faster is for `bench` to tell."""
    last = profile.models[-1]
    times = " → ".join(ms(model.kernel_ms) for model in profile.models)
    most = operator_times([last])[:1]
    hot = (
        f", most in {formatting.name(most[0].op_type)} ({share(most[0].spent[0][1] / last.kernel_ms)})" if most else ""
    )
    modules = formatting.plural(sum(module.kernels > 0 for module in last.modules), "module")
    attributed = (
        f", {share(last.attributed)} of it attributed to {modules}" if any(m.path for m in last.modules) else ""
    )
    return f"{times} ms in kernels{attributed}{hot}"


def profile_csv(profile: Profile) -> str:
    """Return one line for each file, each of its modules and each kernel, with every number in full."""
    lines = (line for model in profile.models for line in _csv_lines(model))
    return write_csv(FIELDS, ([line.get(field, "") for field in FIELDS] for line in lines))


def _csv_lines(model: ProfiledModel) -> Iterator[dict[str, object]]:
    yield {
        "file": model.label, "scope": "model", "total_ms": model.kernel_ms, "self_ms": model.kernel_ms, "share": 1.0,
        "kernels": len(model.kernels), "calls": sum(kernel.calls for kernel in model.kernels), "nodes": model.nodes,
    }  # fmt: skip
    classes = kinds(model)
    for module in model.modules:
        yield {
            "file": model.label, "scope": "module", "name": module.path, "kind": classes[module.path],
            "module": module.path, "self_ms": module.self_ms, "total_ms": module.total_ms, "share": module.share,
            "kernels": module.kernels, "calls": module.calls,
        }  # fmt: skip
    for kernel in model.kernels:
        yield {
            "file": model.label, "scope": "kernel", "name": kernel.name, "kind": kernel.op_type,
            "module": kernel.owner, "self_ms": kernel.milliseconds, "total_ms": kernel.milliseconds,
            "share": part_of(kernel.milliseconds, model), "kernels": 1, "calls": kernel.calls,
            "traced_by": kernel.traced_by.value, "nodes": " ".join(kernel.nodes),
        }  # fmt: skip


# Times by module and by operator.


class Times(Struct, frozen=True):
    """What one file spends on one row."""

    self_ms: float
    total_ms: float
    kernels: int
    calls: int
    share: float  # of all its time in kernels, 0 to 1


class TimedModule(Struct, frozen=True):
    """A module, or several equal ones together, with the times of every file."""

    row: module_tree.Row
    times: tuple[Times, ...]


def timed_modules(profile: Profile, view: View) -> list[TimedModule]:
    """Return the module tree; layers with equally many kernels in every file are one row with the sums of all."""
    by_path = [{module.path: module for module in model.modules} for model in profile.models]
    tags: dict[str, str] = {}
    for model in profile.models:
        first = first_kernels(model)
        for module in sorted(model.modules, key=lambda module: first.get(module.path, -1)):
            tags[module.path] = tags.get(module.path) or module.tag
    counts = [
        (path, tag, tuple(modules[path].kernels if path in modules else 0 for modules in by_path))
        for path, tag in tags.items()
    ]
    return [
        TimedModule(
            row,
            tuple(_times(row.paths, modules, model) for modules, model in zip(by_path, profile.models, strict=True)),
        )
        for row in module_rows(counts, view)
    ]


def _times(paths: Iterable[str], modules: dict[str, ModuleTime], model: ProfiledModel) -> Times:
    own = [modules[path] for path in paths if path in modules]
    total = sum(module.total_ms for module in own)
    return Times(
        sum(module.self_ms for module in own),
        total,
        sum(module.kernels for module in own),
        sum(module.calls for module in own),
        part_of(total, model),
    )


def part_of(milliseconds: float, model: ProfiledModel) -> float:
    """Return the share of a time in all time in kernels, 0 to 1."""
    return milliseconds / model.kernel_ms if model.kernel_ms else 0.0


def first_kernels(model: ProfiledModel) -> dict[str, int]:
    """Return the place of the first kernel of each module or of one below it, by path."""
    first: dict[str, int] = {}
    for place, kernel in enumerate(model.kernels):
        for path in lineage(kernel.owner or "")[1:]:
            first.setdefault(path, place)
    return first


def kinds(model: ProfiledModel) -> dict[str, str]:
    """Return the class of every module by path, "" if it is unknown."""
    tags = {module.path: module.tag for module in model.modules}
    return {path: module_kind(path, tags) for path in tags}


class OperatorTime(Struct, frozen=True):
    """All kernels of one operator: (kernels, milliseconds) in every file."""

    op_type: str
    spent: tuple[tuple[int, float], ...]


def operator_times(models: Sequence[ProfiledModel]) -> list[OperatorTime]:
    """Return the times by operator, the slowest in any file first."""
    totals: dict[str, list[tuple[int, float]]] = defaultdict(lambda: [(0, 0.0)] * len(models))
    for place, model in enumerate(models):
        for kernel in model.kernels:
            spent = totals[kernel.op_type]
            spent[place] = (spent[place][0] + 1, spent[place][1] + kernel.milliseconds)
    times = [OperatorTime(op_type, tuple(spent)) for op_type, spent in totals.items()]
    return sorted(times, key=lambda time: (-max(ms for _, ms in time.spent), time.op_type))


def hottest(model: ProfiledModel) -> list[KernelTime]:
    """Return kernels by their time, longest first."""
    return sorted(model.kernels, key=lambda kernel: (-kernel.milliseconds, kernel.name))


def ms(milliseconds: float) -> str:
    """Return milliseconds without the unit, or a dot for none."""
    return formatting.milliseconds(milliseconds) if milliseconds else "·"


def share(part: float) -> str:
    """Return a share in percent."""
    return "·" if not part else "<0.1 %" if part < 0.0005 else f"{100 * part:.1f} %"


def change(before: float, after: float) -> str:
    """Return the change from one time to another in percent, with its sign."""
    if before == after:
        return "·"
    if not before:
        return f"+{ms(after)} ms"
    return formatting.signed(100 * (after - before) / before)


# The blocks of the document.


def conditions(profile: Profile) -> dict[str, Text]:
    """Return how the numbers were measured."""
    options = profile.options
    runs, threads = (int(number) for number in (profile.models[0].runs, options.get("threads") or 0))
    level = formatting.name(str(options.get("level")))
    facts: dict[str, Text] = {
        "measured": f"median of {formatting.plural(runs, 'run')} on {formatting.name(str(options.get('provider')))}, "
        f"{formatting.plural(threads, 'thread')}, runtime optimizations {level}"
    }
    sizes: dict[str, int] = options.get("sizes") or {}
    swept: list[dict[str, int]] = options.get("at") or []
    sizes = {dim: size for dim, size in sizes.items() if not any(dim in point for point in swept)}
    if sizes:
        facts["sizes"] = ", ".join(f"{formatting.name(dim)}={size}" for dim, size in sizes.items())
    if len(profile.models) > 1:
        facts["changes"] = (
            "without an interval; ",
            Span("sardonyx bench", code=True),
            " tells whether a file is faster",
        )
    return facts


def _of(model: ProfiledModel, profile: Profile) -> str:
    return "" if len(profile.models) == 1 else f" ({formatting.name(model.label)})"


def _totals(models: Sequence[ProfiledModel]) -> Table:
    times = [
        ("one run, not profiled, ms", [model.plain_ms for model in models]),
        ("one run, profiled, ms", [model.wall_ms for model in models]),
        ("in kernels, ms", [model.kernel_ms for model in models]),
        ("outside of them, not profiled, ms", [max(0.0, model.plain_ms - model.kernel_ms) for model in models]),
    ]
    rows: list[tuple[Text | Cell, ...]] = [
        (label, *_with_changes([(ms(v), change(values[0], v)) for v in values])) for label, values in times
    ]
    counts = [("kernels", [len(model.kernels) for model in models]), ("nodes of the file", [m.nodes for m in models])]
    for label, numbers in counts:
        cells = [(formatting.count(number), formatting.change(number - numbers[0])) for number in numbers]
        rows.append((label, *_with_changes(cells)))
    attributed = _with_changes([(share(model.attributed), "") for model in models])
    has_modules = any(module.path for model in models for module in model.modules)
    rows.append((f"time in kernels with a {'module' if has_modules else 'node'}", *attributed))
    for trace, label in _TRACES.items():
        spent = [sum(k.milliseconds for k in model.kernels if k.traced_by is trace) for model in models]
        if any(spent):
            shares = [(share(part_of(time, model)), "") for time, model in zip(spent, models, strict=True)]
            rows.append((Cell(label, depth=1), *_with_changes(shares)))
    first, *others = _labels(models)
    return Table.of((text_column(""), first, *(text for label in others for text in (label, "change"))), rows)


def _labels(models: Sequence[ProfiledModel]) -> list[str]:
    return [formatting.name(model.label, 28) for model in models]


def _with_changes(cells: Sequence[tuple[str, str]]) -> list[str]:
    return [cells[0][0], *(cell for pair in cells[1:] for cell in pair)]


def _modules(profile: Profile, view: View) -> Section:
    rows = (
        (
            module_cell(module.row),
            *_module_cells(module.times, view),
            _bar(module.times[-1].share),
            formatting.name(module.row.branch.tag),
        )
        for module in timed_modules(profile, view)
    )
    first, *others = _labels(profile.models)
    own = [Column("self", 3)] if view.verbose else []
    numbers = [first, *own, *(cell for label in others for cell in (label, *own, "change")), "share"]
    if not others:
        numbers = ["kernels", "calls", Column("self", 3), "total", "share"]
    return table_section(
        "Modules, milliseconds a run", ("module", *numbers, text_column("", 1), text_column("kind", 2)), rows
    )


def _module_cells(times: Sequence[Times], view: View) -> list[str]:
    first = times[0]
    if len(times) == 1:
        counts = [formatting.count(number) if number else "·" for number in (first.kernels, first.calls)]
        return [*counts, ms(first.self_ms), ms(first.total_ms), share(first.share)]
    cells = [ms(first.total_ms), *([ms(first.self_ms)] if view.verbose else [])]
    for other in times[1:]:
        own = [ms(other.self_ms)] if view.verbose else []
        cells += [ms(other.total_ms), *own, change(first.total_ms, other.total_ms)]
    return [*cells, share(times[-1].share)]


def _bar(part: float) -> str:
    """Return a bar of the share; a thin one for a share that rounds to zero."""
    cells = round(BAR * min(max(part, 0.0), 1.0))
    return "█" * cells if cells else "▏" if part else ""


def _operators(profile: Profile, view: View) -> Section:
    times = operator_times(profile.models)
    shown = times if view.verbose else times[:OPERATORS_SHOWN]
    rows = [Row((formatting.name(time.op_type), *_operator_cells(time.spent))) for time in shown]
    rest = times[len(shown) :]
    if rest:
        spent = [tuple(map(sum, zip(*side, strict=True))) for side in zip(*(time.spent for time in rest), strict=True)]
        rows.append(Row((f"({formatting.plural(len(rest), 'other')})", *_operator_cells(spent)), Tone.FAINT))
    first, *others = _labels(profile.models)
    more = [cell for label in others for cell in ("kernels", label, "change")]
    return table_section("By operator", ("operator", "kernels", first if others else "ms", *more), rows)


def _operator_cells(spent: Sequence[tuple[float, ...]]) -> list[str]:
    (kernels, first), *others = spent
    cells = [formatting.count(round(kernels)) if kernels else "·", ms(first)]
    for number, milliseconds in others:
        cells += [formatting.count(round(number)) if number else "·", ms(milliseconds), change(first, milliseconds)]
    return cells


def _kernels(model: ProfiledModel, profile: Profile) -> Section:
    rows = (
        (
            formatting.name(kernel.name, 40),
            formatting.name(kernel.op_type),
            formatting.count(kernel.calls),
            ms(kernel.milliseconds),
            share(part_of(kernel.milliseconds, model)),
            "not attributed" if kernel.owner is None else formatting.module(kernel.owner),
            ", ".join(formatting.name(node, 40) for node in kernel.nodes) or "inserted by the runtime",
        )
        for kernel in hottest(model)
    )
    columns = ("kernel", "operator", "calls", "ms", "share", text_column("module"), text_column("nodes of the file"))
    return table_section(f"Hottest kernels{_of(model, profile)}", columns, rows, text_columns=2)


def _unattributed(model: ProfiledModel, profile: Profile) -> Section:
    kernels = [kernel for kernel in hottest(model) if kernel.owner is None]
    spent = sum(kernel.milliseconds for kernel in kernels)
    title = (
        f"Not attributed{_of(model, profile)}: {ms(spent)} ms ({share(part_of(spent, model))}) "
        f"in {formatting.plural(len(kernels), 'kernel')}"
    )
    lines = [
        f"{formatting.name(kernel.op_type)} {formatting.name(kernel.name)}: {ms(kernel.milliseconds)} ms"
        for kernel in kernels
    ]
    return Section(title, (Notes(lines),))
