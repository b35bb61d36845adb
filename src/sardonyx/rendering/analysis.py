"""An Analysis as text: the forms side by side, then attention, what fuses, what is alive at the peak, the modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from sardonyx.analysis_record import Analysis, AttentionCost, Form, Peak, Source
from sardonyx.inspection import Port
from sardonyx.rendering import words
from sardonyx.rendering.analysis_figures import headings, rows
from sardonyx.rendering.analysis_modules import module_lines
from sardonyx.rendering.model import module_name, titled
from sardonyx.rendering.names import grouped
from sardonyx.rendering.table import Column, Line, table, text_column
from sardonyx.rendering.view import View

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
        f"{each(lambda form: words.count(form.work.operations))} operations",
        f"{each(lambda form: words.amount(form.work.flops))} flops",
        f"{each(lambda form: words.size(form.traffic.without_fusion))} moved",
        f"peak {each(lambda form: words.size(form.memory.total))}",
        f"{each(lambda form: words.size(form.memory.peak.bytes))} of it activations",
    )
    names = "" if len(found.forms) == 1 else each(lambda form: words.name(form.name)) + ": "
    return names + ", ".join(parts)


def _shown(forms: Sequence[Form], view: View) -> Sequence[Form]:
    """What is told of one form is told of the first; of all where everything is asked for."""
    return forms if view.verbose else forms[:1]


def _facts(found: Analysis, view: View) -> list[str]:
    facts: dict[str, str] = {}
    for source in found.sources:
        if source.class_name:
            facts["class"] = words.name(source.class_name, 100)
        facts["inputs" if len(found.sources) == 1 else f"inputs of {words.visible(source.label)}"] = _inputs(source)
    if found.sizes:
        facts["open dims"] = ", ".join(f"{words.name(dim)}={size}" for dim, size in found.sizes.items())
    facts["units"] = "1 MB is 10^6 bytes; docs/memory.md defines each number"
    if view.verbose:
        facts["time"] = ", ".join(f"{words.name(phase)} {words.seconds(t)}" for phase, t in found.seconds.items())
    return titled(" and ".join(words.visible(source.label) for source in found.sources), facts, view)


def _inputs(source: Source) -> str:
    found = grouped(source.inputs, lambda port: port.name, _port)
    return ", ".join(f"{label}={_port(port)}" for label, (port, *_) in found)


def _port(port: Port) -> str:
    shape = "?" if port.shape is None else ",".join("?" if dim is None else str(dim) for dim in port.shape)
    return words.visible(f"{port.type}[{shape}]")


def _figures(found: Analysis, view: View) -> list[str]:
    columns = (text_column(""), *map(Column, headings(found.forms)))
    lines = [Line((row.figure.label, *row.cells())) for row in rows(found)]
    return table(columns, lines, view.style)


def _missing(found: Analysis, view: View) -> list[str]:
    return [
        f"  {view.style.bad('no ' + words.name(each.name))}: {words.one_line(each.reason)}" for each in found.missing
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
        yield Line(("file" if alone else words.name(form.name), words.count(count), words.name(written_as), made_of))


def parts(attention: AttentionCost) -> str:
    """What an attention is made of, in the order in which it is done."""
    made_of = (role if count == 1 else f"{role} ×{count}" for role, count in attention.roles.items())
    return ", ".join(map(words.name, made_of)) or "no kernel of its own"


def _each_attention(found: Analysis, view: View) -> Iterator[str]:
    richest = max(found.forms, key=lambda form: sum(len(each.roles) for each in form.attentions))
    for each in richest.attentions:
        yield view.style.faint(f"  {module_name(each.module)}: {words.name(each.written_as)}")


def _of(form: Form, found: Analysis) -> str:
    return "" if len(found.forms) == 1 else f" ({words.name(form.name)})"


def _regions(form: Form, found: Analysis, view: View) -> list[str]:
    heads = ("regions", "operations", "largest", "flops", "kept out of memory", "with a value needed elsewhere")
    columns = (text_column("rule"), *map(Column, heads))
    lines = [
        Line(
            (
                words.name(each.rule),
                words.count(each.regions),
                words.count(each.operations),
                words.count(each.largest),
                words.amount(each.flops),
                words.size(each.kept_out_bytes),
                words.count(each.escaping) if each.escaping else "·",
            )
        )
        for each in form.regions
    ]
    return [view.style.strong(f"What fuses{_of(form, found)}"), *table(columns, lines, view.style)] if lines else []


def _peak(form: Form, peak: Peak, found: Analysis, view: View) -> list[str]:
    where = f"{words.name(peak.operator)} in {module_name(peak.module)}, step {words.count(peak.step)}"
    columns = (Column("bytes"), text_column("made by"), text_column("in module"))
    alive = peak.alive if view.verbose else peak.alive[:ALIVE_SHOWN]
    lines = [Line((words.size(each.bytes), words.name(each.operation), module_name(each.module))) for each in alive]
    if peak.workspace:
        lines.append(Line((words.size(peak.workspace), "workspace", "only while it runs")))
    rest = peak.others + len(peak.alive) - len(alive)
    more = [view.style.faint(f"  and {rest} smaller ones")] if rest else []
    heading = f"Alive at the peak{_of(form, found)}: {words.size(peak.bytes)} while {where}"
    return [view.style.strong(heading), *(table(columns, lines, view.style) if lines else []), *more]


def _formulas(found: Analysis, view: View) -> list[str]:
    lines: list[str] = []
    for form in _shown(found.forms, view):
        if form.formulas is None:
            continue
        said = form.formulas
        lines.append(view.style.strong(f"For every size{_of(form, found)}"))
        names = {"macs": said.macs, "flops": said.flops, "bytes moved": said.bytes_moved, "peak bytes": said.peak}
        lines += [f"  {name} = {words.visible(text)}" for name, text in names.items()]
        lines += [
            f"  {_from(each.dim, each.size, found)} the peak is {words.visible(each.after)}, "
            f"before it is {words.visible(each.before)}"
            for each in said.crossovers
        ]
    lines += [
        f"  {_from(each.dim, each.size, found)} {words.name(each.more)} needs more memory than {words.name(each.less)}"
        for each in found.overtaking
    ]
    return lines


def _caches(found: Analysis, view: View) -> list[str]:
    """What a decoder keeps from one run to the next."""
    lines: list[str] = []
    for source in found.sources:
        if source.cache is None:
            continue
        title = "Cache of keys and values" + (f" of {words.visible(source.label)}" if len(found.sources) > 1 else "")
        lines.append(view.style.strong(title))
        for part in source.cache.parts:
            shape = ", ".join(words.name(str(dim)) for dim in part.shape)
            lines.append(
                f"  {words.plural(part.tensors, 'tensor')} of [{shape}], {part.element_bytes} bytes an element"
            )
        here = "" if source.cache.bytes is None else f"; {words.size(source.cache.bytes)} at these sizes"
        lines.append(f"  bytes = {words.visible(source.cache.formula)}{here}")
    return lines


def _from(dim: str, size: int, found: Analysis) -> str:
    held = ", ".join(f"{words.name(other)} = {at}" for other, at in found.sizes.items() if other != dim)
    return f"from {words.name(dim)} = {words.count(size)} on" + (f" (at {held})" if held else "")


def _notes_estimate(found: Analysis, view: View) -> list[str]:
    lines = [
        f"  {words.name(form.name)}: {each.peak_bytes / 2**20:.2f} MiB, {100 * each.reduction:.1f} % less than "
        f"{each.never_freed_bytes / 2**20:.2f} MiB"
        for form in found.forms
        if (each := form.as_in_notes) is not None
    ]
    return [view.style.strong("As in the notes"), *lines, view.style.faint(f"  {REDUCTION_WARNING}")] if lines else []


def _remarks(found: Analysis, view: View) -> list[str]:
    own = [f"  {words.name(form.name)}: {words.one_line(note)}" for form in found.forms for note in form.notes]
    lines = [*(f"  {words.one_line(note)}" for note in found.notes), *own]
    return [view.style.strong("Notes"), *lines] if lines else []
