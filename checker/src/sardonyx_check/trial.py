"""Evaluate the source and the new nodes of all rewrites on one choice of inputs, and compare each pair of values."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from sardonyx_check.graphs import Graph, Node, Pair, Refused, Value
from sardonyx_check.numbers import ANY_CONSTANT, STORED, Numbers, Real, Undecided
from sardonyx_check.operators import FLOATS, Call, Tensor
from sardonyx_check.replay import Replay

_CLOSE = 1e-4  # relative distance up to which unequal doubles may be a matter of rounding
_MOST_ITERATIONS = 100
_OVERFLOWS = {"Add", "Sub", "Mul", "MatMul", "Gemm", "Conv", "ReduceSum", "Sum", "CumSum"}
_STANDARD = 23  # the operator set in which operators of ONNX Runtime are explained
EQUAL, CLOSE, OPEN, UNEQUAL = range(4)  # results of a comparison, best first
Attributes = dict[str, onnx.AttributeProto]
Plan = list[tuple[Node | Pair, list[Value]]]  # what is done one after another, and the values that are not needed then


class NotAccepted(Exception):
    """The source does not accept the inputs."""


class Fails(Undecided):
    """New nodes do not accept what the source does."""


class Trial:
    """One choice of inputs."""

    def __init__(self, replay: Replay, n: Numbers, plans: dict[Graph, Plan]) -> None:
        self._source, self.n, self._plans = replay.source, n, plans
        self.found: dict[int, tuple[int, str]] = {}  # by number of the rewrite: the worst result and the reason
        self.compared: Counter[int] = Counter()  # elements, by number of the rewrite
        self._watched = {x.denotes for x, _ in replay.rounded}
        self.seen: dict[Value, Tensor] = {}  # values that constants stand for
        self._values: dict[Value, Tensor] = {}  # of all graphs: none is evaluated while it is being evaluated

    def _plan(self, graph: Graph) -> Plan:
        needs: dict[Any, list[Value]] = {node: list(node.reads()) for node in graph.nodes}
        needs |= {pair: [pair[1], pair[2].denotes or pair[2]] for pair in graph.pairs}
        own = {value for node in graph.nodes for value in node.outputs}
        sorter = TopologicalSorter({k: [v.producer for v in vs if v in own] for k, vs in needs.items()})
        plan, kept = Plan(), set(graph.outputs)
        try:
            order = list(sorter.static_order())
        except CycleError:
            raise Refused("the rewrites make a cycle") from None
        for each in reversed(order):
            dropped = {v for v in needs[each] if v.graph is graph} - kept
            kept |= dropped
            plan.append((each, list(dropped)))
        return plan[::-1]

    def run(self, graph: Graph, inputs: list[Tensor], parameters: Attributes) -> list[Tensor]:
        """Evaluate a graph; parameters are those of a function. A value that cannot be computed is an Undecided."""
        if graph not in self._plans:
            self._plans[graph] = self._plan(graph)
        self._values |= itertools.zip_longest(graph.inputs, inputs[: len(graph.inputs)])
        for each, dropped in self._plans[graph]:
            if isinstance(each, Node):
                self._node(each, parameters)
            else:
                self._compare(*each)
            for value in dropped:
                self._values.pop(value, None)
        return [self._get(value) for value in graph.outputs]

    def _get(self, value: Value) -> Tensor:
        if value not in self._values:
            self._values[value] = self._constant(value)
        return self._values[value]

    def _constant(self, value: Value) -> Tensor:
        """Return a constant; a large one stands for any other of its shape, if numbers are free."""
        stored = value.constant
        if stored is None:
            return Undecided(f"{value.name!r} was not computed")
        if stored.type not in FLOATS:
            return stored.array()
        array = stored.array().astype(np.float64)
        if stored.is_special or not self.n.free:
            return self.n.stored(array, stored.type, STORED if stored.is_special else ANY_CONSTANT)
        return self.n.random(array, stored.type, stored.digest, ANY_CONSTANT)

    # Nodes

    def _node(self, node: Node, parameters: Attributes) -> None:
        inputs = [v and self._get(v.trusted or v if node.is_new else v) for v in node.inputs]
        lost = next((v for v in inputs if isinstance(v, Undecided)), None)
        results: Sequence[Tensor] = []
        try:
            results = self._evaluate(node, inputs, parameters) if lost is None else []
        except (Undecided, NotImplementedError) as error:
            lost = Undecided(str(error))
        except (ValueError, IndexError, TypeError, KeyError, AttributeError, AssertionError, RuntimeError) as error:
            if not node.is_new:
                raise NotAccepted(f"{node.op}: {error}") from None
            lost = Fails(f"{node.op} does not accept what the source does: {error}")
        for index, value in enumerate(node.outputs):
            if value is not None:
                self._values[value] = lost if lost is not None else results[index]
                if value in self._watched:
                    self.seen[value] = self._values[value]

    def _evaluate(self, node: Node, inputs: list[Tensor], parameters: Attributes) -> Sequence[Tensor]:
        if node.op in ("If", "Loop") and not node.domain:
            return (self._if if node.op == "If" else self._loop)(node, inputs, parameters)
        proto = onnx.NodeProto(op_type=node.op, domain=node.domain)
        proto.input.extend(f"i{k}" if v is not None else "" for k, v in enumerate(inputs))
        proto.output.extend(f"o{k}" if v is not None else "" for k, v in enumerate(node.outputs))
        for name, attribute in node.attributes.items():
            given = parameters.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
            if given is not None:
                proto.attribute.add().CopyFrom(given)
                proto.attribute[-1].name = name
        own, results = self._source.protos.get((node.domain, node.op)), None
        schema: Any = None if node.domain or own else defs.get_schema(node.op, node.version, "")
        if own is None:
            has_function = schema is not None and (schema.has_function or schema.has_context_dependent_function)
            results = Call(proto, node.version, inputs, self.n, self._standard).results(has_function=has_function)
        if results is None:
            graph = self._source.functions[own.domain, own.name] if own else self._body(schema, proto, node, inputs)
            defaults = own.attribute_proto if own else []
            defaults = [a.default_value for a in schema.attributes.values()] if schema else defaults
            return self.run(graph, inputs, {a.name: a for a in (*defaults, *proto.attribute)})
        if node.op in _OVERFLOWS and not _is_finite(results[0]) and all(map(_is_finite, inputs)):
            raise Undecided("doubles overflow")
        return [np.asarray(v) if isinstance(v, np.generic) else v for v in results]

    def _standard(self, op: str, *inputs: Tensor, **attributes: Any) -> Tensor:
        """Evaluate an operator of the ONNX standard."""
        protos = {name: helper.make_attribute(name, value) for name, value in attributes.items()}
        node = Node(op, "", _STANDARD, True, [], protos, outputs=[Value("", self._source.main)])
        return self._evaluate(node, list(inputs), {})[0]

    def _body(self, schema: Any, proto: onnx.NodeProto, node: Node, inputs: list[Tensor]) -> Graph:
        """Return the body that the standard gives for an operator."""
        arguments = proto.SerializeToString(), [b"" if v is None else _type(v).SerializeToString() for v in inputs]
        path = f"standard:{node.version}:{arguments}"
        if path not in self._source.graphs:
            dependent = schema.context_dependent_function_opset_versions
            versions = dependent or schema.function_opset_versions
            at = max((v for v in versions if v <= node.version), default=min(versions))
            body = (schema.get_context_dependent_function_with_opset_version(at, *arguments) if dependent
                    else schema.get_function_with_opset_version(at))  # fmt: skip
            function = onnx.FunctionProto.FromString(body) if isinstance(body, bytes) else body
            if not function.node:
                raise Undecided(f"{proto.op_type} is not supported")
            self._source.function(function, path)
        return self._source.graphs[path]

    def _if(self, node: Node, inputs: list[Tensor], parameters: Attributes) -> list[Tensor]:
        """Evaluate both branches, so that the rewrites in both are checked."""
        taken = "then_branch" if bool(np.asarray(inputs[0]).all()) else "else_branch"
        results: Sequence[Tensor] = []
        for name, body in node.bodies.items():
            with contextlib.nullcontext() if name == taken else contextlib.suppress(NotAccepted):
                outputs = self.run(body, [], parameters)
                results = outputs if name == taken else results
        return results

    def _loop(self, node: Node, inputs: list[Tensor], parameters: Attributes) -> list[Tensor]:
        body, carried = node.bodies["body"], inputs[2:]
        most = _MOST_ITERATIONS + 1 if inputs[0] is None else int(inputs[0].item())
        going = inputs[1] is None or bool(inputs[1].item())
        if most > _MOST_ITERATIONS or len(body.outputs) > 1 + len(carried):
            raise Undecided("a loop of many iterations, or one that collects values")
        for iteration in range(most):
            if not going:
                break
            outputs = self.run(body, [np.array(iteration), np.array(going), *carried], parameters)
            if any(isinstance(v, Undecided) for v in outputs):
                raise Undecided("a loop whose body cannot be evaluated")
            going, carried = bool(outputs[0].item()), outputs[1:]
        return carried

    # Comparison

    def _compare(self, number: int, old: Value, new: Value) -> None:
        result, reason, count = EQUAL, "", 1
        if new.denotes is not old:
            result, reason, count = compare(self._get(old), self._get(new.denotes or new))
        self.compared[number] += count
        self.found[number] = max(self.found.get(number, (EQUAL, "")), (result, reason))


def compare(a: Any, b: Any) -> tuple[int, str, int]:
    """Compare two values; return the result, the reason, and the number of equal elements. NaN may change."""
    if isinstance(a, Undecided):
        return OPEN, str(a), 0
    if isinstance(b, Undecided):
        return UNEQUAL if isinstance(b, Fails) else OPEN, str(b), 0
    if {type(a), type(b)} == {list} and len(a) == len(b):
        return max(itertools.starmap(compare, zip(a, b, strict=True)), default=(EQUAL, "", 0))
    if {type(a), type(b)} not in ({Real}, {np.ndarray}):
        return UNEQUAL, "a value of another kind, or a sequence of another length", 0
    signs = [(list(v.shape), v.type if isinstance(v, Real) else v.dtype.name) for v in (a, b)]
    if signs[0] != signs[1]:
        return UNEQUAL, f"shape and type {signs[1]} instead of {signs[0]}", 0
    if not isinstance(a, Real):
        wrong = np.asarray(a != b)
        return (UNEQUAL, f"{wrong.sum()} of {wrong.size} elements differ", 0) if wrong.any() else (EQUAL, "", a.size)
    defined = ~np.isnan(a.f)
    wrong = (a.m != b.m) & defined
    if not wrong.any():
        enough = 2 * defined.sum() >= defined.size
        return (EQUAL, "", int(defined.sum())) if enough else (OPEN, "most elements are undefined", 0)
    scale = np.abs(np.where(np.isfinite(a.f), a.f, 0)).max(initial=0.0)
    distance = np.abs(np.where(wrong, a.f - b.f, 0)).max(initial=0.0)
    text = f"{wrong.sum()} of {wrong.size} elements differ by up to {distance:.1e}, the largest is {scale:.1e}"
    return CLOSE if distance <= _CLOSE * scale else UNEQUAL, text, 0


def _is_finite(value: Tensor) -> bool:
    return not isinstance(value, Real) or bool(np.isfinite(value.f).all())


def _type(value: Tensor) -> onnx.TypeProto:
    if isinstance(value, Real):
        return helper.make_tensor_type_proto(value.type, list(value.shape))
    if not isinstance(value, np.ndarray):
        return onnx.TypeProto()
    kind = 8 if value.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_type_proto(kind, list(value.shape))
