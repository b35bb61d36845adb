"""Asks the rules about a value the first time someone wants to know, and remembers the answer.

A rewrite never changes what a value is, so that what was found stays true; only what could not be told is looked at
again (`refresh`), since a rewrite may have replaced what stood in the way. Nothing declared in the file is believed but
the types of the model's inputs and of what foreign operators make. A node that no rule makes sense of is not an error:
what it makes is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.ir.ops import MAKES_SEQUENCE
from sardonyx.ir.scopes import operator
from sardonyx.ir.shapes import (
    attention,
    control_flow,
    dtypes,
    expr,
    indexing,
    operators,
    pooling,
    value_propagation,
    views,
)
from sardonyx.ir.shapes.attributes import numbers, sparse_constant
from sardonyx.ir.shapes.expr import Atom, Expr, Size
from sardonyx.ir.shapes.queries import Contents, Shape, Typed

# Where knowledge comes from: what a file declares, and the makers of a value in the order they must be asked.


def is_tensor(value: ir.Value) -> bool:
    """Whether it may be one: sequences and optional values have an element type and a shape in the file too."""
    return value.type is None or isinstance(value.type, ir.TensorType)


def declared_type(value: ir.Value, unknown: Callable[[], Expr]) -> Typed:
    """What the file says, each dim without a name being its own."""
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
            dims.append(_sum(str(dim.value), value) or expr.symbol(str(dim.value)))
    return value.dtype, tuple(dims)


def _sum(text: str, value: ir.Value) -> Size | None:
    """`past + new` on a graph's input, where both are dims of its inputs: exporters declare a mask's length so."""
    terms = [term.strip() for term in text.split("+")]
    if len(terms) < 2 or not value.is_graph_input() or value.graph is None:
        return None
    shapes = [each.shape for each in value.graph.inputs if each.shape is not None]
    names = {dim.value for shape in shapes for dim in shape if not isinstance(dim, int)}
    if not all(term.isdecimal() or (term.isidentifier() and term in names) for term in terms):
        return None
    return expr.total(int(term) if term.isdecimal() else expr.symbol(term) for term in terms)


def makers_first(value: ir.Value, known: Container[ir.Value]) -> Iterator[ir.Value]:
    """What a value is made from and is not known, from the far end, so that no question about it goes deep."""
    path, met = [value], {value}
    while path:
        node = path[-1].producer()
        missing = [
            made
            for made in (() if node is None else node.inputs)
            if made is not None and made not in known and made not in met and made.producer() is not None
        ]
        if missing:
            met.update(missing)
            path.extend(missing)
        else:
            made = path.pop()
            if made is not value:
                yield made


_RULES: Mapping[str, operators.Rule] = {
    **operators.RULES,
    **pooling.RULES,
    **attention.RULES,
    **views.RULES,
    **indexing.RULES,
    **control_flow.RULES,
}
_LOOKED_INTO = 1 << 12  # bytes of a constant that onnx is shown
SMALL = 64  # elements of a tensor that may hold sizes
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
_FILLING = ("Expand", "ConstantOfShape")  # their one element is all there is
_NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what malformed nodes come to
_NOTHING: Typed = (None, None)
_DEEP = 25  # questions within questions, after which makers are asked one by one
_CALLS = 1 << 11  # of functions that are looked into: functions that call each other twice over make more than can be


class Shapes:
    """What is known of the types, shapes and contents of the values of one model."""

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
        """`constant` tells the tensor a value always has; of `inputs` the declared types are believed.

        `main` is the graph whose nodes are always run. In `generic` graphs nothing declared is believed: a function may
        be called with any types.
        """
        self._generic = generic
        self._constant = constant
        self.opset = opset
        self._functions = functions or {}
        self._caller = caller
        self._level: int = 0 if caller is None else caller._level + 1
        self._types: dict[ir.Value, Typed] = {}
        self._contents: dict[ir.Value, Contents | None] = {}
        self._vague: dict[ir.Value, None] = {}  # whose shapes, or contents below, are to be asked about again
        self._untold: dict[ir.Value, None] = {}
        self._main = main
        self._settled: dict[Atom, Size] = {}  # what atoms are in every run that comes to an end
        self.loops: int = 0 if caller is None else caller.loops
        self._calls = 0
        self._unknowns = 0
        self._depth = 0
        self._seen: set[ir.Graph] = set()
        for value in inputs:
            self._note(value, declared_type(value, self.unknown))

    # Questions

    def typed(self, value: ir.Value) -> Typed:
        """Element type and shape."""
        found = self._types.get(value)
        return found if found is not None else self._work_out(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The dims; None where not even their number is known."""
        if value is None:
            return None
        found = self._types.get(value)
        return (found if found is not None else self._work_out(value))[1]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type."""
        return None if value is None else self.typed(value)[0]

    def declared(self, value: ir.Value) -> ir.DataType | None:
        """The element type that the file states, where it holds for every run."""
        producer = value.producer()
        return None if (value.graph if producer is None else producer.graph) in self._generic else value.dtype

    def contents(self, value: ir.Value | None) -> Contents | None:
        """The elements of a small tensor of integers, such as a shape; None where not even their number is known."""
        if value is None:
            return None
        if value in self._contents:
            return self._contents[value]
        self._contents[value] = None  # a question that leads back to itself has no answer
        if self._depth > _DEEP:
            self._ask_makers(value, self._contents, self.contents)
        self._depth += 1
        found = self._work_out_contents(value)
        self._depth -= 1
        self._contents[value] = found
        if found is None or not value_propagation.told(found):
            self._untold[value] = None
        return found

    def ints(self, node: ir.Node, name: str, index: int) -> Sequence[int] | None:
        """Numbers that are an attribute in older opsets and an input in newer ones; None where absent or not known."""
        listed = numbers(node, name)
        if listed is not None:
            return listed
        found = self.contents(node.inputs[index]) if index < len(node.inputs) else None
        return cast("Sequence[int]", found) if found is not None and value_propagation.are_numbers(found) else None

    def unknown(self) -> Expr:
        """A dim of which nothing is known."""
        if self._caller is not None:
            return self._caller.unknown()
        self._unknowns += 1
        return expr.unknown(self._unknowns)

    def small_array(self, value: ir.Value) -> np.ndarray | None:
        """What a small tensor certainly holds, for rules that depend on it."""
        tensor = self._constant(value)
        if tensor is not None:
            return (
                tensor.numpy() if tensor.dtype in value_propagation.WIDEST and tensor.nbytes <= _LOOKED_INTO else None
            )
        found, (dtype, shape) = self.contents(value), self.typed(value)
        if (
            found is None
            or shape is None
            or dtype is None
            or dtype not in INTEGERS
            or not value_propagation.are_numbers(found)
        ):
            return None
        return np.array(found, dtype.numpy()).reshape(cast("tuple[int, ...]", shape))

    def inside(self, function: ir.Function, node: ir.Node) -> Shapes:
        """What can be said of a function's body when this node calls it."""
        inner = Shapes(self._constant, self.opset, (), self._functions, self, generic=self._generic)
        inner._depth = self._depth
        for index, value in enumerate(function.inputs):
            given = node.inputs[index] if index < len(node.inputs) else None
            inner._note(value, _NOTHING if given is None else self.typed(given))
            inner._contents[value] = self.contents(given)
        return inner

    def made(self, node: ir.Node) -> Sequence[Typed]:
        """Type and shape of each output as they follow from the inputs, whatever is known of the outputs."""
        return self._outputs(node)

    def is_known(self, value: ir.Value) -> bool:
        """Whether the question was answered before."""
        return value in self._types

    # What is remembered

    def learn(self, value: ir.Value, typed: Typed) -> None:
        """Take note of a type."""
        self._note(value, typed)

    def carry_over(self, old: ir.Value, new: ir.Value) -> None:
        """What is known of a value is true of the one that takes its place."""
        if old in self._types and (new not in self._types or self._types[new][1] is None):
            self._note(new, self._types[old])
        if self._contents.get(old) is not None and self._contents.get(new) is None:
            self._contents[new] = self._contents[old]

    def forget(self, value: ir.Value) -> None:
        """A value is gone."""
        for known in (self._types, self._contents, self._vague, self._untold):
            known.pop(value, None)

    def assume(self, graph: ir.Graph, types: Sequence[Typed]) -> None:
        """Look at a body anew, with these types of its inputs."""
        self._seen.discard(graph)
        for node in graph:
            for value in node.outputs:
                self.forget(value)
            for inner in node.attributes.data.values():
                if inner.type is ir.AttributeType.GRAPH:
                    self.assume(inner.as_graph(), [])
        for value, typed in zip(graph.inputs, types, strict=bool(types)):
            self._note(value, typed)

    def settle(self, node: ir.Node, atom: Atom, size: Size) -> None:
        """Take note that a node could not run if an atom were not this size; what may not run tells nothing."""
        if node.graph is self._main:
            self._settled[atom] = size

    def refresh(self, graphs: Iterable[ir.Graph]) -> None:
        """Ask about all of a graph that is new, makers before users; and again about everything that was not known."""
        again = [value for value in self._vague if value.producer() is not None]
        for value in again:
            self._types.pop(value, None)
        for value in self._untold:
            self._contents.pop(value, None)
        self._vague.clear()
        self._untold.clear()
        self._calls = 0
        for graph in graphs:
            if graph not in self._seen:
                self._look_at(graph)
        for value in again:
            self.typed(value)
        if self._settled:
            self._write_settled()

    def _write_settled(self) -> None:
        """Put what atoms turned out to be into everything that is known."""
        known: dict[Size | None, Size | None] = {}

        def settled(size: Size | None) -> Size | None:
            if size is None or isinstance(size, int):
                return size
            if size not in known:
                known[size] = expr.replaced(size, self._settled)
            return known[size]

        for value, (dtype, shape) in tuple(self._types.items()):
            if shape is not None:
                self._note(value, (dtype, cast("Shape", tuple(map(settled, shape)))))
        for value, found in self._contents.items():
            if found is not None:
                self._contents[value] = tuple(map(settled, found))

    def _look_at(self, graph: ir.Graph) -> None:
        types, computes = self._types, value_propagation.RULES
        self._seen.add(graph)
        for node in graph:
            for output in node.outputs:
                typed = types.get(output) or self._work_out(output)
                if typed[0] in INTEGERS and node.op_type in computes:
                    self.contents(output)

    def _note(self, value: ir.Value, typed: Typed) -> Typed:
        dtype, shape = typed
        if shape is None:
            self._vague[value] = None
        else:
            for dim in shape:
                if type(dim) is int:
                    if dim < 0:  # no tensor is like this
                        return self._note(value, (dtype, None))
                elif cast("Expr", dim).weight > value_propagation.HEAVY:
                    return self._note(value, (dtype, self._lightened(shape)))
                elif cast("Expr", dim).is_vague:
                    self._vague[value] = None
                    break
        self._types[value] = typed
        return typed

    def _lightened(self, shape: Shape) -> Shape:
        """Of dims that are made of too much nothing is known: so every question about one has a bounded cost."""
        return tuple(self.unknown() if expr.weight(dim) > value_propagation.HEAVY else dim for dim in shape)

    # Working it out

    def _work_out(self, value: ir.Value) -> Typed:
        node = value.producer()
        if node is None or node.op_type == "Constant":
            tensor = self._constant(value)
            if tensor is not None:
                return self._note(value, (tensor.dtype, cast("Shape", tuple(tensor.shape.dims))))
        if node is not None and (sparse := sparse_constant(node)) is not None:
            return self._note(value, (sparse.dtype, cast("Shape", tuple(sparse.shape.dims))))
        if node is None:  # a body's or function's input, which may be different at each call
            return self._note(value, (self.declared(value), None) if is_tensor(value) else _NOTHING)
        if node.graph is not None and node.graph not in self._seen:
            self._look_at(node.graph)  # in order, so that no question goes deep
            if value in self._types:
                return self._types[value]
        self._types[value] = _NOTHING  # a question that leads back to itself has no answer
        if self._depth > _DEEP:
            self._ask_makers(value, self._types, self.typed)
        self._depth += 1
        for output, typed in zip(node.outputs, self._outputs(node), strict=True):
            self._note(output, typed)
        self._depth -= 1
        return self._types[value]

    def _ask_makers(self, value: ir.Value, known: Mapping[ir.Value, object], ask: Callable[[ir.Value], object]) -> None:
        depth, self._depth = self._depth, 0
        for maker in makers_first(value, known):
            ask(maker)
        self._depth = depth

    def _outputs(self, node: ir.Node) -> Sequence[Typed]:
        rule = _RULES.get(operator(node))
        if rule is None:
            return self._outputs_without_rule(node)
        count = len(node.outputs)
        try:
            shapes = rule(node, self)
            if count == 1 and shapes is not None and (dtype := dtypes.of_output(node, 0, self)) is not None:
                return ((dtype, shapes[0]),)  # almost always
            types = [dtypes.of_output(node, index, self) for index in range(count)]
        except _NONSENSE:
            return [(self.declared(output), None) for output in node.outputs]
        if shapes is not None and None not in types and len(shapes) >= count:
            return list(zip(types, shapes, strict=False))
        padded = [*(shapes or ()), *([None] * count)]
        asked = self._outputs_without_rule(node)
        return [
            (dtype or other, more if shape is None else shape)
            for dtype, shape, (other, more) in zip(types, padded, asked, strict=False)
        ]

    def _outputs_without_rule(self, node: ir.Node) -> Sequence[Typed]:
        if node.op_type in MAKES_SEQUENCE:
            return [_NOTHING] * len(node.outputs)
        if not node.domain:
            from sardonyx.ir.shapes import standard  # only now: most models never need it, and it loads onnx

            return standard.infer(node, self)
        function = self._functions.get(node.op_identifier())
        if function is not None and self._level < _DEEP and self._may_look_into_call():
            return self._called(function, node)
        if node.graph in self._generic:
            return [_NOTHING] * len(node.outputs)
        return [declared_type(output, self.unknown) for output in node.outputs]

    def _may_look_into_call(self) -> bool:
        """Whether one more body may be gone through for a call; all calls of a model count together."""
        if self._caller is not None:
            return self._caller._may_look_into_call()
        self._calls += 1
        return self._calls <= _CALLS

    def _called(self, function: ir.Function, node: ir.Node) -> list[Typed]:
        """A function's results, worked out from its body for the types and contents of this call."""
        inner = self.inside(function, node)
        results = [inner.typed(value) for value in function.outputs[: len(node.outputs)]]
        for output, value in zip(node.outputs, function.outputs, strict=False):
            self._contents[output] = inner.contents(value)
        return results

    def _work_out_contents(self, value: ir.Value) -> Contents | None:
        dtype, shape = self.typed(value)
        widest = 0 if dtype is None else value_propagation.WIDEST.get(dtype, 0)
        if not widest or shape is None:
            return None
        count = 1 if not shape else shape[0] if len(shape) == 1 else expr.product(shape)
        if type(count) is not int or count > SMALL:
            return None
        node = value.producer()
        if node is None or node.op_type == "Constant":
            tensor = self._constant(value)
            return None if tensor is None else value_propagation.of_tensor(tensor)
        try:
            found = value_propagation.of_output(node, value, self)
        except _NONSENSE:
            return None
        if found is None:
            return None
        if len(found) == 1 and node.op_type in _FILLING:
            found = found * count
        return value_propagation.fitting(found, widest) if len(found) == count else None
