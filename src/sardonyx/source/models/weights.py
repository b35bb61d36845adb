"""Seeded random weights under which a wrong rewrite shows.

Fresh modules start with zero biases, unit scales and untouched running statistics: values that most wrong rewrites
leave right. Here everything that is constant gets values of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """Torch's generator at `seed` inside, and as it was afterwards."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every bias, constant weight and normalisation statistic a value that shows in the output; sets eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, buffer in model.named_buffers():
            if key.endswith("running_mean"):
                buffer.normal_(0, 0.1, generator=generator)
            elif key.endswith("running_var"):
                buffer.uniform_(0.5, 1.5, generator=generator)
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(0, 0.05, generator=generator)
            elif not parameter.any():
                parameter.normal_(0, 0.02, generator=generator)  # some heads start as all zeros
            elif _is_constant(parameter):
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.05, generator=generator))  # unit scales
    return model.eval()


def _is_constant(parameter: Tensor) -> bool:
    return parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all())
