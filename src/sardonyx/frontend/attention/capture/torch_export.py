"""The road through torch.export: for models that symbolic tracing cannot follow.

The exported graph is written in aten overloads and keeps composite operators whole, so an attention is one node, which
is spelled out; attention that the model writes by hand is there step by step already and is only recognised.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx, nn

from sardonyx.errors import ModelError, reason
from sardonyx.frontend.attention.capture.calling import Arguments, Flattened, fixed_size, with_own_signature
from sardonyx.frontend.attention.capture.graph_module import HIGHER_ORDER, OVERLOAD, FrozenModule, attribute
from sardonyx.frontend.attention.decompositions.graph_writer import ATEN, Spelling
from sardonyx.frontend.attention.decompositions.sdpa import spell_out
from sardonyx.frontend.attention.recognition.recognizer import recognise
from sardonyx.frontend.attention.roles import Attention, Decomposition, Primitive, Role, attach
from sardonyx.frontend.module_state import without_shortcuts
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.adapter import INNER
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.frontend.tracing.torch_graphs import path_of
from sardonyx.provenance import ROOT
from sardonyx.records import gc_pause

if TYPE_CHECKING:
    from sardonyx.frontend.tracing.symbols import Axes

_aten = torch.ops.aten
_SET_GRADIENT: Any = torch._C._set_grad_enabled  # pyright: ignore[reportPrivateUsage]  # the only form a graph takes
_OWN_SPACES = ("aten", "prims", "prim", "profiler")
_WHOLE = ("attention", "transformer_encoder_layer")  # in the name of an operator: it does a whole attention, or more
_OF_TORCH = ("torch.nn.modules.activation.MultiheadAttention", "nn.MultiheadAttention")


def decompose_exported(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], axes: Axes, why: str
) -> FrozenModule:
    """Export the model in the mode it is in and spell its attentions out.

    Args:
        model: is not changed; the result shares its weights.
        args: example arguments by position.
        kwargs: and by name.
        axes: dims to leave open.
        why: this road was taken.

    Raises:
        ModelError: torch.export cannot follow the model, or fixes a dim that was to stay open.
    """
    arguments = Arguments(model, args, kwargs)
    flattened = Flattened(model, arguments)
    program = _captured(flattened, arguments, axes)
    exported: Any = program.module(check_guards=False)
    graph: fx.Graph = exported.graph
    _refuse_fixed(graph, arguments, axes)
    _inline_gradient_switches(exported)
    _drop_metadata_checks(graph)
    with_own_signature(exported, arguments, program._guards_code, training=model.training)
    found = _Found(graph, LiveTree(model))
    found.spell_out()
    found.recognise()
    result = FrozenModule(_own_names(exported), graph, type(model).__name__)
    result.hold(model)
    attach(result, found.decomposition(why))
    return result


def _captured(flattened: Flattened, arguments: Arguments, axes: Axes) -> Any:
    """The exported program; torch's own fast path through a whole layer is off while it is made."""
    open_dims = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.AUTO) for name in arguments.names)
    tensors = tuple(tensor.clone() for tensor in arguments.tensors)
    try:
        with gc_pause.paused(), quietly(), without_shortcuts():
            return torch.export.export(flattened, tensors, dynamic_shapes=(open_dims,), strict=False)
    except ModelError:
        raise
    except Exception as error:  # a forward is the user's code, and torch.export may fail on it in any way
        raise ModelError(
            f"torch.export cannot follow {_where(error, flattened.module)}: {reason(error)}",
            hint="decompose the parts of the model that do not decide on the values of tensors",
        ) from error


def _own_names(exported: fx.GraphModule) -> dict[str, Any]:
    """Let the graph call everything by its name in the model itself; what it refers to, by that name."""
    held: dict[str, Any] = {}
    for node in exported.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            found = attribute(exported, str(node.target))
            node.target = str(node.target).removeprefix(f"{INNER}.")
            held[node.target] = found
    return held


def _where(error: BaseException, model: nn.Module) -> str:
    """The innermost module that was running."""
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    names = {id(module): name for name, module in named}
    running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [names[id(each)] for each in running if id(each) in names]
    return f"module '{inside[-1]}'" if inside and inside[-1] else type(model).__name__


def _refuse_fixed(graph: fx.Graph, arguments: Arguments, axes: Axes) -> None:
    for name, node in zip(arguments.names, graph.find_nodes(op="placeholder"), strict=True):
        for axis, dim in axes.get(name, {}).items():
            size = fixed_size(node.meta["val"].shape[axis])
            if size is not None:
                raise ModelError(
                    f"dimension {name}:{axis} ('{dim}') cannot be dynamic: the model fixes it at {size}",
                    hint="leave it out of dynamic=" + (", or give an example of size 2 or more" if size < 2 else ""),
                )


