"""`sardonyx decompose`: rewrite every attention of a PyTorch model as primitive operations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sardonyx.cli import files, options
from sardonyx.cli.console import progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import reject_both
from sardonyx.reporting.analysis import decomposition_document, decomposition_sentence
from sardonyx.reporting.document import View
from sardonyx.verbs.export import InputFile, InputSpec, Source

HELP = """\b
Example:
  sardonyx decompose torchvision:vit_b_16
  sardonyx decompose 'hf-config:BertConfig?num_hidden_layers=2' -o bert.safetensors
  sardonyx decompose model.py:build --json | jq .attentions

SOURCE is any source that `export` accepts. Shows each attention with its module and the primitive operations it
consists of, how the model was traced and how many nodes were added. With -o the graph and its weights are written as
safetensors; sardonyx.load_decomposed(FILE) returns the graph module, which is called like the model and computes the
same. Loading a file runs nothing that is in it.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""
Output = Annotated[Path | None, options.output("nothing is written")]


def decompose(
    source: Source,
    output: Output = None,
    force: options.Force = False,
    task: options.Task = None,
    input_specs: InputSpec = None,
    input_file: InputFile = None,
    seed: options.Seed = 0,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.decompose` on the source and print a record of the result."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--input", bool(input_specs), "--inputs", input_file is not None)
    gating = Gating.of("decomposed", fail_if, baseline, summary, beside=(output, input_file))
    files.check_free(output, force=force)

    from sardonyx.frontend.installed import require_torch
    from sardonyx.frontend.models.sources import parse_source

    parse_source(source, task=task)
    inputs = options.parse_example(input_specs, input_file)
    with progress(not quiet) as report:
        if report is not None:
            report("loading torch and the model", None)
        require_torch()
        from sardonyx.analysis.decompose_models import decompose_model

        decomposed = decompose_model(source, inputs, output, task=task, seed=seed, force=force, progress=report)
    show(decomposed.to_json, lambda: decomposition_document(decomposed, View(verbose)), as_json=as_json, quiet=quiet)
    return gating.outcome(decomposed, decomposition_sentence(decomposed))
