"""Runs as Markdown for a pull request: one sentence, the numbers, and the rest folded away.

A comment on GitHub holds 65,536 characters. What does not fit is left out whole, the least important first, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from sardonyx.records.profile import ProfiledModel
from sardonyx.records.run import Run
from sardonyx.reporting import formatting, markdown
from sardonyx.reporting.bench import milliseconds, ratio
from sardonyx.reporting.module_rows import module_rows, nested_label
from sardonyx.reporting.options import View
from sardonyx.reporting.plots.module_drawings import top_module
from sardonyx.reporting.run import closing_sentence
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.run_changes import changes
from sardonyx.reporting.titled_table import Part
from sardonyx.reporting.verdict import output_groups, proof
from sardonyx.reporting.viewers.mermaid import module_mermaid

LONGEST = 60_000  # characters
_ROWS = 40  # of a table
_ROOM = 600  # characters that are kept for saying what was left out
_LEAST = 2_000  # characters without which a model is better left out
_CELL = 300  # characters of a sentence that comes from a model


def pull_request(dossiers: Sequence[RunBundle]) -> str:
    """One model with all that fits; several with a table of them first."""
    if len(dossiers) == 1:
        return _fitted(list(_blocks(dossiers[0])), LONGEST)
    table = _part(_models(dossiers), folded=False)
    share = max(_LEAST, (LONGEST - _ROOM - len(table)) // len(dossiers) - 2)
    each = [(formatting.name(one.label), _fitted(list(_blocks(one)), share).rstrip()) for one in dossiers]
    return _fitted([("the table", table), *each], LONGEST)


def _models(dossiers: Sequence[RunBundle]) -> Part:
    lines = [
        (
            formatting.name(each.label),
            _cell(proof(each.run.verdict)),
            f"{formatting.from_to(formatting.count(each.run.before.nodes), formatting.count(each.run.after.nodes))} "
            f"({formatting.percent(each.run.before.nodes, each.run.after.nodes)})",
            formatting.from_to(formatting.size(each.run.before.bytes), formatting.size(each.run.after.bytes)),
            _ratio(each),
        )
        for each in dossiers
    ]
    return _cut("All models", ("model", "proof", "nodes", "bytes", "time, after / before"), lines, words=2)


def _ratio(dossier: RunBundle) -> str:
    compared = None if dossier.point is None else dossier.point.timings[1].against_first
    return "not timed" if compared is None else f"{ratio(compared)}, {compared.finding.value}"


def pull_request_of_two(first: RunBundle, second: RunBundle) -> str:
    """What changed from one run to another."""
    found = changes(first, second)
    lines = [f"- {markdown.escaped(_cell(each))}" for each in found.apart]
    apart = "Besides, this differs:\n\n" + "\n".join(lines[:_ROWS]) if lines else ""
    names = f"first: {markdown.escaped(first.label)}, second: {markdown.escaped(second.label)}"
    blocks = [
        ("", f"### What changed\n\n{markdown.escaped(found.sentence)}\n\n{names}"),
        ("what differs besides", apart),
    ]
    blocks += [(part.title.lower(), _part(part, folded=place > 0)) for place, part in enumerate(found.parts)]
    return _fitted(blocks, LONGEST)


def _fitted(blocks: list[tuple[str, str]], longest: int) -> str:
    """As many blocks as fit, each whole; the names of the others."""
    kept: list[str] = []
    left_out: list[str] = []
    room = longest - _ROOM
    for title, block in blocks:
        if not block:
            continue
        if len(block) + 2 > room:
            left_out.append(title or "the heading")
            continue
        room -= len(block) + 2
        kept.append(block)
    if left_out:
        names = formatting.name(", ".join(left_out), _ROOM // 4)  # escaping may double it
        kept.append(f"Left out, because a comment holds no more: {markdown.escaped(names)}. The page has all of it.")
    return "\n\n".join(kept) + "\n"


def _blocks(dossier: RunBundle) -> Iterator[tuple[str, str]]:
    """What there is to say, the most important first, each under the name it is missed by."""
    run = dossier.run
    good = run.status == "done" and (run.verdict is None or run.verdict.passed)
    sentence = _cell(closing_sentence(replace(run, result=replace(run.result, path=None))))
    heading = (
        f"### {'✅' if good else '❌'} {markdown.escaped(formatting.name(dossier.label))}: {markdown.escaped(sentence)}"
    )
    yield "", heading
    yield "the numbers", _part(_numbers(dossier), folded=False)
    notes = (*dossier.notes, *run.notes)
    yield "notes", "\n".join(f"- {markdown.escaped(_cell(each))}" for each in notes[:_ROWS])
    for part in (_modules(dossier), _passes(run), _refusals(run), _proof(run), _undone(run), _environment(dossier)):
        yield part.title.lower(), _part(part, folded=True)
    yield "the graph", _graph(run)


def _graph(run: Run) -> str:
    """The modules that the model is made of and what flows between them, which GitHub draws."""
    if run.wiring_before is None or run.wiring_after is None:
        return ""
    drawn = module_mermaid(run, top_module(run))
    return f"<details><summary>The modules after, as a graph</summary>\n\n```mermaid\n{drawn}```\n\n</details>"


def _cell(sentence: str) -> str:
    """A sentence of a model's own making, cut in its middle where it is very long."""
    return formatting.name(formatting.one_line(sentence), _CELL)


