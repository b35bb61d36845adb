"""Which operands and results of a node can become float16, as the schemas of the operators define."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.checks import KERNELS
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import MAKES_SEQUENCE, OPTIONALS
from sardonyx.ir.scopes import has_bodies, is_constant, operator

_HALF = "tensor(float16)"
_NO_TENSORS = MAKES_SEQUENCE | OPTIONALS


class Parameter(Struct, frozen=True):
    """A formal input or output of an operator."""

    variable: str  # values of one variable have one type
    has_half: bool
    is_variadic: bool
    is_homogeneous: bool


class Conversion(Struct, frozen=True, eq=False):
    """The indices of the inputs and outputs of a node that become float16."""

    node: ir.Node
    inputs: frozenset[int]
    outputs: frozenset[int]


def conversion(node: ir.Node, graph: Facts) -> Conversion | str | None:
    """Return how a node is converted, why it cannot be, or None if it has nothing to do with float32."""
    if is_constant(node):
        return None
    inputs = {index: value for index, value in enumerate(node.inputs) if value is not None}
    outputs = {index: value for index, value in enumerate(node.outputs) if value.name}
    single = ir.DataType.FLOAT
    narrow_in = frozenset(index for index, value in inputs.items() if graph.dtype(value) is single)
    narrow_out = frozenset(index for index, value in outputs.items() if graph.dtype(value) is single)
    if has_bodies(node) or not narrow_in | narrow_out:
        return None
    unknown = any(graph.dtype(value) is None for value in (*inputs.values(), *outputs.values()))
    name = operator(node)
    if unknown or node.op_type in _NO_TENSORS:
        return "the types of its operands are not known"
    if node.domain:
        known = ir.DataType.FLOAT16 in KERNELS.get(name, frozenset())
        return Conversion(node, narrow_in, narrow_out) if known else f"{name} is not known in float16"
    formal = _signature(node.op_type, graph.opset(node))
    if formal is None:
        return f"{name} is not defined in this opset"
    return _by_schema(node, *formal, narrow_in, narrow_out)


def _by_schema(
    node: ir.Node,
    formal_inputs: tuple[Parameter, ...],
    formal_outputs: tuple[Parameter, ...],
    narrow_in: frozenset[int],
    narrow_out: frozenset[int],
) -> Conversion | str:
    reads = {index: _at(formal_inputs, index) for index in narrow_in}
    makes = {index: _at(formal_outputs, index) for index in narrow_out}
    refusal = f"{node.op_type} has no float16 in this opset"
    if any(each is None or not each.is_homogeneous or not each.has_half for each in makes.values()):
        return refusal
    if any(each is None or not each.is_homogeneous for each in reads.values()):
        return refusal
    variables = {each.variable for each in reads.values() if each is not None and each.has_half}
    by_attribute = any(each is not None and each.variable not in variables for each in makes.values())
    if by_attribute and node.op_type != "Cast":
        return f"the type of {node.op_type} is given by an attribute"
    converted = frozenset(index for index, each in reads.items() if each is not None and each.has_half)
    return Conversion(node, converted, narrow_out) if converted | narrow_out else refusal


def _at(formal: tuple[Parameter, ...], index: int) -> Parameter | None:
    if index < len(formal):
        return formal[index]
    return formal[-1] if formal and formal[-1].is_variadic else None


@functools.cache
def _signature(op_type: str, opset: int) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]] | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    variables = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}

    def parameters(formal: list[onnx.defs.OpSchema.FormalParameter]) -> tuple[Parameter, ...]:
        variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
        return tuple(
            Parameter(
                each.type_str,
                _HALF in variables.get(each.type_str, (each.type_str,)),
                each.option == variadic,
                each.is_homogeneous,
            )
            for each in formal
        )

    return parameters(list(schema.inputs)), parameters(list(schema.outputs))
