"""An optimization as a document, with its attention blocks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.records.run import AttentionForm, AttentionSite, OpCount, PassRecord, RefusalGroup, RolledBack, Run
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.bench import tuning_clause, tuning_section
from sardonyx.reporting.document import Column, Row, Span, Tone, View, text_column
from sardonyx.reporting.module_rows import first_notes, module_cell, module_rows, places
from sardonyx.reporting.verdict import claims_cell, failure, verdict_section, verdict_summary, verification

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a step of a path that is a number


class SiteGroup(Struct, frozen=True):
    """Attention blocks that differ only in the number of their layer."""

    label: str  # their modules, the numbers as a range
    path: str  # the module, or the innermost one that contains all of them
    sites: tuple[AttentionSite, ...]

    @property
    def example(self) -> AttentionSite:
        """The first of them."""
        return self.sites[0]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of all blocks, each once."""
        return tuple(dict.fromkeys(site.module for site in self.sites))


def groups(sites: Iterable[AttentionSite]) -> list[SiteGroup]:
    """Return all blocks in the order they run; equal ones whose paths differ only in numbers are one group."""
    by_traits: dict[tuple[object, ...], list[AttentionSite]] = defaultdict(list)
    for site in sites:
        forms = [None if form is None else (form.operator, len(form.nodes)) for form in (site.before, site.after)]
        traits = replace(site, module=_NUMBER.sub("0", site.module), before=None, after=None)
        by_traits[traits, *forms].append(site)
    result: list[SiteGroup] = []
    for members in by_traits.values():
        (place,) = places({site.module: 1 for site in members})
        result.append(SiteGroup(place.label, place.path, tuple(members)))
    return result


def heads(site: AttentionSite) -> str:
    """Return the heads and their size: 12 × 64, or 32 × 64, keys and values 4."""
    if site.heads is None and site.head_size is None:
        return "unknown"
    shape = " × ".join("?" if number is None else fmt.count(number) for number in (site.heads, site.head_size))
    shared = site.key_value_heads
    return shape if shared in (None, site.heads) else f"{shape}, keys and values {fmt.count(shared)}"


def mask(site: AttentionSite) -> str:
    """Return the mask, and whether the block has a cache or attends to another sequence."""
    more = [text for text, holds in (("with a cache", site.cached), ("cross", site.cross)) if holds]
    return ", ".join((fmt.one_line(site.mask), *more))


def form(attention: AttentionForm | None) -> str:
    """Return the operator, or the number of nodes that the block is decomposed into."""
    if attention is None:
        return "removed"
    return fmt.name(attention.operator) or f"decomposed ({fmt.plural(len(attention.nodes), 'node')})"


def sentence(sites: Sequence[AttentionSite]) -> str:
    """Return how many attention blocks there are and what became of them."""
    if not sites:
        return "No attention in this model"
    fates = ("fused into one operator", "one operator already", "still decomposed", "removed")
    counts, total = Counter(map(_fate, sites)), len(sites)
    every = "" if total == 1 else "all "
    parts = {fate: every if counts[fate] == total else f"{fmt.count(counts[fate])} " for fate in fates}
    clauses = [f"{part}{fate}" for fate, part in parts.items() if counts[fate]]
    return f"{fmt.plural(total, 'attention block')}{', ' if len(clauses) == 1 else ': '}{', '.join(clauses)}"


def _fate(site: AttentionSite) -> str:
    if site.after is None:
        return "removed"
    if not site.after.operator:
        return "still decomposed"
    return "one operator already" if site.before and site.before.operator else "fused into one operator"


WHOLE_PASS = "*"  # the root of a rollback that removed a pass altogether
# In a document that is not verbose:
OPERATORS_SHOWN, ADDED_SHOWN, PASSES_SHOWN, NOTES_SHOWN, ROLLBACKS_SHOWN, REASONS_SHOWN = 5, 2, 4, 2, 3, 3
PASSES_LISTED = 8  # where passes are the whole answer
CONSTANT = "Constant"  # the number of Constant nodes depends on the exporter, so the sum leaves them out


def run_document(run: Run, view: View) -> doc.Document:
    """Return the answer of `optimize`."""
    undone = [rollback_sentence(rollback) for rollback in run.rolled_back]
    shown = doc.capped(undone, None if view.verbose else ROLLBACKS_SHOWN, "and {} more (-v lists them)")
    rolled_back = doc.Section("Rolled back, because verification failed with them", (doc.Notes(shown),))
    if view.verbose:
        verification = verdict_section(run.verdict, view)
        blocks = (*run_tables(run), _modules(run, view), _attention(run), rolled_back, verification)
    else:
        skipped = skipped_section(run.passes if run.options.get("dry_run") else ())
        tables = (operator_table(run.ops, OPERATORS_SHOWN), main_passes(run.passes, PASSES_SHOWN))
        blocks = (*tables, skipped, rolled_back, verdict_summary(run.verdict))
    return doc.Document(
        title="model in memory" if run.source.path is None else run.source.path,
        head=(doc.Notes(_heading_lines(run, view)),),
        blocks=(*blocks, tuning_section(run.tuning, view)),
        sentence=Span(run_sentence(run), Tone.STRONG if run.status == "done" else Tone.BAD),
    )


