"""Evaluate the source and the new nodes of all rewrites on one choice of inputs, and compare each pair of values."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from sardonyx_check import contrib  # noqa: F401  # defines operators
from sardonyx_check.graphs import FLOATS, Graph, Node, Stored, Value, captured
from sardonyx_check.numbers import ANY_CONSTANT, Array, Numbers, Real, Undecided
from sardonyx_check.operators import TABLE, Call, Tensor, tensor
from sardonyx_check.replay import Replay

ANY = 64  # elements from which a constant stands for any other of its shape
_CLOSE = 1e-4  # relative distance up to which unequal doubles may be a matter of rounding
_FEW = 0.02  # share of elements that may differ because a divisor is zero modulo the prime by chance
_KEPT = 1 << 29  # bytes of constants that are kept
_MOST_ITERATIONS = 100
_OVERFLOWS = {"Add", "Sub", "Mul", "MatMul", "Gemm", "Conv", "ReduceSum", "Sum", "CumSum"}
EQUAL, CLOSE, OPEN, UNEQUAL = range(4)  # results of a comparison, best first


class NotAccepted(Exception):
    """The source does not accept the inputs."""


@dataclass
class Unknown:
    """A value that cannot be computed, and why; a value that fails is one that the new nodes do not accept."""

    reason: str
    fails: bool = False


@dataclass(eq=False)
class Task:
    """A node to evaluate, or a pair to compare."""

    order: float
    needs: set[Value]
    node: Node | None = None
    pair: tuple[int, Value, Value] | None = None


@dataclass(eq=False)
class Plan:
    """The tasks of a graph."""

    tasks: list[Task]
    readers: dict[Value, list[int]]


@dataclass(eq=False)
class Activation:
    """One evaluation of a graph."""

    graph: Graph
    parent: Activation | None
    parameters: dict[str, onnx.AttributeProto]
    values: dict[Value, Tensor] = field(default_factory=dict)


class Trial:
    """One choice of inputs."""

    def __init__(self, replay: Replay, n: Numbers, *, any_weights: bool, plans: dict[Graph, Plan]) -> None:
        self._replay, self.n, self._any = replay, n, any_weights
        self.found: dict[
            int, tuple[int, str, bool]
        ] = {}  # by number of the rewrite: the worst result, the reason, whether few elements differ
        self.compared: dict[int, int] = defaultdict(int)  # elements
        self._plans = plans
        self._constants: OrderedDict[Value, Tensor] = OrderedDict()
        self._bytes = 0
        self._watched = {x.denotes for x, _ in replay.rounded}
        self.seen: dict[Value, Tensor] = {}  # values that constants stand for

    def run(self, feeds: dict[str, Tensor]) -> None:
        """Evaluate everything."""
        main = self._replay.source.main
        self._run(main, {v: feeds[v.name] for v in main.inputs}, None, {})

    # Graphs

    def _plan(self, graph: Graph) -> Plan:
        if graph in self._plans:
            return self._plans[graph]
        tasks: list[Task] = []
        for node in (*graph.nodes, *graph.added):
            read = {v for v in (*node.reads(), *captured(node)) if v is not None and self._is_computed(v, graph)}
            tasks.append(Task(node.order, read, node=node))
        for pair in graph.pairs:
            order = pair[1].producer.order if pair[1].producer is not None else 0.0
            both = pair[1], pair[2].denotes or pair[2]
            tasks.append(Task(order, {v for v in both if self._is_computed(v, graph)}, pair=pair))
        readers: dict[Value, list[int]] = defaultdict(list)
        for index, task in enumerate(tasks):
            for value in task.needs:
                readers[value].append(index)
        self._plans[graph] = Plan(tasks, readers)
        return self._plans[graph]

    def _is_computed(self, value: Value, graph: Graph) -> bool:
        return value.graph is graph and value.producer is not None

    def _run(
        self, graph: Graph, feeds: dict[Value, Tensor], parent: Activation | None, parameters: dict[str, Any]
    ) -> list[Tensor]:
        """Evaluate a graph; values are dropped after their last use."""
        act, plan = Activation(graph, parent, parameters, dict(feeds)), self._plan(graph)
        pending = [len(task.needs) for task in plan.tasks]
        left = {value: len(readers) for value, readers in plan.readers.items()}
        outputs = set(graph.outputs)
        ready = [(task.order, index) for index, task in enumerate(plan.tasks) if not task.needs]
        heapq.heapify(ready)
        while ready:
            _, index = heapq.heappop(ready)
            task = plan.tasks[index]
            if task.node is not None:
                self._node(task.node, act)
                for value in task.node.outputs:
                    for reader in plan.readers.get(value, ()) if value is not None else ():
                        pending[reader] -= 1
                        if not pending[reader]:
                            heapq.heappush(ready, (plan.tasks[reader].order, reader))
            elif task.pair is not None:
                self._compare(*task.pair, act)
            for value in task.needs:
                left[value] -= 1
                if not left[value] and value not in outputs:
                    act.values.pop(value, None)
        return [self._get(value, act) for value in graph.outputs]

    def _get(self, value: Value, act: Activation) -> Tensor:
        if value.constant is not None and not value.graph.inputs.count(value):
            return self._constant(value)
        at: Activation | None = act
        while at is not None:
            if at.graph is value.graph:
                return at.values.get(value, Unknown(f"{value.name!r} was not computed"))
            at = at.parent
        return Unknown(f"{value.name!r} is not visible")

    def _constant(self, value: Value) -> Tensor:
        if value in self._constants:
            self._constants.move_to_end(value)
            return self._constants[value]
        stored = value.constant
        assert stored is not None
        array = stored.array()
        if stored.type not in FLOATS or stored.size < ANY or is_special(stored, array):
            result: Tensor = tensor(self.n, array, stored.type)
        elif self._any:
            result = self.n.random(array.astype(np.float64), stored.type, stored.digest, ANY_CONSTANT)
        else:
            result = replace(tensor(self.n, array, stored.type), known=ANY_CONSTANT)
        self._constants[value] = result
        self._bytes += 16 * stored.size
        while self._bytes > _KEPT and len(self._constants) > 1:
            dropped, _ = self._constants.popitem(last=False)
            self._bytes -= 16 * dropped.constant.size if dropped.constant else 0
        return result

    # Nodes

    def _node(self, node: Node, act: Activation) -> None:
        inputs = [None if v is None else self._get(v, act) for v in node.reads()]
        lost = next((v for v in inputs if isinstance(v, Unknown)), None)
        results: list[Tensor] = []
        if lost is None:
            try:
                results = self.evaluate(node, inputs, act)
            except Undecided as error:
                lost = Unknown(str(error))
            except (ValueError, IndexError, TypeError, KeyError, AttributeError, AssertionError) as error:
                if not node.is_new:
                    raise NotAccepted(f"{node.op}: {error}") from None
                lost = Unknown(f"{node.op} does not accept what the source does: {error}", fails=True)
        for index, value in enumerate(node.outputs):
            if value is not None:
                act.values[value] = result = lost if lost is not None else results[index]
                if value in self._watched:
                    self.seen[value] = result

    def evaluate(self, node: Node, inputs: list[Tensor], act: Activation) -> list[Tensor]:
        """Evaluate a node."""
        function = self._function(node, inputs)
        if function is not None:
            graph, parameters = function
            given = dict(itertools.zip_longest(graph.inputs, inputs[: len(graph.inputs)]))
            parameters |= {k: self._resolved(a, act) for k, a in node.attributes.items()}
            return self._run(graph, given, None, parameters)
        if node.op in ("If", "Loop") and not node.domain:
            return getattr(self, f"_{node.op.lower()}")(node, inputs, act)
        key = f"{node.domain}::{node.op}" if node.domain else node.op
        if key not in TABLE:
            raise Undecided(f"operator {node.op} is not supported")
        result = TABLE[key](Call(node, inputs, self.n, act.parameters))
        results = [np.asarray(v) if isinstance(v, np.generic) else v
                   for v in (result if isinstance(result, tuple) else (result,))]  # fmt: skip
        if node.op in _OVERFLOWS and not _is_finite(results[0]) and all(map(_is_finite, inputs)):
            raise Undecided("doubles overflow")
        return results

    def _resolved(self, attribute: onnx.AttributeProto, act: Activation) -> onnx.AttributeProto:
        name = attribute.ref_attr_name
        return act.parameters.get(name, attribute) if name else attribute

    def _function(self, node: Node, inputs: list[Tensor]) -> tuple[Graph, dict[str, Any]] | None:
        """Return the body of a function of the model or of the standard, and the defaults of its parameters."""
        source = self._replay.source
        for key, graph in source.functions.items():
            if key[:2] == (node.domain, node.op):
                return graph, {a.name: a for a in source.protos[key].attribute_proto}
        if node.domain or node.op in TABLE or not defs.has(node.op, node.domain):
            return None
        schema: Any = defs.get_schema(node.op, node.version, node.domain)
        if not (schema.has_function or schema.has_context_dependent_function):
            return None
        proto = onnx.NodeProto(op_type=node.op, input=[f"i{k}" if v is not None else "" for k, v in enumerate(inputs)])
        proto.output.extend(f"o{k}" if v is not None else "" for k, v in enumerate(node.outputs))
        proto.attribute.extend(node.attributes.values())
        types = [_type(v).SerializeToString() if v is not None else b"" for v in inputs]
        key = f"standard:{node.op}:{node.version}:{proto.SerializeToString().hex()}:{types}"
        if key not in source.graphs:
            dependent = schema.has_context_dependent_function
            versions = schema.context_dependent_function_opset_versions if dependent else schema.function_opset_versions
            version = max((v for v in versions if v <= node.version), default=min(versions))
            if dependent:
                node_and_types = proto.SerializeToString(), types
                body = schema.get_context_dependent_function_with_opset_version(version, *node_and_types)
            else:
                body = schema.get_function_with_opset_version(version)
            function = onnx.FunctionProto.FromString(body) if isinstance(body, bytes) else body
            if not function.node:
                raise Undecided(f"the standard has no function for this {node.op}")
            source.function(function, key)
        given = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
        return source.graphs[key], given

    def _if(self, node: Node, inputs: list[Tensor], act: Activation) -> list[Tensor]:
        """Evaluate both branches, so that the rewrites in both are checked."""
        taken = "then_branch" if bool(np.asarray(inputs[0]).all()) else "else_branch"
        results: list[Tensor] = []
        for name, body in node.bodies.items():
            try:
                outputs = self._run(body, {}, act, act.parameters)
            except NotAccepted:
                if name == taken:
                    raise
                continue
            results = outputs if name == taken else results
        return results

    def _loop(self, node: Node, inputs: list[Tensor], act: Activation) -> list[Tensor]:
        body, carried = node.bodies["body"], inputs[2:]
        most = _MOST_ITERATIONS + 1 if inputs[0] is None else int(np.asarray(inputs[0]).item())
        going = inputs[1] is None or bool(np.asarray(inputs[1]).item())
        scanned: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(carried) :]]
        for iteration in range(most):
            if not going:
                break
            if iteration >= _MOST_ITERATIONS:
                raise Undecided("a loop of many iterations")
            given = [np.array(iteration, np.int64), np.array(going), *carried]
            outputs = self._run(body, dict(zip(body.inputs, given, strict=True)), act, act.parameters)
            if any(isinstance(v, Unknown) for v in outputs):
                raise Undecided("a loop whose body cannot be evaluated")
            going, carried = bool(np.asarray(outputs[0]).item()), outputs[1 : 1 + len(carried)]
            for values, value in zip(scanned, outputs[1 + len(carried) :], strict=True):
                values.append(value)
        return [*carried, *map(_stacked, scanned)]

    # Comparison

    def _compare(self, number: int, old: Value, new: Value, act: Activation) -> None:
        if new.denotes is not None and new.denotes is old:
            result, reason, count = EQUAL, "", 1
        else:
            result, reason, count = compare(self._get(old, act), self._get(new.denotes or new, act))
        self.compared[number] += count if result == EQUAL else 0
        if number not in self.found or result > self.found[number][0]:
            self.found[number] = result, reason, result != EQUAL and count > 0


def compare(a: Tensor, b: Tensor) -> tuple[int, str, int]:
    """Compare two values; return the result, the reason, and the number of elements. What is undefined may change."""
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        unknown = a if isinstance(a, Unknown) else b
        fails = isinstance(b, Unknown) and b.fails and not isinstance(a, Unknown)
        return (UNEQUAL if fails else OPEN), unknown.reason, 0
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return UNEQUAL, "a sequence of another length", 0
        parts = list(itertools.starmap(compare, zip(a, b, strict=True)))
        worst = max(parts, default=(EQUAL, "", 0))
        return worst[0], worst[1], sum(p[2] for p in parts)
    if (
        isinstance(a, Real) != isinstance(b, Real)
        or isinstance(a, list)
        or isinstance(b, list)
        or a is None
        or b is None
    ):
        return UNEQUAL, "a value of another kind", 0
    if a.shape != b.shape:
        return UNEQUAL, f"shape {list(b.shape)} instead of {list(a.shape)}", 0
    if isinstance(a, Real):
        if a.type != b.type:
            return UNEQUAL, f"type {b.type} instead of {a.type}", 0
        defined = ~np.isnan(a.f)
        wrong = (a.m != b.m) & defined
        if not wrong.any() and 2 * defined.sum() < defined.size:
            return OPEN, "most elements are undefined", 0
        if not wrong.any():
            return EQUAL, "", int(defined.sum())
        scale = np.abs(np.where(np.isfinite(a.f), a.f, 0)).max(initial=0.0)
        with np.errstate(all="ignore"):
            distance = np.abs(np.where(wrong, a.f - b.f, 0)).max(initial=0.0)
        near = np.isfinite(distance) and distance <= _CLOSE * scale
        text = f"{int(wrong.sum())} of {wrong.size} elements differ by up to {distance:.1e}, the largest is {scale:.1e}"
        return (CLOSE if near else UNEQUAL), text, int(wrong.mean() < _FEW)
    if a.dtype != b.dtype:
        return UNEQUAL, f"type {b.dtype} instead of {a.dtype}", 0
    wrong = np.asarray(a != b)
    return (UNEQUAL, f"{int(wrong.sum())} of {wrong.size} elements differ", 0) if wrong.any() else (EQUAL, "", a.size)


def is_special(stored: Stored, array: Array) -> bool:
    """Return whether rewrites may rely on the contents of a constant: few numbers, integers, or infinities."""
    cached = getattr(stored, "special", None)
    if cached is None:
        flat = array.reshape(-1).astype(np.float64)
        few = np.unique(flat[:64]).size <= 4 and np.unique(flat).size <= 4
        cached = few or not np.isfinite(flat).all() or bool((flat == np.rint(flat)).all())
        stored.special = cached  # type: ignore[attr-defined]
    return cached


def _is_finite(value: Tensor) -> bool:
    return not isinstance(value, Real) or bool(np.isfinite(value.f).all())


def _stacked(values: list[Tensor]) -> Tensor:
    if not values:
        return Unknown("a loop without iterations")
    if isinstance(values[0], Real):
        m, f = np.stack([v.m for v in values]), np.stack([v.f for v in values])
        return Real(m, f, values[0].type, min(v.known for v in values))
    return np.stack(values)


def _type(value: Tensor) -> onnx.TypeProto:
    if isinstance(value, Real):
        return helper.make_tensor_type_proto(value.type, list(value.shape))
    if isinstance(value, np.ndarray):
        kind = 8 if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
        return helper.make_tensor_type_proto(kind, list(value.shape))
    return onnx.TypeProto()
