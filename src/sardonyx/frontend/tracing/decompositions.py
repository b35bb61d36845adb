"""Decompositions of an exported program, node by node.

torch's own `run_decompositions` traces the whole program twice more, with symbolic sizes. That takes longer than the
export itself, and replaces a handful of operators in every layer. Here an operator that stays is the same node
afterwards, and one that does not is traced by itself, on the values that the export noted. An operator that writes in
place gives way to the one that does not, where nothing else looks at the memory. What cannot be taken apart alone
(control flow, writes through views, constants made on the way) is left to torch.
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

# Which nodes of an exported graph share memory, so that a write in place can become a new value.

_UNDECLARED = torch.Tag.maybe_aliasing_or_mutating


class NotLocalError(Exception):
    """Something that only a trace of the whole program takes apart."""


def is_overload(target: object) -> bool:
    """Whether a node calls an operator of torch."""
    return isinstance(target, torch._ops.OpOverload)  # pyright: ignore[reportPrivateUsage]  # has no public name


class Memory:
    """What is known of the nodes seen so far.

    A node owns its memory where an operator made it anew. Once a view of it was taken, a write could be seen through
    the view, and nothing more is known of it.
    """

    def __init__(self) -> None:
        self._owners: dict[Any, Any] = {}  # a node, or what was written into its memory -> that node
        self._shared: set[Any] = set()

    @staticmethod
    def check(graph: Graph) -> None:
        """Look at a whole graph.

        Raises:
            NotLocalError: It writes to memory that something else may look at.
        """
        memory = Memory()
        for node in graph.nodes:
            if is_overload(node.target):
                memory.see(node)
                memory.without_writing(node)
            elif node.op == "call_function":
                memory._shared.update(node.all_input_nodes)

    def see(self, node: Any) -> None:
        """Take note of a node that calls an operator of torch; each once, in order."""
        schema = _schema(node)
        if schema.is_mutable:
            owner = self._owners.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
            if owner is not None:
                self._owners[node] = owner
        elif _may_alias(node.target):
            self._shared.update(self._owners.get(each, each) for each in node.all_input_nodes)
        else:
            self._owners[node] = node

    def without_writing(self, node: Any) -> Any:
        """The operator that computes what the node writes; None for a node that writes nothing.

        Raises:
            NotLocalError: Something else may look at the memory, or there is no such operator.
        """
        schema = _schema(node)
        if not schema.is_mutable:
            return None
        owner, target = self._owners.get(node), node.target
        packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::").removesuffix("_"), None)
        instead = getattr(packet, target._overloadname, None)
        written = [each for each in schema.arguments if each.alias_info is not None]
        if owner is None or owner in self._shared or instead is None or written != [schema.arguments[0]]:
            raise NotLocalError
        if _may_alias(instead):
            raise NotLocalError
        return instead

    def written(self, node: Any) -> list[Any]:
        """All nodes whose memory a node has written to."""
        if not is_overload(node.target) or not _schema(node).is_mutable:
            return []
        owner = self._owners[node]
        return [each for each, its in self._owners.items() if its is owner]


def _schema(node: Any) -> Any:
    target: Any = node.target
    return target._schema


def _may_alias(target: Any) -> bool:
    """Whether a result may be memory of an operand; some operators do not declare it, as dropout that drops nothing."""
    values = (*target._schema.arguments, *target._schema.returns)
    return any(each.alias_info is not None for each in values) or _UNDECLARED in target.tags


Table = Mapping[Any, Callable[..., Any]]
_ORIGIN = ("nn_module_stack", "stack_trace", "source_fn_stack", "torch_fn")  # where the export saw a node
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore[reportPrivateUsage]  # no public name
_SIZE = torch.ops.aten.sym_size.int
_COUNT = torch.ops.aten.sym_numel.default
_SIZE_FUNCTIONS: Any = (torch.sym_max, torch.sym_min)  # pyright: ignore[reportUnknownMemberType]
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_RANK = 4
_NO_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled


def decompose_locally(program: torch.export.ExportedProgram) -> None:
    """Let the program decompose itself node by node when it is asked to, and torch's way where that is not possible."""
    untyped: Any = program  # torch's own types have gaps
    wholly = untyped.run_decompositions

    def run_decompositions(table: Table) -> torch.export.ExportedProgram:
        try:
            Memory.check(program.graph)
            with _composites(table) as (composite, rest), torch.no_grad(), enable_python_dispatcher(), _mode(program):
                graph = _Rewrite(program.graph_module, table, composite, rest).run()
        except NotLocalError:
            return wholly(dict(table))
        _adopt(program, graph)
        return program

    untyped.run_decompositions = run_decompositions


