"""Corrects symbolic functions, which write the ONNX nodes of an operator for torch's tracer.

The faults are in torch 2.13.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.onnx._internal.torchscript_exporter import (
    registration,
    symbolic_helper,
    symbolic_opset9,
    symbolic_opset12,
    symbolic_opset14,
)

from sardonyx.frontend.running import HALF_TYPES

_helper: Any = symbolic_helper  # torch leaves it untyped


@contextlib.contextmanager
def corrected_symbolics() -> Generator[None]:
    """Correct the symbolic functions while a module is traced."""
    with (
        _constants_kept(),
        _corrected("scaled_dot_product_attention", 14, symbolic_opset14, _with_typed_masks),
        _corrected("unfold", 12, symbolic_opset12, _with_positive_axis),
        _corrected("expand", 9, symbolic_opset9, _with_empty_results),
    ):
        yield


@contextlib.contextmanager
def _corrected(operator: str, opset: int, module: Any, correct: Callable[[Any], Any]) -> Generator[None]:
    """Replace a symbolic function from an opset on; one that the user registered for a later opset is used."""
    functions: Any = registration.registry.get_function_group(f"aten::{operator}")
    before = functions._functions._overrides.get(opset)
    functions.add_custom(correct(before or getattr(module, operator)), opset)
    try:
        yield
    finally:
        functions.remove_custom(opset)
        if before is not None:
            functions.add_custom(before, opset)


@contextlib.contextmanager
def _constants_kept() -> Generator[None]:
    """Give symbolic functions copies of constants: `repeat_interleave` adds the rank to a negative axis in place.

    The constant may be shared with other operations, which would then read the changed axis.
    """
    plain = _helper._maybe_get_scalar

    def copied(value: Any) -> Any:
        scalar = plain(value)
        return scalar.clone() if isinstance(scalar, torch.Tensor) else scalar

    _helper._maybe_get_scalar = copied
    try:
        yield
    finally:
        _helper._maybe_get_scalar = plain


def _with_typed_masks(plain: Any) -> Any:
    """Convert boolean attention masks to the query's type: torch writes float32.

    In a half-precision model everything after it would become float32, until an operator refuses mixed types.
    """

    def typed(context: Any, query: Any, *others: Any) -> Any:
        kind = query.type().dtype()
        return plain(_TypedConstants(context, kind) if kind in HALF_TYPES else context, query, *others)

    return typed


class _TypedConstants:
    """A graph context that converts float32 constants to another type if the conversion is exact."""

    def __init__(self, context: Any, kind: torch.dtype) -> None:
        self._context, self._kind = context, kind

    def op(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        value = attributes.get("value_t")
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            converted = value.to(self._kind)
            attributes["value_t"] = converted if torch.equal(converted.to(value.dtype), value) else value
        return self._context.op(name, *inputs, **attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _with_positive_axis(plain: Any) -> Any:
    """Count the axis of `unfold` from the front: torch inserts the new axis before it, one off if it is negative."""

    def positive(context: Any, tensor: Any, axis: Any, *others: Any) -> Any:
        number, rank = _helper._maybe_get_const(axis, "i"), _helper._get_tensor_rank(tensor)
        if isinstance(number, int) and number < 0 and rank is not None:
            axis = _constant(context, number + rank)
        return plain(context, tensor, axis, *others)

    return positive


def _with_empty_results(plain: Any) -> Any:
    """Write an empty tensor for `expand` of one: torch infers a size of 1 for an axis of 0, and computes with it."""

    def emptied(context: Any, tensor: Any, size: Any, implicit: Any) -> Any:
        own: Any = _helper._get_tensor_sizes(tensor)
        wanted = _numbers(size) if own is not None and 0 in own else []
        present = [1] * (len(wanted) - len(own or ())) + (own or [])
        shape = [have if number == -1 else number for number, have in zip(wanted, present, strict=False)]
        if not shape or not all(isinstance(number, int) for number in shape):  # some are known only at run time
            return plain(context, tensor, size, implicit)
        return context.op("Constant", value_t=torch.zeros(shape, dtype=tensor.type().dtype()))

    return emptied


def _numbers(size: Any) -> list[Any]:
    """Return the numbers of a list of sizes, and the values that compute those that are not constant."""
    if _helper._is_packed_list(size):
        values: list[Any] = _helper._unpack_list(size)
        return [_helper._maybe_get_const(value, "i") for value in values]
    constant = _helper._maybe_get_const(size, "is")
    return [] if _helper._is_value(constant) else list(constant)


def _constant(context: Any, number: int | list[int]) -> Any:
    return context.op("Constant", value_t=torch.tensor(number))
