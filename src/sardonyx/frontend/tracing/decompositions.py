"""Decomposes an exported program node by node.

torch's `run_decompositions` traces the whole program twice more with symbolic sizes. That takes longer than the export
itself, and replaces a handful of operators in every layer. Here an operator that is kept stays the same node, and any
other is traced by itself on the values that the export recorded. An in-place operator is replaced by its out-of-place
form if nothing else reads the memory. What cannot be decomposed alone (control flow, writes through views, constants
created by a decomposition) is left to torch.
"""

from __future__ import annotations

import contextlib
import math
import operator
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate

_UNDECLARED = torch.Tag.maybe_aliasing_or_mutating
_READS_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}  # their sizes are new symbols
Table = Mapping[Any, Callable[..., Any]]
_ORIGIN = ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn")  # metadata on the origin of a node
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore[reportPrivateUsage]  # no public name
_SIZE = torch.ops.aten.sym_size.int
_COUNT = torch.ops.aten.sym_numel.default
_SIZE_FUNCTIONS: Any = (torch.sym_max, torch.sym_min)  # pyright: ignore[reportUnknownMemberType]
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_RANK = 4
_NO_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


class NotLocalError(Exception):
    """Raised for what only a trace of the whole program can decompose."""


def is_overload(target: object) -> bool:
    """Return whether a node's target is an operator of torch."""
    return isinstance(target, torch._ops.OpOverload)  # pyright: ignore[reportPrivateUsage]  # has no public name


class Memory:
    """Tracks which nodes of an exported graph share memory, so that an in-place write can become a new value.

    A node owns its memory if its operator allocates the result. Once the memory has a view, a write could be seen
    through the view, so it counts as shared.
    """

    def __init__(self) -> None:
        self._owners: dict[Any, Any] = {}  # a node, or an in-place result in its memory -> that node
        self._shared: set[Any] = set()

    def see(self, node: Any) -> None:
        """Record a node that calls a function; called once for each node, in order."""
        if is_overload(node.target) and node.target._schema.is_mutable:
            owner = self._owners.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
            if owner is not None:
                self._owners[node] = owner
        elif not is_overload(node.target) or _may_alias(node.target):
            self._shared.update(self._owners.get(operand, operand) for operand in node.all_input_nodes)
        else:
            self._owners[node] = node

    def without_writing(self, node: Any) -> Any:
        """Return the out-of-place form of a node's operator; None for a node that writes nothing.

        Raises:
            NotLocalError: If something else may read the memory, or there is no such operator.
        """
        schema = node.target._schema
        if not schema.is_mutable:
            return None
        owner, target = self._owners.get(node), node.target
        packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::").removesuffix("_"), None)
        replacement = getattr(packet, target._overloadname, None)
        written = [argument for argument in schema.arguments if argument.alias_info is not None]
        if owner is None or owner in self._shared or replacement is None or written != [schema.arguments[0]]:
            raise NotLocalError
        if _may_alias(replacement):
            raise NotLocalError
        return replacement

    def written(self, node: Any) -> list[Any]:
        """Return all nodes whose memory a node has written to."""
        if not is_overload(node.target) or not node.target._schema.is_mutable:
            return []
        owner = self._owners[node]
        return [other for other, its_owner in self._owners.items() if its_owner is owner]


def _may_alias(target: Any) -> bool:
    """Return whether a result may share memory with an operand; some operators do not declare it (inactive dropout)."""
    values = (*target._schema.arguments, *target._schema.returns)
    return any(value.alias_info is not None for value in values) or _UNDECLARED in target.tags


def decompose_locally(program: torch.export.ExportedProgram) -> None:
    """Make the program's `run_decompositions` work node by node, with torch's own method as fallback."""
    untyped: Any = program  # torch's own types have gaps
    run_whole = untyped.run_decompositions

    def run_decompositions(table: Table) -> torch.export.ExportedProgram:
        recorded = (node.meta.get("val") for node in program.graph.nodes)
        mode = detect_fake_mode([value for value in recorded if isinstance(value, torch.Tensor)])
        try:
            with (
                _composites(table) as (composite, rest),
                torch.no_grad(),
                enable_python_dispatcher(),
                mode or contextlib.nullcontext(),  # decompositions create tensors of their own
            ):
                graph = _Rewriter(program.graph_module, table, composite, rest).run()
        except NotLocalError:
            return run_whole(dict(table))
        before, after = ([*owner.nodes][-1].args[0] for owner in (program.graph, graph))
        names = {old.name: new.name for old, new in zip(before, after, strict=True) if isinstance(old, Node)}
        for spec in program.graph_signature.output_specs:
            if (name := getattr(spec.arg, "name", None)) in names:
                spec.arg.name = names[name]
        graph.eliminate_dead_code()
        program.graph_module.graph = graph
        program.graph_module.delete_all_unused_submodules()
        return program

    untyped.run_decompositions = run_decompositions


