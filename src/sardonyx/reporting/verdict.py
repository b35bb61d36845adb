"""Verdicts as documents: whether two models match, and where they begin to differ."""

from __future__ import annotations

import math

from msgspec.structs import replace

from sardonyx.records.comparison import Location
from sardonyx.records.run import LoadedDecoder, OutputDifference, RequestedTolerance, RewriteClaims, Verdict
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, View, text_column
from sardonyx.reporting.module_rows import grouped, listed, short_lines

SHOWN_FAILURES = 3
SHOWN_GAPS = 2
SHOWN_NOTES = 2  # of a summary
MIN_PERCENT = 1  # of a tolerance: less is not told apart


def verdict_document(verdict: Verdict, first: str, second: str, view: View) -> doc.Document:
    """Return the answer of `verify`."""
    sentence = Span(verdict_sentence(verdict, first, second), Tone.STRONG if verdict.accepted else Tone.BAD)
    return doc.Document((verdict_section(verdict, view),), sentence=sentence)


def verdict_sentence(verdict: Verdict, first: str, second: str) -> str:
    """Return in one line whether the models match; within a requested tolerance first, if there is one."""
    if verdict.requested is not None:
        within = _bounds(verdict.requested)
        derived = f"{'' if verdict.passed else 'not '}within the derived tolerance"
        return f"{within} on {fmt.plural(len(verdict.trials), 'trial')} ({derived}): {second} against {first}"
    return f"{verification(verdict) if verdict.passed else failure(verdict)}: {second} against {first}"


def _bounds(check: RequestedTolerance) -> str:
    return f"{'' if check.passed else 'not '}within rtol {check.rtol:g} and atol {check.atol:g}"


def verification(verdict: Verdict | None, reference: str = "") -> str:
    """Return the result of the verification as a clause, with the name of the reference if it is given."""
    if verdict is None:
        return "not verified"
    if not verdict.passed:
        return failure(verdict)
    where = f" in {verdict.computed_in}" if verdict.computed_in else ""
    tokens = f", {equal_tokens(verdict)}" if verdict.generation else ""
    return f"same outputs{f' as {reference}' if reference else ''} {agreement(verdict, where)}{tokens}"


def agreement(verdict: Verdict, where: str = "") -> str:
    """Return on how many trials the outputs were the same, and how much of the tolerance that took."""
    how = closeness(largest_difference(verdict), tolerance_used(verdict))
    return f"on {fmt.plural(len(verdict.trials), 'trial')}{where} ({how})"


def closeness(largest: float, used: float | None, of_what: str = " of the tolerance used") -> str:
    """Return in words how close outputs that match are: an absolute difference says nothing without its tolerance."""
    if largest == 0:
        return "bit for bit"
    return "only rounding differs" if used is None else used_percent(used) + of_what


def used_percent(used: float) -> str:
    """Return the used share of a tolerance: 12 %."""
    return "under 1 %" if used < MIN_PERCENT / 100 else f"{100 * used:.0f} %"


def tolerance_used(verdict: Verdict) -> float | None:
    """Return the largest share of its tolerance that an element of an output used; None if that does not explain it.

    Where exact arithmetic or double precision shows that only rounding differs, outputs match without a tolerance.
    """
    if any(not output.allowed and output.max_abs != 0 for output in verdict.outputs):
        return None
    largest = max((output.error / output.allowed for output in verdict.outputs if output.allowed), default=0.0)
    return None if verdict.passed and largest > 1 else largest


def failure(verdict: Verdict | None) -> str:
    """Return that the verification failed, with the first reason."""
    reasons = () if verdict is None else verdict.failures or tuple(f for t in verdict.trials for f in t.failures)
    return f"verification failed: {fmt.one_line(reasons[0])}" if reasons else "verification failed"


def verdict_section(verdict: Verdict | None, view: View, title: str = "Verification") -> doc.Section:
    """Return everything about a verification; an empty section if nothing was verified."""
    if verdict is None:
        return doc.Section(title, ())
    state = Span("matches", Tone.GOOD) if verdict.passed else Span("does not match", Tone.BAD)
    failures = [Span(f"✗ {fmt.one_line(reason)}", Tone.BAD) for reason in verdict.failures]
    details = (
        *doc.capped(failures, None if view.verbose else SHOWN_FAILURES, "and {} more failures (-v shows them)"),
        *_requested_lines(verdict),
        *rewrite_lines(verdict, reasons=view.verbose),
        *generation_lines(verdict),
        *(f"note: {fmt.one_line(note)}" for note in notes(verdict)),
        *runtime_lines(verdict),
        *_not_covered(verdict, None if view.verbose else SHOWN_GAPS),
    )
    blocks = (
        doc.Notes([(state, f", {conditions(verdict)}"), f"reference: {fmt.one_line(verdict.reference)}"]),
        output_table(verdict),
        doc.Notes(details),
    )
    return doc.Section(title, (*blocks, trial_table(verdict)) if view.verbose else blocks)


