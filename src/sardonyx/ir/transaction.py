"""One rewrite as a transaction: insert the new nodes, move the uses, remove the old nodes, write provenance.

Everything that can make a rewrite impossible is checked before the first change, so a transaction is performed
completely or not at all. The inputs and outputs of the model keep their names, order and types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir import origins
from sardonyx.ir.checks import check
from sardonyx.ir.facts import Facts, constant_tensor
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.opset_raising import OpsetPlan
from sardonyx.ir.precision import Impossible
from sardonyx.ir.rules import Builder, Match, Replacement
from sardonyx.ir.scopes import Names, bodies, is_constant, label
from sardonyx.ir.size_budget import Planned
from sardonyx.records import provenance as p
from sardonyx.records.run import Event, NodeRef, RewriteKind

Pairs = Sequence[tuple[ir.Value, ir.Value]]  # each replaced value with its replacement


class Change(Struct, frozen=True, eq=False):
    """The effect of a transaction."""

    kind: RewriteKind
    added: tuple[ir.Node, ...]
    removed: tuple[ir.Node, ...]
    neighbours: tuple[ir.Node, ...]
    before: tuple[NodeRef, ...]
    origins: p.Origins
    graph: str
    initializers: int
    bytes: int
    growth: int  # bytes of the file, without constants that the rewrite leaves unused
    wholesale: bool = False  # whether it combines many rewrites

    @property
    def nodes(self) -> int:
        """Return the change in the number of compute nodes."""
        return sum(not is_constant(n) for n in self.added) - sum(not is_constant(n) for n in self.removed)

    @property
    def constants(self) -> int:
        """Return the change in the number of Constant nodes."""
        return sum(map(is_constant, self.added)) - sum(map(is_constant, self.removed))

    def event(self, rule: str, root: str, source: str) -> Event:
        """Return the record of the change."""
        after = tuple(map(_ref, self.added))
        if self.wholesale:  # without what thousands of nodes read and produce
            after = tuple(replace(ref, inputs=(), outputs=()) for ref in after)
        owner = p.owner_of(self.origins)
        return Event(rule, self.kind, root, self.before, after, tuple(sorted(self.origins)), owner, self.graph, source)


class Substitution(Struct, frozen=True, eq=False):
    """The nodes before and after a rewrite while both exist: the new ones read values but are not in a graph yet."""

    match: Match
    pairs: tuple[tuple[ir.Value, ir.Value], ...]  # each replaced value with its replacement
    nodes: tuple[ir.Node, ...]  # the new ones
    opsets: tuple[int, int]  # of the default domain, for the matched nodes and for the new ones


class Transactions:
    """Performs rewrites on one model."""

    def __init__(self, facts: Facts, names: Names, borders: Borders) -> None:
        """Work on the model of `facts`, and never across the borders."""
        self._facts = facts
        self._names = names
        self._borders = borders
        self.observe: Callable[[Substitution], None] | None = None  # called before each replacement is performed

    def replace(self, match: Match, rewrite: Callable[[Builder], Replacement], opset: int | None = None) -> Change:
        """Replace the matched nodes by what `rewrite` builds; `opset` is theirs if the model was raised to a newer one.

        Raises:
            Impossible: if the replacement fails a check; the graph is not changed then.
        """
        op, pairs, planned = self._build(match, rewrite, opset)
        if self.observe is not None:
            self.observe(Substitution(match, tuple(pairs), tuple(op.nodes), (opset or op.scope.opset, op.scope.opset)))
        before = tuple(map(_ref, match.nodes))
        bytes_added = sum(tensor.nbytes for value in op.constants if (tensor := value.const_value) is not None)
        merged = self._insert(match, op)
        neighbours = [user for old, _ in pairs for user in old.consumers()]
        neighbours += [producer for node in match.nodes for producer in node.predecessors()]
        for old, value in pairs:
            self._move_uses(old, value)
        removed: list[ir.Node] = []
        for node in planned.dead:
            removed += [*_release_bodies(node), node]
            op.scope.graph.remove(node, safe=True)
            for output in node.outputs:
                self._facts.forget(output)
        self._facts.growth.record(planned)
        if op.nodes and match.root in removed and match.root.name:
            # the last new node gets the name of the root, or the same operator before a last Cast, for users to find
            same = [node for node in op.nodes if node.op_type == match.root.op_type]
            (same if same and op.nodes[-1].op_type == "Cast" else op.nodes)[-1].name = match.root.name
        return Change(
            _kind(match, op),
            tuple(op.nodes),
            tuple(removed),
            tuple(neighbours),
            before,
            merged,
            op.scope.path,
            len(op.constants),
            bytes_added + sum(map(_constant_bytes, op.nodes)) - sum(map(_constant_bytes, removed)),
            planned.bytes,
        )

    def _build(
        self, match: Match, rewrite: Callable[[Builder], Replacement], opset: int | None
    ) -> tuple[Builder, Pairs, Planned]:
        """Build the replacement outside of the graph and check it; on failure everything about it is forgotten."""
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
            if opset is None:  # raising the opset must not fail halfway
                check(match, pairs, op, self._facts)
                if growth.remaining is not None and planned.bytes > max(growth.remaining, 0):
                    raise Impossible("it would exceed the size budget of the file")
        except Impossible:
            for node in op.nodes:
                _detach(node)
            for value in (*(output for node in op.nodes for output in node.outputs), *op.constants):
                self._facts.forget(value)
            raise
        return op, pairs, planned

    def _insert(self, match: Match, op: Builder) -> p.Origins:
        """Insert the new constants and nodes with their provenance; return the merged origins of the matched nodes.

        Nodes built within `op.separate()` inherit from the `separate` nodes of the match, others from the rest of it.
        """
        own = [node for node in match.nodes if node not in match.separate and not self._borders.is_foreign(node, match)]
        separate = [node for node in match.nodes if node in match.separate]
        merged = p.bounded(p.merge(origins.origins(node) for node in own))
        for value in op.constants:
            op.scope.graph.initializers.add(value)
            origins.add_origins(value, merged)
        op.scope.graph.insert_before(match.root, op.nodes)
        for node in op.nodes:
            _inherit(node, separate if separate and node in op.separate_nodes else own)
            if node.domain and not op.scope.in_function:
                self._facts.model.opset_imports.setdefault(node.domain, 1)
        if match.survivor is not None:
            origins.add_origins(match.survivor, merged)
        return merged

    def raise_opset(self, planned: OpsetPlan) -> Change:
        """Convert a whole model to a newer operator set; every node keeps its origins."""
        model = self._facts.model
        model.ir_version = planned.ir_version
        model.opset_imports.pop("ai.onnx", None)
        model.opset_imports[""] = planned.new
        return _combined([self.replace(Match((node,)), rewrite, planned.old) for node, rewrite in planned.rewrites])

    def drop(self, value: ir.Value) -> Change:
        """Remove an initializer that nothing reads."""
        growth = self._facts.growth.drop(value)
        graph, size = self._pop_initializer(value)
        path = self._facts.scopes[graph].path
        return Change(RewriteKind.DROP, (), (), (), (), origins.origins(value), path, -1, -size, growth)

    def share(self, duplicates: Sequence[ir.Value], kept: ir.Value) -> Change:
        """Replace the uses of initializers by an equal one, and remove them."""
        merged = p.bounded(p.merge(origins.origins(value) for value in (*duplicates, kept)))
        users: list[ir.Node] = []
        freed, path, growth = 0, "", self._facts.growth.reuse(kept)
        for duplicate in duplicates:
            users += duplicate.consumers()
            duplicate.replace_all_uses_with(kept)
            growth += self._facts.growth.drop(duplicate)
            graph, size = self._pop_initializer(duplicate)
            freed, path = freed + size, self._facts.scopes[graph].path
        origins.add_origins(kept, merged)
        return Change(RewriteKind.SHARE, (), (), tuple(users), (), merged, path, -len(duplicates), -freed, growth)

    def drop_unused(self) -> None:
        """Remove the constants that rewrites left without a use and that no pass removed."""
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

    def _pop_initializer(self, value: ir.Value) -> tuple[ir.Graph, int]:
        graph, tensor = value.graph, value.const_value
        assert graph is not None
        assert value.name is not None
        is_needed = value.is_graph_input() or value.is_graph_output() or bool(value.uses())
        assert not is_needed, f"{value.name} is in use"
        del graph.initializers[value.name]
        self._facts.forget(value)
        return graph, tensor.nbytes if tensor is not None else 0

    def _move_uses(self, old: ir.Value, value: ir.Value) -> None:
        """Let `value` be read where `old` was, and become the graph output of the same name if `old` was one."""
        self._facts.carry_over(old, value)
        if value.type is None:
            value.type = old.type
        if value.shape is None and old.shape is not None and not value.is_graph_input():  # whose declaration is fixed
            value.shape = old.shape.copy()
        if old.is_graph_output():
            name, value.type, value.doc_string = old.name, old.type, old.doc_string
            value.shape = old.shape.copy() if old.shape is not None else None
            value.metadata_props.update(old.metadata_props)
            old.name = None
            value.name = name
        old.replace_all_uses_with(value, replace_graph_outputs=True)


def _inherit(node: ir.Node, sources: Sequence[ir.Node]) -> None:
    """Give a new node the merged origins of its sources.

    A node that replaces a single one also keeps the other metadata and the doc string of it.
    """
    if len(sources) == 1:
        node.metadata_props.update(sources[0].metadata_props)
        node.doc_string = sources[0].doc_string
        origins.copy_origins(sources[0], node)
        return
    if any(p.NAMESPACE in source.metadata_props for source in sources):
        node.metadata_props[p.NAMESPACE] = ""  # written with the tags later, from the merged origins
    origins.add_origins(node, p.merge(map(origins.origins, sources)), sources)


def _ref(node: ir.Node) -> NodeRef:
    """Return a record of a node as it is now, with what it reads and produces."""
    inputs = tuple(value.name or "" if value is not None else "" for value in node.inputs)
    return NodeRef(
        label(node), node.op_type, inputs, tuple(value.name or "" for value in node.outputs), origins.owner(node)
    )


def _combined(changes: Sequence[Change]) -> Change:
    """Return several changes as one."""
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
    """Return the replaced values, each with its replacement."""
    new = (result,) if isinstance(result, ir.Value) else tuple(result)
    if len(new) != len(match.replaced):
        raise Impossible("it returns a different number of values than it replaces")
    pairs = [(old, value) for old, value in zip(match.replaced, new, strict=True) if value is not None]
    if any(old is value for old, value in pairs):
        raise Impossible("it replaces a value by itself")
    return pairs


def _check_interface(old: ir.Value, value: ir.Value, op: Builder, pairs: Pairs) -> None:
    """Refuse to replace a graph output unless the value is produced in the same graph and is not an output itself."""
    if not old.is_graph_output():
        return
    producer = value.producer()
    if producer is None or value.is_graph_output() or sum(other is value for _, other in pairs) > 1:
        raise Impossible("the graph's output would lose its name")
    if producer not in op.nodes and producer.graph is not op.scope.graph:
        raise Impossible("a body cannot return a value from outside it")


def _release_bodies(node: ir.Node) -> list[ir.Node]:
    """Detach and return the nodes in the bodies of a removed node, so that they no longer count as consumers."""
    inner: list[ir.Node] = []
    for _, body in bodies(node):
        for body_node in body:
            inner += [*_release_bodies(body_node), body_node]
            _detach(body_node)
    return inner


def _detach(node: ir.Node) -> None:
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)


def _kind(match: Match, op: Builder) -> RewriteKind:
    if match.survivor is not None:
        return RewriteKind.SHARE
    if any(not is_constant(node) for node in op.nodes):
        return RewriteKind.FUSE
    if op.constants or op.nodes:
        return RewriteKind.FOLD
    return RewriteKind.BYPASS if match.replaced else RewriteKind.DROP


def _constant_bytes(node: ir.Node) -> int:
    tensor = constant_tensor(node) if is_constant(node) else None
    return tensor.nbytes if tensor is not None else 0
