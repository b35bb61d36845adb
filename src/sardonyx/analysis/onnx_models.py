"""Analyze ONNX models: each is one form of the analysis. Only the graph is read; nothing is run."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.analysis.cache_formula import cache_of_graph
from sardonyx.analysis.census import Census, modules, port
from sardonyx.analysis.costs.onnx_program import program_of
from sardonyx.analysis.costs.program import Program
from sardonyx.analysis.forms import AnalysisResults, Subject, measure, overtaking
from sardonyx.errors import UsageError
from sardonyx.ir.tagged_model import Source as OnnxSource
from sardonyx.ir.tagged_model import Tagged, tagged
from sardonyx.records.analysis import AnalysisSource
from sardonyx.records.inspection import Port
from sardonyx.records.progress import Clock

_BATCH, _OTHER = 1, 128  # the sizes assumed for a dynamic first axis and for any other


def is_onnx(source: object) -> bool:
    """Return whether a source is an ONNX model in memory, or a path to an existing file or one ending in .onnx."""
    if isinstance(source, (onnx.ModelProto, ir.Model, os.PathLike)):
        return True
    if not isinstance(source, str):
        return False
    return source.endswith(".onnx") or (Path(source).is_file() and not source.endswith(".py"))


def analyze_onnx(sources: Sequence[OnnxSource], sizes: Mapping[str, int], clock: Clock) -> AnalysisResults:
    """Analyze each model as one form, all at the same sizes."""
    with clock.phase("reading"):
        models = [tagged(source) for source in sources]
        ports = [_inputs(model) for model in models]
    with clock.phase("operations"):
        subjects = [_subject(model, name) for model, name in zip(models, _names(models), strict=True)]
    chosen, notes = _choose_sizes([subject.program for subject in subjects], ports, sizes)
    with clock.phase("costs"):
        forms = [measure(subject, {dim: chosen[dim] for dim in subject.program.symbols}) for subject in subjects]
        turns = overtaking(forms, chosen)
    return AnalysisResults(
        sources=tuple(
            AnalysisSource(model.name, "onnx", None, inputs, cache_of_graph(model.model, chosen))
            for model, inputs in zip(models, ports, strict=True)
        ),
        sizes=chosen,
        forms=tuple(measured.form for measured in forms),
        overtaking=turns,
        notes=notes,
    )


def _inputs(source: Tagged) -> tuple[Port, ...]:
    return tuple(port(value) for value in source.model.graph.inputs if not value.is_initializer())


def _names(models: Sequence[Tagged]) -> list[str]:
    """Return the file names, or if they are not unique, the whole paths, with numbers if those are equal too."""
    short = [os.path.basename(model.name) or model.name for model in models]
    if len(set(short)) == len(short):
        return short
    full = [model.name for model in models]
    return full if len(set(full)) == len(full) else [f"{name} ({index})" for index, name in enumerate(full, 1)]


def _subject(source: Tagged, name: str) -> Subject:
    census = Census.of(source.model)
    rows = modules(census, source.hierarchy)
    return Subject(
        name=name,
        program=program_of(source.model),
        nodes=census.counts.nodes,
        kinds={module.path: module.tag for module in rows},
        parameters={module.path: module.parameters for module in rows},
    )


def _choose_sizes(
    programs: Sequence[Program], ports: Sequence[Sequence[Port]], requested: Mapping[str, int]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return a size for every dynamic dimension, requested or assumed, and a note on those that are assumed."""
    dims = dict.fromkeys(dim for program in programs for dim in program.symbols)
    for dim, size in requested.items():
        if dim not in dims:
            close = difflib.get_close_matches(dim, dims, n=1)
            suggestion = f"did you mean {close[0]}? " if close else ""
            hint = f"{suggestion}dynamic dimensions: {', '.join(dims) or 'none'}"
            raise UsageError(f"there is no dynamic dimension '{dim}'", hint=hint)
        if size < 1:
            raise UsageError(f"{dim} cannot be {size}", hint="sizes start at 1")
    first = {value.shape[0] for inputs in ports for value in inputs if value.shape}
    sizes = {dim: requested.get(dim, _BATCH if dim in first else _OTHER) for dim in dims}
    assumed = ", ".join(f"{dim}={size}" for dim, size in sizes.items() if dim not in requested)
    note = f"assumed sizes of dynamic dimensions: {assumed}; `sizes={{'NAME': N}}` sets one"
    return sizes, (note,) if assumed else ()