def verdict_summary(verdict: Verdict | None, title: str = "Verification") -> doc.Section:
    """Return a verification in a few lines: what was compared, what differs, and what was not covered."""
    if verdict is None:
        return doc.Section(title, ())
    if not verdict.passed:
        return verdict_section(verdict, View(), title)
    trials, took = fmt.plural(len(verdict.trials), "trial"), fmt.seconds(verdict.seconds)
    lines = (
        (Span("matches", Tone.GOOD), f" {fmt.one_line(verdict.reference)}, on {trials} in {took}"),
        *rewrite_lines(verdict),
        *generation_lines(verdict)[:1],
        *(f"note: {fmt.one_line(note)}" for note in notes(verdict)[:SHOWN_NOTES]),
        *runtime_lines(verdict),
        *_not_covered(verdict, 1),
    )
    return doc.Section(title, (doc.Notes(lines),))


def _requested_lines(verdict: Verdict) -> list[Text]:
    """Return the result within a requested tolerance, with the first reasons if it failed."""
    check = verdict.requested
    if check is None:
        return []
    reasons = doc.capped(list(map(fmt.one_line, check.failures)), SHOWN_GAPS, "and {} more differences")
    return [_bounds(check) + (":" if reasons else ""), *reasons]


def notes(verdict: Verdict) -> list[str]:
    """Return the notes of a verdict without those about gaps, which have a line of their own."""
    return short_lines(note for note in verdict.notes if note not in verdict.not_covered)


def gaps(verdict: Verdict) -> list[str]:
    """Return what the trials did not cover."""
    return short_lines(verdict.not_covered)


def runtime_lines(verdict: Verdict) -> list[str]:
    """Return one line for each further runtime: whether it agrees, and the cause of a disagreement."""
    lines: list[str] = []
    for check in verdict.runtimes:
        clauses = [f"ran both models on {fmt.plural(check.trials, 'trial')}"]
        if check.from_rewrite:
            clauses.append(f"the two differ ({fmt.one_line(check.from_rewrite[0])})")
        elif check.trials:
            clauses.append("they match")
        if check.from_runtime:
            count, first = fmt.plural(len(check.from_runtime), "place"), fmt.one_line(check.from_runtime[0])
            clauses.append(f"differs from the first runtime on the reference alone in {count} ({first})")
        if check.not_run:
            clauses.append(f"not everything ran: {fmt.one_line(check.not_run)}")
        lines.append(f"{fmt.one_line(check.runtime)}: {'; '.join(clauses)}")
    return lines


def _not_covered(verdict: Verdict, most: int | None) -> list[str]:
    """Return at most so many gaps in one line, or all in one line each."""
    lines = [fmt.one_line(gap) for gap in gaps(verdict)]
    if most is None or not lines:
        return [f"not covered: {line}" for line in lines]
    more = f"; and {len(lines) - most} more (-v lists them)" if len(lines) > most else ""
    return [f"not covered: {'; '.join(lines[:most])}{more}"]


def rewrite_lines(verdict: Verdict, *, reasons: bool = False) -> list[str]:
    """Return how many rewrites are known to be equal, in which sense, and why exact arithmetic leaves others open."""
    checks = verdict.rewrites
    if checks is None:
        return []
    lines = [claims_line(checks)]
    if checks.failed:
        lines.append(f"first error of a check: {fmt.one_line(checks.error)}")
    if reasons and checks.rounded:
        units = checks.rounding_units
        how = (
            "which cancel in a sum" if units is None else f"{units:.2g} units in the last place from exact ones at most"
        )
        lines.append(f"{checks.rounded} of them store computed numbers, {how}")
    undecided = checks.undecided.items() if reasons else ()
    return [*lines, *(f"not decided: {count} by {fmt.one_line(reason)}" for reason, count in undecided)]


def claims_line(claims: RewriteClaims) -> str:
    """Return what is known of rewrites in one line: how many are equal, and in which sense."""
    sizes = f" ({claims.for_every_size} of them for every size)" if claims.for_every_size else ""
    parts = (
        (claims.all_values, f"equal for all values{sizes}"),
        (claims.orders_tried, "for the orders tried"),
        (claims.by_trials, "by trials only"),
        (claims.not_runnable, "cannot be run by themselves"),
        (claims.failed, "not checked because of an error"),
    )
    return f"{fmt.plural(claims.rewrites, 'rewrite')}: {', '.join(f'{n} {text}' for n, text in parts if n)}"


