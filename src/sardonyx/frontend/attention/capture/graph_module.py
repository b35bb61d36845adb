"""A graph module made by torch.export that can be used like the model: saved, copied, moved, and filled with weights.

torch's own refuses `train` and `eval`, does not go through pickle, keeps the devices it was made on inside the graph,
and forgets weights that the graph does not read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from sardonyx.errors import UsageError
from sardonyx.frontend.attention.capture.calling import INTERFACE, Interface

OVERLOAD: Any = torch._ops.OpOverload  # pyright: ignore[reportPrivateUsage]  # they have no public names
HIGHER_ORDER: Any = torch._ops.HigherOrderOperator  # pyright: ignore[reportPrivateUsage]


class FrozenModule(fx.GraphModule):
    """A graph for one mode, with all the parameters and buffers of the model it was made from, under their names."""

    def hold(self, model: nn.Module) -> None:
        """Take over the weights of the model: the very same, in its order, used or not."""
        own = _attributes(self)
        held = _skeleton(model, {})
        for path, value in own:
            _place(held, path, value)
        for table in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(self)[table] = vars(held)[table]
        self.training = model.training

    def like(self, graph: fx.Graph) -> FrozenModule:
        """A module with another graph and the same weights; whatever else the graph asks for must be here already."""
        other = _made({**self.__dict__}, graph)
        for table in ("_modules", "_parameters", "_buffers"):
            other.__dict__[table] = dict(other.__dict__[table])
        return other

    def train(self, mode: bool = True) -> FrozenModule:
        """Stay in the mode that the graph was made in; the other one is refused before anything changes."""
        interface = self._modules.get(INTERFACE)
        if isinstance(interface, Interface):
            interface.train(mode)
        return cast("FrozenModule", super().train(mode))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> FrozenModule:
        """Move, and let the graph make its tensors in the new place.

        Raises:
            UsageError: the graph casts to an element type that would have to change with the weights.
        """
        graphs = [each.graph for each in self.modules() if isinstance(each, fx.GraphModule)]
        moved = {device: fn(torch.empty(0, device=device)).device for device in _mentioned(graphs, torch.device)}
        kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        cast_to = {kind: fn(torch.empty(0, dtype=kind)).dtype for kind in kinds}
        fixed = [kind for kind in _mentioned(graphs, torch.dtype) if cast_to.get(kind, kind) != kind]
        if fixed:
            raise UsageError(
                f"this graph computes in {fixed[0]} in places, which the model's code decided from its element type",
                hint="convert the model and decompose it again",
            )
        super()._apply(fn, recurse)  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
        if any(old != new for old, new in (*moved.items(), *cast_to.items())):
            for graph in graphs:
                _follow(graph, moved, fn)
            interface = self._modules.get(INTERFACE)
            if isinstance(interface, Interface):
                interface.cast(cast_to)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Its nodes one by one: torch would run the code, and keep the results of what reads no input."""
        body = {name: value for name, value in self.__dict__.items() if name != "_graph"}
        return _restored, (body, [_Record.of(node) for node in self.graph.nodes])

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenModule:
        """A copy with weights of its own, unused ones too."""
        body = {name: value for name, value in self.__dict__.items() if name != "_graph"}
        return _made(copy.deepcopy(body, memo), copy.deepcopy(self.graph, memo))

    def __copy__(self) -> FrozenModule:
        """A copy with the same weights."""
        return self.like(copy.deepcopy(self.graph))


def _made(body: dict[str, Any], graph: fx.Graph) -> FrozenModule:
    module = FrozenModule.__new__(FrozenModule)
    nn.Module.__init__(module)
    module.__dict__.update({name: value for name, value in body.items() if name != "_graph"})
    module.graph = graph  # also writes the code
    return module