def run_sentence(run: Run) -> str:
    """Return what happened in one line."""
    if run.status != "done":
        return f"{failure(run.verdict)}; nothing was written"
    dry = bool(run.options.get("dry_run"))
    before, after = run.before.nodes, run.after.nodes
    nodes = f"{fmt.counts(before, after)} nodes ({fmt.percent(before, after)})"
    if before == after:
        nodes = f"{fmt.plural(after, 'node')} as before"
    clauses = [nodes, fmt.sizes(run.before.bytes, run.after.bytes)]
    if run.rolled_back:
        clauses.append(f"{fmt.plural(len(run.rolled_back), 'rewrite')} rolled back")
    clauses.append(verification(run.verdict))
    if run.tuning is not None:
        clauses.append(tuning_clause(run.tuning))
    where = "" if run.result.path is None or dry else f" → {run.result.path}"
    return f"{'would give ' if dry else ''}{', '.join(clauses)}{where}{'; nothing written' if dry else ''}"


def opset_changes(run: Run) -> list[str]:
    """Return which opsets were raised."""
    return [
        f"{fmt.name(domain) or 'ai.onnx'} raised {old} → {new}: a fusion needed it"
        for domain, (old, new) in sorted(run.opset_changes.items())
    ]


def architecture_guess(run: Run) -> str | None:
    """Return the guessed architecture with its evidence, or None if there is no fingerprint."""
    if run.fingerprint is None:
        return None
    family = fmt.name(run.fingerprint.family.replace("-", " "))
    return f"{family} ({fmt.one_line(', '.join(run.fingerprint.evidence))})"


def _heading_lines(run: Run, view: View) -> list[str]:
    lines = [f"opset {change}" for change in opset_changes(run)]
    if not view.verbose:
        return lines + first_notes(run.notes, NOTES_SHOWN)
    guess = architecture_guess(run)
    lines += [] if guess is None else [f"architecture (guess): {guess}"]
    lines += map(fmt.one_line, run.notes)
    lines += [f"time: {fmt.phases(run.seconds)}"] if run.seconds else []
    env = run.environment
    versions = fmt.versions(env.packages)
    return [*lines, fmt.one_line(f"on {env.platform}, Python {env.python}, sardonyx {env.sardonyx}, {versions}")]


def operator_table(ops: Sequence[OpCount], most: int | None = None) -> doc.Table:
    """Return all operators and their sum, or at most so many.

    These are the operators that became much fewer, those that became more, and the sum of the others.
    """
    shown = compute = sorted(
        (op for op in ops if op.op_type != CONSTANT),
        key=lambda op: (-abs(op.after - op.before), -op.before, op.op_type),
    )
    if most is not None:
        more = [op for op in compute if op.after > op.before][:ADDED_SHOWN]
        shown = [*[op for op in compute if op.after < op.before][: most - len(more)], *more]
    rows = [_op_row(fmt.name(op.op_type), [op]) for op in shown]
    if most is None and ops:
        rows.append(_op_row("all", compute, Tone.STRONG))
    if others := [op for op in compute if op not in shown]:
        rows.append(_op_row(f"({fmt.plural(len(others), 'other')})", others, Tone.FAINT))
    rows += [_op_row("(plus Constant)", [op]) for op in ops if op.op_type == CONSTANT]
    return doc.Table.of((text_column("operator"), "before", "after", "change"), rows)


def _op_row(label: str, ops: Sequence[OpCount], tone: Tone = Tone.PLAIN) -> Row:
    before, after = sum(op.before for op in ops), sum(op.after for op in ops)
    return Row((label, before, after, fmt.change(after - before)), tone)


