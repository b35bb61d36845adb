"""Find the attention sites of a model: a Softmax between two products of activations, or a fused attention operator."""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from onnx_ir.passes.common import InlinePass

from sardonyx.ir.facts import Dataflow, Dependence, constant_tensor
from sardonyx.ir.ops import (
    ALL_CONVOLUTIONS,
    ALL_PRODUCTS,
    ATTENTION_NAMES,
    ORDERS,
    READS_SHAPE,
    AttentionOperands,
    attention_operands,
)
from sardonyx.ir.scopes import MAX_CALL_DEPTH, bodies, inlined, inlining_limit, is_constant

# The view of a model that the fingerprint works on: live nodes in order, functions inlined, with their data flow.

NEAR_VALUES = 64  # values that a search across layers visits: enough for a few layers in any decomposition
LAYER_VALUES = 512  # values that a search between two layers visits: windowed attention takes hundreds of nodes

_DOMAINS = frozenset({"", "com.microsoft", "com.ms.internal.nhwc"})


class _NoNames(set[str]):
    """A set of names in use that reports every name as free."""

    def __contains__(self, name: object) -> bool:
        return False


class _Inline(InlinePass):
    """Inlining that allows duplicate names, in time linear in the nodes.

    The base class makes names unique by trying one number after another, which is quadratic in the number of calls of a
    function. Nothing that reads the result uses names.
    """

    def _reset(self, model: ir.Model) -> None:
        super()._reset(model)
        self._used_value_names = _NoNames()
        self._used_node_names = _NoNames()


class GraphView:
    """The live part of one model with its functions inlined in a copy; the model itself is not changed."""

    def __init__(self, model: ir.Model) -> None:
        model = _inlined(model) if model.functions else model
        self.model = model
        self.graph = model.graph
        self.names: dict[ir.Node, str] = {}  # live nodes in order, with their operators; "" for unknown domains
        self._flow = Dataflow(defaults_are_constants=True)
        live, with_bodies = _live(model.graph)
        for node in _in_order(model.graph, live, with_bodies):
            name = node.op_type if node.domain in _DOMAINS else ""
            self.names[node] = name
            self._flow.visit(node, op_type=name)

    def dependence(self, value: ir.Value) -> Dependence:
        """Return what a value depends on; an input with a default counts as a weight, as it was before IR version 4."""
        return self._flow.of(value)

    def is_data(self, value: ir.Value | None) -> bool:
        """Return whether a value depends on the data of the model's inputs."""
        return value is not None and self._flow.of(value) is Dependence.DATA

    def data(self, node: ir.Node) -> Iterator[ir.Value]:
        """Return the operands of a node that depend on the data of the model's inputs."""
        operands = self._flow.operands(node, self.names[node])
        return (value for value in operands if value is not None and self.is_data(value))

    def readers(self, value: ir.Value) -> list[ir.Node]:
        """Return the live nodes that read a value."""
        return [node for node in value.consumers() if node in self.names]

    def upward(self, start: ir.Value, stop: Container[ir.Node], limit: int = LAYER_VALUES) -> Iterator[ir.Value]:
        """Yield a value and the data it is computed from, nearest first, without passing the nodes in `stop`."""
        found = {start: None}
        queue = [start]
        for value in queue:  # which grows
            yield value
            producer = value.producer()
            if len(found) < limit and producer is not None and producer not in stop:
                new = dict.fromkeys(operand for operand in self.data(producer) if operand not in found)
                found.update(new)
                queue += new

    def chain(self, value: ir.Value | None, stop: Container[ir.Node]) -> Iterator[tuple[ir.Node, ir.Value]]:
        """Yield the nodes that a value is computed from, nearest first, with the only data that each reads."""
        while value is not None and (producer := value.producer()) in self.names and producer not in stop:
            data = list(self.data(producer))
            if len(data) != 1:
                return
            (value,) = data
            yield producer, value

    def downward(self, start: ir.Value, stop: Container[ir.Node]) -> Iterator[ir.Node]:
        """Yield the nodes that depend on a value, nearest first, without passing the nodes in `stop`."""
        found = {start: None}
        queue = [start]
        for value in queue:  # which grows
            for reader in self.readers(value) if len(found) < LAYER_VALUES else ():
                yield reader
                if reader not in stop:
                    new = {output: None for output in reader.outputs if output not in found and self.is_data(output)}
                    found.update(new)
                    queue += new


