"""`sardonyx.analyze`: what a model does and holds, as it is, with its attention spelled out, and with it fused."""

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
    """What a model costs: operations, arithmetic, bytes moved, peak memory, and what of it fuses.

    A torch model is run once without its data for each form: as it is, with its attention spelled out, and with its
    attention fused. An ONNX file is read; its weights are not.

    Args:
        source: a module, where one comes from as `export` takes it, an ONNX file, or an ONNX model in memory.
        inputs: example inputs of a torch model, as `export` takes them; derived where None.
        beside: more ONNX models, to stand beside the first.
        kwargs: keyword inputs beside positional ones.
        task: which head a Hugging Face model gets.
        dtype: floating-point type of a torch model; "keep" is the one that it has or is saved in.
        dynamic: dims of a torch model to leave open, as `export` takes them: numbers become formulas too.
        sizes: of the open dims of ONNX models; where not given they are assumed, which is noted.
        as_in_notes: add the estimate by the notes' definition, which is not what anything needs (docs/memory.md).
        seed: of what is drawn.
        progress: told the phase.

    Raises:
        UsageError: the source is none, or an option does not go with it.
        ModelError: the model cannot be read or run.
    """
    clock = Clock(progress)
    if onnx_models.is_one(source):
        _refuse_for_onnx(
            {
                "inputs": inputs is not None or bool(kwargs),
                "task": task is not None,
                "dtype": dtype != "keep",
                "dynamic dims to open": dynamic is not None,
                "estimate as in the notes": as_in_notes,
            }
        )
        with gc_pause.paused():
            found = onnx_models.analyzed([cast("OnnxSource", source), *beside], sizes or {}, clock)
    else:
        if beside:
            raise UsageError("only ONNX files stand side by side", hint="analyze a torch model alone")
        if sizes:
            raise UsageError("sizes are for ONNX files", hint="give a torch model inputs of those sizes")
        if isinstance(source, str):
            parse_source(source, task=task)
        with clock.phase("loading torch"):
            require_torch()
            from sardonyx.analysis import torch_models
        wish = torch_models.Wish(inputs, kwargs, task, dtype, dynamic, as_in_notes, seed)
        with gc_pause.paused():
            found = torch_models.analyzed(cast("nn.Module | str", source), wish, clock)
    return Analysis(
        environment=environment(),
        options={"task": task, "dtype": dtype, "seed": seed, "as_in_notes": as_in_notes, "sizes": dict(sizes or {})},
        sources=found.sources,
        sizes=found.sizes,
        forms=found.forms,
        missing=found.missing,
        overtaking=found.overtaking,
        notes=found.notes,
        seconds=clock.seconds,
    )


def _refuse_for_onnx(given: Mapping[str, bool]) -> None:
    wrong = next((what for what, is_given in given.items() if is_given), None)
    if wrong is not None:
        raise UsageError(f"an ONNX file takes no {wrong}", hint="leave it out, or analyze the torch model")
