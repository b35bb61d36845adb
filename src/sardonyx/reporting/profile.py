"""A Profile as a document: how it was measured, the whole files, and the module tree with its times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sardonyx.records import module_tree
from sardonyx.records.bench import KernelTime, ModuleTime, Profile, ProfiledModel, TracedBy
from sardonyx.records.provenance import lineage
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, View, text_column
from sardonyx.reporting.module_rows import module_cell, module_kind, module_rows
from sardonyx.reporting.writers.tables import write_csv

OPERATORS_SHOWN = 3  # on one screen
BAR_CHARS = 12  # characters of a bar
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


def profile_document(profile: Profile, view: View) -> doc.Document:
    """Return the answer of `profile`: modules and operators, or everything if verbose."""
    models = profile.models
    own = (f"{fmt.name(model.label)}: {note}" for model in models for note in model.notes)
    notes = doc.Notes([fmt.one_line(note) for note in (*profile.notes, *own)])
    blocks: tuple[doc.Block, ...] = (_modules(profile, view), _operators(profile, view))
    if view.verbose:
        kernels = (_kernels(model, profile) for model in models)
        blocks = (_totals(models), *blocks, *kernels, *(_unattributed(model, profile) for model in models))
    return doc.Document(
        title=" → ".join(model.label for model in models),
        head=(doc.Facts(conditions(profile)),),
        blocks=(*blocks, notes),
        sentence=Span(profile_sentence(profile), Tone.STRONG),
    )


def profile_sentence(profile: Profile) -> str:
    """Return where the time goes in one line. Whether one file is faster is for `bench` to tell."""
    last = profile.models[-1]
    clauses = [f"{' → '.join(ms(model.kernel_ms) for model in profile.models)} ms in kernels"]
    if any(module.path for module in last.modules):
        modules = fmt.plural(sum(module.kernels > 0 for module in last.modules), "module")
        clauses.append(f"{share(last.attributed)} of it attributed to {modules}")
    for op_type, ((_kernels, spent),) in operator_times([last])[:1]:
        clauses.append(f"most in {fmt.name(op_type)} ({share(spent / last.kernel_ms)})")
    return ", ".join(clauses)


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


def timed_modules(profile: Profile, view: View) -> Iterator[tuple[module_tree.ModuleRow, list[list[ModuleTime]]]]:
    """Yield the module tree with the times of each row in every file.

    Layers with equally many kernels in every file are one row.
    """
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
    for row in module_rows(counts, view):
        yield row, [[modules[path] for path in row.paths if path in modules] for modules in by_path]


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


_Spent = list[tuple[int, float]]  # kernels and milliseconds in every file


def operator_times(models: Sequence[ProfiledModel]) -> list[tuple[str, _Spent]]:
    """Return the times by operator, the slowest in any file first."""
    totals: dict[str, _Spent] = defaultdict(lambda: [(0, 0.0)] * len(models))
    for place, model in enumerate(models):
        for kernel in model.kernels:
            spent = totals[kernel.op_type]
            spent[place] = (spent[place][0] + 1, spent[place][1] + kernel.milliseconds)
    return sorted(totals.items(), key=lambda entry: (-max(ms for _, ms in entry[1]), entry[0]))


def hottest(model: ProfiledModel) -> list[KernelTime]:
    """Return kernels by their time, longest first."""
    return sorted(model.kernels, key=lambda kernel: (-kernel.milliseconds, kernel.name))


def ms(milliseconds: float) -> str:
    """Return milliseconds without the unit, or a dot for none."""
    return fmt.milliseconds(milliseconds) if milliseconds else "·"


def share(part: float) -> str:
    """Return a share in percent."""
    return "·" if not part else "<0.1 %" if part < 0.0005 else f"{100 * part:.1f} %"


def change(before: float, after: float) -> str:
    """Return the change from one time to another in percent, with its sign."""
    if before == after:
        return "·"
    if not before:
        return f"+{ms(after)} ms"
    return fmt.signed(100 * (after - before) / before)


# The blocks of the document.


def conditions(profile: Profile) -> dict[str, Text]:
    """Return how the numbers were measured."""
    options = profile.options
    runs, threads = (int(number) for number in (profile.models[0].runs, options.get("threads") or 0))
    level = fmt.name(str(options.get("level")))
    facts: dict[str, Text] = {
        "measured": f"median of {fmt.plural(runs, 'run')} on {fmt.name(str(options.get('provider')))}, "
        f"{fmt.plural(threads, 'thread')}, runtime optimizations {level}"
    }
    sizes: dict[str, int] = options.get("sizes") or {}
    swept: list[dict[str, int]] = options.get("at") or []
    sizes = {dim: size for dim, size in sizes.items() if not any(dim in point for point in swept)}
    if sizes:
        facts["sizes"] = ", ".join(f"{fmt.name(dim)}={size}" for dim, size in sizes.items())
    if len(profile.models) > 1:
        bench = Span("sardonyx bench", code=True)
        facts["changes"] = ("without an interval; ", bench, " tells whether a file is faster")
    return facts


def _of(model: ProfiledModel, profile: Profile) -> str:
    return "" if len(profile.models) == 1 else f" ({fmt.name(model.label)})"


def _beside(written: Iterable[str], changes: Iterable[str]) -> list[str]:
    """Return the cell of the first file, and those of the others, each with its change."""
    first, _none, *others = (cell for pair in zip(written, changes, strict=True) for cell in pair)
    return [first, *others]


def _columns(models: Sequence[ProfiledModel]) -> list[str]:
    labels = [fmt.name(model.label, 28) for model in models]
    return _beside(labels, ["change"] * len(labels))


def _totals(models: Sequence[ProfiledModel]) -> doc.Table:
    times = {
        "one run, not profiled, ms": [model.plain_ms for model in models],
        "one run, profiled, ms": [model.wall_ms for model in models],
        "in kernels, ms": [model.kernel_ms for model in models],
        "outside of them, not profiled, ms": [max(0.0, model.plain_ms - model.kernel_ms) for model in models],
    }
    counts = {"kernels": [len(model.kernels) for model in models], "nodes of the file": [m.nodes for m in models]}
    rows: list[tuple[Text | doc.Cell, ...]] = [
        (label, *_beside(map(ms, values), (change(values[0], value) for value in values)))
        for label, values in times.items()
    ]
    rows += (
        (label, *_beside(map(fmt.count, numbers), (fmt.change(number - numbers[0]) for number in numbers)))
        for label, numbers in counts.items()
    )
    has_modules = any(module.path for model in models for module in model.modules)
    label = doc.Cell(f"time in kernels with a {'module' if has_modules else 'node'}")
    shares = [(label, [model.attributed for model in models])]
    for trace, label in _TRACES.items():
        spent = [sum(k.milliseconds for k in model.kernels if k.traced_by is trace) for model in models]
        if any(spent):
            shares.append((doc.Cell(label, 1), list(map(part_of, spent, models))))
    rows += ((label, *_beside(map(share, parts), [""] * len(parts))) for label, parts in shares)
    return doc.Table.of((text_column(""), *_columns(models)), rows)


def _modules(profile: Profile, view: View) -> doc.Section:
    rows: list[tuple[Text | doc.Cell, ...]] = []
    for row, times in timed_modules(profile, view):
        first, *totals = (sum(each.total_ms for each in modules) for modules in times)
        alone = [ms(sum(each.self_ms for each in modules)) for modules in times]
        counts = (sum(getattr(each, name) for each in times[0]) or "·" for name in ("kernels", "calls"))
        cells: list[Text] = [*counts, alone[0], ms(first)]
        if totals:
            alone = alone if view.verbose else [""] * len(times)
            cells = [ms(first), alone[0]]
            for total, own in zip(totals, alone[1:], strict=True):
                cells += [ms(total), own, change(first, total)]
        part = part_of([first, *totals][-1], profile.models[-1])
        rows.append((module_cell(row), *cells, share(part), _bar(part), fmt.name(row.branch.tag)))
    own = Column("self", 3)
    first, *labels = [fmt.name(model.label, 28) for model in profile.models]
    numbers = [first, own, *(cell for label in labels for cell in (label, own, "change"))]
    if not labels:
        numbers = ["kernels", "calls", own, "total"]
    columns = ("module", *numbers, "share", text_column("", 1), text_column("kind", 2))
    return doc.table_section("Modules, milliseconds a run", columns, rows)


def _bar(part: float) -> str:
    """Return a bar of the share; a thin one for a share that rounds to zero."""
    cells = round(BAR_CHARS * min(max(part, 0.0), 1.0))
    return "█" * cells if cells else "▏" if part else ""


def _operators(profile: Profile, view: View) -> doc.Section:
    times = operator_times(profile.models)
    shown = times if view.verbose else times[:OPERATORS_SHOWN]
    lines = [(fmt.name(op_type), spent, Tone.PLAIN) for op_type, spent in shown]
    if rest := times[len(shown) :]:
        places = range(len(profile.models))
        sums = [(sum(spent[at][0] for _, spent in rest), sum(spent[at][1] for _, spent in rest)) for at in places]
        lines.append((f"({fmt.plural(len(rest), 'other')})", sums, Tone.FAINT))
    rows: list[Row] = []
    for label, ((kernels, first), *others), tone in lines:
        cells: list[Text] = [label, kernels or "·", ms(first)]
        for number, milliseconds in others:
            cells += [number or "·", ms(milliseconds), change(first, milliseconds)]
        rows.append(Row(cells, tone))
    first, *labels = [fmt.name(model.label, 28) for model in profile.models]
    more = [cell for label in labels for cell in ("kernels", label, "change")]
    return doc.table_section("By operator", ("operator", "kernels", first if labels else "ms", *more), rows)


def _kernels(model: ProfiledModel, profile: Profile) -> doc.Section:
    rows = (
        (
            *(fmt.name(kernel.name, 40), fmt.name(kernel.op_type), kernel.calls, ms(kernel.milliseconds)),
            share(part_of(kernel.milliseconds, model)),
            "not attributed" if kernel.owner is None else fmt.module(kernel.owner),
            ", ".join(fmt.name(node, 40) for node in kernel.nodes) or "inserted by the runtime",
        )
        for kernel in hottest(model)
    )
    columns = ("kernel", "operator", "calls", "ms", "share", text_column("module"), text_column("nodes of the file"))
    return doc.table_section(f"Hottest kernels{_of(model, profile)}", columns, rows, text_columns=2)


def _unattributed(model: ProfiledModel, profile: Profile) -> doc.Section:
    kernels = [kernel for kernel in hottest(model) if kernel.owner is None]
    spent = sum(kernel.milliseconds for kernel in kernels)
    where = f"{ms(spent)} ms ({share(part_of(spent, model))}) in {fmt.plural(len(kernels), 'kernel')}"
    lines = [f"{fmt.name(each.op_type)} {fmt.name(each.name)}: {ms(each.milliseconds)} ms" for each in kernels]
    return doc.Section(f"Not attributed{_of(model, profile)}: {where}", (doc.Notes(lines),))
