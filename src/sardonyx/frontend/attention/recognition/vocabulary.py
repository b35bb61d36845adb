"""One name and one set of arguments for each operation that an attention is made of, in every spelling fx has for it.

A graph says `torch.softmax(x, -1)`, `x.softmax(dim=-1)`, `nn.Softmax(-1)`, `aten._softmax`: here they are one call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.nn import functional

from sardonyx.frontend.attention.decompositions import opaque_ops

Vocabulary = Literal["torch", "aten"]
TURNING = frozenset({"same", "transpose", "swap_last", "turn_matrix", "permute", "movedim"})
# What only arranges a tensor: it may share its memory, and has its dtype.
ARRANGING = TURNING | {"view", "expand", "unflatten", "flatten", "unsqueeze", "squeeze", "part", "parts"}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What a node does, whatever it is called there."""

    node: fx.Node
    does: str
    given: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default where it is not given."""
        return self.given.get(name, default)


# What it is called here: its arguments by position, then what torch, methods and aten call it.
_OPERATIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "softmax": (("x", "dim", "dtype"), "softmax _softmax"),
    "safe_softmax": (("x", "dim", "dtype"), "_safe_softmax"),
    "matmul": (("x", "y"), "matmul __matmul__ bmm mm"),
    "baddbmm": (("x", "y", "z"), "baddbmm"),
    "addmm": (("x", "y", "z"), "addmm"),
    "einsum": (("equation", "operands"), "einsum"),
    "linear": (("x", "weight", "bias"), "linear"),
    "mul": (("x", "y"), "mul multiply imul mul_ __mul__ __rmul__"),
    "div": (("x", "y"), "div true_divide divide truediv itruediv div_ __truediv__"),
    "add": (("x", "y"), "add iadd add_ __add__ __radd__"),
    "sub": (("x", "y"), "sub subtract isub sub_"),
    "masked_fill": (("x", "mask", "value"), "masked_fill masked_fill_"),
    "where": (("mask", "x", "y"), "where"),
    "cast": (("x", "dtype"), "to type type_as widen float half bfloat16 double _to_copy"),
    "dropout": (("x", "p", "training", "inplace"), "dropout dropout_"),
    "same": (("x",), "clone contiguous alias identity"),
    "transpose": (("x", "a", "b"), "transpose swapaxes swapdims"),
    "swap_last": (("x",), "mT"),
    "turn_matrix": (("x",), "t"),
    "permute": (("x", "dims"), "permute"),
    "view": (("x", "shape"), "view reshape _unsafe_view"),
    "expand": (("x", "shape"), "expand"),
    "unflatten": (("x", "dim", "sizes"), "unflatten"),
    "flatten": (("x", "start", "end"), "flatten"),
    "unsqueeze": (("x", "dim"), "unsqueeze"),
    "squeeze": (("x", "dim"), "squeeze"),
    "part": (("x", "index"), "getitem __getitem__ select slice narrow"),
    "parts": (("x",), "unbind chunk split tensor_split split_with_sizes"),
    "repeat": (("x", "repeats", "dim"), "repeat_interleave repeat"),
    "movedim": (("x", "source", "destination"), "movedim moveaxis"),
    "full": (("size", "value"), "full"),
    "ones": (("size",), "ones"),
    "tril": (("x", "diagonal"), "tril"),
    "triu": (("x", "diagonal"), "triu"),
    "new_ones": (("x", "size"), "new_ones"),
    "prototype": (("x", "size"), "new_zeros new_full new_empty"),
    "logical_not": (("x",), "logical_not bitwise_not invert __invert__"),
    "size": (("x", "dim"), "size sym_size"),
    "pow": (("x", "y"), "pow"),
    "sqrt": (("x",), "sqrt"),
    "lift": (("x",), "lift_fresh_copy lift_fresh"),
    "unary": (("x",), "exp clamp clip sigmoid abs neg tanh relu softplus reciprocal rsqrt"),
    "sdpa": (("query", "key", "value", "mask", "dropout_p", "is_causal"), "scaled_dot_product_attention"),
}
_DOES = {name: does for does, (_, names) in _OPERATIONS.items() for name in names.split()}
# Where the arguments are not in the usual order.
_SPECIAL: dict[Any, tuple[str, ...]] = {
    functional.softmax: ("x", "dim", "_stacklevel", "dtype"),
    torch.ops.aten._softmax.default: ("x", "dim", "half_to_float"),
}
_ALIASES = {  # what an argument is called elsewhere
    alias: name
    for name, aliases in {
        "x": ("input", "self", "tensor"),
        "y": ("other", "mat1", "mat2", "batch1"),
        "z": ("batch2",),
        "a": ("dim0", "axis0"),
        "b": ("dim1", "axis1"),
        "dim": ("axis",),
        "mask": ("condition", "attn_mask"),
        "value": ("fill_value",),
        "training": ("train",),
        "start": ("start_dim",),
        "end": ("end_dim",),
    }.items()
    for alias in aliases
}
_BY_TYPE = {
    "widen": torch.float32,
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
_PACKED = frozenset({"permute", "view", "expand"})  # sizes one by one, or as one tuple


def vocabulary_of(graph: fx.Graph) -> Vocabulary:
    """What the graph's calls are written in: aten overloads where there are any, else torch functions."""
    return "aten" if any(overload_of(node) is not None for node in graph.nodes) else "torch"


