"""The module as it is exported: in eval mode, and plain where torch's wrappers would hide it; as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.source.tracing.scripted import unscripted

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


@contextlib.contextmanager
def prepared(module: torch.nn.Module) -> Generator[torch.nn.Module]:
    """Yield the module as the exporters take it; on leaving, nothing of the caller's module has changed.

    Compiled modules run as what they wrap, scripted and traced ones as a plain module that follows their graph, and
    weights that a parametrization computes in ways ONNX has no operators for are computed once.
    """
    with contextlib.ExitStack() as undo:
        _without_compiled_calls(module, undo)
        plain: dict[torch.nn.Module, torch.nn.Module] = {}
        root = _plain(module, plain, undo)
        _replace_below(root, lambda child: _plain(child, plain, undo), undo)
        _evaluate(root, undo)
        _replace_below(root, _computed, undo)
        yield root


def _without_compiled_calls(module: torch.nn.Module, undo: contextlib.ExitStack) -> None:
    """Modules that were compiled in place run as written."""
    for each in module.modules():
        compiled: Any = each.__dict__.get("_compiled_call_impl")
        if compiled is not None:
            each._compiled_call_impl = None  # pyright: ignore[reportPrivateUsage]  # has no public face
            undo.callback(setattr, each, "_compiled_call_impl", compiled)


def _plain(
    module: torch.nn.Module, known: dict[torch.nn.Module, torch.nn.Module], undo: contextlib.ExitStack
) -> torch.nn.Module:
    """What a compiled or scripted module stands for, with the hooks it has itself; always the same for the same."""
    if module not in known:
        inner: Any = module
        while isinstance(inner, torch._dynamo.OptimizedModule):  # pyright: ignore[reportPrivateUsage]  # no public name
            inner = inner._orig_mod  # pyright: ignore[reportPrivateUsage]
        known[module] = unscripted(inner) if isinstance(inner, torch.jit.ScriptModule) else inner
        if inner is not module:
            _lend_hooks(module, known[module], undo)
    return known[module]


def _lend_hooks(wrapper: torch.nn.Module, inner: torch.nn.Module, undo: contextlib.ExitStack) -> None:
    for table in _HOOKS:
        lent: dict[int, Any] = dict(wrapper.__dict__.get(table, {}))
        inner.__dict__[table].update(lent)
        for number in lent:
            undo.callback(inner.__dict__[table].pop, number, None)


def _replace_below(
    root: torch.nn.Module, better: Callable[[torch.nn.Module], torch.nn.Module], undo: contextlib.ExitStack
) -> None:
    """Put another module in the place of every module that has a better one, for the time being."""
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
            other = better(child)
            if other is not child:
                parent._modules[name] = other  # pyright: ignore[reportPrivateUsage]
                undo.callback(parent._modules.__setitem__, name, child)  # pyright: ignore[reportPrivateUsage]
            waiting.append(other)


def _evaluate(root: torch.nn.Module, undo: contextlib.ExitStack) -> None:
    """Eval mode; every module gets its own flag back."""
    for module in root.modules():
        undo.callback(setattr, module, "training", module.training)
        module.training = False


class _Computed(torch.nn.Module):
    """A parametrized weight that is already there."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)
        self.training = False

    def forward(self) -> torch.Tensor:
        return self.get_buffer("value")


class _Factorizations(TorchDispatchMode):
    """Notes whether linear algebra beyond products and norms is used: ONNX has no operators for it."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name: str = func.overloadpacket.__name__
        self.seen = self.seen or ("linalg" in name and "norm" not in name)
        return func(*args, **(kwargs or {}))


def _computed(module: torch.nn.Module) -> torch.nn.Module:
    """A parametrization that ONNX has no operators for is replaced by its result, which no input changes."""
    if not isinstance(module, parametrize.ParametrizationList):
        return module
    with torch.no_grad(), _Factorizations() as used:
        value = module()
    return _Computed(value.detach()) if used.seen else module
