"""Single nodes with types and opsets varied, from which the profile of a device is measured.

Each operator's node cases in the `onnx` package give attributes and inputs that are valid. One of them is repeated with
other element types and as each earlier version of the operator. So are the operators of ONNX Runtime in the examples of
passes. Nodes of files given on the command line add combinations that real models have; their values need types
(`typed`).
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

TYPES = ("float", "float16", "bfloat16", "double", "int64", "int32", "int16", "int8", "uint64", "uint8", "bool")
FIRST_OPSET = 7
LARGE = 256  # elements of a weight that is an input of the case
LARGEST_CONSTANT = 64  # elements: an integer input of at most this is a parameter of the node, as in real models


def code(name: str) -> int:
    """The number of an element type."""
    return int(onnx.TensorProto.DataType.Value(name.upper()))


def spelled(number: int) -> str:
    """The name of an element type."""
    return str(onnx.TensorProto.DataType.Name(number)).lower()


class Case:
    """One node as a model of its own, with constants where real models have them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Wrap a model with one node."""
        self.model = model
        (self.node,) = model.graph.node
        self.domain = "" if self.node.domain == "ai.onnx" else self.node.domain
        self.opset = {each.domain.replace("ai.onnx", ""): each.version for each in model.opset_import}.get(
            self.domain, 1
        )

    def types(self) -> tuple[str, ...]:
        """The element types of the inputs; "" for one left out."""
        known = {each.name: each.type.tensor_type.elem_type for each in self.model.graph.input}
        known |= {each.name: each.data_type for each in self.model.graph.initializer}
        return tuple(spelled(known[name]) if name else "" for name in self.node.input)

    def is_shaped(self) -> bool:
        """Whether the inputs have shapes, so that it can run."""
        return all(each.type.tensor_type.HasField("shape") for each in self.model.graph.input)

    def result(self) -> str:
        """The element type of the first output, "" if it is not known."""
        found = self.model.graph.output[0].type.tensor_type.elem_type
        return spelled(found) if found else ""


def _single(model: onnx.ModelProto, arrays: Sequence[np.ndarray | None]) -> onnx.ModelProto | None:
    """The model with small integers as constants; None if it is not a node over tensors."""
    graph = model.graph
    if len(graph.node) != 1 or any(not each.type.HasField("tensor_type") for each in (*graph.input, *graph.output)):
        return None
    if graph.node[0].domain not in ("", "ai.onnx"):
        return None
    if any(each.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for each in graph.node[0].attribute):
        return None
    made = copy.deepcopy(model)
    del made.graph.input[:]
    main = graph.input[0].name if graph.input else ""
    for port, array in zip(graph.input, arrays, strict=False):
        small = isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size <= LARGEST_CONSTANT
        if port.name != main and small and array is not None and array.ndim <= 1:
            made.graph.initializer.append(numpy_helper.from_array(array, port.name))
        else:
            made.graph.input.append(port)
    return made


def node_cases() -> Iterator[Case]:
    """The node cases of the onnx package that have one node over tensors."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for each in found:
        if each.model is None or not each.data_sets:
            continue
        arrays = [array if isinstance(array, np.ndarray) else None for array in each.data_sets[0][0]]
        made = _single(each.model, arrays)
        if made is not None:
            case = Case(made)
            for imported in made.opset_import:  # as old as the version of the operator, for more runtimes have it
                imported.version = defs.get_schema(case.node.op_type, case.opset).since_version
            yield Case(made)


ACTIVATIONS: dict[str, dict[str, dict[str, Any]]] = {  # that passes write into the operators of ONNX Runtime
    "FusedConv": {
        **{name: {"activation": name} for name in ("Relu", "Sigmoid", "Tanh", "HardSwish")},
        "Clip": {"activation": "Clip", "activation_params": [0.0, 6.0]},
        "HardSigmoid": {"activation": "HardSigmoid", "activation_params": [0.2, 0.5]},
        "LeakyRelu": {"activation": "LeakyRelu", "activation_params": [0.1]},
    },
    "FusedGemm": {name: {"activation": name} for name in ("Relu", "Sigmoid", "Tanh")},
}


def written_by_passes() -> Iterator[Case]:
    """Every node of another domain in the results of the passes' examples, also with other activations."""
    from sardonyx.passes import ALL

    for rule in ALL:
        model = typed(onnx.parser.parse_model(rule.example.after), large=0)  # inputs, whose types are varied
        for case in nodes_of(model):
            if case.domain:
                yield case
                yield from _activated(case)


def _activated(case: Case) -> Iterator[Case]:
    for attributes in ACTIVATIONS.get(case.node.op_type, {}).values():
        made = copy.deepcopy(case.model)
        (node,) = made.graph.node
        kept = [each for each in node.attribute if not each.name.startswith("activation")]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(*item) for item in attributes.items())])
        yield Case(made)


