"""Two models side by side, module by module: what was added, removed, moved to another module, or changed.

Wiring and weights are not compared: whether two models compute the same is for `verify` to say.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir
from msgspec import structs

from sardonyx.analysis.attributes import attribute_value, attributes_of
from sardonyx.ir.origins import owner
from sardonyx.ir.scopes import is_constant, label, operator, scopes
from sardonyx.ir.tagged_model import Source, Tagged, tagged
from sardonyx.provenance import Hierarchy, is_within, lineage, lowest_common, module_of
from sardonyx.records.comparison import Comparison, ModuleDifference, OpRef, Pair, Side
from sardonyx.records.module_graph import AttributeValue, TensorValue
from sardonyx.records.run import OpCount

# Which node of one model does the work of which node of another.
#
# Names decide where the two models share them; where they do not, the order of equal operators within a module does.
# What
# is left over is the same operator in the module directly around or inside the old one, or is new, or is gone.

_TRUSTED = 0.5  # share of equally named nodes that must be in the same module for a name to mean something


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """What an alignment knows of a node."""

    name: str
    op_type: str
    module: str
    place: int  # in the order of the file
    traits: str  # equal for nodes with equal attributes


Key = Callable[[Op], Hashable]


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of nodes, and those without a partner, in the order of their files."""

    pairs: tuple[tuple[Op, Op], ...]
    removed: tuple[Op, ...]
    added: tuple[Op, ...]


def align(before: Sequence[Op], after: Sequence[Op]) -> Alignment:
    """Pair the nodes of two models, each with at most one of the other."""
    work = _Work(before, after)
    work.pair(lambda op: (op.name, op.op_type, op.module))
    if _names_mean_something(before, after):
        work.pair(lambda op: (op.name, op.op_type))  # moved
        work.pair(lambda op: (op.name, op.module))  # another operator in its place
    work.pair(lambda op: (op.module, op.op_type, op.traits))
    work.pair(lambda op: (op.module, op.op_type))
    work.pair_neighbours()
    return work.result()


def _names_mean_something(before: Iterable[Op], after: Iterable[Op]) -> bool:
    """Exporters number nodes anew for every model, so equal names alone prove nothing."""
    where = {(op.name, op.op_type): op.module for op in before}
    shared = [where[op.name, op.op_type] == op.module for op in after if (op.name, op.op_type) in where]
    return sum(shared) >= _TRUSTED * len(shared)


class _Work:
    def __init__(self, before: Sequence[Op], after: Sequence[Op]) -> None:
        self._before: dict[Op, None] = dict.fromkeys(before)
        self._after: dict[Op, None] = dict.fromkeys(after)
        self._pairs: list[tuple[Op, Op]] = []

    def pair(self, key: Key, other: Key | None = None) -> None:
        """Pair what has equal keys, in order; `other` is the key on the second side where it is not the same."""
        waiting: dict[Hashable, deque[Op]] = defaultdict(deque)
        for op in self._after:
            waiting[(other or key)(op)].append(op)
        for op in list(self._before):
            if partners := waiting.get(key(op)):
                self._join(op, partners.popleft())

    def pair_neighbours(self) -> None:
        """Pair equal operators where one is in the module directly around that of the other: it moved up or down."""
        self.pair(lambda op: (op.op_type, op.traits, op.module), lambda op: (op.op_type, op.traits, _around(op.module)))
        self.pair(lambda op: (op.op_type, op.traits, _around(op.module)), lambda op: (op.op_type, op.traits, op.module))

    def _join(self, old: Op, new: Op) -> None:
        del self._before[old]
        del self._after[new]
        self._pairs.append((old, new))

    def result(self) -> Alignment:
        pairs = sorted(self._pairs, key=lambda pair: pair[1].place)
        return Alignment(tuple(pairs), tuple(self._before), tuple(self._after))


def _around(module: str) -> str | None:
    return module.rpartition(".")[0] if module else None


