"""Element types of all values, also of those that a file does not declare."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.ir.ops import PREDICATES, READS_SHAPE, READS_TYPE_OF_SECOND
from sardonyx.ir.scopes import bodies

_TYPE_OF_SECOND = READS_TYPE_OF_SECOND | {"Where", "DequantizeLinear"}


def element_types(model: ir.Model) -> dict[ir.Value, ir.DataType]:
    """Return element types, inferred from declarations, constants and the rule that most operators keep the type."""
    types: dict[ir.Value, ir.DataType] = {}

    def look(value: ir.Value | None) -> ir.DataType | None:
        if value is None:
            return None
        constant = value.const_value
        return types.get(value) or (constant.dtype if constant is not None else value.dtype)

    def visit(graph: ir.Graph) -> None:
        for node in graph:
            for _, body in bodies(node):
                visit(body)
            typed = 1 if node.op_type in _TYPE_OF_SECOND else 0
            kind = look(node.outputs[0]) if node.outputs else None
            if "to" in node.attributes:
                kind = ir.DataType(node.attributes["to"].as_int())
            elif node.op_type == "Constant" and "value" in node.attributes:
                kind = node.attributes["value"].as_tensor().dtype
            elif kind is None and node.op_type in PREDICATES:
                kind = ir.DataType.BOOL
            elif kind is None and len(node.inputs) > typed and node.op_type not in READS_SHAPE:
                kind = look(node.inputs[typed])
            if kind is not None:
                types.update(dict.fromkeys(node.outputs, kind))

    visit(model.graph)
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            types[value] = value.const_value.dtype
    return types
