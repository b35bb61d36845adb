"""Finds the weights that a run of a module reaches: those that operations read, and those of called modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sardonyx.frontend.module_state import is_lazy


class Reads(TorchDispatchMode):
    """Records which memory is read while a module runs.

    An embedding table may be read without calling its module, and tied weights are read under all of their names. Calls
    are recorded for runs whose operations see other tensors than the weights, such as a recording without data.
    """

    supports_higher_order_operators = True  # branches and loops are run as they are

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
        self.read: set[int] = set()
        self.called: set[int] = set()

    def __enter__(self) -> Any:
        self._depth = 0
        self._hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)  # pyright: ignore[reportUnknownMemberType]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = cast("Iterable[Any]", tree_leaves((args, kwargs))) if self._depth else ()
        self.read.update(
            memory_key(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided
        )
        return func(*args, **(kwargs or {}))

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._depth += 1
        self.called.update(map(memory_key, module.parameters(recurse=False)))

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._depth -= 1


def memory_key(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, which its views share."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]  # data_ptr is 0 where there is no data


def memory_read(run: Callable[[], object]) -> frozenset[int]:
    """Return the keys of the memory that modules read while a function runs."""
    with torch.no_grad(), Reads() as reads:
        run()
    return frozenset(reads.read)


def unreached(module: nn.Module, read: Set[int]) -> tuple[str, ...]:
    """Return the paths of the outermost modules none of whose weights is in the memory that a run read."""
    paths: list[str] = []
    named = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    for path, child in named:
        inside = any(path.startswith(f"{outer}.") for outer in paths)
        weights = [memory_key(weight) for weight in child.parameters()]
        if path and weights and not inside and read.isdisjoint(weights):
            paths.append(path)
    return tuple(paths)
