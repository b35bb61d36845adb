"""f(constants) => a constant.

Evaluated in batches by the engine that the pipeline provides; Constant nodes become initializers. Refuses nodes that
would grow the model past its budget, judged by their size before anything is computed, and nodes that no engine can
evaluate. Never folds random or quantization operators, nodes with bodies, function calls, operators outside the
standard, or anything that reads an initializer a caller may override. Helps because exporters compute masks, indices
and shapes from constants on every call, and because fusions look for constants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from sardonyx.ir.facts import SMALL_CONSTANT_BYTES, Evaluate
from sardonyx.ir.ops import KEEPS_ORDER
from sardonyx.ir.tensors import ComputedTensor
from sardonyx.passes._evaluation import (
    FAILED,
    GROWS,
    MAX_HELD_BYTES,
    OUTPUT,
    UNSIZED,
    Budget,
    ConstantModel,
    Constants,
    Form,
    as_tensor,
    divides_safely,
    evaluate_in_parts,
    freed_bytes,
    give_up,
    grown_constants,
    is_foldable,
)
from sardonyx.passes.base import Accuracy, Example, Facts, Match, ModelPass, Proposal, Refused

MAX_INHERITED_PRODUCERS = 256  # producers whose origins a folded value inherits; bounds the cost of long shared chains

Vanishing = Mapping[ir.Node, int]


class FoldConstants(ModelPass):
    """Everything that depends on constants only."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1.0, 2.0}> {
                two = Constant <value = float {2.0}> ()
                a = Mul(w, two)  b = Sqrt(w)  c = Mul(b, w)  d = Sub(c, c)  e = Add(a, d)  y = Mul(x, e)
            }
        """,
        after="<float[2] e = {2.0, 4.0}> { y = Mul(x, e) }",
        near_miss="""
            (float[N] x) => (float[1000000] y) <int64[1] many = {1000000}> { a = ConstantOfShape(many)  y = Add(x, a) }
        """,
        refusal=GROWS,
    )

    def propose(self, graph: Facts) -> Iterator[Proposal | Refused]:
        """Propose small constants evaluated in batches, then large weights one at a time."""
        if graph.evaluate is None:
            return
        budget = Budget.of(graph)
        for region in regions(graph):
            yield from _fold(region, graph.evaluate, budget)
        yield from fold_large(graph, graph.evaluate, budget)


def _fold(region: Region, engine: Evaluate, budget: Budget) -> Iterator[Proposal | Refused]:
    """Replace the results that are read outside the region; what only the region reads disappears with it."""
    region.learn(engine)
    yield from (Refused(GROWS, (node,)) for node in region.oversized)
    yield from (Refused(UNSIZED, (node,)) for node in region.unsized)
    yield from (Refused(FAILED, (node,)) for node in region.failed)
    vanishing = dict(region.nodes)
    wanted: dict[ir.Node, dict[ir.Value, Form]] = {}
    growth: dict[ir.Node, int] = {}
    for node in reversed(tuple(region.nodes)):
        read = [value for value in node.outputs if _is_read_outside(value, vanishing)]
        if not read:
            continue
        growth[node] = _growth(node, read, vanishing, region)
        is_output = any(value.is_graph_output() for value in read)
        if is_output or not budget.take(growth[node]):
            del vanishing[node]
            yield Refused(OUTPUT if is_output else GROWS, (node,))
        else:
            wanted[node] = {value: region.forms[value] for value in read}
    for root, tensors in tuple(_values(region, wanted, engine)):
        if tensors is None:
            give_up(root)
            yield Refused(FAILED, (root,))
        else:
            match = Match((*_producers(root, vanishing, wanted), root), outputs=tuple(wanted[root]))
            yield Proposal(match, partial(grown_constants, tensors, growth[root]))


def _values(
    region: Region, wanted: Mapping[ir.Node, Mapping[ir.Value, Form]], engine: Evaluate
) -> Iterator[tuple[ir.Node, list[ir.TensorProtocol] | None]]:
    """Yield the values of the roots; those that sizes were inferred from are already known."""
    evaluated = region.constants.evaluated
    remaining: list[ir.Node] = []
    for root in sorted(wanted, key=region.nodes.__getitem__):
        if all(value in evaluated for value in wanted[root]):
            yield root, [evaluated[value] for value in wanted[root]]
        else:
            remaining.append(root)
    yield from evaluate_in_parts(remaining, wanted, region.nodes, region.constants, engine)


def _is_read_outside(value: ir.Value, vanishing: Vanishing) -> bool:
    producer = value.producer()
    assert producer is not None
    return value.is_graph_output() or any(
        use.node not in vanishing or use.node.graph is not producer.graph for use in value.uses()
    )


def _growth(node: ir.Node, read: list[ir.Value], vanishing: Vanishing, region: Region) -> int:
    """Return by how many bytes the model grows if the results are stored and what only they need is removed."""
    cone = {*_producers(node, vanishing, {}), node}
    inputs = (value for member in cone for value in dict.fromkeys(member.inputs))
    freed = sum(freed_bytes(value, cone, region.constants.graph) for value in inputs)
    return (region.size(node, read) or 0) - freed


def _producers(root: ir.Node, vanishing: Vanishing, roots: Mapping[ir.Node, object]) -> tuple[ir.Node, ...]:
    """Return the nodes whose work goes into the constant of one root only, in topological order."""
    positions: dict[ir.Node, int] = {}
    pending = [root]
    while pending and len(positions) < MAX_INHERITED_PRODUCERS:
        for producer in pending.pop().predecessors():
            if producer in positions or producer in roots:
                continue
            if producer in vanishing:
                positions[producer] = vanishing[producer]
                pending.append(producer)
            elif producer.op_type == "Constant" and producer.graph is root.graph:
                positions[producer] = -1
    return tuple(sorted(positions, key=positions.__getitem__))


# Fold nodes that read large weights, one at a time.
#
# Each is evaluated once to check that it can be. A large result is then discarded and computed again whenever it is
# read, so that memory depends on the largest weight and not on their sum.

MAX_FOLDED_BYTES = 1 << 27  # of inputs and results of one node; larger nodes are not evaluated
TOO_LARGE = "it is too large to evaluate"

_NOT_EVALUATED = KEEPS_ORDER | {"Transpose"}  # other passes fold these without reading the constant


def fold_large(graph: Facts, engine: Evaluate, budget: Budget) -> Iterator[Proposal | Refused]:
    """Propose every node of the model that reads a large constant and constants only."""
    values = (value for scope in graph.live_scopes() for value in scope.graph.initializers.values())
    large = (value for value in values if value.const_value is not None and value.const_value.nbytes > MAX_HELD_BYTES)
    for node in dict.fromkeys(user for value in large for user in value.consumers()):
        if node.op_type in _NOT_EVALUATED or not is_foldable(node, graph) or not _reads_constants(node, graph):
            continue
        read = [value for value in node.outputs if value.uses() or value.is_graph_output()]
        wanted = {value: Form(graph.dtype(value), graph.static_shape(value)) for value in read}
        if wanted:  # otherwise the node is dead and removed as such
            yield _folded(node, wanted, graph, engine, budget)


def _folded(
    node: ir.Node, wanted: Mapping[ir.Value, Form], graph: Facts, engine: Evaluate, budget: Budget
) -> Proposal | Refused:
    if any(value.is_graph_output() for value in wanted):
        return Refused(OUTPUT, (node,))
    results = [form.bytes for form in wanted.values()]
    size = sum(result for result in results if result is not None)
    inputs = dict.fromkeys(node.inputs)
    input_bytes = sum(tensor.nbytes for value in inputs if (tensor := graph.tensor(value)) is not None)
    if None in results or size + input_bytes > MAX_FOLDED_BYTES:
        return Refused(TOO_LARGE, (node,))
    growth = size - sum(freed_bytes(value, {node}, graph) for value in inputs)
    if not budget.take(growth):
        return Refused(GROWS, (node,))
    model = ConstantModel((node,), Constants(graph))
    arrays = model.evaluate(wanted, engine)
    if arrays is None:
        give_up(node)
        return Refused(FAILED, (node,))
    results_by_value = zip(wanted.items(), arrays, strict=True)
    tensors = [_stored(model, value, form, array, engine) for (value, form), array in results_by_value]
    return Proposal(Match((node,), outputs=tuple(wanted)), partial(grown_constants, tensors, growth))


def _stored(
    model: ConstantModel, value: ir.Value, form: Form, array: np.ndarray, engine: Evaluate
) -> ir.TensorProtocol:
    """Return a small result as a tensor, and a large one as a lazy tensor."""
    assert form.dtype is not None
    assert form.shape is not None
    if array.nbytes <= MAX_HELD_BYTES:
        return as_tensor(array, form.dtype)

    def compute() -> np.ndarray:
        arrays = model.evaluate({value: form}, engine)
        if arrays is None:
            raise AssertionError(f"{value.name} was computed once but cannot be computed again")
        return arrays[0]

    return ComputedTensor(form.dtype, form.shape, compute)


# The nodes of a model that depend on constants only, and the sizes of their results before they are computed.
#
# Sizes come from shape inference. If a size depends on values, such as the length of a Range, those values are
# computed, if they are small, and stored outside the graph; then further sizes can be inferred. So nothing large is
# computed only to find out that it is large.

REGION_BYTES = 1 << 26  # constants in all regions together
WORKSPACE_BYTES = 1 << 24  # of an intermediate result

_DATA_DEPENDENT = frozenset({"NonZero", "Unique", "Compress"})  # their results are bounded by their inputs


class Region:
    """Nodes that can be evaluated together, with their topological order, and the forms of their results."""

    def __init__(self, nodes: Mapping[ir.Node, int], graph: Facts) -> None:
        """Start with no node sized; `nodes` depend only on constants and on each other."""
        self.constants = Constants(graph)
        self.nodes: dict[ir.Node, int] = {}  # nodes whose results have a known, acceptable size
        self.oversized: list[ir.Node] = []  # nodes whose results are too large even as intermediates
        self.failed: list[ir.Node] = []  # nodes that no engine can evaluate
        results = (value for node in nodes for value in node.outputs if value.name)
        self.forms = {value: Form(graph.dtype(value), graph.static_shape(value)) for value in results}
        self._waiting = dict(nodes)  # nodes not sized yet

    @property
    def unsized(self) -> list[ir.Node]:
        """Return the nodes of unknown size that do not wait for the size of another node."""
        waiting = self._waiting
        return [node for node in waiting if not any(producer in waiting for producer in node.predecessors())]

    def size(self, node: ir.Node, values: Iterable[ir.Value] | None = None) -> int | None:
        """Return an upper bound of the bytes of all or some results of a node, or None if there is none."""
        outputs = node.outputs if values is None else values
        sizes = [self.forms[value].bytes for value in outputs if value.name]
        if None not in sizes:
            return sum(size for size in sizes if size is not None)
        source = node.inputs[0]
        tensor = self.constants(source) if source is not None else None
        if node.op_type not in _DATA_DEPENDENT or tensor is None:
            return None
        return tensor.nbytes + 8 * tensor.size * (4 + len(tensor.shape))

    def learn(self, engine: Evaluate) -> None:
        """Infer sizes, then evaluate the small values that further sizes depend on, until nothing new follows."""
        while self._waiting:
            if any(self.size(node) is None for node in self._waiting):
                self.forms |= ConstantModel(tuple(self._waiting), self.constants, self.forms).forms()
            self._take_sized()
            if not self._learn_values(engine):
                return

    def _take_sized(self) -> None:
        waiting: dict[ir.Node, int] = {}
        lost = {*self.oversized, *self.failed}
        for node, place in self._waiting.items():
            predecessors = node.predecessors()
            size = self.size(node)
            if any(producer in lost for producer in predecessors):
                lost.add(node)
            elif size is None or any(producer in waiting for producer in predecessors):
                waiting[node] = place
            elif size > WORKSPACE_BYTES:
                self.oversized.append(node)
                lost.add(node)
            else:
                self.nodes[node] = place
        self._waiting = waiting

    def _learn_values(self, engine: Evaluate) -> bool:
        """Evaluate small values that waiting nodes read; return whether there were any."""
        wanted: dict[ir.Node, dict[ir.Value, Form]] = {}
        for value in dict.fromkeys(value for node in self._waiting for value in node.inputs):
            producer = value.producer() if value is not None else None
            if value is None or producer is None or producer not in self.nodes or value in self.constants.evaluated:
                continue
            if (self.size(producer, (value,)) or 0) <= SMALL_CONSTANT_BYTES:
                wanted.setdefault(producer, {})[value] = self.forms[value]
        roots = sorted(wanted, key=self.nodes.__getitem__)
        for root, tensors in tuple(evaluate_in_parts(roots, wanted, self.nodes, self.constants, engine)):
            if tensors is None:
                self._fail(root)
            else:
                self.constants.evaluated.update(zip(wanted[root], tensors, strict=True))
        return bool(roots)

    def _fail(self, failed: ir.Node) -> None:
        """Remove a node that cannot be evaluated from the region, with all nodes that depend on it."""
        give_up(failed)
        self.failed.append(failed)
        lost = {failed}
        for node in self.nodes:
            if any(producer in lost for producer in node.predecessors()):
                lost.add(node)
        self.nodes = {node: place for node, place in self.nodes.items() if node not in lost}
        self._waiting = {node: place for node, place in self._waiting.items() if node not in lost}


def regions(graph: Facts) -> list[Region]:
    """Return one region for every opset version in the model."""
    groups: dict[int, dict[ir.Node, int]] = {}
    constant_bytes = 0
    for scope in graph.live_scopes():
        nodes = groups.setdefault(scope.opset, {})
        for node in scope.graph:
            if (
                constant_bytes < REGION_BYTES
                and _reads_constants(node, graph, nodes, MAX_HELD_BYTES)
                and is_foldable(node, graph)
            ):
                nodes[node] = len(nodes)
                constant_bytes += sum(
                    tensor.nbytes for value in node.inputs if (tensor := graph.tensor(value)) is not None
                )
    return [Region(nodes, graph) for nodes in groups.values() if nodes]


def _reads_constants(
    node: ir.Node, graph: Facts, nodes: Collection[ir.Node | None] = (), most: float = math.inf
) -> bool:
    """Return whether a node reads only constants of at most so many bytes and results of these nodes."""
    for value in node.inputs:
        if value is None or value.producer() in nodes:
            continue
        tensor = graph.tensor(value)
        if tensor is None or tensor.nbytes > most:
            return False
    return divides_safely(node, graph)