def claims_cell(verdict: Verdict | None, name: str) -> str:
    """Return what is known of the rewrites of one pass, for a column with the heading "equal for"."""
    claims = None if verdict is None or verdict.rewrites is None else verdict.rewrites.passes.get(name)
    if claims is None:
        return "·"
    sizes = claims.for_every_size
    parts = (
        (sizes, "all values and sizes"),
        (claims.all_values - sizes, "all values"),
        (claims.orders_tried, "orders tried"),
        (claims.by_trials, "trials only"),
        (claims.not_runnable, "not run"),
        (claims.failed, "error"),
    )
    found = [(count, text) for count, text in parts if count]
    return found[0][1] if len(found) == 1 else ", ".join(f"{count} {text}" for count, text in found)


def generation_lines(verdict: Verdict) -> list[str]:
    """Return how many generated tokens are equal, from which prompts, and where two tokens tied."""
    batches = verdict.generation
    if not batches:
        return []
    lengths = sorted({length for batch in batches for length in batch.prompts})
    prompts = fmt.plural(sum(len(batch.prompts) for batch in batches), "prompt")
    padded = " (some padded)" if any(len(set(batch.prompts)) > 1 for batch in batches) else ""
    span = f"{lengths[0]} to {lengths[-1]} tokens" if len(lengths) > 1 else fmt.plural(lengths[0], "token")
    worst = fmt.difference(max(batch.max_abs for batch in batches))
    lines = [f"generation: {equal_tokens(verdict)} from {prompts} of {span}{padded}; logits differ by {worst} at most"]
    for batch in batches:
        lines += [
            f"tie: prompt of {batch.prompts[tie.row]} tokens, step {tie.step + 1}: {tie.token} or {tie.other}, "
            f"{fmt.difference(tie.gap)} apart in PyTorch"
            for tie in batch.ties
            if batch.passed
        ]
    return lines


def decoder_line(decoder: LoadedDecoder) -> str:
    """Return where a folder for generation was loaded, how fast it generates, and the bytes of its cache."""
    cache = f"cache: {fmt.size(decoder.cache_bytes)} per position"
    if decoder.tokens_per_second is None:
        return f"loaded in {decoder.runtime}; {cache}"
    return f"loaded in {decoder.runtime}: {decoder.tokens_per_second:.1f} tokens/s on this machine; {cache}"


def equal_tokens(verdict: Verdict) -> str:
    """Return how many of the generated tokens are those of PyTorch."""
    total = sum(len(batch.prompts) * batch.steps for batch in verdict.generation)
    equal = sum(batch.equal for batch in verdict.generation)
    return f"all {total} greedy tokens equal" if equal == total else f"{equal} of {total} greedy tokens equal"


def conditions(verdict: Verdict) -> str:
    """Return the number of trials, their seeds and the accuracy class."""
    seeds = sorted({trial.seed for trial in verdict.trials if trial.seed is not None})
    listed_seeds = f"{seeds[0]}…{seeds[-1]}" if len(seeds) > 3 else ", ".join(map(str, seeds))
    return (
        fmt.plural(len(verdict.trials), "trial")
        + (f" with seeds {listed_seeds}" if seeds else "")
        + f", accuracy class {verdict.accuracy.value}, in {fmt.seconds(verdict.seconds)}"
    )


def output_groups(verdict: Verdict) -> list[OutputDifference]:
    """Return the outputs; numbered ones that passed are one, with the largest differences and smallest tolerances."""
    groups = grouped(verdict.outputs, lambda output: output.name, lambda o: (o.dtype, o.passed or o.name))
    return [
        replace(
            group[0],
            name=group[0].name if len(group) == 1 else label,
            **{name: max(getattr(output, name) for output in group) for name in ("max_abs", "max_rel", "max_ulp")},
            **{name: min(getattr(output, name) for output in group) for name in ("rtol", "atol")},
        )
        for label, group in groups
    ]


def output_table(verdict: Verdict) -> doc.Table:
    """Return the differences of each output."""
    rows: list[Row] = []
    for output in output_groups(verdict):
        difference = (*map(fmt.difference, (output.max_abs, output.max_rel)), f"{output.max_ulp:.3g}")
        allowed = map(fmt.difference, (output.rtol, output.atol))
        found, tone = ("ok", Tone.PLAIN) if output.passed else ("DIFFERS", Tone.BAD)
        rows.append(Row((fmt.name(output.name, 100), fmt.name(output.dtype), *difference, *allowed, found), tone))
    numbers = ("max abs", Column("max rel", 1), Column("max ulp", 2), Column("rtol", 1), Column("atol", 1))
    return doc.Table.of((text_column("output"), text_column("dtype"), *numbers, text_column("")), rows)


