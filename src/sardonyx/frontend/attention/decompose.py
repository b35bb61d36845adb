"""Decompose attention into primitive ops: capture a model by symbolic tracing, or else with torch.export."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules import transformer

from sardonyx.common import gc_pause
from sardonyx.errors import ModelError, SardonyxError, UsageError, reason
from sardonyx.frontend.attention import decompositions, opaque_ops
from sardonyx.frontend.attention.calling import PLAIN
from sardonyx.frontend.attention.decompositions import AttentionWriter
from sardonyx.frontend.attention.roles import Attention, Decomposition, Primitive, Role, attach, decomposition_of
from sardonyx.frontend.attention.torch_export import decompose_exported
from sardonyx.frontend.module_state import fast_paths, nothing, replaced, restoring_state, unchanged
from sardonyx.frontend.running import has_lazy
from sardonyx.frontend.tracing.module_tree import LiveTree, path_of, quoted_names
from sardonyx.frontend.tracing.structure import named_arguments
from sardonyx.records.provenance import ROOT

if TYPE_CHECKING:
    from sardonyx.frontend.inputs.examples import Dims, Example, Inputs

_TRACED_LAYERS = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoderLayer,
    nn.TransformerDecoder,
    nn.Transformer,
)
_SDPA = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_KNOWN_PACKAGES = ("torch", "_operator", "builtins", "math", "sardonyx")  # their functions contain no attention
_canonical_mask: Any = F._canonical_mask  # pyright: ignore[reportPrivateUsage]  # has no public name
_DROPOUT = "attention_dropout"  # name of the dropout module that is added to a multi-head attention


def trace(model: nn.Module, concrete_args: dict[str, Any] | None = None) -> fx.GraphModule:
    """Trace a model as `torch.fx.symbolic_trace` does, with decomposed attentions.

    Raises what symbolic tracing raises, and ModelError for an attention that cannot be decomposed.
    """
    tracer = AttentionTracer()
    fixed = {**_flags(model), **(concrete_args or {})}
    with unchanged(model):
        graph = tracer.trace(model, fixed or None)
        tracer.restore_names(fixed)
        module = tracer.graph_module(model, graph)
    attach(module, tracer.decomposition(graph))
    return module


class AttentionTracer(fx.Tracer):
    """The tracer of one model."""

    def __init__(self) -> None:
        """Start without attentions."""
        super().__init__()
        self._attentions: list[Attention] = []
        self._primitives: dict[str, Primitive] = {}
        self._referenced: dict[str, Any] = {}  # parameters, and modules of our own, by their names in the graph

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace as `fx.Tracer.trace`, with the forwards of attention layers replaced."""
        self._tree = LiveTree(root)
        self._referenced.update(root.named_parameters())
        self._names = {id(parameter): name for name, parameter in self._referenced.items()}
        self._halves = any(parameter.dtype in opaque_ops.HALVES for parameter in self._referenced.values())
        with contextlib.ExitStack() as stack:
            stack.enter_context(fast_paths(enabled=False))
            for replacement in ((nn.MultiheadAttention, "forward", self._multihead_forward()), *_REPLACED):
                stack.enter_context(replaced(*replacement))
            graph = super().trace(root, concrete_args)
        graph._tracer_cls = fx.Tracer  # pyright: ignore[reportPrivateUsage]  # a loaded module is traced by the plain tracer
        return graph

    def restore_names(self, arguments: Iterable[str]) -> None:
        """Restore the names of arguments with fixed values, to which torch adds a number."""
        numbered = {f"{name}_1": name for name in arguments}
        for node in self.graph.find_nodes(op="placeholder"):
            if node.target in numbered:
                node.target = numbered[node.target]
                node._rename(node.target)  # pyright: ignore[reportPrivateUsage]  # no public method

    def graph_module(self, model: nn.Module, graph: fx.Graph) -> fx.GraphModule:
        """Return the traced module, which shares parameters, buffers and leaf modules with the model."""
        targets = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
        known = self._referenced
        values = {target: known[target] if target in known else attrgetter(target)(model) for target in targets}
        module = fx.GraphModule(values, graph, type(model).__name__)
        module.training = model.training
        return module

    def decomposition(self, graph: fx.Graph) -> Decomposition:
        """Return the attentions and roles of the traced graph."""
        opaque: dict[str, None] = {}  # functions of the model that stay single nodes
        for target in (node.target for node in graph.nodes if node.op == "call_function"):
            package = getattr(target, "__module__", None) or "torch"
            if not isinstance(target, type) and package.partition(".")[0] not in _KNOWN_PACKAGES:
                opaque[f"{target.__module__}.{target.__qualname__}"] = None
        modules = {node.name: self._path(node.meta.get("nn_module_stack") or {}) for node in graph.nodes}
        return Decomposition("symbolic-trace", "", tuple(self._attentions), self._primitives, modules, (*opaque,))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Make torch's own layers leaves, except those that contain an attention."""
        if not isinstance(m, _TRACED_LAYERS):
            return super().is_leaf_module(m, module_qualified_name)
        if m.__module__.startswith("torch.ao."):
            raise ModelError(f"{module_qualified_name or 'the model'}: {type(m).__qualname__} cannot be decomposed")
        return False

    def _path(self, stack: Mapping[str, tuple[str, object]]) -> str:
        return path_of(stack, self._tree, prefix="") or ROOT

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Get an attribute as `fx.Tracer.getattr`, with a faster lookup of parameter names."""
        name = self._names.get(id(attr_val)) if isinstance(attr_val, nn.Parameter) else None
        if name is None:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
        return parameter_proxy_cache[name]

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        """Create a node as `fx.Tracer.create_node` does by default.

        Arguments are set afterwards, which avoids torch's search for symbolic numbers in them. Annotations that are
        strings (`from __future__ import annotations`) are dropped: a module with them could not be unpickled.
        """
        node = self.graph.create_node(kind, target, (), {}, name, None if isinstance(type_expr, str) else type_expr)
        if args:
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        self.node_name_to_scope[node.name] = (self.scope.module_path, self.scope.module_type)
        if self.module_stack:
            node.meta["nn_module_stack"] = self.module_stack.copy()
        return node

    def create_arg(self, a: Any) -> Any:
        """Convert an argument as `fx.Tracer.create_arg`, with a fast path for common types."""
        if type(a) is fx.Proxy:
            return a.node
        if type(a) in PLAIN:
            return a
        if type(a) is tuple:
            return tuple(map(self.create_arg, cast("tuple[Any, ...]", a)))
        return super().create_arg(a)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> Any:
        """Create a proxy as `fx.Tracer.create_proxy`, but decompose attentions."""
        if kind == "call_function":
            if target in _SDPA:
                writer = self._writer("scaled_dot_product_attention")
                operands, keywords = self.create_arg(args), self.create_arg(kwargs)
                return self.proxy(decompositions.write_sdpa(writer, *operands, **keywords, halves=self._halves))
            if target is F.multi_head_attention_forward:
                writer = self._writer("multi_head_attention_forward")
                call = decompositions.of_function(writer.location, args, kwargs, halves=self._halves)
                return self._multihead(call, writer)
        has_dtype = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        if kind == "call_method" and target == "view" and self._attentions and not has_dtype:
            target = "reshape"  # a decomposed attention may have another memory layout, of which no view is possible
        return super().create_proxy(kind, target, args, kwargs, *more, **named)

    def _writer(self, written_as: str) -> AttentionWriter:
        def write(kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
            name = getattr(target, "__name__", target) if kind != "call_module" else None  # as torch names it
            return self.create_node(kind, target, args, kwargs, name)

        path = self._path(self.module_stack)
        self._attentions.append(Attention(path, written_as))
        return AttentionWriter(write, False, len(self._attentions) - 1, self._primitives, path)

    def _multihead_forward(self) -> Callable[..., Any]:
        tracer, original = self, nn.MultiheadAttention.forward

        @functools.wraps(original)
        def forward(self: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
            arguments = _arguments(original, self, args, kwargs)
            if not any(isinstance(argument, fx.Proxy) for argument in arguments.values()):
                return original(self, **arguments)
            dropout: str | float = 0.0
            if self.dropout != 0.0:  # a submodule, which follows `.train()` and `.eval()`
                dropout = f"{tracer.path_of_module(self)}.{_DROPOUT}".lstrip(".")
                tracer._referenced.setdefault(dropout, nn.Dropout(self.dropout).train(self.training))
            call = decompositions.of_module(self, arguments, dropout=dropout, halves=tracer._halves)
            return tracer._multihead(call, tracer._writer("nn.MultiheadAttention"))

        return forward

    def _multihead(
        self, call: decompositions.AttentionCall, writer: AttentionWriter
    ) -> tuple[fx.Proxy, fx.Proxy | None]:
        call = decompositions.checked(call, writer.location, self.create_arg)
        result, weights = decompositions.write_multihead(writer, call)
        return self.proxy(result), None if weights is None else self.proxy(weights)


def _flags(model: nn.Module) -> dict[str, Any]:
    """Return the defaults of options that affect the graph, if the model itself is a layer of torch."""
    forward: Any = type(model).forward
    if not any(forward is layer.forward for layer in _TRACED_LAYERS):
        return {}
    parameters = inspect.signature(forward).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, bool) or parameter.name.endswith("is_causal")
    }


# What replaces parts of `nn.Transformer` that a symbolic trace cannot follow, while fast paths are disabled.
#
# Torch's own forwards inspect sizes and masks. They also compare a mask with a causal one to avoid reading it; that is
# left out, since it changes only the gradient of such a mask. In eval mode torch's fast path may skip padded positions
# and fill them with zeros; here, as in training, they are computed.


@functools.wraps(nn.Transformer.forward)
def _transformer(self: nn.Transformer, *args: Any, **kwargs: Any) -> Any:
    given = _arguments(nn.Transformer.forward, self, args, kwargs)
    padding, hint = given["src_key_padding_mask"], given["src_is_causal"]
    memory = self.encoder(given["src"], mask=given["src_mask"], src_key_padding_mask=padding, is_causal=hint)
    others = {name: value for name, value in given.items() if name.startswith(("tgt_", "memory_"))}
    return self.decoder(given["tgt"], memory, **others)


def _arguments(forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of a forward by name, with its defaults."""
    bound = inspect.signature(forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def _hint(_mask: Any, is_causal: Any = None, _size: Any = None) -> Any:
    """Return False without a hint: torch would inspect the mask, and applying the mask gives the same result."""
    return False if is_causal is None else is_causal


def _plain_mask(mask: Any, *, target_type: Any, **rest: Any) -> Any:
    """Return a mask in the type of the scores; in a trace as it is, since the decomposed attention converts it."""
    is_traced = isinstance(mask, fx.Proxy) or isinstance(target_type, fx.Proxy)
    return mask if is_traced else _canonical_mask(mask, target_type=target_type, **rest)


_REPLACED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (nn.Transformer, "forward", _transformer),
    (transformer, "_detect_is_causal_mask", _hint),
    (transformer, "_get_seq_len", nothing),
    (F, "_canonical_mask", _plain_mask),
    (F, "_none_or_dtype", nothing),
)


