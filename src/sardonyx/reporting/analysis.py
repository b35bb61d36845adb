"""An Analysis as a document: the forms side by side, attention, fusable regions, the memory peak, the modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from sardonyx.records.analysis import Analysis, AnalysisSource, AttentionCost, Decomposed, Form, ModuleCost
from sardonyx.records.inspection import Port
from sardonyx.records.provenance import lineage
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Notes,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    table_section,
    text_column,
)
from sardonyx.reporting.module_rows import first_notes, grouped, module_cell, module_rows
from sardonyx.reporting.record_kinds import FIGURES
from sardonyx.reporting.writers.tables import write_csv

MODEL, MODULE = "model", "module"  # scopes of a line of CSV
NOTES_SHOWN, MODULES_BESIDE_FORMS = 3, 9  # on one screen


def analysis_document(analysis: Analysis, view: View) -> Document:
    """Return the answer of `analyze`: modules and main figures, or everything if verbose."""
    title = " and ".join(source.label for source in analysis.sources)
    sentence = Span(analysis_sentence(analysis), Tone.STRONG)
    missing = Notes([(Span(f"no {m.name}", Tone.BAD), f": {formatting.one_line(m.reason)}") for m in analysis.missing])
    figures = _figures(analysis, view)
    if not view.verbose:
        caches = (_cache(source, analysis) for source in analysis.sources)
        rows = view.rows if len(analysis.forms) == 1 else MODULES_BESIDE_FORMS
        modules = _modules(analysis.forms[0], analysis, replace(view, rows=rows))
        blocks = (modules, figures, missing, *caches, _notes(analysis, NOTES_SHOWN))
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
    """Return the costs in one line; those of several forms are joined by arrows where they differ."""

    def joined(write: Callable[[Form], str]) -> str:
        written = [write(form) for form in analysis.forms]
        return " → ".join(written if len({*written}) > 1 else written[:1])

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
    return write_csv(["form", "scope", "module", "kind", *keys, *extra], rows)


# The figures of the forms side by side.


_MAIN = (
    *("attentions", "operations", "flops", "traffic_bytes", "traffic_if_fused_bytes"),
    *("activation_bytes", "peak_bytes"),
)
_PARTS = ("bytes_read", "bytes_written", "activation_as_run_bytes")  # of the figure above


def _figures(analysis: Analysis, view: View) -> Table:
    """Return the figures that at least one form has; the first form's, then each other one's with the change."""
    first, *names = (formatting.name(form.name) for form in analysis.forms)
    rows: list[tuple[Text | Cell, ...]] = []
    for measure in FIGURES:
        values = [measure.read(form) for form in analysis.forms]
        if any(value.known for value in values) and (view.verbose or measure.name in _MAIN):
            pairs = ((each.short if each.known else "·", each.change(values[0]) or "·") for each in values)
            written, _unchanged, *others = (cell for pair in pairs for cell in pair)
            rows.append((Cell(measure.heading, int(measure.name in _PARTS)), written, *others))
    return Table.of((text_column(""), first, *(text for name in names for text in (name, "change"))), rows)


def _sizes(analysis: Analysis) -> Facts:
    sizes = ", ".join(f"{formatting.name(dim)}={size}" for dim, size in analysis.sizes.items())
    return Facts({"dynamic dimensions": sizes} if sizes else {})


def _facts(analysis: Analysis) -> Facts:
    facts: dict[str, Text] = {}
    for source in analysis.sources:
        if source.class_name:
            facts["class"] = formatting.name(source.class_name, 100)
        groups = grouped(source.inputs, lambda port: port.name, _port)
        inputs = ", ".join(f"{label}={_port(port)}" for label, (port, *_) in groups)
        facts["inputs" if len(analysis.sources) == 1 else f"inputs of {source.label}"] = inputs
    facts |= _sizes(analysis).values
    facts["units"] = "1 MB is 10^6 bytes; docs/memory.md defines each number"
    facts["time"] = formatting.phases(analysis.seconds)
    return Facts(facts)


def _port(port: Port) -> str:
    shape = "?" if port.shape is None else ",".join("?" if dim is None else str(dim) for dim in port.shape)
    return f"{port.type}[{shape}]"


def _of(form: Form, analysis: Analysis) -> str:
    return "" if len(analysis.forms) == 1 else f" ({formatting.name(form.name)})"


def _attention(analysis: Analysis) -> Section:
    """Count attentions that are made of the same parts together, and list each of them."""
    columns = ("form", "attentions", text_column("written as"), text_column("made of, each"))
    rows: list[tuple[str, ...]] = []
    for form in analysis.forms:
        label = "file" if len(analysis.forms) == 1 else formatting.name(form.name)
        counts = Counter((attention.written_as, attention_parts(attention)) for attention in form.attentions)
        rows += ((label, formatting.count(counts[key]), formatting.name(key[0]), key[1]) for key in counts)
    richest = max(analysis.forms, key=lambda form: sum(len(attention.roles) for attention in form.attentions))
    notes = [
        Span(f"{formatting.module(a.module)}: {formatting.name(a.written_as)}", Tone.FAINT) for a in richest.attentions
    ]
    section = table_section("Attention", columns, rows)
    return replace(section, blocks=(*section.blocks, Notes(notes)))


def attention_parts(attention: AttentionCost) -> str:
    """Return the parts of an attention in the order in which they run."""
    parts = (role if count == 1 else f"{role} ×{count}" for role, count in attention.roles.items())
    return ", ".join(map(formatting.name, parts)) or "no kernel of its own"


def _regions(form: Form, analysis: Analysis) -> Section:
    headings = ("regions", "operations", "largest", "flops", "kept out of memory", "with a value needed elsewhere")
    rows = (
        (
            formatting.name(region.rule),
            *map(formatting.count, (region.regions, region.operations, region.largest)),
            formatting.amount(region.flops),
            formatting.size(region.kept_out_bytes),
            formatting.count(region.escaping) if region.escaping else "·",
        )
        for region in form.regions
    )
    return table_section(f"Fusable regions{_of(form, analysis)}", ("rule", *headings), rows)


def _peak(form: Form, analysis: Analysis) -> Section:
    peak = form.memory.peak
    where = f"{formatting.name(peak.operator)} in {formatting.module(peak.module)}, step {formatting.count(peak.step)}"
    columns = (Column("bytes"), text_column("produced by"), text_column("in module"))
    rows = [(formatting.size(v.bytes), formatting.name(v.operation), formatting.module(v.module)) for v in peak.alive]
    if peak.workspace:
        rows.append((formatting.size(peak.workspace), "workspace", "only while it runs"))
    more = f"and {peak.others} smaller ones" if peak.others else ""
    title = f"Alive at the peak{_of(form, analysis)}: {formatting.size(peak.bytes)} during {where}"
    return Section(title, (Table.of(columns, rows), Paragraph(more, Tone.FAINT)))


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
    highest: dict[str, int] = defaultdict(int)  # bytes alive while a module or one below it runs
    for module in form.modules:
        for path in lineage(module.path):
            highest[path] = max(highest[path], module.peak)
    # The last number is not shown as a sum; it only keeps layers with different peaks from being merged.
    costs = [(m.path, m.kind, (m.operations, m.flops, m.bytes_moved, m.parameters, m.peak)) for m in form.modules]
    rows = (
        (
            module_cell(row),
            formatting.count(row.total[0]),
            formatting.amount(row.total[1]),
            formatting.size(row.total[2]),
            formatting.count(row.total[3]),
            formatting.size(highest[row.branch.path]) if highest[row.branch.path] else "·",
            formatting.name(row.branch.tag),
        )
        for row in module_rows(costs, view)
    )
    numbers = (Column("operations", 3), "flops", "moved", Column("parameters", 2), "peak")
    return table_section(f"Modules{_of(form, analysis)}", ("module", *numbers, text_column("kind", 1)), rows)


def _notes(analysis: Analysis, most: int | None = None) -> Section:
    own = [f"{formatting.name(form.name)}: {note}" for form in analysis.forms for note in form.notes]
    notes = [formatting.one_line(note) for note in (*analysis.notes, *own)]
    return Section("Notes", (Notes(first_notes(notes, most)),))


# The answer of `decompose`, which shows the same attentions.

ATTENTIONS_SHOWN = 12


def decomposition_document(decomposed: Decomposed, view: View) -> Document:
    """Return the answer of `decompose`."""
    shown = decomposed.attentions if view.verbose else decomposed.attentions[:ATTENTIONS_SHOWN]
    columns = map(text_column, ("attention", "written as", "made of"))
    rows = ((formatting.module(a.module), formatting.name(a.written_as), attention_parts(a)) for a in shown)
    more = len(decomposed.attentions) - len(shown)
    return Document(
        title=decomposed.source,
        head=(Facts({"graph nodes": _node_counts(decomposed)}),),
        blocks=(
            Table.of(columns, rows),
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
