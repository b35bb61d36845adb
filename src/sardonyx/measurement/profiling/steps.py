"""A graph as plain steps: the file's, and the one the runtime made of it, in the same words.

Only what tracing asks for: names, operators, which values go in and out, and the bodies of control flow.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx.ir.facts import SMALL, constant_tensor
from sardonyx.ir.ops import RANDOM
from sardonyx.ir.scopes import bodies, is_constant

_NEVER_EQUAL = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.SPARSE_TENSOR)


@dataclass(frozen=True, slots=True, eq=False)
class GraphStep:
    """One node."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]  # "" where one is left out
    outputs: tuple[str, ...]
    bodies: Mapping[str, Steps]  # by attribute
    likeness: Hashable = None  # the same for steps that make the same of the same inputs; None: like no other
    node: ir.Node | None = None  # of a file
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # attributes that begin with two underscores

    @property
    def operator(self) -> str:
        """The operator with its domain."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """One graph, its steps in the order in which they stand; constants are no steps."""

    steps: Sequence[GraphStep]
    constants: Mapping[str, Hashable]  # name -> the same for equal contents


def of_file(graph: ir.Graph) -> Steps:
    """The steps of a graph that was read from a file."""
    constants = {name: _content(value.const_value, name) for name, value in graph.initializers.items()}
    steps: list[GraphStep] = []
    for node in graph:
        outputs = tuple(value.name or "" for value in node.outputs)
        if is_constant(node):
            constants[outputs[0]] = _content(constant_tensor(node), outputs[0])
            continue
        steps.append(
            GraphStep(
                node.name or "",
                node.op_type,
                _plain(node.domain),
                tuple(value.name or "" if value is not None else "" for value in node.inputs),
                outputs,
                {name: of_file(body) for name, body in bodies(node)},
                _likeness(node),
                node,
            )
        )
    return Steps(steps, constants)


def as_run(path: Path) -> Steps:
    """The steps of the graph that the runtime left behind when it had optimized the file.

    Its weights are not looked at, and need not be there.
    """
    return _of_proto(onnx.ModelProto.FromString(path.read_bytes()).graph)


def _of_proto(graph: onnx.GraphProto) -> Steps:
    steps = [
        GraphStep(
            node.name,
            node.op_type,
            _plain(node.domain),
            tuple(node.input),
            tuple(node.output),
            dict(_bodies(node)),
            tags={each.name: each.s.decode(errors="replace") for each in node.attribute if each.name.startswith("__")},
        )
        for node in graph.node
    ]
    return Steps(steps, {tensor.name: tensor.name for tensor in graph.initializer})


def _bodies(node: onnx.NodeProto) -> list[tuple[str, Steps]]:
    return [(each.name, _of_proto(each.g)) for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _likeness(node: ir.Node) -> Hashable:
    """What has to be the same, beside the inputs, for the runtime to compute two nodes once."""
    if node.op_type in RANDOM:
        return None
    attributes: list[Hashable] = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in _NEVER_EQUAL or attribute.is_ref():
            return None
        value: Any = attribute.value
        attributes.append((name, _content(value, name) if isinstance(value, ir.TensorProtocol) else repr(value)))
    return node.op_type, node.domain, len(node.outputs), tuple(attributes)


def _content(tensor: ir.TensorProtocol | None, name: str) -> Hashable:
    """Small tensors are the same where their contents are; large ones are not read."""
    if tensor is None or tensor.nbytes > SMALL or isinstance(tensor, ir.StringTensor):
        return name
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
