"""One rewrite, all or nothing: new nodes in, uses moved, old nodes out, provenance written, interface kept.

Everything that could make a rewrite impossible is looked at before the first change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from msgspec.structs import replace

from sardonyx import provenance as p
from sardonyx.ir import origins
from sardonyx.ir.builder import Builder
from sardonyx.ir.checks import check
from sardonyx.ir.facts import Facts, constant_tensor
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.naming import Names
from sardonyx.ir.opsets.raising import Plan
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Match, Replacement
from sardonyx.ir.scopes import bodies, is_constant, label
from sardonyx.ir.size_budget import Growth, Planned
from sardonyx.records.run import Event, NodeRef, RewriteKind


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What a transaction did."""

    kind: RewriteKind
    added: tuple[ir.Node, ...]
    removed: tuple[ir.Node, ...]
    neighbours: tuple[ir.Node, ...]
    before: tuple[NodeRef, ...]
    origins: p.Origins
    graph: str
    initializers: int
    bytes: int
    growth: int  # bytes of the file, with what the rewrite leaves without a use taken off
    wholesale: bool = False  # many rewrites at once

    @property
    def nodes(self) -> int:
        """Change in compute nodes."""
        return sum(not is_constant(n) for n in self.added) - sum(not is_constant(n) for n in self.removed)

    @property
    def constants(self) -> int:
        """Change in Constant nodes."""
        return sum(map(is_constant, self.added)) - sum(map(is_constant, self.removed))

    def event(self, rule: str, root: str, source: str) -> Event:
        """The record of it."""
        after = tuple(map(_bare_ref if self.wholesale else _ref, self.added))
        owner = p.owner_of(self.origins)
        return Event(rule, self.kind, root, self.before, after, tuple(sorted(self.origins)), owner, self.graph, source)


@dataclass(frozen=True, slots=True, eq=False)
class Substitution:
    """Nodes before and after a rewrite while both can be looked at: the new ones read values but are in no graph."""

    match: Match
    pairs: tuple[tuple[ir.Value, ir.Value], ...]  # each replaced value with its replacement
    opsets: tuple[int, int]  # of the default domain, for the matched nodes and for the new ones


