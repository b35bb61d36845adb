"""`sardonyx adopt`: tags for a file that another tool wrote."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put, put_json, style_for
from sardonyx.report import words

if TYPE_CHECKING:
    from sardonyx.graph.adoption import Adoption
    from sardonyx.report.words import Style

SUMMARY = "Tag a model that another tool exported or changed."
HELP = """\b
Example:
  sardonyx adopt foreign.onnx -o tagged.onnx
  sardonyx adopt foreign.onnx --json | jq .coverage
  sardonyx adopt foreign.onnx -o tagged.onnx --tag-attributes

Every node gets the module it comes from: from torch's own metadata, from scoped names such as
/encoder/layer.0/attention/self/MatMul, or from __ attributes that another tool kept. What says nothing itself inherits
from what it feeds, else from what feeds it. Without --output it is only told what would be found.

Exit: 0 done, 1 failed, 2 usage.
"""

_SHOWN = 10  # nodes without a module that are listed

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write. [default: nothing is written]")
]


def adopt(
    model: options.Model,
    output: Output = None,
    tag_attributes: options.TagAttributes = False,
    force: options.Force = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb and show its Adoption."""
    from sardonyx import adopt as run_adopt

    found = run_adopt(model, output, tag_attributes=tag_attributes, force=force)
    style = style_for(sys.stdout)
    if as_json:
        put_json(found.to_json())
    else:
        put(_sentence(found, style) if quiet else _text(found, style))
    return 0


def _text(found: Adoption, style: Style) -> str:
    from sardonyx.report.model import coverage_line

    told = (f"{words.count(number)} from {kind}" for kind, number in found.evidence.items())
    lines = [
        style.strong(words.visible(found.source)),
        f"  nodes by module  {coverage_line(found.coverage)}",
        f"  found            {', '.join(told) or 'nothing'}",
        f"  modules          {words.count(found.modules)} own nodes",
    ]
    shown = found.root_nodes[:_SHOWN]
    lines += [f"  {words.name(node.op_type)} {words.name(node.name)}: {words.one_line(node.reason)}" for node in shown]
    if len(found.root_nodes) > len(shown):
        lines.append(f"  and {words.count(len(found.root_nodes) - len(shown))} more; --json lists them all")
    return "\n".join(lines) + "\n\n" + _sentence(found, style)


def _sentence(found: Adoption, style: Style) -> str:
    known = found.coverage.direct + found.coverage.inherited
    said = f"{words.count(known)} of {words.plural(found.nodes, 'node')} with a module"
    where = f" → {words.visible(found.output)}" if found.output is not None else ", nothing written"
    return style.strong(said + where) + "\n"
