"""Prove that a rewrite is equal for every size: evaluate both sides with sizes that are polynomials.

A tensor is described by its element: a term over index variables. Reshape, Transpose, Slice and Expand only change how
the variables (digits) make up the axes and the indices; all other operators are functions of which nothing is known but
their name, applied to elements (Add) or to rows of them (Softmax, a sum). Two sides are equal for every size if

- their terms are the same, or
- no term depends on a dynamic size: every element is then computed in the same way, however many there are, and the
  sides were found to be equal at other sizes. Softmax along an axis of fixed length in a batch of any size is such one.

Sizes at which a tensor is empty are not part of the proof. What has no description here is not proven.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import Enum

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.exact.call import FLOATS, Invalid
from sardonyx.verification.fixed_sizes import holds_sizes
from sardonyx.verification.index_terms import Unproven, fused, is_uniform, source, text_of
from sardonyx.verification.rewrite_models import LARGE, Border, Excerpt, SmallModel
from sardonyx.verification.symbolic_operators import (
    Call,
    Known,
    Value,
    evaluated,
    number_text,
    stored_tensor,
    tensor_of,
)

_OLDEST = 13  # opset whose operators are described


class EverySize(Enum):
    """Whether two sides are equal at every size, those at which a tensor is empty aside."""

    UNKNOWN = "unknown"
    IF_TRIED = "if they are equal at the sizes that were tried"
    SAME_TERMS = "they are computed by the same terms"


def at_every_size(excerpt: Excerpt) -> EverySize:
    """Return what follows for other sizes from how the results are computed."""
    shapes = [entry.shape for entry in excerpt.border]
    sizes = [size for entry in excerpt.border for size in (*(entry.shape or ()), *(entry.contents or ()))]
    if None not in shapes and all(isinstance(size, int) for size in sizes):
        return EverySize.IF_TRIED  # there is one size
    try:
        before, after = (_Side(excerpt, side).outputs() for side in (excerpt.before, excerpt.exact))
        return min(itertools.starmap(_compared, zip(before[: excerpt.results], after, strict=True)), key=_WORST.index)
    except (Unproven, Invalid, ValueError, IndexError, KeyError):
        return EverySize.UNKNOWN


_WORST = list(EverySize)


def _compared(old: Value, new: Value) -> EverySize:
    if isinstance(old, Known) and isinstance(new, Known):
        is_same = old.items.shape == new.items.shape and bool(np.all(old.items == new.items))
        return EverySize.SAME_TERMS if is_same else EverySize.UNKNOWN
    a, b = fused(tensor_of(old)), fused(tensor_of(new))
    if a.shape != b.shape:
        return EverySize.UNKNOWN
    if text_of(a) == text_of(b):
        return EverySize.SAME_TERMS
    return EverySize.IF_TRIED if is_uniform(a) and is_uniform(b) else EverySize.UNKNOWN


class _Side:
    """Evaluates one side of an excerpt."""

    def __init__(self, excerpt: Excerpt, side: SmallModel) -> None:
        self._graph, self._scope = side.proto.graph, dict[str, Value]()
        self._opset = max(entry.version for entry in side.proto.opset_import if entry.domain == "")
        self._dims = {size for entry in excerpt.border for size in entry.shape or ()}
        self._constants = side.constants
        self._border = {entry.name: entry for entry in excerpt.border}

    def outputs(self) -> list[Value]:
        """Return the outputs."""
        for node in self._graph.node:
            operands = [self._value(name) for name in node.input]
            for name, value in zip(node.output, self._results(node, operands), strict=False):
                self._scope[name] = value
        return [self._value(output.name) for output in self._graph.output]

    def _value(self, name: str) -> Value:
        if name and name not in self._scope:
            border = self._border.get(name)
            self._scope[name] = _constant(name, self._constants[name]) if border is None else _border(border)
        return self._scope[name] if name else None

    def _results(self, node: onnx.NodeProto, operands: list[Value]) -> Sequence[Value]:
        if node.domain not in ("", "ai.onnx") or self._opset < _OLDEST:
            raise Unproven(f"{node.domain} {node.op_type} {self._opset}")
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        return evaluated(Call(node, operands, attributes, self._opset, frozenset(self._dims)))


def _border(entry: Border) -> Value:
    if entry.shape is None:
        raise Unproven("an unknown rank")
    numbers = [size for size in entry.shape if isinstance(size, int)]
    if entry.contents is not None and None not in entry.contents and len(numbers) == len(entry.shape):
        return Known(np.array([*entry.contents, None], object)[:-1].reshape(numbers))
    return source(entry.name, entry.shape, is_float=entry.dtype is not None and entry.dtype.value in FLOATS)


def _constant(name: str, stored: ir.TensorProtocol) -> Value:
    if holds_sizes(stored) or (stored.dtype == ir.DataType.BOOL and stored.nbytes < LARGE):
        return Known(np.asarray(stored.numpy()).astype(object))
    is_small = stored.dtype != ir.DataType.STRING and stored.nbytes < LARGE
    text = number_text(np.asarray(stored.numpy())) if is_small else name
    return stored_tensor(text, stored.shape.numpy(), is_float=stored.dtype.value in FLOATS)
