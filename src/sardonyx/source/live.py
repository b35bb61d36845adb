"""The live module tree: every module's names and class, and how a chain of running modules is written as a path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from sardonyx.provenance import ROOT, Hierarchy, ModuleTable, is_within


@dataclass(frozen=True, slots=True, eq=True)
class Step:
    """One running module of a chain, and something that tells its calls apart."""

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
            self._names[module].append(path)
        self._calls: dict[tuple[str, str], list[Hashable]] = defaultdict(list)
        self._known: dict[tuple[Step, ...], str] = {}

    def hierarchy(self, *, include_torch_nn: bool = False) -> Hierarchy:
        """The table of all modules, from which tags follow."""
        classes = {path: _qualified(module) for module, names in self._names.items() for path in names}
        aliases = {other: names[0] for names in self._names.values() for other in names[1:]}
        return Hierarchy((), ModuleTable.of(classes, aliases, include_torch_nn=include_torch_nn))

    def knows(self, module: torch.nn.Module) -> bool:
        """Whether a module belongs to the tree."""
        return module in self._names

    def path(self, chain: Sequence[Step]) -> str:
        """The path of the last module of a chain of calls, by the names that the callers know it under.

        A module with several names is called by the one that lies below its caller. The second and later calls under
        the same caller are marked.
        """
        key = tuple(chain)
        if key not in self._known:
            self._known[key] = self._path(key)
        return self._known[key]

    def _path(self, chain: tuple[Step, ...]) -> str:
        if not chain:
            return ROOT
        above = self.path(chain[:-1])
        step = chain[-1]
        if step.module is self.root:
            return ROOT
        caller = self._plain(chain[:-1])
        plain = self._name(step.module, caller)
        inside = is_within(plain, caller)
        calls = self._calls[above if inside else ROOT, plain]
        if step.call not in calls:
            calls.append(step.call)
        place = calls.index(step.call)
        tail = plain[len(caller) :].lstrip(".") if inside else plain
        marked = f"{tail}@{place}" if place else tail
        return f"{above}.{marked}" if inside and above else marked

    def _plain(self, chain: tuple[Step, ...]) -> str:
        plain = ROOT
        for step in chain:
            plain = self._name(step.module, plain)
        return plain

    def _name(self, module: torch.nn.Module, caller: str) -> str:
        names = self._names[module]
        return next((name for name in names if is_within(name, caller)), names[0])


def _qualified(module: torch.nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"
