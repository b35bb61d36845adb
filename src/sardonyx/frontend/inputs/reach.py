"""What of a module a run reaches, counted in weights: those that operations read, and those of called modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sardonyx.frontend.module_state import is_lazy


class Reads(TorchDispatchMode):
    """Notes which memory is read while a module runs.

    A table may be read without a call of its module, and tied weights are read under all of their names. Calls are
    noted for runs whose operations see other tensors than the weights, such as a recording without data.
    """

    supports_higher_order_operators = True  # branches and loops are run as they are

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
        self.places: set[int] = set()
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
        self.places.update(place(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout is torch.strided)
        return func(*args, **(kwargs or {}))

    def _enter(self, module: nn.Module, _args: Any) -> None:
        self._depth += 1
        self.called.update(map(place, module.parameters(recurse=False)))

    def _leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._depth -= 1


def place(tensor: Tensor) -> int:
    """Which memory a tensor is in; views of it share the place."""
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]  # data_ptr is 0 where there is no data


def unreached(module: nn.Module, run: Callable[[], object]) -> tuple[str, ...]:
    """The outermost modules that hold weights none of which `run` reads, by path."""
    with torch.no_grad(), Reads() as reads:
        run()
    found: list[str] = []
    named = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    for path, each in named:
        inside = any(path.startswith(f"{outer}.") for outer in found)
        weights = [place(weight) for weight in each.parameters()]
        if path and weights and not inside and not reads.places.intersection(weights):
            found.append(path)
    return tuple(found)
