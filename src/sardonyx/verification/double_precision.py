"""Run a single-precision model in double precision: y₆₄ = f₆₄(x₃₂, w₃₂).

ONNX Runtime has no kernels for doubles for some operators (Conv, Erf). These compute in single precision between casts;
everything else adds up in double precision, so that the order of a long sum no longer shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.exact import Invalid, Undecided
from sardonyx.exact.evaluate import Evaluator
from sardonyx.exact.moves import tensor
from sardonyx.exact.reals import Numbers, Order, Real
from sardonyx.ir import io
from sardonyx.ir.ops import GELUS, RECURRENT
from sardonyx.runtime import Value
from sardonyx.runtime.remote import RemoteSession
from sardonyx.verification.subject import Subject
from sardonyx.verification.upcast import upcast

_ROUGH = GELUS | {"Erf"}  # whose doubles are not precise in `exact`
# How the runtime names an operator without kernel for doubles, and one that is not defined for them.
_REFUSED = re.compile(r"implementation for (\w+)|of operator \((\w+)\)")


def double_session(model: ir.Model, *, threads: int | None = None) -> RemoteSession:
    """Open a copy of the model in which every operator with a kernel for doubles computes in double precision.

    Raises:
        RuntimeFailure: The runtime does not accept the copy.
    """
    singles: set[str] = set()
    while True:
        copy = upcast(model, constants="widen", to=ir.DataType.DOUBLE, without_kernel=singles)
        try:
            return Subject(model if copy is None else copy).session(threads=threads)
        except RuntimeFailure as refusal:
            match = _REFUSED.search(refusal.message)
            refused = _with_operator(model, match[1] or match[2]) - singles if match else None
            if not refused:
                raise
            singles |= refused


def evaluated(model: ir.Model, feeds: Mapping[str, Value]) -> list[Value] | None:
    """Return the outputs in double precision, computed without the runtime; None if an operator has no definition.

    For models with recurrent operators, whose kernels know no doubles and approximate tanh at every step.
    """
    operators = {node.op_type for node in model.graph.all_nodes()}
    if not operators & RECURRENT or operators & _ROUGH:
        return None
    return doubles(io.to_proto(model), feeds)


def doubles(model: onnx.ModelProto, feeds: Mapping[str, Value]) -> list[Value] | None:
    """Return the outputs in double precision by the definitions of operators; None if one has no definition."""
    numbers = Numbers(Order.TRUE, 0)
    types = {info.name: info.type.tensor_type.elem_type or onnx.TensorProto.FLOAT for info in model.graph.input}
    try:
        values = {name: tensor(numbers, np.asarray(feeds[name]), dtype) for name, dtype in types.items()}
        results = Evaluator(model, numbers).run(values)
    except (Undecided, Invalid):
        return None
    return [value.doubles if isinstance(value, Real) else value for value in results]


def _with_operator(model: ir.Model, operator: str) -> set[str]:
    """Return the operators of a model that are this one, or whose definition has it, which the runtime expands."""
    opset = model.opset_imports.get("", 1)
    kinds = {node.op_type: node for node in model.graph.all_nodes() if node.domain == ""}
    return {kind for kind, node in kinds.items() if kind == operator or operator in _definition(node, opset)}


def _definition(node: ir.Node, opset: int) -> set[str]:
    """Return the operators in the standard's definition of an operator as a function, if it has one."""
    schema: Any = onnx.defs.get_schema(node.op_type, opset)  # its stub lacks some methods
    body = schema.function_body
    if schema.has_context_dependent_function:
        double = onnx.helper.make_tensor_type_proto(onnx.TensorProto.DOUBLE, None).SerializeToString()
        made = schema.get_context_dependent_function(ir.to_proto(node).SerializeToString(), [double] * len(node.inputs))
        body = onnx.FunctionProto.FromString(made)
    return {inner.op_type for inner in body.node}
