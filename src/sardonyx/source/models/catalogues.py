"""Image models by name from torchvision and timm, both optional installs, with seeded random weights."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from sardonyx.errors import UsageError
from sardonyx.source.models.weights import built
from sardonyx.source.quiet import quietly
from sardonyx.source.words import reason, suggest


def build_torchvision(name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """`torchvision:NAME`."""
    models = _package("torchvision").models
    _require_known(name, models.list_models(), "torchvision")
    options = inspect.signature(models.get_model_builder(name)).parameters
    bare = {option: None for option in ("weights", "weights_backbone") if option in options}
    with quietly():
        return built(lambda: models.get_model(name, **bare), seed, filled=filled)


def build_timm(name: str, *, seed: int, filled: bool = True) -> nn.Module:
    """`timm:NAME`."""
    timm = _package("timm")
    _require_known(name, timm.list_models(), "timm")
    with quietly():
        return built(lambda: timm.create_model(name, pretrained=False), seed, filled=filled)


def _package(name: str) -> Any:
    try:
        with quietly():
            return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name}: models need {name}, which is not installed", hint=f"pip install {name}") from error
    except RuntimeError as error:  # its compiled operators were built for another torch
        raise UsageError(
            f"{name} does not load beside this torch: {reason(error)}", hint=f"install the {name} that matches torch"
        ) from error


def _require_known(name: str, known: Sequence[str], package: str) -> None:
    if name not in known:
        raise UsageError(f"{package} has no model '{name}'", hint=suggest(name, known))
