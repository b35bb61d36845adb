"""Capture a model with torch.export: a graph that is called like the model, each attention written out."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import torch
from msgspec import Struct
from torch import fx, nn
from torch.fx.node import map_aggregate

from sardonyx.common import gc_pause
from sardonyx.errors import ModelError, UsageError, reason
from sardonyx.frontend.attention.calling import INTERFACE, Arguments, Flattened, Interface, with_own_signature
from sardonyx.frontend.attention.decompositions import AttentionWriter, write_sdpa
from sardonyx.frontend.attention.graph_calls import insert
from sardonyx.frontend.attention.recognizer import find_attentions
from sardonyx.frontend.attention.roles import Attention, Decomposition, Primitive, Role, attach
from sardonyx.frontend.module_state import fast_paths
from sardonyx.frontend.running import quietly
from sardonyx.frontend.tracing.adapter import INNER, check_dynamic
from sardonyx.frontend.tracing.module_tree import LiveTree, path_of
from sardonyx.records.provenance import ROOT

if TYPE_CHECKING:
    from sardonyx.frontend.tracing.graph_names import Axes

OVERLOAD: Any = torch._ops.OpOverload  # pyright: ignore[reportPrivateUsage]  # they have no public names
HIGHER_ORDER: Any = torch._ops.HigherOrderOperator  # pyright: ignore[reportPrivateUsage]


class FrozenModule(fx.GraphModule):
    """A graph for one mode, with all parameters and buffers of the original model under their names."""

    def share_weights(self, model: nn.Module) -> None:
        """Share all parameters and buffers of the model, in its order, used or not."""
        names = {str(node.target): None for node in self.graph.nodes if node.op in ("get_attr", "call_module")}
        own = [(name, attrgetter(name)(self)) for name in names]
        tree = _skeleton(model, {})
        tables: Any = (tree.named_parameters, tree.named_buffers, tree.named_modules)
        known = {name for table in tables for name, _ in table(remove_duplicate=False)}
        for path, value in own:
            if path not in known:  # a constant of the graph becomes a non-persistent buffer
                put(tree, path, value, persistent=False)
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
        records = [
            (node.op, node.name, map_aggregate((node.target, node.args, node.kwargs), _picklable))
            for node in self.graph.nodes
        ]
        return _restored, (body, records)

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


def put(root: nn.Module, path: str, value: Any, *, persistent: bool = True) -> None:
    """Store a tensor, or a module, at a path, with new modules on the way to it."""
    *parents, name = path.split(".")
    for part in parents:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(value, nn.Parameter):
        root.register_parameter(name, value)
    elif isinstance(value, torch.Tensor):
        root.register_buffer(name, value, persistent=persistent)
    elif isinstance(value, nn.Module):
        root._modules[name] = value  # pyright: ignore[reportPrivateUsage]  # also in place of one that holds its weights
    else:
        setattr(root, name, value)


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
    name: str


def _picklable(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return _Reference(value.name)
    return _Operator(value.name()) if isinstance(value, (OVERLOAD, HIGHER_ORDER)) else value


def _restored(body: dict[str, Any], records: list[tuple[str, str, Any]]) -> FrozenModule:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def read(value: Any) -> Any:
        if isinstance(value, _Reference):
            return nodes[value.name]
        return value.target if isinstance(value, _Operator) else value

    for op, name, parts in records:
        target, args, kwargs = map_aggregate(parts, read)
        nodes[name] = graph.create_node(op, target, args, kwargs, name)
    return _with_graph(body, graph)


def _constants(graphs: list[fx.Graph], kind: type) -> list[Any]:
    constants: dict[Any, None] = {}

    def collect(value: Any) -> None:
        if isinstance(value, kind):
            constants[value] = None

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


_aten = torch.ops.aten
_SET_GRADIENT: Any = torch._C._set_grad_enabled  # pyright: ignore[reportPrivateUsage]  # the only form that a graph accepts
_OWN_SPACES = ("aten", "prims", "prim", "profiler")
_FUSED_NAMES = ("attention", "transformer_encoder_layer")  # in names of operators that include an attention


def decompose_exported(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], axes: Axes, why: str
) -> FrozenModule:
    """Export the model in its current mode and decompose its attentions.

    Args:
        model: The model, which is not changed; the result shares its weights.
        args: Positional example arguments.
        kwargs: Keyword example arguments.
        axes: Dynamic dimensions.
        why: Why symbolic tracing was not used.

    Raises:
        ModelError: If torch.export cannot trace the model, or fixes a dynamic dimension.
    """
    arguments = Arguments(model, args, kwargs)
    flattened = Flattened(model, arguments)
    program = _exported(flattened, arguments, axes)
    check_dynamic(program, arguments.names, axes)
    exported: Any = program.module(check_guards=False)
    graph: fx.Graph = exported.graph
    _inline_gradient_switches(exported)
    for node in graph.find_nodes(op="call_function", target=_aten._assert_tensor_metadata.default):
        graph.erase_node(node)  # the interface checks the inputs, and checks of other tensors would fix devices
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    with_own_signature(exported, arguments, program._guards_code, training=model.training)
    attentions = _AttentionFinder(graph, LiveTree(model))
    attentions.decompose()
    attentions.recognize()
    values: dict[str, Any] = {}  # what the graph refers to, under the names of the model itself
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = attrgetter(str(node.target))(exported)
            node.target = str(node.target).removeprefix(f"{INNER}.")
            values[node.target] = value
    result = FrozenModule(values, graph, type(model).__name__)
    result.share_weights(model)
    attach(result, attentions.decomposition(why))
    return result


def _exported(flattened: Flattened, arguments: Arguments, axes: Axes) -> Any:
    """Return the exported program; torch's fast path for whole layers is disabled meanwhile."""
    dynamic = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.AUTO) for name in arguments.names)
    tensors = tuple(tensor.clone() for tensor in arguments.tensors)
    try:
        with gc_pause.paused(), quietly(), fast_paths(enabled=False):
            return torch.export.export(flattened, tensors, dynamic_shapes=(dynamic,), strict=False)
    except ModelError:
        raise
    except Exception as error:  # a forward is the user's code and may raise anything
        named = cast("Iterable[tuple[str, nn.Module]]", flattened.module.named_modules())
        names = {id(module): name for name, module in named}
        running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
        inside = [names[id(module)] for module in running if id(module) in names]
        where = f"module '{inside[-1]}'" if inside and inside[-1] else type(flattened.module).__name__
        raise ModelError(
            f"torch.export cannot trace {where}: {reason(error)}",
            hint="decompose only the submodules whose control flow does not depend on tensor values",
        ) from error


