"""Finds the shape, dtype and rank of a value without running the graph.

They come from the values that the graph was traced with (`meta["val"]`), from parameters, or from the operation:
`view(b, n, h, d)` has four axes for any `n`, and `transpose(-2, -1)` needs at least two.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from msgspec import Struct
from torch import fx

from sardonyx.frontend.attention.decompositions import opaque_ops
from sardonyx.frontend.attention.recognition.calls import GraphCall, overload_of, read

_SAME_RANK = frozenset({"softmax", "safe_softmax", "cast", "dropout", "same", "linear", "repeat", "unary", "movedim"})
_MASKS = frozenset({"tril", "triu", "logical_not", "lift"})  # these keep the rank too
_BROADCASTS = frozenset({"mul", "div", "add", "sub", "masked_fill", "pow"})
_ARITHMETIC = frozenset({"mul", "truediv", "pow", "add", "sub", "floordiv", "neg"})


EXAMPLE = "sardonyx_example"  # metadata key of a node's value in an example run, in addition to torch's `val`


class Rank(Struct, frozen=True):
    """The number of axes: a lower bound, or exact."""

    least: int
    exact: bool = False


def example_of(node: Any) -> Any:
    """Return the known value of a node: a (fake) tensor, a number, or None."""
    if not isinstance(node, fx.Node):
        return node
    for key in (EXAMPLE, "val"):
        if (known := node.meta.get(key)) is not None:
            return known
    owner = node.graph.owning_module
    if node.op == "get_attr" and owner is not None:
        value: Any = owner
        for name in str(node.target).split("."):
            value = getattr(value, name, None)
        return value
    call = read(node)
    if call is not None and call.name in ("unary", "same", "lift"):
        return example_of(call.get("x"))
    return None


def shape_of(node: Any) -> tuple[Any, ...] | None:
    """Return the sizes, integers or symbols, or None."""
    known = example_of(node)
    return tuple(known.shape) if isinstance(known, torch.Tensor) else None


def dtype_of(node: Any) -> torch.dtype | None:
    """Return the dtype, or None."""
    known = example_of(node)
    return known.dtype if isinstance(known, torch.Tensor) else None


def same_sizes(left: tuple[Any, ...] | None, right: tuple[Any, ...] | None) -> bool:
    """Return whether both are known and all sizes are equal; a symbol equals only itself."""
    if left is None or right is None or len(left) != len(right):
        return False
    return all(_key(a) == _key(b) for a, b in zip(left, right, strict=True))


def is_one(size: Any) -> bool:
    """Return whether the size is 1 for every input."""
    return isinstance(size, int) and size == 1


def _key(size: Any) -> Any:
    return size if isinstance(size, int) else str(size)


def rank_of(node: Any, depth: int = 24) -> Rank:
    """Return what is known of the number of axes."""
    shape = shape_of(node)
    if shape is not None:
        return Rank(len(shape), exact=True)
    call = read(node)
    if call is None or depth == 0:
        return Rank(0)
    inner = rank_of(call.get("x"), depth - 1) if "x" in call.arguments else Rank(0)
    return _rank_by_structure(call, inner, depth)


def _rank_by_structure(call: GraphCall, inner: Rank, depth: int) -> Rank:
    match call.name:
        case "view" | "expand" if isinstance(call.get("shape"), (tuple, list)):
            return Rank(len(call.get("shape")), exact=True)
        case "permute" if isinstance(call.get("dims"), (tuple, list)):
            return Rank(len(call.get("dims")), exact=True)
        case "transpose":
            axes = [axis for axis in (call.get("a"), call.get("b")) if isinstance(axis, int)]
            needed = max((axis + 1 if axis >= 0 else -axis for axis in axes), default=0)
            return Rank(max(inner.least, needed), inner.exact)
        case "swap_last":
            return Rank(max(inner.least, 2), inner.exact)
        case "unflatten" if isinstance(call.get("sizes"), (tuple, list)):
            return Rank(max(inner.least, 1) + len(call.get("sizes")) - 1, inner.exact)
        case "unsqueeze":
            return Rank(inner.least + 1, inner.exact)
        case "flatten" if call.get("start") == -2 and call.get("end", -1) == -1:
            return Rank(max(inner.least - 1, 1), inner.exact)
        case "matmul" | "baddbmm":
            return _rank_of_product(call, inner, depth)
        case _ if call.name in _BROADCASTS:
            other = rank_of(call.get("y"), depth - 1) if isinstance(call.get("y"), fx.Node) else Rank(0, exact=True)
            return Rank(max(inner.least, other.least), inner.exact and other.exact)
        case _ if call.name in _SAME_RANK or call.name in _MASKS:
            return inner
        case _:
            return Rank(0)


def _rank_of_product(call: GraphCall, inner: Rank, depth: int) -> Rank:
    target = overload_of(call.node)
    name = getattr(call.node.target, "__name__", call.node.target) if target is None else target.overloadpacket.__name__
    if name in ("bmm", "baddbmm", "mm"):
        return Rank(2 if name == "mm" else 3, exact=True)
    other = rank_of(call.get("y"), depth - 1)
    if inner.least < 2 or other.least < 2:
        return Rank(0)
    return Rank(max(inner.least, other.least), inner.exact and other.exact)


def is_number(value: Any, depth: int = 12) -> bool:
    """Return whether a value is a Python number, or a node that computes one from sizes; never a tensor."""
    if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        return not isinstance(value, bool)
    if not isinstance(value, fx.Node) or depth == 0:
        return False
    known = example_of(value)
    if known is not None:
        return isinstance(known, (int, float, torch.SymInt, torch.SymFloat))
    call = read(value)
    if call is not None and call.name == "size":
        return "dim" in call.arguments
    target: Any = value.target
    if value.op != "call_function":
        return False
    if target is operator.getitem:
        return _is_size(value.args[0]) and isinstance(value.args[1], int)
    if target in (opaque_ops.default_scale, opaque_ops.heads_per_group):
        return True
    name = getattr(target, "__name__", "")
    if (name in _ARITHMETIC and getattr(operator, name) is target) or getattr(math, name, None) is target:
        return bool(value.args) and all(is_number(argument, depth - 1) for argument in value.args)
    return False


def _is_size(value: Any) -> bool:
    if not isinstance(value, fx.Node):
        return False
    call = read(value)
    whole = call is not None and call.name == "size" and "dim" not in call.arguments
    return whole or (value.target is getattr and value.args[1] == "shape")


def constant(value: Any) -> float | None:
    """Return the constant number of a value, also of a constant tensor with one element, or None."""
    if isinstance(value, (int, float)):
        return float(value)
    call = read(value)
    if call is not None and call.name == "full" and isinstance(call.get("value"), (int, float)):
        return float(call.get("value"))
    if call is not None and call.name in ("lift", "same", "cast"):
        return constant(call.get("x"))
    known = example_of(value) if isinstance(value, fx.Node) and value.op == "get_attr" else None
    if isinstance(known, torch.Tensor) and known.numel() == 1 and not isinstance(known, torch.nn.Parameter):
        return None if known.is_meta else float(known)
    return None
