"""The module tree of a live model: names and classes of its modules, and the path of a chain of calls."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections import defaultdict
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from msgspec import Struct
from torch.fx import graph

from sardonyx.frontend.module_state import replaced
from sardonyx.frontend.tracing.adapter import INNER
from sardonyx.records.provenance import ROOT, Hierarchy, ModuleTable, is_within

_LIKE_A_CALL = re.compile(r"@(?=\d+(\.|$))")  # in a module's own name, where it would read as a call number


class ModuleStep(NamedTuple):
    """One running module of a chain, with a value that distinguishes its calls.

    It is a tuple because chains are looked up for every call and tuples hash fastest.
    """

    module: torch.nn.Module
    call: Hashable


class LiveTree:
    """The modules of one model with all their names."""

    def __init__(self, root: torch.nn.Module) -> None:
        """Index the modules; nothing else of the model is kept."""
        self.root = root
        self._names: dict[torch.nn.Module, list[str]] = defaultdict(list)
        everything = cast("Iterable[tuple[str, torch.nn.Module]]", root.named_modules(remove_duplicate=False))
        for path, module in everything:
            self._names[module].append(_LIKE_A_CALL.sub("%40", path))
        self._calls: dict[str, list[Hashable]] = defaultdict(list)
        self._locations: dict[tuple[ModuleStep, ...], _Location] = {(): _Location(ROOT, ROOT)}

    def find(self, path: str) -> torch.nn.Module | None:
        """Return the module at a path without call numbers, or None."""
        return next((module for module, names in self._names.items() if path in names), None)

    def hierarchy(self, *, include_torch_nn: bool = False) -> Hierarchy:
        """Return the table of all modules, from which tags are built."""
        classes = {
            path: f"{type(module).__module__}.{type(module).__qualname__}"
            for module, names in self._names.items()
            for path in names
        }
        aliases = {other: names[0] for names in self._names.values() for other in names[1:]}
        return Hierarchy((), ModuleTable.of(classes, aliases, include_torch_nn=include_torch_nn))

    def path(self, chain: Sequence[ModuleStep]) -> str:
        """Return the path of the last module of a chain of calls.

        A module with several names is named by the one below its nearest caller. The second and later calls by the same
        caller get a call number (`@1`). A module that calls itself counts as another call at the first call's path.
        """
        return self._location(tuple(chain)).path

    def _location(self, chain: tuple[ModuleStep, ...]) -> _Location:
        if chain not in self._locations:
            self._locations[chain] = self._locate(chain)
        return self._locations[chain]

    def _locate(self, chain: tuple[ModuleStep, ...]) -> _Location:
        step = chain[-1]
        if step.module is self.root:
            return _Location(ROOT, ROOT)
        caller, name = self._caller(chain[:-1], step.module)
        tail = name[len(caller.name) :].lstrip(".")
        path = f"{caller.path}.{tail}" if caller.path else tail
        calls = self._calls[path]
        if step.call not in calls:
            calls.append(step.call)
        number = calls.index(step.call)
        return _Location(f"{path}@{number}" if number else path, name)

    def _caller(self, chain: tuple[ModuleStep, ...], module: torch.nn.Module) -> tuple[_Location, str]:
        """Return the nearest running module that contains the called one, and the called one's name below it."""
        names = self._names[module]
        for length in range(len(chain), 0, -1):
            caller = self._location(chain[:length])
            for name in names:
                if name != caller.name and is_within(name, caller.name):
                    return caller, name
        return self._locations[()], names[0]


class _Location(Struct, frozen=True):
    """The path of a call with call numbers, and the name of its module."""

    path: str
    name: str


# Modules in graphs of torch.export and torch.fx: the paths of their nodes, and code for unusual names.


def path_of(stack: Mapping[str, tuple[str, object]], tree: LiveTree, prefix: str = INNER) -> str | None:
    """Return the path of the last module of torch's stack; None if torch lost it, and for the adapter's own nodes."""
    steps: list[ModuleStep] = []
    for key, (name, _) in stack.items():
        inner = name.removeprefix(prefix).removeprefix(".")
        try:
            module = tree.root.get_submodule(inner)
        except AttributeError:  # torch's placeholder for an operation whose module it lost
            return None
        if name:
            steps.append(ModuleStep(module, key))
    return tree.path(steps) if steps else None


@contextlib.contextmanager
def quoted_names() -> Generator[None]:
    """Make torch.fx generate valid code for module names with quotes or line ends, or that are keywords."""

    def quoted(base: str, target: str) -> str:
        for name in target.split("."):
            is_identifier = name.isidentifier() and not keyword.iskeyword(name)
            base = f"{base}.{name}" if is_identifier else f"getattr({base}, {name!r})"
        return base

    with replaced(graph, "_format_target", quoted):  # torch.fx's code generator, which has no public API for names
        yield
