"""List the passes and what each rewrites.

Example:
  sardonyx passes
  sardonyx passes --json | jq -r '.[].name'

Shows each pass with its algebra, its accuracy (exact: bit-identical results; reassociates: rounding may differ;
approximates: a close approximation) and the targets it runs for. `optimize --only` and `--skip` take these names.
Passes marked * make a graph smaller but were measured to be slower: they run only with `optimize --fewest-nodes`.
Passes of other installed packages (entry-point group `sardonyx.passes`) are listed last, with the names of their
packages.
"""

from __future__ import annotations

import sys

import msgspec
from msgspec import Struct

from sardonyx.cli.console import put, put_json, style_for
from sardonyx.cli.options import JSON
from sardonyx.cli.verb import Given, Verb
from sardonyx.records.run import Accuracy
from sardonyx.reporting.document import Row, Table, text_column
from sardonyx.reporting.formatting import one_line, plural
from sardonyx.reporting.writers.terminal import table_lines


class PassEntry(Struct, frozen=True):
    """One pass as `passes --json` prints it."""

    name: str
    algebra: str
    accuracy: Accuracy
    targets: tuple[str, ...]
    slower: str  # the measurement, for a pass that runs on request only; otherwise empty
    package: str  # the package that defines it, with its version if it is not sardonyx


def _run(given: Given) -> int:
    from sardonyx.passes.installed import available, installed

    packages = {entry.rule.name: entry.package for entry in installed()}
    entries = [
        PassEntry(
            rule.name,
            one_line(rule.algebra),
            rule.accuracy,
            tuple(map(str, rule.targets)),
            rule.slower,
            packages.get(rule.name, "sardonyx"),
        )
        for rule in available()
    ]
    if given.as_json:
        put_json(msgspec.json.encode(entries))
        return 0
    style = style_for(sys.stdout)
    columns = (text_column("pass"), text_column("accuracy"), text_column("targets"), text_column("algebra"))
    lines = [
        Row((entry.name + "*" * bool(entry.slower), entry.accuracy.value, ", ".join(entry.targets), entry.algebra))
        for entry in entries
    ]
    others = [f"{name} comes from the package {package}" for name, package in packages.items()]
    count = plural(len(entries), "pass", "passes")
    put("\n".join([*table_lines(Table(columns, lines), style, indent=""), "", *map(one_line, others), count]) + "\n")
    return 0


VERB = Verb(
    options=(JSON,),
    run=_run,
)  # fmt: skip
