"""Show how two models differ, module by module.

Example:
  sardonyx compare model.onnx small.onnx
  sardonyx compare torchscript.onnx dynamo.onnx --depth 3
  sardonyx compare model.onnx small.onnx --json | jq '.moved[].after'

Lists operators that were added, removed, moved to another module, or got other attributes. Nodes are matched by name,
and the remaining ones by module, operator and order. Connections and weights are not compared: `sardonyx verify` checks
whether two models compute the same.

Exit: 0 done, 1 failed, 2 usage, 3 different with --exit-code, 4 gate not met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sardonyx.cli.options import DEPTH, PRINTING, argument, switch
from sardonyx.cli.verb import Given, Verb
from sardonyx.errors import VerificationFailed
from sardonyx.records.comparison import Comparison, OpRef, Pair, Side
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Column,
    Document,
    Facts,
    Row,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    table_section,
    text_column,
)
from sardonyx.reporting.module_rows import listed, module_cell, module_rows

_OPERATORS_SHOWN = 6  # operators of a list
_MODULES_SHOWN = 2
_MORE = "-v lists all of them, and the operators of both models"


def comparison_document(comparison: Comparison, view: View) -> Document:
    """Return the answer of `compare`: one screen, the modules first, or everything if verbose."""
    if not view.verbose:
        return Document(
            title=f"{comparison.before.name} → {comparison.after.name}",
            blocks=(_modules(comparison, view), _summary(comparison)),
            sentence=Span(comparison_sentence(comparison), Tone.STRONG),
        )
    return Document(
        title="Comparison",
        head=(Facts({"first": _side(comparison.before), "second": _side(comparison.after)}),),
        blocks=(
            _operators(comparison),
            _modules(comparison, view),
            _list(
                "Modules only in the first", ("module",), [[formatting.name(path)] for path in comparison.only_before]
            ),
            _list(
                "Modules only in the second", ("module",), [[formatting.name(path)] for path in comparison.only_after]
            ),
            _nodes("Removed", comparison.removed),
            _nodes("Added", comparison.added),
            _pairs("Moved", comparison.moved),
            _pairs("Changed", comparison.changed),
        ),
        sentence=Span(comparison_sentence(comparison), Tone.STRONG),
    )


def _summary(comparison: Comparison) -> Facts:
    """Return each list in a line: the operators of removed, added, moved and changed nodes, and lone modules."""
    nodes = {
        "removed": comparison.removed,
        "added": comparison.added,
        "moved": tuple(pair.after for pair in comparison.moved),
        "changed": tuple(pair.after for pair in comparison.changed),
    }
    facts: dict[str, Text] = {}
    for word, ops in nodes.items():
        counted = Counter(formatting.name(op.op_type) for op in ops).most_common()
        facts[word] = listed([f"{name} {formatting.count(number)}" for name, number in counted], _OPERATORS_SHOWN)
    for title, paths in (("only in the first", comparison.only_before), ("only in the second", comparison.only_after)):
        facts[title] = listed(list(map(formatting.module, paths)), _MODULES_SHOWN)
    return Facts({label: text for label, text in facts.items() if text} | ({} if comparison.same else {"nodes": _MORE}))


def comparison_sentence(comparison: Comparison) -> str:
    """Return the difference in one line."""
    before, after = comparison.before.nodes, comparison.after.nodes
    if comparison.same:
        return f"{formatting.plural(after, 'node')} in both: the same operators in the same modules"
    changes = ("removed", "added", "moved", "changed")
    counts = ", ".join(f"{formatting.count(len(getattr(comparison, word)))} {word}" for word in changes)
    return f"{formatting.count(before)} → {formatting.count(after)} nodes: {counts}"


def _side(side: Side) -> str:
    constants = formatting.plural(side.constants, "constant")
    initializers = formatting.plural(side.initializers, "initializer")
    nodes = f"{formatting.plural(side.nodes, 'node')} (plus {constants}), {initializers}"
    wrapper = f"; everything is in {formatting.name(side.wrapper)}, which is left out below" if side.wrapper else ""
    return f"{side.name}: {nodes}{wrapper}"


def _operators(comparison: Comparison) -> Section:
    rows = [
        (
            formatting.name(op.op_type),
            *map(formatting.count, (op.before, op.after)),
            formatting.change(op.after - op.before),
        )
        for op in comparison.ops
    ]
    return table_section("Operators", ("operator", "first", "second", "change"), rows)


def _modules(comparison: Comparison, view: View) -> Section:
    headings = {"first": 0, "second": 0, "removed": 0, "added": 0, "moved here": 2, "changed": 3}  # what is cut first
    modules = [(m.path, m.tag, (m.before, m.after, m.removed, m.added, m.moved, m.changed)) for m in comparison.modules]
    rows = [
        Row(
            (
                module_cell(row),
                *map(formatting.count, row.total[:2]),
                *(formatting.count(number) if number else "·" for number in row.total[2:]),
                formatting.name(row.branch.tag),
            )
        )
        for row in module_rows(modules, view)
    ]
    counts = (Column(heading, detail=detail) for heading, detail in headings.items())
    columns = (text_column("module"), *counts, text_column("kind", detail=1))
    return Section("Modules", (Table(columns, rows),))


def _nodes(title: str, nodes: Iterable[OpRef]) -> Section:
    rows = [(formatting.name(op.op_type), formatting.module(op.module), formatting.name(op.name)) for op in nodes]
    return _list(title, ("operator", "module", "node"), rows)


def _pairs(title: str, pairs: Iterable[Pair]) -> Section:
    rows = [
        (
            formatting.name(pair.after.op_type),
            _from_to(formatting.module(pair.before.module), formatting.module(pair.after.module)),
            _from_to(formatting.name(pair.before.name), formatting.name(pair.after.name)),
            "; ".join(pair.what),
        )
        for pair in pairs
    ]
    return _list(title, ("operator", "module", "node", "what"), rows)


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _list(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Section:
    return table_section(f"{title} ({formatting.count(len(rows))})", headings, rows, text_columns=len(headings))


def _run(given: Given) -> int:
    given.check()
    comparison = given.call()
    differs = given.exit_code and not comparison.same
    return given.finish(comparison) or (VerificationFailed.exit_code if differs else 0)


VERB = Verb(
    of=("compare",),
    options=(
        argument("first", "FIRST", "An ONNX file.", Path, checked=True),
        argument("second", "SECOND", "An ONNX file.", Path, checked=True),
        DEPTH,
        switch("exit_code", "Exit with 3 if the two differ."),
        *PRINTING,
    ),
    record="comparison",
    document=comparison_document,
    sentence=comparison_sentence,
    run=_run,
)  # fmt: skip