def decompose(
    model: nn.Module, inputs: Inputs = None, *, kwargs: Mapping[str, Any] | None = None, dynamic: Dims = None
) -> fx.GraphModule:
    """Return a graph module that computes what the model computes, with every attention decomposed.

    The model is traced in its current mode and left unchanged. The result shares its parameters and buffers and has its
    signature. Arguments with defaults that are not in the example are fixed at their defaults if the model's code
    depends on them; another value is then refused. `roles.decomposition_of(result)` returns the attentions found.

    Args:
        model: Any module.
        inputs: Example inputs: a tensor, a sequence of positional inputs, or a mapping by name. Symbolic tracing needs
            none; for torch.export they are derived if None.
        kwargs: Keyword inputs in addition to positional ones.
        dynamic: Dynamic dimensions for torch.export, as input -> axis -> name; "auto" finds them. With symbolic tracing
            all are dynamic.

    Raises:
        ModelError: If the model cannot be traced, or an attention has contradictory options.
        UsageError: If the arguments are invalid.
    """
    check_has_code(model)
    plain: nn.Module = getattr(model, "_orig_mod", model)  # inside the wrapper of `torch.compile`
    with restoring_state(plain), quoted_names():
        if has_lazy(plain):  # the result shares the model's parameters
            kind = type(plain).__name__
            raise ModelError(f"{kind} has lazy modules without weights", hint="call it once on an example")
        example = _example(plain, inputs, kwargs) if inputs is not None or kwargs else None
        traced, why = _traced(plain, example)
        if traced is not None and not why:
            return traced
        try:
            try:
                example = example or _example(plain, None, None)
            except UsageError as error:
                what = f"{why}; torch.export needs example inputs, and {error.message}"
                raise ModelError(what, hint="give example inputs") from error
            axes: Mapping[str, Mapping[int, str]] = {}
            if dynamic is not None:
                from sardonyx.frontend.inputs.examples import resolve_dynamic
                from sardonyx.frontend.tracing.adapter import ModuleCall

                axes = resolve_dynamic(ModuleCall(plain, example.args, example.kwargs), dynamic).axes
            return decompose_exported(plain, example.args, example.kwargs, axes, why)
        except SardonyxError:
            if traced is None:
                raise
            return traced  # its decomposition lists the opaque functions