class Transactions:
    """Carries out rewrites on one model."""

    def __init__(self, facts: Facts, names: Names, borders: Borders) -> None:
        """Work on the model of `facts`, and never across the borders."""
        self._facts = facts
        self._names = names
        self._borders = borders
        self.observe: Callable[[Substitution], None] | None = None  # called before each replacement is carried out

    def owner(self, node: ir.Node) -> str:
        """The module a node belongs to."""
        return origins.owner(node)

    def replace(self, match: Match, rewrite: Callable[[Builder], Replacement], opset: int | None = None) -> Change:
        """Put what `rewrite` builds in the place of the matched nodes, which are of `opset` if the model is newer."""
        graph = match.root.graph
        assert graph is not None
        self._borders.check_nodes(match)
        op = Builder(match.root, self._facts, self._names)
        self._facts.place = op.scope
        growth = self._facts.growth
        try:
            pairs = _pairs(match, rewrite(op))
            for old, value in pairs:
                _check_interface(old, value, op, pairs)
            self._borders.check_values(match, pairs, op.nodes)
            planned = growth.plan(match.nodes, pairs, op.nodes, op.constants)
            if opset is None:  # what raises the opset is not to be undone halfway
                check(match, pairs, op, self._facts)
                _check_growth(planned, growth)
        except Impossible:
            self._take_back(op)
            raise
        if self.observe is not None:
            self.observe(Substitution(match, tuple(pairs), (opset or op.scope.opset, op.scope.opset)))
        own = [node for node in match.nodes if node not in match.apart and not self._borders.is_foreign(node, match)]
        merged = p.bounded(p.merge(origins.origins(node) for node in own))
        before = tuple(map(_ref, match.nodes))
        bytes_added = sum(tensor.nbytes for value in op.constants if (tensor := value.const_value) is not None)
        for value in op.constants:
            graph.initializers.add(value)
            origins.give(value, merged)
        graph.insert_before(match.root, op.nodes)
        for node in op.nodes:
            others = [each for each in match.nodes if each in match.apart] if node in op.nodes_apart else []
            if others:
                self._inherit(node, others, p.merge(origins.origins(each) for each in others))
            else:
                self._inherit(node, own, merged)
            if node.domain and not op.scope.in_function:
                self._facts.model.opset_imports.setdefault(node.domain, 1)
        if match.heir is not None:
            origins.give(match.heir, merged)
        neighbours = [user for old, _ in pairs for user in old.consumers()]
        neighbours += [maker for node in match.nodes for maker in node.predecessors()]
        for old, value in pairs:
            self._take_over(old, value)
        removed = self._remove_dead(match.nodes)
        growth.enter(planned)
        self._keep_root_name(match.root, removed, op.nodes)
        bytes_removed = sum(_constant_bytes(node) for node in removed)
        return Change(
            _kind(match, op),
            tuple(op.nodes),
            removed,
            tuple(neighbours),
            before,
            merged,
            self._facts.scopes[graph].path,
            len(op.constants),
            bytes_added + sum(_constant_bytes(node) for node in op.nodes) - bytes_removed,
            planned.bytes,
        )

    def raise_opset(self, planned: Plan) -> Change:
        """Write a whole model in a newer operator set; every node keeps the origins it has."""
        model = self._facts.model
        model.ir_version = planned.ir_version
        model.opset_imports.pop("ai.onnx", None)
        model.opset_imports[""] = planned.new
        return _together([self.replace(Match((node,)), rewrite, planned.old) for node, rewrite in planned.rewrites])

    def drop(self, value: ir.Value) -> Change:
        """Take out an initializer that nothing reads."""
        gone = self._facts.growth.drop(value)
        graph, size = self._pop_initializer(value)
        path = self._facts.scopes[graph].path
        return Change(RewriteKind.DROP, (), (), (), (), origins.origins(value), path, -1, -size, gone)

    def share(self, duplicates: Sequence[ir.Value], kept: ir.Value) -> Change:
        """Let the readers of initializers read their equal, and take them out."""
        merged = p.bounded(p.merge(origins.origins(value) for value in (*duplicates, kept)))
        users: list[ir.Node] = []
        freed, path, growth = 0, "", self._facts.growth.take_up(kept)
        for duplicate in duplicates:
            users += duplicate.consumers()
            duplicate.replace_all_uses_with(kept)
            growth += self._facts.growth.drop(duplicate)
            graph, size = self._pop_initializer(duplicate)
            freed, path = freed + size, self._facts.scopes[graph].path
        origins.give(kept, merged)
        return Change(RewriteKind.SHARE, (), (), tuple(users), (), merged, path, -len(duplicates), -freed, growth)

    def drop_unused(self) -> None:
        """Take out the constants that rewrites left without a use, where no pass did."""
        for value in tuple(self._facts.growth.unused):
            producer = value.producer()
            if value.uses():
                continue
            if value.is_initializer():
                self._pop_initializer(value)
            elif producer is not None and producer.graph is not None:
                producer.graph.remove(producer, safe=True)
                self._facts.forget(value)
        self._facts.growth.unused.clear()

    def _take_back(self, op: Builder) -> None:
        """Forget nodes that never joined the graph."""
        for node in op.nodes:
            _detach(node)
            for output in node.outputs:
                self._facts.forget(output)
        for value in op.constants:
            self._facts.forget(value)

    def _pop_initializer(self, value: ir.Value) -> tuple[ir.Graph, int]:
        graph, tensor = value.graph, value.const_value
        assert graph is not None
        assert value.name is not None
        assert not _is_needed(value), f"{value.name} is in use"
        del graph.initializers[value.name]
        self._facts.forget(value)
        return graph, tensor.nbytes if tensor is not None else 0

    def _inherit(self, node: ir.Node, sources: Sequence[ir.Node], merged: p.Origins) -> None:
        """New nodes get the union; where one node became others, all else it said of itself stays true."""
        if len(sources) == 1:
            node.metadata_props.update(sources[0].metadata_props)
            node.doc_string = sources[0].doc_string
            origins.copy(sources[0], node)
            return
        if any(p.NAMESPACE in source.metadata_props for source in sources):
            node.metadata_props[p.NAMESPACE] = ""  # written true with the tags, from the merged origins
        origins.give(node, merged, sources)

    def _take_over(self, old: ir.Value, value: ir.Value) -> None:
        """`value` is read where `old` was, and leaves the graph under its name where `old` did."""
        self._facts.carry_over(old, value)
        if value.type is None:
            value.type = old.type
        if value.shape is None and old.shape is not None and not value.is_initializer():
            value.shape = old.shape.copy()
        if old.is_graph_output():
            name, value.type, value.doc_string = old.name, old.type, old.doc_string
            value.shape = old.shape.copy() if old.shape is not None else None
            value.metadata_props.update(old.metadata_props)
            old.name = None
            value.name = name
        old.replace_all_uses_with(value, replace_graph_outputs=True)

    def _remove_dead(self, nodes: Sequence[ir.Node]) -> tuple[ir.Node, ...]:
        """Take out those matched nodes that nothing reads any more, users before makers."""
        left, removed = list(dict.fromkeys(reversed(nodes))), list[ir.Node]()
        while True:
            kept = [node for node in left if not self._removed_if_dead(node, removed)]
            if len(kept) == len(left):
                return tuple(removed)
            left = kept

    def _removed_if_dead(self, node: ir.Node, removed: list[ir.Node]) -> bool:
        if not is_dead(node):
            return False
        assert node.graph is not None
        removed.extend(_release_bodies(node))
        node.graph.remove(node, safe=True)
        for output in node.outputs:
            self._facts.forget(output)
        removed.append(node)
        return True

    def _keep_root_name(self, root: ir.Node, removed: Sequence[ir.Node], added: Sequence[ir.Node]) -> None:
        """The last new node goes by the root's name, so that people find it where they knew it."""
        if added and root in removed and root.name:
            added[-1].name = root.name


