"""x / 2 * (1 + erf(x / √2)) => Gelu(x), and x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 * x³))) => Gelu(x) by tanh.

The argument is read as a polynomial in x and the product as a set of factors, so their order and grouping do not
matter. Refuses if the constants are those of another function, if an inner value is read elsewhere, and for doubles and
bfloat16, for which ONNX Runtime has no kernel on CPU. Half precision is cast to float and back: ONNX Runtime would
decompose Gelu again, which measured 1.5 to 2.5 times slower than before, and with the casts 11 times faster. Helps
because five to nine passes over the widest tensors of a model become one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

import onnx_ir as ir
from msgspec import Struct

from sardonyx.passes._matching import consumer_of, other_operand, producer_of
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.norms._arithmetic import escaping_value, near, power, value_and_factor, value_and_scalar

Polynomial = Mapping[int, float]  # coefficients by degree

_KERNELS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_DEGREE = 3
_DEPTH = 6  # nested operations in the argument
_TANH = math.sqrt(2 / math.pi)
_ARGUMENTS: Mapping[str, Polynomial] = MappingProxyType(
    {"Erf": {1: math.sqrt(0.5)}, "Tanh": {1: _TANH, 3: _TANH * 0.044715}}
)
_APPROXIMATE = MappingProxyType({"Erf": None, "Tanh": "tanh"})  # the operator's attribute


class _Product(Struct, frozen=True, eq=False):
    """factor * source * (1 + f(...)), and the nodes from f on, the last one producing it."""

    source: ir.Value
    factor: float
    nodes: tuple[ir.Node, ...]


class FuseGelu(NodePass):
    """Decomposed Gaussian error linear unit."""

    name = "fuse-gelu"
    accuracy = Accuracy.REASSOCIATES
    roots = tuple(_ARGUMENTS)
    opset = 9  # the first with Erf
    needs = 20
    example = Example(
        before="""
            agraph (float[N, 4] x) => (float[N, 4] y)
            <float root = {1.4142135}, float one = {1}, float[1] half = {0.5}> {
                a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(half, d)
            }
        """,
        after="agraph (float[N, 4] x) => (float[N, 4] y) { y = Gelu(x) }",
        near_miss="""
            agraph (float[N, 4] x) => (float[N, 4] y)
            <float root = {1.7}, float one = {1}, float[1] half = {0.5}> {
                a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(half, d)
            }
        """,
        refusal="constants are those of another function",
        opset=20,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        refusal = None
        for product in _products(node, graph):
            terms = _polynomial(node.inputs[0], product.source, node, graph)
            if terms is None:
                continue
            coefficients, inner = terms
            nodes = tuple(dict.fromkeys((*inner, *product.nodes)))
            dtype = graph.dtype(product.source)
            if not _alike(coefficients, _ARGUMENTS[node.op_type], dtype) or not near(product.factor, 0.5, dtype):
                refusal = Refused("its constants are those of another function", nodes)
            elif dtype not in _KERNELS:
                return Refused(f"the runtime has no kernel for {dtype.name if dtype else 'an unknown type'}", nodes)
            elif escaping_value(nodes, nodes[-1]) is not None:
                return Refused("a value inside is read elsewhere", nodes)
            else:
                return Match(nodes, build=partial(_gelu, product.source, _APPROXIMATE[node.op_type], graph))
        return refusal


def _gelu(source: ir.Value, approximate: str | None, graph: Facts, op: Builder) -> Replacement:
    """Build one Gelu, in float."""
    dtype, shape = graph.dtype(source), graph.shape(source)
    if dtype is None or dtype == ir.DataType.FLOAT:
        return op.Gelu(source, approximate=approximate)
    wide = op.learn(op.Cast(source, to=ir.DataType.FLOAT.value), ir.DataType.FLOAT, shape)
    result = op.learn(op.Gelu(wide, approximate=approximate), ir.DataType.FLOAT, shape)
    return op.Cast(result, to=dtype.value)


def _products(node: ir.Node, graph: Facts) -> Iterator[_Product]:
    """Yield every reading of what follows as factor * x * (1 + f), shortest first."""
    for value, nodes, factor in _times_numbers(node.outputs[0], (node,), 1.0, graph):
        user = consumer_of(value, graph, ("Add",))
        summand = None if user is None else value_and_scalar(user, graph)
        if user is not None and summand is not None and near(summand[1], factor, graph.dtype(value)):
            yield from _with_source(user.outputs[0], (*nodes, user), factor, graph)


def _with_source(value: ir.Value, nodes: tuple[ir.Node, ...], factor: float, graph: Facts) -> Iterator[_Product]:
    for before, path, times in _times_numbers(value, nodes, factor, graph):
        user = consumer_of(before, graph, ("Mul",))
        other = None if user is None else other_operand(user, before)
        if user is None or other is None or other is before or value_and_factor(user, graph) is not None:
            continue
        for source, scalings, own in _over_numbers(other, user, graph):
            for _, product, factor in _times_numbers(user.outputs[0], (*path, user), times * own, graph):
                yield _Product(source, factor, (*scalings, *product))


def _over_numbers(
    value: ir.Value, beside: ir.Node, graph: Facts
) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...], float]]:
    """Yield the value, and what it was before each multiplication by a number."""
    nodes, factor = tuple[ir.Node, ...](), 1.0
    yield value, nodes, factor
    while (node := producer_of(value, beside, ("Mul", "Div"))) is not None and (
        scaled := value_and_factor(node, graph)
    ) is not None:
        value, factor, nodes = scaled[0], factor * scaled[1], (node, *nodes)
        yield value, nodes, factor


def _times_numbers(
    value: ir.Value, nodes: tuple[ir.Node, ...], factor: float, graph: Facts
) -> Iterator[tuple[ir.Value, tuple[ir.Node, ...], float]]:
    """Yield the value, and what it becomes by each following multiplication by a number."""
    yield value, nodes, factor
    while (node := consumer_of(value, graph, ("Mul", "Div"))) is not None and (
        scaled := value_and_factor(node, graph)
    ) is not None:
        value, factor, nodes = node.outputs[0], factor * scaled[1], (*nodes, node)
        yield value, nodes, factor


def _polynomial(
    value: ir.Value | None, variable: ir.Value, beside: ir.Node, graph: Facts, depth: int = _DEPTH
) -> tuple[Polynomial, tuple[ir.Node, ...]] | None:
    """Return a value as a polynomial of low degree in a variable, and the nodes that compute it in order."""
    if value is variable:
        return {1: 1.0}, ()
    number = graph.scalar(value)
    if number is not None and (graph.rank(value) or 0) <= (
        graph.rank(variable) or 0
    ):  # otherwise it enlarges the result
        return {0: float(number)}, ()
    node = producer_of(value, beside, ("Mul", "Div", "Add", "Pow")) if depth else None
    if node is None:
        return None
    first = _polynomial(node.inputs[0], variable, beside, graph, depth - 1)
    second = None if first is None else _polynomial(node.inputs[1], variable, beside, graph, depth - 1)
    if first is None or second is None:
        return None
    result = _combined(node, first[0], second[0], graph)
    return None if result is None else (result, tuple(dict.fromkeys((*first[1], *second[1], node))))


def _combined(node: ir.Node, first: Polynomial, second: Polynomial, graph: Facts) -> Polynomial | None:
    match node.op_type:
        case "Add":
            return {degree: first.get(degree, 0.0) + second.get(degree, 0.0) for degree in {*first, *second}}
        case "Mul":
            return _times(first, second)
        case "Div" if set(second) == {0} and second[0] != 0:
            return {degree: number / second[0] for degree, number in first.items()}
        case "Pow" if (node_power := power(node, graph)) is not None and node_power[1] in (2, 3):
            square = _times(first, first)
            return square if node_power[1] == 2 or square is None else _times(square, first)
        case _:
            return None


def _times(first: Polynomial, second: Polynomial) -> Polynomial | None:
    result: defaultdict[int, float] = defaultdict(float)
    for degree, coefficient in first.items():
        for other_degree, other_coefficient in second.items():
            result[degree + other_degree] += coefficient * other_coefficient
    return result if max(result) <= _DEGREE else None


def _alike(coefficients: Polynomial, expected: Polynomial, dtype: ir.DataType | None) -> bool:
    """Return whether the coefficients are the expected ones within rounding."""
    return set(coefficients) == set(expected) and all(
        near(coefficients[degree], expected[degree], dtype) for degree in expected
    )
