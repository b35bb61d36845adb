"""Symbolic tracing that decomposes every attention that torch defines.

Everything else is traced as by `torch.fx.symbolic_trace`. During tracing, the forwards of `nn.MultiheadAttention` and
`nn.Transformer*` are replaced on their classes, so that hooks and subclasses that call `super()` keep working. Like
torch's own tracing, which replaces `nn.Module.__call__`, it is not thread-safe.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

from sardonyx.errors import ModelError
from sardonyx.frontend.attention.capture.nesting import PLAIN
from sardonyx.frontend.attention.decompositions import multihead, opaque_ops, sdpa
from sardonyx.frontend.attention.decompositions.graph_writer import TORCH, AttentionWriter
from sardonyx.frontend.attention.roles import Attention, Decomposition, Primitive, attach
from sardonyx.frontend.module_state import replaced, unchanged
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep

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
        self._modules: dict[str, str] = {}
        self._referenced: dict[str, Any] = {}  # parameters and modules by their names in the graph
        self._chain: tuple[ModuleStep, ...] = ()
        self._path = ""

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace as `fx.Tracer.trace`, with the forwards of attention layers replaced."""
        self._tree = LiveTree(root)
        self._referenced.update(root.named_parameters())
        self._names = {id(parameter): name for name, parameter in self._referenced.items()}
        self._halves = any(parameter.dtype in opaque_ops.HALVES for parameter in self._referenced.values())
        with replaced({nn.MultiheadAttention: self._multihead_forward(), **_FORWARDS}):
            graph = super().trace(root, concrete_args)
        graph._tracer_cls = fx.Tracer  # pyright: ignore[reportPrivateUsage]  # a loaded module is traced by the plain tracer
        return graph

    def restore_names(self, arguments: Iterable[str]) -> None:
        """Restore the names of arguments with fixed values, to which torch adds a number."""
        numbered = {f"{name}_1": name for name in arguments}
        for node in self.graph.find_nodes(op="placeholder"):
            if node.target in numbered:
                path = self._modules.pop(node.name)
                node.target = numbered[node.target]
                node._rename(node.target)  # pyright: ignore[reportPrivateUsage]  # no public method
                self._modules[node.name] = path

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
        called = dict.fromkeys(node.target for node in graph.nodes if node.op == "call_function")
        opaque = tuple(f"{target.__module__}.{target.__qualname__}" for target in called if _is_opaque(target))
        return Decomposition("symbolic-trace", "", tuple(self._attentions), self._primitives, self._modules, opaque)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Make torch's own layers leaves, except those that contain an attention."""
        if not isinstance(m, _TRACED_LAYERS):
            return super().is_leaf_module(m, module_qualified_name)
        if m.__module__.startswith("torch.ao."):
            raise ModelError(f"{module_qualified_name or 'the model'}: {type(m).__qualname__} cannot be decomposed")
        return False

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module as `fx.Tracer.call_module`, and track its path."""
        caller = self._chain, self._path
        self._referenced[self.path_of_module(m)] = m
        self._chain = (*self._chain, ModuleStep(m, object()))
        self._path = self._tree.path(self._chain)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._chain, self._path = caller

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
        """Create a node as `fx.Tracer.create_node` does by default, and record its module.

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
        self._modules[node.name] = self._path
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
                return self._sdpa(args, kwargs)
            if target is F.multi_head_attention_forward:
                return self._multihead_function(args, kwargs)
        if kind == "call_method" and target == "view" and self._attentions and not _has_dtype(args, kwargs):
            target = "reshape"  # a decomposed attention may have another memory layout, of which no view is possible
        return super().create_proxy(kind, target, args, kwargs, *more, **named)

    def _writer(self, written_as: str) -> AttentionWriter:
        self._attentions.append(Attention(self._path, written_as))
        return AttentionWriter(self._write, TORCH, len(self._attentions) - 1, self._primitives, self._path)

    def _write(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        """Write one step of an attention, named after its operation as torch would name it."""
        name = getattr(target, "__name__", target) if kind != "call_module" else None
        return self.create_node(kind, target, args, kwargs, name)

    def _sdpa(self, args: Any, kwargs: Any) -> fx.Proxy:
        writer = self._writer("scaled_dot_product_attention")
        operands: Any = self.create_arg(args)
        keywords: Any = self.create_arg(kwargs)
        return self.proxy(sdpa.write_sdpa(writer, *operands, **keywords, halves=self._halves))

    def _multihead_forward(self) -> Callable[..., Any]:
        """Return the replacement of `nn.MultiheadAttention.forward` during tracing."""
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
            arguments = {
                "query": query,
                "key": key,
                "value": value,
                "key_padding_mask": key_padding_mask,
                "need_weights": need_weights,
                "attn_mask": attn_mask,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
            if not any(isinstance(argument, fx.Proxy) for argument in arguments.values()):
                return original(self, **arguments)  # pyright: ignore[reportArgumentType]  # of mixed types, by name
            return tracer._multihead_module(self, arguments)

        return forward

    def _multihead_module(self, module: nn.MultiheadAttention, arguments: dict[str, Any]) -> Any:
        call = multihead.of_module(module, arguments, dropout=self._dropout_of(module), halves=self._halves)
        return self._multihead(call, self._writer("nn.MultiheadAttention"))

    def _multihead_function(self, args: Any, kwargs: Any) -> Any:
        writer = self._writer("multi_head_attention_forward")
        return self._multihead(multihead.of_function(writer.location, args, kwargs, halves=self._halves), writer)

    def _multihead(self, call: multihead.AttentionCall, writer: AttentionWriter) -> tuple[fx.Proxy, fx.Proxy | None]:
        call = multihead.as_nodes(multihead.checked(call, writer.location), self.create_arg)
        result, weights = multihead.write_multihead(writer, call)
        return self.proxy(result), None if weights is None else self.proxy(weights)

    def _dropout_of(self, module: nn.MultiheadAttention) -> str | float:
        """Return the path of a dropout submodule, which follows `.train()` and `.eval()`; 0.0 without dropout."""
        if module.dropout == 0.0:
            return 0.0
        target = f"{self.path_of_module(module)}.{_DROPOUT}".lstrip(".")
        self._referenced.setdefault(target, nn.Dropout(module.dropout).train(module.training))
        return target


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


def _has_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))


