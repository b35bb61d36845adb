"""What a matcher can query about a graph: types, shapes, constants, consumers, and what values depend on.

Nothing here changes the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import cast

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir.ops import RANDOM, READS_SHAPE, READS_SHAPE_AND_TYPE, READS_TYPE_OF_SECOND
from sardonyx.ir.scopes import Scope, has_bodies, is_constant, nested_graphs, scopes, tensor_of
from sardonyx.ir.shapes import Contents, Shape, Shapes, Size
from sardonyx.ir.size_budget import Growth
from sardonyx.ir.tensors import string_bytes


class Dependence(IntEnum):
    """What a value depends on; a greater member includes the smaller ones."""

    CONSTANT = 0
    SIZE = 1  # constants and the sizes of other values
    DATA = 2  # inputs, random numbers, and what bodies compute


def dependence(op_type: str, operands: Dependence, *, has_bodies: bool) -> Dependence:
    """Return what the results of an operator depend on; `operands` is the greatest dependence of its operands."""
    if op_type in READS_SHAPE:
        return Dependence.SIZE
    return Dependence.DATA if has_bodies or op_type in RANDOM else operands


class Dataflow:
    """The dependences of the values of one model, whose nodes are visited in order.

    Results of nodes that were not visited count as data.
    """

    def __init__(self, *, defaults_are_constants: bool = False, types_are_data: bool = False) -> None:
        """Start with no node visited.

        Args:
            defaults_are_constants: An input with a default value counts as the constant that it is until a caller
                overrides it. Before IR version 4 all weights were such inputs.
            types_are_data: A result that depends on data by its element type alone (CastLike, EyeLike) counts as data.
        """
        self._results: dict[ir.Value, Dependence] = {}
        self._defaults_are_constants = defaults_are_constants
        self._types_are_data = types_are_data

    def visit(self, node: ir.Node, *, op_type: str | None = None) -> Dependence:
        """Record and return what the results of a node depend on; `op_type` is "" if its meaning is unknown."""
        name = node.op_type if op_type is None else op_type
        if name in READS_SHAPE_AND_TYPE and not self._types_are_data:
            result = Dependence.SIZE
        elif not node.inputs and node.domain:  # the source of its result is unknown
            result = Dependence.DATA
        else:
            operands = [self.of(value) for value in self.operands(node, name) if value is not None]
            most = max(operands, default=Dependence.CONSTANT)
            result = dependence(name, most, has_bodies=has_bodies(node))
        for output in node.outputs:
            self._results[output] = result
        return result

    def operands(self, node: ir.Node, name: str) -> Sequence[ir.Value | None]:
        """Return the operands whose values the results of a node depend on."""
        return node.inputs[:1] if name in READS_TYPE_OF_SECOND and not self._types_are_data else node.inputs

    def of(self, value: ir.Value) -> Dependence:
        """Return what a value depends on."""
        result = self._results.get(value)
        if result is None:
            is_constant = value.is_initializer() and (self._defaults_are_constants or not value.is_graph_input())
            result = self._results[value] = Dependence.CONSTANT if is_constant else Dependence.DATA
        return result


Dim = Size
Evaluate = Callable[[onnx.ModelProto], "list[np.ndarray]"]

_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
SMALL_CONSTANT_BYTES = 1 << 16  # of a constant whose elements matchers may read


class Facts:
    """The constants, types, shapes and uses of the values of one model."""

    def __init__(
        self,
        model: ir.Model,
        *,
        target: str = "portable",
        evaluate: Evaluate | None = None,
        growth: Growth | None = None,
    ) -> None:
        """Start with the declared inputs of `model`. `evaluate` runs a model without inputs, for passes that fold."""
        self.growth = growth or Growth()
        self.model = model
        self.target = target
        self.evaluate = evaluate
        self.scopes: Mapping[ir.Graph, Scope] = {scope.graph: scope for scope in scopes(model)}
        self.place: Scope | None = None  # where nodes that are not in a graph yet will be inserted
        generic = frozenset(graph for graph, scope in self.scopes.items() if scope.in_function)
        self.shapes = Shapes(
            self.tensor, self.opset, model.graph.inputs, model.functions, main=model.graph, generic=generic
        )
        self._positions: dict[ir.Node, int] = {}
        self._arrays: dict[ir.Value, np.ndarray] = {}
        self._constant_tensors: dict[ir.Value, ir.TensorProtocol | None] = {}  # of Constant nodes: it is slow

    # Positions

    def scope(self, node: ir.Node) -> Scope:
        """Return the scope of the graph that a node is in."""
        assert node.graph is not None, f"{node.name} is not in a graph"
        return self.scopes[node.graph]

    def live_scopes(self) -> Iterator[Scope]:
        """Yield the graphs that are still part of the model, outer ones first. A body is removed with its node."""
        live: set[ir.Graph] = set()
        for scope in self.scopes.values():
            if scope.holder is None or scope.holder.graph in live:
                live.add(scope.graph)
                yield scope

    def opset(self, node: ir.Node) -> int:
        """Return the version of the default operator set where the node is or will be inserted."""
        scope = self.place if node.graph is None and self.place is not None else self.scope(node)
        return scope.opset

    def first(self, nodes: Collection[ir.Node]) -> ir.Node:
        """Return the first of some nodes of one graph.

        Rewrites insert and remove nodes but never move one, so cached positions stay in order.
        """
        return self.in_order(nodes)[0]

    def in_order(self, nodes: Collection[ir.Node]) -> list[ir.Node]:
        """Return some nodes of one graph in the order of the graph."""
        if not all(node in self._positions for node in nodes):
            graph = next(iter(nodes)).graph
            assert graph is not None
            self._positions.update((node, position) for position, node in enumerate(graph))
        return sorted(nodes, key=self._positions.__getitem__)

    # Uses

    def is_output(self, value: ir.Value) -> bool:
        """Return whether the value is an output of its graph."""
        return value.is_graph_output()

    def sole_consumer(self, value: ir.Value) -> ir.Node | None:
        """Return the only node that reads the value if it is in the same graph, otherwise None."""
        if value.is_graph_output() or len(uses := value.uses()) != 1:
            return None
        user = next(iter(uses)).node
        producer = value.producer()
        return user if producer is None or user.graph is producer.graph else None

    # Constants

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor that a value always holds, or None if there is none or a caller may override it."""
        if value is None:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else value.const_value
        node = value.producer()
        if node is None:  # a constant that a rewrite is about to add has its tensor already
            return value.const_value if value.graph is None else None
        if not is_constant(node):
            return None
        if value not in self._constant_tensors:
            self._constant_tensors[value] = constant_tensor(node)
        return self._constant_tensors[value]

    def array(self, value: ir.Value | None, limit: int = SMALL_CONSTANT_BYTES) -> np.ndarray | None:
        """Return a small constant as an array, otherwise None."""
        if value is None:
            return None
        cached = self._arrays.get(value)
        if cached is not None:
            return cached
        tensor = self.tensor(value)
        if tensor is None or tensor.nbytes > limit:
            return None
        array = tensor.numpy()
        if tensor.nbytes <= SMALL_CONSTANT_BYTES:
            self._arrays[value] = array
        return array

    def scalar(self, value: ir.Value | None) -> float | int | bool | None:
        """Return the number of a constant with one element, of any rank, otherwise None."""
        array = self.array(value)
        if array is None or array.size != 1 or self.dtype(value) in _NO_NUMBERS:
            return None
        return cast("float | int | bool", array.item())  # the numpy type of bfloat16 is void: its kind says nothing

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the elements of a small integer constant, such as a shape or axes, otherwise None."""
        array = self.array(value)
        if array is None or array.dtype.kind not in "iu":
            return None
        return tuple(int(item) for item in array.reshape(-1))

    # Types and shapes

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type that follows from the graph or is declared, otherwise None."""
        if value is None:
            return None
        return self.shapes.dtype(value) or self.shapes.declared(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the dimensions as numbers or expressions, or None if the rank is unknown.

        Dimensions that compare equal are equal for every size of the inputs.
        """
        return self.shapes.shape(value)

    def contents(self, value: ir.Value | None) -> Contents | None:
        """Return the elements of a small integer tensor, such as a computed shape, as sizes; None for unknown ones."""
        return self.shapes.contents(value)

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape if every dimension is a number, otherwise None."""
        shape = self.shape(value)
        is_static = shape is not None and all(isinstance(dim, int) for dim in shape)
        return cast("tuple[int, ...]", shape) if is_static else None

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the number of dimensions, or None if unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def same_shape(self, one: ir.Value | None, other: ir.Value | None) -> bool:
        """Return whether two values certainly have the same shape."""
        shape = self.shape(one)
        return shape is not None and shape == self.shape(other)

    def learn(self, value: ir.Value, dtype: ir.DataType | None, shape: Shape | None) -> None:
        """Record the type and shape of a value that a rewrite created."""
        self.shapes.learn(value, (dtype, shape))

    def carry_over(self, old: ir.Value, new: ir.Value) -> None:
        """Record for `new` what is known about `old`, which it replaces; what is known about `new` stays."""
        self.shapes.carry_over(old, new)

    def forget(self, value: ir.Value) -> None:
        """Drop everything about a value that was removed."""
        self.shapes.forget(value)
        self._arrays.pop(value, None)
        self._constant_tensors.pop(value, None)

    def infer(self) -> None:
        """Infer the types and shapes that are still unknown from the graph as it is now."""
        self.shapes.refresh(scope.graph for scope in self.live_scopes())


_NUMBERS = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node, whichever attribute holds it; None for sparse ones and references."""
    for name, attribute in node.attributes.data.items():  # the underlying dict is faster: there are thousands of these
        if attribute.is_ref():
            return None
        if name == "value":
            return tensor_of(attribute)
        if name in _NUMBERS:
            return ir.Tensor(np.array(attribute.value, _NUMBERS[name]))  # ir.tensor() is ten times slower
        if name == "value_string":
            return ir.StringTensor([string_bytes(attribute.value)], shape=ir.Shape([]))
        if name == "value_strings":
            texts = [string_bytes(text) for text in cast("Sequence[str | bytes]", attribute.value)]
            return ir.StringTensor(texts, shape=ir.Shape([len(texts)]))
    return None


def element_types(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Return the element types of results and initializers, bodies included, as far as they are known."""
    facts = Facts(model)
    graphs = list(nested_graphs(model.graph))
    values = [value for graph in graphs for node in graph for value in node.outputs]
    values += [value for graph in graphs if isinstance(graph, ir.Graph) for value in graph.initializers.values()]
    return {value: kind for value in values if (kind := facts.dtype(value)) is not None}
