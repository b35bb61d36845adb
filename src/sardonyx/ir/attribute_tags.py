"""Tags as node attributes, for the way through tools that drop metadata.

ONNX Runtime and the checker accept unknown attributes only under names that begin with two underscores, and optimizers
tend to keep attributes they do not know. While we work on a graph they are taken off, since they would make equal nodes
look different, and afterwards they are put on again, true to the node as it then is.
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
_WORN = "sardonyx.armour"
_FUSED_INTO_GEMM = frozenset(
    ["Elu", "HardSigmoid", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"]
)
_ABSORBED = ARITHMETIC | KEEPS_ORDER | CASTS | {"BatchNormalization", "Dropout", "Transpose"}


def order(node: ir.Node) -> None:
    """Ask for a node's tags to be written as attributes too."""
    node.meta[_WORN] = True


def has_attribute_tags(node: ir.Node) -> bool:
    """Whether a node's tags are written as attributes too."""
    return _WORN in node.meta


def take_off(node: ir.Node) -> bool:
    """Read tags that come as attributes into the metadata, where the metadata has none of its own; whether it did."""
    worn = [name for name in node.attributes if name in ATTRIBUTES]
    if not worn:
        return False
    order(node)
    said = {ATTRIBUTES[name]: _text(node.attributes.pop(name)) for name in worn}
    if p.MODULE_PATH in node.metadata_props or p.SOURCE_MODULE not in said:
        return False
    if p.MODULE_PATH not in said:  # another tool's attribute: the tag is all there is
        said[p.MODULE_PATH] = said[p.SOURCE_MODULE].strip("/").replace(".", "_").replace("/", ".")
    node.metadata_props.update(said)
    return True


def put_on(node: ir.Node, *, in_function: bool = False) -> None:
    """Write the tags in a node's metadata as attributes, where it came with attributes or was asked to have them.

    Constants go without, since many a tool takes their only attribute for the value. So do activations that ONNX
    Runtime fuses into a Gemm: it copies their attributes under names of its own, and then does not know them; a
    function may be called with a Gemm's result.
    """
    if not has_attribute_tags(node) or is_constant(node):
        return
    if node.op_type in _FUSED_INTO_GEMM and (in_function or _follows_a_product(node)):
        return
    for name, key in ATTRIBUTES.items():
        text = node.metadata_props.get(key)
        if text is not None:
            node.attributes[name] = ir.AttrStrings(name, strings(text)) if key in _LISTS else ir.AttrString(name, text)


def _follows_a_product(node: ir.Node) -> bool:
    """Whether a matrix product comes right before a node, or only steps that optimizers remove or take into it."""
    seen: set[ir.Node] = set()
    waiting = [node]
    while waiting:
        for value in waiting.pop().inputs:
            maker = value.producer() if value is not None else None
            if maker is None or maker in seen:
                continue
            if maker.domain or maker.op_type in MATRIX_PRODUCTS:  # of another domain: nobody knows what is inside
                return True
            seen.add(maker)
            if maker.op_type in _ABSORBED:
                waiting.append(maker)
    return False


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.STRINGS:
        return json.dumps(list(attribute.as_strings()))
    return attribute.as_string() if attribute.type == ir.AttributeType.STRING else str(attribute.value)
