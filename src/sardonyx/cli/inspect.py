"""`sardonyx inspect`: what a model is made of, and what could be made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import reject_both
from sardonyx.errors import UsageError
from sardonyx.records.inspection import Inspection, ModuleInspection
from sardonyx.reporting import gate
from sardonyx.reporting.inspection import inspection_sentence, module_sentence, render_inspection, render_module
from sardonyx.reporting.options import View

SUMMARY = "Show what a model is made of."
HELP = f"""\b
Example:
  sardonyx inspect model.onnx
  sardonyx inspect model.onnx --depth 6
  sardonyx inspect model.onnx --module '/BertModel/BertEncoder/BertLayer.0'
  sardonyx inspect model.onnx --opportunities --target ort
  sardonyx inspect model.onnx --json | jq .opsets

The family the network is of by its structure alone, and why; opsets, sizes, interface, dynamic dims, operators, and the
module tree with nodes and parameters. Equal layers are shown as one (×12), with the numbers of all. "direct" nodes were
seen running in their module, "inherited" ones got theirs from what they feed or what feeds them, those "at the root"
from nothing; -v lists these with the reason, and weights that several modules read. With --module, one module: what it
takes and gives, its operators, weights and submodules. Weights are not read, nothing is run.

With --opportunities, what optimizers look for: how often it is there, how often it would be left after every pass, and
why; -v says so for each module and lists all that passes refuse. Passes are tried on a copy, nothing is written.

{gate.INSPECTION.help()} With --module it knows {", ".join(gate.MODULE.names)}; with
--opportunities {", ".join(gate.OPPORTUNITIES.names)}.

Exit: 0 done, 1 failed, 2 usage, 4 a --fail-if was true.
"""

Opportunities = Annotated[
    bool, typer.Option("--opportunities", help="What could be fused or dropped, and why what could not.")
]
Target = Annotated[
    options.Target | None,
    typer.Option("--target", help="With --opportunities: what the result must run on. [default: portable]"),
]


def inspect(
    model: options.Model,
    module: options.Module = None,
    depth: options.Depth = None,
    opportunities: Opportunities = False,
    target: Target = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb and show what it found."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    kind = gate.OPPORTUNITIES if opportunities else gate.INSPECTION if module is None else gate.MODULE
    gating = Gating.of(kind, fail_if, baseline, summary, beside=(model,))
    if opportunities:
        reject_both("--opportunities", True, "--module", module is not None)
        reject_both("--opportunities", True, "--depth", depth is not None)
        return _show_opportunities(model, target or options.Target.PORTABLE, gating, as_json, quiet, verbose)
    if target is not None:
        raise UsageError("--target says for what to look for opportunities", hint="add --opportunities")

    from sardonyx import inspect as look

    found = look(model) if module is None else look(model, module=module)
    show(
        found.to_json,
        lambda style: style.strong(_sentence(found)),
        lambda style: _text(found, View(style, verbose, depth)),
        as_json=as_json,
        quiet=quiet,
    )
    return gating.outcome(found, _sentence(found))


def _show_opportunities(
    model: Path, target: options.Target, gating: Gating, as_json: bool, quiet: bool, verbose: bool
) -> int:
    from sardonyx import opportunities
    from sardonyx.reporting.opportunities import opportunities_sentence, render_opportunities

    with progress(not quiet) as report:
        found = opportunities(model, target=target.value, progress=report)
    show(
        found.to_json,
        lambda style: style.strong(opportunities_sentence(found)),
        lambda style: render_opportunities(found, View(style, verbose)),
        as_json=as_json,
        quiet=quiet,
    )
    return gating.outcome(found, opportunities_sentence(found))


def _sentence(found: Inspection | ModuleInspection) -> str:
    return inspection_sentence(found) if isinstance(found, Inspection) else module_sentence(found)


def _text(found: Inspection | ModuleInspection, view: View) -> str:
    return render_inspection(found, view) if isinstance(found, Inspection) else render_module(found, view)
