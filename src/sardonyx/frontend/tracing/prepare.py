"""The module as it is exported: in eval mode, and plain where torch's wrappers would hide it; as it was afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.frontend.module_state import left_as_it_was, tensors_of, without_shortcuts
from sardonyx.frontend.running import evaluate
from sardonyx.frontend.tracing.scripted import unscripted

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
    with left_as_it_was(module), without_shortcuts():
        _without_compiled_calls(module)
        plain: dict[torch.nn.Module, torch.nn.Module] = {}
        root = _plain(module, plain)
        _replace_below(root, lambda child: _plain(child, plain))
        evaluate(root)
        _without_gradients(root)
        _replace_below(root, _computed)
        yield root


def _without_compiled_calls(module: torch.nn.Module) -> None:
    """Modules that were compiled in place run as written."""
    for each in module.modules():
        if each.__dict__.get("_compiled_call_impl") is not None:
            each._compiled_call_impl = None  # pyright: ignore[reportPrivateUsage]  # has no public face
        original = getattr(each.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
        if original is not None:
            each.forward = original


def _plain(module: torch.nn.Module, known: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
    """What a compiled or scripted module stands for, with the hooks it has itself; always the same for the same."""
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
    """Tensors that torch does not know as parameters become constants, which must not need a gradient."""
    parameters = set(map(id, root.parameters()))
    for tensor in tensors_of(root):
        if id(tensor) not in parameters and tensor.requires_grad and tensor.is_leaf:
            tensor.requires_grad = False


def _replace_below(root: torch.nn.Module, better: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    """Put another module in the place of every module that has a better one."""
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
            waiting.append(other)


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
        self.seen = self.seen or name == "vdot" or ("linalg" in name and "norm" not in name)
        return func(*args, **(kwargs or {}))


def _computed(module: torch.nn.Module) -> torch.nn.Module:
    """A parametrization that ONNX has no operators for is replaced by its result, which no input changes."""
    if not isinstance(module, parametrize.ParametrizationList):
        return module
    with torch.no_grad(), _Factorizations() as used:
        value = module()
    return _Computed(value.detach()) if used.seen else module
