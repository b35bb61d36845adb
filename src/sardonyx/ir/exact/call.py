"""One operator to evaluate: its operands, its attributes, and the table of definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from msgspec import Struct
from onnx import TensorProto, helper

from sardonyx.ir.exact.reals import Numbers, Real, Undecided

Array = npt.NDArray[Any]
Value = Any  # an array of integers, truth values or strings; a Real; a list of values (a sequence); None

FLOATS = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16))


class Invalid(Exception):
    """The operands do not fit the operator."""


class OperatorCall(Struct, frozen=True):
    """An operator with its operands."""

    node: onnx.NodeProto
    operands: Sequence[Value]
    attributes: Mapping[str, Any]
    opset: int
    numbers: Numbers
    run: Callable[[onnx.GraphProto, Sequence[Value]], list[Value]]  # evaluates a body on its inputs
    standard: Callable[[str, Sequence[Value], Mapping[str, Any]], Sequence[Value]]  # evaluates another operator

    def __getitem__(self, index: int) -> Value:
        """Return an operand, or None if it is left out."""
        return self.operands[index] if index < len(self.operands) else None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def real(self, index: int) -> Real:
        """Return an operand that must be a tensor of real numbers."""
        value = self[index]
        if not isinstance(value, Real):
            kind = "nothing" if value is None else "a sequence" if isinstance(value, list) else np.asarray(value).dtype
            raise Undecided(f"{self.node.op_type} of {kind}")
        return value

    def integers(self, index: int, name: str = "") -> list[int] | None:
        """Return the elements of an operand of sizes, or the attribute that held them in older versions."""
        value = self[index]
        if value is None:
            found = self.get(name) if name else None
            return None if found is None else [int(item) for item in np.reshape(found, -1)]
        if isinstance(value, Real):
            return [int(item) for item in value.doubles.reshape(-1)]
        return [int(item) for item in np.asarray(value).reshape(-1)]

    def op(self, name: str, *operands: Value, **attributes: Any) -> Value:
        """Return the first output of a standard operator."""
        return self.standard(name, operands, attributes)[0]

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a string."""
        value = self.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)


Definition = Callable[[OperatorCall], Any]
DEFINITIONS: dict[str, Definition] = {}  # by operator; those of another domain as "domain::name"


def defines(*names: str) -> Callable[[Definition], Definition]:
    """Enter a function as the definition of operators."""

    def enter(definition: Definition) -> Definition:
        for name in names:
            DEFINITIONS[name] = definition
        return definition

    return enter


def moved(value: Value, move: Callable[[Any], Any]) -> Value:
    """Return the elements of a tensor in other places."""
    return value.moved(move) if isinstance(value, Real) else np.asarray(move(value))


def both(a: Value, b: Value) -> tuple[Value, Value]:
    """Return two operands, of which either both or none are real."""
    if isinstance(a, Real) == isinstance(b, Real):
        return a, b
    raise Invalid("operands of different types")


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Invalid(f"axis {axis} of {rank}")
    return axis + rank if axis < 0 else axis


def numpy_type(dtype: int) -> np.dtype[Any]:
    """Return numpy's type of integers, truth values and strings."""
    if dtype == TensorProto.STRING:
        return np.dtype(object)
    found = helper.tensor_dtype_to_np_dtype(dtype)
    if found.kind not in "biu":
        raise Undecided(f"numbers of type {found}")
    return found


def dtype_of(value: Value) -> int:
    """Return the element type of a tensor."""
    if isinstance(value, Real):
        return value.dtype
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))
