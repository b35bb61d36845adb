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
Those marked * make a graph smaller but measured slower: they run with `optimize --fewest-nodes` alone.
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """One pass as `passes --json` prints it."""

    name: str
    algebra: str
    accuracy: Accuracy
    targets: tuple[str, ...]
    slower: str  # what was measured, of those that run on request only


def passes(as_json: options.Json = False, debug: options.Debug = False) -> int:
    """Show the table of passes."""
    from sardonyx.passes import ALL

    known = [
        Listed(one.name, one_line(one.algebra), one.accuracy, tuple(map(str, one.targets)), one.slower) for one in ALL
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
    put("\n".join([*table(columns, lines, style, indent=""), "", plural(len(known), "pass", "passes")]) + "\n")
    return 0
