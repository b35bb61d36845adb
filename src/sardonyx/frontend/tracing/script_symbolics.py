"""Corrects two symbolic functions of torch's tracer, which write ONNX nodes for an operator, for the time of an export.

Both faults are in torch 2.13.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch.onnx._internal.torchscript_exporter import registration, symbolic_helper, symbolic_opset14

_HALF = (torch.float16, torch.bfloat16)
_ATTENTION = "aten::scaled_dot_product_attention"
_ATTENTION_OPSET = 14  # the first that torch has it for; a function that the user registered for a later one is used


@contextlib.contextmanager
def corrected_symbolics() -> Generator[None]:
    """Have the tracer keep constants as they are, and the types of attention's masks."""
    with _constants_kept(), _masks_typed():
        yield


@contextlib.contextmanager
def _constants_kept() -> Generator[None]:
    """Give symbolic functions copies of constants: `repeat_interleave` adds the rank to a negative dim in place.

    The constant may be shared, and then every other operation that counts from the end gets the sum as well.
    """
    helper: Any = symbolic_helper
    plain = helper._maybe_get_scalar

    def copied(value: Any) -> Any:
        found = plain(value)
        return found.clone() if isinstance(found, torch.Tensor) else found

    helper._maybe_get_scalar = copied
    try:
        yield
    finally:
        helper._maybe_get_scalar = plain


@contextlib.contextmanager
def _masks_typed() -> Generator[None]:
    """Have attention turn a boolean mask into numbers of the query's type: torch writes float32.

    In a model of half precision everything after it would be float32, up to an operator that wants one type.
    """
    functions: Any = registration.registry.get_function_group(_ATTENTION)
    before = functions._functions._overrides.get(_ATTENTION_OPSET)
    plain: Any = before or symbolic_opset14.scaled_dot_product_attention

    def typed(context: Any, query: Any, *others: Any) -> Any:
        kind = query.type().dtype()
        return plain(_TypedConstants(context, kind) if kind in _HALF else context, query, *others)

    functions.add_custom(typed, _ATTENTION_OPSET)
    try:
        yield
    finally:
        functions.remove_custom(_ATTENTION_OPSET)
        if before is not None:
            functions.add_custom(before, _ATTENTION_OPSET)


class _TypedConstants:
    """What a symbolic function writes to, with its float32 constants in another type if that holds them exactly."""

    def __init__(self, context: Any, kind: torch.dtype) -> None:
        self._context, self._kind = context, kind

    def op(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        value = attributes.get("value_t")
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            other = value.to(self._kind)
            attributes["value_t"] = other if torch.equal(other.to(value.dtype), value) else value
        return self._context.op(name, *inputs, **attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
