"""`sardonyx extract`: one module of a model as a model of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import options
from sardonyx.cli.console import progress, show
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import reject_both
from sardonyx.errors import UsageError
from sardonyx.reporting import gate
from sardonyx.reporting.extraction import extraction_sentence, render_extraction
from sardonyx.reporting.options import View

if TYPE_CHECKING:
    from sardonyx.records.inspection import Inspection

SUMMARY = "Cut a module out as a model of its own."
HELP = f"""\b
Example:
  sardonyx extract model.onnx --module /BertModel/BertEncoder/BertLayer.0 -o layer0.onnx
  sardonyx extract model.onnx --module encoder.layer.0 --source hf-config:BertConfig
  sardonyx extract small.onnx --module 'layer4.*.conv1' --exact

Tensors that cross the module's boundary become inputs and outputs under their names in the file; constants and the
arithmetic of sizes come along. The result must compute what it computes in the whole model and, with --source, what the
live module computes, or nothing is written. In an optimized file a fused node may do the work of several modules: then
the nearest module that contains it is taken, or with --exact none.

{gate.EXTRACTION.help()}

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 a --fail-if was true.
"""

Module = Annotated[
    str,
    typer.Option(
        "--module", "-m", metavar="NAME", help="Which module: a tag, an instance path, or a glob.", show_default=False
    ),
]
Output = Annotated[Path | None, options.output("MODEL.PATH.onnx beside it")]
Live = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="SOURCE", help="A live model to compare with too, as `export` takes it. [default: none]"
    ),
]
Call = Annotated[
    int, typer.Option("--call", metavar="N", min=0, help="Which call, where a module is called several times.")
]
Exact = Annotated[bool, typer.Option("--exact", help="Refuse to take a wider module than the one asked for.")]


def extract(
    model: options.Model,
    module: Module,
    output: Output = None,
    source: Live = None,
    task: options.Task = None,
    dtype: options.Dtype = None,
    call: Call = 0,
    exact: Exact = False,
    verify: options.Verify = True,
    force: options.Force = False,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb and show its Extraction."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--no-verify", not verify, "--source", source is not None)
    if task is not None and source is None:
        raise UsageError("--task chooses the head of a --source", hint="give the --source too")
    if dtype is not None and source is None:
        raise UsageError("--dtype converts a --source", hint="give the --source too")
    if source is not None:
        from sardonyx.frontend.installed import require_torch
        from sardonyx.frontend.models.sources import parse_source

        parse_source(source, task=task)
        require_torch()
    destination = output or _beside(model, module)
    if destination.resolve() == model.resolve():
        raise UsageError("--output names the model itself", hint="choose another name")
    gating = Gating.of(gate.EXTRACTION, fail_if, baseline, summary, beside=(model, destination))
    gating.check_provable(verify, "drop --no-verify")

    from sardonyx import extract as cut
    from sardonyx import inspect

    with progress(not quiet) as report:
        live = {} if source is None else _live(source, task, dtype, seed, inspect(model))
        found = cut(
            model,
            module,
            destination,
            call=call,
            exact=exact,
            force=force,
            verify=verify,
            seed=seed,
            threads=threads,
            progress=report,
            **live,
        )
    show(
        found.to_json,
        lambda style: extraction_sentence(found, style),
        lambda style: render_extraction(found, View(style, verbose)),
        as_json=as_json,
        quiet=quiet,
    )
    return gating.outcome(found, extraction_sentence(found))


def _beside(model: Path, module: str) -> Path:
    """Beside the model, named for the module."""
    from sardonyx.exporting.extract import path_of

    name = re.sub(r"[^\w.-]+", "_", path_of(model, module)) or "whole"
    return model.parent / f"{model.stem}.{name}.onnx"


def _live(
    source: str, task: str | None, dtype: options.DtypeName | None, seed: int, file: Inspection
) -> dict[str, Any]:
    """The live model and inputs that fit both it and the file."""
    from sardonyx.frontend.inputs.example_resolution import example_for
    from sardonyx.frontend.inputs.fitting import FileInput, fitting_example
    from sardonyx.frontend.models.resolve import resolve
    from sardonyx.frontend.tracing.prepare import prepared

    found = resolve(source, task=task, seed=seed, dtype=dtype.value if dtype is not None else None)
    if found.args is not None or found.kwargs is not None:
        example = example_for(found.module, found, None, None, seed)
    else:
        ports = {port.name: FileInput(port.type, port.shape) for port in file.inputs if port.shape is not None}
        with prepared(found.module) as plain:
            example = fitting_example(plain, ports, seed=seed)
    return {"live": found.module, "inputs": example.args, "kwargs": example.kwargs}
