"""The head of the page: the verdict in one sentence, three numbers with how sure they are, and what else to know."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePath

from sardonyx.records.bench import Comparison, Finding, Timing
from sardonyx.records.run import OutputDifference, Run
from sardonyx.reporting import bench, formatting
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.run_bundle import RunBundle
from sardonyx.reporting.verdict import failed_sentence


@dataclass(frozen=True, slots=True)
class Pace:
    """The result's time as a multiple of the source's, and how it was found."""

    compared: Comparison
    before_ms: str
    after_ms: str
    where: str  # sizes and how many rounds
    how: str


def section(dossier: RunBundle) -> Section:
    """What a reader should know who reads nothing else."""
    run = dossier.run
    pace = _pace(dossier)
    html = rendered(
        "verdict",
        alarms=_alarms(run),
        sentence=_sentence(dossier.label, run, pace),
        run=run,
        fewer=formatting.percent(run.before.nodes, run.after.nodes),
        pace=pace,
        headline=None if pace is None else _pace_words(pace.compared),
        interval=None if pace is None else _interval(pace.compared),
        worst=_worst(run),
        facts=_facts(run),
        notes=[formatting.one_line(note) for note in (*run.notes, *dossier.notes)],
    )
    return Section("verdict", "Verdict", html)


def _alarms(run: Run) -> list[str]:
    """What comes before everything else, because it takes away from the rest."""
    alarms: list[str] = []
    if run.status != "done":
        alarms.append(f"{_capital(failed_sentence(run.verdict))}. Nothing was written.")
    elif run.verdict is None:
        alarms.append("Not proven: verification was switched off, so nothing says that both files compute the same.")
    elif not run.verdict.passed:
        alarms.append(f"{_capital(failed_sentence(run.verdict))}.")
    if run.rolled_back:
        did = "failed its proof and was undone" if len(run.rolled_back) == 1 else "failed their proof and were undone"
        alarms.append(f"{formatting.plural(len(run.rolled_back), 'rewrite')} {did}; “Proof” says which and why.")
    return alarms


def _sentence(label: str, run: Run, pace: Pace | None) -> str:
    would = run.status != "done" or bool(run.options.get("dry_run"))
    clauses = [_nodes_clause(run, would=would)]
    if pace is not None:
        clauses.append(_time_clause(pace.compared))
    if run.verdict is not None and run.verdict.passed:
        trials = formatting.plural(len(run.verdict.trials), "trial")
        _output, worst = _worst(run) or (None, 0.0)
        how = "bit for bit" if worst == 0 else f"deviating by {formatting.difference(worst)} at most"
        clauses.append(f"gave the same outputs on {trials}, {how}")
    said = clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
    return f"{formatting.name(label)} {said}{'; its time was not measured' if pace is None else ''}."


def _nodes_clause(run: Run, *, would: bool) -> str:
    before, after = run.before.nodes, run.after.nodes
    has = "would have" if would else "has"
    if before == after:
        return f"{has} {formatting.plural(after, 'node')} as before"
    share = formatting.percent(before, after).lstrip("+−")
    return f"{has} {share} {'fewer' if after < before else 'more'} nodes"


def _time_clause(compared: Comparison) -> str:
    if compared.finding is Finding.SAME:
        return f"shows no difference in time (none above {bench.percent(bench.reach(compared))} %)"
    near, far = sorted((abs(1 - compared.low), abs(1 - compared.high)))
    return f"runs {_pace_words(compared)} [{bench.percent(near)}, {bench.percent(far)}]"


def _pace_words(compared: Comparison) -> str:
    if compared.finding is Finding.SAME:
        return "no difference"
    return f"{bench.percent(1 - compared.ratio)} % {compared.finding.value}"


def _pace(dossier: RunBundle) -> Pace | None:
    """From the benchmark; else from what tuning measured; None where nobody did."""
    timed = _timed(dossier)
    if timed is not None and timed[1].against_first is not None and dossier.point is not None:
        first, second = timed
        compared = timed[1].against_first
        rounds = f"median of {formatting.plural(compared.rounds, 'round')}"
        sizes = bench.size(dossier.point.sizes)
        return Pace(
            compared,
            bench.milliseconds(first.median),
            bench.milliseconds(second.median),
            ", ".join(filter(None, (rounds, sizes))),
            "Both files ran in turns, round by round; the ratio is paired by round, with a 95 % interval. "
            f"The source against itself differed by {bench.percent(compared.floor)} %, and less than that counts "
            "as no difference.",
        )
    return _tuned(dossier.run)


def _timed(dossier: RunBundle) -> tuple[Timing, Timing] | None:
    """The times of source and result, where the source is what all others are compared with."""
    if dossier.bench is None or dossier.point is None:
        return None
    names = [PurePath(each.path or each.label).name for each in dossier.bench.files]
    source, result = (PurePath(each.path or "").name for each in (dossier.run.source, dossier.run.result))
    if names[0] != source:
        return None
    return dossier.point.timings[0], dossier.point.timings[names.index(result)]


def _tuned(run: Run) -> Pace | None:
    if run.tuning is None:
        return None
    paces = {each.name: each for each in run.tuning.standing}
    source, chosen = paces.get("source"), paces.get(run.tuning.chosen)
    if source is None or chosen is None or chosen is source:
        return None
    compared = Comparison(chosen.ratio, chosen.low, chosen.high, run.tuning.floor, Finding(chosen.finding), 0)
    return Pace(
        compared,
        bench.milliseconds(source.milliseconds / 1000),
        bench.milliseconds(chosen.milliseconds / 1000),
        ", ".join(filter(None, ("measured while tuning", bench.size(run.tuning.sizes)))),
        "From the last race of tuning, in which source and result ran in turns; the ratio has a 95 % interval.",
    )


def _interval(compared: Comparison) -> dict[str, float]:
    """Where the ends of the interval, the ratio and "as fast as before" lie on a line, in percent of its length."""
    low, high = min(compared.low, 1.0), max(compared.high, 1.0)
    room = 0.15 * (high - low) or 0.01
    span = high - low + 2 * room
    at = {"low": compared.low, "high": compared.high, "ratio": compared.ratio, "one": 1.0}
    return {name: round(100 * (value - low + room) / span, 2) for name, value in at.items()}


def _worst(run: Run) -> tuple[OutputDifference, float] | None:
    """The output that deviates most, and by how much; one without a number deviates infinitely."""
    if run.verdict is None or not run.verdict.outputs:
        return None
    by_output = [(each, math.inf if math.isnan(each.max_abs) else each.max_abs) for each in run.verdict.outputs]
    return max(by_output, key=lambda pair: pair[1])


def _facts(run: Run) -> list[tuple[str, str]]:
    """What else there is to know of the files, a word and what it says."""
    source = "a model in memory" if run.source.path is None else formatting.visible(PurePath(run.source.path).name)
    result = "not written" if run.result.path is None else formatting.visible(PurePath(run.result.path).name)
    facts = [
        ("Files", f"{source} → {result}"),
        ("Constants", formatting.from_to(formatting.size(run.before.bytes), formatting.size(run.after.bytes))),
    ]
    if run.fingerprint is not None:
        family = formatting.name(run.fingerprint.family.replace("-", " "))
        facts.append(("Looks like", f"{family}: {formatting.one_line(', '.join(run.fingerprint.evidence))}"))
    for domain, (old, new) in sorted(run.opset_changes.items()):
        facts.append(("Opset", f"{formatting.name(domain) or 'ai.onnx'} raised {old} → {new}: a fusion needed it"))
    return facts


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
