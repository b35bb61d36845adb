"""Constants as expressions of other constants: passes build them, and they are computed in one place.

An expression is a small graph of ONNX operators over tensors. Arithmetic is done in double precision: numbers are cast
to it first, and the result is cast, and rounded, once. Exact verification evaluates the same operators without rounding
(`verification.exact_check`), so that a rewrite is an exact identity and a rounding of a known size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from onnx import helper
from onnx_ir import serde

from sardonyx.ir.storage import Array

_NONE: Mapping[str, Any] = MappingProxyType({})


def _cast(x: Array, to: int) -> Array:
    return x.astype(ir.DataType(to).numpy())


def _expand(x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))


def _reshape(x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[axis] if size == 0 else int(size) for axis, size in enumerate(shape)])


def _transpose(x: Array, perm: Sequence[int]) -> Array:
    return x.transpose(perm)


def _concat(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis)


_COMPUTED: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "Add": np.add,
        "Cast": _cast,
        "Concat": _concat,
        "Div": np.divide,
        "Expand": _expand,
        "Max": np.maximum,
        "Min": np.minimum,
        "Mul": np.multiply,
        "Neg": np.negative,
        "Reshape": _reshape,
        "Sqrt": np.sqrt,
        "Sub": np.subtract,
        "Transpose": _transpose,
    }
)


class Expression(Struct, frozen=True, eq=False):
    """An operator of the ONNX standard on expressions and tensors."""

    op_type: str
    operands: tuple[Expression | ir.TensorProtocol, ...]
    attributes: Mapping[str, Any] = _NONE

    def __add__(self, other: Expression) -> Expression:
        return Expression("Add", (self, other))

    def __sub__(self, other: Expression) -> Expression:
        return Expression("Sub", (self, other))

    def __mul__(self, other: Expression) -> Expression:
        return Expression("Mul", (self, other))

    def __truediv__(self, other: Expression) -> Expression:
        return Expression("Div", (self, other))

    def __neg__(self) -> Expression:
        return Expression("Neg", (self,))

    def root(self) -> Expression:
        """Return the square root."""
        return Expression("Sqrt", (self,))

    def reshaped(self, shape: Sequence[int]) -> Expression:
        """Return the elements in another shape; 0 keeps a size, and -1 is computed."""
        return Expression("Reshape", (self, _sizes(shape)))

    def expanded(self, shape: Sequence[int]) -> Expression:
        """Return the elements broadcast to a shape."""
        return Expression("Expand", (self, _sizes(shape)))

    def cast(self, dtype: ir.DataType) -> Expression:
        """Return the elements in another type."""
        return Expression("Cast", (self,), {"to": dtype.value})

    def numpy(self) -> Array:
        """Compute the values."""
        operands = [each.numpy() for each in self.operands]
        with np.errstate(all="ignore"):  # whoever stores the values checks them
            return self.applied(operands)

    def applied(self, operands: Sequence[Array]) -> Array:
        """Return the result of the operator on arrays."""
        return _COMPUTED[self.op_type](*operands, **self.attributes)

    def nodes(self, result: str, name_of: Callable[[ir.TensorProtocol], str | None]) -> list[onnx.NodeProto]:
        """Return the operators as nodes in topological order, the last of which produces `result`.

        `name_of` returns the name of a tensor of the graph that the expression was built from. Any other tensor is
        written as its own definition, or as a Constant if it has none.
        """
        nodes: list[onnx.NodeProto] = []
        names: dict[int, str] = {}  # by identity; the expression keeps all of them alive

        def write(operand: Expression | ir.TensorProtocol, output: str | None = None) -> str:
            if id(operand) in names:
                return names[id(operand)]
            name = None if isinstance(operand, Expression) else name_of(operand)
            expression = operand if isinstance(operand, Expression) else definition_of(operand)
            if name is None and expression is not None:
                inputs = [write(each) for each in expression.operands]
                name = output or f"{result}_{len(nodes)}"
                nodes.append(helper.make_node(expression.op_type, inputs, [name], **expression.attributes))
            elif name is None and not isinstance(operand, Expression):
                name = output or f"{result}_{len(nodes)}"
                nodes.append(helper.make_node("Constant", [], [name], value=serde.serialize_tensor(operand)))
            assert name is not None
            return names.setdefault(id(operand), name)

        write(self, result)
        return nodes


def definition_of(tensor: ir.TensorProtocol) -> Expression | None:
    """Return what a tensor that a rewrite made is in terms of those that it was made from; None for all others."""
    return getattr(tensor, "definition", None)


def known(floats: Expression | ir.TensorProtocol) -> Expression:
    """Return a tensor of floats as an expression in double precision."""
    return Expression("Cast", (floats,), {"to": ir.DataType.DOUBLE.value})


def literal(number: Array | np.floating | float) -> Expression:
    """Return numbers that are no tensor of the graph, such as an attribute, in the type that they have."""
    return known(ir.Tensor(np.asarray(number)))


def reshape(tensor: ir.TensorProtocol, shape: Sequence[int]) -> Expression:
    """Return the elements of a tensor in another shape, without the sizes that it has already."""
    sizes, own = list(shape), tensor.shape.numpy()
    for axis, (size, old) in enumerate(zip(shape, own, strict=False)):
        if size != old:
            break
        sizes[axis] = 0
    others = [axis for axis, size in enumerate(sizes) if size > 1]
    if len(others) == 1:
        sizes[others[0]] = -1
    return Expression("Reshape", (tensor, _sizes(sizes)))


def transpose(operand: Expression | ir.TensorProtocol, perm: Sequence[int]) -> Expression:
    """Return the axes in another order."""
    return Expression("Transpose", (operand,), {"perm": list(perm)})


def concatenate(operands: Sequence[Expression | ir.TensorProtocol], axis: int) -> Expression:
    """Return tensors one after another along an axis."""
    return Expression("Concat", tuple(operands), {"axis": axis})


def _sizes(shape: Sequence[int]) -> ir.TensorProtocol:
    return ir.Tensor(np.array(shape, np.int64))
