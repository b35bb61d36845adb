"""Evaluate a graph in exact arithmetic.

An operator is computed by its definition here, or by the function body that the ONNX standard gives for it. What has
neither is `Undecided`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, defs, helper

from sardonyx.ir.exact import arithmetic, moves, products
from sardonyx.ir.exact.call import DEFINITIONS, Invalid, OperatorCall, Undecided, Value, defines, dtype_of
from sardonyx.ir.exact.products import convolved, turned
from sardonyx.ir.exact.reals import Numbers, Order, Real

# The operators of ONNX Runtime that passes write, in terms of the standard's.

_DOMAIN = "com.microsoft::"


def _activated(call: OperatorCall, x: Value, *, parameters: str) -> Value:
    """Return an activation that an attribute names."""
    name = call.text("activation", "")
    if not name:
        return x
    if name == "Clip":
        return call.op("Clip", x, *(call.numbers.attribute(bound, x.dtype) for bound in call.get(parameters)))
    known = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    listed = (
        call.get(parameters) or ()
        if parameters == "activation_params"
        else [call.get(f"activation_{key}") for key in known]
    )
    return call.op(name, x, **{key: number for key, number in zip(known, listed, strict=False) if number is not None})


@defines(_DOMAIN + "FusedConv")
def _fused_conv(call: OperatorCall) -> Value:
    """Return a convolution, plus a tensor, then an activation."""
    x = convolved(call, call.real(0), call.real(1), None if call[2] is None else call.real(2))
    x = x if call[3] is None else x + call.real(3)
    return _activated(call, x, parameters="activation_params")


@defines(_DOMAIN + "FusedGemm")
def _fused_gemm(call: OperatorCall) -> Value:
    plain = {key: call.get(key) for key in ("alpha", "beta", "transA", "transB") if call.get(key) is not None}
    return _activated(call, call.op("Gemm", *call.operands, **plain), parameters="activation_")


@defines(_DOMAIN + "FusedMatMul")
def _fused_matmul(call: OperatorCall) -> Value:
    if call.get("transBatchA", 0) or call.get("transBatchB", 0):
        raise Undecided("FusedMatMul that transposes batches")
    a, b = (
        turned(call.real(index)) if call.get(name, 0) else call.real(index)
        for index, name in enumerate(("transA", "transB"))
    )
    return call.op("MatMul", a, b) * call.numbers.attribute(call.get("alpha", 1.0), a.dtype)


@defines(_DOMAIN + "BiasGelu", _DOMAIN + "FastGelu")
def _bias_gelu(call: OperatorCall) -> Value:
    """Return the Gelu of a sum; FastGelu is its form with tanh."""
    x = call.real(0) if call[1] is None else call.real(0) + call.real(1)
    return call.op("Gelu", x, approximate="tanh" if call.node.op_type == "FastGelu" else "none")


@defines(_DOMAIN + "QuickGelu")
def _quick_gelu(call: OperatorCall) -> Value:
    """Return x times the sigmoid of alpha · x."""
    x, n = call.real(0), call.numbers
    return x * n.apply("Sigmoid", n.attribute(call.get("alpha", 1.702), x.dtype) * x)


@defines(_DOMAIN + "SkipLayerNormalization", _DOMAIN + "SkipSimplifiedLayerNormalization")
def _skip_norm(call: OperatorCall) -> Value:
    """Return the normalization of a sum, and the sum as the last of four outputs."""
    simplified = call.node.op_type == "SkipSimplifiedLayerNormalization"
    total = call.real(0) + call.real(1)
    bias = call[3 if simplified else 4]
    total = total if bias is None else total + bias
    epsilon = call.get("epsilon", 1e-5 if simplified else 1e-12)
    if simplified:
        result = call.op("RMSNormalization", total, call[2], epsilon=epsilon)
    else:
        shift = () if call[3] is None else (call[3],)
        result = call.op("LayerNormalization", total, call[2], *shift, epsilon=epsilon)
    return result, None, None, total


@defines(_DOMAIN + "Attention")
def _packed_attention(call: OperatorCall) -> Value:
    """Return attention of one tensor to itself; queries, keys and values come from one product."""
    if call[3] is not None or call[4] is not None or call.get("unidirectional", 0) or call.get("do_rotary", 0):
        raise Undecided("packed Attention with an index mask, a past or an order")
    heads, packed = call.get("num_heads"), call.numbers.matmul(call.real(0), call.real(1))
    packed = packed if call[2] is None else packed + call.real(2)
    width = packed.shape[-1]
    sizes = list(call.get("qkv_hidden_sizes") or [width // 3] * 3)
    ends = np.cumsum([0, *sizes])
    parts = [packed.moved(lambda v, a=a, b=b: v[..., a:b]) for a, b in itertools.pairwise(ends)]
    mask = () if call[5] is None else (call[5],)
    scale = call.get("scale", 0.0)
    options: dict[str, Any] = {"scale": scale} if scale else {}
    return call.op("Attention", *parts, *mask, q_num_heads=heads, kv_num_heads=heads, **options)


_DEFINED = (arithmetic, moves, products)  # importing them fills the table
_DEFINITION_OPSET = 23  # the version that definitions call other operators in
_MAX_LOOP_STEPS = 64  # of a loop

Scope = dict[str, Value]


class _Step(Struct, frozen=True):
    """A node, read once however often it is evaluated."""

    node: NodeProto
    operator: str
    domain: str
    key: str  # in the table of definitions
    function: FunctionProto | None  # of the model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    references: Mapping[str, str]  # attributes that are read from the call of the function around the node


class _Body(Struct, frozen=True):
    """The nodes of a graph or function."""

    owner: GraphProto | FunctionProto  # kept, so that no other object gets its id
    opsets: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: Sequence[_Step]
    defaults: Mapping[str, Any]  # of the attributes of a function


class Evaluator:
    """Evaluates graphs of one model; its numbers may be replaced between runs."""

    def __init__(
        self, model: ModelProto, numbers: Numbers, *, most: int | None = None, unlimited: frozenset[str] = frozenset()
    ) -> None:
        """Prepare to evaluate with these numbers, and values of at most so many elements unless they are named."""
        self.numbers, self._most, self._unlimited = numbers, most, unlimited
        self._functions = {(function.domain, function.name): function for function in model.functions}
        self._bodies: dict[int, _Body] = {}
        self._graph, self._opsets = model.graph, _versions(model)

    def run(self, feeds: Mapping[str, Value]) -> list[Value]:
        """Return the outputs of the model; `feeds` holds its inputs and may hold its initializers."""
        self.numbers.most = self._most
        scope: Scope = {tensor.name: moves.constant(self.numbers, tensor) for tensor in self._graph.initializer}
        scope.update(feeds)
        with np.errstate(all="ignore"):
            return self._outputs(self._body(self._graph, self._opsets), scope, {})

    def _body(self, owner: GraphProto | FunctionProto, opsets: Mapping[str, int]) -> _Body:
        """Return the nodes of a graph or function of the model."""
        found = self._bodies.get(id(owner))
        if found is None:
            found = self._bodies[id(owner)] = _read(owner, opsets, self._functions)
        return found

    def _outputs(self, body: _Body, scope: Scope, attributes: Mapping[str, Any]) -> list[Value]:
        for step in body.steps:
            self._step(step, scope, attributes, body.opsets)
        return [scope.get(name) for name in body.outputs]

    def _step(self, step: _Step, scope: Scope, outer: Mapping[str, Any], opsets: Mapping[str, int]) -> None:
        operands = [scope[name] if name else None for name in step.inputs]
        while operands and operands[-1] is None:
            operands.pop()
        results = self._result(step, operands, scope, outer, opsets)
        kinds = {*map(type, operands), *map(type, results)}
        if Real in kinds:
            self.numbers.operators.add(step.operator)
        for name, value in zip(step.outputs, results, strict=False):
            most = None if name in self._unlimited else self._most
            if most is not None and type(value) is Real and value.size > most:
                raise Undecided("its values are too large")
            if name:
                scope[name] = value

    def _result(
        self, step: _Step, operands: Sequence[Value], scope: Scope, outer: Mapping[str, Any], opsets: Mapping[str, int]
    ) -> Sequence[Value]:
        attributes = step.attributes
        if step.references:
            attributes = {**attributes, **{name: outer[key] for name, key in step.references.items() if key in outer}}
        if step.function is not None:
            return self._function(self._body(step.function, {}), operands, attributes)
        opset = opsets.get(step.domain, 1)

        def body(graph: GraphProto, inputs: Sequence[Value]) -> list[Value]:
            inner = dict(scope)
            inner.update((tensor.name, moves.constant(self.numbers, tensor)) for tensor in graph.initializer)
            found = self._body(graph, opsets)
            inner.update(zip(found.inputs, inputs, strict=True))
            return self._outputs(found, inner, outer)

        definition = DEFINITIONS.get(step.key)
        if definition is None:
            return self._by_standard(step, operands, attributes, opset)
        try:
            result: Any = definition(
                OperatorCall(step.node, operands, attributes, opset, self.numbers, body, self.standard)
            )
        except (ValueError, IndexError, ArithmeticError, RuntimeError) as error:
            raise Invalid(f"{step.key}: {error}") from error
        return cast("tuple[Value, ...]", result) if isinstance(result, tuple) else (result,)

    def _by_standard(
        self, step: _Step, operands: Sequence[Value], attributes: Mapping[str, Any], opset: int
    ) -> list[Value]:
        """Evaluate the body that the standard defines an operator by."""
        schema = None if step.domain else _schema(step.operator, opset)
        if schema is not None and schema.has_function:
            body = _standard_body(step.operator, opset)
        elif schema is not None and schema.has_context_dependent_function:
            types = tuple(_type(value).SerializeToString() for value in operands)
            plain = helper.make_node(step.operator, step.inputs, step.outputs, **attributes)  # without references
            body = _standard_body(step.operator, opset, plain.SerializeToString(), types)
        else:
            raise Undecided(f"{step.key} has no definition")
        try:
            return self._function(body, operands, attributes)
        except Invalid as error:
            if any(value is not None and 0 in value.shape for value in operands):
                raise Undecided(f"the standard's body of {step.key} does not take empty tensors") from error
            raise

    def standard(self, name: str, operands: Sequence[Value], attributes: Mapping[str, Any]) -> Sequence[Value]:
        """Evaluate a standard operator, such as one that a definition calls."""
        node = helper.make_node(name, [f"{i}" for i in range(len(operands))], ["result"], **attributes)
        return self._result(_step(node, {}), operands, {}, {}, {"": _DEFINITION_OPSET})

    def _function(self, body: _Body, operands: Sequence[Value], attributes: Mapping[str, Any]) -> list[Value]:
        scope: Scope = dict.fromkeys(body.inputs)
        scope.update(zip(body.inputs, operands, strict=False))
        return self._outputs(body, scope, {**body.defaults, **attributes})


def _versions(owner: ModelProto | FunctionProto) -> dict[str, int]:
    return {entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in owner.opset_import}


def _read(
    owner: GraphProto | FunctionProto, opsets: Mapping[str, int], functions: Mapping[tuple[str, str], FunctionProto]
) -> _Body:
    """Return the nodes of a graph, in the operator sets of the model, or of a function, in its own."""
    steps = [_step(node, functions) for node in owner.node]
    if isinstance(owner, FunctionProto):
        defaults = {entry.name: helper.get_attribute_value(entry) for entry in owner.attribute_proto}
        return _Body(owner, _versions(owner), tuple(owner.input), tuple(owner.output), steps, defaults)
    inputs, outputs = (tuple(value.name for value in values) for values in (owner.input, owner.output))
    return _Body(owner, opsets, inputs, outputs, steps, {})


def _step(node: NodeProto, functions: Mapping[tuple[str, str], FunctionProto]) -> _Step:
    domain = "" if node.domain == "ai.onnx" else node.domain
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute if not each.ref_attr_name}
    references = {each.name: each.ref_attr_name for each in node.attribute if each.ref_attr_name}
    key = f"{domain}::{node.op_type}" if domain else node.op_type
    function = functions.get((domain, node.op_type))
    return _Step(node, node.op_type, domain, key, function, tuple(node.input), tuple(node.output), given, references)


@functools.cache
def _schema(op_type: str, opset: int) -> Any:  # its stub does not know function bodies
    try:
        return defs.get_schema(op_type, opset, "")
    except defs.SchemaError:
        return None


@functools.lru_cache(512)
def _standard_body(op_type: str, opset: int, node: bytes = b"", types: tuple[bytes, ...] = ()) -> _Body:
    """Return the body by which the standard defines an operator; some depend on its attributes and operands."""
    schema = _schema(op_type, opset)
    body = schema.function_body
    if node:
        body = FunctionProto.FromString(schema.get_context_dependent_function(node, list(types)))
    given = {name: each.default_value for name, each in schema.attributes.items()}
    defaults = {k: helper.get_attribute_value(v) for k, v in given.items() if v.type != AttributeProto.UNDEFINED}
    return replace(_read(body, {}, {}), defaults=defaults)


def _type(value: Value) -> TypeProto:
    if value is None:
        return TypeProto()
    if isinstance(value, list):
        return helper.make_sequence_type_proto(_type(value[0]) if value else TypeProto())
    return helper.make_tensor_type_proto(dtype_of(value), value.shape)


@defines("Loop")
def _loop(call: OperatorCall) -> tuple[Value, ...]:
    body: GraphProto = call.get("body")
    most, going, carried = call.integers(0), call[1], list(call.operands[2:])
    count = len(body.input) - 2
    carried += [None] * (count - len(carried))
    collected: list[list[Value]] = [[] for _ in body.output[1 + count :]]
    step, active = 0, True if going is None else bool(np.all(going))
    while active and (most is None or step < most[0]):
        if step == _MAX_LOOP_STEPS:
            raise Undecided("a loop of many steps")
        results = call.run(body, [np.array(step, np.int64), np.array(True), *carried])
        active, carried = bool(np.all(results[0])), results[1 : 1 + count]
        for items, item in zip(collected, results[1 + count :], strict=True):
            items.append(item)
        step += 1
    if not step and collected:
        raise Undecided("a loop without steps")
    return (*carried, *map(_stacked, collected))


@defines("Scan")
def _scan(call: OperatorCall) -> tuple[Value, ...]:
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
    outputs = (items[::-1] if back else items for items, back in zip(collected, outward, strict=True))
    return (*states, *map(_stacked, outputs))


def _stacked(items: Sequence[Value]) -> Value:
    return moves.concatenated([moves.moved(item, lambda x: x[None]) for item in items], 0)


defines("If")(lambda call: tuple(call.run(call.get("then_branch" if np.all(call[0]) else "else_branch"), [])))


def doubles(model: ModelProto, feeds: Mapping[str, Any]) -> list[Any] | None:
    """Return the outputs in double precision by the definitions of operators; None if one has no definition."""
    numbers = Numbers(Order.TRUE, 0)
    types = {info.name: info.type.tensor_type.elem_type or TensorProto.FLOAT for info in model.graph.input}
    try:
        values = {name: moves.tensor(numbers, np.asarray(feeds[name]), dtype) for name, dtype in types.items()}
        results = Evaluator(model, numbers).run(values)
    except (Undecided, Invalid):
        return None
    return [value.doubles if isinstance(value, Real) else value for value in results]
