"""Gives an exported graph the signature of the model: the same arguments by the same names, the same kind of result.

torch's own exported modules take what the example had and nothing else, refuse containers that torch does not know,
and are written in code that does not go through a file. Here the model is exported as tensors in, tensors out, and what
is around them is put back afterwards.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph import CodeGen

from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.attention.capture.nesting import (
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
from sardonyx.frontend.tracing.structure import named_arguments

# How a graph made by torch.export is called: what it takes, checked at every call, and what it gives back.
#
# Such a graph is made for one mode, for certain sizes and for fixed values of whatever is no tensor. A call that it was
# not made for would be answered wrongly, so it is refused.

INTERFACE, STRUCTURE = "sardonyx_interface", "sardonyx_structure"  # what the two modules below are called in a graph
TENSORS = "tensors"  # what the conditions on sizes call the list of all tensors that are taken


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor among the inputs; a size that may change is None."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]

    def check(self, value: torch.Tensor) -> None:
        """Refuse what the graph was not made for."""
        if value.dtype != self.dtype:
            raise UsageError(
                f"{self.name} must be {self.dtype}, not {value.dtype}", hint="decompose the model again for this call"
            )
        fits = len(value.shape) == len(self.shape)
        if not fits or any(want is not None and got != want for got, want in zip(value.shape, self.shape, strict=True)):
            wanted = ", ".join("*" if size is None else str(size) for size in self.shape)
            raise UsageError(
                f"{self.name} must have the sizes [{wanted}], not {list(value.shape)}",
                hint="decompose the model with dynamic= to leave dims open",
            )


class Interface(nn.Module):
    """Takes the arguments of the model, checks them, and gives their tensors."""

    _is_impure = True  # torch's word for a module that must run though nothing reads what it gives

    def __init__(
        self, arguments: Mapping[str, Shape], leaves: Sequence[TensorLeaf], guards: Sequence[str], mode: bool
    ) -> None:
        """Remember the call that the graph was made for.

        Args:
            arguments: how each of them is nested, in order.
            leaves: what the tensors in them must be.
            guards: conditions on sizes as torch writes them: `L['tensors'][0].size()[1] % 4 == 0`.
            mode: whether the graph was made in training mode.
        """
        super().__init__()
        self._arguments, self._leaves = dict(arguments), tuple(leaves)
        self._guards = tuple(guards)
        self._holds = _compiled(self._guards)
        self.training = mode

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        """The tensors, in order."""
        flat: list[torch.Tensor] = []
        for (name, shape), value in zip(self._arguments.items(), arguments, strict=True):
            flat.extend(tensors_in(shape, value, name))
        for leaf, tensor in zip(self._leaves, flat, strict=True):
            leaf.check(tensor)
        for text, holds in zip(self._guards, self._holds, strict=True):
            if not holds({TENSORS: flat}):
                raise UsageError(f"the graph holds only where {self._readable(text)}", hint="see dynamic=")
        return tuple(flat)

    def _readable(self, guard: str) -> str:
        for place, leaf in enumerate(self._leaves):
            guard = guard.replace(f"L['{TENSORS}'][{place}]", leaf.name)
        return guard.replace(".size()", ".shape")

    def train(self, mode: bool = True) -> Interface:
        """Refuse the other mode: what depends on it is fixed in the graph.

        Raises:
            UsageError: the graph was made in the other mode.
        """
        if mode != self.training:
            made, other = ("training", "eval") if self.training else ("eval", "training")
            raise UsageError(
                f"this graph was made by torch.export in {made} mode and cannot change to {other} mode",
                hint=f"put the model into {other} mode and decompose it again",
            )
        return self

    def cast(self, dtypes: Mapping[torch.dtype, torch.dtype]) -> None:
        """Expect other element types."""
        self._leaves = tuple(replace(leaf, dtype=dtypes.get(leaf.dtype, leaf.dtype)) for leaf in self._leaves)

    def __getstate__(self) -> dict[str, Any]:
        """Compiled conditions do not go through a file; their text does."""
        return {name: value for name, value in self.__dict__.items() if name != "_holds"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Compile the conditions again."""
        self.__dict__.update(state)
        self._holds = _compiled(self._guards)


class Structure(nn.Module):
    """Gives results back as the model does: in its own kind of container."""

    def __init__(self, shape: Shape) -> None:
        """Remember how the results are nested."""
        super().__init__()
        self._shape = shape

    def forward(self, *tensors: Any) -> Any:
        """The results in their container."""
        return rebuilt(self._shape, iter(tensors))


def _compiled(guards: Sequence[str]) -> tuple[Callable[[Mapping[str, Any]], bool], ...]:
    if not guards:
        return ()
    from torch.fx.experimental import symbolic_shapes

    allowed: dict[str, Any] = vars(symbolic_shapes)["SYMPY_INTERP"]  # the functions that torch's conditions may use
    return tuple(eval(f"lambda L: {text}", dict(allowed)) for text in guards)  # torch wrote the text


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
