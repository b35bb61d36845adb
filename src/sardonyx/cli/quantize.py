"""`sardonyx quantize`: lower precision for the products of a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options
from sardonyx.cli.console import progress, show, with_command
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import Target, reject_both
from sardonyx.errors import UsageError
from sardonyx.reporting.document import View
from sardonyx.reporting.quantization import quantization_document, quantization_sentence

HELP = """\b
Example:
  sardonyx quantize model.onnx -o int8.onnx
  sardonyx quantize model.onnx -o int4.onnx --to int4 --target ort --keep lm_head
  sardonyx quantize model.onnx -o int8.onnx --only 'encoder.layer.*' --data samples.npz --fail-if 'relative_l2>0.01'

Stores the weights of matrix products and embedding tables in 8 or 4 bits. int8 also computes the products in integers,
and quantizes activations at run time; int8-weights and int4 compute in float32. Modules are selected by path, tag, glob
or class. Every quantized product is compared with a float32 simulation of the same arithmetic: if they differ by more
than rounding, nothing is written. The loss is the difference from the source in the model's own outputs, on --data, or
on random inputs, which say little about a trained model. Nothing is timed: use `sardonyx bench`.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
"""


class Precision(StrEnum):
    """The precisions of `sardonyx.quantize`, repeated here because that module is slow to import."""

    INT8 = "int8"
    INT8_WEIGHTS = "int8-weights"
    INT4 = "int4"


Output = Annotated[Path | None, options.output("MODEL.int8.onnx beside it, or as --to says")]
To = Annotated[Precision, typer.Option("--to", help="The precision of the weights; int8 also of the products.")]
TargetOption = Annotated[Target, typer.Option("--target", help="Standard operators, or also those of ONNX Runtime.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="NAME",
        help="Leave this module in float32. A path, tag, glob or class; repeatable. [default: none]",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="NAME",
        help="Quantize this module alone. A path, tag, glob or class; repeatable. [default: all modules]",
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="FILE.npz",
        help="Measure the loss on these arrays, one for each input. Repeatable. [default: random inputs]",
    ),
]


def quantize(
    model: options.Model,
    output: Output = None,
    to: To = Precision.INT8,
    target: TargetOption = Target.PORTABLE,
    keep: Keep = None,
    only: Only = None,
    data: Data = None,
    force: options.Force = False,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    record: options.Record = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.quantize` and print its record."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    destination = output or model.with_name(f"{model.stem}.{to.value}.onnx")
    if destination.resolve() == model.resolve():
        raise UsageError("--output is the model itself", hint="choose another name")
    files.check_destinations(destination, record, force=force)
    gating = Gating.of("quantization", fail_if, baseline, summary, beside=(model, destination))

    from sardonyx import quantize as run_quantize
    from sardonyx.records.input_specs import read_arrays

    samples = [dict(read_arrays(path)) for path in data or ()]
    with progress(not quiet) as report:
        result = run_quantize(
            model,
            destination,
            to=to.value,
            target=target.value,
            keep=keep or (),
            only=only or (),
            data=samples or None,
            seed=seed,
            threads=threads,
            force=force,
            progress=report,
        )
        result = with_command(result)
    files.write_record(record, result, force=force)
    show(result.to_json, lambda: quantization_document(result, View(verbose)), as_json=as_json, quiet=quiet)
    return gating.outcome(result, quantization_sentence(result))
