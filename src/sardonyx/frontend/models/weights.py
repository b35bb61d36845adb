"""Seeded random weights that expose wrong rewrites, or zeros if only sizes matter.

New modules have zero biases, unit scales and initial running statistics. Most wrong rewrites do not show with such
values, so everything constant gets random values. Generating the weights of a large model takes half a minute; analyses
of sizes skip it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@contextlib.contextmanager
def seeded(seed: int) -> Generator[None]:
    """Seed torch's generator, and restore its state on exit."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def build_seeded(build: Callable[[], nn.Module], seed: int, *, filled: bool = True) -> nn.Module:
    """Build a model in eval mode with seeded random weights, or with zeros that take no memory if not `filled`."""
    if not filled:
        try:
            return _unfilled(build).eval()
        except Exception:  # some initializations read what they wrote, and may raise anything if they cannot
            pass  # built in full below, which raises errors of the model itself
    with seeded(seed):
        return randomize(build(), seed)


def _unfilled(build: Callable[[], nn.Module]) -> nn.Module:
    """Build the model with parameters without data, so that initialization costs nothing, then make them zero."""
    originals: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # the parameter is kept so that its id stays unique
    register = nn.Module.register_parameter

    def without_data(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            if id(param) not in originals:
                originals[id(param)] = param, nn.Parameter(param.detach().to("meta"), param.requires_grad)
            param = originals[id(param)][1]
        register(self, name, param)

    nn.Module.register_parameter = without_data
    try:
        model = build()
    finally:
        nn.Module.register_parameter = register
    zeros: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if parameter.is_meta:
                setattr(module, name, zeros.setdefault(id(parameter), _zero(parameter)))
    return model


def _zero(like: nn.Parameter) -> nn.Parameter:
    """Return zeros that take no memory until written to: numpy gets zeroed pages from the system, torch writes them."""
    raw: Any = np.zeros(like.numel() * like.element_size(), np.uint8)
    data = torch.from_numpy(raw)  # pyright: ignore[reportUnknownMemberType]  (torch's own types have gaps)
    data = data.view(like.dtype) if like.numel() else data.to(like.dtype)
    return nn.Parameter(data.view(like.shape), like.requires_grad)


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give biases, constant weights and normalization statistics values that affect the output; set eval mode."""
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


def named_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's parameters and buffers with their names, sorted by name."""
    yield from sorted((*module.named_parameters(), *module.named_buffers()), key=lambda pair: pair[0])


def state_sha256(module: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in named_state(module):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = _plain(tensor.detach()).cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored numbers of a sparse or quantized tensor as a dense tensor."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.int_repr() if dense.is_quantized else dense
