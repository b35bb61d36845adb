"""Operators that work row by row or element by element, so that a view or a Transpose around them can be moved.

What they read beside the moved value (a bias, a scale) must follow it: a row stays a row, and a constant is arranged
anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.ops import BINARY, SOFTMAXES, UNARY, VARIADIC
from sardonyx.passes._matching import operand

PAIRWISE = BINARY | VARIADIC
ALONG_ROWS = SOFTMAXES | {"LayerNormalization", "RMSNormalization"}
NEGATIVE_AXES_SINCE = 11


@dataclass(frozen=True, slots=True, eq=False)
class RowStep:
    """A node that can be applied before a move as well as after it."""

    node: ir.Node
    place: int  # the input that is moved
    by_rows: bool  # needs the last axis to stay what it is
    beside: int | None = None  # an input that has to be arranged anew


def row_step(node: ir.Node, value: ir.Value, graph: Facts) -> RowStep | None:
    """How a node works on a value, where that is row by row."""
    if node.domain or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    place = next(index for index, given in enumerate(node.inputs) if given is value)
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
        old = 1 if node.op_type.endswith("max") and graph.opset(node) < 13 else -1
        last = node.attributes.get_int("axis", old) in (-1, rank - 1) and graph.opset(node) >= NEGATIVE_AXES_SINCE
        flat = all(graph.rank(value) in (0, 1) for value in node.inputs[1:] if value is not None)
        return RowStep(node, 0, by_rows=True) if last and flat else None
    return None


def _is_matrix(value: ir.Value, graph: Facts) -> bool:
    rank = graph.rank(value)
    return rank is not None and rank >= 2


def _is_plain_gemm(node: ir.Node, graph: Facts) -> bool:
    """A product of rows with a matrix, plus a row."""
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
    if graph.array(other) is not None:
        return RowStep(node, place, by_rows=False, beside=1 - place)
    return RowStep(node, place, by_rows=True) if len(shape) == 1 else None


def rebuilt(step: RowStep, value: ir.Value, beside: np.ndarray | None, op: Builder) -> ir.Value:
    """The same step on another value; a Gemm becomes a product and a sum, which take any number of axes."""
    node = step.node
    if node.op_type == "Gemm":
        weight = node.inputs[1]
        if node.attributes.get_int("transB", 0):
            weight = op.Transpose(weight, perm=[1, 0])
        product, bias = op.MatMul(value, weight), operand(node, 2)
        return product if bias is None else op.Add(product, bias)
    inputs = list(node.inputs)
    inputs[step.place] = value
    if step.beside is not None and beside is not None:
        inputs[step.beside] = op.constant(np.ascontiguousarray(beside))
    changed = {"axis": -1} if node.op_type in ALONG_ROWS else {}
    return op.like(node, tuple(inputs), **changed)


def viewed_back(array: np.ndarray, viewed: Shape, source: Shape) -> np.ndarray | None:
    """A constant that is combined with a view, as it must be to be combined with the view's source."""
    if array.size == 1:
        return array.reshape(())
    shape = (1,) * (len(viewed) - array.ndim) + array.shape
    same = 0
    while same < min(len(viewed), len(source)) and viewed[-1 - same] == source[-1 - same]:
        same += 1
    head, left = shape[: len(shape) - same], source[: len(source) - same]
    if math.prod(head) == 1:
        return array.reshape((1,) * len(left) + shape[len(shape) - same :])
    if head != tuple(viewed[: len(viewed) - same]) or not all(isinstance(dim, int) for dim in left):
        return None
    dims = [dim for dim in left if isinstance(dim, int)]
    return array.reshape(*dims, *shape[len(shape) - same :]) if math.prod(dims) == math.prod(head) else None


def permuted_back(array: np.ndarray, perm: Sequence[int]) -> np.ndarray:
    """A constant that is combined with a Transpose's result, as it must be to be combined with its input."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape((1,) * (len(perm) - array.ndim) + array.shape).transpose(np.argsort(perm))