def check_has_code(model: nn.Module) -> None:
    """Refuse scripted models, which have no Python code.

    Raises:
        ModelError: If the model is scripted.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a scripted model has no Python code to trace", hint="decompose the model that was scripted")


def _traced(model: nn.Module, example: Example | None) -> tuple[fx.GraphModule | None, str]:
    """Return the symbolic trace or None, and why it is not sufficient or an empty string."""
    if example is None:
        traced = _trace_any(model)
    else:  # for calls like the example: arguments that are not tensors are fixed
        values = named_arguments(model, example.args, example.kwargs)
        fixed = {name: value for name, value in values.items() if isinstance(value, PLAIN)}
        traced = _attempt(model, {**_defaults(model, besides=values), **fixed})
    if isinstance(traced, Exception):
        return None, f"symbolic tracing stopped: {reason(traced)}"
    hidden = _decomposition(traced).opaque
    return traced, f"symbolic tracing cannot trace into {', '.join(hidden)}" if hidden else ""


def _trace_any(model: nn.Module) -> fx.GraphModule | Exception:
    """Return a trace for any arguments; if the code depends on optional ones, for their defaults."""
    general, defaults = _attempt(model, {}), _defaults(model)
    if not defaults or type(model).__module__.startswith("torch.nn."):
        return general  # for torch's own layers, the tracer handles missing masks
    fixed = _attempt(model, defaults)
    if isinstance(fixed, Exception):
        return general if isinstance(general, Exception) else fixed
    if isinstance(general, Exception):
        return fixed
    return general if _steps(general) == _steps(fixed) else fixed


def _attempt(model: nn.Module, fixed: Mapping[str, Any]) -> fx.GraphModule | Exception:
    """Return a trace with some arguments fixed, or the exception that stopped it."""
    try:
        with gc_pause.paused():
            return trace(model, dict(fixed))
    except SardonyxError:
        raise
    except Exception as error:  # a forward may raise anything on symbolic values
        return error


def _defaults(model: nn.Module, besides: Collection[str] = ()) -> dict[str, Any]:
    parameters = inspect.signature(model.forward).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, PLAIN) and parameter.name not in besides
    }


def _steps(traced: fx.GraphModule) -> list[Any]:
    """Return the operations of a trace except masks, to compare traces with and without a mask."""
    roles = _decomposition(traced).primitives
    values: dict[fx.Node, Any] = {}
    steps: list[Any] = []
    for node in traced.graph.nodes:
        role = roles[node.name].role if node.name in roles else None
        if role is Role.MASK:
            values[node] = values.get(next(iter(node.all_input_nodes)), "mask")
        elif node.op == "placeholder":
            values[node] = str(node.target)
        elif _is_check(node):
            values[node] = "check"
        else:
            values[node] = len(steps)
            target = role if role is Role.SOFTMAX else node.target
            steps.append((node.op, target, fx.map_arg((node.args, node.kwargs), lambda operand: values[operand])))
    return steps


def _is_check(node: fx.Node) -> bool:
    """Return whether a node is torch's check of a fixed argument."""
    return getattr(node.target, "__name__", "") in ("_assert", "_assert_is_none") or any(
        _is_check(user) for user in node.users if node.op == "call_function"
    )


def _decomposition(traced: fx.GraphModule) -> Decomposition:
    decomposition = decomposition_of(traced)
    assert decomposition is not None, "the tracer attaches one"
    return decomposition


def _example(model: nn.Module, inputs: Inputs, kwargs: Mapping[str, Any] | None) -> Example:
    """Return the caller's example inputs, completed or derived if necessary."""
    from sardonyx.frontend.inputs.examples import example_for  # not needed for symbolic tracing
    from sardonyx.frontend.models import Resolved

    return example_for(model, Resolved(model, None, None, type(model).__name__), inputs, kwargs, seed=0)
