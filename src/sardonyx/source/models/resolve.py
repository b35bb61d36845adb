"""SOURCE on the command line becomes a module: a Hugging Face model, a catalogue's, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sardonyx.errors import UsageError
from sardonyx.source.models import catalogues, huggingface
from sardonyx.source.models.factory import call_factory

_FORMS = "forms: hf:ID_OR_FOLDER, hf-config:CLASS_OR_FILE[?key=value,…], torchvision:NAME, timm:NAME, file.py:factory"


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
        seed: where random weights start.
        filled: False where only sizes matter: weights that would be random are zeros that take no time and no memory.
    """
    scheme, colon, rest = source.partition(":")
    if not colon or not rest:
        raise UsageError(f"'{source}' is not a model source", hint=_FORMS)
    if scheme == "hf":
        return Resolved(huggingface.load_pretrained(rest, task=task), None, None, source)
    if scheme == "hf-config":
        return Resolved(huggingface.build_from_config(rest, task=task, seed=seed, filled=filled), None, None, source)
    if task is not None:
        raise UsageError(f"--task chooses the head of a Hugging Face model; '{source}' is none", hint="leave it out")
    if scheme == "torchvision":
        return Resolved(catalogues.build_torchvision(rest, seed=seed, filled=filled), None, None, source)
    if scheme == "timm":
        return Resolved(catalogues.build_timm(rest, seed=seed, filled=filled), None, None, source)
    return _from_file(source)


def _from_file(source: str) -> Resolved:
    file, _, name = source.rpartition(":")
    path = Path(file).expanduser()
    if path.suffix != ".py":
        raise UsageError(f"'{source}' is not a model source: unknown kind '{source.partition(':')[0]}'", hint=_FORMS)
    if not path.is_file():
        raise UsageError(f"{path} does not exist", hint=_FORMS)
    module, args, kwargs = call_factory(path, name)
    return Resolved(module, args, kwargs, source)
