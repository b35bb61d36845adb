"""Asks the rules about a value the first time someone wants to know, and remembers the answer.

A rewrite never changes what a value is, so that what was found stays true; only what could not be told is looked at
again (`refresh`), since a rewrite may have replaced what stood in the way. Nothing declared in the file is believed but
the types of the model's inputs and of what foreign operators make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.graph.shapes import contents, dtypes, expr, operators, views
from sardonyx.graph.shapes.expr import Expr, Size

Shape = tuple[Size, ...]
Contents = tuple[Size | None, ...]  # the elements in order; None for one that is not known
Typed = tuple[ir.DataType | None, Shape | None]
_SHAPE_RULES = {**operators.RULES, **views.RULES}
_LOOKED_INTO = 1 << 12  # bytes of a constant that onnx is shown
SMALL = 64  # elements of a tensor that may hold sizes
INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
_FILLING = ("Expand", "ConstantOfShape")  # their one element is all there is
_SIZES = INTEGERS | {ir.DataType.FLOAT, ir.DataType.DOUBLE}  # some exporters divide sizes as floating-point numbers


class Shapes:
    """What is known of the types, shapes and contents of the values of one model."""

    def __init__(
        self,
        constant: Callable[[ir.Value], ir.TensorProtocol | None],
        opset: Callable[[ir.Node], int],
        inputs: Iterable[ir.Value],
    ) -> None:
        """`constant` tells the tensor a value always has; of `inputs` the declared types are believed."""
        self._constant = constant
        self.opset = opset
        self._types: dict[ir.Value, Typed] = {}
        self._contents: dict[ir.Value, Contents | None] = {}
        self._vague: set[ir.Value] = set()
        self._unknowns = 0
        for value in inputs:
            self._note(value, (value.dtype, self._declared(value)))

    # Questions

    def typed(self, value: ir.Value) -> Typed:
        """Element type and shape."""
        found = self._types.get(value)
        return found if found is not None else self._work_out(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The dims; None where not even their number is known."""
        return None if value is None else self.typed(value)[1]

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type."""
        return None if value is None else self.typed(value)[0]

    def contents(self, value: ir.Value | None) -> Contents | None:
        """The elements of a small tensor of integers, such as a shape; None where not even their number is known."""
        if value is None:
            return None
        if value not in self._contents:
            self._contents[value] = None  # a question that leads back to itself has no answer
            self._contents[value] = self._work_out_contents(value)
        return self._contents[value]

    def ints(self, node: ir.Node, name: str, index: int) -> tuple[int, ...] | None:
        """Numbers that are an attribute in older opsets and an input in newer ones; None where absent or not known."""
        attribute = node.attributes.get(name)
        if attribute is not None:
            return tuple(attribute.as_ints())
        found = self.contents(node.inputs[index]) if index < len(node.inputs) else None
        if found is None or not all(isinstance(item, int) for item in found):
            return None
        return cast("tuple[int, ...]", found)

    def unknown(self) -> Expr:
        """A dim of which nothing is known."""
        self._unknowns += 1
        return expr.unknown(self._unknowns)

    def small_array(self, value: ir.Value) -> np.ndarray | None:
        """What a small tensor certainly holds, for rules that depend on it."""
        tensor = self._constant(value)
        if tensor is not None:
            return tensor.numpy() if tensor.dtype in _SIZES and tensor.nbytes <= _LOOKED_INTO else None
        found, (dtype, shape) = self.contents(value), self.typed(value)
        if found is None or shape is None or dtype is None or dtype not in INTEGERS or not all(map(_is_int, found)):
            return None
        return np.array(found, dtype.numpy()).reshape(cast("tuple[int, ...]", shape))

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
        self._types.pop(value, None)
        self._contents.pop(value, None)
        self._vague.discard(value)

    def refresh(self, graphs: Iterable[ir.Graph]) -> None:
        """Ask again about everything that was not known, makers before users so that no question goes deep."""
        for value in self._vague:
            if value.producer() is not None:
                self._types.pop(value, None)
        self._vague.clear()
        self._contents = {value: known for value, known in self._contents.items() if known is not None and _told(known)}
        for graph in graphs:
            for node in graph:
                for output in node.outputs:
                    if self.typed(output)[0] in INTEGERS:
                        self.contents(output)

    def _note(self, value: ir.Value, typed: Typed) -> Typed:
        self._types[value] = typed
        shape = typed[1]
        if shape is None or not _told(shape):
            self._vague.add(value)
        return typed

    # Working it out

    def _work_out(self, value: ir.Value) -> Typed:
        tensor = self._constant(value)
        if tensor is not None:
            return self._note(value, (tensor.dtype, tuple(int(dim) for dim in tensor.shape.numpy())))
        node = value.producer()
        if node is None:  # a body's or function's input, which may be different at each call
            return self._note(value, (value.dtype, None))
        for output, typed in zip(node.outputs, self._outputs(node), strict=True):
            self._note(output, typed)
        return self._types[value]

    def _outputs(self, node: ir.Node) -> list[Typed]:
        rule = _SHAPE_RULES.get(_key(node))
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return [(output.dtype, None) for output in node.outputs]
        if rule is not None:
            shapes = rule(node, self)
            if shapes is not None:
                padded = [*shapes, *([None] * len(node.outputs))]
                types = [dtypes.of_output(node, index, self) for index in range(len(node.outputs))]
                if None not in types:
                    return list(zip(types, padded[: len(node.outputs)], strict=True))
        if not node.domain:
            from sardonyx.graph.shapes import standard  # only now: most models never need it, and it loads onnx

            return standard.infer(node, self)
        return [(output.dtype, self._declared(output)) for output in node.outputs]

    def _declared(self, value: ir.Value) -> Shape | None:
        """What the file says, each dim without a name being its own."""
        if value.shape is None:
            return None
        dims: list[Size] = []
        for dim in value.shape:
            if isinstance(dim, int) and dim >= 0:  # some writers put -1 for "any"
                dims.append(dim)
            elif isinstance(dim, int) or not dim.value:
                dims.append(self.unknown())
            else:
                dims.append(expr.symbol(str(dim.value)))
        return tuple(dims)

    def _work_out_contents(self, value: ir.Value) -> Contents | None:
        dtype, shape = self.typed(value)
        count = None if shape is None else expr.product(shape)
        if dtype not in _SIZES or not isinstance(count, int) or count > SMALL:
            return None
        tensor = self._constant(value)
        if tensor is not None:
            return tuple(_whole(item) for item in tensor.numpy().reshape(-1).tolist())
        node = value.producer()
        rule = None if node is None else contents.RULES.get(_key(node))
        if node is None or rule is None:
            return None
        found = rule(node, self)
        if found is not None and len(found) == 1 and node.op_type in _FILLING:
            found = found * count
        return found if found is not None and len(found) == count else None


def _told(sizes: Contents) -> bool:
    """Whether nothing about them is unknown."""
    return all(isinstance(size, int) or (size is not None and not size.is_vague) for size in sizes)


def _is_int(item: Size | None) -> bool:
    return isinstance(item, int)


def _key(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _whole(number: float) -> int | None:
    """A number that a size may be."""
    return int(number) if number == number and abs(number) < 2**63 and number == int(number) else None
