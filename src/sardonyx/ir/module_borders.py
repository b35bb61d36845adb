"""Modules whose borders no rewrite may cross, so that each of them can still be extracted afterwards.

The cell of a node is the set of kept modules (call by call) that contain its origins. A rewrite
- replaces nodes of one cell only,
- keeps producing, inside a kept module, the values of it that are read outside, and
- reads no value of another cell that the matched nodes did not read.

Rewrites within one cell are not restricted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.ir import module_region
from sardonyx.ir.module_patterns import matching_modules
from sardonyx.ir.module_region import Flow, is_fixed
from sardonyx.ir.origins import origins
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Match
from sardonyx.ir.scopes import is_constant, label, scopes, values_read
from sardonyx.provenance import ROOT, Hierarchy, Origins, merge, module_of

Cell = frozenset[str]  # instance paths of calls of kept modules
OUTSIDE: Cell = frozenset()
_PARTLY = ""  # in the cell of a node only some of whose origins are in these modules; no other node may join it


class Borders:
    """The kept modules of one model; none by default."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        """Keep the modules at these instance paths."""
        self.modules = frozenset(modules)
        self._cells: dict[str, Cell] = {}

    @classmethod
    def of(cls, model: ir.Model, hierarchy: Hierarchy, patterns: Sequence[str]) -> Borders:
        """Return the borders of the modules that the patterns name: paths, tags, globs or class names.

        Raises:
            UsageError: if a pattern names no module that runs, or one whose border an earlier rewrite crossed.
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
                        f"{call} no longer has a border: {label(straddling[0])} also does the work of other modules",
                        hint="use the file that this one was optimized from",
                    )
        return borders

    def check_nodes(self, match: Match) -> None:
        """Refuse a rewrite whose nodes are in different cells.

        Raises:
            Impossible: naming the module whose border it crosses.
        """
        if not self.modules:
            return
        nodes = [node for node in match.nodes if not is_constant(node)] + ([match.survivor] if match.survivor else [])
        cells = {self.cell(node) for node in nodes}
        if len(cells) > 1:
            first, *others = cells
            raise _crosses(first.union(*others) - first.intersection(*others))

    def check_values(self, match: Match, pairs: Sequence[tuple[ir.Value, ir.Value]], new: Sequence[ir.Node]) -> None:
        """Refuse a rewrite that changes which values cross a border.

        Raises:
            Impossible: naming the module whose inputs or outputs would change.
        """
        if not self.modules:
            return
        cell = self.own(match)
        operands = {value for node in match.nodes for value in values_read(node)}
        for value in (value for node in new for value in node.inputs if value is not None):
            if value.producer() not in new and value not in operands and not is_fixed(value):
                self._check_same(cell, self._cell_of(value))
        for old, value in pairs:
            if value.producer() not in new or value.producer() is None:
                self._check_bypass(cell, old, value)

    def _check_same(self, cell: Cell, other: Cell) -> None:
        if cell != other:
            raise _crosses(cell ^ other)

    def _check_bypass(self, cell: Cell, old: ir.Value, value: ir.Value) -> None:
        """Check a replacement by a value that existed before, or by a constant.

        For cell(old) = C, cell(value) = S and the cell R of a consumer, the modules C - R - S no longer produce what is
        read outside of them, and a value in (S & R) - C would now stay inside a module that it left before.
        """
        source = OUTSIDE if _is_constant_value(value) else self._cell_of(value)
        readers = [self.cell(reader) for reader in old.consumers()] + ([OUTSIDE] if old.is_graph_output() else [])
        for reader in readers:
            lost = cell - reader - source  # modules that would no longer produce it for a consumer outside
            joined = (source & reader) - cell  # modules that it would no longer leave and reenter
            if lost or joined:
                raise _crosses(lost or joined)

    def own(self, match: Match) -> Cell:
        """Return the cell of a match."""
        return next((self.cell(node) for node in match.nodes if not is_constant(node)), OUTSIDE)

    def is_foreign(self, node: ir.Node, match: Match) -> bool:
        """Return whether the node is a constant of another cell, whose origins the replacement does not get."""
        return bool(self.modules) and is_constant(node) and self.cell(node) != self.own(match)

    def cell(self, node: ir.Node) -> Cell:
        """Return the kept modules that contain a node; marked if they contain only some of its origins."""
        return self._of(origins(node))

    def _cell_of(self, value: ir.Value) -> Cell:
        producer = value.producer()
        return OUTSIDE if producer is None else self.cell(producer)

    def _of(self, paths: Origins) -> Cell:
        cells = set(map(self._of_path, paths))
        return cells.pop() if len(cells) == 1 else OUTSIDE.union(*cells, {_PARTLY} if cells else ())

    def _of_path(self, path: str) -> Cell:
        if path not in self._cells:
            parts = path.split(".")
            prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            self._cells[path] = frozenset(prefix for prefix in prefixes if module_of(prefix) in self.modules)
        return self._cells[path]


def _named(hierarchy: Hierarchy, running: Sequence[str], pattern: str) -> list[str]:
    matches = matching_modules(hierarchy, running, pattern)
    if ROOT in matches:
        raise UsageError("the model itself has no border to keep", hint="name one of its modules")
    return matches


def _crosses(modules: Iterable[str]) -> Impossible:
    return Impossible(f"it crosses the border of module {max(modules)}, which is kept")


def _is_constant_value(value: ir.Value) -> bool:
    producer = value.producer()
    return is_fixed(value) or (producer is not None and is_constant(producer)) or value.const_value is not None