def nodes_of(model: onnx.ModelProto) -> Iterator[Case]:
    """Each different node of a model whose types are known, as a case."""
    ports = {each.name: each for each in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    constants = {each.name: each for each in model.graph.initializer}
    seen: set[str] = set()
    for node in model.graph.node:
        if any(each.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.TENSOR) for each in node.attribute):
            continue
        graph = onnx.GraphProto(name="one", node=[node])
        for name in dict.fromkeys(filter(None, node.input)):
            if name in constants:
                kept = constants[name]
                if kept.data_location == onnx.TensorProto.EXTERNAL or kept.ByteSize() > 8 * LARGEST_CONSTANT:
                    graph.input.append(helper.make_tensor_value_info(name, kept.data_type, list(kept.dims)))
                else:
                    graph.initializer.append(kept)
            elif name in ports:
                graph.input.append(ports[name])
        graph.output.extend(ports.get(name, onnx.ValueInfoProto(name=name)) for name in node.output if name)
        complete = len(graph.input) + len(graph.initializer) == len({name for name in node.input if name})
        if not complete or any(not each.type.HasField("tensor_type") for each in graph.input):
            continue
        imported = {each.domain: each.version for each in model.opset_import}
        if node.domain in ("", "ai.onnx"):
            imported = {"": defs.get_schema(node.op_type, imported[""]).since_version}
        opsets = [helper.make_opsetid(*item) for item in imported.items()]
        case = Case(helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version))
        key = str((node.op_type, sorted(map(str, node.attribute)), case.types()))
        if key not in seen:
            seen.add(key)
            yield case


def typed(model: onnx.ModelProto, large: int = LARGE) -> onnx.ModelProto:
    """The model with the types of all values, as far as Sardonyx knows them, and `large` weights as inputs."""
    import onnx_ir as ir

    from sardonyx.ir.facts import Facts

    kept: list[onnx.TensorProto] = []
    for each in model.graph.initializer:
        if each.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16) and math.prod(each.dims) > large:
            model.graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, list(each.dims)))
        else:
            kept.append(each)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for node in model.graph.node:
        node.ClearField("metadata_props")
    facts = Facts(ir.from_proto(model))
    facts.infer()
    del model.graph.value_info[:]
    for value in (value for node in facts.model.graph for value in node.outputs):
        dtype, shape = facts.dtype(value), facts.static_shape(value)
        if dtype is not None and value.name and not value.is_graph_output():
            sizes = shape if shape is not None else None if (rank := facts.rank(value)) is None else [None] * rank
            model.graph.value_info.append(helper.make_tensor_value_info(value.name, int(dtype), sizes))
    return model


def _retyped(case: Case, old: int, new: int) -> Case:
    made = copy.deepcopy(case.model)
    for port in (*made.graph.input, *made.graph.output):
        if port.type.tensor_type.elem_type == old:
            port.type.tensor_type.elem_type = new
    return Case(made)


def _earlier(case: Case, version: int) -> Case | None:
    """The case as an earlier version of its operator; constants become attributes where that version has them."""
    made = copy.deepcopy(case.model)
    next(each for each in made.opset_import if each.domain == "").version = version
    schema = defs.get_schema(case.node.op_type, version)
    names = [each.name for each in defs.get_schema(case.node.op_type, case.opset).inputs]
    constants = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    (node,) = made.graph.node
    for position, name in enumerate(list(node.input)[len(schema.inputs) :], len(schema.inputs)):
        wanted = names[min(position, len(names) - 1)]
        if name and (wanted not in schema.attributes or name not in constants):
            return None
        if name:
            kind = int(schema.attributes[wanted].type.value)
            value = constants[name].tolist()
            node.attribute.append(helper.make_attribute(wanted, value, attr_type=kind if value == [] else None))
    del node.input[len(schema.inputs) :]
    kept = [each for each in made.graph.initializer if each.name in node.input]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    ports = [each for each in made.graph.input if each.name in node.input]
    del made.graph.input[:]
    made.graph.input.extend(ports)
    with contextlib.suppress(checker.ValidationError):
        checker.check_model(made, full_check=False)
        return Case(made)
    return None


def _valid(case: Case) -> bool:
    try:
        shape_inference.infer_shapes(case.model, check_type=True, strict_mode=True)
    except Exception:  # the schema does not have this type here: whatever is raised, it is no case
        return False
    return True


def _versions(name: str) -> list[int]:
    found = sorted(
        each.since_version for each in defs.get_all_schemas_with_history() if (each.domain, each.name) == ("", name)
    )
    first = max((version for version in found if version <= FIRST_OPSET), default=0)
    return [version for version in found if version >= first]


def varied(cases: Iterable[Case]) -> Iterator[Case]:
    """All cases, and one of each operator with other types and in earlier versions."""
    found = list(cases)
    yield from found
    by_operator: dict[tuple[str, str], list[Case]] = {}
    for case in found:
        by_operator.setdefault((case.domain, case.node.op_type), []).append(case)
    for (domain, name), members in by_operator.items():
        # One with main type float, few attributes and few inputs is valid for most types.
        base = min(
            members, key=lambda case: ("float" not in case.types(), len(case.node.attribute), len(case.node.input))
        )
        main = next((each for each in base.types() if each), "")
        forms = [base]
        if domain == "":
            earlier = (_earlier(base, version) for version in _versions(name)[:-1])
            forms.extend(form for form in earlier if form is not None)
        for form in forms:
            yield form
            for kind in TYPES if main else ():
                changed = _retyped(form, code(main), code(kind))
                if kind != main and (domain or _valid(changed)):
                    yield changed
