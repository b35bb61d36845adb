"""Which module ran which operation, found out by watching a plain eager run: the yardstick that tags are held to.

It shares nothing with the exporters. Forward hooks keep the stack of module instances that are executing, and a
dispatch mode sees every aten operation together with its results, so an operation belongs to the instance on top of
the stack and to nothing else. No module stack of torch.export, no traced scope, no name of a node is looked at.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, eq=False)
class Traced:
    """One result of one aten operation."""

    op: str
    modules: frozenset[str]  # every name of the instance that executed it
    value: np.ndarray
    passes_through: bool  # the result is one of the operands unchanged: an exporter may leave such an operation out


def trace(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Traced]:
    """Run a module once and say who did what, in order of execution."""
    log = _Log(module)
    args, kwargs = copy.deepcopy((args, dict(kwargs)))  # caches grow in place
    handles = [handle for each in module.modules() for handle in log.watch(each)]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one kernel for a whole layer, which no exporter writes
    try:
        with torch.no_grad(), log:
            module(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for handle in handles:
            handle.remove()
    return log.traced


def trace_graph(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Traced]:
    """The same for torch.export's graph, whose own module stacks say who ran what: to be compared with `trace`."""
    args, kwargs = copy.deepcopy((args, dict(kwargs)))
    graph = torch.export.export(module, args, kwargs, strict=False).module()
    log = _Log(module)
    with torch.no_grad(), log:
        _Walk(graph, module, log).run(*tree_leaves((args, kwargs)), enable_io_processing=False)
    return log.traced


class _Walk(torch.fx.Interpreter):
    """Runs a graph node by node, each under the module that its stack ends with."""

    def __init__(self, graph: Any, module: nn.Module, log: _Log) -> None:
        super().__init__(graph)
        self._root, self._log = module, log

    def run_node(self, n: torch.fx.Node) -> Any:
        """One operation."""
        stack = list((n.meta.get("nn_module_stack") or {"": ("", None)}).values())
        with self._log.inside(self._root.get_submodule(stack[-1][0])):
            return super().run_node(n)


class _Log(TorchDispatchMode):
    """The stack of executing instances, and what was computed while each was on top."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self._names: dict[nn.Module, set[str]] = defaultdict(set)
        for name, each in root.named_modules(remove_duplicate=False):
            self._names[each].add(name)
        self._stack: list[nn.Module] = []
        self.traced: list[Traced] = []

    @contextlib.contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """As if a module were running."""
        self._stack.append(module)
        yield
        self._stack.pop()

    def watch(self, module: nn.Module) -> Iterator[Any]:
        """Keep the stack while a module runs."""

        def enter(entered: nn.Module, _args: Any) -> None:
            self._stack.append(entered)

        def leave(left: nn.Module, _args: Any, _output: Any) -> None:
            assert self._stack.pop() is left

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note its results."""
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func._schema.is_mutable:
            operands = [operand.clone() for operand in operands]
        result = func(*args, **(kwargs or {}))
        if self._stack:
            owners = frozenset(self._names[self._stack[-1]])
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    same = any(leaf.shape == operand.shape and torch.equal(leaf, operand) for operand in operands)
                    self.traced.append(Traced(str(func), owners, leaf.detach().clone().numpy(), same))
        return result
