"""How a captured model is called: its arguments as nested values, and the interface that its graph keeps."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import fx, nn
from torch.fx.graph import CodeGen

from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.tracing.structure import (
    SIZES,
    Cache,
    Fixed,
    Flat,
    Leaf,
    Nest,
    Shape,
    items_of,
    named_arguments,
    named_pairs,
    rebuilt,
)

_DECOMPOSE_AGAIN = "decompose the model again for this call"


PLAIN = (bool, int, float, str, type(None))  # types of constants in a graph and in a signature


def tensors_in(shape: Shape, value: Any, name: str) -> list[torch.Tensor]:
    """Return the tensors of a value, which must have this structure.

    Raises:
        UsageError: If it has another structure, or another value for a fixed one.
    """
    if isinstance(shape, Fixed):
        if value is not shape.value and (isinstance(value, torch.Tensor) or value != shape.value):
            raise UsageError(f"{name} is fixed at {shape.value!r} in this graph", hint=_DECOMPOSE_AGAIN)
        return []
    if isinstance(shape, Leaf):
        if not isinstance(value, (torch.Tensor, *SIZES)):
            raise UsageError(f"{name} must be a tensor, not {type(value).__name__}", hint=_DECOMPOSE_AGAIN)
        return [cast(torch.Tensor, value)]
    if isinstance(shape, Cache):
        pairs = named_pairs(value) or {}
        if tuple(pairs) != shape.layers:
            layers = len({layer.partition(".")[0] for layer in shape.layers})
            raise UsageError(f"{name} must be a cache of {layers} layers", hint=_DECOMPOSE_AGAIN)
        return [tensor for pair in pairs.values() for tensor in pair]
    if type(value) is not shape.kind:
        raise UsageError(f"{name} must be a {shape.kind.__name__}, not {type(value).__name__}", hint=_DECOMPOSE_AGAIN)
    items = items_of(value) or {}
    if tuple(items) != shape.keys:
        raise UsageError(f"{name} must hold {list(shape.keys)}, not {list(items)}", hint=_DECOMPOSE_AGAIN)
    parts = zip(shape.keys, shape.parts, items.values(), strict=True)
    return [tensor for key, part, inner in parts for tensor in tensors_in(part, inner, f"{name}.{key}")]


def is_plain(shape: Shape) -> bool:
    """Return whether a graph can return the structure: tuples, lists, dicts, tensors and numbers."""
    if isinstance(shape, Nest):
        return shape.kind in (tuple, list, dict) and all(is_plain(part) for part in shape.parts)
    return isinstance(shape, Leaf) or (isinstance(shape, Fixed) and isinstance(shape.value, PLAIN))


INTERFACE, STRUCTURE = "sardonyx_interface", "sardonyx_structure"  # names of the two modules below in a graph
TENSORS = "tensors"  # name of the list of all input tensors in guards


class TensorLeaf(Struct, frozen=True):
    """A tensor among the inputs; a dynamic size is None."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]

    def check(self, value: torch.Tensor) -> None:
        """Refuse a tensor that the graph was not exported for."""
        if value.dtype != self.dtype:
            raise UsageError(
                f"{self.name} must be {self.dtype}, not {value.dtype}", hint="decompose the model again for this call"
            )
        fits = len(value.shape) == len(self.shape)
        if not fits or any(size is not None and got != size for got, size in zip(value.shape, self.shape, strict=True)):
            expected = ", ".join("*" if size is None else str(size) for size in self.shape)
            raise UsageError(
                f"{self.name} must have the sizes [{expected}], not {list(value.shape)}",
                hint="decompose the model with `dynamic` to make dimensions dynamic",
            )


