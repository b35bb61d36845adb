"""The number of bytes by which a model exceeds its source, and the budget for it that all rewrites of a run share.

Tensors (as stored) and nodes are counted, but not tags, which are written at the end. A constant that a rewrite leaves
without a use is not counted: it is removed before the model is written. Invariant: `Growth.total` is the size of the
model minus the size of its source minus the sizes of the constants in `Growth.unused`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.scopes import bodies, is_constant, is_used_outside, nodes_inside, scopes, tensor_of
from sardonyx.ir.tensors import KEPT, SparseTensor

GROWTH_DIVISOR, SLACK_BYTES = 100, 1 << 16  # a model may grow by 1/GROWTH_DIVISOR of its source plus SLACK_BYTES bytes
OVERHEAD_BYTES = 16  # of a node, tensor or attribute in addition to its names and data
_INTEGER_BYTES = 4  # approximate bytes of a number in an attribute
_MANY_USES = 256  # uses above which a constant is assumed to stay in use

Pairs = Sequence[tuple[ir.Value, ir.Value]]
_A = ir.AttributeType


class Planned(Struct, frozen=True, eq=False):
    """The effect of a rewrite: additional bytes, and the constants that become unused or used."""

    bytes: int
    unused: tuple[ir.Value, ...]
    used: tuple[ir.Value, ...]  # those that were unused before
    dead: tuple[ir.Node, ...]  # in an order in which they can be removed


class Growth(Struct, eq=False):
    """The size account of one run."""

    limit: int | None = None  # None: unlimited
    total: int = 0
    unused: dict[ir.Value, int] = field(
        default_factory=dict[ir.Value, int]
    )  # with their sizes, which are already subtracted

    @property
    def remaining(self) -> int | None:
        """Return the number of bytes that may still be added, or None if there is no limit."""
        return None if self.limit is None else self.limit - self.total

    def plan(
        self, old: Sequence[ir.Node], pairs: Pairs, new: Sequence[ir.Node], constants: Iterable[ir.Value]
    ) -> Planned:
        """Return the effect of replacing old nodes by new nodes and constants."""
        dead = dead_nodes(old, pairs)
        added = sum(map(node_bytes, new)) + sum(map(_constant_bytes, constants))
        operands = dict.fromkeys([value for node in new for value in node.inputs] + [value for _, value in pairs])
        used = tuple(value for value in operands if value is not None and value in self.unused)
        added += sum(self.unused[value] for value in used)
        for node in dead:
            if not is_constant(node) or node.outputs[0] not in self.unused:
                added -= node_bytes(node)
        unused = tuple(
            value
            for value in dict.fromkeys(value for node in dead for value in node.inputs if value is not None)
            if value not in self.unused and value not in operands and _is_constant_of(value, dead)
        )
        return Planned(added - sum(map(_constant_bytes, unused)), unused, used, dead)

    def record(self, planned: Planned) -> None:
        """Record a rewrite that was performed."""
        self.total += planned.bytes
        for value in planned.used:
            del self.unused[value]
        self.unused.update((value, _constant_bytes(value)) for value in planned.unused)

    def drop(self, value: ir.Value) -> int:
        """Record the removal of an initializer and return the change in bytes, 0 if it was already subtracted."""
        change = 0 if self.unused.pop(value, None) is not None else -_constant_bytes(value)
        self.total += change
        return change

    def reuse(self, value: ir.Value) -> int:
        """Record that a constant is used again and return the change in bytes."""
        change = self.unused.pop(value, 0)
        self.total += change
        return change


def allowance(model: ir.Model) -> int:
    """Return the number of bytes by which a model may grow."""
    size = 0
    for scope in scopes(model):
        size += sum(map(_constant_bytes, scope.graph.initializers.values()))
        size += sum(node_bytes(node) for node in scope.graph if is_constant(node))
    return size // GROWTH_DIVISOR + SLACK_BYTES


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the size of a tensor in a file, which may have a shorter form for it than memory."""
    if isinstance(tensor, KEPT):
        return tensor.skeleton.ByteSize()
    if isinstance(tensor, SparseTensor):
        return tensor.values.nbytes + tensor.indices.nbytes
    if isinstance(tensor, ir.StringTensor):
        return sum(len(text) + 2 for text in tensor.string_data())
    return tensor.nbytes


def node_bytes(node: ir.Node) -> int:
    """Return the approximate size of a node in a file, with its bodies but without its metadata."""
    size = OVERHEAD_BYTES + len(node.name or "") + len(node.op_type) + len(node.domain)
    for value in (*node.inputs, *node.outputs):
        if value is not None:
            size += 2 + len(value.name or "")
    for attribute in node.attributes.data.values():
        size += OVERHEAD_BYTES + len(attribute.name) + _attribute_bytes(attribute)
    for _, body in bodies(node):
        size += sum(map(node_bytes, body)) + sum(map(_constant_bytes, body.initializers.values()))
    return size


def _attribute_bytes(attribute: ir.Attr) -> int:
    if attribute.is_ref():
        return 0
    match attribute.type:
        case _A.TENSOR | _A.SPARSE_TENSOR:
            return tensor_bytes(tensor_of(attribute))
        case _A.TENSORS:
            return sum(map(tensor_bytes, attribute.value))
        case _A.STRING:
            return len(attribute.value)
        case _A.INTS | _A.FLOATS:
            return _INTEGER_BYTES * len(attribute.value)
        case _A.STRINGS:
            return sum(2 + len(text) for text in attribute.value)
        case _:
            return 0


def _constant_bytes(value: ir.Value) -> int:
    """Return the size of an initializer or a Constant node."""
    producer = value.producer()
    if producer is not None:
        return node_bytes(producer)
    tensor = value.const_value
    return 0 if tensor is None else tensor_bytes(tensor) + OVERHEAD_BYTES + len(value.name or "")


def dead_nodes(nodes: Sequence[ir.Node], pairs: Pairs) -> tuple[ir.Node, ...]:
    """Return the nodes that nothing uses once the pairs are replaced, in an order in which they can be removed."""
    replaced = {old for old, _ in pairs}
    gone: set[ir.Node] = set()  # the nodes so far, and those in their bodies

    def is_used(value: ir.Value) -> bool:
        read_as = [old for old, new in pairs if new is value] + ([] if value in replaced else [value])
        return any(is_used_outside(each, gone) for each in read_as)

    dead: list[ir.Node] = []
    candidates = list(dict.fromkeys(reversed(nodes)))
    while True:
        remaining: list[ir.Node] = []
        for node in candidates:
            if any(map(is_used, node.outputs)):
                remaining.append(node)
            else:
                dead.append(node)
                gone.update((node, *nodes_inside(node)))
        if len(remaining) == len(candidates):
            return tuple(dead)
        candidates = remaining


def _is_constant_of(value: ir.Value, nodes: Sequence[ir.Node]) -> bool:
    """Return whether a value is a constant that only these nodes use."""
    producer = value.producer()
    if producer in nodes or value.is_graph_output() or value.is_graph_input():
        return False
    if not (value.is_initializer() if producer is None else is_constant(producer)):
        return False
    return len(value.uses()) <= _MANY_USES and all(use.node in nodes for use in value.uses())
