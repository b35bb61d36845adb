"""Tags as node attributes, for tools that drop metadata.

ONNX Runtime and the checker accept unknown attributes only if their names start with two underscores, and optimizers
usually keep attributes that they do not know. They are removed while a graph is in memory, because they would make
equal nodes look different, and written again from the metadata when it is saved.
"""

from __future__ import annotations

import json

import onnx_ir as ir

from sardonyx import provenance as p
from sardonyx.ir.ops import ARITHMETIC, CASTS, KEEPS_ORDER, MATRIX_PRODUCTS
from sardonyx.ir.scopes import is_constant
from sardonyx.provenance.codec import strings

ATTRIBUTES = {
    "__source_module": p.SOURCE_MODULE,
    "__module_path": p.MODULE_PATH,
    "__call": p.CALL,
    "__hierarchy_tags": p.HIERARCHY_TAGS,
    "__module_paths": p.MODULE_PATHS,
    "__how": p.HOW,
}
_LISTS = (p.HIERARCHY_TAGS, p.MODULE_PATHS)
_REQUESTED = "sardonyx.attribute_tags"
_FUSED_INTO_GEMM = frozenset(
    ["Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"]
)
_ABSORBED = ARITHMETIC | KEEPS_ORDER | CASTS | {"BatchNormalization", "Dropout", "Transpose"}


def request(node: ir.Node) -> None:
    """Request that the tags of a node are also written as attributes."""
    node.meta[_REQUESTED] = True


def has_attribute_tags(node: ir.Node) -> bool:
    """Return whether the tags of a node are also written as attributes."""
    return _REQUESTED in node.meta


def read_attributes(node: ir.Node) -> bool:
    """Move tags from the attributes of a node to its metadata, and return whether the metadata changed.

    Metadata that has tags already takes precedence.
    """
    names = [name for name in node.attributes if name in ATTRIBUTES]
    if not names:
        return False
    request(node)
    tags = {ATTRIBUTES[name]: _text(node.attributes.pop(name)) for name in names}
    if p.MODULE_PATH in node.metadata_props or p.SOURCE_MODULE not in tags:
        return False
    if p.MODULE_PATH not in tags:  # written by another tool, which has only the tag
        tags[p.MODULE_PATH] = tags[p.SOURCE_MODULE].strip("/").replace(".", "_").replace("/", ".")
    node.metadata_props.update(tags)
    return True


def write_attributes(node: ir.Node, *, in_function: bool = False) -> None:
    """Write the tags of a node as attributes, if it was read with attributes or they were requested.

    Constants get none, because many tools take their only attribute for the value. Neither do activations that ONNX
    Runtime fuses into a Gemm: it copies their attributes under new names, which it then rejects. In a function, the
    operand of an activation may be the result of a Gemm outside.
    """
    if not has_attribute_tags(node) or is_constant(node):
        return
    if node.op_type in _FUSED_INTO_GEMM and (in_function or _follows_product(node)):
        return
    for name, key in ATTRIBUTES.items():
        text = node.metadata_props.get(key)
        if text is not None:
            node.attributes[name] = ir.AttrStrings(name, strings(text)) if key in _LISTS else ir.AttrString(name, text)


def _follows_product(node: ir.Node) -> bool:
    """Return whether a matrix product precedes the node, directly or through nodes that optimizers remove or absorb."""
    visited: set[ir.Node] = set()
    pending = [node]
    while pending:
        for value in pending.pop().inputs:
            producer = value.producer() if value is not None else None
            if producer is None or producer in visited:
                continue
            if producer.domain or producer.op_type in MATRIX_PRODUCTS:  # an operator of another domain may be a product
                return True
            visited.add(producer)
            if producer.op_type in _ABSORBED:
                pending.append(producer)
    return False


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.STRINGS:
        return json.dumps(list(attribute.as_strings()))
    return attribute.as_string() if attribute.type == ir.AttributeType.STRING else str(attribute.value)
