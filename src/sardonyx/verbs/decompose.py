"""Decompose every attention of a PyTorch model.

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

from __future__ import annotations

from sardonyx.cli import options
from sardonyx.cli.console import progress
from sardonyx.cli.verb import Given, Verb, later


def _run(given: Given) -> int:
    given.reject("input_specs", "inputs")
    given.check()

    from sardonyx.frontend.installed import require_torch
    from sardonyx.frontend.sources import parse_source

    parse_source(given.source, task=given.task)
    inputs = options.parse_example(given.input_specs, given.inputs)
    with progress(not given.quiet) as report:
        if report is not None:
            report("loading torch and the model", None)
        require_torch()
        from sardonyx.verbs.analyze.torch_models import decompose_model

        decomposed = decompose_model(
            given.source,
            inputs,
            given.output,
            task=given.task,
            seed=given.seed,
            force=given.force,
            progress=report,
        )
    return given.finish(decomposed)


VERB = Verb(
    options=(
        options.SOURCE,
        options.output("nothing is written"),
        options.FORCE, options.TASK, options.INPUT, options.INPUT_FILE, options.SEED, *options.PRINTING,
    ),
    record="decomposed",
    document=later("sardonyx.reporting.analysis:decomposition_document"),
    sentence=later("sardonyx.reporting.analysis:decomposition_sentence"),
    run=_run,
)  # fmt: skip
