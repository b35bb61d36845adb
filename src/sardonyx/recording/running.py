"""Who runs the operation that is being carried out: a module of the model, or a node of a graph made from one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Mapping
from typing import Any

from torch import fx, nn
from torch.nn.modules import module as hooks

from sardonyx.source.tracing.live import LiveTree, Step

_DECOMPOSITION = "sardonyx_decomposition"  # what `decompose` leaves on its graph module, in a room that we may not ask


class Running:
    """The modules that are being called, innermost last, and the node of the graph where a graph is run."""

    def __init__(self, root: nn.Module) -> None:
        """Learn the module's tree, and what its graph says of its nodes."""
        self._tree, self._members = LiveTree(root), set(root.modules())
        self._calls: list[Step] = []
        self._count = 0
        self._node: str | None = None
        self._path: str | None = None  # of the innermost module, once somebody asked
        self._modules, self._roles = _told(root)

    def module(self) -> str:
        """Dotted path of the module that runs; a second call is marked `block@1`."""
        by_node = self._modules.get(self._node or "")
        if by_node is not None:
            return by_node
        if self._path is None:
            self._path = self._tree.path(self._calls)
        return self._path

    def role(self) -> str | None:
        """The part in an attention that the graph gives the running node."""
        return self._roles.get(self._node or "")

    def runnable(self, root: nn.Module) -> nn.Module:
        """The module itself, or a twin of a graph module on the same weights that says which node it is at."""
        if not isinstance(root, fx.GraphModule):
            return root
        graph: fx.Graph = copy.deepcopy(root.graph)
        for node in list(graph.nodes):
            if node.op in ("call_function", "call_method", "call_module"):
                with graph.inserting_before(node):
                    graph.call_function(self._at, (node.name,))
        like: Any = getattr(root, "like", None)  # how a kind of graph module makes another one of its kind
        return fx.GraphModule(root, graph) if like is None else like(graph)

    def _at(self, node: str) -> None:
        self._node = node

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
            self._calls.append(Step(module, self._count))
            self._path = None

    def _leave(self, module: nn.Module, _inputs: object, _output: object) -> None:
        if module in self._members:
            self._calls.pop()
            self._path = None


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


@contextlib.contextmanager
def left_as_it_was(root: nn.Module) -> Generator[None]:
    """Whatever a forward keeps on its modules is put back: a recording must not leave tensors without data there."""
    tables = [table for each in root.modules() for table in _tables(each)]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, items in zip(tables, before, strict=True):
            if table.keys() != items.keys() or any(table[key] is not items[key] for key in items):
                table.clear()
                table.update(items)


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    return [vars(module), module._parameters, module._buffers]  # pyright: ignore[reportPrivateUsage]
