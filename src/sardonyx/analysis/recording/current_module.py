"""Track which module, or which node of a graph module, executes the current operation."""

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

_DECOMPOSITION = "sardonyx_decomposition"  # the attribute in which `decompose` stores its result on a graph module
_ASSIGNED = re.compile(r"\s+(\w+)(?:\s*:[^=]+)? = ")  # a line of generated code starts with the name of its node


class ModuleTracker:
    """The modules that are being called, innermost last, and the current node if a graph module runs."""

    def __init__(self, root: nn.Module) -> None:
        """Read the tree of a module and the metadata of its graph."""
        self._tree, self._members = LiveTree(root), set(root.modules())
        self._calls: list[ModuleStep] = []
        self._count = 0
        self._path: str | None = None  # of the innermost module, computed on demand
        self._modules, self._roles = _node_metadata(root)
        self._code, self._lines = _generated_code(root)

    def current(self) -> tuple[str, str | None]:
        """Return the path of the running module, with a second call marked `block@1`, and its role in an attention."""
        node = self._node()
        by_node = self._modules.get(node)
        if by_node is not None:
            return by_node, self._roles.get(node)
        if self._path is None:
            self._path = self._tree.path(self._calls)
        return self._path, self._roles.get(node)

    def _node(self) -> str:
        """Return the current node of the graph, by the current line of its generated code."""
        frame = sys._getframe(1) if self._code is not None else None  # pyright: ignore[reportPrivateUsage]  # documented
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return self._lines.get(frame.f_lineno, "") if frame is not None else ""

    @contextlib.contextmanager
    def tracking(self) -> Generator[None]:
        """Track the calls of the model's modules."""
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


def _generated_code(root: nn.Module) -> tuple[CodeType | None, Mapping[int, str]]:
    """Return the generated code of a graph module, and the node of each of its lines."""
    if not isinstance(root, fx.GraphModule):
        return None, {}
    forward: Any = type(root).forward
    lines = enumerate(root.code.split("\n"), start=1)
    return forward.__code__, {number: match[1] for number, line in lines if (match := _ASSIGNED.match(line))}


def _node_metadata(root: nn.Module) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the modules and the roles of nodes as stored by `decompose`, otherwise the modules from torch.export."""
    if not isinstance(root, fx.GraphModule):
        return {}, {}
    decomposition: Any = getattr(root, _DECOMPOSITION, None)
    if decomposition is not None:
        roles = {name: str(primitive.role) for name, primitive in decomposition.primitives.items()}
        return decomposition.modules, roles
    stacks = {node.name: node.meta.get("nn_module_stack") for node in root.graph.nodes}
    return {name: str(next(reversed(stack.values()))[0]) for name, stack in stacks.items() if stack}, {}
