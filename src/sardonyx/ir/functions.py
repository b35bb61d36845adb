"""Functions of a model: their parameters, what the model has after inlining, and how far an analysis may inline.

A file of n functions, each of which calls the next one twice, stands for 2^n nodes.

An attribute may be a parameter of the enclosing function, as in `Softmax <axis = @axis>`. Its value differs between
calls. Reading it raises `UnknownAttribute`, so that no code takes it for a number: the engine of shapes then infers
"unknown", and the driver of rewrites skips the node.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import onnx_ir as ir

from sardonyx.errors import ModelError

DEEPEST = 64  # calls within calls that an analysis follows
_MOST_NODES = 1 << 11  # it may inline so many nodes,
_GROWTH = 4  # or so many times the nodes that are stored
_MOST_RUNNABLE = 1 << 20  # nodes after inlining; runtimes inline every call before they run a model
_HINT = "the tool that wrote the file is at fault: export it again"


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
    return max(_MOST_NODES, _GROWTH * stored)


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
    if model.functions and (nodes := inlined(model).nodes) > _MOST_RUNNABLE:
        raise ModelError(f"the calls of functions in {name} expand to {nodes:.3g} nodes", hint=_HINT)


def called_first(model: ir.Model) -> list[ir.Function]:
    """Return the functions, each after those that it calls."""
    calls = {
        key: {node.op_identifier() for node in function.graph.all_nodes()} & model.functions.keys()
        for key, function in model.functions.items()
    }
    done: dict[ir.OperatorIdentifier, ir.Function] = {}
    path: dict[ir.OperatorIdentifier, None] = {}
    stack = [(key, False) for key in calls]
    while stack:
        key, is_left = stack.pop()
        if is_left:
            del path[key]
            done[key] = model.functions[key]
        elif key in path:
            keys = [*path]
            names = " → ".join(model.functions[each].name for each in (*keys[keys.index(key) :], key))
            raise ModelError(f"a function calls itself: {names}", hint=_HINT)
        elif key not in done:
            path[key] = None
            stack.append((key, True))
            stack += [(called, False) for called in sorted(calls[key])]
    return list(done.values())
