"""Which modules a document about a model speaks of: those with a tag of their own, and what lies below what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from sardonyx.errors import UsageError
from sardonyx.ir.module_patterns import find_modules
from sardonyx.provenance import ROOT, Hierarchy, module_of


class Layout:
    """Which modules there are: those with a tag of their own, on the way from the model down to every operation."""

    def __init__(self, hierarchy: Hierarchy, torch_nn: bool) -> None:
        self.hierarchy = hierarchy
        self._torch_nn = torch_nn
        self._chains: dict[str, tuple[str, ...]] = {}
        self.paths: dict[str, str] = {}  # tag -> the topmost module that has it
        self.parents: dict[str, str | None] = {}
        (self.top,) = self.chain(ROOT)  # the tag of the model itself

    def tag(self, path: str) -> str:
        """The tag of a module."""
        return self.hierarchy.tag(path, torch_nn=self._torch_nn)

    def chain(self, path: str) -> tuple[str, ...]:
        """The tags from the model down to a module."""
        path = module_of(path)
        known = self._chains.get(path)
        if known is None:
            known = self._chains[path] = self._extended(path)
        return known

    def _extended(self, path: str) -> tuple[str, ...]:
        chain: dict[str, None] = {}
        parts = path.split(".") if path else []
        for depth in range(len(parts) + 1):
            above = ".".join(parts[:depth])
            tag = self.tag(above)
            if tag not in self.paths:
                self.paths[tag] = above
                self.parents[tag] = next(reversed(chain), None)
            chain[tag] = None
        return tuple(chain)

    def select(self, wanted: str) -> list[str]:
        """The tags that a name or a glob stands for."""
        if wanted in self.paths:
            return [wanted]
        paths = find_modules(self.hierarchy, self._chains, wanted)
        tags = {path: self.tag(path) for path in paths}
        own = [tag for path, tag in tags.items() if self.paths.get(tag) == path]
        if not own:
            hint = "`include_torch_nn` gives torch's own modules one; containers have none"
            raise UsageError(f"{paths[0]} has no tag of its own", hint=hint)
        return own

    def below(self, tags: Iterable[str]) -> set[str]:
        """These modules and all below them."""
        kept = set(tags)
        for tag, parent in self.parents.items():  # parents come first
            if parent in kept:
                kept.add(tag)
        return kept

    def children(self, among: Container[str]) -> dict[str, list[str]]:
        """The modules directly below each, of those asked about; numbered ones by number, whatever runs first."""
        children: dict[str, list[str]] = defaultdict(list)
        for tag, parent in self.parents.items():
            if parent is not None and tag in among:
                children[parent].append(tag)
        return {parent: self._in_order(tags) for parent, tags in children.items()}

    def _in_order(self, tags: list[str]) -> list[str]:
        containers: dict[str, int] = {}
        keys: dict[str, tuple[int, int, str]] = {}
        for tag in tags:
            container, _, last = self.paths[tag].rpartition(".")
            place = containers.setdefault(container, len(containers))
            digits = last.lstrip("0") if last.isdecimal() else ""  # fewer digits are a smaller number, however many
            keys[tag] = (place, len(digits), digits)
        return sorted(tags, key=keys.__getitem__)

    def from_the_top(self, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """All modules, each followed by what is below it."""
        stack = [tag for tag, parent in reversed(self.parents.items()) if parent is None]
        while stack:
            tag = stack.pop()
            yield tag
            stack.extend(reversed(children.get(tag, ())))
