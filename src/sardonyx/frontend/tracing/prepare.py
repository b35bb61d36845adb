"""A module prepared for export: in eval mode, with its scripted modules as Python again."""

from __future__ import annotations

import contextlib
import inspect
import operator
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.nn.utils import parametrize

from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import Seen, fast_paths, restoring_state, tensors_of
from sardonyx.frontend.running import evaluate, set_training

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DTYPES = (  # TorchScript numbers them in this order
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8, torch.qint32),
    torch.bfloat16,
)
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_FORWARD = re.compile(r"forward(__)?\d*")  # a traced module has one per call, a scripted one per overload
Values = dict[str, Any]


def _number(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a conversion of tensors to numbers that leaves sizes alone which one of torch's tracers follows."""

    def converted(value: Any) -> Any:
        traced = isinstance(value, torch.Tensor) and torch._C._get_tracing_state() is not None  # pyright: ignore  # no public face
        return value if traced or isinstance(value, _SYMBOLS) else convert(value)

    return converted


def unchanged(value: Any) -> Any:
    """Return the value: an operator without meaning in Python."""
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
    """Run a convolution without the last arguments, which say whether cuDNN was available to the tracer."""
    return torch.ops.aten.convolution.default(*args[:9])


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


# Operators on lists, sizes and numbers that are Python's own.
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
    "prim::NumToTensor": unchanged,  # only used for sizes
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

_PYTHON: Any = operator  # its declared types are too narrow
# Arithmetic that is Python's own if no operand is a tensor.
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


def unscripted(scripted: torch.jit.ScriptModule) -> torch.nn.Module:
    """Return a plain module that computes what a scripted one computes, with the same parameters."""
    module = _unscripted(scripted, {})
    for hook in module.script._get_forward_pre_hooks():  # those of submodules are in the graphs of their parents
        module.register_forward_pre_hook(_as_function(hook.graph))
    for hook in module.script._get_forward_hooks():
        module.register_forward_hook(_as_function(hook.graph))
    return module


class Interpreted(torch.nn.Module):
    """Interprets the graph of a scripted module."""

    script: Any  # torch's C++ object behind the module, with its attributes and methods

    def forward(self, *args: Any, sardonyx_method: str = "forward", **kwargs: Any) -> Any:
        """Run one of its forward methods; all calls go through here, so that hooks see them."""
        method = self.script._get_method(sardonyx_method)
        bound = _signature(method.schema).bind(self, *args, **kwargs)
        bound.apply_defaults()
        return self.follow(sardonyx_method, list(bound.args))

    def follow(self, method: str, values: Sequence[Any]) -> Any:
        """Return the result of a method; the first value is the module."""
        return _as_function(self.script._get_method(method).graph)(*values)

    def look_up(self, name: str) -> Any:
        """Return an attribute of the module, or of the script."""
        known = name in self._parameters or name in self._buffers or name in self._modules
        return getattr(self, name) if known else self.script.getattr(name)


def _unscripted(scripted: torch.jit.ScriptModule, done: dict[Any, Interpreted]) -> Interpreted:
    script: Any = scripted._c  # pyright: ignore  # the graph has no public face
    if scripted in done:
        return done[scripted]
    module = _original_class(script)()
    done[scripted] = module
    object.__setattr__(module, "script", script)
    for name, parameter in scripted.named_parameters(recurse=False):
        module.register_parameter(name, parameter)
    for name, buffer in scripted.named_buffers(recurse=False):
        module.register_buffer(name, buffer)
    for name, child in scripted.named_children():
        assert isinstance(child, torch.jit.ScriptModule)  # torch scripts a module with everything in it
        module.add_module(name, _unscripted(child, done))
    module.training = getattr(scripted, "training", False)  # a frozen one has none
    return module


def _original_class(script: Any) -> type[Interpreted]:
    """Return a class with the name and signature that the module's class had before scripting."""
    qualified = _MANGLED.sub("", script._type().qualified_name()).removeprefix("__torch__.")
    module, _, name = qualified.rpartition(".")

    def forward(self: Interpreted, *args: Any, **kwargs: Any) -> Any:
        return Interpreted.forward(self, *args, **kwargs)

    if "forward" in script._method_names():
        forward.__signature__ = _signature(script._get_method("forward").schema)  # pyright: ignore  # as inspect wants it
    return type(name, (Interpreted,), {"__module__": module or "__main__", "forward": forward})


def _signature(schema: Any) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters: list[inspect.Parameter] = []
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        parameters.append(inspect.Parameter("self" if index == 0 else argument.name, kind, default=default))
    return inspect.Signature(parameters)


def _as_function(graph: Any) -> Callable[..., Any]:
    names = [value.debugName() for value in graph.inputs()]
    return lambda *values: _run(graph, dict(zip(names, values, strict=True)))[0]


def _run(block: Any, values: Values) -> list[Any]:
    """Run a graph or one of its blocks, and return its results."""
    for node in block.nodes():
        results = _step(node, values)
        for output, result in zip(node.outputs(), results, strict=True):
            values[output.debugName()] = result
    return [values[output.debugName()] for output in block.outputs()]


def _step(node: Any, values: Values) -> Sequence[Any]:
    kind: str = node.kind()
    if kind == "prim::Constant":
        return (node.output().toIValue(),)
    operands = [values[value.debugName()] for value in node.inputs()]
    match kind:
        case "prim::If":
            first, second = node.blocks()
            return _run(first if operands[0] else second, values)
        case "prim::Loop":
            return _loop(node, operands, values)
        case "prim::CallMethod":
            holder, method = _holder(operands[0]), node.s("name")
            if _FORWARD.fullmatch(method):
                return (holder(*operands[1:], sardonyx_method=method),)
            return (holder.follow(method, [holder, *operands[1:]]),)
        case "prim::CallFunction":
            return (_call_function(node, operands[1:]),)
        case "prim::GetAttr":
            return (_holder(operands[0]).look_up(node.s("name")),)
        case "prim::TupleUnpack" | "prim::ListUnpack":
            return operands[0]
        case "prim::ListConstruct":
            return (operands,)
        case "prim::TupleConstruct":
            return (tuple(operands),)
        case "prim::DictConstruct":
            return (dict(zip(operands[::2], operands[1::2], strict=True)),)
        case "prim::RaiseException":
            raise RuntimeError(str(operands[0]))
        case _:
            result = _operation(node, kind, operands)
            return (result,) if node.outputsSize() == 1 else result if node.outputsSize() else ()


def _loop(node: Any, operands: Sequence[Any], values: Values) -> Sequence[Any]:
    limit, condition, *carried = operands
    (body,) = node.blocks()
    names = [value.debugName() for value in body.inputs()]
    count = 0
    while condition and count < limit:
        values.update(zip(names, [count, *carried], strict=True))
        condition, *carried = _run(body, values)
        count += 1
    return carried


def _holder(module: Any) -> Interpreted:
    if not isinstance(module, Interpreted):
        raise _unsupported(f"an attribute of {type(module).__name__}")
    return module


def _call_function(node: Any, args: Sequence[Any]) -> Any:
    """Call a function that the graph refers to by name: torch inlines its body into a graph of the call."""
    graph: Any = torch._C.Graph()  # pyright: ignore  # the graph has no public face
    function = next(node.inputs())
    body = graph.insertNode(graph.createClone(function.node(), unchanged)).output()
    inputs = iter([body, *(graph.addInput().setType(value.type()) for value in list(node.inputs())[1:])])

    def next_input(_: Any) -> Any:
        return next(inputs)

    call = graph.appendNode(graph.createClone(node, next_input))
    graph.registerOutput(call.output())
    torch._C._jit_pass_inline(graph)  # pyright: ignore  # same
    return _as_function(graph)(*args)


def _operation(node: Any, kind: str, operands: list[Any]) -> Any:
    """Run an operator of torch, or one of Python's on numbers and lists."""
    plain = PLAIN.get(kind)
    if plain is not None:
        return plain(*operands)
    arithmetic = ARITHMETIC.get(kind)
    takes = node.schema().partition(" -> ")[0]
    if arithmetic is not None and ("Tensor" not in takes or not any(isinstance(v, torch.Tensor) for v in operands)):
        return arithmetic(*operands)
    space, _, name = kind.partition("::")
    if space == "prim" or node.schema() == "(no schema)":
        raise _unsupported(kind)
    schema: Any = torch._C.parse_schema(node.schema())  # pyright: ignore[reportPrivateUsage]  # same
    optional = {argument.name: value for argument, value in zip(schema.arguments, operands, strict=True)}
    named = {argument.name: optional.pop(argument.name) for argument in schema.arguments if argument.kwarg_only}
    positional = list(optional.values())
    if _has_traced_sizes(schema, operands) and hasattr(torch.Tensor, name):
        return getattr(torch.Tensor, name)(*positional, **named)  # torch.ops would convert them to numbers
    packet = getattr(getattr(torch.ops, space), name)
    return getattr(packet, schema.overload_name or "default")(*positional, **named)


def _has_traced_sizes(schema: Any, operands: Sequence[Any]) -> bool:
    """Return whether a number is a size that torch's tracer follows."""
    for argument, value in zip(schema.arguments, operands, strict=True):
        numbers = cast("Sequence[Any]", value if isinstance(value, (list, tuple)) else (value,))
        if "Tensor" not in str(argument.type) and any(isinstance(number, torch.Tensor) for number in numbers):
            return True
    return False


def _unsupported(what: str) -> ModelError:
    return ModelError(
        f"a scripted module cannot be exported: it uses {what}",
        hint="export the module as it was before torch.jit.script",
    )


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


@contextlib.contextmanager
def prepared(module: torch.nn.Module, *, training: bool = False) -> Generator[torch.nn.Module]:
    """Yield the module in the form that is exported; on exit the caller's module is unchanged.

    In training mode, a module that is in it keeps the modes of its submodules.

    Compiled modules are replaced by the modules they wrap, scripted and traced ones by a plain module that interprets
    their graph. Weights whose parametrization has no ONNX operators are computed once.
    """
    with restoring_state(module), fast_paths(enabled=False):
        for child in module.modules():  # those that were compiled in place run as written
            if child.__dict__.get("_compiled_call_impl") is not None:
                child._compiled_call_impl = None  # pyright: ignore[reportPrivateUsage]  # no public name
            original = getattr(child.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
            if original is not None:
                child.forward = original
        plain: dict[torch.nn.Module, torch.nn.Module] = {}
        root = _plain(module, plain)
        _replace_below(root, lambda child: _plain(child, plain))
        if not training:
            evaluate(root)
        elif not root.training:
            set_training(root, training=True)
        parameters = set(map(id, root.parameters()))
        for tensor in tensors_of(root):  # exporters make the others constants
            if id(tensor) not in parameters and tensor.requires_grad and tensor.is_leaf:
                tensor.requires_grad = False
        _replace_below(root, _precomputed)
        yield root


def _plain(module: torch.nn.Module, known: dict[torch.nn.Module, torch.nn.Module]) -> torch.nn.Module:
    """Return the module behind a compiled or scripted one, with the latter's hooks; memoized in `known`."""
    if module not in known:
        inner: Any = module
        while isinstance(inner, torch._dynamo.OptimizedModule):  # pyright: ignore[reportPrivateUsage]  # no public name
            inner = inner._orig_mod  # pyright: ignore[reportPrivateUsage]
        known[module] = unscripted(inner) if isinstance(inner, torch.jit.ScriptModule) else inner
        if inner is not module:
            for table in _HOOKS:
                known[module].__dict__[table].update(module.__dict__.get(table, {}))
    return known[module]


def _replace_below(root: torch.nn.Module, replacement: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    """Replace every submodule by its replacement, which may be itself."""
    seen: set[torch.nn.Module] = set()
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        if parent in seen:
            continue
        seen.add(parent)
        for name, child in list(parent._modules.items()):  # pyright: ignore[reportPrivateUsage]  # hooks must not run
            if child is None:
                continue
            other = replacement(child)
            if other is not child:
                parent._modules[name] = other  # pyright: ignore[reportPrivateUsage]
            waiting.append(other)


class _ComputedWeight(torch.nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)
        self.training = False

    def forward(self) -> torch.Tensor:
        return self.get_buffer("value")


def _precomputed(module: torch.nn.Module) -> torch.nn.Module:
    """Return the result of a parametrization that has no ONNX operators, and any other module unchanged."""
    if not isinstance(module, parametrize.ParametrizationList):
        return module

    def is_factorization(func: Any) -> bool:
        """Return whether an operator is linear algebra beyond products and norms, for which ONNX has no operators."""
        name: str = func.overloadpacket.__name__
        return name == "vdot" or ("linalg" in name and "norm" not in name)

    with torch.no_grad(), Seen(is_factorization) as used:
        value = module()
    return _ComputedWeight(value.detach()) if used.seen else module
