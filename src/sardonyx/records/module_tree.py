"""The module tree: counts per dotted path become a tree with totals, in which identical siblings are one branch.

A model with twelve equal layers should read as one layer, twelve times. Nothing here knows ONNX, and nothing recurses:
the paths come from files, and a file may nest as deep as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one module owns itself, without its children."""

    path: str  # dotted; "" is the model
    tag: str  # what kind of module it is, "" when unknown
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class Branch:
    """A module, or several identical siblings shown as one; the numbers are those of a single one."""

    label: str
    path: str  # of the first of the siblings
    tag: str
    copies: int
    own: Numbers
    total: Numbers  # with the children
    children: tuple[Branch, ...]
    others: tuple[Branch, ...] = field(default=(), compare=False, repr=False)  # the siblings it is shown for


@dataclass(frozen=True, slots=True)
class Row:
    """A branch as a line of a table; the numbers are summed over every copy of it and of what it is in."""

    depth: int
    branch: Branch
    own: Numbers
    total: Numbers
    hidden: int  # children not shown because they lie too deep
    alike: tuple[Branch, ...] = field(default=(), compare=False, repr=False)  # every copy of it, in what it is in too

    @property
    def paths(self) -> tuple[str, ...]:
        """Of every module that the line stands for."""
        return tuple(branch.path for branch in self.alike)


@dataclass(slots=True)
class _Spot:
    """A place in the tree while it grows."""

    name: str
    path: str
    tag: str
    own: Numbers
    children: dict[str, _Spot] = field(default_factory=dict[str, "_Spot"])
    branch: Branch | None = None
    shape: int = -1  # equal numbers mean equal subtrees, names of the subtree's root aside


def build(entries: Iterable[Entry], width: int, *, fold: bool = True) -> Branch:
    """The tree over `entries`, each with `width` numbers; missing parents are made.

    With `fold`, numbered siblings that are equal become one branch, and a container that owns nothing and holds one
    thing is named together with it.
    """
    order = _grow(entries, width)
    shapes: dict[object, int] = {}
    for spot in reversed(order):  # children were made after their parents
        kids = _in_order(list(spot.children.values()))
        key = (spot.tag, spot.own, tuple((kid.name, kid.shape) for kid in kids))
        spot.shape = shapes.setdefault(key, len(shapes))
        branch = _close(spot, _fold(kids) if fold else [_done(kid) for kid in kids])
        spot.branch = _joined(spot, branch) if fold else branch
        spot.children.clear()
    return _done(order[0])


def rows(root: Branch, depth: int | None = None) -> Iterator[Row]:
    """The tree from the top, down to `depth` levels below the root."""
    stack: list[tuple[int, tuple[Branch, ...]]] = [(0, (root, *root.others))]
    while stack:
        level, alike = stack.pop()
        branch, copies = alike[0], len(alike)
        shown = depth is None or level < depth
        yield Row(
            depth=level,
            branch=branch,
            own=tuple(n * copies for n in branch.own),
            total=tuple(n * copies for n in branch.total),
            hidden=0 if shown else len(branch.children),
            alike=alike,
        )
        if shown:
            places = reversed(range(len(branch.children)))  # the children of equal branches are equal, one by one
            stack.extend((level + 1, tuple(_at(place, alike))) for place in places)


def _at(place: int, alike: Iterable[Branch]) -> Iterator[Branch]:
    """The child at a place of each branch, and those that it stands for."""
    for branch in alike:
        yield branch.children[place]
        yield from branch.children[place].others


def _grow(entries: Iterable[Entry], width: int) -> list[_Spot]:
    """Every module on a path to an entry, parents before children."""
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


def _fold(kids: list[_Spot]) -> list[Branch]:
    """The children, with runs of consecutive numbers and equal shape as one branch each."""
    branches: list[Branch] = []
    start = 0
    for end in range(1, len(kids) + 1):
        if end < len(kids) and _follows(kids[end - 1], kids[end]):
            continue
        first, name = _done(kids[start]), kids[start].name
        if end - start > 1:  # the label may go on after the name, when a container was named with what it holds
            label = f"{name}…{kids[end - 1].name}{first.label.removeprefix(name)}"
            rest = [branch for kid in kids[start + 1 : end] for branch in (_done(kid), *_done(kid).others)]
            others = (*first.others, *rest)
            first = replace(first, label=label, copies=1 + len(others), others=others)
        branches.append(first)
        start = end
    return branches


def _in_order(kids: list[_Spot]) -> list[_Spot]:
    """Numbered children by number, whatever order the graph runs them in; others as they came."""
    return sorted(kids, key=lambda kid: int(kid.name)) if all(map(_numbered, kids)) else kids


def _numbered(spot: _Spot) -> bool:
    return spot.name.isdecimal() and len(spot.name) < 10


def _follows(left: _Spot, right: _Spot) -> bool:
    numbered = _numbered(left) and _numbered(right)
    return numbered and int(right.name) == int(left.name) + 1 and left.shape == right.shape


def _close(spot: _Spot, children: list[Branch]) -> Branch:
    total = spot.own
    for child in children:
        total = _sum(total, tuple(n * child.copies for n in child.total))
    return Branch(spot.name, spot.path, spot.tag, 1, spot.own, total, tuple(children))


def _joined(spot: _Spot, branch: Branch) -> Branch:
    """The only child under both names, where the container is nothing by itself."""
    if not spot.path or len(branch.children) != 1 or spot.tag or any(spot.own):
        return branch
    return replace(branch.children[0], label=f"{spot.name}.{branch.children[0].label}")


def _done(spot: _Spot) -> Branch:
    assert spot.branch is not None, "children are closed before their parents"
    return spot.branch


def _sum(left: Numbers, right: Numbers) -> Numbers:
    return tuple(a + b for a, b in zip(left, right, strict=True))
