"""`sardonyx.analyze`: the costs of a model as it is, with its attention decomposed, and with its attention fused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import onnx
import onnx_ir as ir
from msgspec.structs import asdict

from sardonyx.common import gc_pause
from sardonyx.errors import UsageError
from sardonyx.frontend.installed import require_torch
from sardonyx.frontend.sources import parse_source
from sardonyx.inputs.generator import LENGTH, dynamic_dims
from sardonyx.ir.origins import Source as OnnxSource
from sardonyx.ir.origins import Tagged, distinct_labels, tagged
from sardonyx.records.analysis import Analysis, AnalysisSource
from sardonyx.records.environment import environment
from sardonyx.records.progress import Clock, Progress
from sardonyx.verbs.analyze.census import Census, modules, port
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.peak_memory import check_sizes
from sardonyx.verbs.analyze.costs.program import Program
from sardonyx.verbs.analyze.forms import AnalysisResults, Subject, cache_of_graph, measure, overtaking

if TYPE_CHECKING:
    from torch import nn

    from sardonyx.frontend.inputs.examples import Dims, Inputs
    from sardonyx.frontend.sources import Dtype


def analyze(
    source: nn.Module | OnnxSource,
    inputs: Inputs = None,
    *,
    beside: Sequence[OnnxSource] = (),
    kwargs: Mapping[str, Any] | None = None,
    task: str | None = None,
    dtype: Dtype = "keep",
    dynamic: Dims = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    formulas: bool = True,
    progress: Progress | None = None,
) -> Analysis:
    """Compute what a model costs: operations, arithmetic, bytes moved, peak memory, and what of it can be fused.

    A torch model is run once on fake tensors for each form: as it is, with its attention decomposed, and with its
    attention fused. Of an ONNX file only the graph is read, not the weights.

    Args:
        source: A module, a source as `export` accepts it, an ONNX file, or an ONNX model in memory.
        inputs: Example inputs of a torch model, as `export` accepts them; derived if None.
        beside: More ONNX models to analyze beside the first.
        kwargs: Keyword inputs in addition to positional ones.
        task: The head of a Hugging Face model.
        dtype: Floating-point type of a torch model; "keep" is the type that it has or is saved in.
        dynamic: Dynamic dimensions of a torch model, as `export` accepts them: costs become formulas too.
        sizes: Sizes of the dynamic dimensions of ONNX models; missing ones are assumed, which is noted.
        seed: Seed of random inputs.
        formulas: Derive the costs of ONNX models for all sizes too, which can take minutes if sizes are divided often.
        progress: Called with the phase.

    Raises:
        UsageError: If the source is not a model, or an option does not apply to it.
        ModelError: If the model cannot be read or run.
    """
    clock = Clock(progress)
    if is_onnx(source):
        given = {"inputs": inputs is not None or kwargs, "task": task is not None, "dtype": dtype != "keep"}
        given["dynamic dimensions"] = dynamic is not None
        wrong = next((option for option, is_set in given.items() if is_set), None)
        if wrong is not None:
            raise UsageError(f"an ONNX model takes no {wrong}", hint="leave it out, or analyze the torch model")
        with gc_pause.paused():
            results = analyze_onnx([cast("OnnxSource", source), *beside], sizes or {}, clock, formulas=formulas)
    else:
        if beside:
            raise UsageError("only ONNX models are analyzed side by side", hint="analyze a torch model alone")
        if sizes:
            raise UsageError("sizes apply to ONNX models only", hint="give a torch model inputs of those sizes")
        if isinstance(source, str):
            parse_source(source, task=task)
        with clock.phase("loading torch"):
            require_torch()
            from sardonyx.verbs.analyze import torch_models
        with gc_pause.paused():
            torch_source = cast("nn.Module | str", source)
            results = torch_models.analyze_torch(torch_source, clock, inputs, kwargs, task, dtype, dynamic, seed)
    return Analysis(
        environment=environment(),
        options={"task": task, "dtype": dtype, "seed": seed, "sizes": dict(sizes or {})},
        **asdict(results),
        seconds=clock.seconds,
    )


# Analyze ONNX models: each is one form of the analysis. Only the graph is read; nothing is run.


def is_onnx(source: object) -> bool:
    """Return whether a source is an ONNX model in memory, or a path to an existing file or one ending in .onnx."""
    if isinstance(source, (onnx.ModelProto, ir.Model, os.PathLike)):
        return True
    if not isinstance(source, str):
        return False
    return source.endswith(".onnx") or (Path(source).is_file() and not source.endswith(".py"))


def analyze_onnx(
    sources: Sequence[OnnxSource], sizes: Mapping[str, int], clock: Clock, *, formulas: bool = True
) -> AnalysisResults:
    """Analyze each model as one form, all at the same sizes."""
    with clock.phase("reading"):
        models = [tagged(source) for source in sources]
        ports = [
            tuple(port(value) for value in source.model.graph.inputs if not value.is_initializer()) for source in models
        ]
    with clock.phase("operations"):
        subjects = list(map(_subject, models, distinct_labels([model.name for model in models])))
    found = [dynamic_dims(source.model) for source in models]
    chosen, notes = _choose_sizes([subject.program for subject in subjects], found, sizes)
    with clock.phase("costs"):
        sizes_of = [{dim: chosen[dim] for dim in subject.program.symbols} for subject in subjects]
        forms = [measure(each, own, formulas=formulas) for each, own in zip(subjects, sizes_of, strict=True)]
        turns = overtaking(forms, chosen)
    return AnalysisResults(
        sources=tuple(
            AnalysisSource(model.name, "onnx", None, inputs, cache_of_graph(model.model, chosen))
            for model, inputs in zip(models, ports, strict=True)
        ),
        sizes={_plain(dim): size for dim, size in chosen.items()},
        forms=tuple(measured.form for measured in forms),
        overtaking=turns,
        notes=notes,
    )


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
    programs: Sequence[Program], found: Sequence[Mapping[str, int]], requested: Mapping[str, int]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return a size for every dynamic dimension, requested or else accepted by the graph, and a note on the latter."""
    dims = {_plain(dim): dim for program in programs for dim in program.symbols}
    check_sizes(requested, dims)
    accepted = {dim: size for each in reversed(found) for dim, size in each.items()}
    sizes = {dim: requested.get(dim, accepted.get(dim, LENGTH)) for dim in dims}
    assumed = ", ".join(f"{dim}={size}" for dim, size in sizes.items() if dim not in requested)
    note = f"assumed sizes of dynamic dimensions: {assumed}; `sizes={{'NAME': N}}` sets one"
    return {dims[dim]: size for dim, size in sizes.items()}, (note,) if assumed else ()


def _plain(dim: str) -> str:
    """Return a dimension as other commands name it; formulas have quotes around names such as "x[0]"."""
    return dim.strip("'")