def _mode(program: torch.export.ExportedProgram) -> contextlib.AbstractContextManager[Any]:
    """The mode of the values that the export noted: what a decomposition makes itself, a range, belongs to them."""
    noted = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    return detect_fake_mode(noted) or contextlib.nullcontext()


@contextlib.contextmanager
def _composites(table: Table) -> Generator[tuple[Table, Table]]:
    """Let composite operators do what torch's own way lets them do: those that the exporter knows stay in one piece.

    Yields what becomes of composite operators, and the decompositions of the others.
    """
    from torch.export import exported_program

    split: Any = getattr(exported_program, "_split_decomp_table_to_cia_and_python_decomp", None)
    overridden: Any = getattr(exported_program, "_override_composite_implicit_decomp", None)
    if split is None or overridden is None:  # another version of torch
        raise NotLocalError
    composite, rest = split(dict(table))
    with overridden(composite):
        yield composite, rest


def _adopt(program: torch.export.ExportedProgram, graph: Any) -> None:
    """Put a graph of the same interface in the place of the program's."""
    before, after = ([*each.nodes][-1].args[0] for each in (program.graph, graph))
    names = {old.name: new.name for old, new in zip(before, after, strict=True) if isinstance(old, Node)}
    for spec in program.graph_signature.output_specs:
        if (name := getattr(spec.arg, "name", None)) in names:
            spec.arg.name = names[name]
    graph.eliminate_dead_code()
    program.graph_module.graph = graph
    program.graph_module.delete_all_unused_submodules()


class _Rewrite:
    """One graph on its way to another that has no operator of the table in it."""

    def __init__(self, module: Any, table: Table, composite: Table, rest: Table) -> None:
        self._module, self._table, self._composite, self._rest = module, table, composite, rest
        self._graph: Any = Graph(owning_module=module)
        self._sizes: dict[Any, Any] = {}
        self._traced: dict[Any, Any] = {}  # what equal operators on equal operands are made of
        self._memory = Memory()

    def run(self) -> Any:
        """The new graph.

        Raises:
            NotLocalError: For anything that cannot be taken apart by itself.
        """
        known: dict[Any, Any] = {}
        for node in self._module.graph.nodes:
            known[node] = self._taken(node, known, self._module)
            for other in self._memory.written(node):
                known[other] = known[node]
        return self._graph

    def _taken(self, node: Any, known: Mapping[Any, Any], home: Any) -> Any:
        """What stands for a node of `home` in the new graph: a node, or several in the structure that it returns."""
        if node.op in ("placeholder", "output"):
            return self._copied(node, known)
        if node.op == "get_attr" and isinstance(child := getattr(home, str(node.target)), GraphModule):
            return child
        target: Any = node.target
        if node.op != "call_function":
            raise NotLocalError
        if target is operator.getitem and not isinstance(known[node.args[0]], Node):
            return known[node.args[0]][node.args[1]]
        if is_overload(target):
            self._memory.see(node)
            instead = self._memory.without_writing(node)
            if _is_attention_of_another_rank(node):
                return self._decomposed(node, known, _attention_of_rank_four)
            if instead is None:
                return self._copied(node, known) if self._stays(target) else self._decomposed(node, known, target)
            return _of_the_same_type(self._decomposed(node, known, instead), node)
        if target is _NO_GRADIENTS:  # they mean nothing here
            _enabled, body, *given = node.args
            return self._inlined(known[body], [known[each] for each in given])
        if isinstance(target, types.BuiltinFunctionType) or target in _SIZE_FUNCTIONS:
            return self._copied(node, known)  # arithmetic on sizes
        raise NotLocalError

    def _stays(self, target: Any) -> bool:
        """Whether torch's own way leaves an operator as it is."""
        if target is _COUNT:
            return True
        is_composite = target.has_kernel_for_dispatch_key(_COMPOSITE)
        return target not in self._table and (target in self._composite or not is_composite)

    def _copied(self, node: Any, known: Mapping[Any, Any]) -> Any:
        def renewed(each: Any) -> Any:
            if not isinstance(known[each], Node):
                raise NotLocalError
            return known[each]

        size: Any = node.meta.get("val")
        if not isinstance(size, torch.SymInt) or node.op == "placeholder":
            return self._graph.node_copy(node, renewed)
        if node.target is _COUNT:
            return self._count(renewed(node.args[0]), node.args[0].meta["val"].shape, node)
        return self._size(size, lambda: self._graph.node_copy(node, renewed), node)

    def _size(self, size: Any, make: Callable[[], Any], like: Any) -> Any:
        """A size, computed once: the node that has it, or a new one."""
        formula = size.node.expr
        if formula not in self._sizes:
            self._sizes[formula] = make()
            self._sizes[formula].meta.update(like.meta, val=size)
        return self._sizes[formula]

    def _count(self, tensor: Any, shape: Sequence[int | torch.SymInt], like: Any) -> Any:
        """The number of elements as a product of sizes: the exporter has no operator for it."""
        value: Any = math.prod(size for size in shape if isinstance(size, int))
        product: Any = value
        for axis, size in enumerate(shape):
            if isinstance(size, torch.SymInt):
                value = value * size
                factors = product, self._size(size, partial(self._graph.call_function, _SIZE, (tensor, axis)), like)
                product = self._size(value, partial(self._graph.call_function, operator.mul, factors), like)
        return product

    def _decomposed(self, node: Any, known: Mapping[Any, Any], target: Any) -> Any:
        """The operators that a node is made of."""
        inputs = list(dict.fromkeys(node.all_input_nodes))

        def call(*values: Any) -> Any:
            given = dict(zip(inputs, values, strict=True))
            args, kwargs = (_replaced(each, given) for each in (node.args, node.kwargs))
            return target(*args, **kwargs)

        values = [each.meta["val"] for each in inputs]
        key = (target, _signature(node, inputs), *map(_description, values))
        if key not in self._traced:
            self._traced[key] = make_fx(call, decomposition_table=dict(self._rest))(*values)
        traced = self._traced[key]
        if any(is_overload(each.target) and not self._is_final(each.target) for each in traced.graph.nodes):
            raise NotLocalError
        origin = {name: node.meta[name] for name in _ORIGIN if name in node.meta}
        for each in traced.graph.nodes:
            each.meta.update(origin)
        return self._inlined(traced, [known[each] for each in inputs])

    def _is_final(self, target: Any) -> bool:
        return self._stays(target) and not target._schema.is_mutable  # pyright: ignore[reportPrivateUsage]

    def _inlined(self, module: Any, given: Sequence[Any]) -> Any:
        """The nodes of a part of the graph, in the place of the node that stands for it."""
        known: dict[Any, Any] = {}
        waiting = iter(given)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(waiting)
            elif node.op == "output":
                return _replaced(node.args[0], known)
            else:
                known[node] = self._taken(node, known, module)
        raise NotLocalError


