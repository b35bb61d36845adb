"""f(constants) => a constant.

Evaluated in batches by the engine the pipeline gives; Constant nodes become initializers. Refuses what would grow the
model past its budget, judged by the size before anything is computed, and what no engine can evaluate. Never folds
random or quantization operators, nodes with bodies, function calls or operators outside the standard, nor anything
that reads an initializer a caller may override. Helps because exporters compute masks, indices and shapes from
constants on every call, and because fusions look for constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from sardonyx.graph.build import BARE_INITIALIZERS
from sardonyx.graph.facts import Evaluate, Facts
from sardonyx.graph.rules import Match, Proposal, Refused
from sardonyx.graph.tensors import reshaped
from sardonyx.passes.base import Example, ModelPass
from sardonyx.passes.evaluation import ConstantModel, Form, as_constants, as_tensor, evaluate_in_parts
from sardonyx.passes.foldable import (
    FAILED,
    GROWS,
    LARGE,
    OUTPUT,
    Budget,
    divides_safely,
    freed_bytes,
    give_up,
    is_foldable,
)
from sardonyx.passes.large_constants import fold_large
from sardonyx.record import Accuracy

ROUNDS = 4  # batches in one go: the sizes of some results follow only from earlier ones
CONE = 256  # makers of a folded value whose origins it inherits; bounds the cost of long shared chains
HELD = 1 << 26  # bytes of constants in one batch
WORKSPACE = 1 << 24  # bytes of a result that is only needed on the way

_DATA_DEPENDENT = frozenset({"NonZero", "Unique", "Compress"})  # their results are bounded by their inputs


class FoldConstants(ModelPass):
    """Everything that depends on constants alone."""

    name = "fold-constants"
    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1.0, 2.0}> {
                two = Constant <value = float {2.0}> ()
                a = Mul(w, two)  b = Sqrt(w)  c = Mul(b, w)  d = Sub(c, c)  e = Add(a, d)  y = Mul(x, e)
            }
        """,
        after="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N, 2] x) => (float[N, 2] y) <float[2] e = {2.0, 4.0}> { y = Mul(x, e) }
        """,
        near_miss="""
            <ir_version: 10, opset_import: ["" : 18]>
            agraph (float[N] x) => (float[1000000] y) <int64[1] many = {1000000}> {
                a = ConstantOfShape(many)  y = Add(x, a)
            }
        """,
        refusal=GROWS,
    )

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Constant nodes, then what a batch of evaluations gives, then large weights one at a time."""
        yield from _lift(graph)
        if graph.evaluate is None:
            return
        budget = Budget.of(graph)
        for _ in range(ROUNDS):
            folded = False
            for batch in _batches(graph):
                for proposal in _fold(batch, graph, graph.evaluate, budget):
                    folded |= isinstance(proposal, Proposal)
                    yield proposal
            if not folded:
                break
        yield from fold_large(graph, graph.evaluate, budget)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Nodes that can be evaluated together, in order, and what is known of their results."""

    order: Mapping[ir.Node, int]
    forms: Mapping[ir.Value, Form]
    burdens: Sequence[ir.Node]  # nodes whose results are too large even on the way


# Constant nodes


def _lift(graph: Facts) -> Iterator[Proposal]:
    """Constant nodes become initializers where a graph may have some that are no inputs."""
    if graph.model.ir_version < BARE_INITIALIZERS:
        return
    for scope in graph.live_scopes():
        if scope.in_function:
            continue
        for node in scope.graph:
            if node.op_type != "Constant" or node.domain != "" or not node.outputs[0].uses():
                continue
            tensor = graph.tensor(node.outputs[0])
            if tensor is not None and not node.outputs[0].is_graph_output():
                yield Proposal(Match((node,)), partial(as_constants, (_copy(tensor),)))


def _copy(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor that can be named without renaming the one in the source."""
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(list(tensor.string_data()), shape=ir.Shape(tensor.shape.numpy()))
    if tensor.nbytes > LARGE:
        return reshaped(tensor, tensor.shape.numpy())
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype)


# What can be folded


def _batches(graph: Facts) -> Iterator[_Batch]:
    """One for every operator set version in the model."""
    groups: dict[int, dict[ir.Node, int]] = {}
    held = 0
    for scope in graph.live_scopes():
        nodes = groups.setdefault(scope.opset, {})
        for node in scope.graph:
            if held < HELD and is_foldable(node, graph) and _reads_small_constants(node, graph, nodes):
                nodes[node] = len(nodes)
                held += sum(tensor.nbytes for value in node.inputs if (tensor := graph.tensor(value)) is not None)
    for nodes in groups.values():
        if nodes:
            yield _sized(nodes, graph)