class Interface(nn.Module):
    """Takes the arguments of the model, checks them, and returns their tensors."""

    _is_impure = True  # tells torch.fx that the module must run even if its result is unused

    def __init__(
        self, arguments: Mapping[str, Shape], leaves: Sequence[TensorLeaf], guards: Sequence[str], mode: bool
    ) -> None:
        """Store the call that the graph was exported for.

        Args:
            leaves: The required types and sizes of their tensors.
            guards: Conditions on sizes as torch writes them: `L['tensors'][0].size()[1] % 4 == 0`.
        """
        super().__init__()
        self.arguments, self.leaves = dict(arguments), tuple(leaves)
        self.guards = tuple(guards)
        self._holds = _compiled(self.guards)
        self.training = mode

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the tensors in order."""
        flat: list[torch.Tensor] = []
        for (name, shape), value in zip(self.arguments.items(), arguments, strict=True):
            flat.extend(tensors_in(shape, value, name))
        for leaf, tensor in zip(self.leaves, flat, strict=True):
            leaf.check(tensor)
        for text, holds in zip(self.guards, self._holds, strict=True):
            if not holds({TENSORS: flat}):
                for index, leaf in enumerate(self.leaves):
                    text = text.replace(f"L['{TENSORS}'][{index}]", leaf.name)
                raise UsageError(f"the graph holds only if {text.replace('.size()', '.shape')}", hint="see `dynamic`")
        return tuple(flat)

    def train(self, mode: bool = True) -> Interface:
        """Refuse the other mode: operations that depend on it are fixed in the graph.

        Raises:
            UsageError: If the graph was exported in the other mode.
        """
        if mode != self.training:
            own, other = ("training", "eval") if self.training else ("eval", "training")
            raise UsageError(
                f"this graph was exported by torch.export in {own} mode and cannot change to {other} mode",
                hint=f"put the model into {other} mode and decompose it again",
            )
        return self

    def cast(self, dtypes: Mapping[torch.dtype, torch.dtype]) -> None:
        """Expect other element types."""
        self.leaves = tuple(replace(leaf, dtype=dtypes.get(leaf.dtype, leaf.dtype)) for leaf in self.leaves)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the compiled guards, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_holds"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state and compile the guards again."""
        self.__dict__.update(state)
        self._holds = _compiled(self.guards)


class Structure(nn.Module):
    """Returns results in the container that the model returns."""

    def __init__(self, shape: Shape) -> None:
        """Store the structure of the results."""
        super().__init__()
        self.shape = shape

    def forward(self, *tensors: Any) -> Any:
        """Return the results in their container."""
        return rebuilt(self.shape, iter(tensors))


def _compiled(guards: Sequence[str]) -> tuple[Callable[[Mapping[str, Any]], bool], ...]:
    if not guards:
        return ()
    from torch.fx.experimental import symbolic_shapes

    allowed: dict[str, Any] = vars(symbolic_shapes)["SYMPY_INTERP"]  # the functions that torch's guards may use
    return tuple(eval(f"lambda L: {text}", dict(allowed)) for text in guards)  # torch wrote the text


class Argument(Struct, frozen=True):
    """One argument of the model's forward; it keeps its default if it is not given."""

    name: str
    shape: Shape
    default: tuple[Any, ...] = ()  # empty if there is none
    given: bool = True
    by_position: bool = False


