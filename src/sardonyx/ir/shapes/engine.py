"""Infer the types, shapes and contents of values on demand, and cache the results.

Invariants:

- A cached result stays true: a rewrite never changes what a value is. Only results that contain unknowns are inferred
  again (`refresh`), because a rewrite may have replaced the node that hid the answer.
- Declared types are used for the inputs of the model and for outputs of operators from other domains only; all others
  follow from the rules.
- A malformed node is not an error here: its outputs are unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import MAKES_SEQUENCE, PREDICATES, RANDOM, READS_SHAPE
from sardonyx.ir.scopes import operator
from sardonyx.ir.shapes import control_flow, expr, movement, operators, value_propagation
from sardonyx.ir.shapes.expr import Atom, Expr, Size
from sardonyx.ir.shapes.node_view import Contents, NodeView, Shape, Typed, Unknown, are_numbers
from sardonyx.ir.storage import DTYPES

Source = int | ir.DataType  # the index of the input with the same type, or a fixed type
_INT64, _BOOL, _FLOAT, _INT32 = ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT32
_OUTPUTS: Mapping[str, tuple[Source, ...]] = {  # operators not listed return the type of their first input
    **dict.fromkeys(PREDICATES, (_BOOL,)),
    **dict.fromkeys(READS_SHAPE | {"ArgMax", "ArgMin", "NonZero"}, (_INT64,)),
    "Where": (1,),
    "CastLike": (1,),
    "OneHot": (2,),
    "TopK": (0, _INT64),
    "MaxPool": (0, _INT64),
    "Dropout": (0, _BOOL),
    "Attention": (0, 1, 2, 0),
    "LSTM": (0, 0, 0),
    "GRU": (0, 0),
    "RNN": (0, 0),
    "ConvInteger": (_INT32,),
    "MatMulInteger": (_INT32,),
    "GatherBlockQuantized": (2,),
    "QLinearConv": (7,),
    "QLinearMatMul": (7,),
    "SkipLayerNormalization": (0, _FLOAT, _FLOAT, 0),
    "SkipSimplifiedLayerNormalization": (0, _FLOAT, _FLOAT, 0),
}
_NAMED = {"Cast": "to"} | dict.fromkeys(RANDOM - {"Multinomial"} | {"EyeLike"}, "dtype")
_QUANTIZED = {"QuantizeLinear": 2, "DequantizeLinear": 1}  # the operand of the same type, without `output_dtype`
_BODIES = {"If": ("then_branch", 0), "Loop": ("body", 1), "Scan": ("body", 0)}
_SPECIAL = frozenset({*_OUTPUTS, *_NAMED, *_QUANTIZED, *_BODIES, "ConstantOfShape", "SequenceAt"})


def _dtype_of_output(node: NodeView, index: int) -> ir.DataType | None:
    """Return the element type of one output, or None if unknown."""
    op_type, ask = node.node.op_type, node.ask
    if op_type not in _SPECIAL and (not index or op_type == "Split"):
        return ask.dtype(node.operand())
    if op_type in _OUTPUTS:
        sources = _OUTPUTS[op_type]
        source = sources[index] if index < len(sources) else None
        return ask.dtype(node.operand(source)) if type(source) is int else cast("ir.DataType | None", source)
    if op_type in _NAMED:
        name = _NAMED[op_type]
        return DTYPES.get(node.number(name, 0)) if node.has(name) else ask.dtype(node.operand())
    if op_type in _QUANTIZED:
        return None if node.has("output_dtype") else ask.dtype(node.operand(_QUANTIZED[op_type]))
    if op_type in _BODIES:
        name, first = _BODIES[op_type]
        return ask.dtype(node.body(name).outputs[index + first]) or ask.declared(node.node.outputs[index])
    if op_type == "ConstantOfShape":
        value = node.tensor("value")
        return _FLOAT if value is None else value.dtype
    if op_type == "SequenceAt":
        value = node.operand()
        producer = None if value is None else value.producer()
        if producer is not None and operator(producer) in ("SequenceConstruct", "SplitToSequence"):
            return ask.dtype(NodeView(producer, ask).operand())
    return None


def is_tensor(value: ir.Value) -> bool:
    """Return whether the value may be a tensor. Sequences and optionals declare element types and shapes too."""
    return value.type is None or isinstance(value.type, ir.TensorType)


def declared_type(value: ir.Value, unknown: Callable[[], Expr]) -> Typed:
    """Return the type and shape that the file declares; every dimension without a name is a new unknown."""
    if not is_tensor(value):
        return None, None
    if value.shape is None:
        return value.dtype, None
    dims: list[Size] = []
    for dim in value.shape:
        if isinstance(dim, int) and dim >= 0:  # some writers put -1 for "any"
            dims.append(dim)
        elif isinstance(dim, int) or not dim.value:
            dims.append(unknown())
        else:
            dims.append(expr.symbol(str(dim.value)))  # only a name: the runtime accepts any size for "past + new"
    return value.dtype, tuple(dims)


def producers_first(value: ir.Value, known: Container[ir.Value]) -> Iterator[ir.Value]:
    """Yield the values that `value` is computed from and that are not in `known`, producers before consumers.

    Inferring them in this order keeps the recursion shallow.
    """
    stack, visited = [value], {value}
    while stack:
        node = stack[-1].producer()
        missing = [
            operand
            for operand in (() if node is None else node.inputs)
            if operand is not None
            and operand not in known
            and operand not in visited
            and operand.producer() is not None
        ]
        if missing:
            visited.update(missing)
            stack.extend(missing)
        else:
            last = stack.pop()
            if last is not value:
                yield last


_RULES: Mapping[str, operators.Rule] = {**operators.RULES, **movement.RULES, **control_flow.RULES}
_MAX_INSPECTED_BYTES = 1 << 12  # of a constant that is passed to onnx
_MAX_CONTENTS = 64  # elements of a tensor whose contents are inferred
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
_FILLS = ("Expand", "ConstantOfShape")  # all elements are equal, and the rule returns one
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # from rules for malformed nodes
_UNKNOWN: Typed = (None, None)
_MAX_DEPTH = 25  # of the recursion, after which producers are inferred one by one
_MAX_CALLS = 1 << 11  # function calls whose bodies are inferred; nested calls can be exponentially many


class Shapes:
    """The known types, shapes and contents of the values of one model."""

    def __init__(
        self,
        constant: Callable[[ir.Value], ir.TensorProtocol | None],
        opset: Callable[[ir.Node], int],
        inputs: Iterable[ir.Value],
        functions: Mapping[tuple[str, str, str], ir.Function] | None = None,
        caller: Shapes | None = None,
        main: ir.Graph | None = None,
        generic: Container[ir.Graph | None] = frozenset(),
    ) -> None:
        """Start with the declared types of `inputs`.

        Args:
            constant: Returns the tensor that a value always holds, or None.
            opset: Returns the opset version that a node is interpreted with.
            inputs: The values whose declared types are used.
            functions: The functions of the model by identifier.
            caller: The instance for the graph that calls the function which this one is for.
            main: The graph whose nodes run in every run of the model.
            generic: Graphs in which no declared type is used: a function may be called with any types.
        """
        self._generic = generic
        self._constant = constant
        self.opset = opset
        self._functions = functions or {}
        self._root: Shapes = self if caller is None else caller._root
        self._level: int = 0 if caller is None else caller._level + 1
        self._types: dict[ir.Value, Typed] = {}
        self._contents: dict[ir.Value, Contents | None] = {}
        self._unknown_shapes: dict[ir.Value, None] = {}  # values to infer again in `refresh`; dicts keep the order
        self._unknown_contents: dict[ir.Value, None] = {}
        self._main = main
        self._resolved: dict[Atom, Size] = {}  # the value of atoms in every run that completes
        self.loops: int = 0 if caller is None else caller.loops
        self._calls = 0
        self._unknowns = 0
        self._depth = 0
        self._inferred: set[ir.Graph] = set()
        for value in inputs:
            self.learn(value, declared_type(value, self.unknown))

    # Queries

    def typed(self, value: ir.Value) -> Typed:
        """Return the element type and the shape, each None if unknown."""
        typed = self._types.get(value)
        return typed if typed is not None else self._infer(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the dimensions, or None if not even the rank is known."""
        if value is None:
            return None
        typed = self._types.get(value)
        return (typed if typed is not None else self._infer(value))[1]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type, or None if unknown."""
        return None if value is None else self.typed(value)[0]

    def declared(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type that the file declares if it holds for every run, otherwise None."""
        producer = value.producer()
        return None if (value.graph if producer is None else producer.graph) in self._generic else value.dtype

    def contents(self, value: ir.Value | None) -> Contents | None:
        """Return the elements of a small integer tensor such as a shape, or None if not even their number is known."""
        if value is None:
            return None
        if value in self._contents:
            return self._contents[value]
        self._contents[value] = None  # in case it depends on itself
        if self._depth > _MAX_DEPTH:
            self._infer_producers(value, self._contents, self.contents)
        self._depth += 1
        contents = self._infer_contents(value)
        self._depth -= 1
        self._contents[value] = contents
        if contents is None or not value_propagation.is_certain(contents):
            self._unknown_contents[value] = None
        return contents

    def unknown(self) -> Expr:
        """Return a new unknown dimension."""
        self._root._unknowns += 1
        return expr.unknown(self._root._unknowns)

    def small_array(self, value: ir.Value) -> np.ndarray | None:
        """Return the constant contents of a small tensor, or None; some rules depend on them."""
        tensor = self._constant(value)
        if tensor is not None:
            is_inspected = tensor.dtype in value_propagation.WIDEST and tensor.nbytes <= _MAX_INSPECTED_BYTES
            return tensor.numpy() if is_inspected else None
        contents, (dtype, shape) = self.contents(value), self.typed(value)
        if contents is None or shape is None or dtype is None or dtype not in INTEGERS or not are_numbers(contents):
            return None
        return np.array(contents, dtype.numpy()).reshape(cast("tuple[int, ...]", shape))

    def inside(self, function: ir.Function, node: ir.Node) -> Shapes:
        """Return the shapes of the body of a function as this node calls it."""
        inner = Shapes(self._constant, self.opset, (), self._functions, self, generic=self._generic)
        inner._depth = self._depth
        arguments = NodeView(node, self)
        for index, value in enumerate(function.inputs):
            argument = arguments.operand(index)
            inner.learn(value, _UNKNOWN if argument is None else self.typed(argument))
            inner._contents[value] = self.contents(argument)
        return inner

    def is_known(self, value: ir.Value) -> bool:
        """Return whether the type of the value is cached."""
        return value in self._types

    # The cache

    def learn(self, value: ir.Value, typed: Typed) -> Typed:
        """Cache a type and shape and return it, with unknowns in place of impossible or too large dimensions."""
        dtype, shape = typed
        if shape is None:
            self._unknown_shapes[value] = None
        else:
            for dim in shape:
                if type(dim) is int:
                    if dim < 0:  # impossible, so the rule or the model is wrong
                        return self.learn(value, (dtype, None))
                elif cast("Expr", dim).weight > value_propagation.MAX_SIZE_WEIGHT:  # this bounds the cost of queries
                    heavy = [expr.weight(each) > value_propagation.MAX_SIZE_WEIGHT for each in shape]
                    dims = zip(shape, heavy, strict=True)
                    return self.learn(value, (dtype, tuple(self.unknown() if large else each for each, large in dims)))
                elif cast("Expr", dim).is_vague:
                    self._unknown_shapes[value] = None
        self._types[value] = typed
        return typed

    def carry_over(self, old: ir.Value, new: ir.Value) -> None:
        """Cache for `new` what is known about `old`, which it replaces and equals."""
        if old in self._types and (new not in self._types or self._types[new][1] is None):
            self.learn(new, self._types[old])
        if self._contents.get(old) is not None and self._contents.get(new) is None:
            self._contents[new] = self._contents[old]

    def settle(self, equal: Mapping[ir.Value, ir.Value]) -> None:
        """Cache for every key what is known of the value that it equals in the runs of interest, and infer again."""
        for value, other in equal.items():
            self.forget(value)
            self.learn(value, self.typed(other))
            self._contents[value] = self.contents(other)
        self.refresh([])

    def forget(self, value: ir.Value) -> None:
        """Drop everything about a value that was removed."""
        for cache in (self._types, self._contents, self._unknown_shapes, self._unknown_contents):
            cache.pop(value, None)

    def assume(self, graph: ir.Graph, types: Sequence[Typed]) -> None:
        """Infer a body again, with these types for its inputs."""
        self._inferred.discard(graph)
        for node in graph:
            for value in node.outputs:
                self.forget(value)
            for attribute in node.attributes.data.values():
                if attribute.type is ir.AttributeType.GRAPH:
                    self.assume(attribute.as_graph(), [])
        for value, typed in zip(graph.inputs, types, strict=bool(types)):
            self.learn(value, typed)

    def resolve(self, node: ir.Node, atom: Atom, size: Size) -> None:
        """Record that the node can only run if the atom equals this size.

        Ignored for nodes of bodies: a node that may not run implies nothing.
        """
        if node.graph is self._main:
            self._resolved[atom] = size

    def refresh(self, graphs: Iterable[ir.Graph]) -> None:
        """Infer all new graphs, producers first, and again everything that was unknown."""
        unknown_values = [value for value in self._unknown_shapes if value.producer() is not None]
        for value in unknown_values:
            self._types.pop(value, None)
        for value in self._unknown_contents:
            self._contents.pop(value, None)
        self._unknown_shapes.clear()
        self._unknown_contents.clear()
        self._calls = 0
        for graph in graphs:
            if graph not in self._inferred:
                self._infer_graph(graph)
        for value in unknown_values:
            self.typed(value)
        if self._resolved:
            self._replace_resolved()

    def _replace_resolved(self) -> None:
        """Substitute the resolved atoms in everything that is cached."""

        @functools.cache
        def resolved(size: Size | None) -> Size | None:
            return None if size is None else expr.replaced(size, self._resolved)

        for value, (dtype, shape) in tuple(self._types.items()):
            if shape is not None:
                self.learn(value, (dtype, cast("Shape", tuple(map(resolved, shape)))))
        for value, contents in self._contents.items():
            if contents is not None:
                self._contents[value] = tuple(map(resolved, contents))

    def _infer_graph(self, graph: ir.Graph) -> None:
        types, computes = self._types, value_propagation.RULES
        self._inferred.add(graph)
        for node in graph:
            for output in node.outputs:
                typed = types.get(output) or self._infer(output)
                if typed[0] in INTEGERS and node.op_type in computes:
                    self.contents(output)

    # Inference

    def _infer(self, value: ir.Value) -> Typed:
        node = value.producer()
        if node is None or node.op_type == "Constant":
            tensor = self._constant(value)
            if tensor is not None:
                return self.learn(value, (tensor.dtype, cast("Shape", tuple(tensor.shape.dims))))
        if node is None:  # an input of a body or function, which may differ at each call
            return self.learn(value, (self.declared(value), None) if is_tensor(value) else _UNKNOWN)
        sparse = node.attributes.data.get("sparse_value") if operator(node) == "Constant" else None
        if sparse is not None and sparse.type is ir.AttributeType.SPARSE_TENSOR:  # the elements are not read
            return self.learn(value, (sparse.value.dtype, cast("Shape", tuple(sparse.value.shape.dims))))
        if node.graph is not None and node.graph not in self._inferred:
            self._infer_graph(node.graph)  # in order, so that the recursion stays shallow
            if value in self._types:
                return self._types[value]
        self._types[value] = _UNKNOWN  # in case it depends on itself
        if self._depth > _MAX_DEPTH:
            self._infer_producers(value, self._types, self.typed)
        self._depth += 1
        for output, typed in zip(node.outputs, self.infer_outputs(node), strict=True):
            self.learn(output, typed)
        self._depth -= 1
        return self._types[value]

    def _infer_producers(
        self, value: ir.Value, known: Mapping[ir.Value, object], infer: Callable[[ir.Value], object]
    ) -> None:
        depth, self._depth = self._depth, 0
        for producer in producers_first(value, known):
            infer(producer)
        self._depth = depth

    def infer_outputs(self, node: ir.Node) -> Sequence[Typed]:
        """Return the type and shape of each output as they follow from the inputs, ignoring what is cached."""
        name, view, count = operator(node), NodeView(node, self), len(node.outputs)
        rule = _RULES.get(name)
        if rule is None:
            return self._infer_without_rule(node)
        try:
            try:
                shapes = rule(view)
            except Unknown:
                shapes = None if name in operators.LEFT_TO_ONNX else (None,) * count
            if count == 1 and shapes is not None and (dtype := _dtype_of_output(view, 0)) is not None:
                return ((dtype, shapes[0]),)  # almost always
            types = [_dtype_of_output(view, index) for index in range(count)]
        except _MALFORMED:
            return [(self.declared(output), None) for output in node.outputs]
        if shapes is not None and None not in types and len(shapes) >= count:
            return list(zip(types, shapes, strict=False))
        padded = [*(shapes or ()), *([None] * count)]
        fallback = self._infer_without_rule(node)
        return [
            (dtype or fallback_dtype, fallback_shape if shape is None else shape)
            for dtype, shape, (fallback_dtype, fallback_shape) in zip(types, padded, fallback, strict=False)
        ]

    def _infer_without_rule(self, node: ir.Node) -> Sequence[Typed]:
        if node.op_type in MAKES_SEQUENCE:
            return [_UNKNOWN] * len(node.outputs)
        if not node.domain:
            from sardonyx.ir.shapes import standard  # imported late: most models do not need it, and it imports onnx

            return standard.infer(node, self)
        function = self._functions.get(node.op_identifier())
        if function is not None and self._level < _MAX_DEPTH and self._root._calls < _MAX_CALLS:
            self._root._calls += 1
            inner = self.inside(function, node)
            for output, value in zip(node.outputs, function.outputs, strict=False):
                self._contents[output] = inner.contents(value)
            return [inner.typed(value) for value in function.outputs[: len(node.outputs)]]
        if node.graph in self._generic:
            return [_UNKNOWN] * len(node.outputs)
        return [declared_type(output, self.unknown) for output in node.outputs]

    def _infer_contents(self, value: ir.Value) -> Contents | None:
        dtype, shape = self.typed(value)
        widest = 0 if dtype is None else value_propagation.WIDEST.get(dtype, 0)
        if not widest or shape is None:
            return None
        count = 1 if not shape else shape[0] if len(shape) == 1 else expr.product(shape)
        if type(count) is not int or count > _MAX_CONTENTS:
            return None
        node = value.producer()
        if node is None or node.op_type == "Constant":
            tensor = self._constant(value)
            return None if tensor is None else value_propagation.of_tensor(tensor)
        try:
            contents = value_propagation.of_output(NodeView(node, self), value)
        except (*_MALFORMED, Unknown):
            return None
        if contents is None:
            return None
        if len(contents) == 1 and node.op_type in _FILLS:
            contents = contents * count
        return value_propagation.fitting(contents, widest) if len(contents) == count else None
