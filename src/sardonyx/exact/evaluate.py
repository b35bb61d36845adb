"""Evaluate a graph in exact arithmetic.

An operator is computed by its definition here, or by the function body that the ONNX standard gives for it. What has
neither is `Undecided`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, defs, helper

from sardonyx.exact import arithmetic, contrib, moves, products
from sardonyx.exact.call import DEFINITIONS, Call, Invalid, Undecided, Value, dtype_of
from sardonyx.exact.reals import Numbers, Real

_DEFINED = (arithmetic, contrib, moves, products)  # importing them fills the table
_NEWEST = 23  # the version that definitions call other operators in
_MOST_STEPS = 64  # of a loop

Scope = dict[str, Value]


class Evaluator:
    """Evaluates graphs of one model."""

    def __init__(
        self,
        model: ModelProto,
        numbers: Numbers,
        *,
        most: int | None = None,
        unlimited: frozenset[str] = frozenset(),
    ) -> None:
        """Prepare to evaluate with these numbers, and values of at most so many elements unless they are named."""
        self._numbers, self._most, self._unlimited = numbers, most, unlimited
        numbers.most = most
        self._opsets = {
            entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import
        }
        self._functions = {(function.domain, function.name): function for function in model.functions}
        self._graph = model.graph

    def run(self, feeds: Mapping[str, Value]) -> list[Value]:
        """Return the outputs of the model; `feeds` holds its inputs and may hold its initializers."""
        scope: Scope = {tensor.name: moves.constant(self._numbers, tensor) for tensor in self._graph.initializer}
        scope.update(feeds)
        return self._outputs(self._graph, scope, {}, self._opsets)

    def _outputs(
        self, graph: GraphProto, scope: Scope, attributes: Mapping[str, Any], opsets: Mapping[str, int]
    ) -> list[Value]:
        for node in graph.node:
            self._node(node, scope, attributes, opsets)
        return [scope[output.name] for output in graph.output]

    def _node(self, node: NodeProto, scope: Scope, outer: Mapping[str, Any], opsets: Mapping[str, int]) -> None:
        operands = [scope[name] if name else None for name in node.input]
        while operands and operands[-1] is None:
            operands.pop()
        attributes = _attributes(node, outer)
        results = self._result(node, operands, attributes, opsets, scope, outer)
        if any(isinstance(value, Real) for value in (*operands, *results)):
            self._numbers.operators.add(node.op_type)
        for name, value in zip(node.output, results, strict=False):
            most = None if name in self._unlimited else self._most
            if most is not None and isinstance(value, Real) and value.size > most:
                raise Undecided("its values are too large")
            if name:
                scope[name] = value

    def _result(
        self,
        node: NodeProto,
        operands: Sequence[Value],
        attributes: Mapping[str, Any],
        opsets: Mapping[str, int],
        scope: Scope,
        outer: Mapping[str, Any],
    ) -> Sequence[Value]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        local = self._functions.get((domain, node.op_type))
        if local is not None:
            return self._function(local, operands, attributes)
        opset = opsets.get(domain, 1)

        def body(graph: GraphProto, inputs: Sequence[Value]) -> list[Value]:
            inner = dict(scope)
            inner.update((tensor.name, moves.constant(self._numbers, tensor)) for tensor in graph.initializer)
            inner.update(zip((value.name for value in graph.input), inputs, strict=True))
            return self._outputs(graph, inner, outer, opsets)

        call = Call(node, operands, attributes, opset, self._numbers, body, self._called)
        if domain == "" and node.op_type in _CONTROL:
            return _CONTROL[node.op_type](call)
        definition = DEFINITIONS.get(node.op_type if not domain else f"{domain}::{node.op_type}")
        if definition is None:
            function = _standard_body(node, operands, attributes, opset) if not domain else None
            if function is None:
                raise Undecided(f"{domain + '::' if domain else ''}{node.op_type} has no definition")
            try:
                return self._function(function, operands, {**_defaults(node.op_type, opset), **attributes})
            except Invalid as error:
                if any(value is not None and 0 in value.shape for value in operands):
                    raise Undecided(f"the standard's body of {node.op_type} does not take empty tensors") from error
                raise
        try:
            with np.errstate(all="ignore"):
                result: Any = definition(call)
        except (ValueError, IndexError, ArithmeticError, RuntimeError) as error:
            raise Invalid(f"{node.op_type}: {error}") from error
        return cast("tuple[Value, ...]", result) if isinstance(result, tuple) else (result,)

    def _called(self, name: str, operands: Sequence[Value], attributes: Mapping[str, Any]) -> Sequence[Value]:
        """Evaluate a standard operator that a definition calls."""
        node = helper.make_node(name, [f"{i}" for i in range(len(operands))], ["result"], **attributes)
        return self._result(node, operands, _attributes(node, {}), {"": _NEWEST}, {}, {})

    def _function(
        self, function: FunctionProto, operands: Sequence[Value], attributes: Mapping[str, Any]
    ) -> list[Value]:
        scope: Scope = dict.fromkeys(function.input)
        scope.update(zip(function.input, operands, strict=False))
        defaults = {entry.name: helper.get_attribute_value(entry) for entry in function.attribute_proto}
        opsets = {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in function.opset_import}
        for node in function.node:
            self._node(node, scope, {**defaults, **attributes}, opsets)
        return [scope.get(name) for name in function.output]


def _attributes(node: NodeProto, outer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node; a reference is read from the call of the function around it."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = helper.get_attribute_value(attribute)
        elif attribute.ref_attr_name in outer:
            found[attribute.name] = outer[attribute.ref_attr_name]
    return found


@functools.cache
def _defaults(op_type: str, opset: int) -> dict[str, Any]:
    schema = defs.get_schema(op_type, opset, "")
    return {
        name: helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != AttributeProto.UNDEFINED
    }


def _standard_body(
    node: NodeProto, operands: Sequence[Value], attributes: Mapping[str, Any], opset: int
) -> FunctionProto | None:
    """Return the body that the standard defines an operator by."""
    try:
        schema: Any = defs.get_schema(node.op_type, opset, "")  # whose stubs do not know function bodies
    except defs.SchemaError:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = [_type(value).SerializeToString() for value in operands]
    plain = helper.make_node(node.op_type, node.input, node.output, **attributes)  # without references
    body = FunctionProto()
    body.ParseFromString(schema.get_context_dependent_function(plain.SerializeToString(), types))
    return body


def _type(value: Value) -> TypeProto:
    if value is None:
        return TypeProto()
    if isinstance(value, list):
        return helper.make_sequence_type_proto(_type(value[0]) if value else TypeProto())
    return helper.make_tensor_type_proto(dtype_of(value), value.shape)


def _if(call: Call) -> Sequence[Value]:
    branch = call.get("then_branch") if bool(np.all(call[0])) else call.get("else_branch")
    return call.run(branch, [])


def _loop(call: Call) -> Sequence[Value]:
    body: GraphProto = call.get("body")
    most, going, carried = call.integers(0), call[1], list(call.operands[2:])
    count = len(body.input) - 2
    carried += [None] * (count - len(carried))
    collected: list[list[Value]] = [[] for _ in body.output[1 + count :]]
    step, active = 0, True if going is None else bool(np.all(going))
    while active and (most is None or step < most[0]):
        if step == _MOST_STEPS:
            raise Undecided("a loop of many steps")
        results = call.run(body, [np.array(step, np.int64), np.array(True), *carried])
        active, carried = bool(np.all(results[0])), results[1 : 1 + count]
        for items, item in zip(collected, results[1 + count :], strict=True):
            items.append(item)
        step += 1
    if not step and collected:
        raise Undecided("a loop without steps")
    return [*carried, *(_stacked(items) for items in collected)]


def _scan(call: Call) -> Sequence[Value]:
    body: GraphProto = call.get("body")
    scanned = call.get("num_scan_inputs")
    states, inputs = list(call.operands[:-scanned]), call.operands[-scanned:]
    axes = call.get("scan_input_axes") or [0] * scanned
    if call.get("scan_output_axes") and any(call.get("scan_output_axes")):
        raise Undecided("Scan with outputs along other axes")
    directions = call.get("scan_input_directions") or [0] * scanned
    outward = call.get("scan_output_directions") or [0] * (len(body.output) - len(states))
    length = inputs[0].shape[axes[0]]
    if not length or call.opset < 9:
        raise Undecided("a scan of nothing, or of batches")
    collected: list[list[Value]] = [[] for _ in body.output[len(states) :]]
    for step in range(length):
        slices = [
            moves.moved(value, lambda x, a=axis, i=length - 1 - step if back else step: np.take(x, i, a))
            for value, axis, back in zip(inputs, axes, directions, strict=True)
        ]
        results = call.run(body, [*states, *slices])
        states = results[: len(states)]
        for items, item in zip(collected, results[len(states) :], strict=True):
            items.append(item)
    return [
        *states,
        *(_stacked(items[::-1] if back else items) for items, back in zip(collected, outward, strict=True)),
    ]


def _stacked(items: Sequence[Value]) -> Value:
    return moves.concatenated([moves.moved(item, lambda x: x[None]) for item in items], 0)


_CONTROL = {"If": _if, "Loop": _loop, "Scan": _scan}
