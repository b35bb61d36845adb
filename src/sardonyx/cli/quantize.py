"""`sardonyx quantize`: lower precision for the products of a model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import files, options, single
from sardonyx.cli.console import complain, progress, show, with_command
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import MORE, OUTPUT, Target, reject_both
from sardonyx.errors import GateNotMet, UsageError
from sardonyx.records.quantization import Quantization
from sardonyx.reporting.document import View
from sardonyx.reporting.quantization import quantization_document, quantization_sentence

HELP = """\b
Example:
  sardonyx quantize model.onnx -o small.onnx --data samples/ --size sequence=128
  sardonyx quantize model.onnx -o int8.onnx --to int8 --data load.py:samples --budget 'relative_l2<=0.02,top1>=99%'
  sardonyx quantize folder -o folder-int4 --to int4 --keep lm_head
  sardonyx quantize models/ --out-dir small --to int8

Chooses the precision of every module by measurement: the fastest model within the budget is written, or the smallest if
none is faster. Without --budget, it follows from what the outputs are. With --to and no --budget, all modules get that
precision. The loss is judged on samples that the choice has not seen. docs/quantize.md explains the method.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met or budget not met.
"""


class Precision(StrEnum):
    """The precisions of `sardonyx.quantize`, repeated here because that module is slow to import."""

    AUTO = "auto"
    INT8 = "int8"
    INT8_STATIC = "int8-static"
    INT8_WEIGHTS = "int8-weights"
    INT4 = "int4"
    FP16 = "fp16"
    BF16 = "bf16"


class Scheme(StrEnum):
    """The integers of activations with static ranges."""

    ASYMMETRIC = "asymmetric"
    SYMMETRIC = "symmetric"


class Objective(StrEnum):
    """What is made small within the budget."""

    TIME = "time"
    BYTES = "bytes"


Output = Annotated[Path | None, options.output("MODEL.quantized.onnx beside it")]
To = Annotated[Precision, typer.Option("--to", help="The precision; auto chooses one for every module.")]
TargetOption = Annotated[
    Target | None,
    typer.Option(
        "--target",
        help="Standard operators, or also those of ONNX Runtime. [default: ort for a decoder's folder, or portable]",
        show_default=False,
        rich_help_panel=MORE,
    ),
]
SchemeOption = Annotated[
    Scheme,
    typer.Option(
        "--scheme",
        help="For int8-static: symmetric has signed activations without zero points, for TensorRT and QNN.",
        rich_help_panel=MORE,
    ),
]
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
        rich_help_panel=MORE,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Samples: .npz files, a folder of them, or FILE.py:FUNCTION. Repeatable. [default: random inputs]",
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="FILE.py:FUNCTION",
        help="A number for the outputs and the sample of a run; higher is better. [default: none]",
        rich_help_panel=MORE,
    ),
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="EXPR",
        help="What the result must meet: 'top1>=99%'. Repeatable. [default: by the outputs for auto]",
    ),
]
For = Annotated[
    Objective | None,
    typer.Option(
        "--for",
        help="What to make small within the budget. [default: bytes for int8-weights and int4, otherwise time]",
        rich_help_panel=MORE,
    ),
]
Svg = Annotated[Path | None, options.svg("loss against time or bytes of all models that were measured", panel=MORE)]
RunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="FOLDER",
        help="Also write the record and a page to this folder. The page of a run that is there gets a section. "
        "[default: none]",
        rich_help_panel=OUTPUT,
    ),
]


def quantize(
    context: typer.Context,
    models: options.Models,
    output: Output = None,
    out_dir: options.OutDir = None,
    to: To = Precision.AUTO,
    target: TargetOption = None,
    scheme: SchemeOption = Scheme.ASYMMETRIC,
    keep: Keep = None,
    only: Only = None,
    data: Data = None,
    metric: MetricOption = None,
    budget: BudgetOption = None,
    objective: For = None,
    sizes: options.Sizes = None,
    force: options.Force = False,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    run_folder: RunFolder = None,
    svg: Svg = None,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    timeout: options.Timeout = None,
    memory: options.Memory = None,
    keep_going: options.KeepGoing = True,
    allow_code: options.AllowCode = False,
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
    planned = _decoder_folder(models, output) or single.plan(models, output, out_dir, ".quantized.onnx", writes=True)
    if planned is None:
        single.reject({"--record": record, "--run": run_folder, "--svg": svg, "--baseline": baseline})
        return _quantize_many(context, models, out_dir, Gating.of("quantization", fail_if, None, summary, many=True))
    model, destination = planned.source, planned.destination
    is_folder = model.is_dir()
    if not is_folder:
        options.check_readable(model)
    single.make_folder(out_dir)
    if destination.resolve() == model.resolve():
        raise UsageError("--output is the model itself", hint="choose another name")
    files.check_destinations(destination, record, force=force, folder=is_folder)
    files.check_apart(output=destination, record=record, svg=svg)
    files.check_free(svg, force=force)
    if svg is not None and to is not Precision.AUTO and not budget:
        raise UsageError("there is nothing to plot without a choice", hint="use --to auto or --budget with --svg")
    _check_folder(run_folder, record, force=force)
    gating = Gating.of("quantization", fail_if, baseline, summary, beside=(model, destination))
    fixed = options.parse_sizes(sizes)

    from sardonyx import quantize as run_quantize
    from sardonyx.quantization.quantize import BudgetNotMet

    unmet: BudgetNotMet | None = None
    try:
        with progress(not quiet) as report:
            result = run_quantize(
                model,
                destination,
                to=to.value,
                target=None if target is None else target.value,
                scheme=scheme.value,
                keep=keep or (),
                only=only or (),
                data=data or None,
                metric=metric,
                budget=budget or (),
                objective=None if objective is None else objective.value,
                sizes=fixed,
                seed=seed,
                threads=threads,
                force=force,
                progress=report,
            )
    except BudgetNotMet as error:
        result, unmet = error.record, error
    result = with_command(result)
    files.write_record(record, result, force=force)
    if svg is not None and result.choice is not None:
        from sardonyx.reporting.plots.precision import front

        files.write_whole(svg, front(result.choice).file().encode(), force=force)
    _fill_folder(run_folder, result)
    show(
        result.to_json,
        lambda: quantization_document(result, View(verbose)),
        after=files.results_line(run_folder),
        as_json=as_json,
        quiet=quiet,
    )
    if unmet is not None:
        complain(unmet)
        return unmet.exit_code
    return max(gating.outcome(result, quantization_sentence(result)), _check_budget(result))


def _decoder_folder(models: Sequence[str], output: Path | None) -> single.Planned | None:
    """Return the folder of a decoder and the folder to write, if there is one; a folder is otherwise many models."""
    from sardonyx.ir.io.decoder_folder import DecoderFolder

    folder = DecoderFolder.of(models[0]) if len(models) == 1 and output is not None else None
    return None if folder is None or output is None else single.Planned(Path(models[0]), output)


def _quantize_many(context: typer.Context, models: Sequence[str], out_dir: str | None, gating: Gating) -> int:
    from sardonyx.cli.many import Shown, run_many
    from sardonyx.fleet.sources import find_sources

    view = View(verbose=True)
    shown = Shown(lambda one, _: quantization_sentence(one), lambda one, _: quantization_document(one, view))
    return run_many(context, find_sources(models, exclude=out_dir), gating, shown, writes=True)


def _check_budget(result: Quantization) -> int:
    """Print what the judged loss does not meet, and return the exit code."""
    broken = () if result.choice is None else result.choice.broken
    for line in broken:
        complain(GateNotMet(f"budget not met on the samples to judge with: {line}"))
    return GateNotMet.exit_code if broken else 0


def _check_folder(folder: Path | None, record: Path | None, *, force: bool) -> None:
    if folder is not None:
        from sardonyx.cli.run_folder import QUANTIZATION, check_quantization  # loads what renders

        files.check_apart(record=record, run=folder / QUANTIZATION)
        check_quantization(folder, force=force)


def _fill_folder(folder: Path | None, result: Quantization) -> None:
    if folder is not None:
        from sardonyx.cli.run_folder import add_quantization

        add_quantization(folder, result)
