"""ONNX files as columns of an analysis: read, never run, and their weights never looked at."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.analysis.cache_formula import cache_of_graph
from sardonyx.analysis.census import Census, modules, port
from sardonyx.analysis.columns import Found, Subject, measured, overtaking
from sardonyx.analysis.costs.onnx_program import program_of
from sardonyx.analysis.costs.program import Program
from sardonyx.errors import UsageError
from sardonyx.ir.tagged_model import Source as OnnxSource
from sardonyx.ir.tagged_model import Tagged, tagged
from sardonyx.records.analysis import AnalysisSource
from sardonyx.records.inspection import Port
from sardonyx.records.progress import Clock

BATCH, OTHER = 1, 128  # what is assumed of a first axis and of any other


def is_one(source: object) -> bool:
    """Whether this is an ONNX model: one in memory, or a path that is a file or is named like one."""
    if isinstance(source, (onnx.ModelProto, ir.Model, os.PathLike)):
        return True
    if not isinstance(source, str):
        return False
    return source.endswith(".onnx") or (Path(source).is_file() and not source.endswith(".py"))


def analyzed(sources: Sequence[OnnxSource], sizes: Mapping[str, int], clock: Clock) -> Found:
    """Each as a form of its own, all at the same sizes."""
    with clock.phase("reading"):
        models = [tagged(source) for source in sources]
        ports = [_inputs(each) for each in models]
    with clock.phase("operations"):
        subjects = [_subject(each, name) for each, name in zip(models, _names(models), strict=True)]
    chosen, notes = _chosen([each.program for each in subjects], ports, sizes)
    with clock.phase("costs"):
        forms = [measured(each, {dim: chosen[dim] for dim in each.program.symbols}) for each in subjects]
        turns = overtaking(forms, chosen)
    return Found(
        sources=tuple(
            AnalysisSource(each.name, "onnx", None, inputs, cache_of_graph(each.model, chosen))
            for each, inputs in zip(models, ports, strict=True)
        ),
        sizes=chosen,
        forms=tuple(each.form for each in forms),
        overtaking=turns,
        notes=notes,
    )


def _inputs(found: Tagged) -> tuple[Port, ...]:
    return tuple(port(value) for value in found.model.graph.inputs if not value.is_initializer())


def _names(models: Sequence[Tagged]) -> list[str]:
    """File names, or as much of the paths as tells them apart."""
    short = [os.path.basename(each.name) or each.name for each in models]
    if len(set(short)) == len(short):
        return short
    full = [each.name for each in models]
    return full if len(set(full)) == len(full) else [f"{name} ({index})" for index, name in enumerate(full, 1)]


def _subject(found: Tagged, name: str) -> Subject:
    census = Census.of(found.model)
    program = program_of(found.model)
    known = modules(census, found.hierarchy)
    return Subject(
        name=name,
        program=program,
        nodes=census.counts.nodes,
        kinds={each.path: each.tag for each in known},
        parameters={each.path: each.parameters for each in known},
    )


def _chosen(
    programs: Sequence[Program], ports: Sequence[Sequence[Port]], asked: Mapping[str, int]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """A size for every open dim: what the user says, else something usual, which is told."""
    known = dict.fromkeys(dim for program in programs for dim in program.symbols)
    for dim, size in asked.items():
        if dim not in known:
            close = difflib.get_close_matches(dim, known, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"no dim '{dim}' is open", hint=f"{meant}open dims: {', '.join(known) or 'none'}")
        if size < 1:
            raise UsageError(f"{dim} cannot be {size}", hint="sizes begin at 1")
    first = {each.shape[0] for inputs in ports for each in inputs if each.shape}
    chosen = {dim: asked.get(dim, BATCH if dim in first else OTHER) for dim in known}
    assumed = [f"{dim}={size}" for dim, size in chosen.items() if dim not in asked]
    return chosen, (f"assumed sizes of open dims: {', '.join(assumed)}; --size NAME=N sets one",) if assumed else ()
