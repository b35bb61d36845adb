"""What a matcher may ask about a graph. Answers only; nothing here changes anything.

Shapes are what follows from the graph's inputs and constants, kept beside the graph: annotations in a file may be
wrong, and what we infer must not leak into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir.scopes import Scope, is_constant, scopes
from sardonyx.ir.shapes import Contents, Shape, Shapes, Size
from sardonyx.ir.size_budget import Growth

Dim = Size
Evaluate = Callable[[onnx.ModelProto], "list[np.ndarray]"]

_NO_NUMBERS = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
SMALL = 1 << 16  # bytes of a constant that matchers may look into


class Facts:
    """Constants, types, shapes and uses of the values of one model."""

    def __init__(
        self,
        model: ir.Model,
        *,
        target: str = "portable",
        evaluate: Evaluate | None = None,
        growth: Growth | None = None,
    ) -> None:
        """Facts about `model`; `evaluate` runs a model without inputs, for passes that fold."""
        self.growth = growth or Growth()
        self.model = model
        self.target = target
        self.evaluate = evaluate
        self.scopes: Mapping[ir.Graph, Scope] = {scope.graph: scope for scope in scopes(model)}
        self.place: Scope | None = None  # where nodes that are in no graph yet will be
        generic = frozenset(graph for graph, scope in self.scopes.items() if scope.in_function)
        self.shapes = Shapes(
            self.tensor, self.opset, model.graph.inputs, model.functions, main=model.graph, generic=generic
        )
        self._places: dict[ir.Node, int] = {}
        self._arrays: dict[ir.Value, np.ndarray] = {}
        self._spelled: dict[ir.Value, ir.TensorProtocol | None] = {}  # of Constant nodes: making them takes time

    # Where things are

    def scope(self, node: ir.Node) -> Scope:
        """The graph a node is in."""
        assert node.graph is not None, f"{node.name} is in no graph"
        return self.scopes[node.graph]

    def live_scopes(self) -> Iterator[Scope]:
        """The graphs that are part of the model still, outer ones first: a body goes with the node that holds it."""
        live: set[ir.Graph] = set()
        for scope in self.scopes.values():
            if scope.holder is None or scope.holder.graph in live:
                live.add(scope.graph)
                yield scope

    def opset(self, node: ir.Node) -> int:
        """The version of the default operator set where the node is, or will be."""
        scope = self.place if node.graph is None and self.place is not None else self.scope(node)
        return scope.opset

    def first(self, nodes: Collection[ir.Node]) -> ir.Node:
        """The one of some nodes of one graph that comes before the others.

        Rewrites put nodes in and take nodes out and move none, so that places once counted stay in order.
        """
        if not all(node in self._places for node in nodes):
            graph = next(iter(nodes)).graph
            assert graph is not None
            self._places.update((node, place) for place, node in enumerate(graph))
        return min(nodes, key=self._places.__getitem__)

    # Uses

    def is_output(self, value: ir.Value) -> bool:
        """Whether the value leaves its graph under its own name."""
        return value.is_graph_output()

    def sole_user(self, value: ir.Value) -> ir.Node | None:
        """The one node that reads the value, in the same graph and nowhere else; else None."""
        if value.is_graph_output() or len(uses := value.uses()) != 1:
            return None
        user = next(iter(uses)).node
        maker = value.producer()
        return user if maker is None or user.graph is maker.graph else None

    # Constants

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The constant a value always has; an initializer that a caller may override is none."""
        if value is None:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else value.const_value
        node = value.producer()
        if node is None:  # one that a rewrite is about to add has its tensor already
            return value.const_value if value.graph is None else None
        if not is_constant(node):
            return None
        if value not in self._spelled:
            self._spelled[value] = constant_tensor(node)
        return self._spelled[value]

    def array(self, value: ir.Value | None, limit: int = SMALL) -> np.ndarray | None:
        """A small constant as an array."""
        if value is None:
            return None
        known = self._arrays.get(value)
        if known is not None:
            return known
        tensor = self.tensor(value)
        if tensor is None or tensor.nbytes > limit:
            return None
        array = tensor.numpy()
        if tensor.nbytes <= SMALL:
            self._arrays[value] = array
        return array

    def scalar(self, value: ir.Value | None) -> float | int | bool | None:
        """The one number of a constant with one element, whatever its rank."""
        array = self.array(value)
        if array is None or array.size != 1 or self.dtype(value) in _NO_NUMBERS:
            return None
        return cast("float | int | bool", array.reshape(()).item())  # numpy calls bfloat16 void, so do not ask it

    def ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """A small integer constant, such as a shape or axes."""
        array = self.array(value)
        if array is None or array.dtype.kind not in "iu":
            return None
        return tuple(int(item) for item in array.reshape(-1))

    # Types and shapes

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type, where it follows from the graph or is declared."""
        if value is None:
            return None
        return self.shapes.dtype(value) or self.shapes.declared(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Dims as numbers or expressions, equal only where they certainly are; None where the rank is not known."""
        return self.shapes.shape(value)

    def contents(self, value: ir.Value | None) -> Contents | None:
        """The elements of a small integer tensor as dims, None for one that is not known; such as a computed shape."""
        return self.shapes.contents(value)

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape where every dim is a number."""
        shape = self.shape(value)
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            return None
        return cast("tuple[int, ...]", shape)

    def rank(self, value: ir.Value | None) -> int | None:
        """The number of dims."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def same_shape(self, one: ir.Value | None, other: ir.Value | None) -> bool:
        """Whether two values certainly have the same shape."""
        shape = self.shape(one)
        return shape is not None and shape == self.shape(other)

    def learn(self, value: ir.Value, dtype: ir.DataType | None, shape: Shape | None) -> None:
        """Take note of a type that a rewrite made known."""
        self.shapes.learn(value, (dtype, shape))

    def carry_over(self, old: ir.Value, new: ir.Value) -> None:
        """What was known of a value is true of the one that takes its place; what is known of that one stays."""
        self.shapes.carry_over(old, new)

    def forget(self, value: ir.Value) -> None:
        """A value is gone."""
        self.shapes.forget(value)
        self._arrays.pop(value, None)
        self._spelled.pop(value, None)

    def infer(self) -> None:
        """Work out what is not known yet of types and shapes from the graph as it is now."""
        self.shapes.refresh(scope.graph for scope in self.live_scopes())


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node, however it is spelled; None for sparse and reference ones."""
    for name, attribute in node.attributes.data.items():  # the plain dict inside: models have thousands of these
        if attribute.is_ref():
            return None
        match name:
            case "value" if attribute.type == ir.AttributeType.TENSOR:
                return cast("ir.TensorProtocol", attribute.value)  # as_tensor() costs as much as the rest of a match
            case "value_int":
                return ir.Tensor(np.array(attribute.as_int(), np.int64))  # ir.tensor() takes ten times as long
            case "value_float":
                return ir.Tensor(np.array(attribute.as_float(), np.float32))
            case "value_ints":
                return ir.Tensor(np.array(attribute.as_ints(), np.int64))
            case "value_floats":
                return ir.Tensor(np.array(attribute.as_floats(), np.float32))
            case "value_string":
                return ir.StringTensor([_encoded(attribute.value)], shape=ir.Shape([]))
            case "value_strings":
                texts = [_encoded(text) for text in cast("Sequence[str | bytes]", attribute.value)]
                return ir.StringTensor(texts, shape=ir.Shape([len(texts)]))
            case _:
                continue
    return None


def _encoded(text: str | bytes) -> bytes:
    """A string as it is stored; one that is not UTF-8 is kept as bytes."""
    return text if isinstance(text, bytes) else text.encode()
