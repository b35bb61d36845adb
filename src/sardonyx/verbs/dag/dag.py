"""`sardonyx.dag`: the operations of every module of a model and how they are connected. No weight is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import find_modules
from sardonyx.ir.origins import Source, how, origins, owner, tagged
from sardonyx.ir.plain_data import attributes_of, dtype_name, value_type
from sardonyx.ir.scopes import is_constant, label, scopes
from sardonyx.records.inspection import HierarchyDag, Initializer, ModuleGraph, Operation
from sardonyx.records.provenance import ROOT, Hierarchy, lineage, module_of
from sardonyx.verbs.analyze.inspector import ModuleContents, module_contents

_Thing = TypeVar("_Thing", bound=Hashable)


def dag(source: Source, *, module: str | None = None, include_torch_nn: bool = False) -> HierarchyDag:
    """Return the graph of every module, all operations and all initializers of a model.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`.
        module: Only this module and those below it: a tag, an instance path, or a glob over either.
        include_torch_nn: Also give torch's own modules (Linear, LayerNorm, …) a tag and a graph.

    Raises:
        UsageError: If no module matches.
    """
    model = tagged(source)
    tags = TagTree(model.hierarchy, include_torch_nn)
    writer = _Writer(model.model, tags)
    return writer.document(model.name, None if module is None else tags.below(tags.select(module)))


class TagTree:
    """The modules that have a tag of their own, from the model down to every operation, and their parents."""

    def __init__(self, hierarchy: Hierarchy, torch_nn: bool) -> None:
        self.hierarchy = hierarchy
        self._torch_nn = torch_nn
        self._chains: dict[str, tuple[str, ...]] = {}
        self.paths: dict[str, str] = {}  # tag -> the topmost module that has it
        self.parents: dict[str, str | None] = {}
        (self.top,) = self.chain(ROOT)  # the tag of the model itself

    def tag(self, path: str) -> str:
        """Return the tag of a module."""
        return self.hierarchy.tag(path, torch_nn=self._torch_nn)

    def chain(self, path: str) -> tuple[str, ...]:
        """Return the tags from the model down to a module."""
        path = module_of(path)
        if path not in self._chains:
            chain: dict[str, None] = {}
            for above in lineage(path):
                tag = self.tag(above)
                if tag not in self.paths:
                    self.paths[tag] = above
                    self.parents[tag] = next(reversed(chain), None)
                chain[tag] = None
            self._chains[path] = tuple(chain)
        return self._chains[path]

    def select(self, pattern: str) -> list[str]:
        """Return the tags that a name or a glob selects."""
        if pattern in self.paths:
            return [pattern]
        paths = find_modules(self.hierarchy, self._chains, pattern)
        tags = {path: self.tag(path) for path in paths}
        own = [tag for path, tag in tags.items() if self.paths.get(tag) == path]
        if not own:
            hint = "`include_torch_nn` gives torch's own modules one; containers have none"
            raise UsageError(f"{paths[0]} has no tag of its own", hint=hint)
        return own

    def below(self, tags: Iterable[str]) -> set[str]:
        """Return these modules and all below them."""
        selected = set(tags)
        for tag, parent in self.parents.items():  # parents come first
            if parent in selected:
                selected.add(tag)
        return selected

    def children(self, among: Container[str]) -> dict[str, list[str]]:
        """Return the children of each module that are in `among`; numbered ones are ordered by number."""
        children: dict[str, list[str]] = defaultdict(list)
        keys: dict[str, tuple[int, int, str]] = {}
        containers: dict[tuple[str, str], int] = {}
        for tag, parent in self.parents.items():
            if parent is not None and tag in among:
                children[parent].append(tag)
                container, _, last = self.paths[tag].rpartition(".")
                place = containers.setdefault((parent, container), len(containers))
                digits = last.lstrip("0") if last.isdecimal() else ""
                keys[tag] = (place, len(digits), digits)  # compared by length first, without int(): any length
        return {parent: sorted(tags, key=keys.__getitem__) for parent, tags in children.items()}

    def depth_first(self, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """Yield all modules, each followed by those below it."""
        stack = [tag for tag, parent in reversed(self.parents.items()) if parent is None]
        while stack:
            tag = stack.pop()
            yield tag
            stack.extend(reversed(children.get(tag, ())))


class _Names(Generic[_Thing]):
    """Unique names: the preferred name of each thing, with a number appended if it is taken."""

    def __init__(self) -> None:
        self.of: dict[_Thing, str] = {}
        self._taken: dict[str, int] = {}

    def add(self, thing: _Thing, preferred: str) -> str:
        if thing not in self.of:
            name = preferred
            while name in self._taken:
                self._taken[preferred] += 1
                name = f"{preferred}#{self._taken[preferred]}"
            self._taken[name] = 1
            self.of[thing] = name
        return self.of[thing]


class _Writer:
    """Assigns unique names to nodes and values, and builds the record."""

    def __init__(self, model: ir.Model, tags: TagTree) -> None:
        self._tags = tags
        self._facts = Facts(model)
        self._insides = module_contents(model, tags.chain)
        self._nodes: _Names[ir.Node] = _Names()
        self._values: _Names[ir.Value] = _Names()
        self._initializers = [value for scope in scopes(model) for value in scope.graph.initializers.values()]
        for scope in scopes(model):
            for value in (*scope.graph.inputs, *scope.graph.initializers.values()):
                self._name(value)
        nodes = self._insides[tags.top].nodes if self._insides else ()
        for node in nodes:
            self._nodes.add(node, label(node))
        self._operations = {self._nodes.of[node]: self._operation(node) for node in nodes}

    def _name(self, value: ir.Value | None) -> str:
        return "" if value is None else self._values.add(value, value.name or "value")

    def _operation(self, node: ir.Node) -> Operation:
        path = owner(node)
        module = module_of(path)
        others = [*sorted(origins(node)), *(map(owner, node.outputs[0].consumers()) if is_constant(node) else ())]
        return Operation(
            op_type=node.op_type,
            domain=node.domain,
            inputs=tuple(map(self._name, node.inputs)),
            outputs=tuple(map(self._name, node.outputs)),
            tags=tuple(dict.fromkeys(self._tags.chain(origin)[-1] for origin in (module, *others))),
            module_path=module,
            how=how(node),
            attributes=attributes_of(node, self._nodes.of),
            call=path if path != module else None,
        )

    def document(self, name: str, selected: set[str] | None) -> HierarchyDag:
        """Return the record of the whole model, or of the selected modules."""
        children = self._tags.children(among=self._insides)
        modules = {
            tag: self._module(tag, self._insides[tag], children.get(tag, ()))
            for tag in self._tags.depth_first(children)
            if tag in self._insides and (selected is None or tag in selected)
        }
        inside = {node for graph in modules.values() for node in graph.nodes}
        operations = {node: operation for node, operation in self._operations.items() if node in inside}
        weights = self._weights(operations, everything=selected is None)
        used = {value for operation in operations.values() for value in (*operation.inputs, *operation.outputs)}
        values = [value for value, known in self._values.of.items() if known in used and value.const_value is None]
        types = {value: value_type(self._facts.dtype(value), self._facts.shape(value)) for value in values}
        written = {self._values.of[value]: text for value, text in types.items() if text is not None}
        return HierarchyDag(name, modules, operations, weights, written)

    def _module(self, tag: str, inside: ModuleContents, children: Iterable[str]) -> ModuleGraph:
        path, names = self._tags.paths[tag], self._nodes.of
        return ModuleGraph(
            path=path,
            kind=self._tags.hierarchy.classes.get(path),
            nodes=tuple(names[node] for node in inside.nodes),
            edges=tuple((names[producer], names[reader]) for producer, reader in inside.edges),
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
            readers = [path for user in value.consumers() for path in sorted(origins(user)) or [ROOT]]
            tags = dict.fromkeys(self._tags.chain(path)[-1] for path in (*readers, *sorted(origins(value))))
            shape = tuple(int(dim) for dim in tensor.shape.numpy())
            weights[self._name(value)] = Initializer(dtype_name(tensor.dtype), shape, tuple(tags), tuple(users))
        return weights
