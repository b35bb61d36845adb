"""Settings of transformers that make its models exportable, applied during an export.

The library has several implementations of experts, selected by the config (`experts_implementation`). The default sorts
the tokens by expert and runs a kernel that has no ONNX operator; the plain one loops over the experts that this input
selects. `batched_mm` gathers the weights of each token's experts and multiplies by them: the same operations for every
routing.

Its checks of values (as many image tokens as image features) can be disabled. Those of whole tensors have no ONNX
operator. Those of single numbers tell torch what it may assume of a size that depends on values.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import torch
from torch import nn

TRACEABLE = "batched_mm"
_CHOICE = "_experts_implementation_internal"  # the config's attribute; the public name also sets it in nested configs

_CHECKS_OFF = "TRANSFORMERS_DISABLE_TORCH_CHECK"  # documented at transformers.utils.torch_compilable_check


@contextlib.contextmanager
def traceable_experts(module: nn.Module) -> Generator[list[str]]:
    """Use `batched_mm` experts in every model inside `module`; yield a note for each implementation it replaces."""
    before = {id(config): (config, config.__dict__[_CHOICE]) for config in _configs(module)}
    try:
        for child in module.modules():
            set_implementation: Any = getattr(child, "set_experts_implementation", None)
            if callable(set_implementation):
                set_implementation(TRACEABLE)
        changed = [was for config, was in before.values() if config.__dict__[_CHOICE] != was]
        yield [f"experts exported as {TRACEABLE} (the model runs {was})" for was in dict.fromkeys(changed)]
    finally:
        for config, was in before.values():
            config.__dict__[_CHOICE] = was


@contextlib.contextmanager
def without_checks() -> Generator[None]:
    """Disable transformers' checks of values, which do not affect results."""
    before = os.environ.get(_CHECKS_OFF)
    os.environ[_CHECKS_OFF] = "1"
    try:
        yield
    finally:
        os.environ.pop(_CHECKS_OFF)
        if before is not None:
            os.environ[_CHECKS_OFF] = before


@contextlib.contextmanager
def without_tensor_checks() -> Generator[None]:
    """Disable torch's checks of whole tensors, which do not affect results."""
    untyped: Any = torch
    before = untyped._check_tensor_all

    def check_nothing(*_: object) -> None: ...

    untyped._check_tensor_all = check_nothing
    try:
        yield
    finally:
        untyped._check_tensor_all = before


def _configs(module: nn.Module) -> list[Any]:
    configs: list[Any] = [getattr(child, "config", None) for child in module.modules()]
    return [config for config in configs if _CHOICE in getattr(config, "__dict__", {})]
