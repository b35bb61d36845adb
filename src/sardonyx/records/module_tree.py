"""Build the module tree: counts by dotted path become a tree with totals, in which identical siblings are one branch.

A model with twelve equal layers is shown as one layer, twelve times. The code does not recurse: the paths come from
files, which may nest modules to any depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field
from msgspec.structs import replace

Numbers = tuple[int, ...]


class Entry(Struct, frozen=True):
    """The numbers of one module without its children."""

    path: str  # dotted; "" is the model
    tag: str  # the kind of module, "" if unknown
    numbers: Numbers


class Branch(Struct, frozen=True):
    """A module, or several identical siblings shown as one; the numbers are those of a single one."""

    label: str
    path: str  # of the first of the siblings
    tag: str
    copies: int
    own: Numbers
    total: Numbers  # with the children
    children: tuple[Branch, ...]
    others: tuple[Branch, ...] = ()  # the siblings that it represents


class ModuleRow(Struct, frozen=True):
    """A branch as a row of a table; the numbers are summed over all copies of it and of its parents."""

    depth: int
    branch: Branch
    own: Numbers
    total: Numbers
    hidden: int  # children that are too deep to be shown
    alike: tuple[Branch, ...] = ()  # all copies of it, also in copies of its parents

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all modules that the row represents."""
        return tuple(branch.path for branch in self.alike)


class _Spot(Struct):
    """A module of the tree during construction."""

    name: str
    path: str
    tag: str
    own: Numbers
    children: dict[str, _Spot] = field(default_factory=dict[str, "_Spot"])
    branch: Branch | None = None
    shape: int = -1  # equal for equal subtrees, apart from the names of their roots


def build(entries: Iterable[Entry], width: int, *, fold: bool = True) -> Branch:
    """Build the tree of `entries`, each with `width` numbers; missing parents are added.

    With `fold`, equal numbered siblings become one branch, and a container that owns nothing and has one child is
    merged with it.
    """
    order = _grow(entries, width)
    shapes: dict[object, int] = {}
    for spot in reversed(order):  # children come after their parents
        spots = list(spot.children.values())
        if all(map(_numbered, spots)):
            spots.sort(key=lambda child: int(child.name))
        key = (spot.tag, spot.own, tuple((child.name, child.shape) for child in spots))
        spot.shape = shapes.setdefault(key, len(shapes))
        children = _fold(spots) if fold else [_done(child) for child in spots]
        total = spot.own
        for child in children:
            total = _sum(total, tuple(n * child.copies for n in child.total))
        branch = Branch(spot.name, spot.path, spot.tag, 1, spot.own, total, tuple(children))
        if fold and spot.path and len(children) == 1 and not spot.tag and not any(spot.own):
            branch = replace(children[0], label=f"{spot.name}.{children[0].label}")
        spot.branch = branch
        spot.children.clear()
    return _done(order[0])


def rows(root: Branch, depth: int | None = None) -> Iterator[ModuleRow]:
    """Yield the rows of the tree from the top, down to `depth` levels below the root."""
    stack: list[tuple[int, tuple[Branch, ...]]] = [(0, (root, *root.others))]
    while stack:
        level, alike = stack.pop()
        branch, copies = alike[0], len(alike)
        shown = depth is None or level < depth
        yield ModuleRow(
            depth=level,
            branch=branch,
            own=tuple(n * copies for n in branch.own),
            total=tuple(n * copies for n in branch.total),
            hidden=0 if shown else len(branch.children),
            alike=alike,
        )
        if shown:
            indices = reversed(range(len(branch.children)))  # equal branches have equal children in the same order
            stack.extend((level + 1, tuple(_at(index, alike))) for index in indices)


def _at(index: int, alike: Iterable[Branch]) -> Iterator[Branch]:
    """Yield the child at an index of each branch, and the branches that it represents."""
    for branch in alike:
        yield branch.children[index]
        yield from branch.children[index].others


def _grow(entries: Iterable[Entry], width: int) -> list[_Spot]:
    """Return every module on a path to an entry, parents before children."""
    zero = (0,) * width
    root = _Spot("", "", "", zero)
    order = [root]
    for entry in entries:
        spot, prefix = root, ""
        for name in entry.path.split(".") if entry.path else ():
            prefix = f"{prefix}.{name}" if prefix else name
            if name not in spot.children:
                spot.children[name] = _Spot(name, prefix, "", zero)
                order.append(spot.children[name])
            spot = spot.children[name]
        spot.tag = spot.tag or entry.tag
        spot.own = _sum(spot.own, entry.numbers)
    return order


def _fold(spots: list[_Spot]) -> list[Branch]:
    """Return the children, with each run of consecutive numbers and equal shape as one branch."""
    branches: list[Branch] = []
    start = 0
    for end in range(1, len(spots) + 1):
        if end < len(spots) and _follows(spots[end - 1], spots[end]):
            continue
        first, name = _done(spots[start]), spots[start].name
        if end - start > 1:  # the label continues after the name if a container was merged with its child
            label = f"{name}…{spots[end - 1].name}{first.label.removeprefix(name)}"
            rest = [branch for spot in spots[start + 1 : end] for branch in (_done(spot), *_done(spot).others)]
            others = (*first.others, *rest)
            first = replace(first, label=label, copies=1 + len(others), others=others)
        branches.append(first)
        start = end
    return branches


def _numbered(spot: _Spot) -> bool:
    return spot.name.isdecimal() and len(spot.name) < 10


def _follows(left: _Spot, right: _Spot) -> bool:
    numbered = _numbered(left) and _numbered(right)
    return numbered and int(right.name) == int(left.name) + 1 and left.shape == right.shape


def _done(spot: _Spot) -> Branch:
    assert spot.branch is not None, "children are complete before their parents"
    return spot.branch


def _sum(left: Numbers, right: Numbers) -> Numbers:
    return tuple(a + b for a, b in zip(left, right, strict=True))
