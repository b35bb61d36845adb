"""A scripted or traced module as a plain one, which both exporters can look into.

Neither exporter takes a TorchScript module inside a plain one. Its graph says all it does, so a plain module follows
that graph, one operation after the other, in Python: loops and branches on plain numbers take care of themselves, the
modules inside are modules again, and every operation belongs to the module that runs it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from sardonyx.errors import ModelError
from sardonyx.source.tracing.script_operators import ARITHMETIC, PLAIN, unchanged

_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_FORWARD = re.compile(r"forward(__)?\d*")  # a traced module has one for every call, a scripted one for every overload


def unscripted(scripted: torch.jit.ScriptModule) -> torch.nn.Module:
    """A plain module that does what a scripted one does, on the same parameters."""
    module = _unscripted(scripted, {})
    for (
        hook
    ) in module.script._get_forward_pre_hooks():  # those of the modules inside are in the graphs of their parents
        module.register_forward_pre_hook(_following(hook.graph))
    for hook in module.script._get_forward_hooks():
        module.register_forward_hook(_following(hook.graph))
    return module


class Interpreted(torch.nn.Module):
    """Follows the graph of a scripted module."""

    script: Any  # torch's own object behind the module: its attributes and methods

    def forward(self, *args: Any, sardonyx_method: str = "forward", **kwargs: Any) -> Any:
        """One of its methods; all calls of it come through here, so that hooks see them."""
        method = self.script._get_method(sardonyx_method)
        bound = _signature(method.schema).bind(self, *args, **kwargs)
        bound.apply_defaults()
        return self.follow(sardonyx_method, list(bound.args))

    def follow(self, method: str, values: Sequence[Any]) -> Any:
        """The result of a method; the first value is the module."""
        return _following(self.script._get_method(method).graph)(*values)

    def look_up(self, name: str) -> Any:
        """An attribute as the graph asks for it."""
        known = name in self._parameters or name in self._buffers or name in self._modules
        return getattr(self, name) if known else self.script.getattr(name)


def _unscripted(scripted: torch.jit.ScriptModule, done: dict[Any, Interpreted]) -> Interpreted:
    script: Any = scripted._c  # pyright: ignore  # the graph has no public face
    if scripted in done:
        return done[scripted]
    module = _named_after(script)()
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


def _named_after(script: Any) -> type[Interpreted]:
    """A class of the name that the module's class had before it was scripted, with its signature."""
    qualified = _MANGLED.sub("", script._type().qualified_name()).removeprefix("__torch__.")
    module, _, name = qualified.rpartition(".")

    def forward(self: Interpreted, *args: Any, **kwargs: Any) -> Any:
        return Interpreted.forward(self, *args, **kwargs)

    if "forward" in script._method_names():
        forward.__signature__ = _signature(script._get_method("forward").schema)  # pyright: ignore  # as inspect wants it
    return type(name, (Interpreted,), {"__module__": module or "__main__", "forward": forward})


def _signature(schema: Any) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found: list[inspect.Parameter] = []
    for place, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        found.append(inspect.Parameter("self" if place == 0 else argument.name, kind, default=default))
    return inspect.Signature(found)


Values = dict[str, Any]


def _following(graph: Any) -> Callable[..., Any]:
    """A graph as a function."""
    names = [value.debugName() for value in graph.inputs()]
    return lambda *values: _run(graph, dict(zip(names, values, strict=True)))[0]


def _run(block: Any, values: Values) -> list[Any]:
    """The results of a graph, or of a block of one."""
    for node in block.nodes():
        results = _step(node, values)
        for output, result in zip(node.outputs(), results, strict=True):
            values[output.debugName()] = result
    return [values[output.debugName()] for output in block.outputs()]