def _is_opaque(target: Any) -> bool:
    """Return whether a function of the model stays a single node in the trace."""
    package = getattr(target, "__module__", None) or "torch"
    return not isinstance(target, type) and package.partition(".")[0] not in _KNOWN_PACKAGES


# Traceable forwards of `nn.Transformer` and its layers.
#
# Torch's own forwards inspect shapes and values of masks to choose a fast kernel, which a symbolic trace cannot follow.
# These call the same submodules and the same overridable blocks without the fast path. Torch also compares a mask with
# a causal one to avoid reading it; that is left out, since it changes only the gradient of such a mask. In eval mode
# torch's fast path may skip padded positions and fill them with zeros; here, as in training, they are computed.


def _encoder_layer(
    self: nn.TransformerEncoderLayer,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    """Replace `nn.TransformerEncoderLayer.forward`."""
    blocks: Any = self  # the blocks are private, but subclasses override them
    x = src
    if self.norm_first:
        x = x + blocks._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal=is_causal)
        return x + blocks._ff_block(self.norm2(x))
    x = self.norm1(x + blocks._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal))
    return self.norm2(x + blocks._ff_block(x))


def _encoder(
    self: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """Replace `nn.TransformerEncoder.forward`."""
    output = src
    for layer in self.layers:
        output = layer(output, src_mask=mask, is_causal=_hint(is_causal), src_key_padding_mask=src_key_padding_mask)
    return output if self.norm is None else self.norm(output)


def _decoder(
    self: nn.TransformerDecoder,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """Replace `nn.TransformerDecoder.forward`."""
    output = tgt
    for layer in self.layers:
        output = layer(
            output,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=_hint(tgt_is_causal),
            memory_is_causal=memory_is_causal,
        )
    return output if self.norm is None else self.norm(output)


def _transformer(
    self: nn.Transformer,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """Replace `nn.Transformer.forward`."""
    memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
    return self.decoder(
        tgt,
        memory,
        tgt_mask=tgt_mask,
        memory_mask=memory_mask,
        tgt_key_padding_mask=tgt_key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        tgt_is_causal=tgt_is_causal,
        memory_is_causal=memory_is_causal,
    )


def _hint(is_causal: Any) -> Any:
    """Return False without a hint: torch would inspect the mask, and applying the mask gives the same result."""
    return False if is_causal is None else is_causal


_FORWARDS: Mapping[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoderLayer: _encoder_layer,
    nn.TransformerEncoder: _encoder,
    nn.TransformerDecoder: _decoder,
    nn.Transformer: _transformer,
}
# The forward of nn.TransformerDecoderLayer can be traced without a replacement.
