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

from sardonyx.ir.support import KERNELS
from sardonyx.passes._matching import (
    consumer_of,
    number_of,
    optional,
    other_operand,
    producer_of,
    require,
    require_closed,
    required,
    value_and_factor,
    value_and_scalar,
)
from sardonyx.passes.base import Accuracy, Builder, Example, Facts, Match, NodePass, Refused, Replacement
from sardonyx.passes.norms._arithmetic import Term, factored, multiplied, near, power

Polynomial = Mapping[int, float]  # coefficients by degree

_MAX_DEGREE = 3
_MAX_DEPTH = 6  # nested operations in the argument
_TANH = math.sqrt(2 / math.pi)
_ARGUMENTS: Mapping[str, Polynomial] = MappingProxyType(
    {"Erf": {1: math.sqrt(0.5)}, "Tanh": {1: _TANH, 3: _TANH * 0.044715}}
)
_APPROXIMATE = MappingProxyType({"Erf": None, "Tanh": "tanh"})  # the operator's attribute


class FuseGelu(NodePass):
    """Decomposed Gaussian error linear unit."""

    accuracy = Accuracy.REASSOCIATES
    roots = tuple(_ARGUMENTS)
    opset = 9  # the first with Erf
    needs = 20
    example = Example(
        before="""
            (float[N, 4] x) => (float[N, 4] y) <float root = {1.4142135}, float one = {1}, float[1] half = {0.5}>
            { a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(half, d) }
        """,
        after="{ y = Gelu(x) }",
        near_miss="""
            <float root = {1.7}, float one = {1}, float[1] half = {0.5}> {
                a = Div(x, root)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(half, d)
            }
        """,
        refusal="constants are those of another function",
        opset=20,
    )

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        refusal, expected = None, _ARGUMENTS[node.op_type]
        for product in _products(node, graph):
            terms = _polynomial(node.inputs[0], product.source, node, graph)
            if terms is None:
                continue
            coefficients, inner = terms
            nodes, dtype = tuple(dict.fromkeys((*inner, *product.nodes))), graph.dtype(product.source)
            is_gelu = set(coefficients) == set(expected) and near(product.factor, 0.5, dtype)
            if not is_gelu or not all(near(coefficients[degree], expected[degree], dtype) for degree in expected):
                refusal = Refused("its constants are those of another function", nodes)
                continue
            name = dtype.name if dtype else "an unknown type"
            require(dtype in KERNELS["Gelu"], f"the runtime has no kernel for {name}", *nodes)
            require_closed(nodes)
            return Match(nodes, build=partial(_gelu, product.source, _APPROXIMATE[node.op_type], graph))
        return refusal


def _gelu(source: ir.Value, approximate: str | None, graph: Facts, op: Builder) -> Replacement:
    """Build one Gelu, in float (`support.HALF_GELU`)."""
    dtype, shape = graph.dtype(source), graph.shape(source)
    if dtype is None or dtype == ir.DataType.FLOAT:
        return op.Gelu(source, approximate=approximate)
    wide = op.learn(op.Cast(source, to=ir.DataType.FLOAT.value), ir.DataType.FLOAT, shape)
    result = op.learn(op.Gelu(wide, approximate=approximate), ir.DataType.FLOAT, shape)
    return op.Cast(result, to=dtype.value)


def _products(node: ir.Node, graph: Facts) -> Iterator[Term]:
    """Yield every reading of what follows as factor * x * (1 + f), shortest first, with the nodes from f on."""
    for scaled in multiplied(Term(node.outputs[0], 1.0, (node,)), graph):
        add = consumer_of(scaled.source, graph, ("Add",))
        summand = None if add is None else value_and_scalar(add, graph)
        if add is None or summand is None or not near(summand[1], scaled.factor, graph.dtype(scaled.source)):
            continue
        for gate in multiplied(Term(add.outputs[0], scaled.factor, (*scaled.nodes, add)), graph):
            user = consumer_of(gate.source, graph, ("Mul",))
            other = None if user is None else other_operand(user, gate.source)
            if user is None or other is None or other is gate.source or value_and_factor(user, graph) is not None:
                continue
            for x in factored(other, user, graph):
                gated = Term(user.outputs[0], gate.factor * x.factor, (*gate.nodes, user))
                for product in multiplied(gated, graph):
                    yield Term(x.source, product.factor, (*x.nodes, *product.nodes))


@optional
def _polynomial(
    value: ir.Value | None, variable: ir.Value, beside: ir.Node, graph: Facts, depth: int = _MAX_DEPTH
) -> tuple[Polynomial, tuple[ir.Node, ...]]:
    """Return a value as a polynomial of low degree in a variable, and the nodes that compute it in order."""
    if value is variable:
        return {1: 1.0}, ()
    number = number_of(value, graph, rank=graph.rank(variable) or 0)
    if number is not None:
        return {0: float(number)}, ()
    node = required(producer_of(value, beside, ("Mul", "Div", "Add", "Pow")) if depth else None)
    (first, before), (second, beside_it) = (
        required(_polynomial(each, variable, beside, graph, depth - 1)) for each in node.inputs
    )
    match node.op_type:
        case "Add":
            result = {degree: first.get(degree, 0.0) + second.get(degree, 0.0) for degree in {*first, *second}}
        case "Mul":
            result = _times(first, second)
        case "Div":
            require(set(second) == {0} and second[0] != 0)
            result = {degree: number / second[0] for degree, number in first.items()}
        case _:
            _, exponent = required(power(node, graph))
            require(exponent in (2, 3))
            result = _times(first, first) if exponent == 2 else _times(_times(first, first), first)
    return result, tuple(dict.fromkeys((*before, *beside_it, node)))


def _times(first: Polynomial, second: Polynomial) -> Polynomial:
    """Multiply two polynomials; no match if the degree is too high."""
    result: defaultdict[int, float] = defaultdict(float)
    for degree, coefficient in first.items():
        for other_degree, other_coefficient in second.items():
            result[degree + other_degree] += coefficient * other_coefficient
    require(max(result) <= _MAX_DEGREE)
    return result
