"""Export programs of torch.export, and the fields that every record of an export has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import nn

from sardonyx.common.atomic_write import check_free
from sardonyx.common.errors import UsageError, VerificationFailed
from sardonyx.frontend.models import state_sha256
from sardonyx.frontend.tracing import dynamo, traced
from sardonyx.frontend.tracing.traced import TagStyle
from sardonyx.ir import io, metadata
from sardonyx.ir.origins import owner
from sardonyx.records.environment import environment
from sardonyx.records.export import ExampleInput, SourceModule
from sardonyx.records.progress import Clock
from sardonyx.records.provenance import module_of
from sardonyx.records.run import Counts
from sardonyx.verbs.analyze import census
from sardonyx.verbs.export.options import ExportOptions
from sardonyx.verbs.optimize import pipeline, run_tables
from sardonyx.verbs.optimize.options import OptimizeOptions
from sardonyx.verification.exported_graph import compare_with_program


def source_module(module: nn.Module, label: str, *, hashed: bool) -> SourceModule:
    """Return what the module is."""
    kind = type(module)
    return SourceModule(
        label=label,
        class_name=f"{kind.__module__}.{kind.__qualname__}",
        modules=sum(1 for _ in module.modules()),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        sha256=state_sha256(module) if hashed else None,
    )


def plain_torch(model: ir.Model) -> Counts | None:
    """Return the counts of what torch's exporter alone would write."""
    plain = dynamo.optimized_by_torch(model)
    return None if plain is None else census.Census.of(plain).counts


def census_fields(model: ir.Model) -> dict[str, Any]:
    """Return the record's fields that describe the exported, tagged graph."""
    graph_census = census.Census.of(model)
    return {
        "counts": graph_census.counts,
        "modules": len({module_of(owner(node)) for node in graph_census.nodes}),
        "coverage": census.coverage(graph_census.nodes),
        "root_nodes": census.root_nodes(graph_census.nodes),
        "tied": census.tied(graph_census.initializers),
    }


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
        program = traced.read(source, opset, style)
    model, arguments = program.model, {"opset": opset, "seed": seed, "optimize": optimize}
    metadata.write_options(model, "export", arguments)
    verdict = None
    if output is not None:
        check_free(os.fspath(output), force=force)
    if verify:
        with clock.phase("verification"):
            verdict = compare_with_program(program, model, seed=seed, threads=threads)
        if not verdict.passed:
            raise VerificationFailed(
                f"the graph does not compute what the program does: {verdict.failures[0]}",
                hint="`verify='off'` writes it anyway",
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


def _module(program: traced.Program, *, hashed: bool) -> SourceModule:
    if program.call is not None:
        return source_module(program.call.module, program.label, hashed=hashed)
    return SourceModule(label=program.label, class_name="", modules=0, parameters=0, sha256=None)


def _inputs(program: traced.Program) -> tuple[ExampleInput, ...]:
    call = program.call
    if call is None:
        return ()
    named = zip(call.arguments, call.tensors, strict=True)
    return tuple(
        ExampleInput(name, str(each.dtype).removeprefix("torch."), tuple(each.shape), dict(program.axes.get(name, {})))
        for name, each in named
    )
