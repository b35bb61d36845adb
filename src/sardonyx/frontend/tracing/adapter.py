"""A module as the exporters call it: tensors in, tensors out, with the state that it keeps between calls."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import WriteUndo, has_own_state, unchanged, uncompiled
from sardonyx.frontend.running import memory_read, quietly
from sardonyx.frontend.tracing.structure import Flat, fixed_arguments, named_arguments

Path: TypeAlias = tuple[Any, ...]  # the keys from a module to a value: `_modules`, `layer`, `_buffers`, `count`
_TABLES = ("_modules", "_buffers", "_parameters")
_OWN = frozenset(vars(nn.Module()))  # attributes that every module has: tables, hooks, flags
_MOST_OWNERS = 100_000


class Slot(Struct, frozen=True, eq=False):
    """A value that a module stores, under one or several paths."""

    paths: tuple[Path, ...]
    value: Any

    @property
    def name(self) -> str:
        """The name of the first path."""
        return path_name(self.paths[0])


def path_name(path: Path) -> str:
    """Return a path as users write it: without torch's tables."""
    return ".".join(str(key) for key in path if key not in _TABLES)


def stored_values(module: nn.Module) -> dict[Path, Any]:
    """Return the values that a module and the objects in it store, by path."""
    return {
        (*path, *below): value
        for path, owner in _owners(module)
        for below, value in _entries(owner)
        if not has_own_state(value)
    }


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors that a module stores, under the names that their inputs have if they are state."""
    flat = Flat({path_name(path): value for path, value in stored_values(module).items()})
    return {leaf.name: leaf.tensor for leaf in flat.leaves}


def _owners(module: nn.Module) -> Iterator[tuple[Path, Any]]:
    """Yield the modules and other objects that may store values, nearest first."""
    waiting: deque[tuple[Path, Any]] = deque([((), module)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OWNERS:
        path, owner = waiting.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        yield path, owner
        for below, value in _entries(owner):
            waiting.extend(((*path, *below, *inner), item) for inner, item in _items(value) if has_own_state(item))


def _entries(owner: Any) -> Iterator[tuple[Path, Any]]:
    """Yield what an object stores: the values of its attributes, and those of a module's tables."""
    values = _vars(owner)
    for table in _TABLES if isinstance(owner, nn.Module) else ():
        yield from (((table, key), value) for key, value in values[table].items())
    yield from (((key,), value) for key, value in values.items() if key not in _OWN)


def _items(value: Any) -> Iterator[tuple[Path, Any]]:
    yield (), value
    if isinstance(value, dict):
        yield from (((key,), item) for key, item in cast("dict[Any, Any]", value).items())
    elif isinstance(value, (list, tuple)):
        yield from (((index,), item) for index, item in enumerate(cast("list[Any]", value)))


def _vars(owner: Any) -> Any:
    """Return what holds the values of an object: the object if it is a container."""
    is_container = isinstance(owner, (dict, list, tuple))
    return cast("Any", owner if is_container else vars(owner))


def _table(module: nn.Module, path: Path) -> dict[Any, Any]:
    """Return the dictionary that holds the value of a path."""
    table = _vars(module)
    for key in path[:-1]:
        table = _vars(table[key])
    return table


class State:
    """The tensors that a module keeps from call to call, each an input and an output of its graph.

    Args:
        slots: The values with these tensors, as they are before the first call.
        later: Their tensors after each call, in order.
        inputs: The arguments of each call.

    Attributes:
        names: The names of the tensors: their paths in the module.
        steps: The tensors before the first call, and after each.
        axes: The axes whose size changes from call to call, with a name; axes of always the same size share one.
    """

    def __init__(
        self, slots: Sequence[Slot], later: Sequence[Sequence[Tensor]], inputs: Sequence[Sequence[Tensor]]
    ) -> None:
        self._slots = list(slots)
        flat = Flat({slot.name: slot.value for slot in slots})
        self.names = flat.names
        self.steps = [[tensor.clone() for tensor in flat.tensors], *map(list, later)]
        self.inputs, self.calls = inputs, len(inputs)
        dims: dict[tuple[int, ...], str] = {}
        self.axes: dict[str, dict[int, str]] = {}
        for name, tensors in zip(self.names, zip(*self.steps, strict=True), strict=True):
            for axis, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
                if len(set(sizes)) > 1:
                    dim = dims.setdefault(sizes, f"{name.replace('.', '_')}_{axis}")
                    self.axes.setdefault(name, {})[axis] = dim

    @property
    def example(self) -> list[Tensor]:
        """The tensors to trace with: torch fixes axes of size 0 and 1, so those that grow have grown."""
        return self.steps[-1 if self.axes else 0]

    @contextlib.contextmanager
    def held(self, module: nn.Module, tensors: Sequence[Tensor]) -> Generator[None]:
        """Let a module have other tensors as its state; what it writes into are copies of them."""
        values = self._values(module).rebuilt([tensor.clone() for tensor in tensors])
        places = [(_table(module, path), path[-1], values[slot.name]) for slot in self._slots for path in slot.paths]
        before = [table[key] for table, key, _ in places]
        try:
            for table, key, value in places:
                table[key] = value
            yield
        finally:
            for (table, key, _), value in zip(places, before, strict=True):
                table[key] = value

    def read(self, module: nn.Module) -> list[Tensor]:
        """Return the current state of a module."""
        return self._values(module).tensors

    def _values(self, module: nn.Module) -> Flat:
        return Flat({slot.name: _table(module, slot.paths[0])[slot.paths[0][-1]] for slot in self._slots})


