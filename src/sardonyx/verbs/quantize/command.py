"""Lower the precision of weights and products; measure the loss.

Example:
  sardonyx quantize model.onnx -o small.onnx --data samples/ --size sequence=128
  sardonyx quantize model.onnx -o int8.onnx --to int8 --data load.py:samples --budget 'relative_l2<=0.02,top1>=99%'
  sardonyx quantize folder -o folder-int4 --to int4 --keep-module lm_head
  sardonyx quantize models/ --out-dir small --to int8

Chooses the precision of every module by measurement: the fastest model within the budget is written, or the smallest if
none is faster. With --to, all modules get that precision. The loss is judged on unseen samples. docs/quantize.md
explains the method and the default budget.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met or budget not met.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from sardonyx.cli import files, options
from sardonyx.cli.console import complain
from sardonyx.cli.options import MORE, OUTPUT, Option, choice, file, listed
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.errors import GateNotMet, UsageError
from sardonyx.records.quantization import Quantization

# those of `sardonyx.quantize`, whose module is slow to import
PRECISIONS = Literal["auto", "int8", "int8-static", "int8-weights", "int4", "fp16", "bf16"]
SCHEMES = Literal["asymmetric", "symmetric"]


def _run(given: Given) -> int:
    models, output, out_dir = given.models, given.output, given.out_dir
    writes = not given.dry_run
    from sardonyx.ir.io.decoder_folder import DecoderFolder

    if output is not None and len(models) == 1 and DecoderFolder.of(models[0]) is not None:  # not many models
        planned = files.Planned(Path(models[0]), output)
    else:
        planned = files.plan(models, output, out_dir, ".quantized.onnx", writes=writes)
    if planned is None:
        one: dict[str, object] = {"--dry-run": given.dry_run or None}
        one |= {"--record": given.record, "--run": given.run_folder, "--svg": given.svg, "--baseline": given.baseline}
        files.reject(one)
        given.check(many=True)
        from sardonyx.fleet.sources import find_sources

        return given.run_many(find_sources(models, exclude=out_dir), writes=True)
    model, destination = planned.source, planned.destination
    _check(given, model, destination)
    given.check(beside=[destination])

    from sardonyx.verbs.quantize.quantize import BudgetNotMet

    unmet: BudgetNotMet | None = None
    try:
        result: Quantization = given.call(model, destination if writes else None)
    except BudgetNotMet as error:
        result, unmet = error.record, error
    if given.run_folder is not None:
        from sardonyx.verbs.optimize.run_folder import add_quantization

        add_quantization(given.run_folder, result)
    code = given.finish(result, after=files.results_line(given.run_folder))
    if unmet is not None:
        complain(unmet)
        return unmet.exit_code
    broken = () if result.choice is None else result.choice.broken
    for line in broken:
        complain(GateNotMet(f"budget not met on the samples to judge with: {line}"))
    return max(code, GateNotMet.exit_code if broken else 0)


def _check(given: Given, model: Path, destination: Path) -> None:
    """Check before any work that the model is there and everything can be written."""
    record, svg, folder = given.record, given.svg, given.run_folder
    is_folder = model.is_dir()
    if not is_folder:
        options.check_readable(model)
    files.make_folder(given.out_dir)
    if destination.resolve() == model.resolve():
        raise UsageError("--output is the model itself", hint="choose another name")
    if not given.dry_run:
        files.check_destinations(destination, record, force=given.force, folder=is_folder)
    files.check_apart(output=destination, record=record, svg=svg)
    if svg is not None and given.to != "auto" and not given.budget:
        raise UsageError("there is nothing to plot without a choice", hint="use --to auto or --budget with --svg")
    if folder is not None:
        from sardonyx.verbs.optimize.run_folder import QUANTIZATION, check_quantization  # loads what renders

        files.check_apart(record=record, run=folder / QUANTIZATION)
        check_quantization(folder, force=given.force)


def _svg(result: Quantization) -> str:
    from sardonyx.reporting.quantization import front

    assert result.choice is not None, "the options ask for a choice"
    return front(result.choice).file()


VERB = Verb(
    of=("quantize",),
    options=(
        options.MODELS,
        options.output("MODEL.quantized.onnx beside it"),
        options.OUT_DIR,
        choice("to", PRECISIONS, "The precision; auto chooses one for every module.", default="auto"),
        Option("target", "TARGET", "Its operators: portable, or ort for those of ONNX Runtime too.",
            group=MORE, type=str, none="ort for a decoder's folder, or portable"),
        choice("scheme", SCHEMES,
            "For int8-static: symmetric has signed activations without zero points, for TensorRT and QNN.",
            default="asymmetric", group=MORE),
        replace(options.KEEP_MODULES, help="Leave this module in float32. A path, tag, glob or class; repeatable."),
        listed("only_modules", "NAME", "Quantize this module alone. A path, tag, glob or class; repeatable.",
            "--only-module", none="all modules", group=MORE),
        listed("data", "SOURCE", "Samples: .npz files, a folder of them, or FILE.py:FUNCTION. Repeatable.",
            none="random inputs"),
        Option("metric", "FILE.py:FUNCTION", "A number for the outputs and the sample of a run; higher is better.",
            group=MORE, type=str, none="none"),
        listed("budget", "EXPR", "What the result must meet: 'top1>=99%'. Repeatable.",
            none="by the outputs for auto"),
        Option("objective", None, "What to make small within the budget.", ("--for",), MORE, Literal["time", "bytes"],
            none="bytes for int8-weights and int4, otherwise time"),
        Option("dry_run", None, "Measure, but write no model; fp16: which numbers can leave its range, by module.",
            group=MORE, type=bool, default=False),
        options.SIZES, options.FORCE, options.SEED, options.THREADS,
        file("run_folder",
            "Also write the record and a page to this folder. The page of a run that is there gets a section.",
            "--run", metavar="FOLDER", group=OUTPUT, new=True),
        options.svg("loss against time or bytes of all models that were measured", group=MORE),
        *options.MANY_MODELS, options.RECORD, *options.PRINTING,
    ),
    record="quantization",
    document=later("sardonyx.reporting.quantization:quantization_document"),
    sentence=later("sardonyx.reporting.quantization:quantization_sentence"),
    svg=_svg,
    run=_run,
)  # fmt: skip
