"""Extract a module as a model of its own.

Example:
  sardonyx extract model.onnx --module /BertModel/BertEncoder/BertLayer.0 -o layer0.onnx
  sardonyx extract model.onnx --module encoder.layer.0 --live hf-config:BertConfig
  sardonyx extract small.onnx --module 'layer4.*.conv1' --exact

Tensors that cross the module's boundary become inputs and outputs and keep their names; constants and computations of
shapes are copied along. The result is verified: it must compute what the module computes in the whole model and, with
--live, what the PyTorch module computes; otherwise nothing is written. In an optimized file a fused node may do the
work of several modules: the smallest module that contains it is extracted then, or with --exact the command fails.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sardonyx.cli import options
from sardonyx.cli.console import progress
from sardonyx.cli.options import Option, reject_both
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.errors import UsageError


def _run(given: Given) -> int:
    model, source, task = given.model, given.live, given.task
    reject_both("--verify off", given.verify == "off", "--live", source is not None)
    for option, what in (("task", "--task chooses the head of a --live"), ("dtype", "--dtype converts a --live")):
        if given.is_typed(option) and source is None:
            raise UsageError(what, hint="give the --live too")
    if source is not None:
        from sardonyx.frontend.installed import require_torch
        from sardonyx.frontend.sources import parse_source

        parse_source(source, task=task)
        require_torch()
    destination = given.output or _beside(model, given.module)
    if destination.resolve() == model.resolve():
        raise UsageError("--output is the model itself", hint="choose another name")
    given.check(beside=[destination], outputs=False).require("verification", given.verify != "off", "drop --verify off")
    with progress(not given.quiet) as report:
        live = {} if source is None else _live(source, task, given.dtype, given.seed, model)
        return given.finish(given.call(model, given.module, destination, progress=report, **live))


def _beside(model: Path, module: str) -> Path:
    """Return a path beside the model, named after the module."""
    from sardonyx.verbs.export.extract import path_of

    name = re.sub(r"[^\w.-]+", "_", path_of(model, module)) or "whole"
    return model.parent / f"{model.stem}.{name}.onnx"


def _live(source: str, task: str | None, dtype: options.DTYPES | None, seed: int, model: Path) -> dict[str, Any]:
    """Return the PyTorch model and inputs that fit both it and the file, as arguments of `sardonyx.extract`."""
    from sardonyx import inspect
    from sardonyx.frontend.inputs.examples import example_for, fitting_example
    from sardonyx.frontend.models import resolve
    from sardonyx.frontend.tracing.prepare import prepared

    resolved = resolve(source, task=task, seed=seed, dtype=dtype)
    if resolved.args is not None or resolved.kwargs is not None:
        example = example_for(resolved.module, resolved, None, None, seed)
    else:
        with prepared(resolved.module) as module:
            example = fitting_example(module, inspect(model).inputs, seed=seed)
    return {"live": resolved.module, "inputs": example.args, "kwargs": example.kwargs}


VERB = Verb(
    of=("extract",),
    options=(
        options.MODEL,
        Option("module", "NAME", "The module: a tag, an instance path, or a glob.", ("--module", "-m"), type=str),
        options.output("MODEL.PATH.onnx beside it"),
        Option("live", "SOURCE", "Also compare with this PyTorch model (see `export`).", type=str, default=None,
            none="none"),
        options.TASK, options.DTYPE,
        Option("call", "N", "Number of the call, if the module is called several times.", least=0),
        Option("exact", help="Fail rather than extract a larger module."),
        options.VERIFY, options.FORCE, options.SEED, options.THREADS, options.CUSTOM_OPS, *options.PRINTING,
    ),
    record="extraction",
    document=later("sardonyx.reporting.export:extraction_document"),
    sentence=later("sardonyx.reporting.export:extraction_sentence"),
    run=_run,
)  # fmt: skip
