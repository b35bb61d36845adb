"""`sardonyx extract`: write one module of a model as a model of its own."""

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
from sardonyx.reporting.document import View
from sardonyx.reporting.extraction import extraction_document, extraction_sentence

if TYPE_CHECKING:
    from sardonyx.records.inspection import Inspection

HELP = """\b
Example:
  sardonyx extract model.onnx --module /BertModel/BertEncoder/BertLayer.0 -o layer0.onnx
  sardonyx extract model.onnx --module encoder.layer.0 --source hf-config:BertConfig
  sardonyx extract small.onnx --module 'layer4.*.conv1' --exact

Tensors that cross the module's boundary become inputs and outputs and keep their names; constants and computations of
shapes are copied along. The result is verified: it must compute what the module computes in the whole model and, with
--source, what the PyTorch module computes; otherwise nothing is written. In an optimized file a fused node may do the
work of several modules: the smallest module that contains it is extracted then, or with --exact the command fails.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
"""

Module = Annotated[
    str,
    typer.Option(
        "--module", "-m", metavar="NAME", help="The module: a tag, an instance path, or a glob.", show_default=False
    ),
]
Output = Annotated[Path | None, options.output("MODEL.PATH.onnx beside it")]
Live = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="SOURCE", help="Also compare with this PyTorch model (see `export`). [default: none]"
    ),
]
Call = Annotated[
    int, typer.Option("--call", metavar="N", min=0, help="Number of the call, if the module is called several times.")
]
Exact = Annotated[bool, typer.Option("--exact", help="Fail rather than extract a larger module.")]


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
    custom_ops: options.CustomOps = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.extract` and print its record."""
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
        raise UsageError("--output is the model itself", hint="choose another name")
    gating = Gating.of("extraction", fail_if, baseline, summary, beside=(model, destination))
    gating.check_verified(verify, "drop --no-verify")

    from sardonyx import extract as run_extract
    from sardonyx import inspect

    with progress(not quiet) as report:
        live = {} if source is None else _live(source, task, dtype, seed, inspect(model))
        extraction = run_extract(
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
    show(extraction.to_json, lambda: extraction_document(extraction, View(verbose)), as_json=as_json, quiet=quiet)
    return gating.outcome(extraction, extraction_sentence(extraction))


def _beside(model: Path, module: str) -> Path:
    """Return a path beside the model, named after the module."""
    from sardonyx.exporting.extract import path_of

    name = re.sub(r"[^\w.-]+", "_", path_of(model, module)) or "whole"
    return model.parent / f"{model.stem}.{name}.onnx"


def _live(
    source: str, task: str | None, dtype: options.DtypeName | None, seed: int, file: Inspection
) -> dict[str, Any]:
    """Return the PyTorch model and inputs that fit both it and the file, as arguments of `sardonyx.extract`."""
    from sardonyx.frontend.inputs.example_resolution import example_for
    from sardonyx.frontend.inputs.examples import FileInput, fitting_example
    from sardonyx.frontend.models.resolve import resolve
    from sardonyx.frontend.tracing.prepare import prepared

    resolved = resolve(source, task=task, seed=seed, dtype=dtype.value if dtype is not None else None)
    if resolved.args is not None or resolved.kwargs is not None:
        example = example_for(resolved.module, resolved, None, None, seed)
    else:
        ports = {port.name: FileInput(port.type, port.shape) for port in file.inputs if port.shape is not None}
        with prepared(resolved.module) as module:
            example = fitting_example(module, ports, seed=seed)
    return {"live": resolved.module, "inputs": example.args, "kwargs": example.kwargs}
