"""The values that a module stores, and runs of the module with other tensors in place of some of them.

A graph has no state: what a forward writes into buffers, or stores on modules for its next call, must be an input and
an output. Values are found in buffers, parameters and attributes, in tuples, lists and dicts of them, and in objects.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct
from torch import Tensor, nn

from sardonyx.frontend.module_state import has_own_state
from sardonyx.frontend.tracing.structure import Flat

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
    """Yield a value, and the items of a container."""
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
        self.steps = [[leaf.tensor.clone() for leaf in flat.leaves], *map(list, later)]
        self.inputs, self.calls = inputs, len(inputs)
        self.axes = self._changing_axes()

    def _changing_axes(self) -> dict[str, dict[int, str]]:
        names: dict[tuple[int, ...], str] = {}
        axes: dict[str, dict[int, str]] = {}
        for name, tensors in zip(self.names, zip(*self.steps, strict=True), strict=True):
            for axis, sizes in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
                if len(set(sizes)) > 1:
                    dim = names.setdefault(sizes, f"{name.replace('.', '_')}_{axis}")
                    axes.setdefault(name, {})[axis] = dim
        return axes

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
        return [leaf.tensor for leaf in self._values(module).leaves]

    def _values(self, module: nn.Module) -> Flat:
        return Flat({slot.name: _table(module, slot.paths[0])[slot.paths[0][-1]] for slot in self._slots})
