"""f(x), f(x) => f(x) once.

Equal operator, attributes, inputs and present outputs, within one graph. Never for random operators, operators with
bodies, or operators outside the standard, which may have state. The operands of a commutative operator may be swapped.
Helps because exporters compute the same mask, shape or cast again in every layer.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import onnx_ir as ir

from sardonyx.ir.facts import SMALL_CONSTANT_BYTES
from sardonyx.ir.ops import COMMUTATIVE, RANDOM
from sardonyx.ir.scopes import Scope, tensor_of
from sardonyx.passes._evaluation import PLAIN_ATTRIBUTES
from sardonyx.passes.base import Accuracy, Example, Facts, Match, ModelPass, Proposal

_PURE_DOMAINS = frozenset({"", "ai.onnx.ml"})
_NEVER = RANDOM | {"Dropout"}  # a Dropout that remains after identity elimination runs in training mode
_SYMMETRIC_SINCE = 7  # before, only one operand could be broadcast, by an attribute

_A = ir.AttributeType


class ShareSubexpressions(ModelPass):
    """Duplicate nodes within one graph."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            (float[N, 4] x, float[N, 4] z) => (float[N, 4] y)
            { a = Exp(x)  b = Exp(x)  c = Add(a, z)  d = Add(z, b)  y = Mul(c, d) }
        """,
        after="{ a = Exp(x)  c = Add(a, z)  y = Mul(c, c) }",
        near_miss="{ a = Sub(x, z)  b = Sub(z, x)  y = Mul(a, b) }",
    )

    def propose(self, graph: Facts) -> Iterator[Proposal]:
        """Propose nodes without inputs first, all duplicates at once; then the later of two duplicates in order."""
        for scope in graph.live_scopes():
            for survivor, *duplicates in _equal_sources(scope):
                if duplicates:
                    yield _share(duplicates, survivor)
            seen: dict[Hashable, ir.Node] = {}
            for node in scope.graph:
                key = _key(node, scope)
                if key is None:
                    continue
                survivor = seen.setdefault(key, node)
                if survivor is not node:
                    yield _share([node], survivor)


def _equal_sources(scope: Scope) -> Iterable[list[ir.Node]]:
    """Return groups of equal nodes without inputs, in order; in some exports these are a third of the graph."""
    groups: dict[Hashable, list[ir.Node]] = defaultdict(list)
    for node in scope.graph:
        if node.inputs or any(output.is_graph_output() for output in node.outputs):
            continue
        if (key := _key(node, scope)) is not None:
            groups[key].append(node)
    return groups.values()


def _share(duplicates: Sequence[ir.Node], survivor: ir.Node) -> Proposal:
    present = tuple(output for duplicate in duplicates for output in duplicate.outputs if output.name)
    replacements = tuple(survivor.outputs[output.index() or 0] for output in present)
    return Proposal(Match(tuple(duplicates), outputs=present, survivor=survivor), lambda _: replacements)


def _key(node: ir.Node, scope: Scope) -> Hashable | None:
    """Return a key that is equal for nodes that compute the same, or None for nodes that must not be shared."""
    if node.domain not in _PURE_DOMAINS or node.op_type in _NEVER or not node.outputs:
        return None
    attributes: list[Hashable] = []
    for name in sorted(node.attributes):
        attribute_key = _attribute(node.attributes[name])
        if attribute_key is None:
            return None
        attributes.append((name, attribute_key))
    inputs = [0 if value is None else id(value) for value in node.inputs]
    while inputs and not inputs[-1]:
        inputs.pop()
    if node.domain == "" and node.op_type in COMMUTATIVE and scope.opset >= _SYMMETRIC_SINCE:
        inputs.sort()
    outputs = [bool(output.name) for output in node.outputs]
    while outputs and not outputs[-1]:
        outputs.pop()
    return node.domain, node.op_type, node.overload, tuple(attributes), tuple(inputs), tuple(outputs)


def _attribute(attribute: ir.Attr) -> Hashable | None:
    """Return an attribute by its bits, so that -0.0 and 0.0 differ; None if comparing it is expensive."""
    if attribute.is_ref():
        return "reference", attribute.ref_attr_name, attribute.type
    if attribute.type not in PLAIN_ATTRIBUTES:
        return None
    match attribute.type:
        case _A.TENSOR:
            return _tensor(tensor_of(attribute))
        case _A.FLOAT:
            return attribute.type, struct.pack("<d", attribute.as_float())
        case _A.FLOATS:
            return attribute.type, tuple(struct.pack("<d", item) for item in attribute.as_floats())
        case _A.INTS | _A.STRINGS:
            return attribute.type, tuple(attribute.value)
        case _:
            return attribute.type, attribute.value


def _tensor(tensor: ir.TensorProtocol) -> Hashable | None:
    if isinstance(tensor, ir.StringTensor):
        return tensor.dtype, tuple(tensor.shape.numpy()), tuple(tensor.string_data())
    if tensor.nbytes > SMALL_CONSTANT_BYTES:
        return id(tensor)
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
