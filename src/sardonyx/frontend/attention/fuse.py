"""Rewrites every attention of a graph, decomposed or written by hand, into one call.

An attention that the call cannot replace stays, and the record of the new module says why. Results are equal up to
rounding, except in fully masked rows: with a mask of -inf and a plain softmax these were NaN and are now 0 (with the
softmax that `decompose` writes for `scaled_dot_product_attention` they were 0 before). With a mask of large finite
numbers they are the mean of the values before and after.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.graph import CodeGen
from torch.fx.node import map_aggregate

from sardonyx.errors import UsageError
from sardonyx.frontend.attention import roles
from sardonyx.frontend.attention.fusion import (
    WRITTEN_FOR,
    CannotFuse,
    DropoutRate,
    FusionPlan,
    Writer,
    erase_unread,
    plan_fusion,
    prune,
    redirect_metadata,
    write_call,
)
from sardonyx.frontend.attention.graph_calls import (
    EXAMPLE,
    GraphCall,
    module_of,
    rank_of,
    read,
    same_sizes,
    shape_of,
    writes_in_place,
)
from sardonyx.frontend.attention.recognizer import survey
from sardonyx.frontend.attention.roles import AttentionMatch, NotAttention, Role, decomposition_of
from sardonyx.frontend.attention.torch_export import FrozenModule
from sardonyx.frontend.tracing.module_tree import quoted_names

if TYPE_CHECKING:
    from sardonyx.frontend.inputs.examples import Inputs


_ATTRIBUTE = "sardonyx_fusion"  # a plain attribute: torch drops `meta` when a graph module is serialised


class Fused(Struct, frozen=True):
    """An attention that was replaced by one call."""

    node: str  # of scaled_dot_product_attention, in the new graph
    softmax: str  # its softmax in the original graph
    notes: tuple[str, ...] = ()  # how the result may differ


class Unfused(Struct, frozen=True):
    """A softmax that was not fused."""

    softmax: str
    reason: str


class Fusion(Struct, frozen=True):
    """The result of `fuse_attention`; stored in the graph module, also when pickled."""

    fused: tuple[Fused, ...]
    refused: tuple[Unfused, ...]
    packed: tuple[tuple[str, ...], ...] = ()  # groups of merged projections, by their names in the original graph


def fusion_of(module: Any) -> Fusion | None:
    """Return the record of a graph module from `fuse_attention`, or None."""
    return getattr(module, _ATTRIBUTE, None)


@quoted_names()
def fuse_attention(
    graph_module: fx.GraphModule,
    inputs: Inputs = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    pack_projections: bool = False,
) -> fx.GraphModule:
    """Return a module with the same weights in which every attention is one `scaled_dot_product_attention`.

    Projections of the same input whose weights are slices of one parameter are merged.

    Args:
        graph_module: From `decompose`, `torch.fx.symbolic_trace` or `torch.export`. It is not changed.
        inputs: Example inputs: a tensor, a sequence of positional inputs, or a mapping by name. Only needed if the
            graph lacks shapes and dtypes to show that the call is equivalent; nothing is computed on them.
        kwargs: Keyword inputs in addition to positional ones.
        pack_projections: Also merge projections with separate weights, which are concatenated at every call. This is
            faster only for inputs with thousands of rows.

    Returns:
        A new graph module; `fusion_of` returns what was fused in it, what was not, and why.

    Raises:
        UsageError: If the module does not run on the example inputs.
    """
    result = _copied(graph_module)
    prune(result.graph)
    if inputs is not None or kwargs:
        from sardonyx.frontend.inputs.examples import call_arguments  # rarely needed

        record_examples(result, *call_arguments(inputs, kwargs))
    surveyed = survey(result.graph)
    outcomes: list[Fused | Unfused] = []
    for site in surveyed:
        if isinstance(site, NotAttention):
            outcomes.append(Unfused(site.softmax.name, site.reason))
            continue
        try:
            outcomes.append(_fuse(result, site, plan_fusion(site)))
        except CannotFuse as reason:
            outcomes.append(Unfused(site.softmax.name, str(reason)))
    groups = [group for site in surveyed if isinstance(site, AttentionMatch) for group in _parallel(site)]
    packed = tuple(
        tuple(node.name for node in group) for group in groups if _pack(result.graph, group, separate=pack_projections)
    )
    origins: dict[str, str] = {}  # a new node gets the module of the one it replaces
    for node in result.graph.nodes:
        origins[node.name] = node.meta.pop(WRITTEN_FOR, node.name)
        node.meta.pop(EXAMPLE, None)
    result.graph.lint()
    result.recompile()
    fused = tuple(outcome for outcome in outcomes if isinstance(outcome, Fused))
    refused = tuple(outcome for outcome in outcomes if isinstance(outcome, Unfused))
    roles.set_attribute(result, _ATTRIBUTE, Fusion(fused, refused, packed))
    if (before := decomposition_of(graph_module)) is not None:
        modules = {name: before.modules[origin] for name, origin in origins.items() if origin in before.modules}
        primitives = {name: before.primitives[name] for name in origins if name in before.primitives}
        roles.attach(result, replace(before, modules=modules, primitives=primitives))
    return result


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a copied graph and the same parameters, buffers and submodules."""
    graph = copy.deepcopy(module.graph)
    if isinstance(module, FrozenModule):
        copied: fx.GraphModule = module.like(graph)
    else:
        names = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
        names |= {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        values = {name: operator.attrgetter(name)(module) for name in sorted(names, key=lambda name: name.count("."))}
        copied = fx.GraphModule(values, graph, type(module).__name__)
        for name, part in cast("Iterator[tuple[str, nn.Module]]", copied.named_modules()):
            if type(part) is nn.Module:
                part.training = module.get_submodule(name).training
        copied.training = module.training
    copied.meta = {key: dict(cast(Any, meta)) if isinstance(meta, dict) else meta for key, meta in module.meta.items()}
    return copied


def _fuse(module: fx.GraphModule, attention: AttentionMatch, plan: FusionPlan) -> Fused:
    graph, rate = module.graph, cast(Any, plan.dropout_p)
    if plan.dropout_module is not None:
        name = f"{plan.dropout_module.replace('.', '_')}_rate"
        module.add_module(name, DropoutRate(plan.dropout_p, module.get_submodule(plan.dropout_module).training))
        with graph.inserting_before(attention.mix):
            rate = graph.call_module(name)
            rate.meta[WRITTEN_FOR] = attention.mix.name
    call, result = write_call(graph, attention, plan, rate)
    redirect_metadata(attention)
    attention.mix.replace_all_uses_with(result)
    erase_unread(graph, attention.mix)
    if plan.dropout_module is not None and not graph.find_nodes(op="call_module", target=plan.dropout_module):
        module.delete_submodule(plan.dropout_module)
    return Fused(call.name, attention.softmax.name, tuple(plan.notes))


# Runs a graph on fake tensors to find the shape and dtype of every value. No weight is copied or read.


def record_examples(module: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Record in the graph the value of every node for these inputs.

    Raises:
        UsageError: If the graph does not run on them.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        try:
            flat = (
                module.graph.process_inputs(*args, **kwargs)
                if type(module.graph._codegen) is not CodeGen  # pyright: ignore[reportPrivateUsage]  # it takes trees
                else _in_order(module, args, kwargs)
            )
            faked = map_aggregate(flat, lambda each: mode.from_tensor(each) if isinstance(each, torch.Tensor) else each)
            _Recorder(module, garbage_collect_values=False).run(*cast(Any, faked), enable_io_processing=False)
        except Exception as error:  # the graph is the user's and may raise anything
            message = str(error).splitlines()[0] if str(error) else repr(error)
            raise UsageError(
                f"the graph does not run on the example inputs: {message}",
                hint="pass the inputs that the graph module takes",
            ) from error


def _in_order(module: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    values = list(args)
    for node in [*module.graph.find_nodes(op="placeholder")][len(values) :]:
        if str(node.target) in kwargs:
            values.append(kwargs[str(node.target)])
        elif node.args:
            values.append(node.args[0])
        else:
            raise TypeError(f"the input '{node.target}' is missing")
    return values


class _Recorder(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)):
            n.meta[EXAMPLE] = result
        return result


# Merge linear layers of one attention that read the same input.
#
#     linear(x, Wq, bq), linear(x, Wk, bk), linear(x, Wv, bv)  =>  split(linear(x, W, b))
#
# If the weights are slices of one parameter, W is that parameter. Otherwise W is concatenated at every call: training
# still works, but for small batches it costs more than it saves, so it is only done on request.


class _Slice(NamedTuple):
    """Rows of a parameter."""

    parameter: str
    start: int
    end: int
    source: fx.Node


def _parallel(attention: AttentionMatch) -> list[list[fx.Node]]:
    """Return the groups of projections that read the same input, in the order query, key, value."""
    by_input: dict[Any, list[fx.Node]] = {}
    for role in (Role.PROJECT_Q, Role.PROJECT_K, Role.PROJECT_V):
        for node in sorted(node for node, its_role in attention.roles.items() if its_role is role):
            call = read(node, "linear")
            if call is not None and all(_accepts_strides(user, node) for user in node.users):
                by_input.setdefault(call.get("x"), []).append(node)
    return [nodes for nodes in by_input.values() if len(nodes) > 1]


def _pack(graph: fx.Graph, nodes: Sequence[fx.Node], *, separate: bool) -> bool:
    """Merge projections if their weights are adjacent slices, or if `separate` ones may be concatenated."""
    first = min(nodes)
    writer, calls = Writer(graph, first), [cast(GraphCall, read(node)) for node in nodes]
    slices = [_slice(call.get("weight")) for call in calls]
    if None not in slices:
        calls = [call for _, call in sorted(zip(slices, calls, strict=True), key=operator.itemgetter(0))]
    weights, biases = ([call.get(name) for call in calls] for name in ("weight", "bias"))
    rows, bias_rows, unbiased = _joined(weights), _joined(biases), not any(biases)
    if rows is not None and (unbiased or (bias_rows is not None and bias_rows[1] == rows[1])):
        sizes, weight = rows[1], _written(writer, rows[0])
        bias = None if bias_rows is None else _written(writer, bias_rows[0])
    elif separate and (parts := _parts(graph, nodes, first)) is not None:
        sizes = [cast("tuple[Any, ...]", shape_of(weight))[0] for weight, _ in parts]
        weight = writer.write("cat", [weight for weight, _ in parts])
        added = [bias for _, bias in parts if bias is not None]
        bias = writer.write("cat", added) if added else None
    else:
        return False
    pieces = writer.write("split", writer.write("linear", calls[0].get("x"), weight, bias), sizes, -1)
    for index, call in enumerate(calls):
        call.node.replace_all_uses_with(writer.call(operator.getitem, pieces, index))
    for call in calls:
        erase_unread(graph, call.node)
    return True


def _accepts_strides(user: fx.Node, node: fx.Node) -> bool:
    """Return whether the user accepts a tensor with non-contiguous rows; a view may not."""
    call = read(user)
    if call is None or writes_in_place(user):
        return False
    if call.name != "view" or call.target == "reshape":
        return True
    old, new = shape_of(node), shape_of(user)
    if old is not None and new is not None:
        return same_sizes(old[:-1], new[:-2]) or same_sizes(old[:-1], new[:-1])
    return False


def _slice(node: Any) -> _Slice | None:
    """Return the rows of a parameter that a `narrow` node reads, or None."""
    call = read(node)
    if call is None or call.target != "narrow" or not isinstance(call.get("x"), fx.Node):
        return None
    numbers: list[Any] = list(call.node.args[1:])
    source: fx.Node = call.get("x")
    if source.op != "get_attr" or len(numbers) != 3 or numbers[0] != 0:
        return None
    return _Slice(str(source.target), int(numbers[1]), int(numbers[1]) + int(numbers[2]), source)


def _joined(nodes: Sequence[Any]) -> tuple[_Slice, list[int]] | None:
    """Return adjacent slices of one parameter as one slice, with their sizes; None for anything else."""
    slices = [each for each in map(_slice, nodes) if each is not None]
    pairs = itertools.pairwise(slices)
    if len(slices) < len(nodes) or any((a.parameter, a.end) != (b.parameter, b.start) for a, b in pairs):
        return None
    return slices[0]._replace(end=slices[-1].end), [each.end - each.start for each in slices]


def _written(writer: Writer, rows: _Slice) -> fx.Node:
    shape = shape_of(rows.source)
    if shape is not None and rows.start == 0 and rows.end == shape[0]:
        return rows.source
    return writer.write("narrow", rows.source, 0, rows.start, rows.end - rows.start)


def _parts(graph: fx.Graph, nodes: Sequence[fx.Node], first: fx.Node) -> list[tuple[fx.Node, fx.Node | None]] | None:
    """Return weight and bias of each as nodes before the first; None if one is computed later."""
    parts: list[tuple[fx.Node, fx.Node | None]] = []
    with graph.inserting_before(first):
        for node in nodes:
            call: Any = read(node)
            module = module_of(node)
            if isinstance(module, nn.Linear):
                biased = cast(Any, module.bias) is not None  # torch declares that there always is one
                bias = graph.get_attr(f"{node.target}.bias") if biased else None
                parts.append((graph.get_attr(f"{node.target}.weight"), bias))
            else:
                parts.append((call.get("weight"), call.get("bias")))
    are_parameters = all(weight.op == "get_attr" and (bias is None or bias.op == "get_attr") for weight, bias in parts)
    are_before = all(part is None or part < first for pair in parts for part in pair)
    are_alike = len({bias is None for _, bias in parts}) == 1
    return parts if are_parameters and are_before and are_alike and rank_of(parts[0][0]).least == 2 else None
