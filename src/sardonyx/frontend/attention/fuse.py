"""Rewrites every attention of a graph, spelled out by `decompose` or written by hand, into one call.

What the call cannot do the same stays as it is, and the record of the new module says why. It is the same but for
rounding, and for rows of which the mask leaves nothing: with a mask of -inf and a plain softmax these were NaN and are
0 now (with the softmax that `decompose` writes for `scaled_dot_product_attention` they were 0 before). With a mask of
large finite numbers they are the mean of the values before and after.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from torch import fx, nn
from torch.fx.graph_module import (
    _USER_PRESERVED_ATTRIBUTES_KEY,  # pyright: ignore[reportPrivateUsage]  # what torch's `deepcopy` keeps
)

from sardonyx.frontend.attention import roles
from sardonyx.frontend.attention.capture.graph_module import FrozenModule
from sardonyx.frontend.attention.fusion.examples import forget_examples, note_examples
from sardonyx.frontend.attention.fusion.metadata import erase_unread, hand_over, prune
from sardonyx.frontend.attention.fusion.plan import DropoutRate, Plan, plan
from sardonyx.frontend.attention.fusion.projections import pack, parallel
from sardonyx.frontend.attention.fusion.writing import WRITTEN_FOR, write_call
from sardonyx.frontend.attention.recognition.matches import Recognised, Refused
from sardonyx.frontend.attention.recognition.recognizer import survey
from sardonyx.frontend.attention.roles import decomposition_of
from sardonyx.frontend.tracing.torch_graphs import quoted_names

if TYPE_CHECKING:
    from sardonyx.frontend.inputs.example_resolution import Inputs

# What `fuse_attention` tells of what it did and of what it left alone.

_ATTRIBUTE = "sardonyx_fusion"  # a plain attribute: torch drops `meta` when a graph module is serialised


@dataclass(frozen=True, slots=True)
class Fused:
    """An attention that is one call now."""

    node: str  # of scaled_dot_product_attention, in the new graph
    softmax: str  # the node it had in the graph that was given
    notes: tuple[str, ...] = ()  # where it may differ from what it replaces


@dataclass(frozen=True, slots=True)
class Unfused:
    """A softmax that was left as it is."""

    softmax: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """Everything that was done; travels with the graph module, also through a file."""

    fused: tuple[Fused, ...]
    refused: tuple[Unfused, ...]
    packed: tuple[tuple[str, ...], ...] = ()  # names of the projections that became one, in the graph that was given


def attach(module: fx.GraphModule, fusion: Fusion) -> None:
    """Let the graph module carry it, also into its copies."""
    setattr(module, _ATTRIBUTE, fusion)
    module.meta.setdefault(_USER_PRESERVED_ATTRIBUTES_KEY, {})[_ATTRIBUTE] = fusion


def fusion_of(module: Any) -> Fusion | None:
    """What `fuse_attention` said of this graph module, if it made it."""
    return getattr(module, _ATTRIBUTE, None)


@quoted_names()
def fuse_attention(
    graph_module: fx.GraphModule,
    inputs: Inputs = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    pack_projections: bool = False,
) -> fx.GraphModule:
    """A module with the same weights in which every attention is one `scaled_dot_product_attention`.

    Projections of the same input whose weights are slices of one parameter become one.

    Args:
        graph_module: From `decompose`, `torch.fx.symbolic_trace` or `torch.export`; it is not changed.
        inputs: Example inputs: a tensor, positional ones, or a mapping by name. Only needed where the graph itself does
            not say enough of shapes and dtypes to prove that the call is the same; they are not computed with.
        kwargs: keyword inputs beside positional ones.
        pack_projections: Also make one of projections with weights of their own, which are put together at every call:
            faster only where an input has some thousand rows.

    Returns:
        A new graph module; `fusion_of` tells what was fused in it and what was not, and why.

    Raises:
        UsageError: the module does not run on the example inputs.
    """
    made = _copied(graph_module)
    prune(made.graph)
    if inputs is not None or kwargs:
        from sardonyx.frontend.inputs.example_resolution import (
            call_arguments,  # only here: a graph that says enough needs none
        )

        note_examples(made, *call_arguments(inputs, kwargs))
    surveyed = survey(made.graph)
    outcomes = [_outcome(made, found) for found in surveyed]
    packed = _packed(made.graph, surveyed, separate=pack_projections)
    forget_examples(made.graph)
    made.graph.lint()
    made.recompile()
    fused = tuple(each for each in outcomes if isinstance(each, Fused))
    attach(made, Fusion(fused, tuple(each for each in outcomes if isinstance(each, Unfused)), packed))
    _keep_decomposition(graph_module, made)
    return made


def _outcome(module: fx.GraphModule, found: Recognised | Refused) -> Fused | Unfused:
    decided = found.reason if isinstance(found, Refused) else plan(found)
    if isinstance(found, Refused) or isinstance(decided, str):
        return Unfused(found.softmax.name, str(decided))
    return _fuse(module, found, decided)


def _packed(graph: fx.Graph, surveyed: list[Recognised | Refused], *, separate: bool) -> tuple[tuple[str, ...], ...]:
    groups = [group for found in surveyed if isinstance(found, Recognised) for group in parallel(found)]
    return tuple(tuple(node.name for node in group) for group in groups if pack(graph, group, separate=separate))


def _keep_decomposition(given: fx.GraphModule, made: fx.GraphModule) -> None:
    """What `decompose` said holds for the nodes that are left; a new one belongs where it was written."""
    origins = {node.name: node.meta.pop(WRITTEN_FOR, node.name) for node in made.graph.nodes}
    told = decomposition_of(given)
    if told is not None:
        modules = {name: told.modules[origin] for name, origin in origins.items() if origin in told.modules}
        primitives = {name: told.primitives[name] for name in origins if name in told.primitives}
        roles.attach(made, replace(told, modules=modules, primitives=primitives))


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A module with a graph of its own and the very same parameters, buffers and submodules."""
    graph = copy.deepcopy(module.graph)
    if isinstance(module, FrozenModule):
        made = module.like(graph)
        made.meta = _own_meta(module)
        return made
    names = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    names |= {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    held = {name: attrgetter(name)(module) for name in sorted(names, key=lambda name: name.count("."))}
    made = fx.GraphModule(held, graph, type(module).__name__)
    for name, part in cast("Iterator[tuple[str, nn.Module]]", made.named_modules()):
        if type(part) is nn.Module:
            part.training = module.get_submodule(name).training
    made.training = module.training
    made.meta = _own_meta(module)
    return made


def _own_meta(module: fx.GraphModule) -> dict[str, Any]:
    """What the module carries, in tables of its own."""
    return {key: dict(cast(Any, value)) if isinstance(value, dict) else value for key, value in module.meta.items()}


def _fuse(module: fx.GraphModule, found: Recognised, decided: Plan) -> Fused:
    graph, rate = module.graph, cast(Any, decided.dropout_p)
    if decided.dropout_module is not None:
        name = f"{decided.dropout_module.replace('.', '_')}_rate"
        module.add_module(name, DropoutRate(decided.dropout_p, module.get_submodule(decided.dropout_module).training))
        with graph.inserting_before(found.mix):
            rate = graph.call_module(name)
            rate.meta[WRITTEN_FOR] = found.mix.name
    call, result = write_call(graph, found, decided, rate)
    hand_over(found)
    found.mix.replace_all_uses_with(result)
    erase_unread(graph, found.mix)
    if decided.dropout_module is not None and not graph.find_nodes(op="call_module", target=decided.dropout_module):
        module.delete_submodule(decided.dropout_module)
    return Fused(call.name, found.softmax.name, tuple(decided.notes))
