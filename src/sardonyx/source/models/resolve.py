"""SOURCE on the command line becomes a module: a Hugging Face model, a catalogue's, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sardonyx.source.models import catalogues, huggingface
from sardonyx.source.models.dtypes import converted, converted_copy, default_dtype
from sardonyx.source.models.factory import call_factory
from sardonyx.source.models.sources import Dtype, Kind, parse_source


@dataclass(frozen=True, slots=True)
class Resolved:
    """A module in eval mode and the example inputs that came with it; None means they are still to be derived."""

    module: nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    label: str
    dtype: Dtype = "keep"  # that it was converted to; its example inputs follow
    notes: tuple[str, ...] = ()


def resolve(
    source: str,
    *,
    task: str | None = None,
    default_task: str | None = None,
    seed: int = 0,
    filled: bool = True,
    dtype: Dtype | None = "keep",
) -> Resolved:
    """The module that SOURCE stands for.

    Args:
        source: `hf:…`, `hf-config:…`, `torchvision:…`, `timm:…` or `file.py:factory`.
        task: which head a Hugging Face model gets: a task (`text-classification`), or a class name.
        default_task: the task where `task` is None and neither the source nor its config names a model class.
        seed: where random weights start; torch is seeded with it while a factory runs.
        filled: False where only sizes matter: weights that would be random are zeros that take no time and no memory.
        dtype: of its floating-point weights and example inputs; None is the default of an export.
    """
    parsed = parse_source(source, task=task)
    wanted = parsed.export_dtype if dtype is None else dtype
    if parsed.kind is Kind.PRETRAINED:
        module, saved = huggingface.load_pretrained(parsed.name, task=task, default_task=default_task, dtype=wanted)
        said = f"the checkpoint is {saved}, exported in {wanted}; --dtype keep exports it in {saved}"
        notes = (said,) if dtype is None and saved not in (None, wanted) else ()
        return Resolved(module, None, None, source, wanted, notes)
    if parsed.file is not None:
        module, args, kwargs = call_factory(parsed.file, parsed.name, seed=seed)
        return Resolved(converted(module, wanted), args, kwargs, source, wanted)
    if parsed.kind is Kind.CONFIG:
        with default_dtype(wanted):
            module = huggingface.build_from_config(
                parsed.name, task=task, default_task=default_task, seed=seed, filled=filled
            )
        return Resolved(module, None, None, source, wanted)
    build = catalogues.build_torchvision if parsed.kind is Kind.TORCHVISION else catalogues.build_timm
    return Resolved(converted(build(parsed.name, seed=seed, filled=filled), wanted), None, None, source, wanted)


def given(module: nn.Module, dtype: Dtype | None) -> Resolved:
    """A module that the caller has; a copy of it where another type is asked for."""
    wanted = dtype or "keep"
    return Resolved(converted_copy(module, wanted), None, None, type(module).__name__, wanted)
