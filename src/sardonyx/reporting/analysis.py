"""An Analysis as a document: the forms side by side, attention, fusable regions, the memory peak, the modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from sardonyx.records.analysis import Analysis, AnalysisSource, AttentionCost, Decomposed, Form, ModuleCost
from sardonyx.records.inspection import Port
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Notes,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    text_column,
)
from sardonyx.reporting.measures import Reading
from sardonyx.reporting.module_rows import grouped, module_cell, module_rows
from sardonyx.reporting.record_kinds import FIGURES
from sardonyx.reporting.writers import csv

MODEL, MODULE = "model", "module"  # scopes of a line of CSV


def analysis_document(analysis: Analysis, view: View) -> Document:
    """Return the answer of `analyze`: modules and main figures, or everything if verbose."""
    title = " and ".join(source.label for source in analysis.sources)
    sentence = Span(analysis_sentence(analysis), Tone.STRONG)
    missing = Notes([(Span(f"no {m.name}", Tone.BAD), f": {formatting.one_line(m.reason)}") for m in analysis.missing])
    figures = _figures(analysis, view)
    if not view.verbose:
        caches = (_cache(source, analysis) for source in analysis.sources)
        blocks = (_modules(analysis.forms[0], analysis, view), figures, missing, *caches, _notes(analysis))
        return Document(title=title, head=(_sizes(analysis),), blocks=blocks, sentence=sentence)
    return Document(
        title=title,
        head=(_facts(analysis),),
        blocks=(
            figures,
            missing,
            _attention(analysis),
            *(_regions(form, analysis) for form in analysis.forms),
            *(_peak(form, analysis) for form in analysis.forms),
            *_formulas(analysis, analysis.forms),
            *(_cache(source, analysis) for source in analysis.sources),
            *(_modules(form, analysis, view) for form in analysis.forms),
            _notes(analysis),
        ),
        sentence=sentence,
    )


def analysis_sentence(analysis: Analysis) -> str:
    """Return the costs in one line; those of several forms are joined by arrows."""

    def joined(write: Callable[[Form], str]) -> str:
        return " → ".join(map(write, analysis.forms))

    parts = (
        f"{joined(lambda form: formatting.count(form.work.operations))} operations",
        f"{joined(lambda form: formatting.amount(form.work.flops))} flops",
        f"{joined(lambda form: formatting.size(form.traffic.without_fusion))} moved",
        f"peak {joined(lambda form: formatting.size(form.memory.total))}",
        f"{joined(lambda form: formatting.size(form.memory.peak.bytes))} of it activations",
    )
    names = "" if len(analysis.forms) == 1 else joined(lambda form: formatting.name(form.name)) + ": "
    return names + ", ".join(parts)


def analysis_csv(analysis: Analysis) -> str:
    """Return one line for each form as a whole and one for each of its modules, with every number in full."""
    keys = [measure.name for measure in FIGURES]
    own = [name for name in ModuleCost.__struct_fields__ if name not in ("path", "kind")]
    extra = [name for name in own if name not in keys]
    rows: list[list[object]] = []
    for form in analysis.forms:
        figures = form.figures()
        rows.append([form.name, MODEL, "", "", *(figures[key] for key in keys), *("" for _ in extra)])
        for module in form.modules:
            cells = [getattr(module, key) if key in own else "" for key in (*keys, *extra)]
            rows.append([form.name, MODULE, module.path, module.kind, *cells])
    return csv.write(["form", "scope", "module", "kind", *keys, *extra], rows)


# The figures of the forms side by side.


_MAIN = (
    *("attentions", "operations", "flops", "traffic_bytes", "traffic_if_fused_bytes"),
    *("activation_bytes", "peak_bytes"),
)
_PARTS = ("bytes_read", "bytes_written", "activation_as_run_bytes")  # of the figure above


def _figures(analysis: Analysis, view: View) -> Table:
    """Return the figures that at least one form has; the first form's, then each other one's with the change."""
    first, *others = (formatting.name(form.name) for form in analysis.forms)
    headings = [first, *(text for name in others for text in (name, "change"))]
    rows: list[Row] = []
    for measure in FIGURES:
        values = [measure.read(form) for form in analysis.forms]
        if any(value.known for value in values) and (view.verbose or measure.name in _MAIN):
            label = Cell(measure.heading, int(measure.name in _PARTS))
            rows.append(Row((label, *_side_by_side(values))))
    return Table((text_column(""), *map(Column, headings)), rows)


def _side_by_side(values: Sequence[Reading]) -> Iterator[str]:
    first = values[0]
    yield first.short if first.known else "·"
    for value in values[1:]:
        yield value.short if value.known else "·"
        yield value.change(first) or "·"


def _sizes(analysis: Analysis) -> Facts:
    """Return the sizes of the dynamic dimensions, which every number depends on."""
    sizes = ", ".join(f"{formatting.name(dim)}={size}" for dim, size in analysis.sizes.items())
    return Facts({"dynamic dimensions": sizes} if sizes else {})


def _facts(analysis: Analysis) -> Facts:
    facts: dict[str, Text] = {}
    for source in analysis.sources:
        if source.class_name:
            facts["class"] = formatting.name(source.class_name, 100)
        facts["inputs" if len(analysis.sources) == 1 else f"inputs of {source.label}"] = _inputs(source)
    facts |= _sizes(analysis).values
    facts["units"] = "1 MB is 10^6 bytes; docs/memory.md defines each number"
    facts["time"] = formatting.phases(analysis.seconds)
    return Facts(facts)


def _inputs(source: AnalysisSource) -> str:
    groups = grouped(source.inputs, lambda port: port.name, _port)
    return ", ".join(f"{label}={_port(port)}" for label, (port, *_) in groups)


def _port(port: Port) -> str:
    shape = "?" if port.shape is None else ",".join("?" if dim is None else str(dim) for dim in port.shape)
    return f"{port.type}[{shape}]"


def _of(form: Form, analysis: Analysis) -> str:
    """Return which form is meant, if there are several."""
    return "" if len(analysis.forms) == 1 else f" ({formatting.name(form.name)})"


def _attention(analysis: Analysis) -> Section:
    """Count attentions that are made of the same parts together, and list each of them."""
    columns = (text_column("form"), Column("attentions"), text_column("written as"), text_column("made of, each"))
    rows = [row for form in analysis.forms for row in _attention_rows(form, is_only=len(analysis.forms) == 1)]
    richest = max(analysis.forms, key=lambda form: sum(len(attention.roles) for attention in form.attentions))
    notes = [
        Span(f"{formatting.module(a.module)}: {formatting.name(a.written_as)}", Tone.FAINT) for a in richest.attentions
    ]
    return Section("Attention", (Table(columns, rows), Notes(notes)))


def _attention_rows(form: Form, *, is_only: bool) -> Iterator[Row]:
    counts = Counter((attention.written_as, attention_parts(attention)) for attention in form.attentions)
    label = "file" if is_only else formatting.name(form.name)
    for (written_as, made_of), count in counts.items():
        yield Row((label, formatting.count(count), formatting.name(written_as), made_of))


def attention_parts(attention: AttentionCost) -> str:
    """Return the parts of an attention in the order in which they run."""
    parts = (role if count == 1 else f"{role} ×{count}" for role, count in attention.roles.items())
    return ", ".join(map(formatting.name, parts)) or "no kernel of its own"


def _regions(form: Form, analysis: Analysis) -> Section:
    headings = ("regions", "operations", "largest", "flops", "kept out of memory", "with a value needed elsewhere")
    rows = [
        Row(
            (
                formatting.name(region.rule),
                formatting.count(region.regions),
                formatting.count(region.operations),
                formatting.count(region.largest),
                formatting.amount(region.flops),
                formatting.size(region.kept_out_bytes),
                formatting.count(region.escaping) if region.escaping else "·",
            )
        )
        for region in form.regions
    ]
    table = Table((text_column("rule"), *map(Column, headings)), rows)
    return Section(f"Fusable regions{_of(form, analysis)}", (table,))


def _peak(form: Form, analysis: Analysis) -> Section:
    peak = form.memory.peak
    where = f"{formatting.name(peak.operator)} in {formatting.module(peak.module)}, step {formatting.count(peak.step)}"
    columns = (Column("bytes"), text_column("produced by"), text_column("in module"))
    rows = [
        Row((formatting.size(v.bytes), formatting.name(v.operation), formatting.module(v.module))) for v in peak.alive
    ]
    if peak.workspace:
        rows.append(Row((formatting.size(peak.workspace), "workspace", "only while it runs")))
    more = f"and {peak.others} smaller ones" if peak.others else ""
    title = f"Alive at the peak{_of(form, analysis)}: {formatting.size(peak.bytes)} during {where}"
    return Section(title, (Table(columns, rows), Paragraph(more, Tone.FAINT)))


def _formulas(analysis: Analysis, forms: Sequence[Form]) -> Iterator[Block]:
    """Yield the costs as formulas of the dynamic dimensions, and where one form overtakes another."""
    for form in forms:
        formulas = form.formulas
        if formulas is None:
            continue
        by_name = {
            "macs": formulas.macs,
            "flops": formulas.flops,
            "bytes moved": formulas.bytes_moved,
            "peak bytes": formulas.peak,
        }
        lines: list[Text] = [(f"{name} = ", Span(formula, code=True)) for name, formula in by_name.items()]
        lines += [
            f"{_from(change.dim, change.size, analysis)} the peak is {change.after}, for smaller sizes {change.before}"
            for change in formulas.crossovers
        ]
        yield Section(f"For every size{_of(form, analysis)}", (Notes(lines),))
    yield Notes(
        [
            f"{_from(change.dim, change.size, analysis)} {formatting.name(change.more)} needs more memory"
            f" than {formatting.name(change.less)}"
            for change in analysis.overtaking
        ]
    )


def _from(dim: str, size: int, analysis: Analysis) -> str:
    others = ", ".join(f"{formatting.name(name)} = {value}" for name, value in analysis.sizes.items() if name != dim)
    return f"from {formatting.name(dim)} = {formatting.count(size)} on" + (f" (at {others})" if others else "")


def _cache(source: AnalysisSource, analysis: Analysis) -> Section:
    """Return what a decoder keeps from one run to the next."""
    title = "Cache of keys and values" + (f" of {source.label}" if len(analysis.sources) > 1 else "")
    cache = source.cache
    if cache is None:
        return Section(title, ())
    lines: list[Text] = []
    for part in cache.parts:
        shape = ", ".join(formatting.name(str(dim)) for dim in part.shape)
        lines.append(f"{formatting.plural(part.tensors, 'tensor')} of [{shape}], {part.element_bytes} bytes an element")
    here = "" if cache.bytes is None else f"; {formatting.size(cache.bytes)} at these sizes"
    lines.append(("bytes = ", Span(cache.formula, code=True), here))
    return Section(title, (Notes(lines),))


def _modules(form: Form, analysis: Analysis, view: View) -> Section:
    """Return the module tree with totals; equal layers are one line."""
    highest = _highest(form)
    # The last number is not shown as a sum; it only keeps layers with different peaks from being merged.
    numbers = [(m.path, m.kind, (m.operations, m.flops, m.bytes_moved, m.parameters, m.peak)) for m in form.modules]
    rows = [
        Row(
            (
                module_cell(row),
                formatting.count(row.total[0]),
                formatting.amount(row.total[1]),
                formatting.size(row.total[2]),
                formatting.count(row.total[3]),
                formatting.size(highest[row.branch.path]) if highest.get(row.branch.path) else "·",
                formatting.name(row.branch.tag),
            )
        )
        for row in module_rows(numbers, view)
    ]
    columns = (
        text_column("module"),
        Column("operations", detail=3),
        Column("flops"),
        Column("moved"),
        Column("parameters", detail=2),
        Column("peak"),
        text_column("kind", detail=1),
    )
    return Section(f"Modules{_of(form, analysis)}", (Table(columns, rows),))


def _highest(form: Form) -> dict[str, int]:
    """Return the most bytes alive while a module or one below it runs, by path."""
    highest: dict[str, int] = {}
    for module in form.modules:
        path = module.path
        while True:
            highest[path] = max(highest.get(path, 0), module.peak)
            if not path:
                break
            path = path.rpartition(".")[0]
    return highest


def _notes(analysis: Analysis) -> Section:
    own = [f"{formatting.name(form.name)}: {note}" for form in analysis.forms for note in form.notes]
    return Section("Notes", (Notes([formatting.one_line(note) for note in (*analysis.notes, *own)]),))


# The answer of `decompose`, which shows the same attentions.

ATTENTIONS_SHOWN = 12


def decomposition_document(decomposed: Decomposed, view: View) -> Document:
    """Return the answer of `decompose`."""
    shown = decomposed.attentions if view.verbose else decomposed.attentions[:ATTENTIONS_SHOWN]
    columns = (text_column("attention"), text_column("written as"), text_column("made of"))
    rows = [Row((formatting.module(a.module), formatting.name(a.written_as), attention_parts(a))) for a in shown]
    more = len(decomposed.attentions) - len(shown)
    return Document(
        title=decomposed.source,
        head=(Facts({"graph nodes": _node_counts(decomposed)}),),
        blocks=(
            Table(columns, rows),
            Paragraph(f"and {more} more; -v lists all" if more else "", Tone.FAINT),
            Notes([formatting.one_line(note) for note in decomposed.notes]),
        ),
        sentence=Span(decomposition_sentence(decomposed), Tone.STRONG),
    )


def decomposition_sentence(decomposed: Decomposed) -> str:
    """Return how many attentions were decomposed, in one line."""
    where = f" → {decomposed.output}" if decomposed.output else ""
    attentions = formatting.plural(len(decomposed.attentions), "attention")
    return f"{attentions} decomposed, {_node_counts(decomposed)} nodes{where}"


def _node_counts(decomposed: Decomposed) -> str:
    after = formatting.count(decomposed.nodes)
    return after if decomposed.nodes_before is None else f"{formatting.count(decomposed.nodes_before)} → {after}"
