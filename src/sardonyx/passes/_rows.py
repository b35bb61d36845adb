"""Operators that work row by row or element by element, so that a view or Transpose can move across them.

Their other operands (a bias, a scale) have to fit after the move: a vector along the last axis stays as it is, and a
larger constant is reshaped or transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.ops import BINARY, SOFTMAXES, UNARY, VARIADIC
from sardonyx.ir.scopes import has_references, operand
from sardonyx.ir.tensors import reshaped, transposed

PAIRWISE = BINARY | VARIADIC
ALONG_ROWS = SOFTMAXES | {"LayerNormalization", "RMSNormalization"}
NEGATIVE_AXES_SINCE = 11


class RowStep(Struct, frozen=True, eq=False):
    """A node that gives the same result before a move as after it."""

    node: ir.Node
    place: int  # the input that is moved
    by_rows: bool  # requires that the move keeps the last axis
    constant: int | None = None  # a constant input that has to be rearranged


def row_step(node: ir.Node, value: ir.Value, graph: Facts) -> RowStep | None:
    """Return how a node works on a value if it does so row by row or element by element, otherwise None."""
    if node.domain or has_references(node):
        return None
    place = next(index for index, candidate in enumerate(node.inputs) if candidate is value)
    if node.op_type in UNARY:
        return RowStep(node, place, by_rows=False) if place == 0 else None
    if node.op_type in PAIRWISE:
        return _pairwise(node, place, graph)
    if place != 0:
        return None
    if node.op_type == "MatMul":
        return RowStep(node, 0, by_rows=True) if graph.rank(node.inputs[1]) == 2 and _is_matrix(value, graph) else None
    if node.op_type == "Gemm":
        return RowStep(node, 0, by_rows=True) if _is_plain_gemm(node, graph) else None
    rank = graph.rank(value)
    if node.op_type in ALONG_ROWS and rank is not None and len(node.outputs) == 1:
        default = 1 if node.op_type.endswith("max") and graph.opset(node) < 13 else -1
        last = node.attributes.get_int("axis", default) in (-1, rank - 1) and graph.opset(node) >= NEGATIVE_AXES_SINCE
        vectors = all(graph.rank(value) in (0, 1) for value in node.inputs[1:] if value is not None)
        return RowStep(node, 0, by_rows=True) if last and vectors else None
    return None


def _is_matrix(value: ir.Value, graph: Facts) -> bool:
    rank = graph.rank(value)
    return rank is not None and rank >= 2


def _is_plain_gemm(node: ir.Node, graph: Facts) -> bool:
    """Return whether a Gemm is x @ W + b with x not transposed, no scaling, and b a row."""
    attributes = node.attributes
    plain = all(attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    bias = operand(node, 2)
    shape = graph.shape(bias)
    flat = bias is None or (shape is not None and all(dim == 1 for dim in shape[:-1]))
    return plain and not attributes.get_int("transA", 0) and flat


def _pairwise(node: ir.Node, place: int, graph: Facts) -> RowStep | None:
    other = node.inputs[1 - place] if len(node.inputs) == 2 else None
    shape = graph.shape(other)
    rank = graph.rank(node.inputs[place])
    if other is None or other is node.inputs[place] or shape is None or rank is None or len(shape) > rank:
        return None
    if not graph.same_shape(node.inputs[place], node.outputs[0]):
        return None
    if not shape:
        return RowStep(node, place, by_rows=False)
    if graph.array(other) is not None and graph.dtype(other) is not ir.DataType.STRING:
        return RowStep(node, place, by_rows=False, constant=1 - place)
    return RowStep(node, place, by_rows=True) if len(shape) == 1 else None


def rebuilt(step: RowStep, value: ir.Value, constant: ir.TensorProtocol | None, op: Builder) -> ir.Value:
    """Apply the same step to another value; a Gemm becomes MatMul and Add, which accept any rank."""
    node = step.node
    if node.op_type == "Gemm":
        weight = node.inputs[1]
        if node.attributes.get_int("transB", 0):
            weight = op.Transpose(weight, perm=[1, 0])
        product, bias = op.MatMul(value, weight), operand(node, 2)
        return product if bias is None else op.Add(product, bias)
    inputs = list(node.inputs)
    inputs[step.place] = value
    if step.constant is not None and constant is not None:
        inputs[step.constant] = op.constant(constant)
    changed = {"axis": -1} if node.op_type in ALONG_ROWS else {}
    return op.like(node, tuple(inputs), **changed)


def viewed_back(constant: ir.TensorProtocol, viewed: Shape, source: Shape) -> ir.TensorProtocol | None:
    """Reshape a constant that is combined with a view so that it can be combined with the source of the view."""
    if constant.size == 1:
        return reshaped(constant, ())
    sizes = constant.shape.numpy()
    shape = (*(1,) * (len(viewed) - len(sizes)), *sizes)
    common = 0
    # The trailing axes that the view keeps; only what is in front of them is reshaped.
    while common < min(len(viewed), len(source)) and viewed[-1 - common] == source[-1 - common]:
        common += 1
    head, source_head = shape[: len(shape) - common], source[: len(source) - common]
    if math.prod(head) == 1:
        return reshaped(constant, (*(1,) * len(source_head), *shape[len(shape) - common :]))
    if head != tuple(viewed[: len(viewed) - common]) or not all(isinstance(dim, int) for dim in source_head):
        return None
    dims = [dim for dim in source_head if isinstance(dim, int)]
    fits = math.prod(dims) == math.prod(head)
    return reshaped(constant, (*dims, *shape[len(shape) - common :])) if fits else None


def permuted_back(constant: ir.TensorProtocol, perm: Sequence[int]) -> ir.TensorProtocol:
    """Transpose a constant that is combined with the result of a Transpose so that it fits the input."""
    if constant.size == 1:
        return reshaped(constant, ())
    sizes = constant.shape.numpy()
    whole = reshaped(constant, (*(1,) * (len(perm) - len(sizes)), *sizes))
    return transposed(whole, [list(perm).index(axis) for axis in range(len(perm))])
