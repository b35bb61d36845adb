"""Cuts one module out of a model as a model of its own: its nodes, the constants they need, and a typed boundary.

Which nodes belong, what becomes an input, and when a cut is widened is decision 0005. The model that is cut stays as it
is, and the weights stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import ModelError, UsageError
from sardonyx.ir import module_region
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_region import Flow
from sardonyx.ir.origins import write
from sardonyx.ir.scopes import bodies, label
from sardonyx.ir.shapes import expr
from sardonyx.provenance import ROOT, Hierarchy, module_of

_SLICING_SHAPE = 15  # the opset since which Shape can measure some of the dims


@dataclass(frozen=True, slots=True, eq=False)
class Extract:
    """A module as a model, and how it was cut."""

    model: ir.Model
    path: str  # the module that was cut out, after widening; marked where this is not its first call
    asked: str  # the module that was asked for
    call: int  # which call of that module
    calls: int  # how often it is called
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    straddling: tuple[str, ...]  # nodes that made the cut wider
    notes: tuple[str, ...]


class _Knowledge:
    """Types and shapes of a model's values, inferred when they are first asked for."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @functools.cached_property
    def facts(self) -> Facts:
        facts = Facts(self._model)
        facts.infer()
        return facts

    def dims(self, value: ir.Value) -> tuple[int | str | None, ...] | None:
        """What follows from the graph, and where that is silent what the file says."""
        said = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
        found = self.facts.shape(value)
        if found is None:
            return said
        follows = tuple(map(expr.declared, found))
        if said is None or len(said) != len(follows):
            return follows
        return tuple(other if dim is None else dim for dim, other in zip(follows, said, strict=True))


def extract(model: ir.Model, hierarchy: Hierarchy, path: str, *, call: int = 0, exact: bool = False) -> Extract:
    """The module at an instance path as a model of its own.

    Args:
        model: A sorted model whose nodes know their origins; it is not changed.
        hierarchy: What its tags say.
        path: The module's instance path; the empty path is the whole model.
        call: Which call of the module, where it was called more than once.
        exact: Refuse to cut a wider module out than was asked for.

    Raises:
        UsageError: The module was not called that often.
        ModelError: It owns no node, only the whole model contains it, or with `exact` a node does its work and that of
            others.
    """
    flow = Flow(model)
    calls = module_region.calls(flow, path)
    if call >= max(len(calls), 1):
        times = "once" if len(calls) < 2 else f"{len(calls)} times"
        raise UsageError(f"{path or 'the model'} has no call {call}: it was called {times}", hint="calls count from 0")
    notes = () if len(calls) < 2 else (f"{path} is called {len(calls)} times: this is call {call}",)
    place = calls[call] if calls else path
    asked = place
    place, inside, straddling = module_region.settle(flow, place, exact=exact)
    if straddling and module_region.is_whole(flow, inside):
        raise module_region.refusal(flow, asked, straddling)
    if not inside:
        raise ModelError(
            f"{path or 'the model'} owns no node of this model",
            hint="it only holds other modules or was never called; `sardonyx inspect` shows which modules own nodes",
        )
    calls = module_region.calls(flow, module_of(place))
    known = _Knowledge(model)
    slicing = model.opset_imports.get("", 0) >= _SLICING_SHAPE
    part = (
        module_region.bounded(flow, inside, known.dims, slicing=slicing)
        if place != ROOT
        else module_region.whole(model, flow)
    )
    made = _build(model, hierarchy, part, flow, place, known)
    return Extract(
        made,
        place,
        path,
        calls.index(place),
        len(calls),
        tuple(value.name or "" for value in made.graph.inputs),
        tuple(value.name or "" for value in made.graph.outputs),
        tuple(map(label, straddling)),
        notes,
    )


def _build(
    model: ir.Model, hierarchy: Hierarchy, part: module_region.Region, flow: Flow, place: str, known: _Knowledge
) -> ir.Model:
    """A model of copies of the nodes; tensors are shared with the source."""
    nodes = [node for node in flow.nodes if node in part.inside or node in part.repeated]
    read = dict.fromkeys(value for node in nodes for value in flow.reads[node])
    constants = [value for value in (*read, *part.outputs) if value.is_initializer()]
    measured = dict.fromkeys(value for node in part.stand_ins for value in flow.reads[node] if value not in part.inputs)
    graph = ir.GraphView(
        (*part.inputs, *measured),  # what is only measured leaves with its last reader
        part.outputs,
        nodes=nodes,
        initializers=list(dict.fromkeys(constants)),
        opset_imports=dict(model.opset_imports),
        name=".".join(filter(None, (model.graph.name, place))),
    ).clone()
    _measure_here(dict(zip(nodes, graph, strict=True)), dict(zip(part.inputs, graph.inputs, strict=False)), part)
    del graph.inputs[len(part.inputs) :]
    _declare(zip((*part.inputs, *part.outputs), (*graph.inputs, *graph.outputs), strict=True), model, known)
    made = ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=_functions(model, nodes),
        metadata_props=dict(model.metadata_props),
    )
    write(made, hierarchy)
    return made


def _measure_here(nodes: dict[ir.Node, ir.Node], inputs: dict[ir.Value, ir.Value], part: module_region.Region) -> None:
    """Let the copies of Shapes measure inputs of the cut instead of what is outside of it."""
    for node, stand_in in part.stand_ins.items():
        nodes[node].replace_input_with(0, inputs[stand_in.value])
        nodes[node].attributes.clear()
        if stand_in.sliced:
            nodes[node].attributes.add(ir.AttrInt64("start", stand_in.start))
            nodes[node].attributes.add(ir.AttrInt64("end", stand_in.end))


def _declare(boundary: Iterable[tuple[ir.Value, ir.Value]], model: ir.Model, known: _Knowledge) -> None:
    """Give every value of the new boundary its type and shape."""
    declared = {*model.graph.inputs, *model.graph.outputs}
    for value, copy in boundary:
        if value in declared and value.shape is not None:
            continue
        if value.type is None or isinstance(value.type, ir.TensorType):
            dtype = known.facts.dtype(value)
            if dtype is None:
                raise ModelError(
                    f"the type of '{value.name}' is not known, and it would be an input or output",
                    hint="cut a wider module out, or declare the type in the file",
                )
            copy.type = ir.TensorType(dtype)
        shape = known.dims(value)
        copy.shape = None if shape is None else ir.Shape(shape)


def _functions(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """Copies of the functions that these nodes call, and of those that they call in turn."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        waiting.extend(inner for _, body in bodies(node) for inner in body)
        function = model.functions.get(node.op_identifier())
        if function is not None and node.op_identifier() not in found:
            found[node.op_identifier()] = function
            waiting.extend(function)
    return [function.clone() for key, function in model.functions.items() if key in found]
