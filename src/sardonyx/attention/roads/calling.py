"""Gives an exported graph the signature of the model: the same arguments by the same names, the same kind of result.

torch's own exported modules take what the example had and nothing else, refuse containers that torch does not know,
and are written in code that does not go through a file. Here the model is exported as tensors in, tensors out, and what
is around them is put back afterwards.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph import CodeGen

from sardonyx.attention.roads.interface import INTERFACE, STRUCTURE, Interface, Structure, TensorLeaf
from sardonyx.attention.roads.nesting import (
    PLAIN,
    Leaf,
    Shape,
    is_plain,
    names_in,
    rebuilt,
    shape_of,
    tensors_in,
    unknown_in,
)
from sardonyx.errors import ModelError
from sardonyx.source.tracing.structure import named_arguments


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the model's forward; it stays at its default where it was not given."""

    name: str
    shape: Shape
    default: tuple[Any, ...] = ()  # empty where there is none
    given: bool = True
    by_position: bool = False


class Arguments:
    """The arguments of one call of a model, in the order of its signature, and the tensors in them."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Bind an example to the model's signature."""
        values = named_arguments(model, args, kwargs)
        positional = list(values)[: len(args)]
        self.listed = tuple(_listed(model, {name: shape_of(value) for name, value in values.items()}, positional))
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.result: Shape = Leaf()  # how the answer to the call is nested; known once it was traced
        for argument in self.listed:
            if argument.given:
                self.tensors.extend(tensors_in(argument.shape, values[argument.name], argument.name))
                self.names.extend(names_in(argument.shape, argument.name))

    def rebuilt(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The call with other tensors in it."""
        left = iter(tensors)
        values = {each.name: rebuilt(each.shape, left) for each in self.listed if each.given}
        positional = [each.name for each in self.listed if each.by_position]
        return [values.pop(name) for name in positional], values


def _listed(model: nn.Module, given: dict[str, Shape], positional: Sequence[str]) -> Iterator[Argument]:
    left = dict(given)
    for parameter in inspect.signature(model.forward).parameters.values():
        name = parameter.name
        default = () if parameter.default is parameter.empty else (parameter.default,)
        if name in left:
            shown = default if default and isinstance(default[0], PLAIN) else ()
            yield Argument(name, left.pop(name), shown, by_position=name in positional)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            for each in [each for each in positional if each in left]:
                yield Argument(each, left.pop(each), by_position=True)
        elif default and isinstance(default[0], PLAIN):
            yield Argument(name, shape_of(default[0]), default, given=False)
    for name, shape in left.items():
        yield Argument(name, shape, by_position=name in positional)


class Flattened(nn.Module):
    """A model as torch.export sees it: tensors in, tensors out."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        """Hold the model; no flag of it is touched."""
        super().__init__()
        self.module = model
        self._arguments = arguments
        self.training = model.training

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """The tensors of the model's answer."""
        args, kwargs = self._arguments.rebuilt(tensors)
        answer = self.module(*args, **kwargs)
        result = self._arguments.result = shape_of(answer)  # not kept here: torch.export puts attributes back
        if (unknown := unknown_in(result)) is not None:
            raise ModelError(
                f"the model returns a {unknown.__name__}, which a graph cannot give back",
                hint="switch it off in the call (kwargs={'use_cache': False} for a cache)",
            )
        return tuple(tensors_in(result, answer, "result"))


def fixed_size(size: Any) -> int | None:
    """A size that the graph settled on; None for one that is open. Some are still written as symbols."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def with_own_signature(module: fx.GraphModule, arguments: Arguments, guards: Sequence[str], *, training: bool) -> None:
    """Let a flat graph take the model's arguments, check them, and return what the model returns."""
    graph = module.graph
    flat = graph.find_nodes(op="placeholder")
    leaves = [
        TensorLeaf(name, tensor.dtype, tuple(fixed_size(size) for size in node.meta["val"].shape))
        for name, tensor, node in zip(arguments.names, arguments.tensors, flat, strict=True)
    ]
    shapes = {argument.name: argument.shape for argument in arguments.listed}
    module.add_module(INTERFACE, Interface(shapes, leaves, guards, training))
    _take(graph, arguments, flat)
    _return(module, arguments.result)
    graph.set_codegen(CodeGen())


def _take(graph: fx.Graph, arguments: Arguments, flat: Sequence[fx.Node]) -> None:
    """One placeholder for each argument; the tensors nested in one are taken out of it by the interface."""
    begin = next(iter(graph.nodes))
    with graph.inserting_before(begin):
        taken = {
            each.name: graph.create_node("placeholder", each.name, each.default, {})
            for each in sorted(arguments.listed, key=lambda each: bool(each.default))  # Python wants defaults last
        }
        checked = graph.call_module(INTERFACE, tuple(taken[each.name] for each in arguments.listed))
    place = 0
    for argument in arguments.listed:
        for _ in names_in(argument.shape, argument.name):
            node, place = flat[place], place + 1
            new = taken[argument.name]
            if not isinstance(argument.shape, Leaf):
                with graph.inserting_before(begin):
                    new = graph.call_function(operator.getitem, (checked, place - 1))
            new.meta.update(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def _return(module: fx.GraphModule, shape: Shape) -> None:
    """Give the results back nested as the model has them."""
    graph = module.graph
    output = graph.output_node()
    flat: Any = output.args[0]
    if is_plain(shape):
        output.args = (rebuilt(shape, iter(flat)),)
        return
    module.add_module(STRUCTURE, Structure(shape))
    with graph.inserting_before(output):
        output.args = (graph.call_module(STRUCTURE, tuple(flat)),)
