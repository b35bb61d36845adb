"""Decomposed models as files that run no code when they are loaded: weights as safetensors, the graph as JSON in them.

torch's own formats for graphs unpickle what a file holds, and a pickle may run anything. Here a file names functions,
methods and layers; the loader looks each name up in a list of what computes with tensors, and refuses all others. fx
writes the graph as Python code and runs that, so names that occur in the code are checked too.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import keyword
import math
import operator
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import fx, nn

from sardonyx.common.atomic_write import Draft, explained
from sardonyx.errors import ModelError
from sardonyx.frontend.attention.calling import PLAIN, Interface, Structure, TensorLeaf
from sardonyx.frontend.attention.roles import Decomposition, attach, decomposition_of
from sardonyx.frontend.attention.torch_export import HIGHER_ORDER, OVERLOAD, FrozenModule, put
from sardonyx.frontend.installed import require_installed
from sardonyx.frontend.tracing.structure import Cache, Fixed, Leaf, Nest, Shape

_TORCH: Any = torch  # torch leaves much of what is used here untyped
_OVERRIDES: Any = torch.overrides
_KIND = "sardonyx.decomposed"  # key of the graph among the metadata of the file
_PATH = re.compile(r"\w+(\.\w+)*", re.ASCII)
_SPACES = ("aten", "prims")  # operators of torch itself
_OPERATORS = (
    "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "iadd", "imul", "invert", "isub", "itruediv", "le",
    "lshift", "lt", "matmul", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor",
)  # fmt: skip
_SYMBOLIC = ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum")
_ATTRIBUTES = ("T", "device", "dtype", "mT", "ndim", "shape")  # that `getattr` may read
_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)
_INVALID = (
    ValueError, TypeError, LookupError, AttributeError, RuntimeError, AssertionError, SyntaxError, msgspec.MsgspecError,
)  # fmt: skip
_HINT = "`sardonyx.decompose` returns it in Python"


def save_decomposed(module: fx.GraphModule, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a graph module of `decompose`.

    Raises:
        ModelError: The graph holds something that a file without code cannot.
    """
    require_installed("safetensors", "decomposed models are written with")
    from safetensors.torch import save

    decomposition = decomposition_of(module)
    assert decomposition is not None, "decompose attaches it to its result"
    weights, aliases = _weights(module)
    called = (str(node.target) for node in module.graph.nodes if node.op == "call_module")
    graph = {
        "nodes": [_written_node(node) for node in module.graph.nodes],
        "modules": {name: _written_module(module.get_submodule(name)) for name in dict.fromkeys(called)},
        "parameters": [name for name, _ in module.named_parameters(remove_duplicate=False)],
        "state": [*module.state_dict()],
        "aliases": aliases,
        "training": module.training,
        "decomposition": msgspec.to_builtins(decomposition),
    }
    data = save(weights, {_KIND: json.dumps(graph)})
    with explained(os.fspath(path)), Draft(os.fspath(path)) as draft:
        with open(draft.fileno(), "wb", closefd=False) as stream:
            stream.write(data)
        draft.commit(replace=force)


