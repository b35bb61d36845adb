"""Corrects two symbolic functions of torch's tracer during an export. Both faults are in torch 2.13.

A symbolic function writes the ONNX nodes of an operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch.onnx._internal.torchscript_exporter import registration, symbolic_helper, symbolic_opset14

from sardonyx.frontend.running import HALF_TYPES

_ATTENTION = "aten::scaled_dot_product_attention"
_ATTENTION_OPSET = 14  # the first with a symbolic function; one that the user registered for a later opset is used


@contextlib.contextmanager
def corrected_symbolics() -> Generator[None]:
    """Keep shared constants unmodified, and give attention masks the type of the query."""
    with _constants_kept(), _masks_typed():
        yield


@contextlib.contextmanager
def _constants_kept() -> Generator[None]:
    """Give symbolic functions copies of constants: `repeat_interleave` adds the rank to a negative axis in place.

    The constant may be shared with other operations, which would then read the changed axis.
    """
    helper: Any = symbolic_helper
    plain = helper._maybe_get_scalar

    def copied(value: Any) -> Any:
        scalar = plain(value)
        return scalar.clone() if isinstance(scalar, torch.Tensor) else scalar

    helper._maybe_get_scalar = copied
    try:
        yield
    finally:
        helper._maybe_get_scalar = plain


@contextlib.contextmanager
def _masks_typed() -> Generator[None]:
    """Convert boolean attention masks to the query's type: torch writes float32.

    In a half-precision model everything after it would become float32, until an operator refuses mixed types.
    """
    functions: Any = registration.registry.get_function_group(_ATTENTION)
    before = functions._functions._overrides.get(_ATTENTION_OPSET)
    plain: Any = before or symbolic_opset14.scaled_dot_product_attention

    def typed(context: Any, query: Any, *others: Any) -> Any:
        kind = query.type().dtype()
        return plain(_TypedConstants(context, kind) if kind in HALF_TYPES else context, query, *others)

    functions.add_custom(typed, _ATTENTION_OPSET)
    try:
        yield
    finally:
        functions.remove_custom(_ATTENTION_OPSET)
        if before is not None:
            functions.add_custom(before, _ATTENTION_OPSET)


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
