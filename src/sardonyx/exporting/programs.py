"""Exports what torch's own exporters return: tagged, verified against the program in PyTorch, and written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sardonyx.atomic_write import check_free
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.exporting.options import ExportOptions
from sardonyx.exporting.record_fields import census_fields, source_module
from sardonyx.frontend.tracing import programs
from sardonyx.frontend.tracing.traced import TagStyle
from sardonyx.ir import io, made_by
from sardonyx.optimizer import pipeline, run_tables
from sardonyx.optimizer.options import OptimizeOptions
from sardonyx.records.environment import environment
from sardonyx.records.export import ExampleInput, SourceModule
from sardonyx.records.progress import Clock
from sardonyx.verification.programs import compare_with_program


def export_program(
    source: Any,
    output: str | Path | None,
    *,
    of_module: Mapping[str, object],
    opset: int | None,
    verify: bool,
    optimize: bool,
    seed: int,
    threads: int | None,
    force: bool,
    options: ExportOptions,
    clock: Clock,
) -> dict[str, Any]:
    """Return the fields of the record of an export, after writing the graph.

    Args:
        of_module: The arguments of `export` that say how a module is called; None if they are not given.
        output, opset, verify, optimize, seed, threads, force, options, clock: As in `export`.
        source: The program.

    Raises:
        UsageError: If an argument is given that only a module takes.
        VerificationFailed: If the graph does not compute what the program does. Nothing is written then.
    """
    if given := [name for name, value in of_module.items() if value is not None]:
        hint = f"leave out `{given[0]}`, or export the module"
        raise UsageError(f"an exported program has its own inputs and sizes: {given[0]} changes nothing", hint=hint)
    style = TagStyle(options.include_torch_nn, options.tag_attributes, options.keep_stack_traces)
    with clock.phase("export"):
        program = programs.read(source, opset, style)
    model, arguments = program.model, {"opset": opset, "seed": seed, "optimize": optimize}
    made_by.write(model, "export", arguments)
    verdict = None
    if output is not None:
        check_free(os.fspath(output), force=force)
    if verify:
        with clock.phase("verification"):
            verdict = compare_with_program(program, model, seed=seed, threads=threads)
        if not verdict.passed:
            raise VerificationFailed(
                f"the graph does not compute what the program does: {verdict.failures[0]}",
                hint="`verify=False` writes it anyway",
            )
    run, notes = None, program.notes
    if optimize:
        settings = OptimizeOptions(external=options.external)
        with clock.phase("optimize"):
            run = pipeline.optimize(
                model, output, target=options.target, seed=seed, threads=threads, force=force, options=settings
            )
        artifact, notes = run.result, (*run.notes, *notes)
    else:
        saved = io.Saved(None)
        if output is not None:
            with clock.phase("writing"):
                saved = io.save(model, output, force=force, external=options.external, hashed=verify)
        artifact, notes = run_tables.artifact(model, output, saved.digest), (*saved.notes, *notes)
    return {
        "status": "done",
        "environment": environment(),
        "options": arguments,
        "module": _module(program, hashed=verify),
        "inputs": _inputs(program),
        "outputs": tuple(value.name or "" for value in model.graph.outputs),
        "result": artifact,
        **census_fields(model),
        "verdict": verdict,
        "optimized": run,
        "seconds": clock.seconds,
        "notes": notes,
        "model": model if run is None else run.model,
    }


def _module(program: programs.Program, *, hashed: bool) -> SourceModule:
    if program.call is not None:
        return source_module(program.call.module, program.label, hashed=hashed)
    return SourceModule(label=program.label, class_name="", modules=0, parameters=0, sha256=None)


def _inputs(program: programs.Program) -> tuple[ExampleInput, ...]:
    call = program.call
    if call is None:
        return ()
    named = zip(call.arguments, call.tensors, strict=True)
    return tuple(
        ExampleInput(name, str(each.dtype).removeprefix("torch."), tuple(each.shape), dict(program.axes.get(name, {})))
        for name, each in named
    )
