"""The table of opset changes agrees with the schemas of onnx: it has every change that affects nodes, and no other."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import onnx
import pytest
from onnx import defs, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def  # pyright: ignore[reportAttributeAccessIssue]

from sardonyx.ir.opset_raising import CHANGES, NEWEST, OLDEST, affected, since

# Changes of meaning in the text of the specification that no schema shows.
ONLY_IN_WORDS = {
    ("AveragePool", 19): "windows that begin in the padding, where sizes are rounded up",
    ("AveragePool", 22): "the same",
    ("MaxPool", 22): "the same",
    ("ConvTranspose", 11): "which side gets the odd element of a padding",
    ("MeanVarianceNormalization", 13): "onnx's inference fails without axes",
    ("OneHot", 11): "negative classes",
    ("Resize", 13): "empty scales are no longer a way to say that there are none",
    ("Split", 18): "without sizes the number of parts must be given",
}
# New attributes whose defaults give the former behaviour.
AS_BEFORE = {
    ("DepthToSpace", "mode"),
    ("DequantizeLinear", "axis"),
    ("QuantizeLinear", "axis"),
    ("QuantizeLinear", "saturate"),
    ("Cast", "saturate"),
    ("CastLike", "saturate"),
    ("Resize", "keep_aspect_ratio_policy"),
    ("ScatterElements", "reduction"),
    ("ScatterND", "reduction"),
    ("TopK", "largest"),
    ("TopK", "sorted"),
}


def histories() -> dict[str, list[defs.OpSchema]]:
    by_name: dict[str, list[defs.OpSchema]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= NEWEST:
            by_name[schema.name].append(schema)
    return {name: sorted(schemas, key=lambda s: s.since_version) for name, schemas in by_name.items()}


HISTORIES = histories()
STEPS = [
    (old, new)
    for schemas in HISTORIES.values()
    for old, new in itertools.pairwise(schemas)
    if new.since_version > OLDEST
]


def default(attribute: defs.OpSchema.Attribute) -> object:
    return helper.get_attribute_value(attribute.default_value) if attribute.default_value.type else None


def types(schema: defs.OpSchema, parameter: defs.OpSchema.FormalParameter) -> set[str]:
    constraints = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
    return constraints.get(parameter.type_str, {parameter.type_str})


def harm(old: defs.OpSchema, new: defs.OpSchema) -> list[str]:
    """What a valid node of the old schema lacks in the new one."""
    differences = ["it is deprecated"] if new.deprecated and not old.deprecated else []
    for name, attribute in old.attributes.items():
        other = new.attributes.get(name)
        if other is None:
            differences.append(f"attribute {name} is gone")
        elif (attribute.type, default(attribute)) != (other.type, default(other)):
            differences.append(f"attribute {name} has another default")
        elif other.required and not attribute.required:
            differences.append(f"attribute {name} is required")
    for name, attribute in new.attributes.items():
        if name not in old.attributes and (
            attribute.required or (default(attribute) and (new.name, name) not in AS_BEFORE)
        ):
            differences.append(f"attribute {name} is new")
    for was, now in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        if len(now) < len(was):
            differences.append("there are fewer places")
        for place, parameter in enumerate(now):
            if place >= len(was):
                if parameter.option == defs.OpSchema.FormalParameterOption.Single:
                    differences.append(f"{parameter.name} is required")
                continue
            before = was[place]
            if parameter.option != before.option and parameter.option == defs.OpSchema.FormalParameterOption.Single:
                differences.append(f"{parameter.name} is required")
            if lost := types(old, before) - types(new, parameter):
                differences.append(f"{parameter.name} is no longer {sorted(lost)}")
    return differences


def kernels() -> dict[str, list[tuple[int, int]]]:
    """The versions that the kernels of each standard operator support, in the installed runtime."""
    versions: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for kernel in get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and kernel.domain == "":
            versions[kernel.op_name].append(kernel.version_range)
    return versions


KERNELS = kernels()


def runs(schema: defs.OpSchema) -> bool:
    """Whether a kernel exists, or else kernels for the function that the runtime expands the operator to.

    A kernel without an end version supports only its first version.
    """
    version, endless = schema.since_version, 2**31 - 1
    ranges = KERNELS.get(schema.name, [])
    if any(low == version or low < version <= high < endless for low, high in ranges):
        return True
    body = expanded(schema)
    return bool(body) and all(runs(defs.get_schema(node.op_type, version, node.domain)) for node in body)


def expanded(schema: defs.OpSchema) -> list[onnx.NodeProto]:
    """The nodes of the function that defines an operator, called with float operands; none if it has no definition."""
    described: Any = schema  # the stubs of onnx lack these
    if described.has_function:
        return list(described.function_body.node)
    if not described.has_context_dependent_function:
        return []
    names = [parameter.name for parameter in schema.inputs]
    node = helper.make_node(schema.name, names, [parameter.name for parameter in schema.outputs])
    operand = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None).SerializeToString()
    body = described.get_context_dependent_function(node.SerializeToString(), [operand] * len(names))
    return list(onnx.FunctionProto.FromString(body).node)


@pytest.mark.parametrize(("old", "new"), STEPS, ids=lambda schema: f"{schema.name}-{schema.since_version}")
def test_every_change_other_than_a_widening_is_marked(old: defs.OpSchema, new: defs.OpSchema) -> None:
    marked = affected(old.name, old.since_version, new.since_version)
    in_words = (new.name, new.since_version) in ONLY_IN_WORDS
    lost = harm(old, new) + (["it has no kernel"] if runs(old) and not runs(new) else [])
    assert not (lost and in_words)
    assert marked == (bool(lost) or in_words), lost


def test_exactly_the_marked_changes_have_an_adapter() -> None:
    assert {name for name in HISTORIES if affected(name, 0, NEWEST)} == CHANGES.keys()


def test_the_version_of_an_operator_in_an_opset() -> None:
    assert [since("Softmax", opset) for opset in (7, 11, 12, 13, 23)] == [1, 11, 11, 13, 13]
    assert (since("Gelu", 19), since("Gelu", 20), since("Nonsense", 23)) == (0, 20, 0)