def trial_table(verdict: Verdict) -> doc.Table:
    """Return the inputs of each trial and whether it passed."""
    rows: list[Row] = []
    for trial in verdict.trials:
        sizes = ", ".join(f"{fmt.name(dim)}={size}" for dim, size in trial.dims.items()) or "·"
        found = "ok" if trial.passed else fmt.one_line("; ".join(trial.failures) or "failed")
        cells = ("supplied" if trial.seed is None else str(trial.seed), fmt.name(trial.style), sizes, found)
        rows.append(Row(cells, Tone.PLAIN if trial.passed else Tone.BAD))
    return doc.Table.of(("seed", text_column("values"), text_column("sizes"), text_column("")), rows)


def largest_difference(verdict: Verdict) -> float:
    """Return the largest absolute difference; NaN counts as infinite."""
    return max((math.inf if math.isnan(o.max_abs) else o.max_abs for o in verdict.outputs), default=0.0)


_ROWS_SHOWN = 8  # rows and names without -v


def location_document(location: Location, view: View) -> doc.Document:
    """Return the answer of `locate`."""
    most, module = None if view.verbose else _ROWS_SHOWN, location.module

    def names(modules: tuple[str, ...]) -> str:
        return listed([fmt.name(name) or "the model" for name in modules], most)

    facts: dict[str, Text] = {
        label: f"{fmt.name(model.name, 100)}, {fmt.one_line(model.runtime)}"
        for label, model in (("first", location.first), ("second", location.second))
    }
    runs = f"{fmt.plural(location.runs, 'run')} in {fmt.seconds(location.seconds)}"
    borders = fmt.plural(location.borders, "border value")
    facts["compared"] = f"outputs and {borders}, inputs: {fmt.one_line(location.trial)}, {runs}"
    lines: list[Text] = []
    if module is not None:
        lines = [
            (Span(fmt.module(module.module), Tone.STRONG), Span(f"  {fmt.name(module.tag, 100)}", Tone.FAINT)),
            f"'{fmt.name(module.value, 100)}' {fmt.one_line(module.reason)}",
            f"nodes: {names(module.nodes)}",
            *([f"its nodes are those of {names(module.modules)}"] if module.modules else []),
        ]
    rows: list[tuple[str, ...]] = []
    for share in location.shares[:most]:
        ends = dict.fromkeys(share.modules[:: max(1, len(share.modules) - 1)]) if share.modules else (share.module,)
        error = "·" if share.error is None else fmt.difference(share.error)
        rows.append((" … ".join(map(fmt.module, ends)), _percent(share.share), _percent(share.alone), error))
    if most is not None and len(location.shares) > most:
        rows.append((f"and {len(location.shares) - most} more (-v shows them)",))
    headings = ("module", "share", "alone", "error of its output")
    notes = [f"note: {fmt.one_line(note)}" for note in location.notes]
    if location.unpaired and not location.same:
        around = names(location.unpaired)
        notes.append(f"no common border in both models, so the module around it was compared: {around}")
    return doc.Document(
        title="Location",
        head=(doc.Facts(facts),),
        blocks=(
            doc.Section("First module that differs", (doc.Notes(lines),)),
            doc.table_section("Share of the error, by module", headings, rows),
            doc.Notes(notes),
        ),
        sentence=Span(location_sentence(location), Tone.STRONG if location.same else Tone.BAD),
    )


def location_sentence(location: Location) -> str:
    """Return in one line where the models begin to differ."""
    second, first = fmt.one_line(location.second.name), fmt.one_line(location.first.name)
    if location.same:
        return f"no difference: the outputs of {second} match those of {first}"
    error = f"relative error of the outputs {fmt.difference(location.error)}"
    if location.module is None:
        return f"the outputs differ, and no module could be compared ({error})"
    if location.gradual:
        top = f"the largest share is {_percent(location.shares[0].share)}"
        return f"the error accumulates gradually over about {location.spread:.0f} modules, {top} ({error})"
    name = fmt.module(location.module.module)
    top = location.shares[0] if location.shares else None
    share, other = "", ""
    if location.module.share is not None:
        part = _percent(location.module.share)
        share = " but causes almost none of the error" if part == "0 %" else f" and causes {part} of the error"
    if top is not None and top.module != location.module.module:
        other = f"; {fmt.module(top.module)} causes most, {_percent(top.share)}"
    return f"{name} is the first module that differs{share}{other} ({error})"


def _percent(share: float | None) -> str:
    return "·" if share is None else f"{100 * min(max(share, 0.0), 1.0):.0f} %"
