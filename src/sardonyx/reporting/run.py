"""A Run as text for a terminal or a log: by operator, by pass, by module, the proof, and one closing sentence."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.records.run import ModuleCount, OpCount, PassRecord, RefusalGroup, RolledBack, Run
from sardonyx.reporting import attention_sites as figures
from sardonyx.reporting import formatting
from sardonyx.reporting.formatting import Style
from sardonyx.reporting.module_rows import module_label, module_rows
from sardonyx.reporting.options import View
from sardonyx.reporting.table import Column, Line, table, text_column
from sardonyx.reporting.tuning import tuning_clause, tuning_lines
from sardonyx.reporting.verdict import failed_sentence, proof, verdict_lines

WHOLE_PASS = "*"  # the root of a rollback that took a pass out altogether
CONSTANT = "Constant"  # how many there are is exporter style, so they are not in the sum


def render_run(run: Run, view: View | None = None) -> str:
    """The whole report; its last line is the sentence."""
    view = view or View()
    blocks = [
        _heading_block(run, view),
        _ops(run.ops, view),
        _passes(run, view),
        _modules(run.modules, view),
        _attention(run, view),
        _rolled_back(run, view),
        verdict_lines(run.verdict, view.style, verbose=view.verbose),
        tuning_lines(run.tuning, view),
        [closing_sentence(run, view.style)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def closing_sentence(run: Run, style: Style | None = None) -> str:
    """What happened, in one line."""
    style = style or Style()
    if run.status != "done":
        return style.bad(f"{failed_sentence(run.verdict)}; nothing was written")
    dry = bool(run.options.get("dry_run"))
    clauses = [
        _nodes_clause(run),
        formatting.from_to(formatting.size(run.before.bytes), formatting.size(run.after.bytes)),
    ]
    if run.rolled_back:
        clauses.append(f"{formatting.plural(len(run.rolled_back), 'rewrite')} rolled back")
    clauses.append(proof(run.verdict))
    clauses += filter(None, [tuning_clause(run.tuning)])
    where = "" if run.result.path is None or dry else f" → {formatting.visible(run.result.path)}"
    sentence = f"{'would give ' if dry else ''}{', '.join(clauses)}{where}{'; nothing written' if dry else ''}"
    return style.strong(sentence)


def _nodes_clause(run: Run) -> str:
    before, after = run.before.nodes, run.after.nodes
    if before == after:
        return f"{formatting.plural(after, 'node')} as before"
    counts = formatting.from_to(formatting.count(before), formatting.count(after))
    return f"{counts} nodes ({formatting.percent(before, after)})"


def _heading_block(run: Run, view: View) -> list[str]:
    source = "model in memory" if run.source.path is None else formatting.visible(run.source.path)
    lines = [view.style.strong(source)]
    for domain, (old, new) in sorted(run.opset_changes.items()):
        lines.append(f"  opset {formatting.name(domain) or 'ai.onnx'} raised {old} → {new}: a fusion needed it")
    if run.fingerprint is not None:
        family = run.fingerprint.family.replace("-", " ")
        lines.append(
            f"  looks like: {formatting.name(family)} ({formatting.one_line(', '.join(run.fingerprint.evidence))})"
        )
    lines += [f"  {formatting.one_line(note)}" for note in run.notes]
    if view.verbose:
        spent = ", ".join(f"{formatting.name(phase)} {formatting.seconds(time)}" for phase, time in run.seconds.items())
        env = run.environment
        packages = ", ".join(f"{package} {version}" for package, version in sorted(env.packages.items()))
        lines += [f"  time: {spent}"] if spent else []
        where = f"{env.platform}, Python {env.python}, sardonyx {env.sardonyx}, {packages}"
        lines.append(f"  on {formatting.one_line(where)}")
    return lines


def _ops(ops: tuple[OpCount, ...], view: View) -> list[str]:
    if not ops:
        return []
    compute = [op for op in ops if op.op_type != CONSTANT]
    shown = [op for op in compute if view.verbose or op.before != op.after]
    shown.sort(key=lambda op: (-abs(op.after - op.before), -op.before, op.op_type))
    lines = [Line(_op_cells(formatting.name(op.op_type), op.before, op.after)) for op in shown]
    rest = sum(op.before for op in compute) - sum(op.before for op in shown)
    if rest:
        label = f"({formatting.plural(len(compute) - len(shown), 'other')})"
        lines.append(Line(_op_cells(label, rest, rest), view.style.faint))
    total = (sum(op.before for op in compute), sum(op.after for op in compute))
    lines.append(Line(_op_cells("all", *total), view.style.strong))
    lines += [Line(_op_cells("Constant, apart", op.before, op.after)) for op in ops if op.op_type == CONSTANT]
    columns = (text_column("operator"), Column("before"), Column("after"), Column("change"))
    return [view.style.strong("By operator"), *table(columns, lines, view.style)]


def _op_cells(label: str, before: int, after: int) -> tuple[str, ...]:
    return (label, formatting.count(before), formatting.count(after), formatting.change(after - before))


def _passes(run: Run, view: View) -> list[str]:
    columns = (
        text_column("pass"),
        Column("rewrites"),
        Column("nodes"),
        Column("constants"),
        Column("bytes"),
        Column("time"),
        text_column("accuracy"),
        text_column("where"),
    )
    why_not = view.verbose or bool(run.options.get("dry_run"))
    lines: list[Line] = []
    silent = 0
    for record in run.passes:
        if record.rewrites or view.verbose or (why_not and record.refusals):
            lines.append(Line(_pass_cells(record)))
            lines.extend(Line((text,), view.style.faint) for text in _refusals(record.refusals, why_not))
        else:
            silent += 1
    if silent:
        lines.append(Line((f"({formatting.plural(silent, 'pass', 'passes')} found nothing to do)",), view.style.faint))
    return [view.style.strong("By pass"), *table(columns, lines, view.style)] if lines else []


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
    """The module with most rewrites, and how many more there are."""
    if not modules:
        return "·"
    first = min(modules, key=lambda path: (-modules[path], path))
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return f"{formatting.name(first, 40) or '(model)'}{more}"


def _refusals(groups: tuple[RefusalGroup, ...], shown: bool) -> Iterator[str]:
    if not shown:
        return
    for group in groups:
        example = f" (e.g. {formatting.name(group.examples[0])})" if group.examples else ""
        yield f"    refused {group.count}×: {formatting.one_line(group.reason)}{example}"


def _modules(modules: tuple[ModuleCount, ...], view: View) -> list[str]:
    if not modules:
        return []
    lines: list[Line] = []
    owned = ((m.path, m.tag, (m.before, m.after)) for m in modules)
    for row in module_rows(owned, view):
        before, after = row.total
        cells = (
            module_label(row),
            formatting.count(before),
            formatting.count(after),
            formatting.change(after - before),
        )
        lines.append(Line(cells, None if before or after else view.style.faint))
    columns = (text_column("module"), Column("before"), Column("after"), Column("change"))
    return [view.style.strong("By module"), *table(columns, lines, view.style)]


def _attention(run: Run, view: View) -> list[str]:
    """Where the model attends; only for those who want to know everything."""
    if not view.verbose or not run.attention:
        return []
    columns = (text_column("where"), Column("places"), text_column("heads × size"), text_column("mask"),
               text_column("before"), text_column("after"))  # fmt: skip
    lines: list[Line] = []
    for each in figures.lines(run.attention):
        one, where = each.one, formatting.name(each.label)
        forms = (figures.form(one.before), figures.form(one.after))
        lines.append(Line((where, formatting.count(len(each.sites)), figures.heads(one), figures.mask(one), *forms)))
        lines += [Line((f"    {formatting.one_line(one.why)}",), view.style.faint)] if one.why else []
    return [view.style.strong("Attention"), *table(columns, lines, view.style), f"  {figures.sentence(run.attention)}"]


def _rolled_back(run: Run, view: View) -> list[str]:
    if not run.rolled_back:
        return []
    lines = [view.style.strong("Rolled back, because the proof failed with them")]
    return lines + [f"  {undone_sentence(undone)}" for undone in run.rolled_back]


def undone_sentence(undone: RolledBack) -> str:
    """What was undone, and why."""
    where = f"at {formatting.name(undone.root)} in {formatting.name(undone.owner) or '(model)'}"
    where = "everywhere" if undone.root == WHOLE_PASS else where
    return f"{formatting.name(undone.pass_name)} {where}: {formatting.one_line(undone.reason)}"
