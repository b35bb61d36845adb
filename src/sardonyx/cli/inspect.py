"""`sardonyx inspect`: what a model is made of."""

from __future__ import annotations

from sardonyx.cli import options
from sardonyx.cli.console import show
from sardonyx.cli.options import reject_both
from sardonyx.inspection import Inspection, ModuleInspection
from sardonyx.report.model import inspection_sentence, render_inspection
from sardonyx.report.module import module_sentence, render_module
from sardonyx.report.view import View

SUMMARY = "Show what a model is made of."
HELP = """\b
Example:
  sardonyx inspect model.onnx
  sardonyx inspect model.onnx --depth 6
  sardonyx inspect model.onnx --module '/BertModel/BertEncoder/BertLayer.0'
  sardonyx inspect model.onnx --json | jq .opsets

Opsets, sizes, interface, dynamic dims, operators, and the module tree with nodes and parameters. Equal layers are shown
as one (×12), with the numbers of all. "direct" nodes were seen running in their module, "inherited" ones got theirs
from what they feed or what feeds them, those "at the root" from nothing; -v lists these with the reason, and weights
that several modules read. With --module, one module: what it takes and gives, its operators, weights and submodules.
Weights are not read, nothing is run.

Exit: 0 done, 1 failed, 2 usage.
"""


def inspect(
    model: options.Model,
    module: options.Module = None,
    depth: options.Depth = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb and show what it found."""
    reject_both("--quiet", quiet, "--verbose", verbose)

    from sardonyx import inspect as look

    found = look(model) if module is None else look(model, module=module)
    show(
        found.to_json,
        lambda style: style.strong(_sentence(found)),
        lambda style: _text(found, View(style, verbose, depth)),
        as_json=as_json,
        quiet=quiet,
    )
    return 0


def _sentence(found: Inspection | ModuleInspection) -> str:
    return inspection_sentence(found) if isinstance(found, Inspection) else module_sentence(found)


def _text(found: Inspection | ModuleInspection, view: View) -> str:
    return render_inspection(found, view) if isinstance(found, Inspection) else render_module(found, view)
