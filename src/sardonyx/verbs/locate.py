"""`sardonyx locate`: find the first module whose outputs differ in two models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import complain, progress, show, with_command
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import check_readable, reject_both
from sardonyx.errors import VerificationFailed
from sardonyx.reporting.document import View
from sardonyx.reporting.location import location_document, location_sentence

HELP = """\b
Example:
  sardonyx locate model.onnx small.onnx
  sardonyx locate model.onnx int8.onnx --data batch.npz
  sardonyx locate model.py:build model.onnx
  sardonyx locate model.onnx model.onnx --runtime ort --runtime openvino

Compares the values at the borders of modules, found by their tags, and names the first module whose outputs differ
although its inputs agree. Then the first model's values are put into the second one at several borders: what is left of
the error shows the share of each module. The most responsible modules are put in alone, too. An error that many modules
share is reported as such.

Exit: 0 no difference, 1 failed, 2 usage, 3 the models differ, 4 gate not met.
"""

First = Annotated[
    str,
    typer.Argument(
        metavar="A", help="The reference: an ONNX file or a PyTorch model (see `export`).", show_default=False
    ),
]
Second = Annotated[
    Path, typer.Argument(metavar="B", help="The ONNX file to check.", callback=check_readable, show_default=False)
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FILE.npz", help="Compare on these arrays, one for each input. [default: random inputs]"
    ),
]
Runs = Annotated[
    int, typer.Option("--runs", metavar="N", min=0, help="Largest number of runs that measure the shares of modules.")
]
Runtimes = Annotated[
    list[options.RuntimeName] | None,
    typer.Option(
        "--runtime",
        help="Runtime of A, then that of B if it is another one. [default: ort]",
        case_sensitive=False,
        rich_help_panel=options.MORE,
    ),
]


def locate(
    a: First,
    b: Second,
    data: Data = None,
    runs: Runs = 24,
    runtime: Runtimes = None,
    task: options.Task = None,
    dtype: options.Dtype = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    record: options.Record = None,
    force: options.Force = False,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.locate`, print its record and return 3 if the models differ."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    files.check_free(record, force=force)
    gating = Gating.of("location", fail_if, baseline, summary, beside=(b, data, record))
    model, example = _first(a, task, dtype, seed)

    from sardonyx import locate as run_locate

    with progress(not quiet) as report:
        location = run_locate(
            model,
            b,
            inputs=data if data is not None else example.get("inputs"),
            kwargs=None if data is not None else example.get("kwargs"),
            seed=seed,
            most_runs=runs,
            runtimes=runtime or (options.RuntimeName.ORT,),
            threads=threads,
            progress=report,
        )
    location = with_command(location)
    files.write_record(record, location, force=force)
    show(location.to_json, lambda: location_document(location, View(verbose)), as_json=as_json, quiet=quiet)
    if not location.same and as_json:  # the text output says so itself
        complain(VerificationFailed("the two models do not compute the same"))
    sentence = location_sentence(location)
    return gating.outcome(location, sentence, failed=0 if location.same else VerificationFailed.exit_code)


def _first(a: str, task: str | None, dtype: options.DtypeName | None, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the reference, and the example inputs of a PyTorch model that comes with some."""
    if a.endswith(".onnx") or Path(a).is_file():
        check_readable(Path(a))
        options.start_verifier()
        return Path(a), {}
    from sardonyx.frontend.installed import require_torch
    from sardonyx.frontend.models.sources import parse_source

    parse_source(a, task=task)
    require_torch()
    from sardonyx.frontend.models.resolve import resolve

    resolved = resolve(a, task=task, seed=seed, dtype=dtype.value if dtype is not None else None)
    return resolved.module, {"inputs": resolved.args, "kwargs": resolved.kwargs}
