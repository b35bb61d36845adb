"""The nodes of a model that depend on constants alone, and how large their results are before they are computed.

Sizes come from shape inference. Where a size depends on values, such as the length of a Range, those values are
computed, if they are small, and kept beside the graph; then the next sizes follow. So nothing large is ever computed
to learn that it is large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from sardonyx.ir.facts import SMALL, Evaluate, Facts
from sardonyx.passes._foldable import LARGE, divides_safely, give_up, is_foldable
from sardonyx.passes.folding._evaluation import ConstantModel, Constants, Form, evaluate_in_parts

HELD = 1 << 26  # bytes of constants in one region
WORKSPACE = 1 << 24  # bytes of a result that is only needed on the way

_DATA_DEPENDENT = frozenset({"NonZero", "Unique", "Compress"})  # their results are bounded by their inputs


class Region:
    """Nodes that can be evaluated together, with their places in topological order, and the forms of their results."""

    def __init__(self, nodes: Mapping[ir.Node, int], graph: Facts) -> None:
        """Start with no node sized; `nodes` depend on constants and on each other alone."""
        self.constants = Constants(graph)
        self.nodes: dict[ir.Node, int] = {}  # those whose results have a known size that is no burden
        self.burdens: list[ir.Node] = []  # those whose results are too large even on the way
        self.failed: list[ir.Node] = []  # those no engine can evaluate
        made = (value for node in nodes for value in node.outputs if value.name)
        self.forms = {value: Form(graph.dtype(value), graph.static_shape(value)) for value in made}
        self._open = dict(nodes)  # those not sized yet

    @property
    def unsized(self) -> list[ir.Node]:
        """Nodes whose size nothing tells, and that are not waiting for another one's."""
        waiting = self._open
        return [node for node in waiting if not any(maker in waiting for maker in node.predecessors())]

    def size(self, node: ir.Node, values: Iterable[ir.Value] | None = None) -> int | None:
        """How many bytes a node's results, or some of them, take at most; None where nothing bounds them."""
        asked = node.outputs if values is None else values
        sizes = [self.forms[value].bytes for value in asked if value.name]
        if None not in sizes:
            return sum(size for size in sizes if size is not None)
        source = node.inputs[0]
        tensor = self.constants(source) if source is not None else None
        if node.op_type not in _DATA_DEPENDENT or tensor is None:
            return None
        return tensor.nbytes + 8 * tensor.size * (4 + len(tensor.shape))

    def learn(self, engine: Evaluate) -> None:
        """Learn sizes, then the small values that further sizes depend on, until nothing new follows."""
        while self._open:
            if any(self.size(node) is None for node in self._open):
                self.forms |= ConstantModel(tuple(self._open), self.constants, self.forms).forms()
            self._take_sized()
            if not self._learn_values(engine):
                return

    def _take_sized(self) -> None:
        waiting: dict[ir.Node, int] = {}
        lost = {*self.burdens, *self.failed}
        for node, place in self._open.items():
            makers = node.predecessors()
            size = self.size(node)
            if any(maker in lost for maker in makers):
                lost.add(node)
            elif size is None or any(maker in waiting for maker in makers):
                waiting[node] = place
            elif size > WORKSPACE:
                self.burdens.append(node)
                lost.add(node)
            else:
                self.nodes[node] = place
        self._open = waiting

    def _learn_values(self, engine: Evaluate) -> bool:
        """Evaluate small values that waiting nodes read; whether there were any."""
        wanted: dict[ir.Node, dict[ir.Value, Form]] = {}
        for value in dict.fromkeys(value for node in self._open for value in node.inputs):
            maker = value.producer() if value is not None else None
            if value is None or maker is None or maker not in self.nodes or value in self.constants.known:
                continue
            if (self.size(maker, (value,)) or 0) <= SMALL:
                wanted.setdefault(maker, {})[value] = self.forms[value]
        roots = sorted(wanted, key=self.nodes.__getitem__)
        for root, tensors in tuple(evaluate_in_parts(roots, wanted, self.nodes, self.constants, engine)):
            if tensors is None:
                self._fail(root)
            else:
                self.constants.known.update(zip(wanted[root], tensors, strict=True))
        return bool(roots)

    def _fail(self, culprit: ir.Node) -> None:
        """Take a node that cannot be evaluated out of the region, with all that need it."""
        give_up(culprit)
        self.failed.append(culprit)
        lost = {culprit}
        for node in self.nodes:
            if any(maker in lost for maker in node.predecessors()):
                lost.add(node)
        self.nodes = {node: place for node, place in self.nodes.items() if node not in lost}
        self._open = {node: place for node, place in self._open.items() if node not in lost}


def regions(graph: Facts) -> list[Region]:
    """One for every operator set version in the model."""
    groups: dict[int, dict[ir.Node, int]] = {}
    held = 0
    for scope in graph.live_scopes():
        nodes = groups.setdefault(scope.opset, {})
        for node in scope.graph:
            if held < HELD and _reads_small_constants(node, graph, nodes) and is_foldable(node, graph):
                nodes[node] = len(nodes)
                held += sum(tensor.nbytes for value in node.inputs if (tensor := graph.tensor(value)) is not None)
    return [Region(nodes, graph) for nodes in groups.values() if nodes]


def _reads_small_constants(node: ir.Node, graph: Facts, nodes: Mapping[ir.Node, int]) -> bool:
    for value in node.inputs:
        if value is None or value.producer() in nodes:
            continue
        tensor = graph.tensor(value)
        if tensor is None or tensor.nbytes > LARGE:
            return False
    return divides_safely(node, graph)
