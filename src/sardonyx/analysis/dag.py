"""The operations inside every module of a model and how they are connected, in one document. No weight is read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

import onnx_ir as ir

from sardonyx.analysis.attributes import attributes_of, dtype_name
from sardonyx.analysis.module_io import Inside, insides
from sardonyx.analysis.module_selection import Layout
from sardonyx.ir.origins import how, origins, owner
from sardonyx.ir.scopes import is_constant, label, scopes
from sardonyx.ir.tagged_model import Source, tagged
from sardonyx.provenance import ROOT, module_of
from sardonyx.records.module_graph import HierarchyDag, Initializer, ModuleGraph, Operation

_Thing = TypeVar("_Thing", bound=Hashable)


def dag(source: Source, *, module: str | None = None, include_torch_nn: bool = False) -> HierarchyDag:
    """The graph of every module, all operations and all initializers of a model.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`.
        module: Only this module and those below it: a tag, an instance path, or a glob over either.
        include_torch_nn: Torch's own modules (Linear, LayerNorm, …) get a tag and a graph of their own too.

    Raises:
        UsageError: where no module has that name.
    """
    found = tagged(source)
    layout = Layout(found.hierarchy, include_torch_nn)
    writer = _Writer(found.model, layout)
    return writer.document(found.name, None if module is None else layout.below(layout.select(module)))


class _Names(Generic[_Thing]):
    """A name for everything that no other has: its own, with a number behind it where another had it first."""

    def __init__(self) -> None:
        self.of: dict[_Thing, str] = {}
        self._given: dict[str, int] = {}

    def give(self, thing: _Thing, wanted: str) -> str:
        known = self.of.get(thing)
        if known is not None:
            return known
        name = wanted
        while name in self._given:
            self._given[wanted] += 1
            name = f"{wanted}#{self._given[wanted]}"
        self._given[name] = 1
        self.of[thing] = name
        return name


class _Writer:
    """Names everything once, and writes down what is inside the modules."""

    def __init__(self, model: ir.Model, layout: Layout) -> None:
        self._layout = layout
        self._insides = insides(model, layout.chain)
        self._nodes: _Names[ir.Node] = _Names()
        self._values: _Names[ir.Value] = _Names()
        self._initializers = [value for scope in scopes(model) for value in scope.graph.initializers.values()]
        for scope in scopes(model):
            for value in (*scope.graph.inputs, *scope.graph.initializers.values()):
                self._name(value)
        every = self._insides[layout.top].nodes if self._insides else ()
        for node in every:
            self._nodes.give(node, label(node))
        self._operations = {self._nodes.of[node]: self._operation(node) for node in every}

    def _name(self, value: ir.Value | None) -> str:
        return "" if value is None else self._values.give(value, value.name or "value")

    def _operation(self, node: ir.Node) -> Operation:
        path = owner(node)
        plain = module_of(path)
        others = [*sorted(origins(node)), *(map(owner, node.outputs[0].consumers()) if is_constant(node) else ())]
        return Operation(
            op_type=node.op_type,
            domain=node.domain,
            inputs=tuple(map(self._name, node.inputs)),
            outputs=tuple(map(self._name, node.outputs)),
            tags=tuple(dict.fromkeys(self._layout.chain(each)[-1] for each in (plain, *others))),
            module_path=plain,
            how=how(node),
            attributes=attributes_of(node, self._nodes.of),
            call=path if path != plain else None,
        )

    def document(self, name: str, kept: set[str] | None) -> HierarchyDag:
        """All of it, or what is inside the modules to keep."""
        children = self._layout.children(among=self._insides)
        modules = {
            tag: self._module(tag, self._insides[tag], children.get(tag, ()))
            for tag in self._layout.from_the_top(children)
            if tag in self._insides and (kept is None or tag in kept)
        }
        inside = {node for graph in modules.values() for node in graph.nodes}
        operations = {node: operation for node, operation in self._operations.items() if node in inside}
        return HierarchyDag(name, modules, operations, self._weights(operations, everything=kept is None))

    def _module(self, tag: str, inside: Inside, children: Iterable[str]) -> ModuleGraph:
        path, names = self._layout.paths[tag], self._nodes.of
        return ModuleGraph(
            path=path,
            kind=self._layout.hierarchy.classes.get(path),
            nodes=tuple(names[node] for node in inside.nodes),
            edges=tuple((names[maker], names[reader]) for maker, reader in inside.edges),
            children=tuple(children),
            inputs=tuple(map(self._name, inside.inputs)),
            outputs=tuple(map(self._name, inside.outputs)),
        )

    def _weights(self, operations: Mapping[str, Operation], *, everything: bool) -> dict[str, Initializer]:
        weights: dict[str, Initializer] = {}
        for value in self._initializers:
            users = dict.fromkeys(self._nodes.of[user] for user in value.consumers())
            tensor = value.const_value
            if tensor is None or not (everything or any(user in operations for user in users)):
                continue
            reading = [path for user in value.consumers() for path in sorted(origins(user)) or [ROOT]]
            tags = dict.fromkeys(self._layout.chain(path)[-1] for path in (*reading, *sorted(origins(value))))
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            weights[self._name(value)] = Initializer(dtype_name(tensor.dtype), shape, tuple(tags), tuple(users))
        return weights
