"""What a graph holds, for records: nodes by operator and module, and weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import constant_tensor
from sardonyx.ir.origins import evidence as told_by
from sardonyx.ir.origins import how, origins, owner, reason
from sardonyx.ir.plain_data import dtype_name
from sardonyx.ir.scopes import declared_shape, is_constant, label, scopes
from sardonyx.records import module_tree
from sardonyx.records.inspection import (
    Coverage,
    Module,
    OpUse,
    Port,
    RootNode,
    Weight,
)
from sardonyx.records.provenance import NO_TAGS, ROOT, Hierarchy, lowest_common, module_of
from sardonyx.records.run import Counts, How

# Integers, bools and strings are indices, shapes and masks, and single numbers are exponents and epsilons; all other
# constants count as parameters.
_NOT_WEIGHTS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING})


class Census(Struct, frozen=True):
    """The nodes and constants of a model, with bodies and functions; None for data that is not a tensor."""

    nodes: tuple[ir.Node, ...]
    constants: Mapping[ir.Node, ir.TensorProtocol | None]
    initializers: Mapping[ir.Value, ir.TensorProtocol | None]

    @classmethod
    def of(cls, model: ir.Model) -> Census:
        """Collect the nodes and constants of a model."""
        nodes: list[ir.Node] = []
        initializers: list[ir.Value] = []
        for scope in scopes(model):
            nodes.extend(scope.graph)
            initializers.extend(scope.graph.initializers.values())
        constants = {node: constant_tensor(node) for node in nodes if is_constant(node)}
        return cls(tuple(nodes), constants, {value: value.const_value for value in initializers})

    def among(self, inside: Container[ir.Node]) -> Census:
        """Return the census of these nodes and the initializers that they read."""
        read = {
            value: tensor
            for value, tensor in self.initializers.items()
            if any(user in inside for user in value.consumers())
        }
        constants = {node: tensor for node, tensor in self.constants.items() if node in inside}
        return Census(tuple(node for node in self.nodes if node in inside), constants, read)

    @property
    def tensors(self) -> tuple[ir.TensorProtocol, ...]:
        """All constant tensors."""
        return tuple(data for data in (*self.constants.values(), *self.initializers.values()) if data is not None)

    @property
    def counts(self) -> Counts:
        """The numbers of nodes, constants and initializers, and their bytes."""
        return Counts(
            nodes=len(self.nodes) - len(self.constants),
            constants=len(self.constants),
            initializers=len(self.initializers),
            bytes=sum(tensor.nbytes for tensor in self.tensors),
        )

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(map(elements_of_weight, self.tensors))


def elements_of_weight(tensor: ir.TensorProtocol | None) -> int:
    """Return how many parameters a constant has; 0 if it is not a weight."""
    if tensor is None or tensor.dtype in _NOT_WEIGHTS:
        return 0
    return size if (size := tensor.size) > 1 else 0


def ops(nodes: Iterable[ir.Node]) -> tuple[OpUse, ...]:
    """Count the operators, the most frequent first."""
    uses = Counter((node.domain, node.op_type) for node in nodes)
    ordered = sorted(uses.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OpUse(domain, op_type, count) for (domain, op_type), count in ordered)


def coverage(nodes: Iterable[ir.Node]) -> Coverage:
    """Count the nodes by how their modules are known."""
    counted = Counter((how(node), ROOT in origins(node)) for node in nodes)
    totals = {way: counted[way, True] + counted[way, False] for way in How}
    return Coverage(totals[How.DIRECT], totals[How.INHERITED], totals[How.ROOT], counted[How.DIRECT, True])


def evidence(nodes: Iterable[ir.Node]) -> dict[str, int]:
    """Count the nodes by what in the file told their modules; those that inherit are left out."""
    counted = Counter(kind.value for node in nodes if (kind := told_by(node)) is not None)
    return dict(counted.most_common())


def weights(initializers: Mapping[ir.Value, ir.TensorProtocol | None]) -> tuple[Weight, ...]:
    """Return the initializers that are tensors, with every module that reads them."""
    return tuple(
        Weight(
            name=value.name or "",
            type=dtype_name(tensor.dtype),
            shape=tuple(int(dim) for dim in tensor.shape.numpy()),
            parameters=elements_of_weight(tensor),
            modules=tuple(dict.fromkeys(module_of(owner(user)) for user in value.consumers())),
        )
        for value, tensor in initializers.items()
        if tensor is not None
    )


def tied(initializers: Mapping[ir.Value, ir.TensorProtocol | None]) -> tuple[Weight, ...]:
    """Return the weights that several modules read."""
    return tuple(weight for weight in weights(initializers) if weight.parameters and len(weight.modules) > 1)


def root_nodes(nodes: Sequence[ir.Node]) -> tuple[RootNode, ...]:
    """Return the nodes without a known module, with the reasons."""
    tagged = any(map(origins, nodes))
    return tuple(
        RootNode(label(node), node.op_type, reason(node) if tagged else NO_TAGS)
        for node in nodes
        if how(node) is How.ROOT
    )


class Owned(Struct):
    """What a module owns without its children; a constant that several modules read belongs to their common parent."""

    nodes: int = 0  # compute nodes
    parameters: int = 0
    bytes: int = 0  # of constants


def owned(census: Census, place: Callable[[ir.Node], str] = owner) -> dict[str, Owned]:
    """Return what each module owns; `place` returns the module of a node."""
    modules: defaultdict[str, Owned] = defaultdict(Owned)
    for node in census.nodes:
        if node not in census.constants:
            modules[place(node)].nodes += 1
    for node, tensor in census.constants.items():
        _add(modules[place(node)], tensor)
    for value, tensor in census.initializers.items():
        _add(modules[lowest_common({place(user) for user in value.consumers()})], tensor)
    return dict(modules)


def _add(module: Owned, tensor: ir.TensorProtocol | None) -> None:
    module.parameters += elements_of_weight(tensor)
    module.bytes += tensor.nbytes if tensor is not None else 0


def modules(census: Census, hierarchy: Hierarchy) -> tuple[Module, ...]:
    """Return every module that owns a node or a constant, with its calls summed up, and all modules above it."""
    counts = owned(census, lambda node: module_of(owner(node)))
    entries = (module_tree.Entry(path, "", (own.nodes, own.parameters)) for path, own in counts.items())
    return tuple(
        Module(row.branch.path, hierarchy.tag(row.branch.path), row.own[0], row.total[0], row.own[1], row.total[1])
        for row in module_tree.rows(module_tree.build(entries, width=2, fold=False))
    )


def port(value: ir.Value, overridable: bool = False) -> Port:
    """Return the name, type and shape of a value as the file declares them."""
    shape = declared_shape(value)
    if shape is not None:  # some exporters write -1 for a size that is not known
        shape = tuple(None if isinstance(dim, int) and dim < 0 else dim for dim in shape)
    return Port(value.name or "", type_name(value.type), shape, overridable)


def type_name(kind: ir.TypeProtocol | None) -> str:
    """Return the ONNX name of a type."""
    if kind is None:
        return "unknown"
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return f"{type(kind).__name__.removesuffix('Type').lower()}({type_name(kind.elem_type)})"
    name = dtype_name(kind.dtype)
    return f"sparse({name})" if isinstance(kind, ir.SparseTensorType) else name