def overload_of(node: fx.Node) -> Any:
    """The aten overload that the node calls, or None."""
    overload = torch._ops.OpOverload  # pyright: ignore[reportPrivateUsage]  # it has no public name
    target: Any = node.target
    return node.target if isinstance(target, overload) and target.namespace == "aten" else None


def read(node: Any) -> Call | None:
    """What the node does, or None where that is nothing that an attention is made of."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module":
        return _module_call(node)
    name = _name(node)
    does = _DOES.get(name) if name else None
    if name is None or does is None:
        return None
    return Call(node, does, _given(node, does, name))


def is_torch(node: fx.Node) -> bool:
    """Whether the node calls a function or method of torch's own."""
    return _name(node) is not None


def _name(node: fx.Node) -> str | None:
    """What torch calls it; None for what is not torch's own."""
    target: Any = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return None
    if (overload := overload_of(node)) is not None:
        return overload.overloadpacket.__name__
    if target is opaque_ops.widen:
        return "widen"
    if target is getattr and len(node.args) == 2 and node.args[1] in ("mT",):
        return str(node.args[1])
    name = getattr(target, "__name__", "")
    homes: tuple[Any, ...] = (operator, torch, functional, torch.Tensor)
    return name if any(getattr(home, name, None) is target for home in homes) else None


def _given(node: fx.Node, does: str, name: str) -> dict[str, Any]:
    places = _SPECIAL.get(node.target, _OPERATIONS[does][0])
    args: list[Any] = list(node.args)
    if does in _PACKED and len(args) > 1 and not isinstance(args[1], (tuple, list)):
        args = [args[0], tuple(args[1:])]
    elif does == "einsum":
        operands: Any = args[1] if isinstance(args[1], (tuple, list)) else args[1:]  # pyright: ignore[reportUnknownVariableType]
        args = [args[0], tuple(operands)]
    given: dict[str, Any] = dict(zip(places, args, strict=False))
    if len(args) > len(places):
        given["more"] = args[len(places) :]
    for key, argument in node.kwargs.items():
        given[_ALIASES.get(key, key)] = argument
    if name in _BY_TYPE:
        given["dtype"] = _BY_TYPE[name]
    return given


_ARGUMENTS_OF_MODULES: dict[type[nn.Module], tuple[str, Callable[[Any], dict[str, Any]]]] = {
    nn.Softmax: ("softmax", lambda module: {"dim": module.dim}),
    nn.Dropout: ("dropout", lambda module: {"p": module.p, "training": None}),
    nn.Identity: ("same", lambda module: {}),
    nn.Linear: ("linear", lambda module: {}),
}


def module_of(node: fx.Node) -> nn.Module | None:
    """The module that the node calls, where the graph knows it."""
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if owner is not None and node.op == "call_module" else None


def _module_call(node: fx.Node) -> Call | None:
    module = module_of(node)
    for kind, (does, arguments) in _ARGUMENTS_OF_MODULES.items():
        if type(module) is kind and not _hooked(module) and len(node.args) == 1 and not node.kwargs:
            return Call(node, does, {"x": node.args[0], **arguments(module)})
    return None


def _hooked(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def writes_in_place(node: fx.Node) -> bool:
    """Whether the node changes a tensor that was there before."""
    target: Any = node.target
    if (overload := overload_of(node)) is not None:
        return bool(overload._schema.is_mutable)
    if node.op == "call_module":
        return bool(getattr(module_of(node), "inplace", False))
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if node.op not in ("call_function", "call_method"):
        return False
    inplace = bool(node.kwargs.get("inplace")) or node.kwargs.get("out") is not None
    in_operator = getattr(operator, name, None) is target and name in _IN_PLACE_OPERATORS
    return inplace or in_operator or (name.endswith("_") and not name.endswith("__"))


_IN_PLACE_OPERATORS = frozenset({"iadd", "isub", "imul", "itruediv", "ior", "iand", "ixor", "ipow", "setitem"})
