"""The quantization on the page: bytes, time and judged loss, the front, the loss of each module alone, the check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sardonyx.records.bench import Finding, Point
from sardonyx.records.quantization import FLOAT32, Choice, GroupPrecision, Loss, ModuleGroup, Quantization
from sardonyx.reporting import bench
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Span, Table, Text, Tone, View, text_column
from sardonyx.reporting.page.documents import location_section
from sardonyx.reporting.page.modules import quantized_section
from sardonyx.reporting.page.overview import file_name, interval_places, machine_facts, origin_facts
from sardonyx.reporting.page.section import Section, rendered
from sardonyx.reporting.quantization import (
    front,
    in_module_order,
    loss_section,
    module_section,
    point_section,
    quantization_sentence,
    sensitivity,
    skipped_section,
    unwritten,
)
from sardonyx.reporting.run_bundle import QuantizationBundle, RunBundle
from sardonyx.reporting.verdict import decoder_line
from sardonyx.reporting.writers import html

_WHOLE = View(verbose=True)


def section(bundle: RunBundle) -> Section | None:
    """Return the quantization of a file of a run, or None if there is none."""
    return None if bundle.quantization is None else _section(bundle.quantization, alone=False)


def sections(bundle: QuantizationBundle) -> tuple[Section, ...]:
    """Return the sections of a quantization without a run: its results, the tree of its modules, where they differ."""
    made = bundle.quantization
    results = _section(made, bundle.point, bundle.notes, alone=True)
    first = (results, quantized_section(made, module_precisions(made)))
    return first if bundle.location is None else (*first, location_section(bundle.location))


def module_precisions(quantization: Quantization) -> dict[str, str]:
    """Return the precision of each module that owns a product, by path."""
    if quantization.choice is None:
        return {product.module: quantization.options["to"] for product in quantization.products}
    return {path: group.chosen for group in quantization.choice.groups for path in group.modules}


def _section(made: Quantization, timed: Point | None = None, notes: tuple[str, ...] = (), *, alone: bool) -> Section:
    """Return the results. `timed`: by `bench`, if no time was measured; `alone`: the page has a tree of its modules."""
    choice = made.choice
    time = None if choice is None else choice.points[choice.chosen].time
    milliseconds = None if choice is None else choice.source_milliseconds
    sizes = {} if choice is None else choice.sizes
    data = made.data
    kind = "samples of the given data" if data.kind == "data" else "generated inputs"
    used = {"to calibrate": data.calibrate, "to choose": data.choose, "to judge": data.judge}
    parts = f"{kind}: " + ", ".join(f"{count} {step}" for step, count in used.items() if count)
    if data.shared:
        parts = f"all {data.judge} {kind} for every step"
    if time is None and timed is not None:
        time, milliseconds, sizes = timed.timings[1].against_first, 1000 * timed.timings[0].median, timed.sizes
    markup = rendered(
        "precision",
        sentence=quantization_sentence(made),
        unwritten=unwritten(made),
        made=made,
        choice=choice,
        time=time,
        pace=time and (bench.finding(time) if time.finding is Finding.SAME else f"{time.ratio:.2f} ×"),
        interval=None if time is None else interval_places(time),
        milliseconds=milliseconds,
        sizes=bench.size(sizes),
        samples=_samples(made),
        losses=list(_losses(made.loss)),
        chosen=None if choice is None else _chosen(made, choice),
        tables=html.write([loss_section(made, _WHOLE)], 3),
        modules="" if alone else html.write([module_section(made, View())], 3),
        skipped=html.write([skipped_section(made, _WHOLE)], 3),
        parts=parts,
        facts=list(_facts(made)),
        notes=[fmt.one_line(note) for note in (*made.notes, *notes)],
    )
    return Section("precision", "Precision", markup)


def _samples(made: Quantization) -> str:
    if made.loss.measured_on != "data":
        return f"on {fmt.plural(made.loss.samples, 'generated input')}, which say little about a trained model"
    seen = "that nothing else has used" if not made.data.shared else "which every other step used too"
    return f"on {fmt.plural(made.loss.samples, 'sample')} of the given data, {seen}"


def _losses(loss: Loss) -> Iterator[str]:
    scores = loss.scores
    if scores is None:
        return
    if scores.top1 is not None:
        top1 = scores.top1
        yield f"top-1 agreement {100 * top1.value:.1f} % [{100 * top1.low:.1f}, {100 * top1.high:.1f}]"
    yield f"cosine {scores.cosine.value:.5f}"
    if loss.metric is not None and scores.metric is not None:
        drop = f"drop {scores.metric.value:.3g} [{scores.metric.low:.3g}, {scores.metric.high:.3g}]"
        name = fmt.name(loss.metric.function)
        yield f"{name} {loss.metric.source:.4g} → {loss.metric.result:.4g}, {drop}"


def _chosen(made: Quantization, choice: Choice) -> dict[str, Any]:
    """Return the pictures and tables of a choice; the groups with loss and gain of each precision alone."""
    columns = (text_column("module"), text_column("chosen"), text_column("why"), "bytes", *choice.precisions)
    groups = Table.of(columns, (tuple(_group_cells(each, made, choice)) for each in in_module_order(made, choice)))
    return {
        "front": front(choice).inline(),
        "points": html.write(point_section(choice, _WHOLE).blocks, 4),
        "sensitivity": sensitivity(made, choice).inline(),
        "groups": html.table(groups, "Loss and gain of each module alone"),
    }


def _group_cells(group: ModuleGroup, made: Quantization, choice: Choice) -> Iterator[Text]:
    options = {option.precision: option for option in group.options}
    yield fmt.module(group.name)
    yield Span(group.chosen, Tone.FAINT if group.chosen == FLOAT32 else Tone.STRONG)
    yield fmt.one_line(group.reason)
    yield fmt.size(group.bytes)
    for precision in choice.precisions:
        option = options.get(precision)
        yield "·" if option is None else _alone(option, made, choice)


def _alone(option: GroupPrecision, made: Quantization, choice: Choice) -> Text:
    """Return the loss, and what the precision saves or why it was no option."""
    gain = "not timed"
    if option.excluded is not None:
        gain = fmt.one_line(option.excluded)
    elif choice.objective == "bytes":
        gain = fmt.size(made.before.bytes - option.bytes)
    elif option.milliseconds is not None:
        gain = f"{option.milliseconds:.3g} ms"
    return (f"{option.scores.relative_l2.value:.2g} ", Span(f"({gain})", Tone.FAINT))


def _facts(made: Quantization) -> Iterator[tuple[str, str]]:
    yield from origin_facts(made.environment)
    yield "Files", f"{file_name(made.source, made.before.bytes)} → {file_name(made.result, made.after.bytes)}"
    yield "Target", fmt.one_line(str(made.options.get("target", "portable")))
    for domain, (old, new) in made.opset_changes.items():
        yield "Opset", fmt.one_line(f"{domain or 'standard'} {old} → {new}")
    if made.choice is not None:
        yield "Precisions tried", ", ".join(made.choice.precisions)
        yield "Models built", fmt.count(made.choice.models)
    if made.decoder is not None:
        yield "Generation", decoder_line(made.decoder)
    yield "It took", fmt.phases(made.seconds)
    yield from machine_facts(made.environment, fmt.plural(made.environment.cpus, "core"))
