"""A HierarchyDag as GraphML: modules are groups, nested as they are in the model.

Plain GraphML keys carry the data for programs; yEd needs its own elements as well to show a label and to open a group.
NetworkX follows a nested graph only if its node is marked as a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from xml.sax.saxutils import escape

import msgspec

from sardonyx.records.module_graph import HierarchyDag, ModuleGraph, Operation
from sardonyx.reporting.formatting import visible

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
    yield from _data(label=label, name=tag, kind="module", tag=tag, module_path=module.path)
    if module.kind is not None:
        yield from _data(**{"class": module.kind})
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
