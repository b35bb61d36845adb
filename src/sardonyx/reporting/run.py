"""An optimization as a document, with its attention blocks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.records.analysis import Form
from sardonyx.records.bench import ProfiledModel
from sardonyx.records.run import (
    AttentionForm,
    AttentionSite,
    ModuleCount,
    OpCount,
    PassRecord,
    RefusalGroup,
    RolledBack,
    Run,
)
from sardonyx.reporting import formatting
from sardonyx.reporting.bench import tuning_clause, tuning_section
from sardonyx.reporting.document import (
    Cell,
    Column,
    Document,
    Notes,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Tone,
    View,
    table_section,
    text_column,
)
from sardonyx.reporting.module_rows import first_notes, module_cell, module_rows, places
from sardonyx.reporting.verdict import (
    claims_cell,
    failure,
    verdict_section,
    verdict_summary,
    verification,
)

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


class Spent(Struct, frozen=True):
    """Time that a file spends on something per run."""

    milliseconds: float
    share: float  # of all time in kernels, 0 to 1


class Moved(Struct, frozen=True):
    """Memory costs of the modules with attention in one file."""

    bytes_moved: int
    share: float  # of all bytes moved, 0 to 1
    alive: int  # most bytes of activations alive while one of their operations runs
    of_peak: float  # that, as a share of the peak


def groups(sites: Iterable[AttentionSite]) -> list[SiteGroup]:
    """Return all blocks in the order they run; equal ones whose paths differ only in numbers are one group."""
    by_traits: dict[tuple[object, ...], list[AttentionSite]] = defaultdict(list)
    for site in sites:
        by_traits[_NUMBER.sub("0", site.module), *_traits(site)].append(site)
    result: list[SiteGroup] = []
    for members in by_traits.values():
        (place,) = places({site.module: 1 for site in members})
        result.append(SiteGroup(place.label, place.path, tuple(members)))
    return result


def _traits(site: AttentionSite) -> tuple[object, ...]:
    forms = [None if form is None else (form.operator, len(form.nodes)) for form in (site.before, site.after)]
    return (replace(site, module="", before=None, after=None), *forms)


def heads(site: AttentionSite) -> str:
    """Return the heads and their size: 12 × 64, or 32 × 64, keys and values 4."""
    if site.heads is None and site.head_size is None:
        return "unknown"
    shape = " × ".join("?" if number is None else formatting.count(number) for number in (site.heads, site.head_size))
    shared = site.key_value_heads
    return shape if shared in (None, site.heads) else f"{shape}, keys and values {formatting.count(shared)}"


def mask(site: AttentionSite) -> str:
    """Return the mask, and whether the block has a cache or attends to another sequence."""
    more = [text for text, holds in (("with a cache", site.cached), ("cross", site.cross)) if holds]
    return ", ".join((formatting.one_line(site.mask), *more))


def form(attention: AttentionForm | None) -> str:
    """Return the operator, or the number of nodes that the block is decomposed into."""
    if attention is None:
        return "removed"
    return formatting.name(attention.operator) or f"decomposed ({formatting.plural(len(attention.nodes), 'node')})"


def sentence(sites: Sequence[AttentionSite]) -> str:
    """Return how many attention blocks there are and what became of them."""
    if not sites:
        return "No attention in this model"
    fates = ("fused into one operator", "one operator already", "still decomposed", "removed")
    counts, total = Counter(map(_fate, sites)), len(sites)
    every = "" if total == 1 else "all "
    parts = {fate: every if counts[fate] == total else f"{formatting.count(counts[fate])} " for fate in fates}
    clauses = [f"{part}{fate}" for fate, part in parts.items() if counts[fate]]
    return f"{formatting.plural(total, 'attention block')}{', ' if len(clauses) == 1 else ': '}{', '.join(clauses)}"


def _fate(site: AttentionSite) -> str:
    if site.after is None:
        return "removed"
    if not site.after.operator:
        return "still decomposed"
    return "one operator already" if site.before and site.before.operator else "fused into one operator"


def spent(forms: Iterable[AttentionForm | None], model: ProfiledModel) -> Spent | None:
    """Return the time of all kernels that run nodes of these forms, or None if no kernel lists its nodes."""
    nodes = {node for form in forms if form is not None for node in form.nodes}
    kernels = [kernel.milliseconds for kernel in model.kernels if not nodes.isdisjoint(kernel.nodes)]
    return Spent(sum(kernels), _share(sum(kernels), model.kernel_ms)) if kernels else None


def spent_within(modules: Iterable[str], model: ProfiledModel) -> Spent | None:
    """Return the time of all kernels that the modules own themselves, or None if they own none."""
    paths = set(modules)
    own = [module.self_ms for module in model.modules if module.path in paths and module.kernels]
    return Spent(sum(own), _share(sum(own), model.kernel_ms)) if own else None


def moved(modules: Iterable[str], analysed: Form) -> Moved | None:
    """Return what the modules cost by themselves, or None if the analysis knows none of them."""
    paths = set(modules)
    own = [module for module in analysed.modules if module.path in paths]
    if not own:
        return None
    total, alive = sum(module.bytes_moved for module in own), max(module.peak for module in own)
    peak = analysed.memory.peak.bytes
    return Moved(total, _share(total, analysed.work.bytes_moved), alive, _share(alive, peak))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


WHOLE_PASS = "*"  # the root of a rollback that removed a pass altogether
# In a document that is not verbose:
OPERATORS_SHOWN, ADDED_SHOWN, PASSES_SHOWN, NOTES_SHOWN, ROLLBACKS_SHOWN, REASONS_SHOWN = 5, 2, 4, 2, 3, 3
PASSES_LISTED = 8  # where passes are the whole answer
CONSTANT = "Constant"  # the number of Constant nodes depends on the exporter, so the sum leaves them out
_OPERATOR_HEADINGS = (text_column("operator"), "before", "after", "change")


def run_document(run: Run, view: View) -> Document:
    """Return the answer of `optimize`."""
    is_dry = bool(run.options.get("dry_run"))
    undone = [rollback_sentence(rollback) for rollback in run.rolled_back]
    if not view.verbose and len(undone) > ROLLBACKS_SHOWN:
        undone = [*undone[:ROLLBACKS_SHOWN], f"and {len(undone) - ROLLBACKS_SHOWN} more (-v lists them)"]
    return Document(
        title="model in memory" if run.source.path is None else run.source.path,
        head=(Notes(_heading_lines(run, view)),),
        blocks=(
            _operators(run.ops) if view.verbose else main_operators(run.ops),
            _passes(run) if view.verbose else main_passes(run.passes, PASSES_SHOWN),
            skipped_section(run.passes) if is_dry and not view.verbose else Section("", ()),
            _modules(run.modules, view) if view.verbose else Section("By module", ()),
            _attention(run) if view.verbose else Section("Attention", ()),
            Section("Rolled back, because verification failed with them", (Notes(undone),)),
            verdict_section(run.verdict, view) if view.verbose else verdict_summary(run.verdict),
            tuning_section(run.tuning, view),
        ),
        sentence=Span(run_sentence(run), Tone.STRONG if run.status == "done" else Tone.BAD),
    )


def run_sentence(run: Run) -> str:
    """Return what happened in one line."""
    if run.status != "done":
        return f"{failure(run.verdict)}; nothing was written"
    dry = bool(run.options.get("dry_run"))
    before, after = run.before.nodes, run.after.nodes
    counts = formatting.from_to(formatting.count(before), formatting.count(after))
    nodes = f"{counts} nodes ({formatting.percent(before, after)})"
    if before == after:
        nodes = f"{formatting.plural(after, 'node')} as before"
    size = formatting.from_to(formatting.size(run.before.bytes), formatting.size(run.after.bytes))
    clauses = [nodes, size]
    if run.rolled_back:
        clauses.append(f"{formatting.plural(len(run.rolled_back), 'rewrite')} rolled back")
    clauses.append(verification(run.verdict))
    clauses += filter(None, [tuning_clause(run.tuning)])
    where = "" if run.result.path is None or dry else f" → {run.result.path}"
    return f"{'would give ' if dry else ''}{', '.join(clauses)}{where}{'; nothing written' if dry else ''}"


def opset_changes(run: Run) -> list[str]:
    """Return which opsets were raised."""
    return [
        f"{formatting.name(domain) or 'ai.onnx'} raised {old} → {new}: a fusion needed it"
        for domain, (old, new) in sorted(run.opset_changes.items())
    ]


def architecture_guess(run: Run) -> str | None:
    """Return the guessed architecture with its evidence, or None if there is no fingerprint."""
    if run.fingerprint is None:
        return None
    family = formatting.name(run.fingerprint.family.replace("-", " "))
    return f"{family} ({formatting.one_line(', '.join(run.fingerprint.evidence))})"


def _heading_lines(run: Run, view: View) -> list[str]:
    lines = [f"opset {change}" for change in opset_changes(run)]
    if not view.verbose:
        return lines + first_notes(list(map(formatting.one_line, run.notes)), NOTES_SHOWN)
    guess = architecture_guess(run)
    lines += [] if guess is None else [f"architecture (guess): {guess}"]
    lines += map(formatting.one_line, run.notes)
    lines += [f"time: {formatting.phases(run.seconds)}"] if run.seconds else []
    env = run.environment
    packages = ", ".join(f"{package} {version}" for package, version in sorted(env.packages.items()))
    lines.append(formatting.one_line(f"on {env.platform}, Python {env.python}, sardonyx {env.sardonyx}, {packages}"))
    return lines


def _operators(ops: tuple[OpCount, ...]) -> Section:
    compute = sorted((op for op in ops if op.op_type != CONSTANT), key=_by_change)
    rows = [_op_row(op) for op in compute]
    if ops:
        total = (sum(op.before for op in compute), sum(op.after for op in compute))
        rows.append(Row(_op_cells("all", *total), Tone.STRONG))
    rows += _constant_rows(ops)
    return table_section("By operator", _OPERATOR_HEADINGS, rows)


def main_operators(ops: Sequence[OpCount], most: int = OPERATORS_SHOWN) -> Table:
    """Return the operators that became much fewer, those that became more, and the sum of the others."""
    compute = sorted((op for op in ops if op.op_type != CONSTANT), key=_by_change)
    more = [op for op in compute if op.after > op.before][:ADDED_SHOWN]
    fewer = [op for op in compute if op.after < op.before][: most - len(more)]
    rows = [_op_row(op) for op in (*fewer, *more)]
    others = [op for op in compute if op not in fewer and op not in more]
    if others:
        label = f"({formatting.plural(len(others), 'other')})"
        sums = (sum(op.before for op in others), sum(op.after for op in others))
        rows.append(Row(_op_cells(label, *sums), Tone.FAINT))
    return Table.of(_OPERATOR_HEADINGS, [*rows, *_constant_rows(ops)])


def _by_change(op: OpCount) -> tuple[int, int, str]:
    return -abs(op.after - op.before), -op.before, op.op_type


def _constant_rows(ops: Iterable[OpCount]) -> list[Row]:
    return [Row(_op_cells("(plus Constant)", op.before, op.after)) for op in ops if op.op_type == CONSTANT]


def _op_row(op: OpCount) -> Row:
    return Row(_op_cells(formatting.name(op.op_type), op.before, op.after))


def _op_cells(label: str, before: int, after: int) -> tuple[str, ...]:
    return (label, formatting.count(before), formatting.count(after), formatting.change(after - before))


def _passes(run: Run) -> Section:
    verified = run.verdict is not None and run.verdict.rewrites is not None
    columns = ("pass", "rewrites", "nodes", Column("constants", 1), "bytes", Column("time", 2))
    words = (text_column("accuracy", 3), *([text_column("equal for", 1)] if verified else []), text_column("where"))
    rows: list[Row] = []
    for record in run.passes:
        *numbers, where = _pass_cells(record)
        rows.append(Row((*numbers, *([claims_cell(run.verdict, record.name)] if verified else []), where)))
        rows += map(skipped_row, record.refusals)
    return table_section("By pass", (*columns, *words), rows)


def main_passes(passes: Iterable[PassRecord], most: int) -> Table:
    """Return the passes that removed most nodes, and the sum of the others that changed anything."""
    changed = sorted((record for record in passes if record.rewrites), key=lambda record: record.nodes)
    shown, others = changed[:most], changed[most:]
    rows = [Row((formatting.name(record.name), *_pass_numbers([record]), _where(record.modules))) for record in shown]
    if others:
        label = f"({formatting.plural(len(others), 'other')}; -v lists all)"
        rows.append(Row((label, *_pass_numbers(others), ""), Tone.FAINT))
    return Table.of((text_column("pass"), "rewrites", "nodes", "bytes", text_column("where", 1)), rows)


def _pass_numbers(records: Sequence[PassRecord]) -> tuple[str, str, str]:
    return (
        formatting.count(sum(record.rewrites for record in records)),
        formatting.change(sum(record.nodes for record in records)),
        formatting.size_change(sum(record.bytes for record in records)),
    )


def _pass_cells(record: PassRecord) -> tuple[str, ...]:
    return (
        formatting.name(record.name),
        formatting.count(record.rewrites) if record.rewrites else "·",
        formatting.change(record.nodes),
        formatting.change(record.constants),
        formatting.size_change(record.bytes),
        formatting.seconds(record.seconds),
        record.accuracy.value,
        _where(record.modules),
    )


def _where(modules: dict[str, int]) -> str:
    if not modules:
        return "·"
    first = min(modules, key=lambda path: (-modules[path], path))
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return f"{formatting.module(first, 40)}{more}"


def skipped_row(group: RefusalGroup) -> Row:
    """Return why a pass skipped matches, as a remark below its row."""
    example = f" (e.g. {formatting.name(group.examples[0])})" if group.examples else ""
    return Row((Cell(f"skipped {group.count}×: {formatting.one_line(group.reason)}{example}", depth=2),), Tone.FAINT)


def skipped_section(passes: Iterable[PassRecord]) -> Section:
    """Return the most frequent reasons for which passes skip matches."""
    reasons = sorted(((each, group) for each in passes for group in each.refusals), key=lambda pair: -pair[1].count)
    lines = [
        f"{group.count}× {formatting.name(each.name)}: {formatting.one_line(group.reason)}"
        for each, group in reasons[:REASONS_SHOWN]
    ]
    rest = reasons[REASONS_SHOWN:]
    if rest:
        matches, count = formatting.plural(sum(group.count for _, group in rest), "match", "matches"), len(rest)
        lines.append(f"{matches} for {formatting.plural(count, 'other reason')} (-v lists them)")
    return Section("Skipped", (Notes(lines),))


def _modules(modules: tuple[ModuleCount, ...], view: View) -> Section:
    rows: list[Row] = []
    for row in module_rows(((m.path, m.tag, (m.before, m.after)) for m in modules), view):
        before, after = row.total
        cells = (module_cell(row), *_op_cells("", before, after)[1:])
        rows.append(Row(cells, Tone.PLAIN if before or after else Tone.FAINT))
    return table_section("By module", ("module", "before", "after", "change"), rows)


def _attention(run: Run) -> Section:
    rows: list[Row] = []
    for group in groups(run.attention):
        site = group.example
        blocks = (formatting.name(group.label), formatting.count(len(group.sites)))
        rows.append(Row((*blocks, heads(site), mask(site), form(site.before), form(site.after))))
        rows += [Row((Cell(formatting.one_line(site.why), depth=2),), Tone.FAINT)] if site.why else []
    columns = (text_column("where"), "blocks", *map(text_column, ("heads × size", "mask", "before", "after")))
    return Section("Attention", (Table.of(columns, rows), Paragraph(sentence(run.attention) if rows else "")))


def rollback_sentence(rollback: RolledBack) -> str:
    """Return what was rolled back, and why."""
    where = f"at {formatting.name(rollback.root)} in {formatting.module(rollback.owner)}"
    files = f" (reproducer in {formatting.visible(rollback.reproducer)})" if rollback.reproducer else ""
    where = "everywhere" if rollback.root == WHOLE_PASS else where
    return f"{formatting.name(rollback.pass_name)} {where}: {formatting.one_line(rollback.reason)}{files}"
