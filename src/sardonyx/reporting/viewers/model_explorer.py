"""A HierarchyDag as a graph collection of Google's Model Explorer, whose layers are then the model's modules."""

from __future__ import annotations

from typing import Any

import msgspec

from sardonyx.records.module_graph import HierarchyDag, Operation

_TENSOR = "__tensor_tag"  # the viewer shows this key as the name of an input or output


def render_model_explorer(dag: HierarchyDag) -> bytes:
    """Return the collection as JSON: one graph, in which a node's namespace is the tag of its module."""
    homes = dag.homes()
    incoming = _incoming(dag)
    nodes = [
        {
            "id": name,
            "label": operation.op_type,
            "namespace": homes[name].strip("/"),
            "attrs": _attributes(operation),
            "incomingEdges": incoming[name],
            "inputsMetadata": [_input(i, value, dag) for i, value in enumerate(operation.inputs) if value],
            "outputsMetadata": [_port(i, {_TENSOR: value}) for i, value in enumerate(operation.outputs) if value],
        }
        for name, operation in dag.operations.items()
    ]
    groups = {tag.strip("/"): _group(dag, tag) for tag in dag.modules}
    graph = {"id": "model", "nodes": nodes, "groupNodeAttributes": groups}
    return msgspec.json.encode({"label": dag.model, "graphs": [graph]})


def _incoming(dag: HierarchyDag) -> dict[str, list[dict[str, str]]]:
    """Return the incoming edges of every node; results of a body enter its control-flow node at the first input."""
    producers = dag.producers()
    edges: dict[str, list[dict[str, str]]] = {name: [] for name in dag.operations}
    unseen = dict.fromkeys(dag.edges())
    for name, operation in dag.operations.items():
        for index, value in enumerate(operation.inputs):
            if value in producers:
                producer, output = producers[value]
                edges[name].append(_edge(producer, output, index))
                unseen.pop((producer, name), None)
    for producer, name in unseen:
        edges[name].append(_edge(producer, 0, 0))
    return edges


def _edge(source: str, output: int, target: int) -> dict[str, str]:
    return {"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(target)}


def _attributes(operation: Operation) -> list[dict[str, str]]:
    values = {"op": f"{operation.domain}::{operation.op_type}" if operation.domain else operation.op_type}
    values |= {"module": operation.call or operation.module_path, "how": operation.how.value}
    if len(operation.tags) > 1:
        values["tags"] = ", ".join(operation.tags)
    values |= {key: msgspec.json.encode(value).decode() for key, value in operation.attributes.items()}
    return _pairs(values)


def _input(index: int, value: str, dag: HierarchyDag) -> dict[str, Any]:
    weight = dag.initializers.get(value)
    shape = {} if weight is None else {"shape": f"{weight.dtype}{list(weight.shape)}"}
    return _port(index, {_TENSOR: value} | shape)


def _port(index: int, values: dict[str, str]) -> dict[str, Any]:
    return {"id": str(index), "attrs": _pairs(values)}


def _pairs(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _group(dag: HierarchyDag, tag: str) -> dict[str, str]:
    module = dag.modules[tag]
    return {"module": module.path, "class": module.kind or "unknown", "nodes": str(len(module.nodes))}
