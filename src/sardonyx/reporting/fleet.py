"""Many models as one view: the numbers of each record, and a table with a row for each, or of groups of them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from sardonyx.common.errors import GateNotMet
from sardonyx.records.base import Record
from sardonyx.records.inspection import Inspection
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import Run, Verdict
from sardonyx.records.study import Fleet, ModelRow
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Column,
    Document,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Tone,
    table_section,
    text_column,
)
from sardonyx.reporting.inspection import family_name
from sardonyx.reporting.measures import RecordKind
from sardonyx.reporting.record_kinds import QUANTIZATION, RUN
from sardonyx.reporting.verdict import closeness, largest_difference, tolerance_used

Numbers = dict[str, Any]
MOST_ROWS = 40  # models with a row of their own on a terminal
_MOST_GROUPS = 40
_LARGEST = 10
_SAMPLE = 25  # models of each kind on the page
_NAMES = 3  # of models that failed for one reason
_QUOTED = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MISSED = 50  # missed fusions of a model that its numbers keep, the most frequent first


# The numbers of one record.


def numbers_of(record: Record) -> Numbers:
    """Return what the summary of many models keeps of a record."""
    match record:
        case Run():
            return _of_run(record)
        case Inspection():
            return _of_inspection(record)
        case Verdict():
            return {"accepted": record.accepted, **_of_verdict(record), "seconds": record.seconds}
        case Quantization():
            return _of_quantization(record)
        case _:
            raise TypeError(f"{record.title} is not a result of a command about many models")


def _read(kind: RecordKind, record: Record, *names: str) -> Numbers:
    """Return measures of a record by name; those that have a number of the source as before and after."""
    numbers: Numbers = {}
    for reading in (kind[name].read(record) for name in names):
        name = reading.measure.name
        if reading.measure.whole is not None:
            numbers |= {f"{name}_before": reading.whole, f"{name}_after": reading.value}
        else:
            numbers[name] = reading.value
    return numbers


def _of_run(run: Run) -> Numbers:
    missed = sorted(
        ((one.name, group.reason, group.count) for one in run.passes for group in one.refusals),
        key=lambda entry: -entry[2],
    )
    return {
        "status": run.status,
        "family": None if run.fingerprint is None else run.fingerprint.family,
        **_read(RUN, run, "nodes", "bytes"),
        "opset": formatting.opset(run.result.opsets).removeprefix("opset "),
        **_of_verdict(run.verdict),
        **_read(RUN, run, "rolled_back"),
        "written": run.result.path is not None,
        **_read(RUN, run, "seconds"),
        "rewrites": {one.name: one.rewrites for one in run.passes if one.rewrites},
        "nodes_by_pass": {one.name: one.nodes for one in run.passes if one.rewrites},
        "missed": missed[:_MISSED],
    }


def _of_verdict(verdict: Verdict | None) -> Numbers:
    return {
        "verification": "off" if verdict is None else "passed" if verdict.passed else "failed",
        "trials": 0 if verdict is None else len(verdict.trials),
        "max_abs": None if verdict is None else largest_difference(verdict),
        "tolerance_used": None if verdict is None else tolerance_used(verdict),
    }


def _of_inspection(inspection: Inspection) -> Numbers:
    dims = dict.fromkeys(
        dim or "?" for port in inspection.inputs for dim in port.shape or () if not isinstance(dim, int)
    )
    return {
        "family": inspection.fingerprint.family.value,
        "architecture": family_name(inspection.fingerprint.family),
        "nodes": inspection.counts.nodes,
        "parameters": inspection.parameters,
        "bytes": inspection.file_bytes or inspection.counts.bytes,
        "opset": formatting.opset(inspection.opsets).removeprefix("opset "),
        "modules": len(inspection.modules),
        "dynamic": list(dims),
    }


def _of_quantization(result: Quantization) -> Numbers:
    return {
        **_read(QUANTIZATION, result, "nodes", "bytes", "products"),
        "skipped": sum(group.count for group in result.skipped),
        "relative_l2": result.loss.relative_l2,
        "top1": result.loss.top1,
        **_read(QUANTIZATION, result, "seconds"),
    }


# A table with a row for each model.


def fleet_sentence(fleet: Fleet) -> str:
    """Return how many models were done and how many failed, in one line."""
    rows = fleet.models
    gates = sum(row.code == GateNotMet.exit_code for row in rows)
    unrun = sum(row.status == "not run" for row in rows)
    failed = sum(row.status == "failed" for row in rows)
    reused = sum(row.status == "reused" for row in rows)
    done = len(rows) - failed - unrun
    earlier = f" ({formatting.count(reused)} by an earlier run)" if reused else ""
    clauses = [f"{formatting.count(done)} {_VERBS[fleet.command].done}{earlier}"]
    clauses += [f"{formatting.count(failed)} failed"] if failed else []
    clauses += [f"{formatting.count(gates)} did not meet a gate"] if gates else []
    clauses += [f"{formatting.count(unrun)} not run"] if unrun else []
    return f"{formatting.plural(len(rows), 'model')}: {', '.join(clauses)}"


def fleet_document(fleet: Fleet, *, where: str = "") -> Document:
    """Return the answer of a command about many models: a row for each, or groups if there are more than fit.

    Args:
        fleet: the models.
        where: a line that says where the results are.
    """
    blocks = _grouped(fleet) if len(fleet.models) > MOST_ROWS else (_model_table(fleet),)
    bad = any(row.code for row in fleet.models)
    sentence = Span(fleet_sentence(fleet), Tone.BAD if bad else Tone.STRONG)
    return Document((*blocks, Paragraph(where, Tone.FAINT)), sentence=sentence)


def _model_table(fleet: Fleet) -> Table:
    verb = _VERBS[fleet.command]
    columns = (text_column("model"), *verb.columns)
    return Table(columns, [Row((row.source, *_cells(row, fleet)), _tone(row)) for row in fleet.models])


def _cells(row: ModelRow, fleet: Fleet) -> Sequence[str]:
    verb = _VERBS[fleet.command]
    return verb.cells(row, fleet) if row.has_result else _failed(verb.columns, row)


def _tone(row: ModelRow) -> Tone:
    return Tone.BAD if row.code else Tone.PLAIN


def _failed(columns: Sequence[Column], row: ModelRow) -> list[str]:
    """Return the cells of a model without a result: dots, and the status in the first column of text after its name."""
    cells = ["·" if column.right else "" for column in columns]
    cells[cells.index("")] = row.status
    return cells


class _Verb(Struct, frozen=True):
    """How the results of one command are shown."""

    done: str  # what happened to the models that did not fail, as a participle
    columns: Sequence[Column]  # after the name of the model
    cells: Callable[[ModelRow, Fleet], tuple[str, ...]]
    saves: str = ""  # "nodes" or "bytes"

    def change(self, row: ModelRow) -> str:
        """Return what a model had before and after."""
        write = formatting.size if self.saves == "bytes" else formatting.count
        return formatting.from_to(write(row.numbers[f"{self.saves}_before"]), write(row.numbers[f"{self.saves}_after"]))


def _run_cells(row: ModelRow, fleet: Fleet) -> tuple[str, ...]:
    numbers = row.numbers
    before, after = numbers["nodes_before"], numbers["nodes_after"]
    return (
        formatting.from_to(formatting.count(before), formatting.count(after)),
        formatting.percent(before, after),
        _size(numbers),
        numbers["opset"],
        *_verified(numbers),
        _written(row, fleet),
    )


def _size(numbers: Mapping[str, Any]) -> str:
    return formatting.from_to(formatting.size(numbers["bytes_before"]), formatting.size(numbers["bytes_after"]))


_VERIFIED = (text_column("verification"), text_column("tolerance used", detail=1))


def _verified(numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Return the cells of the columns above."""
    if numbers["verification"] != "passed":
        return numbers["verification"], "·"
    return "same outputs", closeness(numbers["max_abs"], numbers.get("tolerance_used"), "")


