"""Compare two models module by module: which nodes were added, removed, moved to another module, or changed.

Edges and weights are not compared; `verify` checks whether two models compute the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from sardonyx.ir.origins import Source, Tagged, owner, tagged
from sardonyx.ir.plain_data import attribute_value, attributes_of, default_attributes
from sardonyx.ir.scopes import is_constant, label, operator, scopes
from sardonyx.records.comparison import Comparison, ModuleDifference, OpRef, Pair, Side
from sardonyx.records.inspection import AttributeValue, TensorValue
from sardonyx.records.provenance import Hierarchy, is_within, lineage, lowest_common, module_of
from sardonyx.records.run import OpCount

# Nodes are paired by name if the two models share names, otherwise by the order of equal operators within a module. The
# remaining nodes are paired with equal operators in the parent or a child module; the rest was added or removed.

# Names are used for pairing if at least this share of equally named nodes is in the same module.
_MIN_NAME_AGREEMENT = 0.5


class Op(Struct, frozen=True, eq=False):
    """The properties of a node by which it is aligned."""

    name: str
    op_type: str
    module: str
    place: int  # its index in the file
    traits: str  # equal for nodes with equal attributes


Key = Callable[[Op], Hashable]


class Alignment(Struct, frozen=True):
    """The pairs of nodes, and the nodes without a partner, in file order."""

    pairs: tuple[tuple[Op, Op], ...]
    removed: tuple[Op, ...]
    added: tuple[Op, ...]


def align(before: Sequence[Op], after: Sequence[Op]) -> Alignment:
    """Pair the nodes of two models, each with at most one of the other."""
    left, right = dict.fromkeys(before), dict.fromkeys(after)  # without a partner
    pairs: list[tuple[Op, Op]] = []

    def pair(key: Key, other: Key | None = None) -> None:
        """Pair nodes with equal keys, in order; `other` is the key of the second model if it differs."""
        waiting: dict[Hashable, deque[Op]] = defaultdict(deque)
        for op in right:
            waiting[(other or key)(op)].append(op)
        for old in list(left):
            if partners := waiting.get(key(old)):
                new = partners.popleft()
                del left[old], right[new]
                pairs.append((old, new))

    pair(lambda op: (op.name, op.op_type, op.module))
    if _names_are_stable(before, after):
        pair(lambda op: (op.name, op.op_type))  # moved
        pair(lambda op: (op.name, op.module))  # replaced by another operator
    pair(lambda op: (op.module, op.op_type, op.traits))
    pair(lambda op: (op.module, op.op_type))
    # Equal operators of which one is in the parent module of the other's module.
    pair(lambda op: (op.op_type, op.traits, op.module), lambda op: (op.op_type, op.traits, _around(op.module)))
    pair(lambda op: (op.op_type, op.traits, _around(op.module)), lambda op: (op.op_type, op.traits, op.module))
    return Alignment(tuple(sorted(pairs, key=lambda pair: pair[1].place)), tuple(left), tuple(right))


def _names_are_stable(before: Iterable[Op], after: Iterable[Op]) -> bool:
    """Return whether equal names denote the same node: exporters number the nodes of every model from the start."""
    modules = {(op.name, op.op_type): op.module for op in before}
    same_module = [modules[op.name, op.op_type] == op.module for op in after if (op.name, op.op_type) in modules]
    return sum(same_module) >= _MIN_NAME_AGREEMENT * len(same_module)


def _around(module: str) -> str | None:
    return module.rpartition(".")[0] if module else None


def compare(before: Source, after: Source) -> Comparison:
    """Align two models: a raw and an optimized file, two exports of one module, two versions of a model.

    Args:
        before: A path, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        after: The model to compare with it.
    """
    left, right = _unwrapped(_read(tagged(before)), _read(tagged(after)))
    alignment = align(list(left.ops), list(right.ops))
    pairs = [
        Pair(_ref(old), _ref(new), tuple(_changes(old, new, left.ops[old], right.ops[new])))
        for old, new in alignment.pairs
    ]
    moved = tuple(pair for pair in pairs if pair.before.module != pair.after.module)
    changed = tuple(pair for pair in pairs if pair.what)
    return Comparison(
        before=left.side,
        after=right.side,
        ops=_op_counts(left, right),
        modules=_modules(left, right, alignment, changed),
        only_before=_only_in(left, right),
        only_after=_only_in(right, left),
        added=tuple(map(_ref, alignment.added)),
        removed=tuple(map(_ref, alignment.removed)),
        moved=moved,
        changed=changed,
    )


class _Node(Struct, frozen=True):
    """A node of one model: its operator with the opset version, and its attributes."""

    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, AttributeValue]  # without bodies, whose nodes are compared one by one

    def attribute(self, name: str) -> AttributeValue | None:
        """Return an attribute, or its default if it is not set."""
        if name in self.attributes:
            return self.attributes[name]
        default = default_attributes(self.domain, self.op_type, self.version).get(name)
        return None if default is None else attribute_value(default)


class _Side(Struct, frozen=True):
    side: Side
    ops: Mapping[Op, _Node]
    hierarchy: Hierarchy

    def tag(self, path: str) -> str:
        """Return the tag of a module, by the path without the wrapper."""
        return self.hierarchy.tag(".".join(filter(None, (self.side.wrapper, path))))


def _read(source: Tagged) -> _Side:
    ops: dict[Op, _Node] = {}
    constants = initializers = 0
    for scope in scopes(source.model):
        initializers += len(scope.graph.initializers)
        for node in scope.graph:
            if is_constant(node):
                constants += 1
                continue
            details = _Node(node.domain, node.op_type, scope.opsets.get(node.domain, 0), attributes_of(node))
            op = Op(label(node), operator(node), module_of(owner(node)), len(ops), repr(details.attributes))
            ops[op] = details
    return _Side(Side(source.name, len(ops), constants, initializers), ops, source.hierarchy)


def _unwrapped(left: _Side, right: _Side) -> tuple[_Side, _Side]:
    """Return both sides, with one of them stripped of wrapper modules if that makes more module paths equal."""
    options = [(left, right)]
    options += [(_without(left, wrapper), right) for wrapper in _wrappers(left)]
    options += [(left, _without(right, wrapper)) for wrapper in _wrappers(right)]
    return max(options, key=lambda pair: len(_paths(pair[0]) & _paths(pair[1])))


def _wrappers(side: _Side) -> list[str]:
    """Return the modules that contain all nodes, at most four of them."""
    return lineage(lowest_common(op.module for op in side.ops))[1:5]


def _without(side: _Side, wrapper: str) -> _Side:
    ops = {
        structs.replace(op, module=op.module.removeprefix(wrapper).removeprefix(".")): node
        for op, node in side.ops.items()
    }
    return _Side(structs.replace(side.side, wrapper=wrapper), ops, side.hierarchy)


def _paths(side: _Side) -> set[str]:
    return {op.module for op in side.ops}


def _ref(op: Op) -> OpRef:
    return OpRef(op.name, op.op_type, op.module)


def _changes(old: Op, new: Op, before: _Node, after: _Node) -> Iterator[str]:
    """Yield the attributes that differ, or that the operator does."""
    if (before.domain, before.op_type) == (after.domain, after.op_type):
        for name in dict.fromkeys((*before.attributes, *after.attributes)):
            one, other = before.attribute(name), after.attribute(name)
            if one != other:
                yield f"{name}: {_format(one)} → {_format(other)}"
    if old.op_type != new.op_type:
        yield f"operator: {old.op_type} → {new.op_type}"


def _format(value: AttributeValue | None) -> str:
    if isinstance(value, TensorValue):
        return f"{value.dtype}{list(value.shape)}" + ("" if value.value is None else f" {_format(value.value)}")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format, value))}]"
    return f"{value:.7g}" if isinstance(value, float) else "none" if value is None else str(value)


def _op_counts(left: _Side, right: _Side) -> tuple[OpCount, ...]:
    before, after = (Counter(op.op_type for op in side.ops) for side in (left, right))
    names = sorted(before | after, key=lambda name: (-before[name], name))
    return tuple(OpCount(name, before[name], after[name]) for name in names)


def _modules(left: _Side, right: _Side, alignment: Alignment, changed: Iterable[Pair]) -> tuple[ModuleDifference, ...]:
    counters = (
        Counter(op.module for op in left.ops),
        Counter(op.module for op in right.ops),
        Counter(op.module for op in alignment.added),
        Counter(op.module for op in alignment.removed),
        Counter(pair.after.module for pair in changed),
        Counter(new.module for old, new in alignment.pairs if old.module != new.module),
    )
    in_right = {above for path in counters[1] for above in lineage(path)}
    paths = dict.fromkeys(above for counter in counters[:2] for path in counter for above in lineage(path))
    return tuple(
        ModuleDifference(
            path, (right if path in in_right else left).tag(path), *(counter[path] for counter in counters)
        )
        for path in paths
    )


def _only_in(side: _Side, other: _Side) -> tuple[str, ...]:
    """Return the topmost modules that have nodes in one model only."""
    in_other = {above for path in _paths(other) for above in lineage(path)}
    tops: list[str] = []
    for path in sorted(_paths(side) - in_other):
        missing = next(above for above in lineage(path) if above not in in_other)
        if not tops or not is_within(missing, tops[-1]):
            tops.append(missing)
    return tuple(tops)
