"""All graphs of a model: the main graph, the bodies of control flow, the bodies of functions; and names in them.

Passes work in all graphs, so everything that traverses a model uses `scopes`. Also what most code asks about single
nodes and values.

In memory a use points at its value. In a file it is a name, and a body may reuse a name of an enclosing graph for a
value of its own. A use that a rewrite moves from one value to another could then refer to the body's value. Therefore
bodies are renamed before any rewrite. The inputs and outputs of a body are matched by position, so its names are not
part of an interface.

A file of n functions, each of which calls the next one twice, stands for 2^n nodes; so inlining has a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn, TypeVar, cast

import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import ModelError

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class Scope(Struct, frozen=True, eq=False):
    """One graph, its position in the model, and the operator sets that apply to it."""

    graph: ir.Graph
    path: str  # "" for the main graph; "function:Name" or "node/attribute" joined by "/" below it
    opsets: Mapping[str, int]
    in_function: bool  # functions hold no initializers
    holder: ir.Node | None  # the node whose attribute this body is

    @property
    def opset(self) -> int:
        """Return the version of the default operator set, or 0 if the graph imports none."""
        return self.opsets.get("", 0) or self.opsets.get("ai.onnx", 0)


def scopes(model: ir.Model) -> Iterator[Scope]:
    """Yield all graphs of a model, outer ones first."""
    yield from _below(Scope(model.graph, "", model.opset_imports, False, None))
    for function in model.functions.values():
        imports = function.opset_imports or model.opset_imports
        yield from _below(Scope(function.graph, f"function:{function.name}", imports, True, None))


def _below(scope: Scope) -> Iterator[Scope]:
    yield scope
    for node in scope.graph:
        for name, body in bodies(node):
            path = "/".join(filter(None, (scope.path, label(node), name)))
            yield from _below(Scope(body, path, scope.opsets, scope.in_function, node))


def top_graphs(model: ir.Model) -> tuple[ir.Graph, ...]:
    """Return the main graph and the graphs of the functions, without the bodies inside them."""
    return (model.graph, *(function.graph for function in model.functions.values()))


def nested_graphs(graph: ir.Graph | ir.Function) -> Iterator[ir.Graph | ir.Function]:
    """Yield a graph and the bodies inside it."""
    yield graph
    for node in graph:
        for _, body in bodies(node):
            yield from nested_graphs(body)


def tensor_of(attribute: ir.Attr) -> ir.TensorProtocol:
    """Return the tensor of an attribute that holds one; `as_tensor` checks the whole protocol, which is slow."""
    return cast("ir.TensorProtocol", attribute.value)


def bodies(node: ir.Node) -> Sequence[tuple[str, ir.Graph]]:
    """Return the graphs that a node has in its attributes, with their names."""
    attributes = node.attributes.data  # the underlying dict is faster, and this runs for every node
    for attribute in attributes.values():
        if attribute.type in _GRAPHS:
            break
    else:
        return ()
    found: list[tuple[str, ir.Graph]] = []
    for name, attribute in attributes.items():
        if attribute.type not in _GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append((name, attribute.as_graph()))
        else:
            found += [(f"{name}[{index}]", body) for index, body in enumerate(attribute.as_graphs())]
    return found


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in the bodies of a node, at any depth."""
    for _, body in bodies(node):
        for inner in body:
            yield inner
            yield from nodes_inside(inner)


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and the nodes in its bodies read."""
    for reader in (node, *nodes_inside(node)):
        yield from (value for value in reader.inputs if value is not None)


def has_bodies(node: ir.Node) -> bool:
    """Return whether a node has graphs in its attributes."""
    attributes = node.attributes.data.values()
    return bool(attributes) and any(item.type in _GRAPHS and not item.is_ref() for item in attributes)


def is_sorted(graph: ir.Graph, seen: set[ir.Node] | None = None) -> bool:
    """Return whether every node follows the producers of the values that it or its bodies read.

    `seen` are the nodes before the graph.
    """
    seen = set() if seen is None else seen
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in seen:
                return False
        if not all(is_sorted(body, seen) for _, body in bodies(node)):
            return False
        seen.add(node)
    return True


def is_constant(node: ir.Node) -> bool:
    """Return whether a node only holds a constant; such nodes are counted separately."""
    return node.op_type == "Constant" and not node.domain


def has_references(node: ir.Node) -> bool:
    """Return whether an attribute of the node is a parameter of the enclosing function, whose value is unknown."""
    return any(attribute.is_ref() for attribute in node.attributes.data.values())


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input of a node, or None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def is_used_outside(value: ir.Value, nodes: Container[ir.Node]) -> bool:
    """Return whether a value is a graph output or has a consumer that is not one of these nodes."""
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def is_dead(node: ir.Node) -> bool:
    """Return whether nothing reads any output of a node."""
    return not any(is_used_outside(output, ()) for output in node.outputs)


def declared_shape(value: ir.Value) -> tuple[int | str | None, ...] | None:
    """Return the declared shape: a size, a symbol's name, or None per dimension; None if the rank is unknown."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def label(node: ir.Node) -> str:
    """Return the name to show for a node: its own, or else that of its first named output, or else its operator."""
    return node.name or next((output.name for output in node.outputs if output.name), None) or node.op_type