def compare(before: Source, after: Source) -> Comparison:
    """Align two models: a raw and an optimized file, two exports of one module, two versions of a model.

    Args:
        before: a path, a ModelProto or an onnx-ir Model; never changed.
        after: the model to compare with it.
    """
    sides = (_read(tagged(before)), _read(tagged(after)))
    left, right = _unwrapped(*sides)
    found = align(list(left.ops), list(right.ops))
    pairs = [
        Pair(_ref(old), _ref(new), tuple(_changes(left.ops[old], right.ops[new])) + _retyped(old, new))
        for old, new in found.pairs
    ]
    moved = tuple(pair for pair in pairs if pair.before.module != pair.after.module)
    changed = tuple(pair for pair in pairs if pair.what)
    return Comparison(
        before=left.side,
        after=right.side,
        ops=_op_counts(left, right),
        modules=_modules(left, right, found, changed),
        only_before=_only_in(left, right),
        only_after=_only_in(right, left),
        added=tuple(map(_ref, found.added)),
        removed=tuple(map(_ref, found.removed)),
        moved=moved,
        changed=changed,
    )


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of one side: which operator it is, in which version, and with which attributes."""

    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, AttributeValue]  # bodies are compared node by node, and left out here

    def attribute(self, name: str) -> AttributeValue | None:
        """An attribute, its default where it is left out."""
        if name in self.attributes:
            return self.attributes[name]
        return _defaults(self.op_type, self.domain, self.version).get(name)


@dataclass(frozen=True, slots=True)
class _Side:
    side: Side
    ops: Mapping[Op, _Node]
    hierarchy: Hierarchy

    def tag(self, path: str) -> str:
        """The tag of a module by the path it is compared under."""
        return self.hierarchy.tag(".".join(filter(None, (self.side.wrapper, path))))


def _read(found: Tagged) -> _Side:
    ops: dict[Op, _Node] = {}
    constants = initializers = 0
    for scope in scopes(found.model):
        initializers += len(scope.graph.initializers)
        for node in scope.graph:
            if is_constant(node):
                constants += 1
                continue
            known = _Node(node.domain, node.op_type, scope.opsets.get(node.domain, 0), attributes_of(node))
            kind = operator(node)
            ops[Op(label(node), kind, module_of(owner(node)), len(ops), repr(known.attributes))] = known
    return _Side(Side(found.name, len(ops), constants, initializers), ops, found.hierarchy)


def _unwrapped(left: _Side, right: _Side) -> tuple[_Side, _Side]:
    """Both sides, one of them without modules around everything, if more of their modules have the same path then."""
    options = [(left, right)]
    options += [(_without(left, wrapper), right) for wrapper in _wrappers(left)]
    options += [(left, _without(right, wrapper)) for wrapper in _wrappers(right)]
    return max(options, key=lambda pair: len(_paths(pair[0]) & _paths(pair[1])))


def _wrappers(side: _Side) -> list[str]:
    """The modules that everything lies in; a few, for a file may nest as deep as it likes."""
    return lineage(lowest_common(op.module for op in side.ops))[1:5]


def _without(side: _Side, wrapper: str) -> _Side:
    ops = {replace(op, module=op.module.removeprefix(wrapper).removeprefix(".")): node for op, node in side.ops.items()}
    return _Side(structs.replace(side.side, wrapper=wrapper), ops, side.hierarchy)


def _paths(side: _Side) -> set[str]:
    return {op.module for op in side.ops}


def _ref(op: Op) -> OpRef:
    return OpRef(op.name, op.op_type, op.module)


def _retyped(old: Op, new: Op) -> tuple[str, ...]:
    return () if old.op_type == new.op_type else (f"operator: {old.op_type} → {new.op_type}",)


def _changes(old: _Node, new: _Node) -> Iterator[str]:
    """Attributes that differ."""
    if (old.domain, old.op_type) != (new.domain, new.op_type):
        return
    for name in dict.fromkeys((*old.attributes, *new.attributes)):
        was, now = old.attribute(name), new.attribute(name)
        if was != now:
            yield f"{name}: {_shown(was)} → {_shown(now)}"


@functools.lru_cache(maxsize=1024)
def _defaults(op_type: str, domain: str, version: int) -> Mapping[str, AttributeValue]:
    """What an operator's attributes are where they are left out."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    known = (ir.from_proto(each.default_value) for each in schema.attributes.values() if each.default_value.name)
    return {attribute.name: attribute_value(attribute) for attribute in known}


def _shown(value: AttributeValue | None) -> str:
    if isinstance(value, TensorValue):
        return f"{value.dtype}{list(value.shape)}" + ("" if value.value is None else f" {_shown(value.value)}")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else "none" if value is None else str(value)


def _op_counts(left: _Side, right: _Side) -> tuple[OpCount, ...]:
    before, after = (Counter(op.op_type for op in side.ops) for side in (left, right))
    names = sorted(before | after, key=lambda name: (-before[name], name))
    return tuple(OpCount(name, before[name], after[name]) for name in names)


def _modules(left: _Side, right: _Side, found: Alignment, changed: Iterable[Pair]) -> tuple[ModuleDifference, ...]:
    counters = (
        Counter(op.module for op in left.ops),
        Counter(op.module for op in right.ops),
        Counter(op.module for op in found.added),
        Counter(op.module for op in found.removed),
        Counter(pair.after.module for pair in changed),
        Counter(new.module for old, new in found.pairs if old.module != new.module),
    )
    known = {above for path in counters[1] for above in lineage(path)}
    paths = dict.fromkeys(above for counter in counters[:2] for path in counter for above in lineage(path))
    return tuple(
        ModuleDifference(path, (right if path in known else left).tag(path), *(counter[path] for counter in counters))
        for path in paths
    )


def _only_in(side: _Side, other: _Side) -> tuple[str, ...]:
    """The topmost modules that run something on one side only."""
    there = {above for path in _paths(other) for above in lineage(path)}
    tops: list[str] = []
    for path in sorted(_paths(side) - there):
        missing = next(above for above in lineage(path) if above not in there)
        if not tops or not is_within(missing, tops[-1]):
            tops.append(missing)
    return tuple(tops)