def _written(row: ModelRow, fleet: Fleet) -> str:
    model = next((name for name in row.files if name.endswith(".onnx")), None)
    return "nothing written" if model is None else f"{(fleet.folder or '').rstrip('/')}/{model}"


def _inspection_cells(row: ModelRow, _fleet: Fleet) -> tuple[str, ...]:
    numbers = row.numbers
    return (
        formatting.count(numbers["nodes"]),
        formatting.count(numbers["parameters"]),
        formatting.size(numbers["bytes"]),
        numbers["opset"],
        formatting.count(numbers["modules"]),
        numbers["architecture"],
        ", ".join(map(formatting.name, numbers["dynamic"])) or "·",
    )


def _verdict_cells(row: ModelRow, _fleet: Fleet) -> tuple[str, ...]:
    return ("yes" if row.numbers["accepted"] else "no", *_verified(row.numbers))


def _quantization_cells(row: ModelRow, fleet: Fleet) -> tuple[str, ...]:
    numbers = row.numbers
    top1 = numbers["top1"]
    return (
        _size(numbers),
        formatting.percent(numbers["bytes_before"], numbers["bytes_after"]),
        "·" if numbers["relative_l2"] is None else f"{100 * numbers['relative_l2']:.2g} %",
        "·" if top1 is None else f"{100 * top1:.1f} %",
        _written(row, fleet),
    )