def _inline_gradient_switches(module: fx.GraphModule) -> None:
    """`with torch.no_grad()` is a graph of its own in an exported graph: put it back, between two switches."""
    graph = module.graph
    switch = torch.ops.higher_order.wrap_with_set_grad_enabled
    for node in graph.find_nodes(op="call_function", target=switch):
        enabled, body, *operands = cast("tuple[Any, ...]", node.args)
        inner = cast(fx.GraphModule, module.get_submodule(str(body.target))).graph
        with graph.inserting_before(node):
            needed = any(_may_have_gradient(operand) for operand in operands)
            before = graph.call_function(torch.is_grad_enabled) if needed else None
            if needed:
                graph.call_function(_SET_GRADIENT, (enabled,))
            known = dict(zip(inner.find_nodes(op="placeholder"), operands, strict=True))
            results = cast(Any, graph.graph_copy(inner, known))
            if needed:
                graph.call_function(_SET_GRADIENT, (before,))
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        graph.erase_node(body)


def _may_have_gradient(operand: Any) -> bool:
    known = operand.meta.get("val") if isinstance(operand, fx.Node) else None
    if not isinstance(known, torch.Tensor) or not known.is_floating_point():
        return False
    return cast(fx.Node, operand).op != "get_attr" or known.requires_grad  # a buffer has none


def _drop_metadata_checks(graph: fx.Graph) -> None:
    """The interface checks what the graph takes; what follows from it need not be checked, and would pin devices."""
    for node in graph.find_nodes(op="call_function", target=_aten._assert_tensor_metadata.default):
        graph.erase_node(node)
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)


@dataclass(slots=True)
class _Spelled:
    """An attention of the graph, wherever it came from."""

    module: str
    written_as: str
    roles: dict[fx.Node, Role]


class _Found:
    """The attentions of one graph, as they are found."""

    def __init__(self, graph: fx.Graph, tree: LiveTree) -> None:
        self._graph, self._tree = graph, tree
        self._attentions: list[_Spelled] = []

    def _path(self, node: fx.Node) -> str:
        """The module that ran it; the model itself where torch lost it."""
        return path_of(node.meta.get("nn_module_stack") or {}, self._tree) or ROOT

    def spell_out(self) -> None:
        """Replace every attention that is one node."""
        for node in self._graph.find_nodes(op="call_function", target=_aten.scaled_dot_product_attention.default):
            primitives: dict[str, Primitive] = {}
            spelling = Spelling(_Scribe(self._graph, node), ATEN, 0, primitives, module=self._path(node))
            args: Any = node.args
            kwargs: Any = node.kwargs
            with self._graph.inserting_before(node):
                result = spell_out(spelling, *args, **kwargs)
            roles = {new: primitives[new.name].role for new in spelling.nodes if new.name in primitives}
            self._add(node, "scaled_dot_product_attention", roles)
            node.replace_all_uses_with(result)
            self._graph.erase_node(node)

    def recognise(self) -> None:
        """Add those that were written by hand, and what stands around those that were spelled out."""
        softmaxes = {
            node: each for each in self._attentions for node, role in each.roles.items() if role is Role.SOFTMAX
        }
        for found in recognise(self._graph):
            spelled = softmaxes.get(found.softmax)
            if spelled is None:
                self._add(found.softmax, "by hand", dict(found.roles))
            else:
                spelled.roles = {**found.roles, **spelled.roles}

    def _add(self, node: fx.Node, written_as: str, roles: dict[fx.Node, Role]) -> None:
        stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        kinds = [
            kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}" for _, kind in stack.values()
        ]
        if kinds and kinds[-1] == _OF_TORCH[0]:
            written_as = _OF_TORCH[1]
        self._attentions.append(_Spelled(self._path(node), written_as, roles))

    def decomposition(self, why: str) -> Decomposition:
        """All of them in the order in which they run."""
        order = {node: place for place, node in enumerate(self._graph.nodes)}
        running = sorted(self._attentions, key=lambda each: min(order[node] for node in each.roles))
        return Decomposition(
            road="torch-export",
            why=why,
            attentions=tuple(Attention(each.module, each.written_as) for each in running),
            primitives={
                node.name: Primitive(number, role)
                for number, each in enumerate(running)
                for node, role in each.roles.items()
            },
            modules={node.name: self._path(node) for node in self._graph.nodes},
            opaque=tuple(dict.fromkeys(_opaque(self._graph))),
        )


class _Scribe:
    """Writes nodes that stand for another: they know its module and its line, and what they compute."""

    def __init__(self, graph: fx.Graph, stands_for: fx.Node) -> None:
        self._graph = graph
        self._meta = {key: stands_for.meta[key] for key in ("nn_module_stack", "stack_trace") if key in stands_for.meta}
        self._mode: Any = getattr(stands_for.meta["val"], "fake_mode", None)

    def __call__(self, kind: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        node = self._graph.create_node(kind, target, args, kwargs)
        values: Any = fx.map_arg((args, kwargs), lambda each: each.meta["val"])
        with self._mode:
            node.meta = {**self._meta, "val": target(*values[0], **values[1])}
        return node


def _opaque(graph: fx.Graph) -> list[str]:
    """Operators that may hide an attention: torch's own that do one whole, those of others, and graphs in the graph."""
    found: list[str] = []
    for node in graph.nodes:
        target: Any = node.target
        if isinstance(target, HIGHER_ORDER):
            found.append(target.name())
        elif isinstance(target, OVERLOAD):
            foreign = target.namespace not in _OWN_SPACES
            if foreign or any(part in target.name() for part in _WHOLE):
                found.append(target.name())
    return found