def _reads_small_constants(node: ir.Node, graph: Facts, nodes: Mapping[ir.Node, int]) -> bool:
    for value in node.inputs:
        if value is None or value.producer() in nodes:
            continue
        tensor = graph.tensor(value)
        if tensor is None or tensor.nbytes > LARGE:
            return False
    return divides_safely(node, graph)


def _sized(nodes: Mapping[ir.Node, int], graph: Facts) -> _Batch:
    """Those nodes whose results have a known size that is no burden, as have all they need."""
    made = [value for node in nodes for value in node.outputs if value.name]
    forms = {value: Form(graph.dtype(value), graph.static_shape(value)) for value in made}
    if any(form.bytes is None for form in forms.values()):
        forms |= ConstantModel(tuple(nodes), graph).forms()
    order: dict[ir.Node, int] = {}
    burdens: list[ir.Node] = []
    for node, place in nodes.items():
        if any(maker in nodes and maker not in order for maker in node.predecessors()):
            continue
        size = _size(node, forms, graph)
        if size is not None and size <= WORKSPACE:
            order[node] = place
        elif size is not None:
            burdens.append(node)
    return _Batch(order, forms, burdens)


def _size(node: ir.Node, forms: Mapping[ir.Value, Form], graph: Facts) -> int | None:
    """How many bytes a node's results take at most; None where nothing bounds them."""
    sizes = [forms[value].bytes for value in node.outputs if value.name]
    if None not in sizes:
        return sum(size for size in sizes if size is not None)
    source = node.inputs[0]
    if node.op_type not in _DATA_DEPENDENT or source is None or (tensor := graph.tensor(source)) is None:
        return None
    return tensor.nbytes + 8 * tensor.size * (4 + len(tensor.shape))


# Folding


def _fold(batch: _Batch, graph: Facts, engine: Evaluate, budget: Budget) -> Iterator[Proposal | Refused]:
    """Replace what others read of the batch's results."""
    yield from (Refused(GROWS, (node,)) for node in batch.burdens)
    vanishing = dict(batch.order)
    wanted: dict[ir.Node, dict[ir.Value, Form]] = {}
    for node in reversed(tuple(batch.order)):
        read = [value for value in node.outputs if _is_read_outside(value, vanishing)]
        if not read:
            continue
        reason = _refusal(node, read, vanishing, batch, graph, budget)
        if reason is not None:
            del vanishing[node]
            yield Refused(reason, (node,))
            continue
        wanted[node] = {value: batch.forms[value] for value in read}
    roots = sorted(wanted, key=batch.order.__getitem__)
    if not roots:
        return
    for root, arrays in tuple(evaluate_in_parts(roots, wanted, batch.order, graph, engine)):
        if arrays is None:
            give_up(root)
            yield Refused(FAILED, (root,))
            continue
        tensors = [as_tensor(array, form.dtype) for array, form in zip(arrays, wanted[root].values(), strict=True)]
        match = Match((*_makers(root, vanishing, wanted), root), outputs=tuple(wanted[root]))
        yield Proposal(match, partial(as_constants, tensors))


def _is_read_outside(value: ir.Value, vanishing: Mapping[ir.Node, int]) -> bool:
    maker = value.producer()
    assert maker is not None
    return value.is_graph_output() or any(
        use.node not in vanishing or use.node.graph is not maker.graph for use in value.uses()
    )


def _refusal(
    node: ir.Node,
    read: Iterable[ir.Value],
    vanishing: Mapping[ir.Node, int],
    batch: _Batch,
    graph: Facts,
    budget: Budget,
) -> str | None:
    """Why a node's results must not become constants."""
    if any(value.is_graph_output() for value in read):
        return OUTPUT
    size = sum(batch.forms[value].bytes or _size(node, batch.forms, graph) or 0 for value in read)
    cone = {*_makers(node, vanishing, {}), node}
    freed = sum(freed_bytes(value, cone, graph) for each in cone for value in dict.fromkeys(each.inputs))
    return None if budget.take(size - freed) else GROWS


def _makers(root: ir.Node, vanishing: Mapping[ir.Node, int], roots: Mapping[ir.Node, object]) -> tuple[ir.Node, ...]:
    """The nodes whose work goes into a root's constant and into no other one's, makers first."""
    found: dict[ir.Node, None] = {}
    left = [root]
    while left and len(found) < CONE:
        for maker in left.pop().predecessors():
            if maker in vanishing and maker not in roots and maker not in found:
                found[maker] = None
                left.append(maker)
    return tuple(sorted(found, key=vanishing.__getitem__))