def _is_attention_of_another_rank(node: Any) -> bool:
    """Whether the exporter refuses an attention: it takes batch, heads, positions and width, no more and no less."""
    return node.target is _ATTENTION and any(each.meta["val"].dim() != _RANK for each in node.args[:3])


def _attention_of_rank_four(query: Any, key: Any, value: Any, mask: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The same attention with all leading dimensions in one."""
    shape = query.shape[:-1]
    mask = kwargs.pop("attn_mask", mask)
    if mask is not None:
        mask = mask.expand(*shape, key.shape[-2])
    four: Any = [each if each is None else _of_rank_four(each) for each in (query, key, value, mask)]
    return _ATTENTION(*four, *args, **kwargs).reshape(*shape, value.shape[-1])


def _of_rank_four(tensor: Any) -> Any:
    while tensor.dim() < _RANK:
        tensor = tensor.unsqueeze(0)
    return tensor.flatten(0, tensor.dim() - _RANK)


def _replaced(value: Any, others: Mapping[Any, Any]) -> Any:
    """A nested value with others in the places of some nodes."""

    def other(each: Any) -> Any:
        return others.get(each, each) if isinstance(each, Node) else each

    return map_aggregate(value, other)


def _signature(node: Any, inputs: Sequence[Any]) -> str:
    """How an operator is called, whatever its operands are named."""
    places = {each: f"%{place}" for place, each in enumerate(inputs)}
    return repr(_replaced((node.args, node.kwargs), places))


def _description(value: Any) -> Any:
    """All that a decomposition may depend on in an operand."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return value.dtype, value.device, str(value.shape), str(value.stride()), str(value.storage_offset())


def _of_the_same_type(made: Any, node: Any) -> Any:
    """What was made in place of a write; the write would have kept the type and shape that the memory has."""
    new, old = (each.meta.get("val") for each in (made, node)) if isinstance(made, Node) else (None, None)
    if not isinstance(new, torch.Tensor) or not isinstance(old, torch.Tensor):
        raise NotLocalError
    if new.dtype != old.dtype or list(new.shape) != list(old.shape):
        raise NotLocalError
    return made
