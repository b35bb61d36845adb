"""Which module ran which operation, found out by watching a plain eager run: the yardstick that tags are held to.

It shares nothing with the exporters. Forward hooks keep the stack of module instances that are executing, and a
dispatch mode sees every aten operation together with its results, so an operation belongs to the instance on top of
the stack and to nothing else. No module stack of torch.export, no traced scope, no name of a node is looked at.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sardonyx.frontend.module_state import is_control_flow, run_under_mode, uncompiled


@dataclass(frozen=True, eq=False)
class Traced:
    """One result of one aten operation."""

    op: str
    modules: frozenset[str]  # every name of the instance that executed it
    calls: frozenset[str]  # the same, marked where a module on the way was in its second or later call: `twice@1.lin`
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
        with torch.no_grad(), uncompiled(), log:
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
        if n.op != "call_function":
            return super().run_node(n)
        stack = list((n.meta.get("nn_module_stack") or {"": ("", None)}).values())
        with self._log.inside(self._root.get_submodule(stack[-1][0])):
            return super().run_node(n)


@dataclass(frozen=True, eq=False)
class _Frame:
    """One execution of one instance."""

    module: nn.Module
    paths: Mapping[str, str]  # each name of the instance -> the same with its calls marked
    called: Counter[nn.Module] = field(default_factory=Counter)  # how often it has called each other one so far


class _Log(TorchDispatchMode):
    """The stack of executing instances, and what was computed while each was on top."""

    supports_higher_order_operators = True  # branches and loops run as they are

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self._names: dict[nn.Module, set[str]] = defaultdict(set)
        for name, each in root.named_modules(remove_duplicate=False):
            self._names[each].add(name)
        self._stack = [_Frame(root, {"": ""})]
        self._strangers: Counter[nn.Module] = Counter()
        self.traced: list[Traced] = []

    @contextlib.contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """As if a module were running, which call of it unknown."""
        self._stack.append(_Frame(module, {name: name for name in self._names[module]}))
        yield
        self._stack.pop()

    def _enter(self, module: nn.Module) -> None:
        above = self._stack[-1]
        marked = {
            name: f"{path}.{name[len(caller) :].lstrip('.')}".lstrip(".")
            for name in self._names[module]
            for caller, path in above.paths.items()
            if not caller or name.startswith(f"{caller}.")
        }
        calls = above.called if marked else self._strangers  # called by someone who does not hold it
        mark = f"@{calls[module]}" if calls[module] and self._names[module] != {""} else ""
        calls[module] += 1
        paths = marked or {name: name for name in self._names[module]}
        self._stack.append(_Frame(module, {name: path + mark for name, path in paths.items()}))

    def watch(self, module: nn.Module) -> Iterator[Any]:
        """Keep the stack while a module runs."""

        def enter(entered: nn.Module, _args: Any) -> None:
            self._enter(entered)

        def leave(left: nn.Module, _args: Any, _output: Any) -> None:
            assert self._stack.pop().module is left

        yield module.register_forward_pre_hook(enter, prepend=True)  # what its own hooks do is part of its call
        yield module.register_forward_hook(leave)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note its results."""
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if is_control_flow(func):
            args = run_under_mode(self, args)
        elif func._schema.is_mutable:
            operands = [operand.clone() for operand in operands]
        result = func(*args, **(kwargs or {}))
        if len(self._stack) == 1:  # nothing of the model is running
            return result
        top = self._stack[-1]
        names, calls = frozenset(self._names[top.module]), frozenset(top.paths.values())
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                same = any(leaf.shape == operand.shape and torch.equal(leaf, operand) for operand in operands)
                value = leaf.float() if leaf.dtype is torch.bfloat16 else leaf  # which NumPy does not have
                self.traced.append(Traced(str(func), names, calls, value.detach().clone().numpy(), same))
        return result
