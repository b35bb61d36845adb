"""Find the modules that a user names, and modules whose borders no rewrite may cross.

A module is named by tag, instance path, or a glob over either. Those with borders can still be extracted afterwards.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.ir import module_region
from sardonyx.ir.module_region import Flow, is_fixed
from sardonyx.ir.origins import origins
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Match
from sardonyx.ir.scopes import is_constant, label, scopes, values_read
from sardonyx.records.provenance import ROOT, UNTAGGED, Hierarchy, lineage, merge, module_of

_NAMES_SHOWN = 5  # names in a hint


def find_modules(hierarchy: Hierarchy, paths: Iterable[str], wanted: str) -> list[str]:
    """Return the instance paths that `wanted` names, among `paths` and the modules that contain them.

    An exact name takes precedence over a glob. `*` and `?` match within one part of a path or tag, `**` also across
    parts. A tag names the topmost module that has it: modules of `torch.nn` below it share its tag, and also have a
    longer one that ends with their own class. A module with several names can be found by each of them.

    Raises:
        UsageError: if there is no such module.
    """
    all_paths = _with_ancestors(paths)
    if wanted.strip("/") == ROOT:
        return [ROOT]
    first = hierarchy.aliases.get(wanted, wanted)
    for name in (wanted, first, *(other for other, alias in hierarchy.aliases.items() if alias == first)):
        if name in all_paths:
            return [name]
    tags = _tagged(hierarchy, all_paths)
    tag_name = "/" + wanted.strip("/")
    if tag_name in tags:
        return [tags[tag_name]]
    if "/" in wanted:
        matches = {tags[tag] for tag in _matching(tag_name, tags, "/")}
    else:
        matches = set(_matching(wanted, all_paths, "."))
    if not matches:
        untagged = all_paths.keys() == {ROOT} and not hierarchy.classes
        hint = UNTAGGED if untagged else _deeper(wanted, all_paths, tags) or _nearest_names(wanted, [*all_paths, *tags])
        raise UsageError(f"there is no module {wanted!r}", hint=hint)
    return [path for path in all_paths if path in matches]


def matching_modules(hierarchy: Hierarchy, paths: Iterable[str], pattern: str) -> list[str]:
    """Return the instance paths of a class of this name, or otherwise those that `find_modules` returns.

    Raises:
        UsageError: if there is no such module.
    """
    by_class = [
        path for path in _with_ancestors(paths) if hierarchy.classes.get(path, "").rpartition(".")[2] == pattern
    ]
    return sorted(by_class) or find_modules(hierarchy, paths, pattern)


def find_module(hierarchy: Hierarchy, paths: Iterable[str], wanted: str) -> str:
    """Return the one instance path that `wanted` names.

    Raises:
        UsageError: if no module or more than one has that name.
    """
    matches = find_modules(hierarchy, paths, wanted)
    if len(matches) > 1:
        shown = ", ".join(matches[:_NAMES_SHOWN]) + (" …" if len(matches) > _NAMES_SHOWN else "")
        raise UsageError(f"{wanted!r} names {len(matches)} modules where one is needed", hint=f"one of {shown}")
    return matches[0]


def _with_ancestors(paths: Iterable[str]) -> dict[str, None]:
    """Return all paths and the modules that contain them, each after its ancestors."""
    all_paths: dict[str, None] = {ROOT: None}
    for path in map(module_of, paths):
        if path not in all_paths:
            all_paths.update(dict.fromkeys(lineage(path)))
    return all_paths


def _tagged(hierarchy: Hierarchy, paths: Iterable[str]) -> dict[str, str]:
    """Return the topmost path for every tag, first the usual tags, then those that include modules of torch.nn."""
    tops: dict[str, str] = {}
    ordered = sorted(paths, key=lambda path: path.count(".") + bool(path))
    for torch_nn in (False, True):
        for path in ordered:
            tops.setdefault(hierarchy.tag(path, torch_nn=torch_nn), path)
    return tops


def _matching(pattern: str, names: Iterable[str], separator: str) -> list[str]:
    """Return the names that match a glob; `**.` also matches nothing, so that `**.attn` finds `attn`."""
    escaped = re.escape(separator)
    within = f"[^{escaped}]"
    translations = {"**" + separator: f"(?:.*{escaped})?", "**": ".*", "*": within + "*", "?": within}
    pieces = re.split(rf"(\*\*{escaped}|\*\*|\*|\?)", pattern)
    expression = re.compile("".join(translations.get(piece) or re.escape(piece) for piece in pieces))
    return [name for name in names if expression.fullmatch(name)]


def _deeper(wanted: str, paths: Iterable[str], tags: Iterable[str]) -> str | None:
    """Return a hint for a glob that would match modules at another depth, or None."""
    separator, names, root = ("/", tags, "/") if "/" in wanted else (".", paths, "")
    if "*" not in wanted:
        return None
    deeper = f"{root}**{separator}" + re.sub(r"^(\*+[./])+", "", wanted.strip("/"))
    found = _matching(deeper, names, separator)
    if not found:
        return None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"* matches one part of a name, ** any number of them: {deeper!r} names {found[0]}{more}"


def _nearest_names(wanted: str, names: list[str]) -> str:
    """Return a hint with the names that end the same way, otherwise those that are spelled similarly."""
    tail = wanted.strip("/.")
    near = [name for name in names if tail and name.endswith(("." + tail, "/" + tail))]
    near = near[:_NAMES_SHOWN] or difflib.get_close_matches(wanted, names, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else "`sardonyx inspect` shows the modules"


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
        borders = cls(path for pattern in patterns for path in matching_modules(hierarchy, running, pattern))
        if ROOT in borders.modules:
            raise UsageError("the model itself has no border to keep", hint="name one of its modules")
        flow = Flow(model)
        for path in sorted(borders.modules):
            for call in module_region.calls_of(flow, path):
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
            is_read_anew = value.producer() not in new and value not in operands and not is_fixed(value)
            if is_read_anew and cell != (other := self._cell_of(value)):
                raise _crosses(cell ^ other)
        for old, value in pairs:
            if value.producer() not in new or value.producer() is None:
                self._check_bypass(cell, old, value)

    def _check_bypass(self, cell: Cell, old: ir.Value, value: ir.Value) -> None:
        """Check a replacement by a value that existed before, or by a constant.

        For cell(old) = C, cell(value) = S and the cell R of a consumer, the modules C - R - S no longer produce what is
        read outside of them, and a value in (S & R) - C would now stay inside a module that it left before.
        """
        producer = value.producer()
        is_constant_value = value.const_value is not None or (producer is not None and is_constant(producer))
        source = OUTSIDE if is_constant_value else self._cell_of(value)
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
        cells = set(map(self._of_path, origins(node)))
        return cells.pop() if len(cells) == 1 else OUTSIDE.union(*cells, {_PARTLY} if cells else ())

    def _cell_of(self, value: ir.Value) -> Cell:
        producer = value.producer()
        return OUTSIDE if producer is None else self.cell(producer)

    def _of_path(self, path: str) -> Cell:
        if path not in self._cells:
            parts = path.split(".")
            prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            self._cells[path] = frozenset(prefix for prefix in prefixes if module_of(prefix) in self.modules)
        return self._cells[path]


def _crosses(modules: Iterable[str]) -> Impossible:
    return Impossible(f"it crosses the border of module {max(modules)}, which is kept")
