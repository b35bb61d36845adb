"""Rewrites every attention of a graph, spelled out by `decompose` or written by hand, into one call.

What the call cannot do the same stays as it is, and the record of the new module says why. It is the same but for
rounding, and for rows of which the mask leaves nothing: with a mask of -inf and a plain softmax these were NaN and are
0 now (with the softmax that `decompose` writes for `scaled_dot_product_attention` they were 0 before). With a mask of
large finite numbers they are the mean of the values before and after.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import fx, nn

from sardonyx.attention.frozen import FrozenModule
from sardonyx.attention.fusion.examples import forget_examples, note_examples
from sardonyx.attention.fusion.metadata import erase_unread, hand_over, prune
from sardonyx.attention.fusion.plan import Plan, plan
from sardonyx.attention.fusion.rate import DropoutRate
from sardonyx.attention.fusion.record import Fused, Fusion, Unfused, attach
from sardonyx.attention.fusion.writing import write_call
from sardonyx.attention.recognise import survey
from sardonyx.attention.recognition.found import Recognised, Refused


def fuse_attention(
    graph_module: fx.GraphModule, example_inputs: Any = None, *, kwargs: Mapping[str, Any] | None = None
) -> fx.GraphModule:
    """A module with the same weights in which every attention is one `scaled_dot_product_attention`.

    Args:
        graph_module: From `decompose`, `torch.fx.symbolic_trace` or `torch.export`; it is not changed.
        example_inputs: A tensor or a tuple of what the module takes. Only needed where the graph itself does not say
            enough of shapes and dtypes to prove that the call is the same; they are not computed with.
        kwargs: More of them, by name.

    Returns:
        A new graph module; `fusion_of` tells what was fused in it and what was not, and why.

    Raises:
        UsageError: the module does not run on the example inputs.
    """
    made = _copied(graph_module)
    prune(made.graph)
    if example_inputs is not None or kwargs:
        note_examples(made, _arguments(example_inputs), kwargs or {})
    fused: list[Fused] = []
    refused: list[Unfused] = []
    for found in survey(made.graph):
        decided = found.reason if isinstance(found, Refused) else plan(found)
        if isinstance(found, Refused) or isinstance(decided, str):
            refused.append(Unfused(found.softmax.name, str(decided)))
        else:
            fused.append(_fuse(made, found, decided))
    forget_examples(made.graph)
    made.graph.lint()
    made.recompile()
    attach(made, Fusion(tuple(fused), tuple(refused)))
    return made


def _arguments(example_inputs: Any) -> tuple[Any, ...]:
    if example_inputs is None:
        return ()
    return tuple(cast(Any, example_inputs)) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)


def _copied(module: fx.GraphModule) -> fx.GraphModule:
    """A module with a graph of its own and the very same parameters, buffers and submodules."""
    graph = copy.deepcopy(module.graph)
    if isinstance(module, FrozenModule):
        return module.like(graph)
    names = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    names |= {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    held = {name: _attribute(module, name) for name in sorted(names, key=lambda name: name.count("."))}
    made = fx.GraphModule(held, graph, type(module).__name__)
    for name, part in cast("Iterator[tuple[str, nn.Module]]", made.named_modules()):
        if type(part) is nn.Module:
            part.training = module.get_submodule(name).training
    made.training = module.training
    return made


def _attribute(module: nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _fuse(module: fx.GraphModule, found: Recognised, decided: Plan) -> Fused:
    graph, rate = module.graph, cast(Any, decided.dropout_p)
    if decided.dropout_module is not None:
        name = f"{decided.dropout_module.replace('.', '_')}_rate"
        module.add_module(name, DropoutRate(decided.dropout_p, module.get_submodule(decided.dropout_module).training))
        with graph.inserting_before(found.mix):
            rate = graph.call_module(name)
    call, result = write_call(graph, found, decided, rate)
    hand_over(found)
    found.mix.replace_all_uses_with(result)
    erase_unread(graph, found.mix)
    return Fused(call.name, found.softmax.name, tuple(decided.notes))
