"""The live module tree: every module's names and class, and how a chain of running modules is written as a path."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from sardonyx.provenance import ROOT, Hierarchy, ModuleTable, is_within

_LIKE_A_CALL = re.compile(r"@(?=\d+(\.|$))")  # in a module's own name, where it would read as the number of a call


class ModuleStep(NamedTuple):
    """One running module of a chain, and something that tells its calls apart.

    A tuple, since chains of them are looked up for every module that runs and it is hashed fastest.
    """

    module: torch.nn.Module
    call: Hashable


class LiveTree:
    """The modules of one model by all their names."""

    def __init__(self, root: torch.nn.Module) -> None:
        """Learn the tree; nothing of the model is kept but its modules."""
        self.root = root
        self._names: dict[torch.nn.Module, list[str]] = defaultdict(list)
        everything = cast("Iterable[tuple[str, torch.nn.Module]]", root.named_modules(remove_duplicate=False))
        for path, module in everything:
            self._names[module].append(_LIKE_A_CALL.sub("%40", path))
        self._calls: dict[str, list[Hashable]] = defaultdict(list)
        self._known: dict[tuple[ModuleStep, ...], _Place] = {(): _Place(ROOT, ROOT)}

    def find(self, path: str) -> torch.nn.Module | None:
        """The module of a path without marks of calls, if there is one."""
        return next((module for module, names in self._names.items() if path in names), None)

    def hierarchy(self, *, include_torch_nn: bool = False) -> Hierarchy:
        """The table of all modules, from which tags follow."""
        classes = {path: _qualified(module) for module, names in self._names.items() for path in names}
        aliases = {other: names[0] for names in self._names.values() for other in names[1:]}
        return Hierarchy((), ModuleTable.of(classes, aliases, include_torch_nn=include_torch_nn))

    def path(self, chain: Sequence[ModuleStep]) -> str:
        """The path of the last module of a chain of calls, by the names that the callers know it under.

        A module goes by the name that lies below its nearest caller. Where a caller already ran it, the second and
        later calls are marked; a module that calls itself is called once more where it was called first.
        """
        return self._place(tuple(chain)).path

    def _place(self, chain: tuple[ModuleStep, ...]) -> _Place:
        if chain not in self._known:
            self._known[chain] = self._find(chain)
        return self._known[chain]

    def _find(self, chain: tuple[ModuleStep, ...]) -> _Place:
        step = chain[-1]
        if step.module is self.root:
            return _Place(ROOT, ROOT)
        above, name = self._caller(chain[:-1], step.module)
        tail = name[len(above.name) :].lstrip(".")
        path = f"{above.path}.{tail}" if above.path else tail
        calls = self._calls[path]
        if step.call not in calls:
            calls.append(step.call)
        place = calls.index(step.call)
        return _Place(f"{path}@{place}" if place else path, name)

    def _caller(self, chain: tuple[ModuleStep, ...], module: torch.nn.Module) -> tuple[_Place, str]:
        """The nearest module on the way that holds the called one, and what it is called there."""
        names = self._names[module]
        for length in range(len(chain), 0, -1):
            above = self._place(chain[:length])
            for name in names:
                if name != above.name and is_within(name, above.name):
                    return above, name
        return self._known[()], names[0]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a call is: its path with the calls marked, and the name of its module."""

    path: str
    name: str


def _qualified(module: torch.nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"
