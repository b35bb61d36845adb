"""The nodes of a model that depend on constants only, and the sizes of their results before they are computed.

Sizes come from shape inference. If a size depends on values, such as the length of a Range, those values are computed,
if they are small, and stored outside the graph; then further sizes can be inferred. So nothing large is computed only
to find out that it is large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from sardonyx.ir.facts import SMALL, Evaluate, Facts
from sardonyx.passes._foldable import LARGE, divides_safely, give_up, is_foldable
from sardonyx.passes.folding._evaluation import ConstantModel, Constants, Form, evaluate_in_parts

REGION_BYTES = 1 << 26  # constants in all regions together
WORKSPACE = 1 << 24  # bytes of an intermediate result

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
            elif size > WORKSPACE:
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
            if (self.size(producer, (value,)) or 0) <= SMALL:
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
                and _reads_small_constants(node, graph, nodes)
                and is_foldable(node, graph)
            ):
                nodes[node] = len(nodes)
                constant_bytes += sum(
                    tensor.nbytes for value in node.inputs if (tensor := graph.tensor(value)) is not None
                )
    return [Region(nodes, graph) for nodes in groups.values() if nodes]


def _reads_small_constants(node: ir.Node, graph: Facts, nodes: Mapping[ir.Node, int]) -> bool:
    for value in node.inputs:
        if value is None or value.producer() in nodes:
            continue
        tensor = graph.tensor(value)
        if tensor is None or tensor.nbytes > LARGE:
            return False
    return divides_safely(node, graph)
