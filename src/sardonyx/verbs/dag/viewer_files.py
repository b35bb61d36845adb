"""A HierarchyDag as files of graph viewers: GraphML, and Model Explorer's collection with data of nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Literal
from xml.sax.saxutils import escape

import msgspec

from sardonyx.records.analysis import Analysis
from sardonyx.records.base import Record
from sardonyx.records.bench import Profile
from sardonyx.records.export import Export
from sardonyx.records.inspection import HierarchyDag, ModuleGraph, Operation
from sardonyx.records.run import Run
from sardonyx.reporting.formatting import visible
from sardonyx.reporting.plots.svg import COLORS

_KEYS = ("label", "name", "kind", "op_type", "domain", "tag", "module_path", "class", "how", "attributes")
_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">"""


def render_graphml(dag: HierarchyDag) -> str:
    """Return the whole document; every text in it is valid XML."""
    ids = {name: f"n{index}" for index, name in enumerate(dag.operations)}
    lines = [_HEAD]
    lines += [f'<key id="{key}" for="node" attr.name="{key}" attr.type="string"/>' for key in _KEYS]
    lines += ['<key id="look" for="node" yfiles.type="nodegraphics"/>', '<graph id="model" edgedefault="directed">']
    lines += _groups(dag, ids)
    edges = dag.edges()
    lines += [f'<edge id="e{i}" source="{ids[a]}" target="{ids[b]}"/>' for i, (a, b) in enumerate(edges)]
    return "\n".join([*lines, "</graph>", "</graphml>"]) + "\n"


def _groups(dag: HierarchyDag, ids: Mapping[str, str]) -> Iterator[str]:
    """Yield every module as a group of its own operations and the modules below it, without recursion."""
    own: dict[str, list[str]] = defaultdict(list)
    for name, tag in dag.homes().items():
        own[tag].append(name)
    numbers = {tag: index for index, tag in enumerate(dag.modules)}
    stack: list[str | None] = [*reversed(dag.tops())]
    while stack:
        tag = stack.pop()
        if tag is None:
            yield "</graph></node>"
            continue
        module = dag.modules[tag]
        yield f'<node id="m{numbers[tag]}" yfiles.foldertype="group">' + "".join(_group_data(tag, module))
        yield f'<graph id="m{numbers[tag]}:" edgedefault="directed">'
        for name in own[tag]:
            yield f'<node id="{ids[name]}">' + "".join(_node_data(name, dag.operations[name])) + "</node>"
        stack.append(None)
        stack.extend(reversed(module.children))


def _group_data(tag: str, module: ModuleGraph) -> Iterator[str]:
    label = tag.rpartition("/")[2] or "model"
    values = {"label": label, "name": tag, "kind": "module", "tag": tag, "module_path": module.path}
    yield from _data(**values, **({} if module.kind is None else {"class": module.kind}))
    look = f"<y:GroupNode><y:NodeLabel>{_text(label)}</y:NodeLabel></y:GroupNode>"
    yield f'<data key="look"><y:ProxyAutoBoundsNode><y:Realizers active="0">{look}</y:Realizers>'
    yield "</y:ProxyAutoBoundsNode></data>"


def _node_data(name: str, operation: Operation) -> Iterator[str]:
    yield from _data(label=operation.op_type, name=name, kind="operation", op_type=operation.op_type)
    yield from _data(domain=operation.domain, tag=operation.tags[0], module_path=operation.module_path)
    yield from _data(how=operation.how.value)
    if operation.attributes:
        yield from _data(attributes=msgspec.json.encode(operation.attributes).decode())
    label = _text(operation.op_type)
    yield f'<data key="look"><y:ShapeNode><y:NodeLabel>{label}</y:NodeLabel></y:ShapeNode></data>'


def _data(**values: str) -> Iterator[str]:
    return (f'<data key="{key}">{_text(value)}</data>' for key, value in values.items())


def _text(text: str) -> str:
    """Return escaped text; XML 1.0 cannot represent most control characters, so unprintable ones are made visible."""
    return escape(visible(text))


_TENSOR = "__tensor_tag"  # the viewer shows this key as the name of an input or output
_SHAPE = "shape"  # the viewer shows this key on edges
_GRAPH = "model"  # id of the graph, which data of nodes refers to
_MAX_OWN_OPERATIONS = 12  # own operations of an opened module that are not in a layer of their own
_DOMINANT_SHARE = 0.5  # a module with a larger share of the operations is opened


