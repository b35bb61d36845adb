"""Export a PyTorch model to ONNX; every node keeps its module.

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

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from sardonyx.cli import files, options
from sardonyx.cli.console import progress
from sardonyx.cli.options import MORE, Option, choice
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.errors import UsageError


def _run(given: Given) -> int:
    given.reject("input_specs", "inputs")
    given.reject("for_generation", "with_past", "dynamic", "input_specs", "inputs")
    if given.is_typed("target") and not given.optimize:
        raise UsageError("--target is for an optimized model", hint="add --optimize")
    destination = given.output or Path("model" if given.for_generation else "model.onnx")
    gating = given.check(beside=[destination], outputs=False)
    gating.require("verification", given.verify != "off", "drop --verify off")
    files.check_destinations(destination, given.record, force=given.force, folder=given.for_generation)

    from sardonyx.frontend.sources import parse_source
    from sardonyx.records.input_specs import parse_dynamic

    parse_source(given.source, task=given.task)  # a malformed source is reported before torch is loaded
    dynamic = parse_dynamic(given.dynamic or ())
    inputs = options.parse_example(given.input_specs, given.inputs)
    with progress(not given.quiet) as report:
        if report is not None:
            report("loading torch and the model", None)
        # read with torch: its waiting threads use no processor, and its allocator keeps no freed weights
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")
        settings = given.settings(target=given.target or "portable", keep_stack_traces=not given.compact)
        exported = given.call(given.source, inputs, destination, dynamic=dynamic, options=settings, progress=report)
    return given.finish(exported)


VERB = Verb(
    of=("export", "ExportOptions"),
    options=(
        options.SOURCE,
        options.output("model.onnx here"),
        options.FORCE, options.TASK, options.DTYPE,
        choice("exporter", Literal["dynamo", "torchscript"], "Use torch.export, or the older tracer.",
            default="dynamo"),
        options.INPUT, options.INPUT_FILE, options.DYNAMIC,
        Option("with_past", None, "Make the key-value cache of a decoder inputs and outputs.", group=MORE),
        Option("for_generation",
            help="Write a decoder as a folder for onnxruntime-genai. It is verified by generating tokens."),
        Option("verify_tokens", "N", "Tokens to generate from each prompt with --for-generation.", group=MORE, least=1),
        choice("state", Literal["io", "fixed"],
            "Make what forward keeps for its next call inputs and outputs, or export the first call alone.",
            default="io", group=MORE),
        Option("training", help="Export training mode instead of eval mode.", group=MORE),
        Option("opset", "N", "Opset of the file.", none="the exporter's", group=MORE, least=7),
        options.TORCH_NN, options.TAG_ATTRIBUTES,
        Option("compact", None, "Drop or keep torch's own metadata, which contains file paths of this machine.",
            ("--compact/--keep-stack-traces",), MORE, bool, True),
        Option("optimize", help="Also optimize the result and verify it."),
        Option("target", "TARGET", "With --optimize: see `optimize`.", group=MORE, type=str, default=None,
            none="portable", read=options.check_target, values=options.target_names),
        options.VERIFY,
        replace(options.EXTERNAL, none="by size"),
        options.SEED, options.THREADS, options.CUSTOM_OPS, options.RECORD, *options.PRINTING,
    ),
    record="export",
    document=later("sardonyx.reporting.export:export_document"),
    sentence=later("sardonyx.reporting.export:export_sentence"),
    translated=True,
    run=_run,
)  # fmt: skip
