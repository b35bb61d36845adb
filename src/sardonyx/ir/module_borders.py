"""Modules whose borders no rewrite may cross, so that each of them can still be cut out afterwards.

The nodes of a model lie in cells: the kept modules, call by call, that a node's origins are inside of. A rewrite stays
within one cell, lets a kept module go on making what is read outside of it, and reads nothing from another cell that
was not read there before. Rewrites inside a module and rewrites outside of it are as free as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.ir import module_region
from sardonyx.ir.module_patterns import find_modules
from sardonyx.ir.module_region import Flow, is_fixed
from sardonyx.ir.origins import origins
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Match
from sardonyx.ir.scopes import bodies, is_constant, label, scopes
from sardonyx.provenance import ROOT, Hierarchy, Origins, lineage, merge, module_of

Cell = frozenset[str]  # paths of kept modules with the marks of their calls
OUTSIDE: Cell = frozenset()
_HALF = ""  # in the cell of a node that is in these modules only by halves: such are mixed with nothing else


class Borders:
    """The kept modules of one model; none of them by default."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        """Keep the modules at these instance paths."""
        self.modules = frozenset(modules)
        self._cells: dict[str, Cell] = {}

    @classmethod
    def of(cls, model: ir.Model, hierarchy: Hierarchy, patterns: Sequence[str]) -> Borders:
        """The modules that patterns name: paths, tags, globs, or names of classes.

        Raises:
            UsageError: where a pattern names none that runs, or one whose border an earlier rewrite crossed.
        """
        if not patterns:
            return cls()
        running = sorted(merge(origins(node) for scope in scopes(model) for node in scope.graph))
        borders = cls(path for pattern in patterns for path in _named(hierarchy, running, pattern))
        flow = Flow(model)
        for path in sorted(borders.modules):
            for call in module_region.calls(flow, path):
                if straddling := module_region.members(flow, call)[1]:
                    raise UsageError(
                        f"the border of {call} is gone: {label(straddling[0])} also does the work of other modules",
                        hint="keep a module of the file that it was optimized from",
                    )
        return borders

    def check_nodes(self, match: Match) -> None:
        """A rewrite takes over the work of one cell.

        Raises:
            Impossible: naming the module whose border it crosses.
        """
        if not self.modules:
            return
        nodes = [node for node in match.nodes if not is_constant(node)] + ([match.heir] if match.heir else [])
        cells = {self.cell(node) for node in nodes}
        if len(cells) > 1:
            first, *others = cells
            raise _crosses(first.union(*others) - first.intersection(*others))

    def check_values(self, match: Match, pairs: Sequence[tuple[ir.Value, ir.Value]], new: Sequence[ir.Node]) -> None:
        """What crosses a border stays the same.

        Raises:
            Impossible: naming the module that would take in or give out something else.
        """
        if not self.modules:
            return
        cell = self.own(match)
        read = {value for node in match.nodes for value in _read(node)}
        for value in (value for node in new for value in node.inputs if value is not None):
            if value.producer() not in new and value not in read and not is_fixed(value):
                self._check_same(cell, self._cell_of(value))
        for old, value in pairs:
            if value.producer() not in new or value.producer() is None:
                self._check_bypass(cell, old, value)

    def _check_same(self, cell: Cell, other: Cell) -> None:
        if cell != other:
            raise _crosses(cell ^ other)

    def _check_bypass(self, cell: Cell, old: ir.Value, value: ir.Value) -> None:
        """A value that was there before, or a constant, takes the place of one that a node made."""
        source = OUTSIDE if _is_constant_value(value) else self._cell_of(value)
        readers = [self.cell(reader) for reader in old.consumers()] + ([OUTSIDE] if old.is_graph_output() else [])
        for reader in readers:
            lost = cell - reader - source  # modules that made it, for somebody outside
            joined = (source & reader) - cell  # modules that it left and came back to
            if lost or joined:
                raise _crosses(lost or joined)

    def own(self, match: Match) -> Cell:
        """The cell that a match lies in."""
        return next((self.cell(node) for node in match.nodes if not is_constant(node)), OUTSIDE)

    def is_foreign(self, node: ir.Node, match: Match) -> bool:
        """Whether a node is a constant from elsewhere, of which what comes of a match is no part."""
        return bool(self.modules) and is_constant(node) and self.cell(node) != self.own(match)

    def cell(self, node: ir.Node) -> Cell:
        """The kept modules that a node is in; marked where only half of it is."""
        return self._of(origins(node))

    def _cell_of(self, value: ir.Value) -> Cell:
        producer = value.producer()
        return OUTSIDE if producer is None else self.cell(producer)

    def _of(self, found: Origins) -> Cell:
        cells = set(map(self._of_path, found))
        return cells.pop() if len(cells) == 1 else OUTSIDE.union(*cells, {_HALF} if cells else ())

    def _of_path(self, path: str) -> Cell:
        if path not in self._cells:
            parts = path.split(".")
            above = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            self._cells[path] = frozenset(each for each in above if module_of(each) in self.modules)
        return self._cells[path]


def _named(hierarchy: Hierarchy, running: Sequence[str], pattern: str) -> list[str]:
    run = {above for path in set(map(module_of, running)) for above in lineage(path)}
    by_class = {path for path in run if hierarchy.classes.get(path, "").rpartition(".")[2] == pattern}
    found = sorted(by_class) or find_modules(hierarchy, running, pattern)
    if ROOT in found:
        raise UsageError("the model itself has no border to keep", hint="name a module of it")
    return found


def _crosses(modules: Iterable[str]) -> Impossible:
    return Impossible(f"it crosses the border of module {max(modules)}, which is to be kept")


def _is_constant_value(value: ir.Value) -> bool:
    producer = value.producer()
    return is_fixed(value) or (producer is not None and is_constant(producer)) or value.const_value is not None


def _read(node: ir.Node) -> list[ir.Value]:
    inner = [value for _, body in bodies(node) for each in body for value in _read(each)]
    return [*(value for value in node.inputs if value is not None), *inner]
