"""A Verdict as text: what was compared, how far apart the outputs were, and how it was found out."""

from __future__ import annotations

import math

from msgspec.structs import replace

from sardonyx.records.run import OutputDifference, RuntimeCheck, Trial, Verdict
from sardonyx.reporting import formatting
from sardonyx.reporting.formatting import Style
from sardonyx.reporting.name_groups import grouped, short_lines
from sardonyx.reporting.table import Column, Line, table, text_column

SHOWN_FAILURES = 10
SHOWN_GAPS = 2
OUTPUTS = (
    text_column("output"),
    text_column("dtype"),
    Column("max abs"),
    Column("max rel"),
    Column("max ulp"),
    Column("rtol"),
    Column("atol"),
    text_column(""),
)
TRIALS = (Column("seed"), text_column("values"), text_column("sizes"), text_column(""))


def render_verdict(verdict: Verdict, first: str, second: str, style: Style | None = None, *, verbose: bool) -> str:
    """The whole answer of `verify`; its last line is the sentence."""
    style = style or Style()
    lines = verdict_lines(verdict, style, verbose=verbose)
    return "\n".join([*lines, "", verdict_sentence(verdict, first, second, style)]) + "\n"


def verdict_sentence(verdict: Verdict, first: str, second: str, style: Style | None = None) -> str:
    """Equal or not, in one line."""
    style = style or Style()
    pair = f"{formatting.visible(second)} against {formatting.visible(first)}"
    if verdict.passed:
        return style.strong(f"{proof(verdict)}: {pair}")
    return style.bad(f"{failed_sentence(verdict)}: {pair}")


def proof(verdict: Verdict | None) -> str:
    """What the proof amounts to, as a clause."""
    if verdict is None:
        return "not verified"
    if not verdict.passed:
        return failed_sentence(verdict)
    worst = _worst(verdict)
    how = "bit for bit" if worst == 0 else f"worst {formatting.difference(worst)}"
    where = f" in {verdict.computed_in}" if verdict.computed_in else ""
    tokens = f", {equal_tokens(verdict)}" if verdict.generation else ""
    return f"verified on {formatting.plural(len(verdict.trials), 'trial')}{where} ({how}){tokens}"


def failed_sentence(verdict: Verdict | None) -> str:
    """That it failed, and the first reason."""
    reasons = () if verdict is None else verdict.failures or tuple(f for t in verdict.trials for f in t.failures)
    return f"verification failed: {formatting.one_line(reasons[0])}" if reasons else "verification failed"


def verdict_lines(verdict: Verdict | None, style: Style, *, verbose: bool) -> list[str]:
    """The block under "Proof"; empty where nothing was verified."""
    if verdict is None:
        return []
    state = style.good("equal") if verdict.passed else style.bad("not equal")
    lines = [
        style.strong("Proof"),
        f"  {state}, {conditions(verdict)}",
        f"  reference: {formatting.one_line(verdict.reference)}",
    ]
    lines += _outputs(verdict, style)
    failures = verdict.failures if verbose else verdict.failures[:SHOWN_FAILURES]
    lines += [style.bad(f"  ✗ {formatting.one_line(failure)}") for failure in failures]
    if len(failures) < len(verdict.failures):
        lines.append(f"  and {len(verdict.failures) - len(failures)} more failures (-v shows them)")
    lines += [f"  {line}" for line in rewrite_lines(verdict)]
    lines += [f"  {line}" for line in generation_lines(verdict)]
    lines += [f"  note: {formatting.one_line(note)}" for note in notes(verdict)]
    lines += [f"  {line}" for line in runtime_lines(verdict)]
    lines += _not_covered(verdict, verbose=verbose)
    return lines + (_trials(verdict.trials, style) if verbose else [])


def notes(verdict: Verdict) -> list[str]:
    """What a reader should know besides; what was not covered has a line of its own."""
    return short_lines(note for note in verdict.notes if note not in verdict.not_covered)


def gaps(verdict: Verdict) -> list[str]:
    """What the trials did not cover."""
    return short_lines(verdict.not_covered)


def runtime_lines(verdict: Verdict) -> list[str]:
    """One line for each further runtime: whether it agrees, and where a disagreement comes from."""
    return [_runtime_line(each) for each in verdict.runtimes]


def _runtime_line(check: RuntimeCheck) -> str:
    found = [f"ran both models on {formatting.plural(check.trials, 'trial')}"]
    if check.from_rewrite:
        found.append(f"the two differ ({formatting.one_line(check.from_rewrite[0])})")
    elif check.trials:
        found.append("they match")
    if check.from_runtime:
        count, first = formatting.plural(len(check.from_runtime), "place"), formatting.one_line(check.from_runtime[0])
        found.append(f"differs from the first runtime on the reference alone in {count} ({first})")
    if check.not_run:
        found.append(f"not everything ran: {formatting.one_line(check.not_run)}")
    return f"{formatting.one_line(check.runtime)}: {'; '.join(found)}"


def _not_covered(verdict: Verdict, *, verbose: bool) -> list[str]:
    """One line, or one line each."""
    listed = [formatting.one_line(each) for each in gaps(verdict)]
    if verbose or not listed:
        return [f"  not covered: {each}" for each in listed]
    more = f"; and {len(listed) - SHOWN_GAPS} more (-v lists them)" if len(listed) > SHOWN_GAPS else ""
    return [f"  not covered: {'; '.join(listed[:SHOWN_GAPS])}{more}"]


