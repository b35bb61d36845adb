"""Runs as Markdown for a pull request: one sentence, the numbers, and the rest folded.

A comment on GitHub holds 65,536 characters. Blocks that do not fit are left out as a whole, the least important first,
and the text names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import structs

from sardonyx.records.run import Run
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import finding, milliseconds, ratio
from sardonyx.reporting.document import Text, View
from sardonyx.reporting.history import changes, histories, history_section, trends
from sardonyx.reporting.module_contents import module_mermaid, top_module
from sardonyx.reporting.module_rows import module_cell, module_rows
from sardonyx.reporting.profile import ms
from sardonyx.reporting.record_kinds import RUN
from sardonyx.reporting.run import refusals, run_sentence
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import output_groups, verification
from sardonyx.reporting.writers import markdown

MAX_TEXT = 60_000  # characters
_MAX_ROWS = 40  # of a table
_RESERVED = 600  # characters for naming what was left out
_MIN_MODEL_CHARS = 2_000  # characters that a model gets at least
_MAX_SENTENCE = 300  # characters of a sentence from a model
_HEADING_LEVEL = 3  # of the heading of a model


def pull_request(bundles: Sequence[RunBundle]) -> str:
    """Return the newest run of each model with everything that fits, after a table of the models and of all runs."""
    if len(bundles) == 1:
        return _fitted(_written(run_comment(bundles[0])), MAX_TEXT)
    models = histories(bundles)
    latest = [history.latest for history in models]
    sections = [_models(latest)] if len(models) > 1 else []
    for history in models:
        if len(history.runs) > 1:
            lines = history_section(history)
            sections.append(structs.replace(lines, blocks=(*lines.blocks, doc.Notes(trends(history)))))
    tables = [(str(section.title).lower(), markdown.block(section, _HEADING_LEVEL - 1)) for section in sections]
    share = max(_MIN_MODEL_CHARS, (MAX_TEXT - _RESERVED - sum(len(text) for _name, text in tables)) // len(latest) - 2)
    comments = [(fmt.name(each.label), _fitted(_written(run_comment(each)), share).rstrip()) for each in latest]
    return _fitted([*tables, *comments], MAX_TEXT)


def pull_request_of_two(first: RunBundle, second: RunBundle) -> str:
    """Return what changed from one run to another."""
    return _fitted(_written(changes_comment(first, second)), MAX_TEXT)


def run_comment(bundle: RunBundle) -> doc.Document:
    """Return everything about one model, the most important first."""
    run = bundle.run
    sentence = _short(run_sentence(structs.replace(run, result=structs.replace(run.result, path=None))))
    undone = [(fmt.name(u.pass_name), fmt.module(u.owner), _short(u.reason)) for u in run.rolled_back]
    before, after, graph = run.wiring_before, run.wiring_after, tuple[doc.Block, ...]()
    if before is not None and after is not None:
        graph = (doc.Code(module_mermaid(before, after, top_module(before)), "mermaid"),)
    folded = (
        *(_modules(bundle), _passes(run), _skipped(run), _verification(run)),
        _section("Rolled back", ("pass", "module", "reason"), undone, text_columns=3),
        *(_environment(bundle), doc.Section("The modules after, as a graph", graph)),
    )
    notes = doc.Notes([_short(note) for note in (*bundle.notes, *run.notes)[:_MAX_ROWS]])
    title = f"{'✅' if bundle.passed else '❌'} {fmt.name(bundle.label)}: {sentence}"
    blocks = (_numbers(bundle), notes, *(structs.replace(part, folded=True) for part in folded))
    return doc.Document(blocks, title, level=_HEADING_LEVEL)


def changes_comment(first: RunBundle, second: RunBundle) -> doc.Document:
    """Return what changed from one run to another; everything but the numbers is folded."""
    changed = changes(first, second)
    apart = [_short(line) for line in changed.apart[:_MAX_ROWS]]
    besides = (doc.Paragraph("Besides, this differs:"), doc.Notes(apart)) if apart else ()
    numbers, *others = changed.sections
    return doc.Document(
        title="What changed",
        level=_HEADING_LEVEL,
        head=(doc.Paragraph(changed.sentence), doc.Paragraph(f"first: {first.label}, second: {second.label}")),
        blocks=(*besides, numbers, *(structs.replace(section, folded=True) for section in others)),
    )


def _written(document: doc.Document) -> Iterator[tuple[str, str]]:
    """Yield the Markdown of each block of a document with the name that it is missed by."""
    yield "the heading", markdown.heading(document.title, document.level)
    for block in (*document.head, *document.blocks):
        if not doc.is_empty(block):
            name = str(block.title).lower() if isinstance(block, doc.Section) else "notes"
            yield name, markdown.block(block, document.level + 1)


def _fitted(blocks: Iterable[tuple[str, str]], longest: int) -> str:
    """Return as many blocks as fit, each as a whole, and the names of the others."""
    parts: list[str] = []
    left_out: list[str] = []
    room = longest - _RESERVED
    for name, text in blocks:
        if len(text) + 2 > room:
            left_out.append(name)
            continue
        room -= len(text) + 2
        parts.append(text)
    if left_out:
        names = fmt.name(", ".join(left_out), _RESERVED // 4)  # escaping may double it
        sentence = f"Left out, because a comment holds no more: {names}. The page has everything."
        parts.append(markdown.block(doc.Paragraph(sentence)))
    return "\n\n".join(parts) + "\n"


def _short(sentence: str) -> str:
    """Return a sentence on one line; the middle of a very long one is left out."""
    return fmt.name(fmt.one_line(sentence), _MAX_SENTENCE)


def _section(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[Text | doc.Cell]], **more: Any
) -> doc.Section:
    return doc.table_section(title, headings, rows, most=_MAX_ROWS, **more)


def _models(bundles: Sequence[RunBundle]) -> doc.Section:
    rows: list[tuple[str, ...]] = []
    for bundle in bundles:
        nodes, size = (RUN[name].read(bundle.run) for name in ("nodes", "bytes"))
        compared = bundle.compared
        time = "not timed" if compared is None else f"{ratio(compared)}, {finding(compared)}"
        sizes = (f"{fmt.from_to(nodes.before, nodes.written)} ({nodes.saving})", fmt.from_to(size.before, size.written))
        rows.append((fmt.name(bundle.label), _short(verification(bundle.run.verdict)), *sizes, time))
    headings = ("model", "verification", "nodes", "bytes", "time, after / before")
    return _section("All models", headings, rows, text_columns=2)


def _numbers(bundle: RunBundle) -> doc.Section:
    run, point, forms = bundle.run, bundle.point, bundle.forms
    sizes = (RUN[name].read(run) for name in ("nodes", "bytes"))
    rows = [(size.measure.heading, size.before, size.written, size.saving) for size in sizes]
    if point is not None and (compared := bundle.compared) is not None:
        slow, quick = (f"{milliseconds(timing.median)} ms" for timing in point.timings)
        rows.append(("time of a run", slow, quick, f"× {ratio(compared)}, {finding(compared)}"))
    if forms is not None:
        most, least = (form.memory.total for form in forms)
        rows.append(("peak memory", fmt.size(most), fmt.size(least), fmt.percent(most, least)))
    below = f"Verification: {_short(verification(run.verdict))}."
    return _section("Numbers", ("", "before", "after", "change"), rows, below=below)


def _modules(bundle: RunBundle) -> doc.Section:
    timed = [{module.path: module.total_ms for module in model.modules} for model in bundle.profiled or ()]
    rows: list[tuple[Text | doc.Cell, ...]] = []
    for row in module_rows(((m.path, m.tag, (m.before, m.after)) for m in bundle.run.modules), View(rows=_MAX_ROWS)):
        before, after = row.total
        spent = (ms(sum(times.get(path, 0.0) for path in row.paths)) for times in timed)
        rows.append((module_cell(row), before, after, fmt.change(after - before), *spent))
    headings = ("module", "nodes before", "after", "change", *(("ms before", "ms after") if timed else ()))
    return _section("By module", headings, rows, above="Equal layers are one line, with the sums of all.")


def _passes(run: Run) -> doc.Section:
    rows = (
        (
            *(fmt.name(record.name), _short(record.algebra), record.accuracy.value),
            *(record.rewrites, fmt.change(record.nodes), fmt.size_change(record.bytes)),
        )
        for record in run.passes
        if record.rewrites
    )
    headings = ("pass", "what it does", "accuracy", "rewrites", "nodes", "bytes")
    return _section("By pass", headings, rows, text_columns=3)


def _skipped(run: Run) -> doc.Section:
    rows = (
        (fmt.name(name), _short(group.reason), fmt.name("".join(group.examples[:1])), group.count)
        for name, group in refusals(run.passes)
    )
    return _section("Missed fusions", ("pass", "reason", "for example", "times"), rows, text_columns=3)


def _verification(run: Run) -> doc.Section:
    verdict = run.verdict
    if verdict is None:
        return doc.Section("Verification", ())
    rows = (
        (
            *(fmt.name(output.name, 100), output.dtype, "ok" if output.passed else "DIFFERS"),
            *map(fmt.difference, (output.max_abs, output.max_rel)),
            f"{fmt.difference(output.rtol)}, {fmt.difference(output.atol)}",
        )
        for output in output_groups(verdict)
    )
    reference = f"reference: {_short(verdict.reference)}; accuracy class {verdict.accuracy.value}"
    headings = ("output", "dtype", "", "worst absolute", "worst relative", "allowed, rel and abs")
    above = f"{_short(verification(verdict))}; {reference}."
    return _section("Verification", headings, rows, text_columns=3, above=above)


def _environment(bundle: RunBundle) -> doc.Section:
    here = bundle.run.environment
    rows = [("sardonyx", here.sardonyx), ("Python", here.python), ("platform", here.platform)]
    rows += sorted(here.packages.items())
    for title, artifact in (("source", bundle.run.source), ("result", bundle.run.result)):
        if artifact.sha256 is not None:
            rows.append((f"SHA-256 of the {title}", artifact.sha256))
    if bundle.bench is not None:
        machine = bundle.bench.machine
        rows.append(("timed on", f"{machine.cpu or 'an unknown processor'}, {fmt.plural(machine.cores, 'core')}"))
    return _section("Environment", ("", ""), rows, text_columns=2)
