"""Torch's symbolic tracing, in which every attention that torch itself defines is spelled out.

Everything else comes out as `torch.fx.symbolic_trace` has it. While a model is traced, the forward passes of
`nn.MultiheadAttention` and `nn.Transformer*` are replaced on their classes, so that subclasses which call `super()` and
hooks keep working; like torch's own tracing, which replaces `nn.Module.__call__`, it is not for two threads at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.decompositions import layers, multihead, opaque_ops, sdpa
from sardonyx.frontend.attention.decompositions import multihead as multihead_calls
from sardonyx.frontend.attention.decompositions.graph_writer import TORCH, Spelling
from sardonyx.frontend.attention.roles import Attention, Decomposition, Primitive, attach
from sardonyx.frontend.module_state import left_as_it_was, replaced, undoing_writes
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep

_LOOKED_INTO = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoderLayer,
    nn.TransformerDecoder,
    nn.Transformer,
)
_SDPA = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
_LOOKED_THROUGH = ("torch", "_operator", "builtins", "math", "sardonyx")  # where the functions of a trace come from
_PLAIN = (int, float, bool, str, type(None))
_DROPOUT = "attention_dropout"  # the name of our dropout beside a multi-head attention's parameters


def trace(model: nn.Module, concrete_args: dict[str, Any] | None = None) -> fx.GraphModule:
    """Trace a model as `torch.fx.symbolic_trace` does, with its attentions spelled out.

    Raises what symbolic tracing raises where it cannot go on, and ModelError for an attention that cannot be written.
    """
    tracer = AttentionTracer()
    flags = _flags(model)
    with left_as_it_was(model), undoing_writes(model):
        graph = tracer.trace(model, {**flags, **(concrete_args or {})} or None)
        tracer.name_as_before(flags)
        module = tracer.graph_module(model, graph)
    attach(module, tracer.decomposition(graph))
    return module


class AttentionTracer(fx.Tracer):
    """The tracer of one model."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        super().__init__()
        self._attentions: list[Attention] = []
        self._primitives: dict[str, Primitive] = {}
        self._modules: dict[str, str] = {}
        self._met: dict[str, Any] = {}  # parameters and modules by the names that the graph calls them
        self._chain: tuple[ModuleStep, ...] = ()
        self._path = ""

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """As `fx.Tracer.trace`, with the classes' forward passes replaced meanwhile."""
        self._tree = LiveTree(root)
        self._met.update(root.named_parameters())
        self._names = {id(parameter): name for name, parameter in self._met.items()}
        self._halves = any(parameter.dtype in opaque_ops.HALVES for parameter in self._met.values())
        with replaced({nn.MultiheadAttention: self._multihead_forward(), **layers.FORWARDS}):
            graph = super().trace(root, concrete_args)
        graph._tracer_cls = fx.Tracer  # pyright: ignore[reportPrivateUsage]  # whoever loads the module traces it plainly
        return graph

    def name_as_before(self, arguments: Iterable[str]) -> None:
        """Call arguments that were given a value by their own names: torch adds a number to them."""
        numbered = {f"{name}_1": name for name in arguments}
        for node in self.graph.find_nodes(op="placeholder"):
            if node.target in numbered:
                path = self._modules.pop(node.name)
                node.target = numbered[node.target]
                node._rename(node.target)  # pyright: ignore[reportPrivateUsage]  # there is no other way
                self._modules[node.name] = path

    def graph_module(self, model: nn.Module, graph: fx.Graph) -> fx.GraphModule:
        """The traced module, which shares parameters, buffers and leaf modules with the model."""
        targets = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
        held = {target: self._met[target] if target in self._met else attrgetter(target)(model) for target in targets}
        module = fx.GraphModule(held, graph, type(model).__name__)
        module.training = model.training
        return module

    def decomposition(self, graph: fx.Graph) -> Decomposition:
        """What was found."""
        called = dict.fromkeys(node.target for node in graph.nodes if node.op == "call_function")
        opaque = tuple(_qualified(target) for target in called if _is_opaque(target))
        return Decomposition("symbolic-trace", "", tuple(self._attentions), self._primitives, self._modules, opaque)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Torch's own layers are leaves, except those that hold an attention."""
        if not isinstance(m, _LOOKED_INTO):
            return super().is_leaf_module(m, module_qualified_name)
        if m.__module__.startswith("torch.ao."):
            raise ModelError(f"{module_qualified_name or 'the model'}: {type(m).__qualname__} is not spelled out")
        return False

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """As `fx.Tracer.call_module`, knowing where it is."""
        above = self._chain, self._path
        self._met[self.path_of_module(m)] = m
        self._chain = (*self._chain, ModuleStep(m, object()))
        self._path = self._tree.path(self._chain)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._chain, self._path = above

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """As `fx.Tracer.getattr`, finding a parameter's name without a search through all of them."""
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
        """As `fx.Tracer.create_node` without the options that nobody can set here, noting the module.

        Arguments are given to the node afterwards, which spares a search through each of them for symbolic numbers.
        Annotations that are only text, as `from __future__ import annotations` makes them, are left out: the traced
        module could not be loaded from a file with them.
        """
        node = self.graph.create_node(kind, target, (), {}, name, None if isinstance(type_expr, str) else type_expr)
        if args:
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        self.node_name_to_scope[node.name] = (self.scope.module_path, self.scope.module_type)
        if self.module_stack:
            node.meta["nn_module_stack"] = self.module_stack.copy()
        self._modules[node.name] = self._path
        return node

    def create_arg(self, a: Any) -> Any:
        """As `fx.Tracer.create_arg`, which asks many questions before it comes to the usual answers."""
        if type(a) is fx.Proxy:
            return a.node
        if type(a) in _PLAIN:
            return a
        if type(a) is tuple:
            return tuple(map(self.create_arg, cast("tuple[Any, ...]", a)))
        return super().create_arg(a)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any) -> Any:
        """As `fx.Tracer.create_proxy`, but an attention becomes its steps."""
        if kind == "call_function":
            if target in _SDPA:
                return self._sdpa(args, kwargs)
            if target is F.multi_head_attention_forward:
                return self._multihead_function(args, kwargs)
        return super().create_proxy(kind, target, args, kwargs, *more, **named)

    def _spelling(self, written_as: str) -> Spelling:
        self._attentions.append(Attention(self._path, written_as))
        return Spelling(self._write, TORCH, len(self._attentions) - 1, self._primitives, self._path)

    def _write(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """One step of an attention; the name that torch would find for it is the word itself."""
        name = getattr(target, "__name__", target) if kind != "call_module" else None
        return self.create_node(kind, target, args, kwargs, name)

    def _sdpa(self, args: Any, kwargs: Any) -> fx.Proxy:
        spelling = self._spelling("scaled_dot_product_attention")
        nodes: Any = self.create_arg(args)
        named: Any = self.create_arg(kwargs)
        return self.proxy(sdpa.spell_out(spelling, *nodes, **named, halves=self._halves))

    def _multihead_forward(self) -> Callable[..., Any]:
        """What stands for `nn.MultiheadAttention.forward` while tracing."""
        tracer, original = self, nn.MultiheadAttention.forward

        def forward(
            self: nn.MultiheadAttention,
            query: Any,
            key: Any,
            value: Any,
            key_padding_mask: Any = None,
            need_weights: bool = True,
            attn_mask: Any = None,
            average_attn_weights: bool = True,
            is_causal: bool = False,
        ) -> Any:
            given = {
                "query": query,
                "key": key,
                "value": value,
                "key_padding_mask": key_padding_mask,
                "need_weights": need_weights,
                "attn_mask": attn_mask,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
            if not any(isinstance(argument, fx.Proxy) for argument in given.values()):
                return original(self, **given)  # pyright: ignore[reportArgumentType]  # of mixed types, by name
            return tracer._multihead_module(self, given)

        return forward

    def _multihead_module(self, module: nn.MultiheadAttention, given: dict[str, Any]) -> Any:
        call = multihead_calls.of_module(module, given, dropout=self._dropout_of(module), halves=self._halves)
        return self._multihead(call, self._spelling("nn.MultiheadAttention"))

    def _multihead_function(self, args: Any, kwargs: Any) -> Any:
        spelling = self._spelling("multi_head_attention_forward")
        return self._multihead(multihead_calls.of_function(spelling.place, args, kwargs, halves=self._halves), spelling)

    def _multihead(self, call: multihead.Call, spelling: Spelling) -> tuple[fx.Proxy, fx.Proxy | None]:
        noted = multihead_calls.as_nodes(multihead_calls.checked(call, spelling.place), self.create_arg)
        result, shares = multihead.spell_out(spelling, noted)
        return self.proxy(result), None if shares is None else self.proxy(shares)

    def _dropout_of(self, module: nn.MultiheadAttention) -> str | float:
        """Dropout as a submodule of the traced module, which so follows `.train()` and `.eval()`."""
        if module.dropout == 0.0:
            return 0.0
        target = f"{self.path_of_module(module)}.{_DROPOUT}".lstrip(".")
        self._met.setdefault(target, nn.Dropout(module.dropout).train(module.training))
        return target


def _flags(model: nn.Module) -> dict[str, Any]:
    """The options that decide what is written, at their defaults, where the model itself is a layer of torch's."""
    forward: Any = type(model).forward
    if not any(forward is layer.forward for layer in _LOOKED_INTO):
        return {}
    parameters = inspect.signature(forward).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if isinstance(parameter.default, bool) or parameter.name.endswith("is_causal")
    }


def _is_opaque(target: Any) -> bool:
    """Whether it is a function of the model's own that tracing was told not to look into."""
    home = getattr(target, "__module__", None) or "torch"
    return not isinstance(target, type) and home.partition(".")[0] not in _LOOKED_THROUGH


def _qualified(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"
