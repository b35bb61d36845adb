"""Checks of every replacement, independent of the pass: types, shapes, kernels, scopes and stored constants.

They inspect nodes that are not in a graph yet, and raise `Impossible` before the graph has changed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir.facts import Facts, Shape
from sardonyx.ir.precision import FORMATS, GUARD, Impossible
from sardonyx.ir.rules import Builder, Match
from sardonyx.ir.scopes import bodies, is_constant, operand
from sardonyx.ir.shapes.expr import equal
from sardonyx.ir.support import Types, has_kernel
from sardonyx.ir.tensors import ComputedTensor, ReshapedTensor, StreamedTensor, TransposedTensor

Pairs = Sequence[tuple[ir.Value, ir.Value]]

# Operators that pass on one of their operands: an infinity there is a fill value or a bound, not an overflow.
_SELECT = frozenset({"Where", "Clip", "Max", "Min", "Pad", "Expand", "ConstantOfShape"})


def check(match: Match, pairs: Pairs, op: Builder, facts: Facts) -> None:
    """Refuse a replacement that could change the types, shapes or visible values of the graph.

    Raises:
        Impossible: with the reason.
    """
    stated = {output for node in op.nodes for output in node.outputs if facts.shapes.is_known(output)}
    for node in op.nodes:
        for value in node.inputs:
            if value is not None:
                _check_visible(value, op, facts)
        if any(body not in facts.scopes for _, body in bodies(node)):
            raise Impossible("a rewrite cannot create subgraphs")
        _check_types(node, match, facts)
        for output, (dtype, shape) in zip(node.outputs, facts.shapes.infer_outputs(node), strict=True):
            if output in stated:
                _check_same((dtype, shape), facts.shapes.typed(output), "an intermediate value")
            else:
                facts.learn(output, dtype, shape)
    for old, value in pairs:
        _check_visible(value, op, facts)
        _check_same((facts.dtype(old), facts.shape(old)), (facts.dtype(value), facts.shape(value)), "the result")
    for _, value in pairs:  # the shape of the replaced value is at least as precise, and is carried over later
        if value.producer() in op.nodes and value not in stated:
            facts.forget(value)
    if any(not is_constant(node) for node in op.nodes):
        _check_stored(match, op, facts)


def _check_visible(value: ir.Value, op: Builder, facts: Facts) -> None:
    """Refuse a value that is neither created by this rewrite nor in the graph of its root or an enclosing one."""
    producer = value.producer()
    home = value.graph if producer is None else producer.graph
    if producer in op.nodes if home is None else home is op.scope.graph:
        return
    if home is None:
        if value in op.constants:
            return
        raise Impossible("it reads a value that is not in any graph")
    scope = op.scope
    while scope.holder is not None and scope.holder.graph is not None:
        scope = facts.scopes[scope.holder.graph]
        if scope.graph is home:
            return
    raise Impossible("it reads a value of a graph that does not enclose it")


def _check_types(node: ir.Node, match: Match, facts: Facts) -> None:
    """Refuse a node whose operand types the operator does not accept together, or for which there is no kernel."""
    bound_types: dict[str, ir.DataType] = {}
    operands = () if node.domain else _signature(node.op_type, facts.opset(node))
    repeated = operands[-1:] if operands and operands[-1].is_variadic else ()
    for formal, value in zip(itertools.chain(operands, itertools.cycle(repeated)), node.inputs, strict=False):
        dtype = facts.dtype(value)
        if dtype is None:
            continue
        if dtype not in formal.allowed or bound_types.setdefault(formal.variable, dtype) is not dtype:
            raise Impossible(f"{node.op_type} does not accept {_type_name(dtype)} there")
    dtype = _kernel_type(node, facts)
    if not has_kernel(node, dtype) and all(has_kernel(old, _kernel_type(old, facts)) for old in match.nodes):
        raise Impossible(f"ONNX Runtime has no {node.op_type} for {_type_name(dtype)}")


def _kernel_type(node: ir.Node, facts: Facts) -> ir.DataType | None:
    """Return the element type that selects the kernel, or None if unknown; the first input of Where is a condition."""
    return facts.dtype(operand(node, 1 if node.op_type == "Where" else 0))


def _type_name(dtype: ir.DataType | None) -> str:
    return dtype.name.lower() if dtype is not None else "an unknown type"


class _Formal(NamedTuple):
    """An operand as the ONNX schema defines it."""

    variable: str  # operands with the same one have the same type
    allowed: Types
    is_variadic: bool


@functools.cache
def _signature(op_type: str, opset: int) -> tuple[_Formal, ...]:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return ()
    variables = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}
    operands: list[_Formal] = []
    for index, parameter in enumerate(schema.inputs):
        is_variadic = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        variable = parameter.type_str if parameter.is_homogeneous else f"{parameter.type_str}{index}"
        texts = variables.get(parameter.type_str, [parameter.type_str])
        allowed = frozenset(_ELEMENTS[text] for text in texts if text in _ELEMENTS)
        operands.append(_Formal(variable, allowed, is_variadic and parameter.is_homogeneous))
    return tuple(operands)


# By type string; sequences are left out, and an older onnx does not know all of them.
_ELEMENTS = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType if dtype.value}


def _check_same(
    old: tuple[ir.DataType | None, Shape | None], new: tuple[ir.DataType | None, Shape | None], what: str
) -> None:
    """Refuse a replacement whose type or shape contradicts what is known about the value."""
    if old[0] is not None and new[0] is not None and old[0] is not new[0]:
        raise Impossible(f"{what} would be {_type_name(new[0])} and not {_type_name(old[0])}")
    if old[1] is not None and new[1] is not None:
        pairs = zip(old[1], new[1], strict=False)
        if len(old[1]) != len(new[1]) or any(equal(a, b) is False for a, b in pairs):
            raise Impossible(f"{what} would have another shape")


def _check_stored(match: Match, op: Builder, facts: Facts) -> None:
    """Refuse a new weight with infinities, NaN or subnormal numbers, unless a constant it was computed from has them.

    A node that is folded on its own gives what the graph computes. A constant that is merged into another operator
    gives a product that the graph does not compute, and which can overflow or lose precision.
    """
    stored = [
        tensor
        for value in op.constants
        if (tensor := value.const_value) is not None
        and _is_new(tensor)
        and any(use.node.op_type not in _SELECT for use in value.uses())
    ]
    flaws = list(filter(None, map(_flaw, stored)))
    if flaws:
        operands = {value for node in match.nodes for value in node.inputs}
        present = {_flaw(tensor) for value in operands if (tensor := facts.tensor(value)) is not None}
        for flaw in flaws:
            if flaw not in present:
                raise Impossible(f"a new constant holds {flaw}")


def _is_new(tensor: ir.TensorProtocol) -> bool:
    """Return whether the numbers may differ from those of the source, and were not checked when they were computed."""
    if tensor.dtype not in FORMATS:
        return False
    if isinstance(tensor, (ReshapedTensor, TransposedTensor)):
        return _is_new(tensor.source)
    return not isinstance(tensor, StreamedTensor) or (isinstance(tensor, ComputedTensor) and tensor.is_checked)


def _flaw(tensor: ir.TensorProtocol) -> str | None:
    """Return what a float tensor holds that suggests an overflow or a loss of precision, or None."""
    form = FORMATS.get(tensor.dtype)
    if form is None or not tensor.size:
        return None
    array = tensor.numpy()
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return "infinities or NaN"
    smallest_normal = form.least / (2 * form.roundoff)
    if max(high, -low) >= smallest_normal * GUARD:
        return None
    magnitude = np.abs(array.astype(np.float64))
    return "subnormal numbers" if ((magnitude > 0) & (magnitude < smallest_normal)).any() else None
