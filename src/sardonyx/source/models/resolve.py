"""SOURCE on the command line becomes a module: a Hugging Face model, a catalogue's, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sardonyx.source.models import catalogues, huggingface
from sardonyx.source.models.factory import call_factory
from sardonyx.source.models.sources import Kind, parse_source


@dataclass(frozen=True, slots=True)
class Resolved:
    """A module in eval mode and the example inputs that came with it; None means they are still to be derived."""

    module: nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    label: str


def resolve(source: str, *, task: str | None = None, seed: int = 0, filled: bool = True) -> Resolved:
    """The module that SOURCE stands for.

    Args:
        source: `hf:…`, `hf-config:…`, `torchvision:…`, `timm:…` or `file.py:factory`.
        task: which head a Hugging Face model gets: a task (`text-classification`), or a class name.
        seed: where random weights start; torch is seeded with it while a factory runs.
        filled: False where only sizes matter: weights that would be random are zeros that take no time and no memory.
    """
    parsed = parse_source(source, task=task)
    if parsed.file is not None:
        return Resolved(*call_factory(parsed.file, parsed.name, seed=seed), source)
    if parsed.kind is Kind.PRETRAINED:
        module = huggingface.load_pretrained(parsed.name, task=task)
    elif parsed.kind is Kind.CONFIG:
        module = huggingface.build_from_config(parsed.name, task=task, seed=seed, filled=filled)
    else:
        build = catalogues.build_torchvision if parsed.kind is Kind.TORCHVISION else catalogues.build_timm
        module = build(parsed.name, seed=seed, filled=filled)
    return Resolved(module, None, None, source)
