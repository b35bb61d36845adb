"""Compares a model with its rewritten form: results, gradients, and positions of NaN."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12}
CANCELLED = 1e-12  # of the largest number: what is smaller in float64 is zero but for rounding


def random_weights(model: ModuleT) -> ModuleT:
    """The model with random numbers in all parameters; torch initializes biases with zeros, which hide errors."""
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model


def random_tensor(*shape: int, seed: int = 1) -> torch.Tensor:
    """A random tensor."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(model: Callable[..., Any], inputs: Mapping[str, Any], *, grad: bool, seed: int = 5) -> list[torch.Tensor]:
    """Results, and with `grad` the gradients of all inputs and parameters, under the same dropout."""
    torch.default_generator.manual_seed(seed)
    if not grad:
        with torch.no_grad():
            return _tensors(model(**inputs))
    given = {name: _leaf(value) for name, value in inputs.items()}
    named = sorted(model.named_parameters()) if isinstance(model, nn.Module) else []
    parameters = [parameter for _, parameter in named if parameter.requires_grad]
    results = _tensors(model(**given))
    generator = torch.Generator().manual_seed(seed)
    weighted = [(r * torch.randn(r.shape, generator=generator).to(r.dtype)).sum() for r in results]
    wanted = [v for v in given.values() if isinstance(v, torch.Tensor) and v.requires_grad] + parameters
    gradients = torch.autograd.grad(
        functools.reduce(operator.add, weighted), wanted, allow_unused=True, materialize_grads=True
    )
    return [*(r.detach() for r in results), *gradients]


def agree(actual: list[torch.Tensor], expected: list[torch.Tensor], truth: list[torch.Tensor] | None = None) -> None:
    """Fail unless both are the same to the accuracy of their dtype, or ours is closer to the `truth` in float64.

    The gradient of a mask that softmax cancels is zero; in float32 it consists of rounding errors of what cancels,
    which is as large as the other gradients. bfloat16 rounds at every step: ours may be twice as far from the truth as
    torch's, plus the rounding of eight steps.
    """
    assert len(actual) == len(expected)
    half = any(theirs.dtype == torch.bfloat16 for theirs in expected)
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours.isnan(), theirs.isnan()), index
        off, allowed = distance(ours, theirs), LIMITS.get(theirs.dtype, 0.0)
        if off > allowed and truth is not None:
            off, allowed = distance(ours, truth[index]), distance(theirs, truth[index])
            if half:
                allowed = 2 * allowed + 8 * torch.finfo(torch.bfloat16).eps
            elif _largest([truth[index]]) < CANCELLED * _largest(truth):
                off, allowed = distance(ours, theirs) * 0.1 / _largest(truth), LIMITS[theirs.dtype]
        assert off <= allowed, (index, off, allowed)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Fail unless two float32 tensors are the same except for rounding."""
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The greatest difference, relative to the greatest number.

    If all numbers are small, they are the rest of a sum in which numbers of about 1 cancel, and have their error.
    """
    a, b = actual.double().nan_to_num(), expected.double().nan_to_num()
    if not a.numel():
        return 0.0
    size = b.abs().max().item()
    return (a - b).abs().max().item() / max(size, 0.1)


def _largest(tensors: Iterable[torch.Tensor]) -> float:
    """The greatest number of all."""
    return max(tensor.double().nan_to_num().abs().max().item() for tensor in tensors if tensor.numel())


def doubled(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers in float64."""
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def _leaf(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().clone().requires_grad_()
    return value


def _tensors(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, tuple) else (result,)
    return [item for item in items if item is not None]