def rewrite_lines(verdict: Verdict) -> list[str]:
    """How many rewrites were checked one by one, and how many were not."""
    checks = verdict.rewrites
    if checks is None:
        return []
    gaps = [
        text
        for count, text in (
            (checks.not_runnable, f"{checks.not_runnable} cannot be run by themselves"),
            (checks.left_out, f"{checks.left_out} left out for lack of time"),
        )
        if count
    ]
    rewrites = formatting.plural(checks.rewrites, "rewrite")
    return ["; ".join([f"{checks.matching} of {rewrites} ({checks.distinct} distinct) also match one by one", *gaps])]


def generation_lines(verdict: Verdict) -> list[str]:
    """How many generated tokens are equal, from which prompts, and where a tie decided."""
    batches = verdict.generation
    if not batches:
        return []
    lengths = sorted({length for batch in batches for length in batch.prompts})
    prompts = formatting.plural(sum(len(batch.prompts) for batch in batches), "prompt")
    padded = " (some padded)" if any(len(set(batch.prompts)) > 1 for batch in batches) else ""
    span = f"{lengths[0]} to {lengths[-1]} tokens" if len(lengths) > 1 else formatting.plural(lengths[0], "token")
    worst = formatting.difference(max(batch.max_abs for batch in batches))
    lines = [f"generation: {equal_tokens(verdict)} from {prompts} of {span}{padded}; logits differ by {worst} at most"]
    for batch in batches:
        lines += [
            f"  tie: prompt of {batch.prompts[tie.row]} tokens, step {tie.step + 1}: {tie.token} or {tie.other}, "
            f"{formatting.difference(tie.gap)} apart in PyTorch"
            for tie in batch.ties
            if batch.passed
        ]
    return lines


def equal_tokens(verdict: Verdict) -> str:
    """How many of the generated tokens are PyTorch's."""
    total = sum(len(batch.prompts) * batch.steps for batch in verdict.generation)
    equal = sum(batch.equal for batch in verdict.generation)
    return f"all {total} greedy tokens equal" if equal == total else f"{equal} of {total} greedy tokens equal"


def conditions(verdict: Verdict) -> str:
    """How much was tried, and what may differ."""
    seeds = sorted({trial.seed for trial in verdict.trials if trial.seed is not None})
    return (
        formatting.plural(len(verdict.trials), "trial")
        + (f" with seeds {_list(seeds)}" if seeds else "")
        + f", accuracy class {verdict.accuracy.value}, in {formatting.seconds(verdict.seconds)}"
    )


def output_groups(verdict: Verdict) -> list[OutputDifference]:
    """The outputs, numbered ones that passed as one: the largest differences, and the smallest tolerances."""

    def worst(label: str, group: list[OutputDifference]) -> OutputDifference:
        if len(group) == 1:
            return group[0]
        return replace(
            group[0],
            name=label,
            max_abs=max(each.max_abs for each in group),
            max_rel=max(each.max_rel for each in group),
            max_ulp=max(each.max_ulp for each in group),
            rtol=min(each.rtol for each in group),
            atol=min(each.atol for each in group),
        )

    found = grouped(verdict.outputs, lambda each: each.name, lambda each: (each.dtype, each.passed or each.name))
    return [worst(label, group) for label, group in found]


def output_cells(output: OutputDifference) -> tuple[str, ...]:
    """One row under `OUTPUTS`."""
    return (
        formatting.name(output.name, 100),
        formatting.name(output.dtype),
        formatting.difference(output.max_abs),
        formatting.difference(output.max_rel),
        f"{output.max_ulp:.3g}",
        formatting.difference(output.rtol),
        formatting.difference(output.atol),
        "ok" if output.passed else "DIFFERS",
    )


def trial_cells(trial: Trial) -> tuple[str, ...]:
    """One row under `TRIALS`."""
    return (
        "given" if trial.seed is None else str(trial.seed),
        formatting.name(trial.style),
        ", ".join(f"{formatting.name(dim)}={size}" for dim, size in trial.dims.items()) or "·",
        "ok" if trial.passed else formatting.one_line("; ".join(trial.failures) or "failed"),
    )


def _outputs(verdict: Verdict, style: Style) -> list[str]:
    lines = [Line(output_cells(output), None if output.passed else style.bad) for output in output_groups(verdict)]
    return table(OUTPUTS, lines, style) if lines else []


def _trials(trials: tuple[Trial, ...], style: Style) -> list[str]:
    lines = [Line(trial_cells(trial), None if trial.passed else style.bad) for trial in trials]
    return table(TRIALS, lines, style) if lines else []


def _worst(verdict: Verdict) -> float:
    """The largest absolute difference; NaN counts as the worst there is."""
    return max((math.inf if math.isnan(o.max_abs) else o.max_abs for o in verdict.outputs), default=0.0)


def _list(seeds: list[int]) -> str:
    return f"{seeds[0]}…{seeds[-1]}" if len(seeds) > 3 else ", ".join(map(str, seeds))