@contextlib.contextmanager
def _composites(table: Table) -> Generator[tuple[Table, Table]]:
    """Treat composite operators as torch does: those that the exporter supports are not decomposed.

    Yields the decompositions of composite operators, and those of the others.
    """
    from torch.export import exported_program

    split: Any = getattr(exported_program, "_split_decomp_table_to_cia_and_python_decomp", None)
    overridden: Any = getattr(exported_program, "_override_composite_implicit_decomp", None)
    if split is None or overridden is None:  # another version of torch
        raise NotLocalError
    composite, rest = split(dict(table))
    with overridden(composite):
        yield composite, rest


class _Rewriter:
    """Rewrites one graph to a graph without the operators of the decomposition table."""

    def __init__(self, module: Any, table: Table, composite: Table, rest: Table) -> None:
        self._module, self._table, self._composite, self._rest = module, table, composite, rest
        self._graph: Any = Graph(owning_module=module)
        self._sizes: dict[Any, Any] = {}
        self._traced: dict[Any, Any] = {}  # decompositions by operator and operands
        self._memory = Memory()

    def run(self) -> Any:
        """Return the new graph.

        Raises:
            NotLocalError: For anything that cannot be decomposed by itself.
        """
        renewed: dict[Any, Any] = {}
        for node in self._module.graph.nodes:
            renewed[node] = self._rewritten(node, renewed, self._module)
            for other in self._memory.written(node):
                renewed[other] = renewed[node]
        return self._graph

    def _rewritten(self, node: Any, renewed: Mapping[Any, Any], owner: Any) -> Any:
        """Return the replacement of a node of `owner` in the new graph: a node, or a nested structure of nodes."""
        if node.op in ("placeholder", "output"):
            return self._copied(node, renewed)
        if node.op == "get_attr" and isinstance(child := getattr(owner, str(node.target)), GraphModule):
            return child
        target: Any = node.target
        if node.op != "call_function":
            raise NotLocalError
        self._memory.see(node)
        if target is operator.getitem and not isinstance(renewed[node.args[0]], Node):
            return renewed[node.args[0]][node.args[1]]
        if is_overload(target):
            replacement = self._memory.without_writing(node)
            if target is _ATTENTION and any(operand.meta["val"].dim() != _RANK for operand in node.args[:3]):
                return self._decomposed(node, renewed, _attention_of_rank_four)
            if replacement is None:
                stays = self._stays(target) and not torch.is_autocast_enabled("cpu")  # which casts its operands
                return self._copied(node, renewed) if stays else self._decomposed(node, renewed, target)
            result = self._decomposed(node, renewed, replacement)
            new, old = (each.meta.get("val") if isinstance(each, Node) else None for each in (result, node))
            if not isinstance(new, torch.Tensor) or not isinstance(old, torch.Tensor):
                raise NotLocalError
            if new.dtype != old.dtype or list(new.shape) != list(old.shape):  # of the written memory
                raise NotLocalError
            return result
        if target is _NO_GRADIENTS:  # gradients do not matter here
            _enabled, body, *operands = node.args
            return self._inlined(renewed[body], [renewed[operand] for operand in operands])
        if target is _AUTOCAST:
            device, dtype, enabled, _cached, body, *operands = node.args
            with torch.autocast(device, dtype, enabled, cache_enabled=False):
                return self._inlined(renewed[body], [renewed[operand] for operand in operands])
        if isinstance(target, types.BuiltinFunctionType) or target in _SIZE_FUNCTIONS:
            return self._copied(node, renewed)  # arithmetic on sizes
        raise NotLocalError

    def _stays(self, target: Any) -> bool:
        """Return whether torch's `run_decompositions` keeps an operator."""
        if target is _COUNT:
            return True
        is_composite = target.has_kernel_for_dispatch_key(_COMPOSITE)
        return target not in self._table and (target in self._composite or not is_composite)

    def _copied(self, node: Any, renewed: Mapping[Any, Any]) -> Any:
        def operand(old: Any) -> Any:
            if not isinstance(renewed[old], Node):
                raise NotLocalError
            return renewed[old]

        size: Any = node.meta.get("val")
        if not isinstance(size, torch.SymInt) or node.op == "placeholder":
            return self._graph.node_copy(node, operand)
        if node.target is _COUNT:
            return self._count(operand(node.args[0]), node.args[0].meta["val"].shape, node)
        return self._size(size, lambda: self._graph.node_copy(node, operand), node)

    def _size(self, size: Any, make: Callable[[], Any], like: Any) -> Any:
        """Return the node that computes a size; it is created once."""
        formula = size.node.expr
        if formula not in self._sizes:
            self._sizes[formula] = make()
            self._sizes[formula].meta.update(like.meta, val=size)
        return self._sizes[formula]

    def _count(self, tensor: Any, shape: Sequence[int | torch.SymInt], like: Any) -> Any:
        """Return the number of elements as a product of sizes: the exporter has no operator for it."""
        value: Any = math.prod(size for size in shape if isinstance(size, int))
        product: Any = value
        for axis, size in enumerate(shape):
            if isinstance(size, torch.SymInt):
                value = value * size
                factors = product, self._size(size, partial(self._graph.call_function, _SIZE, (tensor, axis)), like)
                product = self._size(value, partial(self._graph.call_function, operator.mul, factors), like)
        return product

    def _decomposed(self, node: Any, renewed: Mapping[Any, Any], target: Any) -> Any:
        inputs = list(dict.fromkeys(node.all_input_nodes))

        def call(*values: Any) -> Any:
            operands = dict(zip(inputs, values, strict=True))
            args, kwargs = (_replaced(arguments, operands) for arguments in (node.args, node.kwargs))
            return target(*args, **kwargs)

        values = [operand.meta["val"] for operand in inputs]
        autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        places = {operand: f"%{index}" for index, operand in enumerate(inputs)}  # names of operands do not matter
        key = (target, autocast, repr(_replaced((node.args, node.kwargs), places)), *map(_description, values))
        traced = self._traced.get(key) or make_fx(call, decomposition_table=dict(self._rest))(*values)
        called = [new.target for new in traced.graph.nodes if is_overload(new.target)]
        if any(_READS_DATA.intersection(other.tags) for other in called):  # each call has a symbol of its own
            result = traced.graph.output_node().args[0]
            if isinstance(result, Node):  # later nodes refer to the symbols of the recorded value
                result.meta["val"] = node.meta.get("val")
        else:
            self._traced[key] = traced
        if not all(self._stays(other) and not other._schema.is_mutable for other in called):
            raise NotLocalError
        origin = {name: node.meta[name] for name in _ORIGIN if name in node.meta}
        for new in traced.graph.nodes:
            new.meta.update(origin)
        with torch.autocast("cpu", enabled=False):  # the casts are part of the decomposition
            return self._inlined(traced, [renewed[operand] for operand in inputs])

    def _inlined(self, module: Any, operands: Sequence[Any]) -> Any:
        """Copy the nodes of a subgraph into the new graph, and return its result."""
        renewed: dict[Any, Any] = {}
        waiting = iter(operands)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                renewed[node] = next(waiting)
            elif node.op == "output":
                return _replaced(node.args[0], renewed)
            else:
                renewed[node] = self._rewritten(node, renewed, module)
        raise NotLocalError


def _attention_of_rank_four(query: Any, key: Any, value: Any, mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Compute the attention with all leading dimensions merged into one: the exporter accepts only four."""

    def merged(tensor: Any) -> Any:
        while tensor is not None and tensor.dim() < _RANK:
            tensor = tensor.unsqueeze(0)
        return tensor if tensor is None else tensor.flatten(0, tensor.dim() - _RANK)

    shape = query.shape[:-1]
    mask = kwargs.pop("attn_mask", mask)
    if mask is not None:
        mask = mask.expand(*shape, key.shape[-2])
    return _ATTENTION(*map(merged, (query, key, value, mask)), *args, **kwargs).reshape(*shape, value.shape[-1])


def _replaced(value: Any, others: Mapping[Any, Any]) -> Any:
    def other(item: Any) -> Any:
        return others.get(item, item) if isinstance(item, Node) else item

    return map_aggregate(value, other)


def _description(value: Any) -> Any:
    """Return the properties of an operand that a decomposition may depend on."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return value.dtype, value.device, str(value.shape), str(value.stride()), str(value.storage_offset())
