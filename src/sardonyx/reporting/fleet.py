"""Many models as one view: the numbers of each record, and a table with a row for each, or of groups of them."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

from msgspec import Struct

from sardonyx.errors import GateNotMet
from sardonyx.records.base import Record
from sardonyx.records.inspection import Inspection
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Run, Verdict
from sardonyx.records.study import Fleet, ModelRow
from sardonyx.reporting import document as doc
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting.document import Column, Row, Span, Text, Tone, text_column
from sardonyx.reporting.inspection import family_name
from sardonyx.reporting.measures import RecordKind
from sardonyx.reporting.record_kinds import QUANTIZATION, RUN
from sardonyx.reporting.run import refusals
from sardonyx.reporting.verdict import closeness, largest_difference, tolerance_used

Numbers = dict[str, Any]
MAX_ROWS = 40  # models with a row of their own on a terminal
_MAX_GROUPS = 40
_SAVINGS_SHOWN = 10
_MODELS_SHOWN = 25  # models of each kind on the page
_MODELS_NAMED = 3  # of models that failed for one reason
_QUOTED = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_QUARTERS = (0.25, 0.5, 0.75)
_MISSED_KEPT = 50  # missed fusions of a model that its numbers keep, the most frequent first


# The numbers of one record.


def numbers_of(record: Record) -> Numbers:
    """Return what the summary of many models keeps of a record."""
    match record:
        case Run():
            changed = [one for one in record.passes if one.rewrites]
            missed = [(name, group.reason, group.count) for name, group in refusals(record.passes)]
            return {
                "status": record.status,
                "family": None if record.fingerprint is None else record.fingerprint.family,
                **_read(RUN, record, "nodes", "bytes"),
                "opset": fmt.opset(record.result.opsets).removeprefix("opset "),
                **_of_verdict(record.verdict),
                **_read(RUN, record, "rolled_back"),
                "written": record.result.path is not None,
                **_read(RUN, record, "seconds"),
                "rewrites": {one.name: one.rewrites for one in changed},
                "nodes_by_pass": {one.name: one.nodes for one in changed},
                "missed": missed[:_MISSED_KEPT],
            }
        case Inspection():
            shapes = [port.shape or () for port in record.inputs]
            dims = dict.fromkeys(dim or "?" for shape in shapes for dim in shape if not isinstance(dim, int))
            return {
                "family": record.fingerprint.family.value,
                "architecture": family_name(record.fingerprint.family),
                "nodes": record.counts.nodes,
                "parameters": record.parameters,
                "bytes": record.file_bytes or record.counts.bytes,
                "opset": fmt.opset(record.opsets).removeprefix("opset "),
                "modules": len(record.modules),
                "dynamic": list(dims),
            }
        case Verdict():
            return {"accepted": record.accepted, **_of_verdict(record), "seconds": record.seconds}
        case Quantization():
            return {
                **_read(QUANTIZATION, record, "nodes", "bytes", "products"),
                "skipped": sum(group.count for group in record.skipped),
                "relative_l2": record.loss.relative_l2,
                "top1": record.loss.top1,
                **_read(QUANTIZATION, record, "seconds"),
            }
        case _:
            raise TypeError(f"{record.title} is not a result of a command about many models")


def _read(kind: RecordKind, record: Record, *names: str) -> Numbers:
    """Return measures of a record by name; those that have a number of the source as before and after."""
    numbers: Numbers = {}
    for reading in (kind[name].read(record) for name in names):
        name = reading.measure.name
        if reading.measure.whole:
            numbers |= {f"{name}_before": reading.whole, f"{name}_after": reading.value}
        else:
            numbers[name] = reading.value
    return numbers


def _of_verdict(verdict: Verdict | None) -> Numbers:
    return {
        "verification": "off" if verdict is None else "passed" if verdict.passed else "failed",
        "trials": 0 if verdict is None else len(verdict.trials),
        "max_abs": None if verdict is None else largest_difference(verdict),
        "tolerance_used": None if verdict is None else tolerance_used(verdict),
    }


# A table with a row for each model.


def fleet_sentence(fleet: Fleet) -> str:
    """Return how many models were done and how many failed, in one line."""
    rows = fleet.models
    gates = sum(row.code == GateNotMet.exit_code for row in rows)
    ended = Counter(row.status for row in rows)
    done = len(rows) - ended["failed"] - ended["not run"]
    earlier = f" ({fmt.count(ended['reused'])} by an earlier run)" if ended["reused"] else ""
    others = {"failed": ended["failed"], "did not meet a gate": gates, "not run": ended["not run"]}
    clauses = [f"{fmt.count(done)} {_VERBS[fleet.command].done}{earlier}"]
    clauses += (f"{fmt.count(number)} {what}" for what, number in others.items() if number)
    return f"{fmt.plural(len(rows), 'model')}: {', '.join(clauses)}"


def fleet_document(fleet: Fleet, *, where: str = "") -> doc.Document:
    """Return the answer of a command about many models: a row for each, or groups if there are more than fit.

    Args:
        fleet: the models.
        where: a line that says where the results are.
    """
    names: Sequence[Text] = [row.source for row in fleet.models]
    blocks: tuple[doc.Block, ...] = (_table(fleet.models, names, fleet),)
    if len(fleet.models) > MAX_ROWS:
        what = _VERBS[fleet.command].saves
        write = _sizes if what == "bytes" else _counts
        largest = ((row.source, write(row.numbers), _share(share)) for share, row in savings(fleet)[:_SAVINGS_SHOWN])
        saved = doc.table_section("Largest savings", ("model", what, "saved"), largest)
        blocks = (group_section(fleet), saved, failure_section(fleet))
    bad = any(row.code for row in fleet.models)
    sentence = Span(fleet_sentence(fleet), Tone.BAD if bad else Tone.STRONG)
    return doc.Document((*blocks, doc.Paragraph(where, Tone.FAINT)), sentence=sentence)


def _table(models: Sequence[ModelRow], names: Sequence[Text], fleet: Fleet) -> doc.Table:
    """Return a row for each model; one without a result has its status in the first column of text after its name."""
    columns = [column for column, _written in _VERBS[fleet.command].columns]
    rows: list[Row] = []
    for row, name in zip(models, names, strict=True):
        cells = ["·" if column.right else "" for column in columns]
        if row.has_result:
            file = next((each for each in row.files if each.endswith(".onnx")), None)
            result = "nothing written" if file is None else f"{(fleet.folder or '').rstrip('/')}/{file}"
            numbers = {**row.numbers, "result": result}
            cells = [written(numbers) for _column, written in _VERBS[fleet.command].columns]
        else:
            cells[cells.index("")] = row.status
        rows.append(Row((name, *cells), Tone.BAD if row.code else Tone.PLAIN))
    return doc.Table.of((text_column("model"), *columns), rows)


_Columns: TypeAlias = Sequence[tuple[Column, Callable[[Numbers], str]]]  # each with what writes its cells


class _Verb(Struct, frozen=True):
    """How the results of one command are shown."""

    done: str  # what happened to the models that did not fail, as a participle
    columns: _Columns  # after the name of the model
    saves: Literal["nodes", "bytes", ""] = ""


def _counts(of: Numbers) -> str:
    return fmt.counts(of["nodes_before"], of["nodes_after"])


def _sizes(of: Numbers) -> str:
    return fmt.sizes(of["bytes_before"], of["bytes_after"])


def _change(what: str) -> Callable[[Numbers], str]:
    return lambda of: fmt.percent(of[f"{what}_before"], of[f"{what}_after"])


def _percent(name: str, digits: str) -> Callable[[Numbers], str]:
    return lambda of: "·" if of[name] is None else f"{100 * of[name]:{digits}} %"


def _closeness(of: Numbers) -> str:
    return closeness(of["max_abs"], of.get("tolerance_used"), "") if of["verification"] == "passed" else "·"


_VERIFIED: _Columns = (
    (text_column("verification"), lambda of: "same outputs" if of["verification"] == "passed" else of["verification"]),
    (text_column("tolerance used", 1), _closeness),
)
_VERBS = {
    "optimize": _Verb(
        "optimized",
        (
            (Column("nodes"), _counts),
            (Column("change"), _change("nodes")),
            (Column("size", 2), _sizes),
            (Column("opset", 4), itemgetter("opset")),
            *_VERIFIED,
            (text_column("result", 3), itemgetter("result")),
        ),
        "nodes",
    ),
    "inspect": _Verb(
        "read",
        (
            (Column("nodes"), lambda of: fmt.count(of["nodes"])),
            (Column("parameters"), lambda of: fmt.count(of["parameters"])),
            (Column("file"), lambda of: fmt.size(of["bytes"])),
            (Column("opset"), itemgetter("opset")),
            (Column("modules", 2), lambda of: fmt.count(of["modules"])),
            (text_column("architecture (guess)"), itemgetter("architecture")),
            (text_column("dynamic", 1), lambda of: ", ".join(map(fmt.name, of["dynamic"])) or "·"),
        ),
    ),
    "verify": _Verb("compared", ((text_column("match"), lambda of: "yes" if of["accepted"] else "no"), *_VERIFIED)),
    "quantize": _Verb(
        "quantized",
        (
            (Column("size"), _sizes),
            (Column("change"), _change("bytes")),
            (Column("relative L2"), _percent("relative_l2", ".2g")),
            (Column("top-1"), _percent("top1", ".1f")),
            (text_column("result", 1), itemgetter("result")),
        ),
        "bytes",
    ),
}


# Groups of models, for tables that hold for thousands of them.


def savings(fleet: Fleet) -> list[tuple[float, ModelRow]]:
    """Return the share of nodes, or of bytes for `quantize`, that each model saves, the largest first."""
    what = _VERBS[fleet.command].saves
    shares = [
        (1 - row.numbers[f"{what}_after"] / row.numbers[f"{what}_before"], row)
        for row in fleet.models
        if what and row.numbers.get(f"{what}_before")
    ]
    return sorted(shares, key=lambda entry: (-entry[0], entry[1].name))


def status_table(fleet: Fleet) -> doc.Table:
    """Return how many models ended in which way, the time they took, and what they have and save together."""
    what = _VERBS[fleet.command].saves
    heading = ("models", "time", *((f"{what} before", f"{what} after", "change") if what else ()))
    rows: list[Row] = []
    for status in ("done", "reused", "failed", "not run"):
        if models := [row for row in fleet.models if row.status == status]:
            cells = (status, len(models), fmt.seconds(sum(row.seconds for row in models)), *_totals(models, what))
            rows.append(Row(cells, Tone.BAD if status == "failed" else Tone.PLAIN))
    return doc.Table.of((text_column("status"), *heading), rows)


def group_section(fleet: Fleet) -> doc.Section:
    """Return a row for each family, or for each folder if families are not known."""
    by_family = any(row.numbers.get("family") for row in fleet.models)

    def group(row: ModelRow) -> str:
        family: str | None = row.numbers.get("family")
        return (family or "not known").replace("-", " ") if by_family else row.name.rpartition("/")[0] or "."

    groups, shares = defaultdict[str, list[ModelRow]](list), defaultdict[str, list[float]](list)
    for row in fleet.models:
        groups[group(row)].append(row)
    for share, row in savings(fleet):
        shares[group(row)].append(share)
    what = _VERBS[fleet.command].saves
    heading = ("family (guess)" if by_family else "folder", "models", "failed", "time")
    heading += (f"{what} before", f"{what} after", "change", "median", "IQR") if what else ()
    rows: list[tuple[Text, ...]] = []
    for name, models in sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        failed, spent = sum(row.status == "failed" for row in models), fmt.seconds(sum(row.seconds for row in models))
        cells = (name, len(models), failed or "·", spent, *_totals(models, what))
        if what:
            saved = sorted(shares[name])
            low, middle, high = (_share(quantile(saved, at)) if saved else "·" for at in _QUARTERS)
            cells = (*cells, middle, f"{low} to {high}" if saved else "·")
        rows.append(cells)
    return doc.table_section("By family" if by_family else "By folder", heading, rows, most=_MAX_GROUPS)


def _totals(rows: Sequence[ModelRow], what: Literal["nodes", "bytes", ""]) -> tuple[str, ...]:
    """Return what models have before and after together, and the change; nothing for a command that saves nothing."""
    before, after = (sum(row.numbers.get(f"{what}_{when}", 0) for row in rows) for when in ("before", "after"))
    write = fmt.size if what == "bytes" else fmt.count
    return (write(before), write(after), fmt.percent(before, after) if before else "·") if what else ()


def _share(share: float) -> str:
    return f"{100 * share:.0f} %".replace("-", "−")


def quantile(ordered: Sequence[float], at: float) -> float:
    """Return a quantile of ordered numbers, between two of them if it falls there."""
    place = at * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def failure_groups(fleet: Fleet) -> list[tuple[str, list[ModelRow]]]:
    """Return the failures by reason, up to names and numbers, the most frequent first."""
    groups = defaultdict[str, list[ModelRow]](list)
    for row in fleet.models:
        if row.status == "failed":  # without what differs from model to model: its name, other names in quotes, numbers
            text = row.reason.replace(row.source, "MODEL").replace(row.name, "MODEL")
            groups[_NUMBER.sub("N", _QUOTED.sub("'…'", text))].append(row)
    return sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))


def failure_section(fleet: Fleet, most: int = 20) -> doc.Section:
    """Return the failures by reason, with the number of models and the first ones."""
    rows: list[tuple[Text, ...]] = []
    for reason, failed in failure_groups(fleet):
        more = f", and {len(failed) - _MODELS_NAMED} more" if len(failed) > _MODELS_NAMED else ""
        names = ", ".join(fmt.name(row.name) for row in failed[:_MODELS_NAMED])
        rows.append((fmt.one_line(reason if len(failed) > 1 else failed[0].reason), len(failed), names + more))
    columns = (text_column("reason", whole=True), "models", text_column("which"))
    rest = f"and {fmt.plural(len(rows) - most, 'other reason')}" if len(rows) > most else ""
    title = f"{fmt.plural(sum(row.status == 'failed' for row in fleet.models), 'model')} failed"
    return doc.table_section(Span(title, Tone.BAD), columns, rows, below=rest, most=most)


def pass_section(fleet: Fleet) -> doc.Section:
    """Return what each pass did in all models."""
    models, rewrites, nodes = Counter[str](), Counter[str](), Counter[str]()
    for row in fleet.models:
        counted: dict[str, int] = row.numbers.get("rewrites", {})
        models.update(counted.keys())
        rewrites.update(counted)
        nodes.update(row.numbers.get("nodes_by_pass", {}))
    names = sorted(rewrites, key=lambda name: (nodes[name], name))
    rows = ((name, models[name], rewrites[name], fmt.change(nodes[name])) for name in names)
    return doc.table_section("By pass", ("pass", "models", "rewrites", "nodes"), rows)


def missed_section(fleet: Fleet, most: int = 30) -> doc.Section:
    """Return the most frequent reasons for which a pass that nearly matched was not applied."""
    counts, models = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in fleet.models:
        missed: list[tuple[str, str, int]] = row.numbers.get("missed", [])
        for name, why, count in missed:
            counts[name, why] += count
            models[name, why] += 1
    ordered = sorted(counts.items(), key=lambda entry: (-models[entry[0]], -entry[1], entry[0]))
    rows = ((name, fmt.one_line(why), models[name, why], count) for (name, why), count in ordered)
    heading = ("pass", "skipped because", "models", "matches")
    return doc.table_section("Missed fusions", heading, rows, text_columns=2, most=most)


def memory_section(fleet: Fleet) -> doc.Section:
    """Return measured against estimated peak memory."""
    known = [row for row in fleet.models if row.peak and row.estimate]
    if not known:
        return doc.Section("Memory", ())
    ratios = sorted(row.peak / row.estimate for row in known)
    sizes = [sorted(row.peak for row in known), sorted(row.estimate for row in known)]
    quantiles = (("least", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("most", 1.0))
    rows = (
        (label, *(fmt.size(int(quantile(each, at))) for each in sizes), f"{quantile(ratios, at):.2f}")
        for label, at in quantiles
    )
    above = fmt.count(sum(ratio > 1 for ratio in ratios))
    below = f"{above} of {fmt.plural(len(known), 'model')} took more than estimated."
    return doc.table_section("Memory", ("quantile", "measured", "estimated", "ratio"), rows, below=below)


def sample_tables(fleet: Fleet, seed: int = 0) -> dict[str, doc.Table]:
    """Return some models with links to their records: those that save most and least, and others at random."""
    ordered = [row for _, row in savings(fleet)] or [row for row in fleet.models if row.has_result]
    if len(ordered) <= 3 * _MODELS_SHOWN:
        return {"All models": _linked(ordered, fleet)} if ordered else {}
    chosen = random.Random(seed).sample(ordered[_MODELS_SHOWN:-_MODELS_SHOWN], _MODELS_SHOWN)
    samples = {"Models at random": sorted(chosen, key=lambda row: row.name)}
    if _VERBS[fleet.command].saves:
        ends = {"Largest savings": ordered[:_MODELS_SHOWN], "Smallest savings": ordered[: -_MODELS_SHOWN - 1 : -1]}
        samples = ends | samples
    return {title: _linked(rows, fleet) for title, rows in samples.items()}


def _linked(rows: Sequence[ModelRow], fleet: Fleet) -> doc.Table:
    links = [quote(f"{row.name}.json") if f"{row.name}.json" in row.files else "" for row in rows]
    names = [Span(fmt.name(row.name), target=link) for row, link in zip(rows, links, strict=True)]
    return _table(rows, names, fleet)


# Tables for other tools: one row is one model, or one model and one pass.


def tables(fleet: Fleet) -> list[Entries]:
    """Return the tables of the summary; those of rewrites and missed fusions are only of `optimize`."""
    scalars = dict.fromkeys(
        name
        for row in fleet.models
        for name, value in row.numbers.items()
        if value is None or isinstance(value, (str, int, float))
    )
    fields = {"exit_code": "code", "peak_bytes": "peak", "estimated_bytes": "estimate"}  # named otherwise in the record
    own = ("name", "source", "status", "exit_code", "reason", "seconds", "peak_bytes", "estimated_bytes", "attempts")
    summary, failures, rewrites, missed = (list[Sequence[Any]]() for _ in range(4))
    for row in fleet.models:
        cells = [getattr(row, fields.get(name, name)) for name in own]
        machine = None if row.machine is None else fleet.machines[row.machine]
        summary.append((*cells, machine, *(row.numbers.get(name) for name in scalars)))
        if row.status == "failed":
            failures.append((row.name, row.source, row.code, row.reason, row.hint))
        model = (row.name, row.numbers.get("family"))
        for one, count in row.numbers.get("rewrites", {}).items():
            rewrites.append((*model, one, count, row.numbers["nodes_by_pass"][one]))
        missed += ((*model, *entry) for entry in row.numbers.get("missed", []))
    numbered = [f"model_{name}" if name in own else name for name in scalars]
    found = [
        Entries("summary", (*own, "machine", *numbered), summary),
        Entries("failures", ("name", "source", "exit_code", "reason", "hint"), failures),
        Entries("rewrites", ("name", "family", "pass", "rewrites", "nodes"), rewrites),
        Entries("missed", ("name", "family", "pass", "reason", "matches"), missed),
    ]
    return [table for table in found if table.rows or table.name in ("summary", "failures")]


class Entries(Struct, frozen=True):
    """A table of plain entries."""

    name: str  # of its files
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
