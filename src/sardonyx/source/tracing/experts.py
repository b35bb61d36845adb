"""Mixtures of experts in a form that both exporters can follow, for the time of an export.

transformers computes experts in one of several ways, which a model's config names (`experts_implementation`). Its
default sorts the tokens by expert and runs a kernel that ONNX has no operator for; the plain one loops over the experts
that this input happens to choose. `batched_mm` gathers the weights that each token chose and multiplies by them: the
same operations whatever the routing is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from torch import nn

TRACEABLE = "batched_mm"
_CHOICE = "_experts_implementation_internal"  # where a config keeps it; the public name sets it below as well


@contextlib.contextmanager
def traceable_experts(module: nn.Module) -> Generator[list[str]]:
    """Let every model inside `module` compute its experts by `batched_mm`; yield a note for each other way it had."""
    before = {id(config): (config, config.__dict__[_CHOICE]) for config in _configs(module)}
    try:
        for each in module.modules():
            choose: Any = getattr(each, "set_experts_implementation", None)
            if callable(choose):
                choose(TRACEABLE)
        changed = [was for config, was in before.values() if config.__dict__[_CHOICE] != was]
        yield [f"experts exported as {TRACEABLE} (the model runs {was})" for was in dict.fromkeys(changed)]
    finally:
        for config, was in before.values():
            config.__dict__[_CHOICE] = was


def _configs(module: nn.Module) -> list[Any]:
    found: list[Any] = [getattr(each, "config", None) for each in module.modules()]
    return [config for config in found if _CHOICE in getattr(config, "__dict__", {})]