def run_tables(run: Run) -> tuple[doc.Section, doc.Section]:
    """Return what became of all operators, and what every pass did and skipped."""
    claimed = run.verdict is not None and run.verdict.rewrites is not None
    numbers = ("rewrites", "nodes", Column("constants", 1), "bytes", Column("time", 2))
    words = (text_column("accuracy", 3), text_column("equal for", 1), text_column("where"))
    rows: list[Row] = []
    for record in run.passes:
        cells = (
            *(fmt.name(record.name), record.rewrites or "·", fmt.change(record.nodes), fmt.change(record.constants)),
            *(fmt.size_change(record.bytes), fmt.seconds(record.seconds), record.accuracy.value),
            *(claims_cell(run.verdict, record.name) if claimed else "", _where(record.modules)),
        )
        rows += [Row(cells), *map(skipped_row, record.refusals)]
    passes = doc.table_section("By pass", ("pass", *numbers, *words), rows)
    return doc.Section("By operator", (operator_table(run.ops),)), passes


def main_passes(passes: Iterable[PassRecord], most: int) -> doc.Table:
    """Return the passes that removed most nodes, and the sum of the others that changed anything."""
    changed = sorted((record for record in passes if record.rewrites), key=lambda record: record.nodes)
    groups = [(fmt.name(record.name), [record], _where(record.modules), Tone.PLAIN) for record in changed[:most]]
    if others := changed[most:]:
        groups.append((f"({fmt.plural(len(others), 'other')}; -v lists all)", others, "", Tone.FAINT))
    rows: list[Row] = []
    for label, records, where, tone in groups:
        rewrites, nodes = sum(each.rewrites for each in records), sum(each.nodes for each in records)
        octets = fmt.size_change(sum(each.bytes for each in records))
        rows.append(Row((label, rewrites, fmt.change(nodes), octets, where), tone))
    return doc.Table.of((text_column("pass"), "rewrites", "nodes", "bytes", text_column("where", 1)), rows)


def _where(modules: dict[str, int]) -> str:
    if not modules:
        return "·"
    first = min(modules, key=lambda path: (-modules[path], path))
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return f"{fmt.module(first, 40)}{more}"


def skipped_row(group: RefusalGroup) -> Row:
    """Return why a pass skipped matches, as a remark below its row."""
    example = f" (e.g. {fmt.name(group.examples[0])})" if group.examples else ""
    return Row((doc.Cell(f"skipped {group.count}×: {fmt.one_line(group.reason)}{example}", depth=2),), Tone.FAINT)


def refusals(passes: Iterable[PassRecord]) -> list[tuple[str, RefusalGroup]]:
    """Return the reasons for which passes skip matches, each with its pass, the most frequent first."""
    return sorted(((each.name, group) for each in passes for group in each.refusals), key=lambda pair: -pair[1].count)


def skipped_section(passes: Iterable[PassRecord]) -> doc.Section:
    """Return the most frequent reasons for which passes skip matches."""
    reasons = refusals(passes)
    shown, rest = reasons[:REASONS_SHOWN], reasons[REASONS_SHOWN:]
    lines = [f"{group.count}× {fmt.name(name)}: {fmt.one_line(group.reason)}" for name, group in shown]
    if rest:
        matches, count = fmt.plural(sum(group.count for _, group in rest), "match", "matches"), len(rest)
        lines.append(f"{matches} for {fmt.plural(count, 'other reason')} (-v lists them)")
    return doc.Section("Skipped", (doc.Notes(lines),))


def _modules(run: Run, view: View) -> doc.Section:
    rows: list[Row] = []
    for row in module_rows(((m.path, m.tag, (m.before, m.after)) for m in run.modules), view):
        before, after = row.total
        cells = (module_cell(row), before, after, fmt.change(after - before))
        rows.append(Row(cells, Tone.PLAIN if before or after else Tone.FAINT))
    return doc.table_section("By module", ("module", "before", "after", "change"), rows)


def _attention(run: Run) -> doc.Section:
    rows: list[Row] = []
    for group in groups(run.attention):
        site = group.example
        forms = (form(site.before), form(site.after))
        rows.append(Row((fmt.name(group.label), len(group.sites), heads(site), mask(site), *forms)))
        rows += [Row((doc.Cell(fmt.one_line(site.why), depth=2),), Tone.FAINT)] if site.why else []
    columns = (text_column("where"), "blocks", *map(text_column, ("heads × size", "mask", "before", "after")))
    below = doc.Paragraph(sentence(run.attention) if rows else "")
    return doc.Section("Attention", (doc.Table.of(columns, rows), below))


def rollback_sentence(rollback: RolledBack) -> str:
    """Return what was rolled back, and why."""
    where = f"at {fmt.name(rollback.root)} in {fmt.module(rollback.owner)}"
    files = f" (reproducer in {fmt.visible(rollback.reproducer)})" if rollback.reproducer else ""
    where = "everywhere" if rollback.root == WHOLE_PASS else where
    return f"{fmt.name(rollback.pass_name)} {where}: {fmt.one_line(rollback.reason)}{files}"