def operator(node: ir.Node) -> str:
    """Return the operator of a node, with the domain if it is not the default one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


class Names:
    """Names that no value or node of the model has yet, in an order that depends on the graph alone."""

    def __init__(self, taken: set[str]) -> None:
        """Start with the names in use."""
        self._taken = taken
        self._counts: dict[str, int] = {}

    @classmethod
    def of(cls, model: ir.Model) -> Names:
        """Start with every name in a model, in any graph."""
        taken: set[str] = set()
        for scope in scopes(model):
            taken.update(value.name or "" for value in defined(scope.graph))
            for node in scope.graph:
                taken.add(node.name or "")
                taken.update(value.name or "" for value in node.inputs if value is not None)
        return cls(taken)

    def fresh(self, base: str) -> str:
        """Return `base` if it is free, otherwise `base` with the next free number."""
        name = base
        while name in self._taken:
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


def defined(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph defines: its inputs, its initializers, the outputs of its nodes."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def rename_shadowing(model: ir.Model, names: Names) -> None:
    """Rename every value of a body that has the name of a value in an enclosing graph."""
    for graph in top_graphs(model):
        if any(True for node in graph for _ in bodies(node)):
            _rename_below(graph, {value.name for value in defined(graph)}, names)


def _rename_below(graph: ir.Graph, visible: set[str | None], names: Names) -> None:
    """Rename in the bodies of a graph; `visible` holds all names of this graph and the enclosing ones."""
    for node in graph:
        for _, body in bodies(node):
            values = list(dict.fromkeys(defined(body)))
            for value in values:
                if value.name and value.name in visible:
                    value.name = names.fresh(value.name)
            own = {value.name for value in values}
            visible |= own
            _rename_below(body, visible, names)
            visible -= own


MAX_CALL_DEPTH = 64  # calls within calls that an analysis follows
_MAX_INLINED_NODES = 1 << 11  # it may inline so many nodes,
_MAX_INLINED_GROWTH = 4  # or so many times the nodes that are stored
_MAX_RUNNABLE_NODES = 1 << 20  # nodes after inlining; runtimes inline every call before they run a model
WRITER_AT_FAULT = "the tool that wrote the file is at fault: export it again"
Key = TypeVar("Key", bound=Hashable)


class UnknownAttribute(ValueError):
    """The value of an attribute was read that only a call of the function determines."""


class Parameter(ir.Attr):
    """A reference to a parameter of the enclosing function."""

    def __init__(self, name: str, parameter: str, kind: ir.AttributeType, *, doc_string: str | None = None) -> None:
        super().__init__(name, kind, None, parameter, doc_string=doc_string)

    def _unknown(self) -> NoReturn:
        raise UnknownAttribute(f"{self.name} is a parameter of the function")

    as_float = as_int = as_string = as_tensor = as_graph = _unknown
    as_floats = as_ints = as_strings = as_tensors = as_graphs = _unknown


class Inlined(NamedTuple):
    """A model with all calls inlined: its nodes, and how deep the calls are nested."""

    nodes: int
    depth: int


def inlining_limit(model: ir.Model) -> int:
    """Return how many nodes an analysis may visit when it inlines calls."""
    stored = sum(1 for graph in (model, *model.functions.values()) for _ in graph.graph.all_nodes())
    return max(_MAX_INLINED_NODES, _MAX_INLINED_GROWTH * stored)


def inlined(model: ir.Model) -> Inlined:
    """Return the size of a model after inlining.

    Raises:
        ModelError: A function calls itself.
    """
    sizes: dict[ir.OperatorIdentifier, Inlined] = {}

    def inside(graph: ir.Graph) -> Inlined:
        called = [sizes.get(node.op_identifier(), Inlined(1, 0)) for node in graph.all_nodes()]
        return Inlined(sum(each.nodes for each in called), 1 + max((each.depth for each in called), default=0))

    for function in called_first(model):
        sizes[function.identifier()] = inside(function.graph)
    return inside(model.graph)


def check_calls(model: ir.Model, name: str) -> None:
    """Raise an error if a function calls itself, or if the calls expand to more nodes than any runtime can load."""
    if model.functions and (nodes := inlined(model).nodes) > _MAX_RUNNABLE_NODES:
        raise ModelError(f"the calls of functions in {name} expand to {nodes:.3g} nodes", hint=WRITER_AT_FAULT)


def called_first(model: ir.Model) -> list[ir.Function]:
    """Return the functions, each after those that it calls."""
    functions = model.functions
    calls = {
        key: sorted({node.op_identifier() for node in function.graph.all_nodes()} & functions.keys())
        for key, function in functions.items()
    }
    try:
        return [functions[key] for key in needed_first(calls, calls.__getitem__)]
    except Cycle as error:
        names = " → ".join(functions[key].name for key in error.args[0])
        raise ModelError(f"a function calls itself: {names}", hint=WRITER_AT_FAULT) from error


class Cycle(Exception):
    """Things that need each other, the first of them also as the last."""


def needed_first(keys: Iterable[Key], needs: Callable[[Key], Iterable[Key]]) -> list[Key]:
    """Return the keys and all that they need, each after those that it needs.

    Raises:
        Cycle: There is no such order.
    """
    done: dict[Key, None] = {}
    path: dict[Key, None] = {}
    stack = [(key, False) for key in keys]
    while stack:
        key, is_left = stack.pop()
        if is_left:
            del path[key]
            done[key] = None
        elif key in path:
            cycle = [*path]
            raise Cycle([*cycle[cycle.index(key) :], key])
        elif key not in done:
            path[key] = None
            stack.append((key, True))
            stack += [(needed, False) for needed in needs(key)]
    return [*done]
