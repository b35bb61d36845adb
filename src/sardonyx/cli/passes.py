"""`sardonyx passes`: what can be applied."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import msgspec

from sardonyx.cli import options
from sardonyx.cli.console import put, put_json, style_for
from sardonyx.records.run import Accuracy
from sardonyx.reporting.formatting import one_line, plural
from sardonyx.reporting.table import Line, table, text_column

SUMMARY = "List the passes: what each turns into what."
HELP = """\b
Example:
  sardonyx passes
  sardonyx passes --json | jq -r '.[].name'

Each pass with its algebra, what it may do to the numbers (exact: bit for bit the same; reassociates: other rounding;
approximates: a close function) and the targets it runs for. The names are those of `optimize --only` and `--skip`.
Those marked * make a graph smaller but measured slower: they run with `optimize --fewest-nodes` alone. Passes of other
installed packages (entry-point group `sardonyx.passes`) are listed last, with the names of their packages.
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """One pass as `passes --json` prints it."""

    name: str
    algebra: str
    accuracy: Accuracy
    targets: tuple[str, ...]
    slower: str  # what was measured, of those that run on request only
    package: str  # where it comes from, with its version where that is another package


def passes(as_json: options.Json = False, debug: options.Debug = False) -> int:
    """Show the table of passes."""
    from sardonyx.passes.installed import available, installed

    packages = {each.rule.name: each.package for each in installed()}
    known = [
        Listed(
            one.name,
            one_line(one.algebra),
            one.accuracy,
            tuple(map(str, one.targets)),
            one.slower,
            packages.get(one.name, "sardonyx"),
        )
        for one in available()
    ]
    if as_json:
        put_json(msgspec.json.encode(known))
        return 0
    style = style_for(sys.stdout)
    columns = (text_column("pass"), text_column("accuracy"), text_column("targets"), text_column("algebra"))
    lines = [
        Line((one.name + "*" * bool(one.slower), one.accuracy.value, ", ".join(one.targets), one.algebra))
        for one in known
    ]
    others = [f"{name} is of the package {package}" for name, package in packages.items()]
    count = plural(len(known), "pass", "passes")
    put("\n".join([*table(columns, lines, style, indent=""), "", *map(one_line, others), count]) + "\n")
    return 0