_VERBS = {
    "optimize": _Verb(
        "optimized",
        (
            Column("nodes"),
            Column("change"),
            Column("size", detail=2),
            Column("opset", detail=4),
            *_VERIFIED,
            text_column("result", detail=3),
        ),
        _run_cells,
        saves="nodes",
    ),
    "inspect": _Verb(
        "read",
        (
            Column("nodes"),
            Column("parameters"),
            Column("file"),
            Column("opset"),
            Column("modules", detail=2),
            text_column("architecture (guess)"),
            text_column("dynamic", detail=1),
        ),
        _inspection_cells,
    ),
    "verify": _Verb("compared", (text_column("match"), *_VERIFIED), _verdict_cells),
    "quantize": _Verb(
        "quantized",
        (
            Column("size"),
            Column("change"),
            Column("relative L2"),
            Column("top-1"),
            text_column("result", detail=1),
        ),
        _quantization_cells,
        saves="bytes",
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


def status_table(fleet: Fleet) -> Table:
    """Return how many models ended in which way, the time they took, and what they have and save together."""
    what = _VERBS[fleet.command].saves
    heading = ("status", "models", "time", *((f"{what} before", f"{what} after", "change") if what else ()))
    rows: list[Row] = []
    for status in ("done", "reused", "failed", "not run"):
        models = [row for row in fleet.models if row.status == status]
        spent = formatting.seconds(sum(row.seconds for row in models))
        cells = (status, formatting.count(len(models)), spent, *(_totals(models, what) if what else ()))
        rows += [Row(cells, Tone.BAD if status == "failed" else Tone.PLAIN)] if models else []
    return Table([Column(name, right=place > 0) for place, name in enumerate(heading)], rows)


def group_section(fleet: Fleet) -> Section:
    """Return a row for each family, or for each folder if families are not known."""
    by_family = any(row.numbers.get("family") for row in fleet.models)
    groups: dict[str, list[ModelRow]] = {}
    for row in fleet.models:
        groups.setdefault(_group(row, by_family=by_family), []).append(row)
    what = _VERBS[fleet.command].saves
    heading = ("family (guess)" if by_family else "folder", "models", "failed", "time")
    heading += (f"{what} before", f"{what} after", "change", "median", "IQR") if what else ()
    shares = dict[str, list[float]]()
    for share, row in savings(fleet):
        shares.setdefault(_group(row, by_family=by_family), []).append(share)
    rows = [
        (name, *_group_cells(rows), *(_saving_cells(rows, shares.get(name, []), what) if what else ()))
        for name, rows in sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    ]
    return table_section("By family" if by_family else "By folder", heading, rows, most=_MOST_GROUPS)


def _group(row: ModelRow, *, by_family: bool) -> str:
    if by_family:
        family: str | None = row.numbers.get("family")
        return family.replace("-", " ") if family else "not known"
    return row.name.rpartition("/")[0] or "."


def _group_cells(rows: Sequence[ModelRow]) -> tuple[str, ...]:
    failed = sum(row.status == "failed" for row in rows)
    spent = formatting.seconds(sum(row.seconds for row in rows))
    return formatting.count(len(rows)), formatting.count(failed) if failed else "·", spent


def _saving_cells(rows: Sequence[ModelRow], shares: Sequence[float], what: str) -> tuple[str, ...]:
    if not shares:
        return (*_totals(rows, what), "·", "·")
    low, middle, high = (quantile(sorted(shares), at) for at in (0.25, 0.5, 0.75))
    return (*_totals(rows, what), _share(middle), f"{_share(low)} to {_share(high)}")


def _totals(rows: Sequence[ModelRow], what: str) -> tuple[str, str, str]:
    """Return the nodes or bytes of all models before and after, and the change."""
    before, after = (sum(row.numbers.get(f"{what}_{when}", 0) for row in rows) for when in ("before", "after"))
    write = formatting.size if what == "bytes" else formatting.count
    return write(before), write(after), formatting.percent(before, after) if before else "·"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %".replace("-", "−")


def quantile(ordered: Sequence[float], at: float) -> float:
    """Return a quantile of ordered numbers, between two of them if it falls there."""
    place = at * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


class FailureGroup(Struct, frozen=True):
    """Models that failed for the same reason, up to names and numbers."""

    reason: str
    rows: tuple[ModelRow, ...]


def failure_groups(fleet: Fleet) -> list[FailureGroup]:
    """Return the failures by reason, the most frequent first."""
    groups: dict[str, list[ModelRow]] = {}
    for row in fleet.models:
        if row.status == "failed":
            groups.setdefault(_plain_reason(row), []).append(row)
    ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return [FailureGroup(reason, tuple(rows)) for reason, rows in ordered]


def _plain_reason(row: ModelRow) -> str:
    """Return a reason without what differs from model to model: its name, other names in quotes, and numbers."""
    text = row.reason
    for name in (row.source, row.name):
        text = text.replace(name, "MODEL")
    return _NUMBER.sub("N", _QUOTED.sub("'…'", text))


def failure_section(fleet: Fleet, most: int = 20) -> Section:
    """Return the failures by reason, with the number of models and the first ones."""
    rows = [
        (
            formatting.one_line(group.reason if len(group.rows) > 1 else next(iter(group.rows)).reason),
            formatting.count(len(group.rows)),
            _some_names(group.rows),
        )
        for group in failure_groups(fleet)
    ]
    columns = (Column("reason", right=False, whole=True), Column("models"), text_column("which"))
    table = Table(columns, [Row(cells) for cells in rows[:most]])
    rest = f"and {formatting.plural(len(rows) - most, 'other reason')}" if len(rows) > most else ""
    failed = sum(row.status == "failed" for row in fleet.models)
    title = f"{formatting.plural(failed, 'model')} failed"
    return Section(Span(title, Tone.BAD), (table, Paragraph(rest, Tone.FAINT)) if rows else ())


def _some_names(rows: Sequence[ModelRow]) -> str:
    rest = len(rows) - _NAMES
    return ", ".join(formatting.name(row.name) for row in rows[:_NAMES]) + (f", and {rest} more" if rest > 0 else "")


def pass_section(fleet: Fleet) -> Section:
    """Return what each pass did in all models."""
    models, rewrites, nodes = Counter[str](), Counter[str](), Counter[str]()
    for row in fleet.models:
        counted: dict[str, int] = row.numbers.get("rewrites", {})
        models.update(counted.keys())
        rewrites.update(counted)
        nodes.update(row.numbers.get("nodes_by_pass", {}))
    rows = [
        (name, formatting.count(models[name]), formatting.count(rewrites[name]), formatting.change(nodes[name]))
        for name in sorted(rewrites, key=lambda name: (nodes[name], name))
    ]
    return table_section("By pass", ("pass", "models", "rewrites", "nodes"), rows)


def missed_section(fleet: Fleet, most: int = 30) -> Section:
    """Return the most frequent reasons for which a pass that nearly matched was not applied."""
    counts, models = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in fleet.models:
        missed: list[tuple[str, str, int]] = row.numbers.get("missed", [])
        for name, why, count in missed:
            counts[name, why] += count
            models[name, why] += 1
    rows = [
        (name, formatting.one_line(why), formatting.count(models[name, why]), formatting.count(count))
        for (name, why), count in sorted(counts.items(), key=lambda entry: (-models[entry[0]], -entry[1], entry[0]))
    ]
    heading = ("pass", "skipped because", "models", "matches")
    return table_section("Missed fusions", heading, rows, text_columns=2, most=most)


def memory_section(fleet: Fleet) -> Section:
    """Return measured against estimated peak memory."""
    known = [row for row in fleet.models if row.peak and row.estimate]
    ratios = sorted(row.peak / row.estimate for row in known)
    if not known:
        return Section("Memory", ())
    peaks = sorted(row.peak for row in known)
    estimates = sorted(row.estimate for row in known)
    rows = [
        (
            label,
            formatting.size(int(quantile(peaks, at))),
            formatting.size(int(quantile(estimates, at))),
            f"{quantile(ratios, at):.2f}",
        )
        for label, at in (("least", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("most", 1.0))
    ]
    above = sum(ratio > 1 for ratio in ratios)
    below = f"{formatting.count(above)} of {formatting.plural(len(known), 'model')} took more than estimated."
    return table_section("Memory", ("quantile", "measured", "estimated", "ratio"), rows, below=below)


def _grouped(fleet: Fleet) -> tuple[Section, ...]:
    verb = _VERBS[fleet.command]
    largest = [(row.source, verb.change(row), _share(share)) for share, row in savings(fleet)[:_LARGEST]]
    heading = ("model", verb.saves, "saved")
    return group_section(fleet), table_section("Largest savings", heading, largest), failure_section(fleet)


def sample_tables(fleet: Fleet, seed: int = 0) -> dict[str, Table]:
    """Return some models with links to their records: those that save most and least, and others at random."""
    ordered = [row for _, row in savings(fleet)] or [row for row in fleet.models if row.has_result]
    if len(ordered) <= 3 * _SAMPLE:
        return {"All models": _linked(ordered, fleet)} if ordered else {}
    chosen = random.Random(seed).sample(ordered[_SAMPLE:-_SAMPLE], _SAMPLE)
    others = sorted(chosen, key=lambda row: row.name)
    if not _VERBS[fleet.command].saves:
        return {"Models at random": _linked(others, fleet)}
    return {
        "Largest savings": _linked(ordered[:_SAMPLE], fleet),
        "Smallest savings": _linked(ordered[: -_SAMPLE - 1 : -1], fleet),
        "Models at random": _linked(others, fleet),
    }


def _linked(rows: Sequence[ModelRow], fleet: Fleet) -> Table:
    verb = _VERBS[fleet.command]
    return Table(
        (text_column("model"), *verb.columns),
        [Row((_link(row), *map(formatting.visible, verb.cells(row, fleet))), _tone(row)) for row in rows],
    )


def _link(row: ModelRow) -> Span:
    """Return the name of a model with a link to its record."""
    record = f"{row.name}.json"
    return Span(formatting.name(row.name), target=quote(record) if record in row.files else "")


# Tables for other tools: one row is one model, or one model and one pass.


def tables(fleet: Fleet) -> list[Entries]:
    """Return the tables of the summary; those of rewrites and missed fusions are only of `optimize`."""
    scalars = dict.fromkeys(
        name
        for row in fleet.models
        for name, value in row.numbers.items()
        if value is None or isinstance(value, (str, int, float))
    )
    own = ("name", "source", "status", "exit_code", "reason", "seconds", "peak_bytes", "estimated_bytes", "attempts")
    summary = [
        (
            *(
                row.name,
                row.source,
                row.status,
                row.code,
                row.reason,
                row.seconds,
                row.peak,
                row.estimate,
                row.attempts,
            ),
            None if row.machine is None else fleet.machines[row.machine],
            *(row.numbers.get(name) for name in scalars),
        )
        for row in fleet.models
    ]
    numbered = [f"model_{name}" if name in own else name for name in scalars]
    found = [Entries("summary", (*own, "machine", *numbered), summary)]
    failures = [
        (row.name, row.source, row.code, row.reason, row.hint) for row in fleet.models if row.status == "failed"
    ]
    found.append(Entries("failures", ("name", "source", "exit_code", "reason", "hint"), failures))
    rewrites = [
        (row.name, row.numbers.get("family"), one, count, row.numbers["nodes_by_pass"][one])
        for row in fleet.models
        for one, count in row.numbers.get("rewrites", {}).items()
    ]
    missed = [
        (row.name, row.numbers.get("family"), *entry) for row in fleet.models for entry in row.numbers.get("missed", [])
    ]
    found.append(Entries("rewrites", ("name", "family", "pass", "rewrites", "nodes"), rewrites))
    found.append(Entries("missed", ("name", "family", "pass", "reason", "matches"), missed))
    return [table for table in found if table.rows or table.name in ("summary", "failures")]


class Entries(Struct, frozen=True):
    """A table of plain entries."""

    name: str  # of its files
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
