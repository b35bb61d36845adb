"""Settings of transformers under which both exporters can follow its models, for the time of an export.

It computes experts in one of several ways, which a model's config names (`experts_implementation`). Its
default sorts the tokens by expert and runs a kernel that ONNX has no operator for; the plain one loops over the experts
that this input happens to choose. `batched_mm` gathers the weights that each token chose and multiplies by them: the
same operations whatever the routing is.

Its checks of values (as many image tokens as image features) have no ONNX operator. It can be told to leave them out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

from torch import nn

TRACEABLE = "batched_mm"
_CHOICE = "_experts_implementation_internal"  # where a config keeps it; the public name sets it below as well

_CHECKS_OFF = "TRANSFORMERS_DISABLE_TORCH_CHECK"  # documented at transformers.utils.torch_compilable_check


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


@contextlib.contextmanager
def without_checks() -> Generator[None]:
    """Let transformers check no values: its models compute the same without."""
    before = os.environ.get(_CHECKS_OFF)
    os.environ[_CHECKS_OFF] = "1"
    try:
        yield
    finally:
        os.environ.pop(_CHECKS_OFF)
        if before is not None:
            os.environ[_CHECKS_OFF] = before


def _configs(module: nn.Module) -> list[Any]:
    found: list[Any] = [getattr(each, "config", None) for each in module.modules()]
    return [config for config in found if _CHOICE in getattr(config, "__dict__", {})]