Feeds: TypeAlias = dict[str, torch.Tensor]
Axes: TypeAlias = Mapping[str, Mapping[int, str]]  # input -> axis -> name of the dimension
_PAST = "past_key_values"
INNER = "module"  # the attribute with the wrapped module: torch prefixes all names with it


class ModuleCall:
    """A call of a module on its example inputs, with the names of its flat inputs and outputs."""

    def __init__(self, module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Flatten the example; the module is not run."""
        self.module = module
        self._flat = Flat(named_arguments(module, args, kwargs))
        self._positional = len(args)
        self.fixed = fixed_arguments(module, args, kwargs)
        self._continues = any(name.startswith(f"{_PAST}.") for name in self._flat.names)
        self.state: State | None = None  # that the module keeps from call to call
        self._state_names: dict[str, str] = {}  # tensor of the state -> input
        self.outputs: list[str] = []  # known once the module has run, or was traced
        self.left_out: list[str] = []  # outputs that are no tensors, with their types
        self._names: list[str] = []
        self._tensor_outputs: frozenset[str] | None = None  # known once the module has run outside of an exporter
        self.read: frozenset[int] | None = None  # keys of the memory that the rehearsal read
        self._rehearsal: WriteUndo | None = None  # the writes of a run of the example outside of any exporter

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs: the arguments, then the state."""
        return [*self.arguments, *self.state_inputs]

    @property
    def arguments(self) -> list[str]:
        """The names of the tensors in the arguments of forward."""
        return self._flat.names

    @property
    def state_inputs(self) -> list[str]:
        """The names of the inputs that are state; the outputs that continue them have the same names with `_out`."""
        return [self._state_names[name] for name in self.state.names] if self.state is not None else []

    @property
    def state_axes(self) -> dict[str, dict[int, str]]:
        """The axes of the state whose size changes from call to call."""
        axes = self.state.axes if self.state is not None else {}
        return {self._state_names[name]: spec for name, spec in axes.items()}

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Copies of the example's tensors: a module may write into its inputs."""
        held = self.state.example if self.state is not None else []
        return tuple(tensor.clone() for tensor in (*self._flat.tensors, *held))

    @property
    def feeds(self) -> Feeds:
        """Copies of the example's tensors by the names of the inputs."""
        return dict(zip(self.inputs, self.tensors, strict=True))

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The element types of the module's weights and of the example."""
        return {tensor.dtype for tensor in (*self.tensors, *self.module.parameters(), *self.module.buffers())}

    def _with(self, **attributes: Any) -> ModuleCall:
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def with_module(self, module: torch.nn.Module) -> ModuleCall:
        """Return the same call of another module."""
        return self._with(module=module, outputs=[], left_out=[], read=None, _rehearsal=None)

    def with_arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> ModuleCall:
        """Return a call with other arguments of the same structure."""
        return self._with(_flat=Flat(named_arguments(self.module, args, kwargs)), _rehearsal=None)

    def with_state(self, state: State) -> ModuleCall:
        """Return the call with state that is given to the module and returned by it; the module has run before."""
        taken = {*self.arguments, *self.outputs}
        names = {name: name if taken.isdisjoint((name, continued(name))) else f"{name}_state" for name in state.names}
        left_out = list(self.left_out)
        return self._with(state=state, outputs=[], left_out=left_out, _rehearsal=None, _state_names=names)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the module's flat result on other tensors in place of the example's."""
        if self.state is None:
            return self.forward(tensors)
        arguments, held = tensors[: len(self.arguments)], tensors[len(self.arguments) :]
        with self.state.held(self.module, held):
            return (*self.forward(arguments), *self.state.read(self.module))

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the module's flat result on other arguments, with the state that it has."""
        values: dict[str, Any] = self._flat.rebuilt(tensors)
        arguments = list(values.items())
        args, kwargs = arguments[: self._positional], dict(arguments[self._positional :])
        result = self.module(*(value for _, value in args), **kwargs)
        flat, known = Flat(result), self._tensor_outputs
        leaves = [leaf for leaf in flat.leaves if known is None or leaf.name in known]  # torch traces sizes as tensors
        if self._continues:  # the caller already has the inputs that a call returns with its cache
            leaves = [leaf for leaf in leaves if not any(leaf.tensor is each for each in tensors)]
        if not leaves:
            raise ModelError(
                f"{type(self.module).__name__} returns {type(result).__name__} without a tensor in it",
                hint="return tensors, alone or in tuples, lists, dicts, dataclasses",
            )
        self._names = [leaf.name for leaf in leaves]
        self.outputs[:] = [*_output_names(self._names, taken=self.arguments), *map(continued, self.state_inputs)]
        if known is None:
            self.left_out[:] = [f"{name or 'output'} ({type(value).__name__})" for name, value in flat.others]
        return tuple(leaf.tensor for leaf in leaves)

    def rehearse(self) -> WriteUndo:
        """Run the example outside of any exporter, unless that was done.

        Returns:
            Its writes, so that they can be undone again after tracing.
        """
        if self._rehearsal is not None:
            return self._rehearsal
        with unchanged(self.module) as written, eagerly():
            self.read = memory_read(lambda: self(self.tensors))
        self.was_rehearsed(written)
        return written

    def was_rehearsed(self, written: WriteUndo) -> None:
        """Store the writes of the last run, and which outputs are tensors: a tracer shows sizes as tensors too."""
        self._rehearsal, self._tensor_outputs = written, frozenset(self._names)

    def memory_read(self) -> frozenset[int]:
        """Return the keys of the memory that the example reads; the module runs only if it was not rehearsed."""
        return memory_read(lambda: self.run(self.tensors)) if self.read is None else self.read

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Call the module outside of any exporter, without gradients or output; inputs and state are unchanged."""
        with unchanged(self.module), eagerly():
            return tuple(output.clone() for output in self([tensor.clone() for tensor in tensors]))


@contextlib.contextmanager
def eagerly() -> Generator[None]:
    """Run compiled functions as written, without gradients or output."""
    with uncompiled(), torch.no_grad(), quietly():
        yield


class Adapter(torch.nn.Module):
    """The module as the exporters call it."""

    def __init__(self, call: ModuleCall) -> None:
        super().__init__()
        self.module = call.module
        self._call = call
        self.training = call.module.training

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the module on flat tensors and return flat tensors."""
        return self._call(tensors)


def continued(name: str) -> str:
    """Return the name of the output that continues a state."""
    return f"{name}_out"


def _output_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return readable names: `output_0` for an element of a tuple, `present.…` for the returned cache."""
    result: list[str] = []
    for name in names:
        head, dot, tail = name.partition(".")
        if head.isdecimal():
            head = f"output_{head}"
        elif head == _PAST:
            head = "present"
        readable = head + dot + tail
        result.append(f"{readable}_out" if readable in taken or readable in result else readable)
    return result


class FixedDim(ModelError):
    """Torch fixed the size of a dimension that was to be dynamic."""

    def __init__(self, axis: str, dim: str, size: int) -> None:
        advice = ", or give an example of size 2 or more" if size < 2 else ""
        super().__init__(
            f"dimension {axis} ('{dim}') cannot be dynamic: the model fixes it at {size}",
            hint=f"leave it out of `dynamic`{advice}",
        )
        self.dim = dim
        self.why = f"torch fixes {axis} at this size"


def check_dynamic(captured: Any, names: Sequence[str], axes: Axes) -> None:
    """Raise FixedDim if torch fixed the size of a requested dimension: translating the graph takes most of the time."""
    placeholders = captured.graph.find_nodes(op="placeholder")[-len(names) :] if names else ()
    for name, node in zip(names, placeholders, strict=True):
        for axis, dim in axes.get(name, {}).items():
            if is_concrete_int(size := node.meta["val"].shape[axis]):
                raise FixedDim(f"{name}:{axis}", dim, int(size))