def above(start: ir.Node) -> set[ir.Node]:
    """Return all nodes that a node depends on."""
    ancestors: set[ir.Node] = set()
    waiting = [start]
    while waiting:
        for value in waiting.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer not in ancestors:
                ancestors.add(producer)
                waiting.append(producer)
    return ancestors


def _inlined(model: ir.Model) -> ir.Model:
    """Return a copy with all functions inlined, or the model itself if that fails or grows it too much."""
    from onnx_ir.passes import PreconditionError  # imported late: it loads every pass of onnx_ir

    size = inlined(model)
    if size.nodes > inlining_limit(model) or size.depth > MAX_CALL_DEPTH:
        return model
    copy = model.clone()
    for function in copy.functions.values():  # only operator names matter here, and those are the same in every opset
        function.opset_imports.update({domain: copy.opset_imports.get(domain, 1) for domain in function.opset_imports})
    try:
        _Inline()(copy)
    except (ValueError, PreconditionError):  # recursive calls, graphs as arguments, too many inputs
        return model
    return copy


def _live(graph: ir.Graph) -> tuple[set[ir.Node], set[ir.Node]]:
    """Return the nodes that the outputs depend on, those in bodies included, and those of them that have bodies."""
    needed: set[ir.Node] = set()
    with_bodies: set[ir.Node] = set()
    waiting = [value.producer() for value in graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in needed:
            continue
        needed.add(node)
        waiting.extend([value.producer() for value in node.inputs if value is not None])
        for _, body in bodies(node):
            with_bodies.add(node)
            waiting.extend([value.producer() for value in body.outputs])
    return needed, with_bodies


def _in_order(graph: ir.Graph, needed: set[ir.Node], with_bodies: set[ir.Node]) -> Iterator[ir.Node]:
    for node in graph:
        if node in needed:
            if node in with_bodies:
                for _, body in bodies(node):
                    yield from _in_order(body, needed, with_bodies)
            yield node


_TURNS = frozenset({"Sin", "Cos"})  # the rotary angles are not what queries and keys are projected from
_LAYERS = ALL_PRODUCTS | ALL_CONVOLUTIONS | _TURNS


class Site(Struct, frozen=True):
    """One attention site."""

    first: ir.Node  # the product of queries and keys, or the fused operator
    nodes: tuple[ir.Node, ...]  # that node, the Softmax and the product with the values; or the operator alone
    causal: bool
    cached: bool
    cross: bool


class Attention:
    """Finds the attention sites of one model."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        names = view.names
        candidates = (node for node, name in names.items() if name in ATTENTION_NAMES)  # a cheap first test
        self._fused = {node: slots for node in candidates if (slots := attention_operands(node)) is not None}
        lookups = {node for node, name in names.items() if name == "Gather" and not view.is_data(node.inputs[0])}
        self.layers = lookups | {node for node, name in names.items() if name in _LAYERS or node in self._fused}
        self.masks = Masks(view, self.layers)
        softmaxes = (node for node, name in names.items() if name == "Softmax")
        self._softmaxes = [node for node in softmaxes if view.is_data(node.outputs[0])]
        self._ends = {*self.layers, *self._softmaxes}  # past the next Softmax, the result belongs to that one
        after = ((node, view.downward(node.outputs[0], self._ends)) for node in self._softmaxes)
        pairs = ((node, next(filter(self.is_activation_product, below), None)) for node, below in after)
        self._weighted = {
            node: product for node, product in pairs if product is not None
        }  # of activations, by the Softmax
        self._results = {*self._weighted.values(), *self._fused}
        self.sites = tuple(self._sites())
        others = {*self._softmaxes}.difference(node for site in self.sites for node in site.nodes)
        # Softmaxes that weigh activations with scores that are no product of activations.
        self.pooling = sum(node in self._weighted or self._scales(node) for node in others)

    def is_activation_product(self, node: ir.Node) -> bool:
        """Return whether a node is a matrix product of two activations."""
        if self._view.names[node] not in ALL_PRODUCTS or len(node.inputs) < 2:
            return False
        return all(map(self._view.is_data, node.inputs[:2]))

    def _sites(self) -> Iterator[Site]:
        for node in self._view.names:
            if node in self._fused:
                yield self._fused_site(node, self._fused[node])
            elif node in self._weighted:
                site = self._decomposed_site(node, self._weighted[node])
                if site is not None:
                    yield site

    def _decomposed_site(self, softmax: ir.Node, result: ir.Node) -> Site | None:
        start = softmax.inputs[0]
        assert start is not None  # a Softmax whose result is data reads data
        for value in self._view.upward(start, self.layers):
            scores = value.producer()
            if scores in self.layers and self.is_activation_product(scores):
                query, key = scores.inputs[0], scores.inputs[1]
                assert query is not None  # checked by is_activation_product()
                assert key is not None
                cached = self._cached(key)
                causal = cached or self.masks.causal(start)
                return Site(scores, (scores, softmax, result), causal, cached, self._is_cross(query, key))
        return None

    def _fused_site(self, node: ir.Node, slots: AttentionOperands) -> Site:
        def operand(index: int) -> ir.Value | None:
            return node.inputs[index] if 0 <= index < len(node.inputs) else None

        query, key = operand(0), operand(slots.key)
        cached = any(operand(index) is not None for index in slots.past) or (key is not None and self._cached(key))
        masked = any(self.masks.causal(mask) for index in slots.masks if (mask := operand(index)) is not None)
        cross = query is not None and key is not None and self._is_cross(query, key)
        return Site(node, (node,), is_causal_operator(node, slots) or cached or masked, cached, cross)

    def _cached(self, key: ir.Value) -> bool:
        """Return whether the keys are appended to an input of the model, or are an output of it."""
        for value in self._view.upward(key, self.layers):
            if value.is_graph_output():
                return True
            producer = value.producer()
            if producer is not None and self._view.names[producer] == "Concat" and any(map(_is_input, producer.inputs)):
                return True
        return False

    def _is_cross(self, query: ir.Value, key: ir.Value) -> bool:
        """Return whether queries and keys have no source in common nearby."""
        return not (self._sources(query) & self._sources(key))

    def _sources(self, value: ir.Value) -> set[ir.Value]:
        """Return what a query or key is computed from: the input of the nearest layer, and its sources in turn.

        Without a layer the source is the graph input that is reached, such as the keys of a memory. An input that is
        reached in addition to a layer is a cache and does not count.
        """
        source = value
        for near in self._view.upward(value, self.layers):
            producer = near.producer()
            if producer is None:
                source = near
            elif producer in self.layers and self._view.names[producer] not in _TURNS:
                source = next(self._view.data(producer), near)
                break
        return set(self._view.upward(source, self._results, NEAR_VALUES))

    def _scales(self, softmax: ir.Node) -> bool:
        """Return whether the result of a Softmax is multiplied with activations elementwise."""
        return any(
            self._view.names[reader] == "Mul" and all(map(self._view.is_data, reader.inputs))
            for reader in self._view.downward(softmax.outputs[0], self._ends)
        )


def is_causal_operator(node: ir.Node, slots: AttentionOperands) -> bool:
    """Return whether an attention operator is causal by definition or by an attribute."""
    return slots.causal or any(node.attributes.get_int(name, 0) for name in ("is_causal", "unidirectional"))


def _is_input(value: ir.Value | None) -> bool:
    return value is not None and value.is_graph_input() and not value.is_initializer()


# Recognize causal masks: constant triangles, Trilu, and comparisons of positions.

_POSITIONS = frozenset({"Range", "CumSum"})
_LEAVES = READS_SHAPE | {"Range"}
_CORNER = 64  # rows and columns of a constant mask that are read
_MAX_BLOCKING = -1e4  # an additive mask blocks a position with this value or less; the least float16 is -65504


class Masks:
    """Recognizes the causal masks of one model; results are cached for each value."""

    def __init__(self, view: GraphView, ends: Container[ir.Node]) -> None:
        self._view = view
        self._ends = ends
        self._is_causal: dict[ir.Value, bool] = {}

    def causal(self, value: ir.Value) -> bool:
        """Return whether a value, or one it is computed from up to the nearest layers, is a causal mask."""
        for current in self._ancestors(value):
            is_causal = self._is_causal.get(current)
            if is_causal is None:
                is_causal = self._is_causal[current] = self._hides_later(current)
            if is_causal:
                self._is_causal[value] = True
                return True
        return False

    def _ancestors(self, start: ir.Value, leaves: Container[str] = _LEAVES) -> Iterator[ir.Value]:
        """Yield a value and what it is computed from, up to the nearest layers and operators in `leaves`."""
        waiting, seen = [start], {start}
        while waiting:
            value = waiting.pop()
            yield value
            producer = value.producer()
            if producer is not None and producer not in self._ends and self._view.names[producer] not in leaves:
                new = [source for source in producer.inputs if source is not None and source not in seen]
                seen.update(new)
                waiting += new

    def _hides_later(self, value: ir.Value) -> bool:
        """Return whether a value itself separates later positions from earlier ones."""
        tensor = _tensor(value)
        if tensor is not None:
            return is_triangle(tensor)
        producer = value.producer()
        if producer is None:
            return False
        if self._view.names[producer] == "Trilu":
            return not self._view.is_data(producer.inputs[0]) and not any(map(_flips, self._view.readers(value)))
        # Positions are compared with positions, not with a number or a length.
        return self._view.names[producer] in ORDERS and all(map(self._is_position, producer.inputs[:2]))

    def _is_position(self, start: ir.Value | None) -> bool:
        """Return whether a value counts positions: it is computed from a range or a running sum."""
        for value in () if start is None else self._ancestors(start, _LEAVES | _POSITIONS):
            tensor, producer = _tensor(value), value.producer()
            if tensor is not None:
                counts = _is_range(tensor)
            else:
                counts = (
                    producer is not None and producer not in self._ends and self._view.names[producer] in _POSITIONS
                )
            if counts:
                return True
        return False


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the constant tensor of a value, otherwise None."""
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    return constant_tensor(producer) if producer is not None and is_constant(producer) else None


def _flips(node: ir.Node) -> bool:
    """Return whether a node reverses an axis: such a triangle cuts off the corners of a window and is not causal."""
    steps = node.inputs[4] if node.op_type == "Slice" and len(node.inputs) > 4 else None
    tensor = _tensor(steps) if steps is not None else None
    return tensor is not None and bool((tensor.numpy() < 0).any())


def is_triangle(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant has one value on the diagonal and another right of it; only one corner is read."""
    dims = tuple(tensor.shape.numpy())
    if len(dims) < 2 or min(dims[-2:]) < 2 or min(dims) < 1 or tensor.dtype == ir.DataType.STRING:
        return False
    corner = tensor.numpy()[(0,) * (len(dims) - 2)][:_CORNER, :_CORNER]  # masks are often repeated over the batch
    size = min(corner.shape)
    corner = corner[:size, :size].astype(np.float64)
    later = corner[np.triu_indices(size, 1)]
    diagonal = np.diagonal(corner)
    if tensor.dtype.is_floating_point() and (later <= _MAX_BLOCKING).all():
        return bool((diagonal > _MAX_BLOCKING).all())
    return bool(
        (later == later[0]).all()
        and (diagonal != later[0]).all()
        and (diagonal == diagonal[0]).all()
        and {later[0], diagonal[0]} == {0, 1}
    )


def _is_range(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant counts up by one."""
    if tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or not 2 <= tensor.size <= 1 << 16:
        return False
    return bool((np.diff(tensor.numpy().reshape(-1)) == 1).all())