def _inline_gradient_switches(module: fx.GraphModule) -> None:
    """Inline the subgraphs of `with torch.no_grad()`, between two gradient switches."""
    graph = module.graph
    switch = torch.ops.higher_order.wrap_with_set_grad_enabled
    for node in graph.find_nodes(op="call_function", target=switch):
        enabled, body, *operands = cast("tuple[Any, ...]", node.args)
        inner = cast(fx.GraphModule, module.get_submodule(str(body.target))).graph
        with graph.inserting_before(node):
            tensors = ((each, each.meta.get("val")) for each in operands if isinstance(each, fx.Node))
            has_gradient = any(  # a buffer has none
                isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and (each.op != "get_attr" or value.requires_grad)
                for each, value in tensors
            )
            before = graph.call_function(torch.is_grad_enabled) if has_gradient else None
            if has_gradient:
                graph.call_function(_SET_GRADIENT, (enabled,))
            values = dict(zip(inner.find_nodes(op="placeholder"), operands, strict=True))
            results = cast(Any, graph.graph_copy(inner, values))
            if has_gradient:
                graph.call_function(_SET_GRADIENT, (before,))
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        graph.erase_node(body)


class _FoundAttention(Struct):
    module: str
    written_as: str
    roles: dict[fx.Node, Role]


class _AttentionFinder:
    def __init__(self, graph: fx.Graph, tree: LiveTree) -> None:
        self._graph, self._tree = graph, tree
        self._attentions: list[_FoundAttention] = []

    def _path(self, node: fx.Node) -> str:
        """Return the path of the module that ran a node; the model itself if torch lost it."""
        return path_of(node.meta.get("nn_module_stack") or {}, self._tree) or ROOT

    def decompose(self) -> None:
        """Decompose every attention that is one node."""
        for node in self._graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
            primitives: dict[str, Primitive] = {}

            def create(_kind: str, target: Any, args: Any, kwargs: Any, node: fx.Node = node) -> fx.Node:
                return insert(node, target, args, kwargs)

            writer = AttentionWriter(create, True, 0, primitives, module=self._path(node))
            result = write_sdpa(writer, *node.args, **node.kwargs)
            roles = {new: primitives[new.name].role for new in writer.nodes if new.name in primitives}
            self._add(node, "scaled_dot_product_attention", roles)
            node.replace_all_uses_with(result)
            self._graph.erase_node(node)
        if self._attentions:  # they may have another memory layout, of which no view is possible
            for node in self._graph.find_nodes(op="call_function", target=_aten.view.default):
                node.target = _aten.reshape.default

    def recognize(self) -> None:
        """Add attentions that are written by hand, and the projections of those that were decomposed."""
        known = {
            node: found for found in self._attentions for node, role in found.roles.items() if role is Role.SOFTMAX
        }
        for match in find_attentions(self._graph):
            if (decomposed := known.get(match.softmax)) is None:
                self._add(match.softmax, "by hand", dict(match.roles))
            else:
                decomposed.roles = {**match.roles, **decomposed.roles}

    def _add(self, node: fx.Node, written_as: str, roles: dict[fx.Node, Role]) -> None:
        stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        kind = [*stack.values()][-1][1] if stack else ""
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        if name == "torch.nn.modules.activation.MultiheadAttention":
            written_as = "nn.MultiheadAttention"
        self._attentions.append(_FoundAttention(self._path(node), written_as, roles))

    def decomposition(self, why: str) -> Decomposition:
        """Return all attentions in execution order."""
        order = {node: index for index, node in enumerate(self._graph.nodes)}
        ordered = sorted(self._attentions, key=lambda attention: min(order[node] for node in attention.roles))
        return Decomposition(
            method="torch-export",
            why=why,
            attentions=tuple(Attention(found.module, found.written_as) for found in ordered),
            primitives={
                node.name: Primitive(number, role)
                for number, found in enumerate(ordered)
                for node, role in found.roles.items()
            },
            modules={node.name: self._path(node) for node in self._graph.nodes},
            opaque=tuple(dict.fromkeys(_opaque(self._graph))),
        )


def _opaque(graph: fx.Graph) -> Iterator[str]:
    """Yield the operators that may contain an attention: fused ones, custom ones, and those with subgraphs."""
    for node in graph.nodes:
        target: Any = node.target
        is_custom = isinstance(target, OVERLOAD) and target.namespace not in _OWN_SPACES
        is_fused = isinstance(target, OVERLOAD) and any(part in target.name() for part in _FUSED_NAMES)
        if is_custom or is_fused or isinstance(target, HIGHER_ORDER):
            yield target.name()
