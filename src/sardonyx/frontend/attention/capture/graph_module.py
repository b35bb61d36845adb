"""A graph module from torch.export that can be used like the model: saved, copied, moved, loaded with weights.

torch's own refuses `train` and `eval`, cannot be pickled, fixes its devices in the graph, and drops weights that the
graph does not read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from msgspec import Struct
from torch import fx, nn
from torch.fx.node import map_aggregate

from sardonyx.errors import UsageError
from sardonyx.frontend.attention.capture.calling import INTERFACE, Interface

OVERLOAD: Any = torch._ops.OpOverload  # pyright: ignore[reportPrivateUsage]  # they have no public names
HIGHER_ORDER: Any = torch._ops.HigherOrderOperator  # pyright: ignore[reportPrivateUsage]


class FrozenModule(fx.GraphModule):
    """A graph for one mode, with all parameters and buffers of the original model under their names."""

    def share_weights(self, model: nn.Module) -> None:
        """Share all parameters and buffers of the model, in its order, used or not."""
        names = {str(node.target): None for node in self.graph.nodes if node.op in ("get_attr", "call_module")}
        own = [(name, attribute(self, name)) for name in names]
        tree = _skeleton(model, {})
        for path, value in own:
            _add_constant(tree, path, value)
        for table in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(self)[table] = vars(tree)[table]
        self.training = model.training

    def like(self, graph: fx.Graph) -> FrozenModule:
        """Return a module with another graph and the same weights; the graph may only refer to what is here."""
        other = _with_graph({**self.__dict__}, graph)
        for table in ("_modules", "_parameters", "_buffers"):
            other.__dict__[table] = dict(other.__dict__[table])
        return other

    def train(self, mode: bool = True) -> FrozenModule:
        """Refuse another mode than the graph's before anything changes."""
        interface = self._modules.get(INTERFACE)
        if isinstance(interface, Interface):
            interface.train(mode)
        return cast("FrozenModule", super().train(mode))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FrozenModule:
        """Move the weights, and make the graph create its tensors on the new device.

        Raises:
            UsageError: If the graph casts to an element type that would have to change with the weights.
        """
        graphs = [module.graph for module in self.modules() if isinstance(module, fx.GraphModule)]
        moved = {device: fn(torch.empty(0, device=device)).device for device in _constants(graphs, torch.device)}
        kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        cast_to = {kind: fn(torch.empty(0, dtype=kind)).dtype for kind in kinds}
        fixed = [kind for kind in _constants(graphs, torch.dtype) if cast_to.get(kind, kind) != kind]
        if fixed:
            raise UsageError(
                f"this graph casts to {fixed[0]}, which the model's code derived from its element type",
                hint="convert the model and decompose it again",
            )
        super()._apply(fn, recurse)  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
        if any(old != new for old, new in (*moved.items(), *cast_to.items())):
            for graph in graphs:
                _move_constants(graph, moved, fn)
            interface = self._modules.get(INTERFACE)
            if isinstance(interface, Interface):
                interface.cast(cast_to)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the nodes one by one: torch would run the code, and store results that depend on no input."""
        body = {name: value for name, value in self.__dict__.items() if name != "_graph"}
        return _restored, (body, [_PickledNode.of(node) for node in self.graph.nodes])

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenModule:
        """Return a copy with copied weights, including unused ones."""
        body = {name: value for name, value in self.__dict__.items() if name != "_graph"}
        return _with_graph(copy.deepcopy(body, memo), copy.deepcopy(self.graph, memo))

    def __copy__(self) -> FrozenModule:
        """Return a copy with the same weights."""
        return self.like(copy.deepcopy(self.graph))


def _with_graph(body: dict[str, Any], graph: fx.Graph) -> FrozenModule:
    module = FrozenModule.__new__(FrozenModule)
    nn.Module.__init__(module)
    module.__dict__.update({name: value for name, value in body.items() if name != "_graph"})
    module.graph = graph  # also writes the code
    return module


def attribute(module: nn.Module, path: str) -> Any:
    """Return the attribute at a dotted path."""
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _skeleton(model: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return the module tree with only its parameters and buffers; shared ones stay shared."""
    if model in known:
        return known[model]
    skeleton = known[model] = nn.Module()
    source, target = vars(model), vars(skeleton)
    for table in ("_parameters", "_buffers"):
        target[table].update(source[table])
    target["_non_persistent_buffers_set"] = set(source["_non_persistent_buffers_set"])
    for name, child in source["_modules"].items():
        target["_modules"][name] = None if child is None else _skeleton(child, known)
    skeleton.training = model.training
    return skeleton


def _add_constant(root: nn.Module, path: str, value: Any) -> None:
    """Add a value that the model does not have; a constant of the graph becomes a non-persistent buffer."""
    parent, _, name = path.rpartition(".")
    module = root
    for part in parent.split(".") if parent else ():
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    if hasattr(module, name):
        return
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value, persistent=False)
    else:
        setattr(module, name, value)


class _Operator(Struct, frozen=True):
    """An operator of torch by name: torch's own objects cannot be pickled."""

    name: str

    @property
    def target(self) -> Any:
        space, _, rest = self.name.rpartition("::")
        packet, _, overload = rest.partition(".")
        if not space:
            return getattr(torch.ops.higher_order, packet)
        return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


class _Reference(Struct, frozen=True):
    """Another node by name."""

    name: str


class _PickledNode(Struct, frozen=True):
    """A node in picklable form."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any

    @classmethod
    def of(cls, node: fx.Node) -> _PickledNode:
        args, kwargs = map_aggregate(node.args, _picklable), map_aggregate(node.kwargs, _picklable)
        return cls(node.op, node.name, _picklable(node.target), args, kwargs)


def _picklable(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return _Reference(value.name)
    if isinstance(value, (OVERLOAD, HIGHER_ORDER)):
        return _Operator(value.name())
    return value


def _restored(body: dict[str, Any], records: list[_PickledNode]) -> FrozenModule:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def read(value: Any) -> Any:
        if isinstance(value, _Reference):
            return nodes[value.name]
        return value.target if isinstance(value, _Operator) else value

    for record in records:
        args, kwargs = map_aggregate(record.args, read), map_aggregate(record.kwargs, read)
        node = graph.create_node(record.op, read(record.target), args, kwargs, record.name)
        nodes[record.name] = node
    return _with_graph(body, graph)


def _constants(graphs: list[fx.Graph], kind: type) -> list[Any]:
    """Return the constants of a type among the arguments of nodes."""
    constants: dict[Any, None] = {}

    def collect(value: Any) -> Any:
        if isinstance(value, kind):
            constants[value] = None
        return value

    for node in (node for graph in graphs for node in graph.nodes):
        map_aggregate((node.args, node.kwargs), collect)
    return list(constants)


def _move_constants(graph: fx.Graph, moved: dict[torch.device, torch.device], fn: Callable[..., Any]) -> None:
    """Replace devices in the graph, and convert the recorded values of nodes."""

    def replaced(value: Any) -> Any:
        return moved.get(value, value) if isinstance(value, torch.device) else value

    for node in graph.nodes:
        node.args = map_aggregate(node.args, replaced)
        node.kwargs = map_aggregate(node.kwargs, replaced)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            node.meta["val"] = fn(value)
    if graph.owning_module is not None:
        graph.owning_module.recompile()
