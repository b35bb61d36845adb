"""An Analysis as a document: the forms side by side, attention, fusable regions, the memory peak, the modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from sardonyx.records.analysis import Analysis, AnalysisSource, AttentionCost, Decomposed, Form, ModuleCost
from sardonyx.records.inspection import Port
from sardonyx.records.provenance import lineage
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Span, Text, Tone, View, text_column
from sardonyx.reporting.module_rows import first_notes, grouped, module_cell, module_rows
from sardonyx.reporting.record_kinds import FIGURES
from sardonyx.reporting.writers.tables import write_csv

MODEL, MODULE = "model", "module"  # scopes of a line of CSV
NOTES_SHOWN, MODULES_BESIDE_FORMS = 3, 9  # on one screen


def analysis_document(analysis: Analysis, view: View) -> doc.Document:
    """Return the answer of `analyze`: modules and main figures, or everything if verbose."""
    forms, sources = analysis.forms, analysis.sources
    missing = doc.Notes([(Span(f"no {m.name}", Tone.BAD), f": {fmt.one_line(m.reason)}") for m in analysis.missing])
    caches, figures = [_cache(source, analysis) for source in sources], _figures(analysis, view)
    own = [f"{fmt.name(form.name)}: {note}" for form in forms for note in form.notes]
    notes = first_notes((*analysis.notes, *own), None if view.verbose else NOTES_SHOWN)
    blocks: tuple[doc.Block, ...]
    if view.verbose:
        blocks = (
            *(figures, missing, _attention(analysis)),
            *(_regions(form, analysis) for form in forms),
            *(_peak(form, analysis) for form in forms),
            *_formulas(analysis),
            *caches,
            *(_modules(form, analysis, view) for form in forms),
        )
    else:
        rows = view.rows if len(forms) == 1 else MODULES_BESIDE_FORMS
        blocks = (_modules(forms[0], analysis, replace(view, rows=rows)), figures, missing, *caches)
    return doc.Document(
        title=" and ".join(source.label for source in sources),
        head=(_facts(analysis, view),),
        blocks=(*blocks, doc.Section("Notes", (doc.Notes(notes),))),
        sentence=Span(analysis_sentence(analysis), Tone.STRONG),
    )


def analysis_sentence(analysis: Analysis) -> str:
    """Return the costs in one line; those of several forms are joined by arrows where they differ."""

    def joined(write: Callable[[Form], str]) -> str:
        written = [write(form) for form in analysis.forms]
        return " → ".join(written if len({*written}) > 1 else written[:1])

    parts = (
        f"{joined(lambda form: fmt.count(form.work.operations))} operations",
        f"{joined(lambda form: fmt.amount(form.work.flops))} flops",
        f"{joined(lambda form: fmt.size(form.traffic.without_fusion))} moved",
        f"peak {joined(lambda form: fmt.size(form.memory.total))}",
        f"{joined(lambda form: fmt.size(form.memory.peak.bytes))} of it activations",
    )
    names = "" if len(analysis.forms) == 1 else joined(lambda form: fmt.name(form.name)) + ": "
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


def _figures(analysis: Analysis, view: View) -> doc.Table:
    """Return the figures that at least one form has; the first form's, then each other one's with the change."""
    first, *names = (fmt.name(form.name) for form in analysis.forms)
    rows: list[tuple[Text | doc.Cell, ...]] = []
    for measure in FIGURES:
        values = [measure.read(form) for form in analysis.forms]
        if any(value.known for value in values) and (view.verbose or measure.name in _MAIN):
            pairs = ((each.short if each.known else "·", each.change(values[0]) or "·") for each in values)
            written, _unchanged, *others = (cell for pair in pairs for cell in pair)
            rows.append((doc.Cell(measure.heading, int(measure.name in _PARTS)), written, *others))
    return doc.Table.of((text_column(""), first, *(text for name in names for text in (name, "change"))), rows)


def _facts(analysis: Analysis, view: View) -> doc.Facts:
    facts: dict[str, Text | None] = {}
    for source in analysis.sources if view.verbose else ():
        if source.class_name:
            facts["class"] = fmt.name(source.class_name, 100)
        groups = grouped(source.inputs, lambda port: port.name, _port)
        inputs = ", ".join(f"{label}={_port(port)}" for label, (port, *_) in groups)
        facts["inputs" if len(analysis.sources) == 1 else f"inputs of {source.label}"] = inputs
    facts["dynamic dimensions"] = ", ".join(f"{fmt.name(d)}={size}" for d, size in analysis.sizes.items()) or None
    if view.verbose:
        facts["units"] = "1 MB is 10^6 bytes; docs/memory.md defines each number"
        facts["time"] = fmt.phases(analysis.seconds)
    return doc.Facts.of(facts)


def _port(port: Port) -> str:
    shape = "?" if port.shape is None else ",".join("?" if dim is None else str(dim) for dim in port.shape)
    return f"{port.type}[{shape}]"


def _of(form: Form, analysis: Analysis) -> str:
    return "" if len(analysis.forms) == 1 else f" ({fmt.name(form.name)})"


def _attention(analysis: Analysis) -> doc.Section:
    """Count attentions that are made of the same parts together, and list each of them."""
    columns = ("form", "attentions", text_column("written as"), text_column("made of, each"))
    rows: list[tuple[Text, ...]] = []
    for form in analysis.forms:
        label = "file" if len(analysis.forms) == 1 else fmt.name(form.name)
        counts = Counter((attention.written_as, attention_parts(attention)) for attention in form.attentions)
        rows += ((label, counts[key], fmt.name(key[0]), key[1]) for key in counts)
    richest = max(analysis.forms, key=lambda form: sum(len(attention.roles) for attention in form.attentions))
    notes = [Span(f"{fmt.module(a.module)}: {fmt.name(a.written_as)}", Tone.FAINT) for a in richest.attentions]
    section = doc.table_section("Attention", columns, rows)
    return replace(section, blocks=(*section.blocks, doc.Notes(notes)))


def attention_parts(attention: AttentionCost) -> str:
    """Return the parts of an attention in the order in which they run."""
    parts = (role if count == 1 else f"{role} ×{count}" for role, count in attention.roles.items())
    return ", ".join(map(fmt.name, parts)) or "no kernel of its own"


def _regions(form: Form, analysis: Analysis) -> doc.Section:
    numbers = ("regions", "operations", "largest", "flops", "kept out of memory", "with a value needed elsewhere")
    rows = (
        (
            *(fmt.name(region.rule), region.regions, region.operations, region.largest),
            *(fmt.amount(region.flops), fmt.size(region.kept_out_bytes), region.escaping or "·"),
        )
        for region in form.regions
    )
    return doc.table_section(f"Fusable regions{_of(form, analysis)}", ("rule", *numbers), rows)


def _peak(form: Form, analysis: Analysis) -> doc.Section:
    peak = form.memory.peak
    where = f"{fmt.name(peak.operator)} in {fmt.module(peak.module)}, step {fmt.count(peak.step)}"
    rows = [(fmt.size(v.bytes), fmt.name(v.operation), fmt.module(v.module)) for v in peak.alive]
    if peak.workspace:
        rows.append((fmt.size(peak.workspace), "workspace", "only while it runs"))
    more = doc.Paragraph(f"and {peak.others} smaller ones" if peak.others else "", Tone.FAINT)
    title = f"Alive at the peak{_of(form, analysis)}: {fmt.size(peak.bytes)} during {where}"
    table = doc.Table.of(("bytes", text_column("produced by"), text_column("in module")), rows)
    return doc.Section(title, (table, more))


def _formulas(analysis: Analysis) -> Iterator[doc.Block]:
    """Yield the costs as formulas of the dynamic dimensions, and where one form overtakes another."""

    def since(dim: str, size: int) -> str:
        others = ", ".join(f"{fmt.name(name)} = {value}" for name, value in analysis.sizes.items() if name != dim)
        return f"from {fmt.name(dim)} = {fmt.count(size)} on" + (f" (at {others})" if others else "")

    for form in analysis.forms:
        if (formulas := form.formulas) is not None:
            costs = {"macs": formulas.macs, "flops": formulas.flops}
            costs |= {"bytes moved": formulas.bytes_moved, "peak bytes": formulas.peak}
            lines: list[Text] = [(f"{name} = ", Span(formula, code=True)) for name, formula in costs.items()]
            lines += [
                f"{since(change.dim, change.size)} the peak is {change.after}, for smaller sizes {change.before}"
                for change in formulas.crossovers
            ]
            yield doc.Section(f"For every size{_of(form, analysis)}", (doc.Notes(lines),))
    yield doc.Notes([
        f"{since(each.dim, each.size)} {fmt.name(each.more)} needs more memory than {fmt.name(each.less)}"
        for each in analysis.overtaking
    ])  # fmt: skip


def _cache(source: AnalysisSource, analysis: Analysis) -> doc.Section:
    title = "Cache of keys and values" + (f" of {source.label}" if len(analysis.sources) > 1 else "")
    cache = source.cache
    if cache is None:
        return doc.Section(title, ())
    lines: list[Text] = [
        f"{fmt.plural(part.tensors, 'tensor')} of [{', '.join(fmt.name(str(dim)) for dim in part.shape)}],"
        f" {part.element_bytes} bytes an element"
        for part in cache.parts
    ]
    here = "" if cache.bytes is None else f"; {fmt.size(cache.bytes)} at these sizes"
    lines.append(("bytes = ", Span(cache.formula, code=True), here))
    return doc.Section(title, (doc.Notes(lines),))


def _modules(form: Form, analysis: Analysis, view: View) -> doc.Section:
    highest: dict[str, int] = defaultdict(int)  # bytes alive while a module or one below it runs
    for module in form.modules:
        for path in lineage(module.path):
            highest[path] = max(highest[path], module.peak)
    # The last number is not shown as a sum; it only keeps layers with different peaks from being merged.
    costs = [(m.path, m.kind, (m.operations, m.flops, m.bytes_moved, m.parameters, m.peak)) for m in form.modules]
    rows = (
        (
            *(module_cell(row), row.total[0], fmt.amount(row.total[1]), fmt.size(row.total[2]), row.total[3]),
            *(fmt.size(highest[row.branch.path]) if highest[row.branch.path] else "·", fmt.name(row.branch.tag)),
        )
        for row in module_rows(costs, view)
    )
    numbers = (Column("operations", 3), "flops", "moved", Column("parameters", 2), "peak")
    return doc.table_section(f"Modules{_of(form, analysis)}", ("module", *numbers, text_column("kind", 1)), rows)


# The answer of `decompose`, which shows the same attentions.

ATTENTIONS_SHOWN = 12


def decomposition_document(decomposed: Decomposed, view: View) -> doc.Document:
    """Return the answer of `decompose`."""
    rows = [(fmt.module(a.module), fmt.name(a.written_as), attention_parts(a)) for a in decomposed.attentions]
    shown = rows if view.verbose else rows[:ATTENTIONS_SHOWN]
    more = f"and {len(rows) - len(shown)} more; -v lists all" if len(shown) < len(rows) else ""
    return doc.Document(
        title=decomposed.source,
        head=(doc.Facts({"graph nodes": _node_counts(decomposed)}),),
        blocks=(
            doc.Table.of(map(text_column, ("attention", "written as", "made of")), shown),
            doc.Paragraph(more, Tone.FAINT),
            doc.Notes([fmt.one_line(note) for note in decomposed.notes]),
        ),
        sentence=Span(decomposition_sentence(decomposed), Tone.STRONG),
    )


def decomposition_sentence(decomposed: Decomposed) -> str:
    """Return how many attentions were decomposed, in one line."""
    where = f" → {decomposed.output}" if decomposed.output else ""
    attentions = fmt.plural(len(decomposed.attentions), "attention")
    return f"{attentions} decomposed, {_node_counts(decomposed)} nodes{where}"


def _node_counts(decomposed: Decomposed) -> str:
    before, after = decomposed.nodes_before, decomposed.nodes
    return fmt.count(after) if before is None else fmt.counts(before, after)
