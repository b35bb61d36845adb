"""`sardonyx.analyze`: the costs of a model as it is, with its attention decomposed, and with its attention fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sardonyx.analysis import onnx_models
from sardonyx.errors import UsageError
from sardonyx.frontend.installed import require_torch
from sardonyx.frontend.models.sources import parse_source
from sardonyx.records import gc_pause
from sardonyx.records.analysis import Analysis
from sardonyx.records.environment import environment
from sardonyx.records.progress import Clock, Progress

if TYPE_CHECKING:
    from torch import nn

    from sardonyx.frontend.inputs.example_resolution import Dims, Inputs
    from sardonyx.frontend.models.sources import Dtype
    from sardonyx.ir.tagged_model import Source as OnnxSource


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
    as_in_notes: bool = False,
    seed: int = 0,
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
        as_in_notes: Add the legacy memory estimate, which is not the memory that a run needs (docs/memory.md).
        seed: Seed of random inputs.
        progress: Called with the phase.

    Raises:
        UsageError: If the source is not a model, or an option does not apply to it.
        ModelError: If the model cannot be read or run.
    """
    clock = Clock(progress)
    if onnx_models.is_onnx(source):
        _refuse_for_onnx(
            {
                "inputs": inputs is not None or bool(kwargs),
                "task": task is not None,
                "dtype": dtype != "keep",
                "dynamic dimensions": dynamic is not None,
                "legacy memory estimate": as_in_notes,
            }
        )
        with gc_pause.paused():
            results = onnx_models.analyze_onnx([cast("OnnxSource", source), *beside], sizes or {}, clock)
    else:
        if beside:
            raise UsageError("only ONNX models are analyzed side by side", hint="analyze a torch model alone")
        if sizes:
            raise UsageError("sizes apply to ONNX models only", hint="give a torch model inputs of those sizes")
        if isinstance(source, str):
            parse_source(source, task=task)
        with clock.phase("loading torch"):
            require_torch()
            from sardonyx.analysis import torch_models
        options = torch_models.TorchOptions(inputs, kwargs, task, dtype, dynamic, as_in_notes, seed)
        with gc_pause.paused():
            results = torch_models.analyze_torch(cast("nn.Module | str", source), options, clock)
    return Analysis(
        environment=environment(),
        options={"task": task, "dtype": dtype, "seed": seed, "as_in_notes": as_in_notes, "sizes": dict(sizes or {})},
        sources=results.sources,
        sizes=results.sizes,
        forms=results.forms,
        missing=results.missing,
        overtaking=results.overtaking,
        notes=results.notes,
        seconds=clock.seconds,
    )


def _refuse_for_onnx(options: Mapping[str, bool]) -> None:
    wrong = next((option for option, is_set in options.items() if is_set), None)
    if wrong is not None:
        raise UsageError(f"an ONNX model takes no {wrong}", hint="leave it out, or analyze the torch model")
