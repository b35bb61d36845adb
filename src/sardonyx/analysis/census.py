"""All nodes and constants of a model, counted: what `inspect` says of a whole model and of one module of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.analysis.attributes import dtype_name
from sardonyx.ir.facts import constant_tensor
from sardonyx.ir.origins import how, origins, owner, reason
from sardonyx.ir.scopes import is_constant, label, scopes
from sardonyx.provenance import ROOT, Hierarchy, lowest_common, module_of
from sardonyx.records import module_tree
from sardonyx.records.inspection import Coverage, Module, OpUse, Port, RootNode, Weight
from sardonyx.records.run import Counts, How

# Integers, bools and strings in a graph are indices, shapes and masks, single numbers are exponents and epsilons; what
# training fitted is everything else.
_NOT_WEIGHTS = frozenset({ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING})


@dataclass(frozen=True, slots=True)
class Census:
    """Nodes and constants, bodies and functions included; None for data that is not a tensor."""

    nodes: tuple[ir.Node, ...]
    constants: Mapping[ir.Node, ir.TensorProtocol | None]
    initializers: Mapping[ir.Value, ir.TensorProtocol | None]

    @classmethod
    def of(cls, model: ir.Model) -> Census:
        """One walk over everything."""
        nodes: list[ir.Node] = []
        initializers: list[ir.Value] = []
        for scope in scopes(model):
            nodes.extend(scope.graph)
            initializers.extend(scope.graph.initializers.values())
        constants = {node: constant_tensor(node) for node in nodes if is_constant(node)}
        return cls(tuple(nodes), constants, {value: value.const_value for value in initializers})

    def among(self, inside: Container[ir.Node]) -> Census:
        """These nodes, and the initializers that they read."""
        read = {
            value: tensor
            for value, tensor in self.initializers.items()
            if any(user in inside for user in value.consumers())
        }
        constants = {node: tensor for node, tensor in self.constants.items() if node in inside}
        return Census(tuple(node for node in self.nodes if node in inside), constants, read)

    @property
    def tensors(self) -> tuple[ir.TensorProtocol, ...]:
        """All constant data."""
        return tuple(data for data in (*self.constants.values(), *self.initializers.values()) if data is not None)

    @property
    def counts(self) -> Counts:
        """How much there is of everything."""
        return Counts(
            nodes=len(self.nodes) - len(self.constants),
            constants=len(self.constants),
            initializers=len(self.initializers),
            bytes=sum(tensor.nbytes for tensor in self.tensors),
        )

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        return sum(map(elements_of_weight, self.tensors))


def elements_of_weight(tensor: ir.TensorProtocol | None) -> int:
    """How many parameters a constant is; none where it is no weight."""
    if tensor is None or tensor.dtype in _NOT_WEIGHTS:
        return 0
    return size if (size := tensor.size) > 1 else 0


def ops(nodes: Iterable[ir.Node]) -> tuple[OpUse, ...]:
    """How often every operator occurs, the most frequent first."""
    uses = Counter((node.domain, node.op_type) for node in nodes)
    ordered = sorted(uses.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OpUse(domain, op_type, count) for (domain, op_type), count in ordered)


def coverage(nodes: Iterable[ir.Node]) -> Coverage:
    """How the modules of these nodes are known."""
    counted = Counter((how(node), ROOT in origins(node)) for node in nodes)
    totals = {way: counted[way, True] + counted[way, False] for way in How}
    return Coverage(totals[How.DIRECT], totals[How.INHERITED], totals[How.ROOT], counted[How.DIRECT, True])


def weights(initializers: Mapping[ir.Value, ir.TensorProtocol | None]) -> tuple[Weight, ...]:
    """Initializers that are tensors, with every module that reads them."""
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
    """The weights that several modules read."""
    return tuple(weight for weight in weights(initializers) if weight.parameters and len(weight.modules) > 1)


def root_nodes(nodes: Iterable[ir.Node]) -> tuple[RootNode, ...]:
    """The nodes that no module could be found for, and why."""
    return tuple(RootNode(label(node), node.op_type, reason(node)) for node in nodes if how(node) is How.ROOT)


@dataclass(slots=True)
class Owned:
    """What a module owns, without its children; a constant that several modules read is their lowest common one's."""

    nodes: int = 0  # compute nodes
    parameters: int = 0
    bytes: int = 0  # of constants


def owned(census: Census, place: Callable[[ir.Node], str] = owner) -> dict[str, Owned]:
    """By module; `place` says where a node is."""
    found: defaultdict[str, Owned] = defaultdict(Owned)
    for node in census.nodes:
        if node not in census.constants:
            found[place(node)].nodes += 1
    for node, tensor in census.constants.items():
        _add(found[place(node)], tensor)
    for value, tensor in census.initializers.items():
        _add(found[lowest_common({place(user) for user in value.consumers()})], tensor)
    return dict(found)


def _add(module: Owned, tensor: ir.TensorProtocol | None) -> None:
    module.parameters += elements_of_weight(tensor)
    module.bytes += tensor.nbytes if tensor is not None else 0


def modules(census: Census, hierarchy: Hierarchy) -> tuple[Module, ...]:
    """Every module that owns a node or a constant, whichever call of it, and all modules above it."""
    counts = owned(census, lambda node: module_of(owner(node)))
    entries = (module_tree.Entry(path, "", (own.nodes, own.parameters)) for path, own in counts.items())
    return tuple(
        Module(row.branch.path, hierarchy.tag(row.branch.path), row.own[0], row.total[0], row.own[1], row.total[1])
        for row in module_tree.rows(module_tree.build(entries, width=2, fold=False))
    )


def port(value: ir.Value, overridable: bool = False) -> Port:
    """A value as the file declares it."""
    shape = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Port(value.name or "", type_name(value.type), shape, overridable)


def type_name(kind: ir.TypeProtocol | None) -> str:
    """A type as ONNX spells it."""
    if kind is None:
        return "unknown"
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return f"{type(kind).__name__.removesuffix('Type').lower()}({type_name(kind.elem_type)})"
    name = dtype_name(kind.dtype)
    return f"sparse({name})" if isinstance(kind, ir.SparseTensorType) else name
