"""Who runs the operation that is being carried out: a module of the model, or a node of a graph made from one."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Generator, Mapping
from types import CodeType
from typing import Any

from torch import fx, nn
from torch.nn.modules import module as hooks

from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep

_DECOMPOSITION = "sardonyx_decomposition"  # what `decompose` leaves on its graph module, in a room that we may not ask
_ASSIGNED = re.compile(r"\s+(\w+)(?:\s*:[^=]+)? = ")  # a line of generated code begins with the node it carries out


class Running:
    """The modules that are being called, innermost last, and the node of the graph where a graph is run."""

    def __init__(self, root: nn.Module) -> None:
        """Learn the module's tree, and what its graph says of its nodes."""
        self._tree, self._members = LiveTree(root), set(root.modules())
        self._calls: list[ModuleStep] = []
        self._count = 0
        self._path: str | None = None  # of the innermost module, once somebody asked
        self._modules, self._roles = _told(root)
        self._code, self._lines = _generated(root)

    def here(self) -> tuple[str, str | None]:
        """Dotted path of the module that runs, a second call marked `block@1`, and its part in an attention."""
        node = self._node()
        by_node = self._modules.get(node)
        if by_node is not None:
            return by_node, self._roles.get(node)
        if self._path is None:
            self._path = self._tree.path(self._calls)
        return self._path, self._roles.get(node)

    def _node(self) -> str:
        """The node of the graph that is being carried out: the line at which its generated code stands."""
        frame = sys._getframe(1) if self._code is not None else None  # pyright: ignore[reportPrivateUsage]  # documented
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return self._lines.get(frame.f_lineno, "") if frame is not None else ""

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Follow the calls of the model's modules."""
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _inputs: object) -> None:
        if module in self._members:
            self._count += 1
            self._calls.append(ModuleStep(module, self._count))
            self._path = None

    def _leave(self, module: nn.Module, _inputs: object, _output: object) -> None:
        if module in self._members:
            self._calls.pop()
            self._path = None


def _generated(root: nn.Module) -> tuple[CodeType | None, Mapping[int, str]]:
    """The code that torch wrote for a graph module, and the node that each line of it carries out."""
    if not isinstance(root, fx.GraphModule):
        return None, {}
    forward: Any = type(root).forward
    lines = enumerate(root.code.split("\n"), start=1)
    return forward.__code__, {number: found[1] for number, line in lines if (found := _ASSIGNED.match(line))}


def _told(root: nn.Module) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Node names to modules and to roles, as `decompose` left them; else modules as torch.export did."""
    if not isinstance(root, fx.GraphModule):
        return {}, {}
    decomposition: Any = getattr(root, _DECOMPOSITION, None)
    if decomposition is not None:
        roles = {name: str(primitive.role) for name, primitive in decomposition.primitives.items()}
        return decomposition.modules, roles
    stacks = {node.name: node.meta.get("nn_module_stack") for node in root.graph.nodes}
    return {name: str(next(reversed(stack.values()))[0]) for name, stack in stacks.items() if stack}, {}
