"""A Profile as Markdown for a page and as CSV for a spreadsheet; the numbers are the record's, unrounded in CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from sardonyx.records.profile import Profile, ProfiledModel
from sardonyx.reporting import formatting, markdown
from sardonyx.reporting.module_rows import module_label
from sardonyx.reporting.options import View
from sardonyx.reporting.profile import (
    change,
    headings,
    hottest,
    kinds,
    measured,
    module_lines,
    ms,
    operator_lines,
    profile_sentence,
    remarks,
    share,
)

KERNELS_SHOWN = 10
FIELDS = (
    "file", "scope", "name", "kind", "module", "self_ms", "total_ms", "share", "kernels", "calls", "traced_by", "nodes",
)  # fmt: skip


def profile_markdown(found: Profile, view: View | None = None) -> str:
    """One page: how it was measured, the modules and operators side by side, and the hottest kernels."""
    title = " → ".join(model.label for model in found.models)
    facts = [f"- {label}: {markdown.escaped(text)}" for label, text in measured(found).items()]
    blocks = [
        f"# {markdown.escaped(title)}",
        profile_sentence(found) + ".",
        "\n".join(facts),
        "## Modules, milliseconds a run",
        _modules(found, view or View()),
        "## Operators, milliseconds a run",
        _operators(found),
        "## Hottest kernels",
        _kernels(found),
        "\n".join(f"- {markdown.escaped(note)}" for note in remarks(found)),
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _modules(found: Profile, view: View) -> str:
    lines = [
        [
            _indented(module_label(line.row)),
            line.row.branch.tag,
            *_side_by_side([each.total_ms for each in line.times]),
            ms(line.times[-1].self_ms),
            share(line.times[-1].share),
        ]
        for line in module_lines(found, view)
    ]
    heads = ["module", "kind", *headings(found.models), "self", "share"]
    return markdown.table(heads, lines, right=[False, False, *[True] * len(heads)])


def _indented(label: str) -> str:
    """Spaces at the beginning of a cell are not shown, so that dots stand for them."""
    name = label.lstrip(" ")
    return "· " * ((len(label) - len(name)) // 2) + name


def _operators(found: Profile) -> str:
    lines = [
        [line.op_type, *_side_by_side([spent for _, spent in line.spent])] for line in operator_lines(found.models)
    ]
    heads = ["operator", *headings(found.models)]
    return markdown.table(heads, lines, right=[False, *[True] * len(heads)])


def _side_by_side(values: Sequence[float]) -> list[str]:
    return [ms(values[0]), *(cell for value in values[1:] for cell in (ms(value), change(values[0], value)))]


def _kernels(found: Profile) -> str:
    lines = [
        [
            model.label,
            kernel.name,
            kernel.op_type,
            "not attributed" if kernel.owner is None else kernel.owner or "(model)",
            ms(kernel.milliseconds),
        ]
        for model in found.models
        for kernel in hottest(model, KERNELS_SHOWN)
    ]
    return markdown.table(["file", "kernel", "operator", "module", "ms"], lines, right=[False] * 4 + [True])


def profile_csv(found: Profile) -> str:
    """One line for each file, for each module of it and for each kernel; every number in full."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(FIELDS)
    for model in found.models:
        writer.writerows([line.get(field, "") for field in FIELDS] for line in _lines(model))
    return stream.getvalue()


def _lines(model: ProfiledModel) -> list[dict[str, object]]:
    file = formatting.visible(model.label)
    whole: dict[str, object] = {
        "file": file, "scope": "model", "total_ms": model.kernel_ms, "self_ms": model.kernel_ms, "share": 1.0,
        "kernels": len(model.kernels), "calls": sum(kernel.calls for kernel in model.kernels), "nodes": model.nodes,
    }  # fmt: skip
    classes = kinds(model)
    modules: list[dict[str, object]] = [
        {
            "file": file, "scope": "module", "name": each.path, "kind": classes[each.path], "module": each.path,
            "self_ms": each.self_ms, "total_ms": each.total_ms, "share": each.share, "kernels": each.kernels,
            "calls": each.calls,
        }
        for each in model.modules
    ]  # fmt: skip
    kernels: list[dict[str, object]] = [
        {
            "file": file, "scope": "kernel", "name": each.name, "kind": each.op_type, "module": each.owner,
            "self_ms": each.milliseconds, "total_ms": each.milliseconds,
            "share": each.milliseconds / model.kernel_ms if model.kernel_ms else 0.0, "kernels": 1,
            "calls": each.calls, "traced_by": each.traced_by.value, "nodes": " ".join(each.nodes),
        }
        for each in model.kernels
    ]  # fmt: skip
    return [whole, *modules, *kernels]