def load_decomposed(path: str | os.PathLike[str]) -> fx.GraphModule:
    """Load a file that `sardonyx decompose` wrote; nothing in the file is run.

    The result takes the arguments of the model. Containers of other classes than tuple, list and dict are plain dicts
    and tuples in it.

    Args:
        path: The file.

    Returns:
        The graph module, with its weights and the module of every node.

    Raises:
        ModelError: The file is not a decomposed model, or names something else than computations on tensors.
    """
    require_installed("safetensors", "decomposed models are read with")
    from safetensors import SafetensorError, safe_open

    opened: Any = safe_open
    try:
        with opened(Path(path), "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a mapping)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if (text := metadata.get(_KIND)) is None:
        raise ModelError(f"{path} is not a decomposed model", hint="`sardonyx decompose -o` writes one")
    try:
        return _restored(json.loads(text), weights)
    except _INVALID as error:
        raise ModelError(f"{path} is not a valid decomposed model: {error}") from error


def _restored(graph: Mapping[str, Any], weights: dict[str, torch.Tensor]) -> fx.GraphModule:
    weights |= {alias: weights[name] for alias, name in graph["aliases"].items()}
    kinds = frozenset(graph["parameters"]), frozenset(graph["state"])
    root = _tree(weights, *kinds)
    for name, entry in graph["modules"].items():
        put(root, _checked_path(name), _read_module(entry, name, root))
    nodes: dict[str, fx.Node] = {}
    built = fx.Graph()
    for entry in graph["nodes"]:
        args, kwargs = _read(entry["args"], nodes), _read(entry["kwargs"], nodes)
        target = _read_target(entry["op"], entry["target"], args, root)
        if not all(map(_is_argument, kwargs)):
            raise ValueError(f"arguments {[*kwargs]}")
        nodes[entry["name"]] = built.create_node(entry["op"], target, args, kwargs, entry["name"])
    decomposition = msgspec.convert(graph["decomposition"], Decomposition)
    if decomposition.method == "torch-export":
        module = FrozenModule(root, built)
        module.share_weights(_tree(weights, *kinds))
    else:
        module = fx.GraphModule(root, built)
    if any(name != node.name for name, node in nodes.items()):
        raise ValueError("names that no graph has")
    module.training = bool(graph["training"])
    attach(module, decomposition)
    return module


# Nodes and their arguments


def _written_node(node: fx.Node) -> dict[str, Any]:
    target, args, kwargs = node.target, node.args, node.kwargs
    if isinstance(target, type) and (dataclasses.is_dataclass(target) or issubclass(target, tuple)):
        values = inspect.signature(cast("Any", target)).bind(*args, **kwargs).arguments
        target, args, kwargs = (
            (tuple, (tuple(values.values()),), {}) if issubclass(target, tuple) else (dict, (), values)
        )
    name = target if isinstance(target, str) else _function_name(target)
    entry = {"op": node.op, "name": node.name, "target": name}
    return entry | {"args": _written(args), "kwargs": _written(kwargs)}


def _written(value: Any) -> Any:
    """Return an argument as JSON; what JSON does not have is an object with one key."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_written(item) for item in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [_written(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {"dict": {str(key): _written(item) for key, item in cast("Mapping[Any, Any]", value).items()}}
    if isinstance(value, slice):
        ends = cast("slice[Any, Any, Any]", value)
        return {"slice": [_written(item) for item in (ends.start, ends.stop, ends.step)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _TORCH_VALUES):
        return {"torch": str(value).removeprefix("torch.")}
    raise ModelError(f"a {type(value).__name__} in the graph cannot be written to a file", hint=_HINT)


def _read(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_read(item, nodes) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = cast("dict[str, Any]", value).items()
    if kind == "torch":
        if not isinstance(constant := getattr(torch, inner), _TORCH_VALUES):
            raise ValueError(f"torch.{inner}")
        return constant
    readers = {
        "node": lambda: nodes[inner],
        "float": lambda: float(inner),
        "tuple": lambda: tuple(_read(item, nodes) for item in inner),
        "dict": lambda: {str(key): _read(item, nodes) for key, item in inner.items()},
        "slice": lambda: slice(*(_read(item, nodes) for item in inner)),
        "ellipsis": lambda: ...,
        "device": lambda: torch.device(inner),
    }
    return readers[kind]()


# What a node may call


def _read_target(op: str, name: str, args: Any, root: nn.Module) -> Any:
    if op == "call_function":
        function = _function(name)
        if function is getattr and args[1] not in _ATTRIBUTES:
            raise ValueError(f"the attribute {args[1]}")
        return function
    if op == "call_method":
        if name not in _methods() or not isinstance(args[0], fx.Node):
            raise ValueError(f"the method {name}")
    elif op in ("get_attr", "call_module"):
        kind = torch.Tensor if op == "get_attr" else nn.Module
        if not isinstance(operator.attrgetter(_checked_path(name))(root), kind):
            raise ValueError(f"'{name}'")
    elif op == "placeholder":
        if not _is_argument(name.removeprefix("*").removeprefix("*")):  # fx writes it into code as it is
            raise ValueError(f"the argument {name}")
    elif op != "output":
        raise ValueError(f"a node {op}")
    return name


def _is_argument(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _checked_path(path: str) -> str:
    if not _PATH.fullmatch(path):  # fx writes it into code between quotes
        raise ValueError(f"the path {path}")
    return path


@functools.cache
def _functions() -> dict[str, Any]:
    """Return the functions that compute with tensors, by name."""
    spaces = _OVERRIDES.get_overridable_functions()
    named = {name: f for space, each in spaces.items() if space is not torch.Tensor for f in each if (name := _name(f))}
    named |= {f"operator.{name}": getattr(operator, name) for name in _OPERATORS}
    named |= {f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC if hasattr(torch, name)}
    checks: Any = (_TORCH._assert, _TORCH.fx._symbolic_trace._assert_is_none)
    named |= {f"torch.{check.__name__}": check for check in checks}
    return named | {"dict": dict, "getattr": getattr, "tuple": tuple}


def _name(function: Any) -> str | None:
    return _OVERRIDES.resolve_name(function)


@functools.cache
def _methods() -> frozenset[str]:
    each: list[Any] = _OVERRIDES.get_overridable_functions()[torch.Tensor]
    return frozenset(name for method in each if not (name := str(method.__name__)).startswith("_"))


@functools.cache
def _names() -> dict[Any, str]:
    return {function: name for name, function in _functions().items()}


@functools.cache
def _operators() -> frozenset[str]:
    return frozenset(_TORCH._C._dispatch_get_all_op_names())


def _function_name(function: Any) -> str:
    name = function.name() if isinstance(function, OVERLOAD) else _names().get(function)
    try:
        if name is not None and not isinstance(function, HIGHER_ORDER) and _function(name) is function:
            return name
    except ValueError:
        pass
    raise ModelError(f"{_name(function) or function} in the graph cannot be written to a file", hint=_HINT)


def _function(name: str) -> Any:
    """Return the function or operator of this name, if it only computes with tensors.

    Raises:
        ValueError: If there is none.
    """
    space, separator, rest = name.partition("::")
    if not separator and name in _functions():
        return _functions()[name]
    packet, _, overload = rest.partition(".")
    if space in _SPACES and name in _operators():
        function = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        if not any(argument.name == "filename" for argument in function._schema.arguments):
            return function
    raise ValueError(f"the function {name}")


# Layers and weights


def _written_module(layer: nn.Module) -> dict[str, Any]:
    if isinstance(layer, Interface):
        if layer.guards:
            raise ModelError("conditions on dynamic sizes cannot be written to a file", hint=_HINT)
        leaves = [[leaf.name, _written(leaf.dtype), list(leaf.shape)] for leaf in layer.leaves]
        arguments = {name: _written_shape(shape) for name, shape in layer.arguments.items()}
        values = {"arguments": arguments, "leaves": leaves, "training": layer.training}
        return {"class": "Interface", "values": values}
    if isinstance(layer, Structure):
        return {"class": "Structure", "values": _written_shape(layer.shape)}
    name = type(layer).__name__
    if getattr(nn, name, None) is not type(layer) or layer._modules:  # pyright: ignore[reportPrivateUsage]
        raise ModelError(f"the layer {name} cannot be written to a file", hint=_HINT)
    own = vars(layer)
    values = {key: _written(value) for key, value in own.items() if key not in vars(nn.Module())}
    absent = [key for table in ("_parameters", "_buffers") for key, value in own[table].items() if value is None]
    return {"class": name, "values": values, "absent": absent, "training": layer.training}


def _read_module(entry: Mapping[str, Any], path: str, root: nn.Module) -> nn.Module:
    name, values = entry["class"], entry["values"]
    if name == "Interface":
        arguments = {name: _read_shape(shape) for name, shape in values["arguments"].items()}
        leaves = [TensorLeaf(str(name), _read(dtype, {}), tuple(shape)) for name, dtype, shape in values["leaves"]]
        return Interface(arguments, leaves, (), bool(values["training"]))
    if name == "Structure":
        return Structure(_read_shape(values))
    kind = getattr(nn, name)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"the layer {name}")
    layer = kind.__new__(kind)
    nn.Module.__init__(layer)
    vars(layer).update({key: _read(value, {}) for key, value in values.items()}, training=bool(entry["training"]))
    for absent in entry["absent"]:
        layer.register_parameter(absent, None)
    try:
        holder = root.get_submodule(path)
    except AttributeError:
        return layer  # has no weights
    for table in ("_parameters", "_buffers"):
        vars(layer)[table].update(vars(holder)[table])
    return layer


def _weights(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return every parameter and buffer once, and the other names of tied ones; safetensors writes no shared memory."""
    weights: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    pointers: set[int] = set()
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        plain = tensor.detach().cpu().contiguous()
        weights[name] = plain.clone() if plain.data_ptr() in pointers else plain
        pointers.add(plain.data_ptr())
    return weights, aliases


def _tree(weights: Mapping[str, torch.Tensor], parameters: frozenset[str], state: frozenset[str]) -> nn.Module:
    root = nn.Module()
    known: dict[int, nn.Parameter] = {}
    for path, tensor in weights.items():
        value = tensor
        if path in parameters:
            value = known.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
        put(root, _checked_path(path), value, persistent=path in state)
    return root


# The arguments and the result of a graph from torch.export


def _written_shape(shape: Shape) -> Any:
    """Return a structure as JSON, with plain containers in place of other classes."""
    if isinstance(shape, Leaf):
        return {"tensor": None}
    if isinstance(shape, Fixed):
        return {"value": _written(shape.value)}
    if isinstance(shape, Cache):
        pair = {"tuple": [{"tensor": None}] * 2}
        named = dict.fromkeys(shape.layers, pair)
        return {"tuple": [*named.values()]} if all(map(str.isdecimal, named)) else {"dict": named}
    parts = [_written_shape(part) for part in shape.parts]
    for kind in (tuple, list):
        if issubclass(shape.kind, kind):
            return {kind.__name__: parts}
    return {"dict": dict(zip(map(str, shape.keys), parts, strict=True))}


def _read_shape(entry: Mapping[str, Any]) -> Shape:
    ((kind, inner),) = entry.items()
    if kind == "tensor":
        return Leaf()
    if kind == "value":
        return Fixed(_read(inner, {}))
    if kind == "dict":
        return Nest(dict, tuple(inner), tuple(_read_shape(part) for part in inner.values()))
    parts = tuple(_read_shape(part) for part in inner)
    return Nest({"tuple": tuple, "list": list}[kind], tuple(range(len(parts))), parts)