def _attributes(module: fx.GraphModule) -> list[tuple[str, Any]]:
    """What the graph refers to by name."""
    names = {str(node.target): None for node in module.graph.nodes if node.op in ("get_attr", "call_module")}
    return [(name, attribute(module, name)) for name in names]


def attribute(module: nn.Module, path: str) -> Any:
    """What is at a dotted path."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _skeleton(model: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
    """The tree of modules with its parameters and buffers and nothing else; what is shared stays shared."""
    if model in known:
        return known[model]
    made = known[model] = nn.Module()
    own, ours = vars(model), vars(made)
    for table in ("_parameters", "_buffers"):
        ours[table].update(own[table])
    ours["_non_persistent_buffers_set"] = set(own["_non_persistent_buffers_set"])
    for name, child in own["_modules"].items():
        ours["_modules"][name] = None if child is None else _skeleton(child, known)
    made.training = model.training
    return made


def _place(root: nn.Module, path: str, value: Any) -> None:
    """Put what the model does not have at its path: a constant of the graph moves with the module and is not saved."""
    parent, _, name = path.rpartition(".")
    holder = root
    for part in parent.split(".") if parent else ():
        if not hasattr(holder, part):
            holder.add_module(part, nn.Module())
        holder = holder.get_submodule(part)
    if hasattr(holder, name):
        return
    if isinstance(value, torch.Tensor):
        holder.register_buffer(name, value, persistent=False)
    else:
        setattr(holder, name, value)


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of torch by name, since torch's own objects do not go through a file."""

    name: str

    @property
    def found(self) -> Any:
        space, _, rest = self.name.rpartition("::")
        packet, _, overload = rest.partition(".")
        if not space:
            return getattr(torch.ops.higher_order, packet)
        return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


@dataclass(frozen=True, slots=True)
class _Reference:
    """Another node by name."""

    name: str


@dataclass(frozen=True, slots=True)
class _Record:
    """A node as it goes through a file."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any

    @classmethod
    def of(cls, node: fx.Node) -> _Record:
        args, kwargs = map_aggregate(node.args, _written), map_aggregate(node.kwargs, _written)
        return cls(node.op, node.name, _written(node.target), args, kwargs)


def _written(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return _Reference(value.name)
    if isinstance(value, (OVERLOAD, HIGHER_ORDER)):
        return _Operator(value.name())
    return value


def _restored(body: dict[str, Any], records: list[_Record]) -> FrozenModule:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def read(value: Any) -> Any:
        if isinstance(value, _Reference):
            return nodes[value.name]
        return value.found if isinstance(value, _Operator) else value

    for record in records:
        args, kwargs = map_aggregate(record.args, read), map_aggregate(record.kwargs, read)
        node = graph.create_node(record.op, read(record.target), args, kwargs, record.name)
        nodes[record.name] = node
    return _made(body, graph)


def _mentioned(graphs: list[fx.Graph], kind: type) -> list[Any]:
    """The constants of a kind that nodes are given."""
    found: dict[Any, None] = {}

    def note(value: Any) -> Any:
        if isinstance(value, kind):
            found[value] = None
        return value

    for node in _nodes(graphs):
        map_aggregate((node.args, node.kwargs), note)
    return list(found)


def _nodes(graphs: list[fx.Graph]) -> Iterator[fx.Node]:
    return (node for graph in graphs for node in graph.nodes)


def _follow(graph: fx.Graph, moved: dict[torch.device, torch.device], fn: Callable[..., Any]) -> None:
    """Make tensors where the weights are now, and let what is known of values follow."""

    def replaced(value: Any) -> Any:
        return moved.get(value, value) if isinstance(value, torch.device) else value

    for node in graph.nodes:
        node.args = map_aggregate(node.args, replaced)
        node.kwargs = map_aggregate(node.kwargs, replaced)
        known = node.meta.get("val")
        if isinstance(known, torch.Tensor):
            node.meta["val"] = fn(known)
    if graph.owning_module is not None:
        graph.owning_module.recompile()
