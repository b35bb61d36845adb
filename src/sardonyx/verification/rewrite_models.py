"""Build two small models with the same inputs from the nodes before and after one rewrite.

The values that the nodes read from outside are the border: they are the inputs of both models, with the type, shape
and contents known for them. If a rewrite relies on what the producers of the border compute, the border can be moved
up past these producers, which then become part of both models.

The two models of a wrong rewrite can be written as files, with inputs on which they differ;
`sardonyx verify before.onnx after.onnx --inputs inputs.npz` shows the difference again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from onnx_ir import serde

from sardonyx.common.atomic_write import draft_folder, explained
from sardonyx.ir.exact.call import FLOATS
from sardonyx.ir.expressions import Expression, definition_of
from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import (
    ALL_CONVOLUTIONS,
    ALL_PRODUCTS,
    ARITHMETIC,
    ATTENTION_NAMES,
    CASTS,
    LOOKUPS,
    LOOPS,
    MOVES_DATA,
    NORMALIZES,
    RANDOM,
    RECURRENT,
    attention_operands,
)
from sardonyx.ir.precision import rounding_units
from sardonyx.ir.scopes import has_bodies, has_references, is_constant
from sardonyx.ir.shapes import Contents, Shape, Size
from sardonyx.ir.shapes.expr import Atom
from sardonyx.ir.support import MAX_IR_VERSION
from sardonyx.ir.tensors import tensor_proto
from sardonyx.ir.transaction import Substitution
from sardonyx.runtime import Array

LARGE_BYTES = 256  # bytes from which only type and shape of a constant are part of the signature, not its values
_TABLE_BYTES = 1 << 20  # nodes that read a larger constant (in bytes) are left outside
_OWN_DOMAIN = "com.microsoft"

# No rewrite can rely on the values these compute, so the border stays below them. Random values in place of their
# results include cases that random operands hardly ever produce (a negative zero, a single infinity).
_OPAQUE = ALL_PRODUCTS | ALL_CONVOLUTIONS | NORMALIZES | RECURRENT | LOOPS | ATTENTION_NAMES | RANDOM

# Operators between an operand and the attention scores it is added to.
_PASSED = ARITHMETIC | MOVES_DATA - LOOKUPS | CASTS | {"Clip", "Concat", "Max", "Min", "Where"}


class Border(Struct, frozen=True):
    """An input of both models, and what is known about it."""

    name: str
    dtype: ir.DataType | None
    shape: Shape | None
    contents: Contents | None  # the elements, for a small tensor of sizes
    hides: bool  # it is added to attention scores


class SmallModel(Struct, frozen=True):
    """A model whose constants are read only when it is serialized."""

    proto: onnx.ModelProto
    constants: Mapping[str, ir.TensorProtocol]
    computed: frozenset[str] = frozenset()  # values that a rewrite computes ahead of time

    @property
    def nbytes(self) -> int:
        """The size of its constants in bytes."""
        return sum(tensor.nbytes for tensor in self.constants.values() if tensor.dtype != ir.DataType.STRING)

    def filled(self, types: Mapping[str, ir.DataType]) -> onnx.ModelProto:
        """Return the model with its constants, and with inputs of these types."""
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        for info in model.graph.input:
            info.type.tensor_type.elem_type = types[info.name].value
        for name, tensor in self.constants.items():
            model.graph.initializer.append(tensor_proto(name, tensor))
        return model


class Excerpt:
    """Both sides of a rewrite as models, with some of the nodes above it."""

    def __init__(self, facts: Facts, rewrite: Substitution, inside: frozenset[ir.Node]) -> None:
        """Build both models; nodes of the graph in `inside` become part of them as needed."""
        self._facts, self._rewrite, self._inside = facts, rewrite, inside
        self._names: dict[ir.Value, str] = {}
        self._border: dict[ir.Value, None] = {}
        before, after = (_Writer(facts, self._names, self._border, inside, opset) for opset in rewrite.opsets)
        for old, new in rewrite.pairs:
            before.output(old)
            after.output(new)
        self.folds = tuple(after.is_new_constant(new) for _, new in rewrite.pairs)
        for value in [computed for computed in after.existing if computed not in before.existing]:
            before.output(value)  # if computing it fails, it also fails in the model before the rewrite
        self.results = len(rewrite.pairs)  # the first outputs of both models, which must match
        self.before, self.after = before.model(), after.model()
        self.exact = after.defined(self.before)  # the side after, with constants that it computes as nodes
        self.has_parameters = before.has_parameters or after.has_parameters  # of the function that the nodes are in
        hiding = _hiding(inside)
        self.border = tuple(
            Border(self._names[v], facts.dtype(v), facts.shape(v), facts.contents(v), v in hiding) for v in self._border
        )
        self.operators = frozenset(node.op_type for side in (self.before, self.after) for node in side.proto.graph.node)

    @classmethod
    def narrowest(cls, facts: Facts, rewrite: Substitution) -> Excerpt:
        """Return the excerpt of the matched nodes alone."""
        survivor = rewrite.match.survivor
        return cls(facts, rewrite, frozenset([*rewrite.match.nodes, *([survivor] if survivor is not None else [])]))

    def levels(self, most: int) -> list[frozenset[ir.Node]]:
        """Return the nodes inside with the producers of the border, then also with theirs, up to `most` nodes."""
        return list(self._levels(self._border, most))

    def at(self, inside: frozenset[ir.Node]) -> Excerpt:
        """Return the excerpt with these nodes inside."""
        return Excerpt(self._facts, self._rewrite, inside)

    def widened(self, most: int) -> Iterator[Excerpt]:
        """Yield the excerpts of all levels."""
        yield from map(self.at, self._levels(self._border, most))

    def computing_sizes(self, most: int) -> Excerpt:
        """Return the excerpt with the nodes that compute the sizes in the border from the shapes of other values."""
        sizes = [value for value in self._border if self._facts.contents(value) is not None]
        inside = self._inside
        for inside in self._levels(sizes, most, only_sizes=True):  # noqa: B007
            pass
        return self if inside == self._inside else self.at(inside)

    def _levels(
        self, values: Iterable[ir.Value], most: int, *, only_sizes: bool = False
    ) -> Iterator[frozenset[ir.Node]]:
        """Yield the nodes inside with the producers of values, then with the producers of what those read."""
        inside = self._inside
        while self._rewrite.opsets[0] == self._rewrite.opsets[1]:  # otherwise the nodes above fit only one of the two
            producers = {node for v in values if (node := v.producer()) is not None and self._may_matter(node)}
            if producers <= inside or len(inside | producers) > most:
                return
            values = [v for node in producers - inside for v in node.inputs if v is not None]
            if only_sizes:  # or numbers that sizes are rounded from
                types, shapes = map(self._facts.dtype, values), map(self._facts.shape, values)
                known = zip(values, types, shapes, strict=True)
                values = [v for v, dtype, shape in known if (dtype and dtype.is_integer()) or shape in ((), (1,))]
            inside = inside | producers
            yield inside

    def _may_matter(self, node: ir.Node) -> bool:
        """Return whether a rewrite may rely on what a node computes; rows of a large table are excluded."""
        if node.op_type in _OPAQUE or is_constant(node) or has_bodies(node) or has_references(node):
            return False
        return all(tensor.nbytes <= _TABLE_BYTES for v in node.inputs if (tensor := self._facts.tensor(v)) is not None)

    @functools.cached_property
    def free_weights(self) -> frozenset[str]:
        """The large constants that both sides read: they may as well be any others."""
        read = self.exact.constants
        shared = ((name, each) for name, each in self.before.constants.items() if name in read)
        return frozenset(name for name, each in shared if each.dtype.value in FLOATS and each.nbytes >= LARGE_BYTES)

    @property
    def assumes_sizes(self) -> bool:
        """Whether values of the border are assumed to hold the sizes found by shape inference."""
        return any(entry.contents is not None for entry in self.border)

    @property
    def computed_elements(self) -> int:
        """The elements of constants that one side has and the other does not, if the signature does not hold them."""
        own = self.before.constants.items() ^ self.exact.constants.items()
        return sum(each.size for _, each in own if each.dtype != ir.DataType.STRING and each.nbytes >= LARGE_BYTES)

    @property
    def rounding_units(self) -> float:
        """How far numbers that the rewrite computes and stores are from their exact values, in the last place."""
        stored = self.after.constants.items()
        return max((rounding_units(each) for name, each in stored if name in self.exact.computed), default=0.0)

    @property
    def obstacle(self) -> str:
        """Why the two sides cannot be compared by themselves, if they cannot."""
        if self.operators & RANDOM:
            return "its results are random"
        return "an attribute is a parameter of the function" if self.has_parameters else ""

    @functools.cached_property
    def signature(self) -> bytes:
        """A digest that is equal for rewrites of the same structure; names and weight values do not count."""
        digest = hashlib.sha256()
        for side in (self.before, self.exact):
            digest.update(side.proto.SerializeToString(deterministic=True))
            for name, tensor in side.constants.items():
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                if tensor.dtype == ir.DataType.STRING:
                    digest.update(tensor_proto(name, tensor).SerializeToString(deterministic=True))
                elif tensor.nbytes < LARGE_BYTES:
                    digest.update(tensor.tobytes())
        numbers: dict[Atom, int] = {}
        for entry in self.border:
            shape = None if entry.shape is None else [_canonical(dim, numbers) for dim in entry.shape]
            contents = None if entry.contents is None else [_canonical(item, numbers) for item in entry.contents]
            digest.update(f"{entry.name} {entry.dtype} {shape} {contents} {entry.hides}".encode())
        return digest.digest()


class _Writer:
    """Writes one side; `names` and `border` are shared by both."""

    def __init__(
        self,
        facts: Facts,
        names: dict[ir.Value, str],
        border: dict[ir.Value, None],
        inside: frozenset[ir.Node],
        opset: int,
    ) -> None:
        self._facts, self._names, self._border, self._inside = facts, names, border, inside
        self._opset = opset
        self.existing: dict[ir.Value, None] = {}  # values of the graph that are computed here
        self._proto = onnx.ModelProto(ir_version=min(max(facts.model.ir_version, 8), MAX_IR_VERSION))
        self._proto.graph.name = "excerpt"
        self._constants: dict[str, ir.TensorProtocol] = {}
        self._definitions: dict[str, Expression] = {}  # of constants of the rewrite
        self.has_parameters = False
        self._written: set[ir.Value] = set()

    def output(self, value: ir.Value) -> None:
        """Add a value as an output under a name of its own, because it may be an input or a constant."""
        graph, name = self._proto.graph, self._read(value)
        result = f"result_{len(graph.output)}"
        graph.node.add(op_type="Identity", input=[name], output=[result])
        graph.output.add(name=result)

    def model(self) -> SmallModel:
        """Return the model."""
        versions = {**self._facts.model.opset_imports, _OWN_DOMAIN: 1, "": self._opset}
        functions = self._facts.model.functions.values()
        if {node.domain for node in self._proto.graph.node} & {function.domain for function in functions}:
            self._proto.functions.extend(map(serde.serialize_function, functions))
        for domain, version in versions.items():
            if domain != "ai.onnx":
                self._proto.opset_import.add(domain=domain, version=version)
        return SmallModel(self._proto, self._constants)

    def defined(self, before: SmallModel) -> SmallModel:
        """Return the model with the constants that the rewrite computes as nodes; the other side has the operands."""
        if not self._definitions:
            return SmallModel(self._proto, self._constants)
        constants = {name: tensor for name, tensor in self._constants.items() if name not in self._definitions}
        names = {id(tensor): name for name, tensor in (*constants.items(), *before.constants.items())}

        def name_of(tensor: ir.TensorProtocol) -> str | None:
            if id(tensor) not in names:
                if definition_of(tensor) is not None:
                    return None
                names[id(tensor)] = f"literal_{len(names)}"
            constants[names[id(tensor)]] = tensor
            return names[id(tensor)]

        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        del proto.graph.node[:]
        for name, definition in self._definitions.items():
            proto.graph.node.extend(definition.nodes(name, name_of))
        computed = frozenset(name for node in proto.graph.node for name in node.output)
        proto.graph.node.extend(self._proto.graph.node)
        return SmallModel(proto, constants, computed)

    def is_new_constant(self, value: ir.Value) -> bool:
        """Return whether a value is a constant of the rewrite that is no expression of others."""
        tensor = self._constant(value)
        return tensor is not None and _is_new(value) and definition_of(tensor) is None

    def _name(self, value: ir.Value) -> str:
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = f"v{len(self._names)}"
        return name

    def _read(self, value: ir.Value) -> str:
        """Return the name of a value, after adding it to the model if it is missing."""
        if value in self._written:
            return self._name(value)
        producer = value.producer()
        tensor = self._constant(value)
        if tensor is not None:
            self._constants[self._name(value)] = tensor
            definition = definition_of(tensor) if _is_new(value) else None
            if definition is not None:
                self._definitions[self._name(value)] = definition
        elif producer is not None and (producer in self._inside or producer.graph is None):
            self._proto.graph.node.append(self._node(producer))
            if producer.graph is not None:
                self.existing[value] = None
            return self._name(value)
        else:
            self._border[value] = None
            self._proto.graph.input.add(name=self._name(value))
        self._written.add(value)
        return self._name(value)

    def _constant(self, value: ir.Value) -> ir.TensorProtocol | None:
        is_initializer = value.producer() is None
        return value.const_value if is_initializer and _is_new(value) else self._facts.tensor(value)

    def _node(self, node: ir.Node) -> onnx.NodeProto:
        proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
        proto.input.extend("" if value is None else self._read(value) for value in node.inputs)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                body = onnx.AttributeProto(name=attribute.name, type=onnx.AttributeProto.GRAPH)
                body.g.CopyFrom(self._body(attribute.as_graph()))
                proto.attribute.append(body)
            elif attribute.is_ref():
                serde.serialize_reference_attribute_into(proto.attribute.add(), attribute)
                self.has_parameters = True
            else:
                serde.serialize_attribute_into(proto.attribute.add(), attribute)
        for value in node.outputs:
            proto.output.append(self._name(value) if value.name else "")
            self._written.add(value)
        return proto

    def _body(self, graph: ir.Graph) -> onnx.GraphProto:
        """Return a copy of a body; the values that it reads from outside are written before the node that holds it."""
        proto = onnx.GraphProto(name="body")
        for value in graph.inputs:
            info = serde.serialize_value(value)
            info.name = self._name(value)
            proto.input.append(info)
            self._written.add(value)
        for value in graph.initializers.values():
            if value.const_value is not None:
                proto.initializer.append(tensor_proto(self._name(value), value.const_value))
                self._written.add(value)
        for node in graph:
            proto.node.append(self._node(node))
        for value in graph.outputs:
            proto.output.add(name=self._read(value))
        return proto


def _is_new(value: ir.Value) -> bool:
    """Return whether a value belongs to the rewrite, so that it is not in a graph yet."""
    producer = value.producer()
    return value.graph is None if producer is None else producer.graph is None


def _hiding(nodes: Iterable[ir.Node]) -> frozenset[ir.Value]:
    """Return the values from outside the nodes that are added to attention scores."""
    inside = frozenset(nodes)
    waiting, seen = list[ir.Value](), set[ir.Value]()
    for node in inside:
        attention = attention_operands(node)
        index = 0 if node.op_type == "Softmax" else attention.bias if attention is not None else -1
        waiting += [scores for scores in node.inputs[index : index + 1] if scores is not None] if index >= 0 else []
    outside: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None or producer not in inside:
            outside.add(value)
        elif producer.op_type in _PASSED:
            waiting.extend(operand for operand in producer.inputs if operand is not None)
    return frozenset(outside)


def _canonical(size: Size | None, numbers: dict[Atom, int]) -> str:
    """Return a size as text with its dimensions numbered in order of appearance."""
    if size is None or isinstance(size, int):
        return str(size)

    def text(atom: Atom) -> str:
        if atom.args:
            return f"{atom.kind}({','.join(_canonical(argument, numbers) for argument in atom.args)})"
        return f"d{numbers.setdefault(atom, len(numbers))}"

    return "+".join(f"{factor}*" + "*".join(map(text, atoms)) for atoms, factor in size.terms)


class Reproducers:
    """Writes a folder for each wrong rewrite; rewrites of the same structure share one."""

    def __init__(self, folder: str | Path, *, force: bool) -> None:
        self._folder, self._force = Path(folder), force
        self._written: dict[bytes, Path] = {}

    def write(self, name: str, excerpt: Excerpt, feeds: Mapping[str, Array], types: Mapping[str, ir.DataType]) -> str:
        """Write the excerpt of a rewrite of the pass `name`, with inputs on which the sides differ; return its path."""
        if excerpt.signature in self._written:
            return str(self._written[excerpt.signature])
        safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "pass"
        paths = (self._folder / (f"{safe}-{number}" if number > 1 else safe) for number in itertools.count(1))
        path = next(path for path in paths if path not in self._written.values())
        with explained(str(path)):
            self._folder.mkdir(parents=True, exist_ok=True)
        with draft_folder(str(path), force=self._force) as draft, explained(str(path)):
            for side, small in (("before", excerpt.before), ("after", excerpt.after)):
                model = small.filled(types)  # its inputs are all values of the border, at the sizes of the feeds
                del model.graph.input[:], model.graph.output[excerpt.results :]
                for each, value in feeds.items():
                    info = onnx.helper.make_tensor_value_info(each, types[each].value, value.shape)
                    model.graph.input.append(info)
                typed = onnx.shape_inference.infer_shapes(model)  # outputs need a type
                Path(draft, f"{side}.onnx").write_bytes(typed.SerializeToString())
            np.savez(f"{draft}/inputs.npz", allow_pickle=False, **feeds)
        self._written[excerpt.signature] = path
        return str(path)