def _part(part: Part, *, folded: bool) -> str:
    if not part.lines:
        return ""
    pieces = [markdown.escaped(part.about), markdown.table(part.heads, part.lines, right=part.right)]
    body = "\n\n".join(filter(None, [*pieces, markdown.escaped(part.more)]))
    if folded:
        return f"<details><summary>{markdown.escaped(part.title)}</summary>\n\n{body}\n\n</details>"
    return f"**{markdown.escaped(part.title)}**\n\n{body}"


def _numbers(dossier: RunBundle) -> Part:
    run, point, forms = dossier.run, dossier.point, dossier.forms
    before, after = run.before, run.after
    lines = [
        (
            "nodes",
            formatting.count(before.nodes),
            formatting.count(after.nodes),
            formatting.percent(before.nodes, after.nodes),
        ),
        (
            "constants",
            formatting.size(before.bytes),
            formatting.size(after.bytes),
            formatting.size_change(after.bytes - before.bytes),
        ),
    ]
    if point is not None and (compared := point.timings[1].against_first) is not None:
        slow, quick = (f"{milliseconds(timing.median)} ms" for timing in point.timings)
        lines.append(("time of a run", slow, quick, f"× {ratio(compared)}, {compared.finding.value}"))
    if forms is not None:
        most, least = (form.memory.total for form in forms)
        lines.append(("peak memory", formatting.size(most), formatting.size(least), formatting.percent(most, least)))
    return Part("Numbers", ("", "before", "after", "change"), tuple(lines), more=f"Proof: {_cell(proof(run.verdict))}.")


def _modules(dossier: RunBundle) -> Part:
    run, timed = dossier.run, dossier.profiled
    owned = [(each.path, each.tag, (each.before, each.after)) for each in run.modules]
    rows = module_rows(owned, View()) if owned else []
    heads = ("module", "nodes before", "after", "change")
    spent = None if timed is None else [_by_path(each) for each in timed]
    lines = [
        (
            nested_label(row),
            formatting.count(row.total[0]),
            formatting.count(row.total[1]),
            formatting.change(row.total[1] - row.total[0]),
            *(() if spent is None else (_spent(each, row.paths) for each in spent)),
        )
        for row in rows
    ]
    heads += () if spent is None else ("ms before", "ms after")
    return _cut("By module", heads, lines, about="Equal layers are one line, with the sums of all.")


def _by_path(model: ProfiledModel) -> dict[str, float]:
    return {each.path: each.total_ms for each in model.modules}


def _spent(times: dict[str, float], paths: Sequence[str]) -> str:
    total = sum(times.get(path, 0.0) for path in paths)
    return milliseconds(total / 1000) if total else "·"


def _passes(run: Run) -> Part:
    lines = [
        (
            formatting.name(each.name),
            _cell(each.algebra),
            each.accuracy.value,
            formatting.count(each.rewrites),
            formatting.change(each.nodes),
            formatting.size_change(each.bytes),
        )
        for each in run.passes
        if each.rewrites
    ]
    return _cut("By pass", ("pass", "what it does", "accuracy", "rewrites", "nodes", "bytes"), lines, words=3)


def _refusals(run: Run) -> Part:
    groups = [(each.name, group) for each in run.passes for group in each.refusals]
    groups.sort(key=lambda pair: -pair[1].count)
    lines = [
        (
            formatting.name(name),
            _cell(group.reason),
            formatting.name(group.examples[0] if group.examples else ""),
            formatting.count(group.count),
        )
        for name, group in groups
    ]
    return _cut("What did not fuse, and why", ("pass", "reason", "for example", "times"), lines, words=3)


def _proof(run: Run) -> Part:
    if run.verdict is None:
        return Part("Proof", (), ())
    lines = [
        (
            formatting.name(each.name, 100),
            each.dtype,
            "ok" if each.passed else "DIFFERS",
            formatting.difference(each.max_abs),
            formatting.difference(each.max_rel),
            f"{formatting.difference(each.rtol)}, {formatting.difference(each.atol)}",
        )
        for each in output_groups(run.verdict)
    ]
    about = (
        f"{_cell(proof(run.verdict))}; reference: {run.verdict.reference}; accuracy class {run.verdict.accuracy.value}."
    )
    heads = ("output", "dtype", "", "worst absolute", "worst relative", "allowed, rel and abs")
    return _cut("Proof", heads, lines, words=3, about=about)


def _undone(run: Run) -> Part:
    lines = [
        (formatting.name(each.pass_name), formatting.name(each.owner) or "(model)", _cell(each.reason))
        for each in run.rolled_back
    ]
    return _cut("Rolled back", ("pass", "module", "reason"), lines, words=3)


def _environment(dossier: RunBundle) -> Part:
    here = dossier.run.environment
    lines = [("sardonyx", here.sardonyx), ("Python", here.python), ("platform", here.platform)]
    lines += sorted(here.packages.items())
    for title, artifact in (("source", dossier.run.source), ("result", dossier.run.result)):
        if artifact.sha256 is not None:
            lines.append((f"SHA-256 of the {title}", artifact.sha256))
    if dossier.bench is not None:
        machine = dossier.bench.machine
        lines.append(
            ("timed on", f"{machine.cpu or 'an unknown processor'}, {formatting.plural(machine.cores, 'core')}")
        )
    return _cut("Environment", ("", ""), lines, words=2)


def _cut(title: str, heads: tuple[str, ...], lines: Sequence[tuple[str, ...]], words: int = 1, about: str = "") -> Part:
    more = f"and {len(lines) - _ROWS} more" if len(lines) > _ROWS else ""
    return Part(title, heads, tuple(lines[:_ROWS]), words, about, more)
