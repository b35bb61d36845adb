"""How many bytes a model has more than its source, and how many it may have: one budget for all rewrites of a run.

Counted are the tensors, as they are stored, and the nodes; not the tags, which are written at the end. A constant that
a rewrite leaves without a use no longer counts: it goes before the model is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.ir.scopes import bodies, is_constant, scopes
from sardonyx.ir.tensors import HeldStrings, HeldTensor, SparseTensor

PART, SLACK = 100, 1 << 16  # the part of its source by which a model may grow, and the bytes besides
OVERHEAD = 16  # bytes of a node, tensor or attribute besides its names and data
_INTEGER = 4  # bytes of a number in an attribute, more or less
_MANY = 256  # uses from which on a constant is taken to be in use

Pairs = Sequence[tuple[ir.Value, ir.Value]]
_A = ir.AttributeType


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What a rewrite would come to: bytes more, and the constants that nothing would use any longer, or would again."""

    bytes: int
    unused: tuple[ir.Value, ...]
    used: tuple[ir.Value, ...]  # those that were without a use, and have one again


@dataclass(slots=True, eq=False)
class Growth:
    """The account of one run."""

    limit: int | None = None  # None: as much as it takes
    total: int = 0
    unused: dict[ir.Value, int] = field(default_factory=dict[ir.Value, int])  # with their sizes, taken off already

    @property
    def remaining(self) -> int | None:
        """Bytes that may still be added; None where any number may."""
        return None if self.limit is None else self.limit - self.total

    def plan(
        self, old: Sequence[ir.Node], pairs: Pairs, new: Sequence[ir.Node], constants: Iterable[ir.Value]
    ) -> Planned:
        """What it would come to that new nodes and constants replace old ones."""
        dying = _dying(old, pairs)
        added = sum(map(node_bytes, new)) + sum(map(_constant_bytes, constants))
        taken_up = dict.fromkeys([value for node in new for value in node.inputs] + [value for _, value in pairs])
        used = tuple(value for value in taken_up if value is not None and value in self.unused)
        added += sum(self.unused[value] for value in used)
        for node in dying:
            if not is_constant(node) or node.outputs[0] not in self.unused:
                added -= node_bytes(node)
        unused = tuple(value for value in _left_over(dying) if value not in self.unused and value not in taken_up)
        return Planned(added - sum(map(_constant_bytes, unused)), unused, used)

    def enter(self, planned: Planned) -> None:
        """The rewrite was carried out."""
        self.total += planned.bytes
        for value in planned.used:
            del self.unused[value]
        self.unused.update((value, _constant_bytes(value)) for value in planned.unused)

    def drop(self, value: ir.Value) -> int:
        """An initializer goes; the change in bytes, which is none where it was taken off before."""
        gone = 0 if self.unused.pop(value, None) is not None else -_constant_bytes(value)
        self.total += gone
        return gone

    def take_up(self, value: ir.Value) -> int:
        """A constant is used again; the change in bytes."""
        back = self.unused.pop(value, 0)
        self.total += back
        return back


def allowance(model: ir.Model) -> int:
    """How many bytes a model may grow by."""
    size = 0
    for scope in scopes(model):
        size += sum(map(_constant_bytes, scope.graph.initializers.values()))
        size += sum(node_bytes(node) for node in scope.graph if is_constant(node))
    return size // PART + SLACK


def stored_bytes(tensor: ir.TensorProtocol) -> int:
    """What a tensor takes in a file: not what it says where the file has a shorter form for it."""
    if isinstance(tensor, SparseTensor):
        return tensor.values.nbytes + tensor.indices.nbytes
    if isinstance(tensor, HeldStrings):
        return tensor.proto.ByteSize()
    if isinstance(tensor, HeldTensor):
        return tensor.stored_bytes
    if isinstance(tensor, ir.StringTensor):
        return sum(len(text) + 2 for text in tensor.string_data())
    return tensor.nbytes


def node_bytes(node: ir.Node) -> int:
    """What a node takes in a file, more or less, bodies included; not its metadata."""
    values = (*node.inputs, *node.outputs)
    size = OVERHEAD + len(node.name or "") + len(node.op_type) + len(node.domain)
    size += sum(2 + len(value.name or "") for value in values if value is not None)
    for attribute in node.attributes.data.values():
        size += OVERHEAD + len(attribute.name) + _attribute_bytes(attribute)
    for _, body in bodies(node):
        size += sum(map(node_bytes, body)) + sum(map(_constant_bytes, body.initializers.values()))
    return size


def _attribute_bytes(attribute: ir.Attr) -> int:
    if attribute.is_ref():
        return 0
    match attribute.type:
        case _A.TENSOR:
            return stored_bytes(attribute.as_tensor())
        case _A.TENSORS:
            return sum(map(stored_bytes, attribute.as_tensors()))
        case _A.STRING:
            return len(attribute.value)
        case _A.INTS | _A.FLOATS:
            return _INTEGER * len(attribute.value)
        case _A.STRINGS:
            return sum(2 + len(text) for text in attribute.value)
        case _A.SPARSE_TENSOR:
            return stored_bytes(attribute.value)
        case _:
            return 0


def _constant_bytes(value: ir.Value) -> int:
    """What an initializer or a Constant node takes."""
    producer = value.producer()
    if producer is not None:
        return node_bytes(producer)
    tensor = value.const_value
    return 0 if tensor is None else stored_bytes(tensor) + OVERHEAD + len(value.name or "")


def _dying(nodes: Sequence[ir.Node], pairs: Pairs) -> set[ir.Node]:
    """Those that nothing will use once the pairs are replaced."""
    replaced, dying = {old for old, _ in pairs}, set[ir.Node]()
    left = list(dict.fromkeys(reversed(nodes)))
    while True:
        kept = [node for node in left if not _is_dying(node, replaced, dying)]
        if len(kept) == len(left):
            return dying
        left = kept


def _is_dying(node: ir.Node, replaced: set[ir.Value], dying: set[ir.Node]) -> bool:
    for output in node.outputs:
        if output in replaced:
            continue
        if output.is_graph_output() or any(use.node not in dying for use in output.uses()):
            return False
    dying.add(node)
    return True


def _left_over(dying: set[ir.Node]) -> Iterator[ir.Value]:
    """The constants that only these nodes use."""
    for value in dict.fromkeys(value for node in dying for value in node.inputs if value is not None):
        producer = value.producer()
        if producer in dying or value.is_graph_output() or value.is_graph_input():
            continue
        if not (value.is_initializer() if producer is None else is_constant(producer)):
            continue
        if len(value.uses()) <= _MANY and all(use.node in dying for use in value.uses()):
            yield value
