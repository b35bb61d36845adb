"""Read the graph of a file, and the optimized graph that the runtime saved, into one simple form.

It holds what tracing needs: names, operators, inputs, outputs, the bodies of control flow, and which values are equal
or depend on constants and sizes alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.dataflow import Dependence, dependence
from sardonyx.ir.facts import SMALL, constant_tensor
from sardonyx.ir.ops import RANDOM
from sardonyx.ir.scopes import bodies, is_constant

_NEVER_EQUAL = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.SPARSE_TENSOR)


class GraphStep(Struct, frozen=True, eq=False):
    """One node."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]  # "" for an omitted one
    outputs: tuple[str, ...]
    bodies: Mapping[str, Steps]  # by attribute
    equality: Hashable = None  # equal for steps that compute the same from the same inputs; None: equal to no other
    node: ir.Node | None = None  # in the graph of a file
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # attributes that begin with two underscores

    @property
    def operator(self) -> str:
        """The operator with its domain."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


class Steps(Struct, frozen=True, eq=False):
    """One graph, with its steps in order; constants are not steps."""

    steps: Sequence[GraphStep]
    constants: Mapping[str, Hashable]  # name → a key that is equal for equal contents


def of_file(graph: ir.Graph) -> Steps:
    """Return the steps of a graph that was read from a file."""
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
                _equality(node),
                node,
            )
        )
    return Steps(steps, constants)


def as_run(path: Path) -> Steps:
    """Return the steps of the optimized graph that the runtime saved; its weights are not read."""
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
            tags={attr.name: attr.s.decode(errors="replace") for attr in node.attribute if attr.name.startswith("__")},
        )
        for node in graph.node
    ]
    return Steps(steps, {tensor.name: tensor.name for tensor in graph.initializer})


def _bodies(node: onnx.NodeProto) -> list[tuple[str, Steps]]:
    return [(attr.name, _of_proto(attr.g)) for attr in node.attribute if attr.type == onnx.AttributeProto.GRAPH]


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _equality(node: ir.Node) -> Hashable:
    """Return what must be equal, besides the inputs, for the runtime to merge two nodes; None if it never does."""
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
    """Return the contents of a small tensor, or the name of a large one, which is not read."""
    if tensor is None or tensor.nbytes > SMALL or isinstance(tensor, ir.StringTensor):
        return name
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


# The runtime computes equal steps once, and folds what depends on constants and sizes alone before the run, so that
# such steps are not part of the work of a kernel.


class Values:
    """The values of one graph; values of graphs around it are unknown here."""

    def __init__(self, graph: Steps) -> None:
        self.producer: dict[str, int] = {}  # index of a step, by value
        self._classes: dict[str, Hashable] = dict(graph.constants)
        self._sizes: set[str] = set(graph.constants)
        self._twins: dict[int, Sequence[int]] = {}
        self._keys: dict[Hashable, int] = {}
        groups: dict[int, list[int]] = defaultdict(list)
        for index, step in enumerate(graph.steps):
            groups[self._number(index, step)].append(index)
        for members in groups.values():
            if len(members) > 1:
                self._twins |= dict.fromkeys(members, members)

    def _number(self, index: int, step: GraphStep) -> int:
        """Assign classes to a step's outputs, and return the class of the step, which equal steps share."""
        same: Hashable = index
        if step.equality is not None and not step.bodies:
            same = (step.equality, tuple(self.class_of(name) for name in step.inputs))
        key = self._keys.setdefault(same, len(self._keys))  # a number, because nested keys would grow without bound
        sizes = all(name in self._sizes for name in step.inputs if name)
        operands = Dependence.SIZE if sizes else Dependence.DATA
        depends = dependence(step.op_type, operands, has_bodies=bool(step.bodies))
        for place, name in enumerate(step.outputs):
            if name:
                self.producer[name] = index
                self._classes[name] = self.class_of(step.inputs[0]) if step.op_type == "Identity" else (key, place)
                if depends is not Dependence.DATA and step.inputs:
                    self._sizes.add(name)
        return key

    def class_of(self, name: str) -> Hashable:
        """Return the class of a value, which equal values share."""
        return self._classes.get(name, name)

    def is_size(self, name: str) -> bool:
        """Return whether a value depends on constants and sizes alone."""
        return name in self._sizes

    def twins(self, index: int) -> Sequence[int]:
        """Return the steps equal to one, including itself."""
        return self._twins.get(index, (index,))


def consumers(graph: Steps) -> Mapping[str, Sequence[int]]:
    """Return the steps that read each value, in their bodies too."""
    readers: dict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(graph.steps):
        for name in dict.fromkeys(_read(step)):
            if name:
                readers[name].append(index)
    return readers


def _read(step: GraphStep) -> Sequence[str]:
    names = list(step.inputs)
    for body in step.bodies.values():
        for inner in body.steps:
            names.extend(_read(inner))
    return names
