"""`sardonyx adopt`: add module tags to a file that another tool wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sardonyx.cli import options
from sardonyx.cli.console import show
from sardonyx.cli.gates import Gating
from sardonyx.reporting.inspection import adoption_document, adoption_sentence

HELP = """\b
Example:
  sardonyx adopt foreign.onnx -o tagged.onnx
  sardonyx adopt foreign.onnx --json | jq .coverage
  sardonyx adopt foreign.onnx -o tagged.onnx --tag-attributes

Tags every node with the module it comes from, as read from torch's own metadata, from scoped names such as
/encoder/layer.0/attention/self/MatMul, or from __ attributes that another tool kept. A node without any of these
inherits the module of its consumers, or else of its producers. Without --output, nothing is written: the command shows
which tags it would write.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

Output = Annotated[Path | None, options.output("nothing is written")]


def adopt(
    model: options.Model,
    output: Output = None,
    tag_attributes: options.TagAttributes = False,
    force: options.Force = False,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.adopt` and print its record."""
    gating = Gating.of("adoption", fail_if, baseline, summary, beside=(model, output))

    from sardonyx import adopt as run_adopt

    adoption = run_adopt(model, output, tag_attributes=tag_attributes, force=force)
    show(adoption.to_json, lambda: adoption_document(adoption), as_json=as_json, quiet=quiet)
    return gating.outcome(adoption, adoption_sentence(adoption))
