"""Captures a model with torch.export if symbolic tracing cannot trace it.

The exported graph consists of aten overloads and keeps composite operators, so an attention is one node, which is
decomposed. Attention that the model writes by hand is already decomposed and is recognized by structure.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from msgspec import Struct
from torch import fx, nn

from sardonyx.errors import ModelError, reason
from sardonyx.frontend.attention.capture.calling import Arguments, Flattened, fixed_size, with_own_signature
from sardonyx.frontend.attention.capture.graph_module import HIGHER_ORDER, OVERLOAD, FrozenModule, attribute
from sardonyx.frontend.attention.decompositions.graph_writer import ATEN, AttentionWriter
from sardonyx.frontend.attention.decompositions.sdpa import write_sdpa
from sardonyx.frontend.attention.recognition.recognizer import find_attentions
from sardonyx.frontend.attention.roles import Attention, Decomposition, Primitive, Role, attach
from sardonyx.frontend.module_state import fast_paths
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.adapter import INNER
from sardonyx.frontend.tracing.module_tree import LiveTree, path_of
from sardonyx.provenance import ROOT
from sardonyx.records import gc_pause

if TYPE_CHECKING:
    from sardonyx.frontend.tracing.graph_names import Axes

_aten = torch.ops.aten
_SET_GRADIENT: Any = torch._C._set_grad_enabled  # pyright: ignore[reportPrivateUsage]  # the only form that a graph accepts
_OWN_SPACES = ("aten", "prims", "prim", "profiler")
_FUSED_NAMES = ("attention", "transformer_encoder_layer")  # in names of operators that include an attention
_TORCH_MODULE = ("torch.nn.modules.activation.MultiheadAttention", "nn.MultiheadAttention")


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
    exported: Any = program.module(check_guards=False)
    graph: fx.Graph = exported.graph
    _refuse_fixed(graph, arguments, axes)
    _inline_gradient_switches(exported)
    _drop_metadata_checks(graph)
    with_own_signature(exported, arguments, program._guards_code, training=model.training)
    attentions = _AttentionFinder(graph, LiveTree(model))
    attentions.decompose()
    attentions.recognize()
    result = FrozenModule(_own_names(exported), graph, type(model).__name__)
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
        raise ModelError(
            f"torch.export cannot trace {_where(error, flattened.module)}: {reason(error)}",
            hint="decompose only the submodules whose control flow does not depend on tensor values",
        ) from error


def _own_names(exported: fx.GraphModule) -> dict[str, Any]:
    """Rename references of the graph to names of the model itself; return what they refer to by name."""
    values: dict[str, Any] = {}
    for node in exported.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = attribute(exported, str(node.target))
            node.target = str(node.target).removeprefix(f"{INNER}.")
            values[node.target] = value
    return values


def _where(error: BaseException, model: nn.Module) -> str:
    """Return the innermost module that was running."""
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    names = {id(module): name for name, module in named}
    running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [names[id(module)] for module in running if id(module) in names]
    return f"module '{inside[-1]}'" if inside and inside[-1] else type(model).__name__


def _refuse_fixed(graph: fx.Graph, arguments: Arguments, axes: Axes) -> None:
    for name, node in zip(arguments.names, graph.find_nodes(op="placeholder"), strict=True):
        for axis, dim in axes.get(name, {}).items():
            size = fixed_size(node.meta["val"].shape[axis])
            if size is not None:
                raise ModelError(
                    f"dimension {name}:{axis} ('{dim}') cannot be dynamic: the model fixes it at {size}",
                    hint="leave it out of `dynamic`" + (", or give an example of size 2 or more" if size < 2 else ""),
                )


def _inline_gradient_switches(module: fx.GraphModule) -> None:
    """Inline the subgraphs of `with torch.no_grad()`, between two gradient switches."""
    graph = module.graph
    switch = torch.ops.higher_order.wrap_with_set_grad_enabled
    for node in graph.find_nodes(op="call_function", target=switch):
        enabled, body, *operands = cast("tuple[Any, ...]", node.args)
        inner = cast(fx.GraphModule, module.get_submodule(str(body.target))).graph
        with graph.inserting_before(node):
            has_gradient = any(_may_have_gradient(operand) for operand in operands)
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


def _may_have_gradient(operand: Any) -> bool:
    value = operand.meta.get("val") if isinstance(operand, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return cast(fx.Node, operand).op != "get_attr" or value.requires_grad  # a buffer has none


def _drop_metadata_checks(graph: fx.Graph) -> None:
    """Remove checks of intermediate tensors: the interface checks the inputs, and these would fix devices."""
    for node in graph.find_nodes(op="call_function", target=_aten._assert_tensor_metadata.default):
        graph.erase_node(node)
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)


class _FoundAttention(Struct):
    """An attention of the graph."""

    module: str
    written_as: str
    roles: dict[fx.Node, Role]


class _AttentionFinder:
    """Collects the attentions of one graph."""

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
            writer = AttentionWriter(_NodeWriter(self._graph, node), ATEN, 0, primitives, module=self._path(node))
            args: Any = node.args
            kwargs: Any = node.kwargs
            with self._graph.inserting_before(node):
                result = write_sdpa(writer, *args, **kwargs)
            roles = {new: primitives[new.name].role for new in writer.nodes if new.name in primitives}
            self._add(node, "scaled_dot_product_attention", roles)
            node.replace_all_uses_with(result)
            self._graph.erase_node(node)
        if self._attentions:  # they may have another memory layout, of which no view is possible
            for node in self._graph.find_nodes(op="call_function", target=_aten.view.default):
                node.target = _aten.reshape.default

    def recognize(self) -> None:
        """Add attentions that are written by hand, and the projections of those that were decomposed."""
        softmaxes = {
            node: attention
            for attention in self._attentions
            for node, role in attention.roles.items()
            if role is Role.SOFTMAX
        }
        for match in find_attentions(self._graph):
            decomposed = softmaxes.get(match.softmax)
            if decomposed is None:
                self._add(match.softmax, "by hand", dict(match.roles))
            else:
                decomposed.roles = {**match.roles, **decomposed.roles}

    def _add(self, node: fx.Node, written_as: str, roles: dict[fx.Node, Role]) -> None:
        stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        kinds = [
            kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}" for _, kind in stack.values()
        ]
        if kinds and kinds[-1] == _TORCH_MODULE[0]:
            written_as = _TORCH_MODULE[1]
        self._attentions.append(_FoundAttention(self._path(node), written_as, roles))

    def decomposition(self, why: str) -> Decomposition:
        """Return all attentions in execution order."""
        order = {node: index for index, node in enumerate(self._graph.nodes)}
        ordered = sorted(self._attentions, key=lambda attention: min(order[node] for node in attention.roles))
        return Decomposition(
            method="torch-export",
            why=why,
            attentions=tuple(Attention(attention.module, attention.written_as) for attention in ordered),
            primitives={
                node.name: Primitive(number, role)
                for number, attention in enumerate(ordered)
                for node, role in attention.roles.items()
            },
            modules={node.name: self._path(node) for node in self._graph.nodes},
            opaque=tuple(dict.fromkeys(_opaque(self._graph))),
        )


class _NodeWriter:
    """Creates nodes in place of another, with its module stack and stack trace, and with their values."""

    def __init__(self, graph: fx.Graph, original: fx.Node) -> None:
        self._graph = graph
        self._meta = {key: original.meta[key] for key in ("nn_module_stack", "stack_trace") if key in original.meta}
        self._mode: Any = getattr(original.meta["val"], "fake_mode", None)

    def __call__(self, kind: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        node = self._graph.create_node(kind, target, args, kwargs)
        values: Any = fx.map_arg((args, kwargs), lambda operand: operand.meta["val"])
        with self._mode:
            node.meta = {**self._meta, "val": target(*values[0], **values[1])}
        return node


def _opaque(graph: fx.Graph) -> list[str]:
    """Return the operators that may contain an attention: fused ones, custom ones, and those with subgraphs."""
    names: list[str] = []
    for node in graph.nodes:
        target: Any = node.target
        if isinstance(target, HIGHER_ORDER):
            names.append(target.name())
        elif isinstance(target, OVERLOAD):
            is_custom = target.namespace not in _OWN_SPACES
            if is_custom or any(part in target.name() for part in _FUSED_NAMES):
                names.append(target.name())
    return names
