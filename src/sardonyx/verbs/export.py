"""`sardonyx export`: write a PyTorch model as a verified ONNX file whose nodes carry their modules."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from sardonyx.cli import files, options
from sardonyx.cli.console import notes_with_flags, progress, show, with_command
from sardonyx.cli.gates import Gating
from sardonyx.cli.options import MORE, Target, reject_both
from sardonyx.errors import UsageError
from sardonyx.reporting.document import View
from sardonyx.reporting.export import export_document, export_sentence

if TYPE_CHECKING:
    pass


HELP = """\b
Example:
  sardonyx export 'hf-config:BertConfig?num_hidden_layers=2' -o bert.onnx --dynamic auto
  sardonyx export hf:./checkpoint --task text-classification -o model.onnx --optimize
  sardonyx export hf:./checkpoint --for-generation --optimize --target ort -o folder
  sardonyx export model.py:build -o model.onnx --input 'x=float32[2,3,224,224]'

SOURCE is hf:ID_OR_FOLDER, hf-config:CLASS_OR_FILE[?key=value,…] (random weights), torchvision:NAME, timm:NAME, or
file.py:factory, a function that returns a module, or a module and its example inputs. Inputs are derived from the model
unless you give them. Every node is tagged with its module, and the graph is verified against PyTorch.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
"""


class ExporterName(StrEnum):
    """One of torch's two exporters."""

    DYNAMO = "dynamo"
    TORCHSCRIPT = "torchscript"


class StateName(StrEnum):
    """What becomes of state that forward keeps."""

    IO = "io"
    FIXED = "fixed"


Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Source of the model.", show_default=False)]
Output = Annotated[Path | None, options.output("model.onnx here")]
ExporterOption = Annotated[ExporterName, typer.Option("--exporter", help="Use torch.export, or the older tracer.")]
InputSpec = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=DTYPE[DIMS]", help="Type and shape, or a VALUE. Repeatable. [default: derived]"
    ),
]
InputFile = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="Example inputs, as of numpy.savez. [default: derived]"),
]
Dynamic = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic",
        metavar="NAME:AXIS=DIM|auto",
        help="A dynamic dimension; auto finds all. Repeatable. [default: none]",
    ),
]
WithPast = Annotated[
    bool,
    typer.Option("--with-past", help="Make the key-value cache of a decoder inputs and outputs.", rich_help_panel=MORE),
]
ForGeneration = Annotated[
    bool,
    typer.Option(
        "--for-generation",
        help="Write a decoder as a folder for onnxruntime-genai. It is verified by generating tokens.",
    ),
]
VerifyTokens = Annotated[
    int,
    typer.Option(
        "--verify-tokens",
        metavar="N",
        min=1,
        help="Tokens to generate from each prompt with --for-generation.",
        rich_help_panel=MORE,
    ),
]
State = Annotated[
    StateName,
    typer.Option(
        "--state",
        help="Make what forward keeps for its next call inputs and outputs, or export the first call alone.",
        rich_help_panel=MORE,
    ),
]
Training = Annotated[
    bool, typer.Option("--training", help="Export training mode instead of eval mode.", rich_help_panel=MORE)
]
Opset = Annotated[
    int | None,
    typer.Option(
        "--opset", metavar="N", min=7, help="Opset of the file. [default: the exporter's]", rich_help_panel=MORE
    ),
]
Compact = Annotated[
    bool,
    typer.Option(
        "--compact/--keep-stack-traces",
        help="Drop or keep torch's own metadata, which contains file paths of this machine.",
        rich_help_panel=MORE,
    ),
]
Optimize = Annotated[bool, typer.Option("--optimize", help="Also optimize the result and verify it.")]
TargetOption = Annotated[
    Target | None,
    typer.Option(
        "--target",
        help="With --optimize: standard operators, or also those of ONNX Runtime. [default: portable]",
        show_default=False,
        rich_help_panel=MORE,
    ),
]
External = Annotated[
    bool | None,
    typer.Option(
        "--external-data/--inline",
        help="Store weights in a separate file, or in the model. [default: by size]",
        rich_help_panel=MORE,
    ),
]


def export(
    source: Source,
    output: Output = None,
    force: options.Force = False,
    task: options.Task = None,
    dtype: options.Dtype = None,
    exporter: ExporterOption = ExporterName.DYNAMO,
    input_specs: InputSpec = None,
    input_file: InputFile = None,
    dynamic: Dynamic = None,
    with_past: WithPast = False,
    for_generation: ForGeneration = False,
    verify_tokens: VerifyTokens = 32,
    state: State = StateName.IO,
    training: Training = False,
    opset: Opset = None,
    include_torch_nn: options.TorchNN = False,
    tag_attributes: options.TagAttributes = False,
    compact: Compact = True,
    optimize: Optimize = False,
    target: TargetOption = None,
    verify: options.Verify = True,
    external: External = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    custom_ops: options.CustomOps = None,
    record: options.Record = None,
    fail_if: options.FailIf = None,
    baseline: options.Baseline = None,
    summary: options.Summary = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Run `sardonyx.export` and print its record."""
    reject_both("--quiet", quiet, "--verbose", verbose)
    reject_both("--input", bool(input_specs), "--inputs", input_file is not None)
    for option, is_given in (
        ("--with-past", with_past),
        ("--dynamic", bool(dynamic)),
        ("--input", bool(input_specs)),
        ("--inputs", input_file is not None),
    ):
        reject_both("--for-generation", for_generation, option, is_given)
    if target is not None and not optimize:
        raise UsageError("--target is for an optimized model", hint="add --optimize")
    destination = output or Path("model" if for_generation else "model.onnx")
    gating = Gating.of("export", fail_if, baseline, summary, beside=(destination, record, input_file))
    gating.check_verified(verify, "drop --no-verify")
    files.check_destinations(destination, record, force=force, folder=for_generation)

    from sardonyx.frontend.models.sources import parse_source
    from sardonyx.records.input_specs import parse_dynamic

    parse_source(source, task=task)  # a malformed source is reported before torch is loaded
    request = parse_dynamic(dynamic or ())
    inputs = options.parse_example(input_specs, input_file)
    with progress(not quiet) as report:
        if report is not None:
            report("loading torch and the model", None)
        # read with torch: its waiting threads use no processor, and its allocator keeps no freed weights
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
        from sardonyx import ExportOptions
        from sardonyx import export as run_export

        exported = run_export(
            source,
            inputs,
            destination,
            task=task,
            dtype=dtype.value if dtype is not None else None,
            exporter=exporter.value,
            dynamic=request,
            opset=opset,
            for_generation=for_generation,
            state=state.value,
            training=training,
            optimize=optimize,
            verify=verify,
            seed=seed,
            threads=threads,
            force=force,
            options=ExportOptions(
                with_past=with_past,
                verify_tokens=verify_tokens,
                target=(target or Target.PORTABLE).value,
                include_torch_nn=include_torch_nn,
                tag_attributes=tag_attributes,
                keep_stack_traces=not compact,
                external=external,
            ),
            progress=report,
        )
    exported = with_command(exported)
    if exported.optimized is not None:
        exported = replace(exported, optimized=with_command(exported.optimized))
    files.write_record(record, exported, force=force)
    show(
        exported.to_json,
        lambda: export_document(notes_with_flags(exported), View(verbose)),
        as_json=as_json,
        quiet=quiet,
    )
    return gating.outcome(exported, export_sentence(exported))