def render_model_explorer(dag: HierarchyDag) -> bytes:
    """Return the collection as JSON: one graph, in which a node's namespace is its module.

    The viewer opens a file with all layers closed. Modules that contain more than half of the operations are therefore
    no layers, so that the first view shows the parts of the model; its layers are named by their paths.
    """
    homes, spaces = dag.homes(), _namespaces(dag)
    counts, incoming = Counter(homes.values()), _incoming(dag)
    crowded = [
        tag for tag in dag.modules if not spaces[tag] and counts[tag] > _MAX_OWN_OPERATIONS
    ]  # opened, with many operations
    own = {tag: f"operations of {_layer(dag.modules[tag].path or 'the model')}" for tag in crowded}
    nodes = [
        {
            "id": name,
            "label": operation.op_type,
            "namespace": own.get(homes[name], spaces[homes[name]]),
            "attrs": _attributes(operation),
            "incomingEdges": incoming[name],
            "inputsMetadata": [_port(i, value, dag) for i, value in enumerate(operation.inputs) if value],
            "outputsMetadata": [_port(i, value, dag) for i, value in enumerate(operation.outputs) if value],
        }
        for name, operation in dag.operations.items()
    ]
    groups = {spaces[tag]: _group(dag, tag) for tag in reversed(dag.modules)}  # of one namespace, the outermost module
    groups |= {layer: _group(dag, tag) for tag, layer in own.items()}
    graph = {
        "id": _GRAPH,
        "nodes": [*_port_nodes(dag, "input"), *nodes, *_port_nodes(dag, "output")],
        "groupNodeAttributes": groups,
    }
    return msgspec.json.encode({"label": dag.model, "graphs": [graph]})


def _namespaces(dag: HierarchyDag) -> dict[str, str]:
    """Return the namespace of each module by its tag; opened modules have that of the whole graph."""
    parents = {child: tag for tag, module in dag.modules.items() for child in module.children}
    spaces: dict[str, str] = {}
    opened: set[str] = set()
    for tag, module in dag.modules.items():  # parents come first
        parent = parents.get(tag)
        if parent is None or (parent in opened and len(module.nodes) > _DOMINANT_SHARE * len(dag.operations)):
            opened.add(tag)
            spaces[tag] = ""
        elif parent in opened:
            spaces[tag] = _layer(module.path or tag)
        else:
            spaces[tag] = f"{spaces[parent]}/{_layer(tag.removeprefix(parent))}"
    return spaces


def _layer(name: str) -> str:
    """Return a name as one layer: a slash would make two."""
    return name.strip("/").replace("/", "∕") or "layer"


def _incoming(dag: HierarchyDag) -> dict[str, list[dict[str, str]]]:
    """Return the incoming edges of every node; results of a body enter its control-flow node at the first input."""
    producers = dag.producers()
    inputs = {value: _unused(f"input {value}", dag) for value in _ports(dag, "input")}
    edges: dict[str, list[dict[str, str]]] = {name: [] for name in dag.operations}
    unseen = dict.fromkeys(dag.edges())
    for name, operation in dag.operations.items():
        for index, value in enumerate(operation.inputs):
            if value in producers:
                producer, output = producers[value]
                edges[name].append(_edge(producer, output, index))
                unseen.pop((producer, name), None)
            elif value in inputs:
                edges[name].append(_edge(inputs[value], 0, index))
    for producer, name in unseen:
        edges[name].append(_edge(producer, 0, 0))
    return edges


def _edge(source: str, output: int, target: int) -> dict[str, str]:
    return {"sourceNodeId": source, "sourceNodeOutputId": str(output), "targetNodeInputId": str(target)}


def _ports(dag: HierarchyDag, side: Literal["input", "output"]) -> list[str]:
    """Return the inputs or outputs of the outermost modules, each once."""
    return list(dict.fromkeys(value for tag in dag.tops() for value in getattr(dag.modules[tag], f"{side}s")))


def _unused(name: str, dag: HierarchyDag) -> str:
    while name in dag.operations:
        name += "'"
    return name


