"""Operators of TorchScript that are Python's own: on lists, sizes and plain numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DTYPES = (  # scripts call them by number, in this order
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8, torch.qint32),
    torch.bfloat16,
)


def _number(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A tensor as a number, unless it is a size that one of torch's tracers follows."""

    def converted(value: Any) -> Any:
        traced = isinstance(value, torch.Tensor) and torch._C._get_tracing_state() is not None  # pyright: ignore  # no public face
        return value if traced or isinstance(value, _SYMBOLS) else convert(value)

    return converted


def unchanged(value: Any) -> Any:
    """What says nothing in Python."""
    return value


def _size(tensor: torch.Tensor, *dims: int) -> Any:
    return tensor.size(*dims) if dims else list(tensor.size())


def _add(left: Any, right: Any, scale: Any = 1) -> Any:
    return left + right if scale == 1 else left + scale * right


def _sub(left: Any, right: Any, scale: Any = 1) -> Any:
    return left - right if scale == 1 else left - scale * right


def _div(left: Any, right: Any, rounding: str | None = None) -> Any:
    if rounding == "trunc":
        return int(left / right)
    return left / right if rounding is None else left // right


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _nothing(*_: Any) -> None:
    return None


def _dtype(tensor: torch.Tensor) -> int:
    return _DTYPES.index(tensor.dtype)


def _convolution(*args: Any) -> torch.Tensor:
    """Without what only the tracer of that time knew: whether cuDNN was at hand."""
    return torch.ops.aten.convolution.default(*args[:9])


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


PLAIN: Mapping[str, Callable[..., Any]] = {
    "aten::size": _size,
    "aten::dim": operator.methodcaller("dim"),
    "aten::len": len,
    "aten::append": _append,
    "aten::__getitem__": operator.getitem,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__not__": operator.not_,
    "aten::__contains__": operator.contains,
    "aten::Int": _number(int),
    "aten::Float": _number(float),
    "aten::Bool": _number(bool),
    "aten::IntImplicit": _number(int),
    "aten::FloatImplicit": _number(float),
    "aten::ScalarImplicit": _number(_item),
    "aten::warn": _nothing,
    "prim::NumToTensor": unchanged,  # only ever a size on its way to a shape
    "prim::unchecked_cast": unchanged,
    "prim::unchecked_unwrap_optional": unchanged,
    "aten::_unwrap_optional": unchanged,
    "prim::Uninitialized": _nothing,
    "prim::TupleIndex": operator.getitem,
    "aten::_convolution": _convolution,
    "prim::dtype": _dtype,
    "prim::is_cuda": operator.attrgetter("is_cuda"),
    "prim::requires_grad": operator.attrgetter("requires_grad"),
    "prim::is_nested": operator.attrgetter("is_nested"),
    "prim::type": operator.attrgetter("type"),
    "prim::device": operator.attrgetter("device"),
    "prim::data": operator.methodcaller("detach"),
    "prim::min": min,
    "prim::max": max,
}

_PYTHON: Any = operator  # whose types are narrower than what it does
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "aten::add": _add,
    "aten::sub": _sub,
    "aten::mul": _PYTHON.mul,
    "aten::div": _div,
    "aten::floordiv": _PYTHON.floordiv,
    "aten::floor_divide": _PYTHON.floordiv,
    "aten::remainder": _PYTHON.mod,
    "aten::neg": _PYTHON.neg,
    "aten::eq": _PYTHON.eq,
    "aten::ne": _PYTHON.ne,
    "aten::lt": _PYTHON.lt,
    "aten::le": _PYTHON.le,
    "aten::gt": _PYTHON.gt,
    "aten::ge": _PYTHON.ge,
    "aten::__and__": _PYTHON.and_,
    "aten::__or__": _PYTHON.or_,
}
