"""A HierarchyDag as a graph collection of Google's Model Explorer, whose layers are then the model's modules."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.module_graph import HierarchyDag, Operation

_TENSOR = "__tensor_tag"  # the viewer shows this key as the name of an input or output


def render_model_explorer(found: HierarchyDag) -> bytes:
    """The collection as JSON: one graph, in which a node's namespace is the tag of its module."""
    homes = found.homes()
    incoming = _incoming(found)
    nodes = [
        {
            "id": name,
            "label": operation.op_type,
            "namespace": homes[name].strip("/"),
            "attrs": _attributes(operation),
            "incomingEdges": incoming[name],
            "inputsMetadata": [_input(i, value, found) for i, value in enumerate(operation.inputs) if value],
            "outputsMetadata": [_port(i, {_TENSOR: value}) for i, value in enumerate(operation.outputs) if value],
        }
        for name, operation in found.operations.items()
    ]
    groups = {tag.strip("/"): _group(found, tag) for tag in found.modules}
    graph = {"id": "model", "nodes": nodes, "groupNodeAttributes": groups}
    return msgspec.json.encode({"label": found.model, "graphs": [graph]})


def _incoming(found: HierarchyDag) -> dict[str, list[dict[str, str]]]:
    """What every node takes from which output of which node; what a body gives its holder enters at the first input."""
    makers = found.makers()
    edges: dict[str, list[dict[str, str]]] = {name: [] for name in found.operations}
    unseen = dict.fromkeys(found.edges())
    for name, operation in found.operations.items():
        for index, value in enumerate(operation.inputs):
            if value in makers:
                maker, output = makers[value]
                edges[name].append(_edge(maker, output, index))
                unseen.pop((maker, name), None)
    for maker, name in unseen:
        edges[name].append(_edge(maker, 0, 0))
    return edges


def _edge(source: str, output: int, target: int) -> dict[str, str]:
    return {"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(target)}


def _attributes(operation: Operation) -> list[dict[str, str]]:
    known = {"op": f"{operation.domain}::{operation.op_type}" if operation.domain else operation.op_type}
    known |= {"module": operation.call or operation.module_path, "how": operation.how.value}
    if len(operation.tags) > 1:
        known["tags"] = ", ".join(operation.tags)
    known |= {key: msgspec.json.encode(value).decode() for key, value in operation.attributes.items()}
    return _pairs(known)


def _input(index: int, value: str, found: HierarchyDag) -> dict[str, Any]:
    weight = found.initializers.get(value)
    shape = {} if weight is None else {"shape": f"{weight.dtype}{list(weight.shape)}"}
    return _port(index, {_TENSOR: value} | shape)


def _port(index: int, known: dict[str, str]) -> dict[str, Any]:
    return {"id": str(index), "attrs": _pairs(known)}


def _pairs(known: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in known.items()]


def _group(found: HierarchyDag, tag: str) -> dict[str, str]:
    module = found.modules[tag]
    return {"module": module.path, "class": module.kind or "unknown", "nodes": str(len(module.nodes))}
