"""Export programs of torch.export, and the fields that every record of an export has."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
from msgspec import Struct
from torch import nn

from sardonyx.common.atomic_write import check_free
from sardonyx.errors import UsageError, VerificationFailed
from sardonyx.frontend.models import state_sha256
from sardonyx.frontend.tracing import dynamo, traced
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.graph_names import Axes
from sardonyx.frontend.tracing.traced import TagStyle
from sardonyx.ir import io, metadata
from sardonyx.ir.origins import owner
from sardonyx.records.environment import environment
from sardonyx.records.export import ExampleInput, SourceModule
from sardonyx.records.progress import Clock
from sardonyx.records.provenance import module_of
from sardonyx.records.run import Artifact, Counts, LoadedDecoder, Verdict
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


def example_inputs(call: ModuleCall, axes: Axes) -> tuple[ExampleInput, ...]:
    """Return the arguments of a call with their dynamic dimensions."""
    return tuple(
        ExampleInput(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), dict(axes.get(name, {})))
        for name, tensor in zip(call.arguments, call.tensors, strict=False)  # state follows the arguments
    )


class Written(Struct, frozen=True):
    """The result of an export: the file, the run that optimized it, and whether it is right."""

    artifact: Artifact
    run: pipeline.Optimized | None
    notes: tuple[str, ...]
    verdict: Verdict | None = None
    decoder: LoadedDecoder | None = None


def write(
    model: ir.Model,
    output: str | Path | None,
    external: bool | None,
    *,
    optimized: Callable[..., pipeline.Optimized] | None,
    hashed: bool,
    force: bool,
    clock: Clock,
    source: io.LoadedFile | None = None,
) -> Written:
    """Write a graph, or what `optimized` makes of it (of `source`, if that is the same graph in a file)."""
    if optimized is not None:
        with clock.phase("optimize"):
            given = model if source is None else source
            run = optimized(given, output, force=force, options=OptimizeOptions(external=external), progress=clock.tell)
        return Written(run.result, run, run.notes)
    with clock.phase("writing"):
        saved = io.Saved(None)
        if output is not None:
            saved = io.save(model, output, force=force, external=external, hashed=hashed)
        return Written(run_tables.artifact(model, output, saved.digest), None, saved.notes)


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
                hint='`verify="off"` writes it anyway',
            )
    how = functools.partial(pipeline.optimize, target=options.target, seed=seed, threads=threads) if optimize else None
    written = write(model, output, options.external, optimized=how, hashed=verify, force=force, clock=clock)
    return {
        "status": "done",
        "environment": environment(),
        "options": arguments,
        "module": (
            SourceModule(label=program.label, class_name="", modules=0, parameters=0, sha256=None)
            if program.call is None
            else source_module(program.call.module, program.label, hashed=verify)
        ),
        "inputs": () if program.call is None else example_inputs(program.call, program.axes),
        "outputs": tuple(value.name or "" for value in model.graph.outputs),
        "result": written.artifact,
        **census_fields(model),
        "verdict": verdict,
        "optimized": written.run,
        "seconds": clock.seconds,
        "notes": (*written.notes, *program.notes),
        "model": model if written.run is None else written.run.model,
    }