def _ref(node: ir.Node) -> NodeRef:
    """A node as it is now, with what it reads and makes: what a drawing of the rewrite needs."""
    inputs = tuple(value.name or "" if value is not None else "" for value in node.inputs)
    return NodeRef(
        label(node), node.op_type, inputs, tuple(value.name or "" for value in node.outputs), origins.owner(node)
    )


def _bare_ref(node: ir.Node) -> NodeRef:
    """A node of a change that takes in thousands, of which nobody draws a picture: how many there were where."""
    return NodeRef(label(node), node.op_type, owner=origins.owner(node))


def _together(changes: Sequence[Change]) -> Change:
    """Several changes as one."""
    return Change(
        RewriteKind.FUSE,
        tuple(node for change in changes for node in change.added),
        tuple(node for change in changes for node in change.removed),
        tuple(node for change in changes for node in change.neighbours),
        tuple(replace(ref, inputs=(), outputs=()) for change in changes for ref in change.before),
        p.merge(change.origins for change in changes),
        "",
        sum(change.initializers for change in changes),
        sum(change.bytes for change in changes),
        sum(change.growth for change in changes),
        wholesale=True,
    )


def _pairs(match: Match, result: Replacement) -> list[tuple[ir.Value, ir.Value]]:
    """The values replaced, each with what takes its place."""
    new = (result,) if isinstance(result, ir.Value) else tuple(result)
    if len(new) != len(match.replaced):
        raise Impossible("it gives another number of values than it replaces")
    pairs = [(old, value) for old, value in zip(match.replaced, new, strict=True) if value is not None]
    if any(old is value for old, value in pairs):
        raise Impossible("it replaces a value by itself")
    return pairs


def is_dead(node: ir.Node) -> bool:
    """Whether nothing reads any output of a node."""
    return all(not output.uses() and not output.is_graph_output() for output in node.outputs)


def _check_interface(old: ir.Value, value: ir.Value, op: Builder, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    """A graph output can be taken over by a value made in the same graph that is no output itself."""
    if not old.is_graph_output():
        return
    maker = value.producer()
    if maker is None or value.is_graph_output() or sum(other is value for _, other in pairs) > 1:
        raise Impossible("the graph's output would lose its name")
    if maker not in op.nodes and maker.graph is not op.scope.graph:
        raise Impossible("a body cannot return a value from outside it")


def _check_growth(planned: Planned, growth: Growth) -> None:
    if growth.remaining is not None and planned.bytes > max(growth.remaining, 0):
        raise Impossible("it would make the file larger than it may grow")


def _release_bodies(node: ir.Node) -> list[ir.Node]:
    """The nodes in a node's bodies, which go with it: they must not count as readers of outer values any longer."""
    inner: list[ir.Node] = []
    for _, body in bodies(node):
        for each in body:
            inner += [*_release_bodies(each), each]
            _detach(each)
    return inner


def _detach(node: ir.Node) -> None:
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)


def _kind(match: Match, op: Builder) -> RewriteKind:
    if match.heir is not None:
        return RewriteKind.SHARE
    if any(not is_constant(node) for node in op.nodes):
        return RewriteKind.FUSE
    if op.constants or op.nodes:
        return RewriteKind.FOLD
    return RewriteKind.BYPASS if match.replaced else RewriteKind.DROP


def _constant_bytes(node: ir.Node) -> int:
    tensor = constant_tensor(node) if is_constant(node) else None
    return tensor.nbytes if tensor is not None else 0


def _is_needed(value: ir.Value) -> bool:
    return value.is_graph_input() or value.is_graph_output() or bool(value.uses())
