"""An Analysis as text: the forms side by side, then attention, what fuses, what is alive at the peak, the modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sardonyx.records.analysis import Analysis, AnalysisSource, AttentionCost, Form, ModuleCost, Peak
from sardonyx.records.inspection import Port
from sardonyx.reporting import formatting
from sardonyx.reporting.inspection import module_name, titled
from sardonyx.reporting.module_rows import module_label, module_rows
from sardonyx.reporting.name_groups import grouped
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column

# Which numbers of an Analysis stand side by side, what they are called and how they are written.
#
# Text and Markdown draw the same rows, so that no view can say something else than another.

Number = float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: a name for people, and the key that `Form.figures` has it under."""

    label: str
    key: str
    write: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure for every form, and how each differs from the first."""

    figure: Figure
    values: tuple[Number, ...]

    def cells(self) -> Iterator[str]:
        """The first value, then each other one with its difference."""
        first = self.values[0]
        yield self._written(first)
        for value in self.values[1:]:
            yield self._written(value)
            yield _difference(self.figure, first, value)

    def _written(self, value: Number) -> str:
        return "·" if value is None else self.figure.write(value)


def _count(value: float) -> str:
    return formatting.count(int(value))


def _amount(value: float) -> str:
    return formatting.amount(int(value))


def _bytes(value: float) -> str:
    return formatting.size(int(value))


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ratio(value: float) -> str:
    return f"{value:.1f}"


FIGURES = (
    Figure("graph nodes", "nodes", _count),
    Figure("attentions", "attentions", _count),
    Figure("operations", "operations", _count),
    Figure("views, which cost nothing", "views", _count),
    Figure("multiply-adds", "macs", _amount),
    Figure("flops", "flops", _amount),
    Figure("bytes moved", "traffic_bytes", _bytes),
    Figure("  read", "bytes_read", _bytes),
    Figure("  written", "bytes_written", _bytes),
    Figure("bytes moved if regions were fused", "traffic_if_fused_bytes", _bytes),
    Figure("traffic reduction", "traffic_reduction", _share),
    Figure("flops per byte moved", "intensity", _ratio),
    Figure("regions that fuse", "regions", _count),
    Figure("parameters", "parameters", _count),
    Figure("weights", "weight_bytes", _bytes),
    Figure("inputs", "input_bytes", _bytes),
    Figure("activations at the peak", "activation_bytes", _bytes),
    Figure("  as torch lets them go", "activation_as_run_bytes", _bytes),
    Figure("peak: weights, inputs, activations", "peak_bytes", _bytes),
)


def rows(found: Analysis) -> list[Row]:
    """All figures that any form has."""
    figures = [form.figures() for form in found.forms]
    made = (Row(figure, tuple(each[figure.key] for each in figures)) for figure in FIGURES)
    return [row for row in made if any(value is not None for value in row.values)]


def headings(forms: Sequence[Form]) -> list[str]:
    """Over `Row.cells`."""
    first, *others = (formatting.name(form.name) for form in forms)
    return [first, *(text for name in others for text in (name, "change"))]


def _difference(figure: Figure, before: Number, after: Number) -> str:
    if before is None or after is None or before == after:
        return "·"
    if figure.write is _share:
        return _signed(100 * (after - before), "points")
    return _signed(100 * (after - before) / before, "%") if before else f"+{figure.write(after)}"


def _signed(number: float, unit: str) -> str:
    """With its sign, and never rounded to nothing."""
    sign = "+" if number > 0 else "−"
    if abs(number) < 0.05:
        return f"{sign}<0.1 {unit}"
    return f"{sign}{abs(number):.{0 if abs(number) >= 10 and unit == '%' else 1}f} {unit}"


# What each module costs, as lines of the module tree.

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
                formatting.count(row.total[0]),
                formatting.amount(row.total[1]),
                formatting.size(row.total[2]),
                formatting.count(row.total[3]),
                formatting.size(highest[row.branch.path]) if highest.get(row.branch.path) else "·",
                formatting.name(row.branch.tag),
            )
        )
        for row in module_rows(known, view)
    ]
    columns = (text_column("module"), *map(Column, _HEADS), text_column("kind"))
    heading = "Modules" if alone else f"Modules ({formatting.name(form.name)})"
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


ALIVE_SHOWN = 6
REDUCTION_WARNING = "not a saving: the share of what nothing would be freed of (docs/memory.md)"


def render_analysis(found: Analysis, view: View | None = None) -> str:
    """The whole answer of `analyze`; its last line is the sentence."""
    view = view or View()
    blocks = [
        _facts(found, view),
        _figures(found, view),
        _missing(found, view),
        _attentions(found, view),
        *(_regions(form, found, view) for form in _shown(found.forms, view)),
        *(_peak(form, form.memory.peak, found, view) for form in _shown(found.forms, view)),
        _formulas(found, view),
        _caches(found, view),
        _notes_estimate(found, view),
        *(module_lines(form, view, alone=len(found.forms) == 1) for form in _shown(found.forms, view)),
        _remarks(found, view),
        [view.style.strong(analysis_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def analysis_sentence(found: Analysis) -> str:
    """What it costs, in one line; several forms from one to the next."""

    def each(write: Callable[[Form], str]) -> str:
        return " → ".join(map(write, found.forms))

    parts = (
        f"{each(lambda form: formatting.count(form.work.operations))} operations",
        f"{each(lambda form: formatting.amount(form.work.flops))} flops",
        f"{each(lambda form: formatting.size(form.traffic.without_fusion))} moved",
        f"peak {each(lambda form: formatting.size(form.memory.total))}",
        f"{each(lambda form: formatting.size(form.memory.peak.bytes))} of it activations",
    )
    names = "" if len(found.forms) == 1 else each(lambda form: formatting.name(form.name)) + ": "
    return names + ", ".join(parts)


def _shown(forms: Sequence[Form], view: View) -> Sequence[Form]:
    """What is told of one form is told of the first; of all where everything is asked for."""
    return forms if view.verbose else forms[:1]


def _facts(found: Analysis, view: View) -> list[str]:
    facts: dict[str, str] = {}
    for source in found.sources:
        if source.class_name:
            facts["class"] = formatting.name(source.class_name, 100)
        facts["inputs" if len(found.sources) == 1 else f"inputs of {formatting.visible(source.label)}"] = _inputs(
            source
        )
    if found.sizes:
        facts["open dims"] = ", ".join(f"{formatting.name(dim)}={size}" for dim, size in found.sizes.items())
    facts["units"] = "1 MB is 10^6 bytes; docs/memory.md defines each number"
    if view.verbose:
        facts["time"] = ", ".join(
            f"{formatting.name(phase)} {formatting.seconds(t)}" for phase, t in found.seconds.items()
        )
    return titled(" and ".join(formatting.visible(source.label) for source in found.sources), facts, view)


def _inputs(source: AnalysisSource) -> str:
    found = grouped(source.inputs, lambda port: port.name, _port)
    return ", ".join(f"{label}={_port(port)}" for label, (port, *_) in found)


def _port(port: Port) -> str:
    shape = "?" if port.shape is None else ",".join("?" if dim is None else str(dim) for dim in port.shape)
    return formatting.visible(f"{port.type}[{shape}]")


def _figures(found: Analysis, view: View) -> list[str]:
    columns = (text_column(""), *map(Column, headings(found.forms)))
    lines = [Line((row.figure.label, *row.cells())) for row in rows(found)]
    return table(columns, lines, view.style)


def _missing(found: Analysis, view: View) -> list[str]:
    return [
        f"  {view.style.bad('no ' + formatting.name(each.name))}: {formatting.one_line(each.reason)}"
        for each in found.missing
    ]


def _attentions(found: Analysis, view: View) -> list[str]:
    """Attentions that are made of the same parts count together."""
    lines = [line for form in found.forms for line in _attention_lines(form, alone=len(found.forms) == 1)]
    columns = (text_column("form"), Column("attentions"), text_column("written as"), text_column("made of, each"))
    shown = [view.style.strong("Attention"), *table(columns, lines, view.style)] if lines else []
    return shown + (list(_each_attention(found, view)) if view.verbose else [])


def _attention_lines(form: Form, *, alone: bool) -> Iterator[Line]:
    alike = Counter((each.written_as, parts(each)) for each in form.attentions)
    for (written_as, made_of), count in alike.items():
        yield Line(
            (
                "file" if alone else formatting.name(form.name),
                formatting.count(count),
                formatting.name(written_as),
                made_of,
            )
        )


def parts(attention: AttentionCost) -> str:
    """What an attention is made of, in the order in which it is done."""
    made_of = (role if count == 1 else f"{role} ×{count}" for role, count in attention.roles.items())
    return ", ".join(map(formatting.name, made_of)) or "no kernel of its own"


def _each_attention(found: Analysis, view: View) -> Iterator[str]:
    richest = max(found.forms, key=lambda form: sum(len(each.roles) for each in form.attentions))
    for each in richest.attentions:
        yield view.style.faint(f"  {module_name(each.module)}: {formatting.name(each.written_as)}")


def _of(form: Form, found: Analysis) -> str:
    return "" if len(found.forms) == 1 else f" ({formatting.name(form.name)})"


def _regions(form: Form, found: Analysis, view: View) -> list[str]:
    heads = ("regions", "operations", "largest", "flops", "kept out of memory", "with a value needed elsewhere")
    columns = (text_column("rule"), *map(Column, heads))
    lines = [
        Line(
            (
                formatting.name(each.rule),
                formatting.count(each.regions),
                formatting.count(each.operations),
                formatting.count(each.largest),
                formatting.amount(each.flops),
                formatting.size(each.kept_out_bytes),
                formatting.count(each.escaping) if each.escaping else "·",
            )
        )
        for each in form.regions
    ]
    return [view.style.strong(f"What fuses{_of(form, found)}"), *table(columns, lines, view.style)] if lines else []


def _peak(form: Form, peak: Peak, found: Analysis, view: View) -> list[str]:
    where = f"{formatting.name(peak.operator)} in {module_name(peak.module)}, step {formatting.count(peak.step)}"
    columns = (Column("bytes"), text_column("made by"), text_column("in module"))
    alive = peak.alive if view.verbose else peak.alive[:ALIVE_SHOWN]
    lines = [
        Line((formatting.size(each.bytes), formatting.name(each.operation), module_name(each.module))) for each in alive
    ]
    if peak.workspace:
        lines.append(Line((formatting.size(peak.workspace), "workspace", "only while it runs")))
    rest = peak.others + len(peak.alive) - len(alive)
    more = [view.style.faint(f"  and {rest} smaller ones")] if rest else []
    heading = f"Alive at the peak{_of(form, found)}: {formatting.size(peak.bytes)} while {where}"
    return [view.style.strong(heading), *(table(columns, lines, view.style) if lines else []), *more]


def _formulas(found: Analysis, view: View) -> list[str]:
    lines: list[str] = []
    for form in _shown(found.forms, view):
        if form.formulas is None:
            continue
        said = form.formulas
        lines.append(view.style.strong(f"For every size{_of(form, found)}"))
        names = {"macs": said.macs, "flops": said.flops, "bytes moved": said.bytes_moved, "peak bytes": said.peak}
        lines += [f"  {name} = {formatting.visible(text)}" for name, text in names.items()]
        lines += [
            f"  {_from(each.dim, each.size, found)} the peak is {formatting.visible(each.after)}, "
            f"before it is {formatting.visible(each.before)}"
            for each in said.crossovers
        ]
    lines += [
        f"  {_from(each.dim, each.size, found)} {formatting.name(each.more)} needs more memory"
        f" than {formatting.name(each.less)}"
        for each in found.overtaking
    ]
    return lines


def _caches(found: Analysis, view: View) -> list[str]:
    """What a decoder keeps from one run to the next."""
    lines: list[str] = []
    for source in found.sources:
        if source.cache is None:
            continue
        title = "Cache of keys and values" + (
            f" of {formatting.visible(source.label)}" if len(found.sources) > 1 else ""
        )
        lines.append(view.style.strong(title))
        for part in source.cache.parts:
            shape = ", ".join(formatting.name(str(dim)) for dim in part.shape)
            lines.append(
                f"  {formatting.plural(part.tensors, 'tensor')} of [{shape}], {part.element_bytes} bytes an element"
            )
        here = "" if source.cache.bytes is None else f"; {formatting.size(source.cache.bytes)} at these sizes"
        lines.append(f"  bytes = {formatting.visible(source.cache.formula)}{here}")
    return lines


def _from(dim: str, size: int, found: Analysis) -> str:
    held = ", ".join(f"{formatting.name(other)} = {at}" for other, at in found.sizes.items() if other != dim)
    return f"from {formatting.name(dim)} = {formatting.count(size)} on" + (f" (at {held})" if held else "")


def _notes_estimate(found: Analysis, view: View) -> list[str]:
    lines = [
        f"  {formatting.name(form.name)}: {each.peak_bytes / 2**20:.2f} MiB, {100 * each.reduction:.1f} % less than "
        f"{each.never_freed_bytes / 2**20:.2f} MiB"
        for form in found.forms
        if (each := form.as_in_notes) is not None
    ]
    return [view.style.strong("As in the notes"), *lines, view.style.faint(f"  {REDUCTION_WARNING}")] if lines else []


def _remarks(found: Analysis, view: View) -> list[str]:
    own = [
        f"  {formatting.name(form.name)}: {formatting.one_line(note)}" for form in found.forms for note in form.notes
    ]
    lines = [*(f"  {formatting.one_line(note)}" for note in found.notes), *own]
    return [view.style.strong("Notes"), *lines] if lines else []
