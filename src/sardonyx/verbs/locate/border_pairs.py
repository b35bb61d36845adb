"""Values at module borders that correspond in two models, and the nodes between them.

A border value is read by another module than the one that computes it, or is an output of the model. Two border values
correspond if they have the same name and module, or if they are the only remaining outputs (or inputs) of a module that
both models have, or the only ones that the same other module computes. If a model has no modules, all values of the
same name correspond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir import module_region
from sardonyx.ir.module_region import Flow
from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.scopes import is_constant
from sardonyx.provenance import ROOT, is_within, lineage, lowest_common, merge, module_of, owner_of


class BorderPair(Struct, frozen=True, eq=False):
    """A value of the first model and the value of the second model that corresponds to it."""

    first: ir.Value | None  # None: the first model is no graph
    second: ir.Value
    named: bool  # both have the same name


class ModuleBorder(Struct, frozen=True, eq=False):
    """The data that enters and leaves one call of a module, without sizes and constants."""

    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]


class Borders(Struct, frozen=True, eq=False):
    """All borders of one model: calls of modules by path, and modules whose border a fused node crosses."""

    calls: Mapping[str, ModuleBorder]
    crossed: tuple[str, ...]


def is_data(flow: Flow, value: ir.Value) -> bool:
    """Return whether a value is worth comparing: computed from data, or from sizes but no size itself, as a mask is."""
    producer = value.producer()
    if producer is None or not value.name or is_constant(producer):
        return False
    if not flow.is_size(value):
        return True
    kind = flow.types.get(value, value.dtype)
    return kind is not None and not kind.is_integer()


def module_borders(flow: Flow) -> Borders:
    """Return the borders of all calls of modules."""
    paths = {path for origins in flow.origins.values() for origin in origins for path in lineage(origin)[1:]}
    calls: dict[str, ModuleBorder] = {}
    crossed: list[str] = []
    for path in sorted(paths):
        inside, straddling = module_region.members(flow, path)
        if straddling:
            crossed.append(path)
        else:
            calls[path] = _border(flow, inside)
    return Borders(calls, tuple(crossed))


def _border(flow: Flow, inside: frozenset[ir.Node]) -> ModuleBorder:
    ordered = [node for node in flow.nodes if node in inside]
    produced = [value for node in ordered for value in node.outputs]
    own = set(produced)
    read = dict.fromkeys(value for node in ordered for value in flow.reads[node] if value not in own)
    leaving = [
        value
        for value in produced
        if value in flow.outputs or any(reader not in inside for reader in flow.readers.get(value, ()))
    ]
    return ModuleBorder(
        tuple(value for value in read if is_data(flow, value)),
        tuple(value for value in leaving if is_data(flow, value)),
    )


def pair_borders(
    first: Flow, second: Flow, outputs: Iterable[tuple[ir.Value, ir.Value]]
) -> tuple[list[BorderPair], list[str]]:
    """Return the corresponding border values in the order of the second model, and the modules without such a border.

    Args:
        first: The first model.
        second: The second model.
        outputs: The outputs of the models, which correspond by position.
    """
    a, b = module_borders(first), module_borders(second)
    pairs: dict[ir.Value, BorderPair] = {}
    taken: set[ir.Value] = set()

    def add(one: ir.Value, other: ir.Value) -> None:
        if other not in pairs and one not in taken:
            pairs[other] = BorderPair(one, other, one.name == other.name)
            taken.add(one)

    for one, other in outputs:
        if is_data(first, one) and is_data(second, other):
            add(one, other)
    if has_modules(first) and has_modules(second):
        _pair_names(first, second, [*_values(a), *_values(b)], add)
    else:
        _pair_all_names(first, second, add)
    for path in sorted(a.calls.keys() & b.calls.keys(), key=lambda path: -path.count(".")):
        for one, other in (
            (a.calls[path].outputs, b.calls[path].outputs),
            (a.calls[path].inputs, b.calls[path].inputs),
        ):
            left = [value for value in one if value not in taken]
            right = [value for value in other if value not in pairs]
            for pair in _only_ones(first, left, second, right):
                add(*pair)
    missing = {*a.crossed, *b.crossed, *(a.calls.keys() ^ b.calls.keys())} & (owning(first) | owning(second))
    return in_order(second, pairs.values()), sorted(missing)


def _only_ones(
    first: Flow, left: Sequence[ir.Value], second: Flow, right: Sequence[ir.Value]
) -> Iterable[tuple[ir.Value, ir.Value]]:
    """Return the only value of both sides, or the pairs of values that are the only ones of their module."""
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    one, other = _by_owner(first, left), _by_owner(second, right)
    return [(values[0], other[path][0]) for path, values in one.items() if len(values) == len(other.get(path, ())) == 1]


def _by_owner(flow: Flow, values: Iterable[ir.Value]) -> dict[str, list[ir.Value]]:
    found: dict[str, list[ir.Value]] = {}
    for value in values:
        found.setdefault(owner(flow, value), []).append(value)
    return found


def owning(flow: Flow) -> frozenset[str]:
    """Return the modules that have nodes of their own, not only those of modules below."""
    return merge(flow.origins.values())


def has_modules(flow: Flow) -> bool:
    """Return whether some node of a model belongs to a module."""
    return any(module_of(path) for origins in flow.origins.values() for path in origins)


def _values(borders: Borders) -> Iterable[ir.Value]:
    return (value for border in borders.calls.values() for value in (*border.inputs, *border.outputs))


def _pair_names(
    first: Flow, second: Flow, borders: Sequence[ir.Value], add: Callable[[ir.Value, ir.Value], None]
) -> None:
    names = dict.fromkeys(value.name for value in borders)
    one, other = _by_name(first), _by_name(second)
    for name in names:
        left, right = one.get(name), other.get(name)
        if left is not None and right is not None and owner(first, left) == owner(second, right):
            add(left, right)


def _pair_all_names(first: Flow, second: Flow, add: Callable[[ir.Value, ir.Value], None]) -> None:
    """Pair every value of the same name: tools that drop the tags keep most of the names."""
    known = _by_name(first)
    for name, value in _by_name(second).items():
        if name in known:
            add(known[name], value)


def _by_name(flow: Flow) -> dict[str | None, ir.Value]:
    return {value.name: value for node in flow.nodes for value in node.outputs if is_data(flow, value)}


def owner(flow: Flow, value: ir.Value) -> str:
    """Return the module that computes a value."""
    producer = value.producer()
    return ROOT if producer is None else owner_of(flow.origins[producer])


def in_order(flow: Flow, pairs: Iterable[BorderPair]) -> list[BorderPair]:
    """Return pairs in the order in which the second model computes them."""
    position = {value: index for index, value in enumerate(value for node in flow.nodes for value in node.outputs)}
    return sorted(pairs, key=lambda pair: position[pair.second])


class Between(Struct, frozen=True, eq=False):
    """The nodes that compute a value from the nearest border values before it."""

    nodes: tuple[ir.Node, ...]
    after: frozenset[ir.Node]  # those that depend on one of these border values
    borders: frozenset[ir.Value]

    def modules(self, flow: Flow) -> list[str]:
        """Return the modules of the nodes that compute data, or numbers such as masks from sizes, in order."""
        computing = {*_computing(flow, self.nodes), *_numbers(flow, self.nodes)}
        return list(dict.fromkeys(owner_of(flow.origins[node]) for node in self.nodes if node in computing))

    def module(self, flow: Flow) -> str:
        """Return the lowest common module of the nodes that depend on a border value, or of all if none does."""
        return lowest_common(owner_of(flow.origins[node]) for node in _computing(flow, self.after or self.nodes))

    def side_nodes(self, flow: Flow) -> list[ir.Node]:
        """Return the nodes of other modules whose numbers, such as masks and angles, enter without a common border."""
        path = self.module(flow)
        return [node for node in _numbers(flow, self.nodes) if not is_within(owner_of(flow.origins[node]), path)]


def _computing(flow: Flow, nodes: Collection[ir.Node]) -> list[ir.Node]:
    """Return the nodes that compute data; if none does, those of numbers such as masks; otherwise all but constants."""
    numbers = _numbers(flow, nodes)
    data = [node for node in numbers if not flow.only_sizes(node)]
    return data or numbers or [node for node in nodes if not is_constant(node)]


def _numbers(flow: Flow, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    return [
        node for node in nodes if node.op_type not in KEEPS_ORDER and any(is_data(flow, out) for out in node.outputs)
    ]


def between(flow: Flow, value: ir.Value, borders: frozenset[ir.Value]) -> Between:
    """Return the nodes between a value and the nearest border values that it depends on."""
    nodes: dict[ir.Node, None] = {}
    reached: set[ir.Value] = set()
    producer = value.producer()
    pending = [] if producer is None else [producer]
    while pending:
        node = pending.pop()
        if node in nodes:
            continue
        nodes[node] = None
        for read in flow.reads[node]:
            source = read.producer()
            if read in borders:
                reached.add(read)
            elif source is not None:
                pending.append(source)
    ordered = [node for node in flow.nodes if node in nodes] if len(nodes) > 1 else list(nodes)
    after: set[ir.Node] = set()
    for node in ordered:
        if any(read in reached or read.producer() in after for read in flow.reads[node]):
            after.add(node)
    return Between(tuple(ordered), frozenset(after), frozenset(reached))
