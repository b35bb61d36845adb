"""Prepares a module for export: in eval mode, or training mode if asked for, and without torch's wrappers.

The caller's module is restored afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.frontend.module_state import fast_paths, restoring_state, tensors_of
from sardonyx.frontend.running import evaluate, set_training
from sardonyx.frontend.tracing.scripted import unscripted

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


@contextlib.contextmanager
def prepared(module: torch.nn.Module, *, training: bool = False) -> Generator[torch.nn.Module]:
    """Yield the module in the form that is exported; on exit the caller's module is unchanged.

    In training mode, a module that is in it keeps the modes of its submodules.

    Compiled modules are replaced by the modules they wrap, scripted and traced ones by a plain module that interprets
    their graph. Weights whose parametrization has no ONNX operators are computed once.
    """
    with restoring_state(module), fast_paths(enabled=False):
        _without_compiled_calls(module)
        plain: dict[torch.nn.Module, torch.nn.Module] = {}
        root = _plain(module, plain)
        _replace_below(root, lambda child: _plain(child, plain))
        if not training:
            evaluate(root)
        elif not root.training:
            set_training(root, training=True)
        _without_gradients(root)
        _replace_below(root, _precomputed)
        yield root


def _without_compiled_calls(module: torch.nn.Module) -> None:
    """Make modules that were compiled in place run as written."""
    for child in module.modules():
        if child.__dict__.get("_compiled_call_impl") is not None:
            child._compiled_call_impl = None  # pyright: ignore[reportPrivateUsage]  # no public name
        original = getattr(child.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
        if original is not None:
            child.forward = original


def _plain(module: torch.nn.Module, known: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
    """Return the module behind a compiled or scripted one, with the latter's hooks; memoized in `known`."""
    if module not in known:
        inner: Any = module
        while isinstance(inner, torch._dynamo.OptimizedModule):  # pyright: ignore[reportPrivateUsage]  # no public name
            inner = inner._orig_mod  # pyright: ignore[reportPrivateUsage]
        known[module] = unscripted(inner) if isinstance(inner, torch.jit.ScriptModule) else inner
        if inner is not module:
            for table in _HOOKS:
                known[module].__dict__[table].update(module.__dict__.get(table, {}))
    return known[module]


def _without_gradients(root: torch.nn.Module) -> None:
    """Turn off gradients of tensors that are not parameters: exporters make them constants."""
    parameters = set(map(id, root.parameters()))
    for tensor in tensors_of(root):
        if id(tensor) not in parameters and tensor.requires_grad and tensor.is_leaf:
            tensor.requires_grad = False


def _replace_below(root: torch.nn.Module, replacement: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    """Replace every submodule by its replacement, which may be itself."""
    seen: set[torch.nn.Module] = set()
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        if parent in seen:
            continue
        seen.add(parent)
        for name, child in list(parent._modules.items()):  # pyright: ignore[reportPrivateUsage]  # hooks must not run
            if child is None:
                continue
            other = replacement(child)
            if other is not child:
                parent._modules[name] = other  # pyright: ignore[reportPrivateUsage]
            waiting.append(other)


class _ComputedWeight(torch.nn.Module):
    """The precomputed result of a parametrization."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)
        self.training = False

    def forward(self) -> torch.Tensor:
        return self.get_buffer("value")


class _Factorizations(TorchDispatchMode):
    """Detects linear algebra beyond products and norms, for which ONNX has no operators."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name: str = func.overloadpacket.__name__
        self.seen = self.seen or name == "vdot" or ("linalg" in name and "norm" not in name)
        return func(*args, **(kwargs or {}))


def _precomputed(module: torch.nn.Module) -> torch.nn.Module:
    """Return the result of a parametrization that has no ONNX operators, and any other module unchanged."""
    if not isinstance(module, parametrize.ParametrizationList):
        return module
    with torch.no_grad(), _Factorizations() as used:
        value = module()
    return _ComputedWeight(value.detach()) if used.seen else module