def _port_nodes(dag: HierarchyDag, side: Literal["input", "output"]) -> list[dict[str, Any]]:
    """Return a node for each input or each output of the graph."""
    producers = dag.producers()
    nodes: list[dict[str, Any]] = []
    for value in _ports(dag, side):
        node = {"id": _unused(f"{side} {value}", dag), "label": value, "namespace": ""}
        if side == "input":
            nodes.append({**node, "outputsMetadata": [_port(0, value, dag)]})
        else:
            edges = [_edge(*producers[value], 0)] if value in producers else []
            nodes.append({**node, "incomingEdges": edges, "inputsMetadata": [_port(0, value, dag)]})
    return nodes


def _attributes(operation: Operation) -> list[dict[str, str]]:
    values = {"op": f"{operation.domain}::{operation.op_type}" if operation.domain else operation.op_type}
    values |= {"module": operation.call or operation.module_path, "how": operation.how.value}
    if len(operation.tags) > 1:
        values["tags"] = ", ".join(operation.tags)
    values |= {key: msgspec.json.encode(value).decode() for key, value in operation.attributes.items()}
    return _pairs(values)


def _port(index: int, value: str, dag: HierarchyDag) -> dict[str, Any]:
    weight = dag.initializers.get(value)
    shape = dag.types.get(value) if weight is None else f"{weight.dtype}{list(weight.shape)}"
    return {"id": str(index), "attrs": _pairs({_TENSOR: value} | ({} if shape is None else {_SHAPE: shape}))}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _group(dag: HierarchyDag, tag: str) -> dict[str, str]:
    module = dag.modules[tag]
    return {"module": module.path, "tag": tag, "class": module.kind or "unknown", "nodes": str(len(module.nodes))}


# Data of the nodes, from the records about the same file.

KINDS = ("passes", "flops", "time")  # the viewer shows the last file first
_TITLES = {"passes": "pass", "flops": "FLOPs", "time": "time (ms)"}
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": COLORS[1][1]}]


def render_node_data(dag: HierarchyDag, records: Iterable[Record]) -> dict[str, bytes]:
    """Return files with data of the nodes by kind: "time" in milliseconds, "flops", and the "passes" that made a node.

    Args:
        dag: The graph of a file.
        records: A profile for times, an analysis for flops, a run for passes; those about other files are ignored.
    """
    files: dict[str, bytes] = {}
    name = PurePath(dag.model).name
    for record in records:
        match record:
            case Profile():
                kind, values = "time", _times(record, name)
            case Analysis():
                kind, values = "flops", _flops(record, name)
            case Run():
                kind, values = "passes", _passes(record, name)
            case Export(optimized=Run() as run):
                kind, values = "passes", _passes(run, name)
            case _:
                continue
        known: dict[str, float | str] = {node: value for node, value in values.items() if node in dag.operations}
        if not known:
            continue
        names = sorted({value for value in known.values() if isinstance(value, str)})
        colors = {word: COLORS[place % len(COLORS)][1] for place, word in enumerate(names)}
        results = {
            node: {"value": value, "bgColor": colors[value]} if isinstance(value, str) else {"value": value}
            for node, value in known.items()
        }
        data = {"name": _TITLES[kind], "results": results} | ({} if colors else {"gradient": _GRADIENT})
        files[kind] = msgspec.json.encode({_GRAPH: data})
    return files


def _times(profile: Profile, file: str) -> dict[str, float]:
    """Return the milliseconds of each kernel at the first node that it executes."""
    times: dict[str, float] = {}
    for model in profile.models:
        for kernel in model.kernels if PurePath(model.path or model.label).name == file else ():
            if kernel.nodes:
                times[kernel.nodes[0]] = round(times.get(kernel.nodes[0], 0.0) + kernel.milliseconds, 6)
    return times


def _flops(analysis: Analysis, file: str) -> dict[str, float]:
    """Return the arithmetic of each operation."""
    return {
        name: flops
        for form in analysis.forms
        if PurePath(form.name).name == file and form.operations is not None
        for name, flops in zip(form.operations.names, form.operations.flops, strict=True)
    }


def _passes(run: Run, file: str) -> dict[str, str]:
    """Return the pass that made each node of the result, or that replaced each node of the source."""
    result, source = (PurePath(artifact.path or "").name for artifact in (run.result, run.source))
    if file not in (result, source):
        return {}
    return {
        node.name: event.pass_name for event in run.events for node in (event.after if file == result else event.before)
    }