def _step(node: Any, values: Values) -> Sequence[Any]:
    kind: str = node.kind()
    if kind == "prim::Constant":
        return (node.output().toIValue(),)
    given = [values[value.debugName()] for value in node.inputs()]
    match kind:
        case "prim::If":
            first, second = node.blocks()
            return _run(first if given[0] else second, values)
        case "prim::Loop":
            return _loop(node, given, values)
        case "prim::CallMethod":
            return (_call_method(given[0], node.s("name"), given[1:]),)
        case "prim::CallFunction":
            return (_call_function(node, given[1:]),)
        case "prim::GetAttr":
            return (_holder(given[0]).look_up(node.s("name")),)
        case "prim::TupleUnpack" | "prim::ListUnpack":
            return given[0]
        case "prim::ListConstruct":
            return (given,)
        case "prim::TupleConstruct":
            return (tuple(given),)
        case "prim::DictConstruct":
            return (dict(zip(given[::2], given[1::2], strict=True)),)
        case "prim::RaiseException":
            raise RuntimeError(str(given[0]))
        case _:
            result = _operation(node, kind, given)
            return (result,) if node.outputsSize() == 1 else result if node.outputsSize() else ()


def _loop(node: Any, given: Sequence[Any], values: Values) -> Sequence[Any]:
    limit, going, *carried = given
    (body,) = node.blocks()
    names = [value.debugName() for value in body.inputs()]
    count = 0
    while going and count < limit:
        values.update(zip(names, [count, *carried], strict=True))
        going, *carried = _run(body, values)
        count += 1
    return carried


def _holder(module: Any) -> Interpreted:
    if not isinstance(module, Interpreted):
        raise _refusal(f"an attribute of {type(module).__name__}")
    return module


def _call_method(module: Any, method: str, args: Sequence[Any]) -> Any:
    holder = _holder(module)
    if _FORWARD.fullmatch(method):
        return holder(*args, sardonyx_method=method)
    return holder.follow(method, [holder, *args])


def _call_function(node: Any, args: Sequence[Any]) -> Any:
    """A function that the graph calls by name: only torch knows its body, and inlines it into a graph of the call."""
    graph: Any = torch._C.Graph()  # pyright: ignore  # the graph has no public face
    function = next(node.inputs())
    body = graph.insertNode(graph.createClone(function.node(), unchanged)).output()
    given = iter([body, *(graph.addInput().setType(value.type()) for value in list(node.inputs())[1:])])

    def place(_: Any) -> Any:
        return next(given)

    call = graph.appendNode(graph.createClone(node, place))
    graph.registerOutput(call.output())
    torch._C._jit_pass_inline(graph)  # pyright: ignore  # same
    return _following(graph)(*args)


def _operation(node: Any, kind: str, given: list[Any]) -> Any:
    """An operator of torch, or one of Python's on plain numbers and lists."""
    plain = PLAIN.get(kind)
    if plain is not None:
        return plain(*given)
    arithmetic = ARITHMETIC.get(kind)
    takes = node.schema().partition(" -> ")[0]
    if arithmetic is not None and ("Tensor" not in takes or not any(isinstance(v, torch.Tensor) for v in given)):
        return arithmetic(*given)
    space, _, name = kind.partition("::")
    if space == "prim" or node.schema() == "(no schema)":
        raise _refusal(kind)
    schema: Any = torch._C.parse_schema(node.schema())  # pyright: ignore[reportPrivateUsage]  # same
    optional = {argument.name: value for argument, value in zip(schema.arguments, given, strict=True)}
    named = {argument.name: optional.pop(argument.name) for argument in schema.arguments if argument.kwarg_only}
    positional = list(optional.values())
    if _has_traced_sizes(schema, given) and hasattr(torch.Tensor, name):
        return getattr(torch.Tensor, name)(*positional, **named)  # torch.ops would make plain numbers of them
    packet = getattr(getattr(torch.ops, space), name)
    return getattr(packet, schema.overload_name or "default")(*positional, **named)


def _has_traced_sizes(schema: Any, given: Sequence[Any]) -> bool:
    """Whether a number is really a size that torch's tracer follows."""
    for argument, value in zip(schema.arguments, given, strict=True):
        numbers = cast("Sequence[Any]", value if isinstance(value, (list, tuple)) else (value,))
        if "Tensor" not in str(argument.type) and any(isinstance(number, torch.Tensor) for number in numbers):
            return True
    return False


def _refusal(what: str) -> ModelError:
    return ModelError(
        f"a scripted module cannot be exported: it uses {what}",
        hint="export the module as it was before torch.jit.script",
    )
