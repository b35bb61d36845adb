"""Seeded random weights under which a wrong rewrite shows, or none where only sizes matter.

Fresh modules start with zero biases, unit scales and untouched running statistics: values that most wrong rewrites
leave right. Here everything that is constant gets values of its own. Drawing the weights of a large model takes half a
minute, which a question about sizes need not wait for.
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
    """Torch's generator at `seed` inside, and as it was afterwards."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def built(build: Callable[[], nn.Module], seed: int, *, filled: bool = True) -> nn.Module:
    """The model in eval mode, with seeded random weights, or where only sizes matter with zeros that take no memory."""
    if not filled:
        try:
            return _unfilled(build).eval()
        except Exception:  # some initialisations read what they wrote, and answer anything when they cannot
            pass  # then it is built in full, where a fault of its own shows
    with seeded(seed):
        return randomize(build(), seed)


def _unfilled(build: Callable[[], nn.Module]) -> nn.Module:
    """Parameters have no data while the model is built, so that initialising them costs nothing; then they are zero."""
    originals: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # the parameter too, so that its id stays its own
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
    """Zeros that take memory only where they are written to: numpy asks the system for them, torch would write them."""
    octets: Any = np.zeros(like.numel() * like.element_size(), np.uint8)
    data = torch.from_numpy(octets)  # pyright: ignore[reportUnknownMemberType]  (torch's own types have gaps)
    data = data.view(like.dtype) if like.numel() else data.to(like.dtype)
    return nn.Parameter(data.view(like.shape), like.requires_grad)


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


# A module's weights as one number, so that a record can say which weights were exported.


def named_state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's parameters and buffers by name, in order."""
    yield from sorted((*module.named_parameters(), *module.named_buffers()), key=lambda pair: pair[0])


def state_sha256(module: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in named_state(module):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = _plain(tensor.detach()).cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers as they are, where they are stored in another form."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return dense.int_repr() if dense.is_quantized else dense
