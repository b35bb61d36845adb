"""Read the calls of a torch.fx graph: operators in either dialect, and what is known of their values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch import fx, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from sardonyx.frontend.attention import opaque_ops

PERMUTING = frozenset({"same", "transpose", "swap_last", "transpose_matrix", "permute", "movedim"})
# Calls that only rearrange a tensor: the result may share its memory, and has its dtype.
ARRANGING = PERMUTING | {"view", "expand", "unflatten", "flatten", "unsqueeze", "squeeze", "part", "parts"}
_PACKED = frozenset({"permute", "view", "expand"})  # sizes as separate arguments, or as one tuple
_IN_PLACE_OPERATORS = frozenset({"iadd", "isub", "imul", "itruediv", "ior", "iand", "ixor", "ipow", "setitem"})


class GraphCall(Struct, frozen=True, eq=False):
    """A node as a call with a uniform name and arguments."""

    node: fx.Node
    name: str
    target: str  # torch's own name of the function or method
    arguments: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or the default if it is absent."""
        return self.arguments.get(name, default)


# Uniform name -> argument names by position, and the names of functions, methods and aten operators.
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
    "transpose_matrix": (("x",), "t"),
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
_NAMES = {alias: name for name, (_, names) in _OPERATIONS.items() for alias in names.split()}
# Targets whose arguments are in another order.
_SPECIAL: dict[Any, tuple[str, ...]] = {
    functional.softmax: ("x", "dim", "_stacklevel", "dtype"),
    torch.ops.aten._softmax.default: ("x", "dim", "half_to_float"),
}
_ALIASES = {  # other names of arguments
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


def has_overloads(graph: fx.Graph) -> bool:
    """Return whether the graph calls aten overloads, as opposed to torch's functions and methods."""
    return any(overload_of(node) is not None for node in graph.nodes)


def overload_of(node: fx.Node) -> Any:
    """Return the aten overload that the node calls, or None."""
    overload = torch._ops.OpOverload  # pyright: ignore[reportPrivateUsage]  # it has no public name
    target: Any = node.target
    return node.target if isinstance(target, overload) and target.namespace == "aten" else None


def read(node: Any, *names: str) -> GraphCall | None:
    """Return the node as a call, or None if it is not an operation of attentions, or not one of these names."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module":
        call = _module_call(node)
    else:
        target = _target_name(node) or ""
        name = _NAMES.get(target)
        call = None if name is None else GraphCall(node, name, target, _arguments(node, name, target))
    return call if call is not None and (not names or call.name in names) else None


def is_torch(node: fx.Node) -> bool:
    """Return whether the node calls a function or method of torch."""
    return _target_name(node) is not None


def _target_name(node: fx.Node) -> str | None:
    """Return torch's name of the called function or method; None for others."""
    target: Any = node.target
    if node.op == "call_method":
        return str(target)
    if node.op != "call_function":
        return None
    if (overload := overload_of(node)) is not None:
        return overload.overloadpacket.__name__
    if target is opaque_ops.widen:
        return "widen"
    if target is getattr and node.args[1:] == ("mT",):
        return "mT"
    name = getattr(target, "__name__", "")
    modules: tuple[Any, ...] = (operator, torch, functional, torch.Tensor)
    return name if any(getattr(module, name, None) is target for module in modules) else None


def _arguments(node: fx.Node, name: str, target: str) -> dict[str, Any]:
    names = _SPECIAL.get(node.target, _OPERATIONS[name][0])
    args: list[Any] = list(node.args)
    if name in _PACKED and len(args) > 1 and not isinstance(args[1], (tuple, list)):
        args = [args[0], tuple(args[1:])]
    elif name == "einsum":
        operands: Any = args[1] if isinstance(args[1], (tuple, list)) else args[1:]  # pyright: ignore[reportUnknownVariableType]
        args = [args[0], tuple(operands)]
    arguments: dict[str, Any] = dict(zip(names, args, strict=False))
    if len(args) > len(names):
        arguments["more"] = args[len(names) :]
    for key, argument in node.kwargs.items():
        arguments[_ALIASES.get(key, key)] = argument
    if target in _BY_TYPE:
        arguments["dtype"] = _BY_TYPE[target]
    return arguments


_MODULE_CALLS: dict[type[nn.Module], tuple[str, Callable[[Any], dict[str, Any]]]] = {
    nn.Softmax: ("softmax", lambda module: {"dim": module.dim}),
    nn.Dropout: ("dropout", lambda module: {"p": module.p, "training": None}),
    nn.Identity: ("same", lambda module: {}),
    nn.Linear: ("linear", lambda module: {}),
}


def module_of(node: fx.Node) -> nn.Module | None:
    """Return the module that the node calls, or None."""
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if owner is not None and node.op == "call_module" else None


def _module_call(node: fx.Node) -> GraphCall | None:
    module: Any = module_of(node)
    if type(module) not in _MODULE_CALLS or len(node.args) != 1 or node.kwargs:
        return None
    name, arguments = _MODULE_CALLS[type(module)]
    is_hooked = bool(module._forward_hooks or module._forward_pre_hooks)
    return None if is_hooked else GraphCall(node, name, name, {"x": node.args[0], **arguments(module)})


def writes_in_place(node: fx.Node) -> bool:
    """Return whether the node writes to an existing tensor."""
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


_MASKS = frozenset({"tril", "triu", "logical_not", "lift"})
_SAME_RANK = _MASKS | {"softmax", "safe_softmax", "cast", "dropout", "same", "linear", "repeat", "unary", "movedim"}
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
    call = read(node, "unary", "same", "lift")
    return None if call is None else example_of(call.get("x"))


def insert(before: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> fx.Node:
    """Insert a node with the module stack of another, and with its value if the values of all operands are known."""
    with before.graph.inserting_before(before):
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = before.graph.create_node(kind, target, args, dict(kwargs))
    origin = ("nn_module_stack", "stack_trace", "source_fn_stack")
    node.meta = {key: before.meta[key] for key in origin if key in before.meta}
    for key in ("val", EXAMPLE):
        if not all(key in operand.meta for operand in node.all_input_nodes):
            continue
        values: Any = fx.map_arg((args, kwargs), lambda operand, key=key: operand.meta[key])
        modes = [leaf.fake_mode for leaf in tree_leaves(values) if hasattr(leaf, "fake_mode")]
        if modes:
            function = getattr(torch.Tensor, target) if isinstance(target, str) else target
            with modes[0]:
                node.meta[key] = function(*values[0], **values[1])
    return node


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
    return left is not None and right is not None and [*map(str, left)] == [*map(str, right)]


def rank_of(node: Any, depth: int = 24) -> Rank:
    """Return what is known of the number of axes."""
    shape = shape_of(node)
    if shape is not None:
        return Rank(len(shape), exact=True)
    call = read(node)
    if call is None or depth == 0:
        return Rank(0)
    inner = rank_of(call.get("x"), depth - 1) if "x" in call.arguments else Rank(0)
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
        case "matmul" | "baddbmm" if call.target in ("mm", "bmm", "baddbmm"):
            return Rank(2 if call.target == "mm" else 3, exact=True)
        case "matmul":
            other = rank_of(call.get("y"), depth - 1)
            known = min(inner.least, other.least) >= 2  # a vector would take an axis away
            return Rank(max(inner.least, other.least), inner.exact and other.exact) if known else Rank(0)
        case _ if call.name in _BROADCASTS:
            other = rank_of(call.get("y"), depth - 1) if isinstance(call.get("y"), fx.Node) else Rank(0, exact=True)
            return Rank(max(inner.least, other.least), inner.exact and other.exact)
        case _:
            return inner if call.name in _SAME_RANK else Rank(0)


def is_number(value: Any, depth: int = 12) -> bool:
    """Return whether a value is a Python number, or a node that computes one from sizes; never a tensor."""
    kinds = (int, float, torch.SymInt, torch.SymFloat)
    if isinstance(value, kinds):
        return not isinstance(value, bool)
    if not isinstance(value, fx.Node) or depth == 0:
        return False
    if (known := example_of(value)) is not None:
        return isinstance(known, kinds)
    if (call := read(value, "size")) is not None:
        return "dim" in call.arguments
    target: Any = value.target
    if value.op != "call_function":
        return False
    if target is operator.getitem:
        sizes: Any = value.args[0]
        call = read(sizes, "size")
        whole = call is not None and "dim" not in call.arguments
        is_shape = getattr(sizes, "target", None) is getattr and sizes.args[1] == "shape"
        return (whole or is_shape) and isinstance(value.args[1], int)
    if target in (opaque_ops.default_scale, opaque_ops.heads_per_group):
        return True
    name = getattr(target, "__name__", "")
    if (name in _ARITHMETIC and getattr(operator, name) is target) or getattr(math, name, None) is target:
        return bool(value.args) and all(is_number(argument, depth - 1) for argument in value.args)
    return False


def constant(value: Any) -> float | None:
    """Return the constant number of a value, also of a constant tensor with one element, or None."""
    if isinstance(value, (int, float)):
        return float(value)
    call = read(value, "full", "lift", "same", "cast")
    if call is not None and (call.name != "full" or isinstance(call.get("value"), (int, float))):
        return constant(call.get("value" if call.name == "full" else "x"))
    known = example_of(value) if isinstance(value, fx.Node) and value.op == "get_attr" else None
    if isinstance(known, torch.Tensor) and known.numel() == 1 and not isinstance(known, torch.nn.Parameter):
        return None if known.is_meta else float(known)
    return None