class Arguments:
    """The arguments of one call of a model, in the order of its signature, and the tensors in them."""

    def __init__(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Bind an example to the model's signature."""
        values = named_arguments(model, args, kwargs)
        flat = {name: Flat(value, name, in_torch=True) for name, value in values.items()}
        shapes = {name: each.shape for name, each in flat.items()}
        self.listed = tuple(_listed(model, shapes, list(values)[: len(args)]))
        given = [(argument, leaf) for argument in self.listed if argument.given for leaf in flat[argument.name].leaves]
        self.owners = [argument for argument, _ in given]  # of each tensor
        self.tensors = [leaf.tensor for _, leaf in given]
        self.names = [leaf.name for _, leaf in given]
        self.result: Shape = Leaf()  # structure of the result; known after tracing

    def rebuilt(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments of the call with other tensors in them."""
        remaining = iter(tensors)
        values = {argument.name: rebuilt(argument.shape, remaining) for argument in self.listed if argument.given}
        positional = [argument.name for argument in self.listed if argument.by_position]
        return [values.pop(name) for name in positional], values


def _listed(model: nn.Module, given: dict[str, Shape], positional: Sequence[str]) -> Iterator[Argument]:
    remaining = dict(given)
    for parameter in inspect.signature(model.forward).parameters.values():
        name = parameter.name
        default = () if parameter.default is parameter.empty else (parameter.default,)
        if name in remaining:
            shown = default if default and isinstance(default[0], PLAIN) else ()
            yield Argument(name, remaining.pop(name), shown, by_position=name in positional)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            for extra in [extra for extra in positional if extra in remaining]:
                yield Argument(extra, remaining.pop(extra), by_position=True)
        elif default and isinstance(default[0], PLAIN):
            yield Argument(name, Fixed(default[0]), default, given=False)
    for name, shape in remaining.items():
        yield Argument(name, shape, by_position=name in positional)


class Flattened(nn.Module):
    """The model as torch.export traces it: tensors in, tensors out."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        """Wrap the model without changing its flags."""
        super().__init__()
        self.module = model
        self._arguments = arguments
        self.training = model.training

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Return the tensors of the model's result."""
        args, kwargs = self._arguments.rebuilt(tensors)
        output = self.module(*args, **kwargs)
        flat = Flat(output, "result", in_torch=True)
        self._arguments.result = flat.shape  # not stored here: torch.export restores attributes
        for _, unknown in flat.others:
            if not isinstance(unknown, PLAIN):  # it may contain tensors
                raise ModelError(
                    f"the model returns a {type(unknown).__name__}, which a graph cannot return",
                    hint="switch it off in the call (kwargs={'use_cache': False} for a cache)",
                )
        return tuple(flat.tensors)


def fixed_size(size: Any) -> int | None:
    """Return a fixed size, which may still be written as a symbol; None for a dynamic one."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def with_own_signature(module: fx.GraphModule, arguments: Arguments, guards: Sequence[str], *, training: bool) -> None:
    """Make a flat graph take the model's arguments, check them, and return what the model returns."""
    graph = module.graph
    flat = graph.find_nodes(op="placeholder")
    leaves = [
        TensorLeaf(name, tensor.dtype, tuple(fixed_size(size) for size in node.meta["val"].shape))
        for name, tensor, node in zip(arguments.names, arguments.tensors, flat, strict=True)
    ]
    shapes = {argument.name: argument.shape for argument in arguments.listed}
    module.add_module(INTERFACE, Interface(shapes, leaves, guards, training))
    _add_arguments(graph, arguments, flat)
    output = graph.output_node()
    results: Any = output.args[0]
    if is_plain(arguments.result):
        output.args = (rebuilt(arguments.result, iter(results)),)
    else:
        module.add_module(STRUCTURE, Structure(arguments.result))
        with graph.inserting_before(output):
            output.args = (graph.call_module(STRUCTURE, tuple(results)),)
    graph.set_codegen(CodeGen())


def _add_arguments(graph: fx.Graph, arguments: Arguments, flat: Sequence[fx.Node]) -> None:
    """Add a placeholder for each argument; nested tensors are read from the interface."""
    begin = next(iter(graph.nodes))
    with graph.inserting_before(begin):
        placeholders = {
            argument.name: graph.create_node("placeholder", argument.name, argument.default, {})
            for argument in sorted(arguments.listed, key=lambda argument: bool(argument.default))  # defaults come last
        }
        checked = graph.call_module(INTERFACE, tuple(placeholders[argument.name] for argument in arguments.listed))
    for index, (node, argument) in enumerate(zip(flat, arguments.owners, strict=True)):
        new = placeholders[argument.name]
        if not isinstance(argument.shape, Leaf):
            with graph.inserting_before(begin):
                new = graph.call_function(operator.getitem, (checked, index))
        new.meta.update(node.meta)
        node.replace_all_uses_with(new)
    for node in flat:
        graph.erase_node(node)
