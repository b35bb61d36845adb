"""Check nodes against the schemas of their operators, so that passes and analyses can rely on operands and attributes.

A node with too few operands, or with an attribute of another type, is not valid ONNX, and no runtime accepts it.
Of ONNX Runtime's own operators, which have no schema in the onnx package, the types of common attributes are checked.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import onnx.defs
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import ModelError
from sardonyx.ir.scopes import scopes, tensor_of

_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
_INT, _INTS, _FLOAT = ir.AttributeType.INT.value, ir.AttributeType.INTS.value, ir.AttributeType.FLOAT.value
_ORT_TYPES = {  # of attributes of the operators of com.microsoft, the same in all of them
    **dict.fromkeys(("num_heads", "kv_num_heads", "unidirectional", "is_causal", "axis", "group"), _INT),
    **dict.fromkeys(("transA", "transB", "transBatchA", "transBatchB", "K", "N", "bits", "block_size"), _INT),
    **dict.fromkeys(("alpha", "beta", "epsilon", "scale", "softcap"), _FLOAT),
    **dict.fromkeys(("qkv_hidden_sizes", "kernel_shape", "pads", "strides", "dilations"), _INTS),
}
_ANY = 0, 1 << 31
_TYPE_NUMBERS = frozenset(kind.value for kind in ir.DataType)


class _Form(Struct, frozen=True):
    """What a schema says about the nodes of an operator."""

    inputs: tuple[int, int]  # the least and the largest number
    outputs: tuple[int, int]
    required_inputs: tuple[int, ...]  # that may not be left out between others
    required_attributes: tuple[str, ...]
    types: Mapping[str, int]  # of attributes


def check_forms(model: ir.Model) -> None:
    """Raise an error if a node contradicts the schema of its operator, or the function that it calls."""
    functions = model.functions
    for scope in scopes(model):
        for node in scope.graph:
            function = functions.get(node.op_identifier()) if functions else None
            if function is not None:
                counts = (0, len(function.inputs)), (0, len(function.outputs))
                form = _Form(*counts, (), (), {})
            else:
                form = _form(node.op_type, scope.opsets.get(node.domain, 0), node.domain)
            if fault := _fault(node, form):
                raise ModelError(
                    f"node {node.name!r} ({node.op_type}) {fault}",
                    hint="the model is not valid ONNX; onnx.checker.check_model may report details",
                )


@functools.cache
def _form(op_type: str, version: int, domain: str) -> _Form:
    try:
        schema: Any = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return _Form(_ANY, _ANY, (), (), _ORT_TYPES if domain == "com.microsoft" else {})
    attributes = cast("Mapping[str, Any]", schema.attributes)
    return _Form(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(index for index, each in enumerate(schema.inputs) if each.option == _SINGLE),
        tuple(name for name, attribute in attributes.items() if attribute.required),
        {name: attribute.type.value for name, attribute in attributes.items()},
    )


def _fault(node: ir.Node, form: _Form) -> str | None:
    inputs, outputs = node.inputs, node.outputs
    if not form.inputs[0] <= len(inputs) <= form.inputs[1]:
        return f"has {len(inputs)} inputs"
    if len(outputs) < form.outputs[0] or any(value.name for value in outputs[form.outputs[1] :]):
        return f"has {len(outputs)} outputs"
    for index in form.required_inputs:
        if index < len(inputs) and inputs[index] is None:
            return f"has no input {index}"
    attributes = node.attributes.data
    for name in form.required_attributes:
        if name not in attributes:
            return f"has no attribute {name!r}"
    for name, attribute in attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type.value != form.types.get(name, attribute.type.value):
            return f"has attribute {name!r} of type {attribute.type.name}"
        if attribute.type is ir.AttributeType.TENSOR and tensor_of(attribute).dtype == ir.DataType.UNDEFINED:
            return f"has attribute {name!r} without an element type"
    return None if node.domain else _wrong_attributes(node, form)


def _wrong_attributes(node: ir.Node, form: _Form) -> str | None:
    """Return what is wrong with attributes that have the right types."""
    attributes = node.attributes.data
    if node.op_type == "Constant":
        values = {name for name in attributes if not name.startswith("__")}  # runtimes accept such names: tags
        if len(values) != 1 or values - form.types.keys():
            return "does not have a value"
    for name in ("to", "dtype"):
        number = attributes.get(name)
        if number is not None and not number.is_ref() and number.value not in _TYPE_NUMBERS:
            return f"has an attribute {name!r} with the unknown element type {number.value}"
    perm = attributes.get("perm") if node.op_type == "Transpose" else None
    if perm is not None and not perm.is_ref() and sorted(perm.as_ints()) != list(range(len(perm.as_ints()))):
        return "has an attribute 'perm' that is no permutation"
    return None
