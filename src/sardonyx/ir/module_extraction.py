"""Extract one module of a model as a separate model: its nodes, the constants they need, and typed inputs and outputs.

Decision 0005 describes which nodes belong to it, what becomes an input, and when the extracted module is widened. The
source model is not changed, and the weights are shared with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import ModelError, UsageError
from sardonyx.ir import module_region
from sardonyx.ir.facts import Facts
from sardonyx.ir.io import unmodeled_fields
from sardonyx.ir.module_region import Flow
from sardonyx.ir.origins import write
from sardonyx.ir.scopes import bodies, declared_shape, label
from sardonyx.ir.shapes import expr
from sardonyx.provenance import ROOT, Hierarchy, module_of

_SLICING_SHAPE = 15  # the opset since which Shape can return a slice of the dimensions


class Extract(Struct, frozen=True, eq=False):
    """A module as a model, and how it was extracted."""

    model: ir.Model
    path: str  # the extracted module, after widening; marked if this is not its first call
    asked: str  # the requested module
    call: int  # which call of that module
    calls: int  # how often it is called
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    straddling: tuple[str, ...]  # nodes because of which it was widened
    notes: tuple[str, ...]


class _InferredTypes:
    """The types and shapes of the values of a model, inferred at the first query."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @functools.cached_property
    def facts(self) -> Facts:
        facts = Facts(self._model)
        facts.infer()
        return facts

    def dims(self, value: ir.Value) -> tuple[int | str | None, ...] | None:
        """Return the dimensions that follow from the graph, or else those that the file declares."""
        declared = declared_shape(value)
        shape = self.facts.shape(value)
        if shape is None:
            return declared
        inferred = tuple(map(expr.declared, shape))
        if declared is None or len(declared) != len(inferred):
            return inferred
        return tuple(declared_dim if dim is None else dim for dim, declared_dim in zip(inferred, declared, strict=True))


def extract(model: ir.Model, hierarchy: Hierarchy, path: str, *, call: int = 0, exact: bool = False) -> Extract:
    """Return the module at an instance path as a model of its own.

    Args:
        model: A sorted model whose nodes have their origins attached; it is not changed.
        hierarchy: The modules that its tags describe.
        path: The instance path of the module; the empty path is the whole model.
        call: The index of the call, if the module is called more than once.
        exact: Refuse to extract a wider module than requested.

    Raises:
        UsageError: if the module is not called that often.
        ModelError: if it owns no node, if only the whole model contains it, or with `exact` if a node does its work and
            that of others.
    """
    flow = Flow(model)
    calls = module_region.calls(flow, path)
    if call >= max(len(calls), 1):
        times = "once" if len(calls) < 2 else f"{len(calls)} times"
        raise UsageError(f"{path or 'the model'} has no call {call}: it was called {times}", hint="calls count from 0")
    notes = () if len(calls) < 2 else (f"{path} is called {len(calls)} times: this is call {call}",)
    module = calls[call] if calls else path
    requested = module
    module, inside, straddling = module_region.widen(flow, module, exact=exact)
    if straddling and module_region.is_whole(flow, inside):
        raise module_region.refusal(flow, requested, straddling)
    if not inside:
        raise ModelError(
            f"{path or 'the model'} owns no node of this model",
            hint="it only contains other modules or is never called; `sardonyx inspect` shows which modules own nodes",
        )
    calls = module_region.calls(flow, module_of(module))
    types = _InferredTypes(model)
    slicing = model.opset_imports.get("", 0) >= _SLICING_SHAPE
    region = (
        module_region.bounded(flow, inside, types.dims, slicing=slicing)
        if module != ROOT
        else module_region.whole(model, flow)
    )
    extracted = _build(model, hierarchy, region, flow, module, types)
    return Extract(
        extracted,
        module,
        path,
        calls.index(module),
        len(calls),
        tuple(value.name or "" for value in extracted.graph.inputs),
        tuple(value.name or "" for value in extracted.graph.outputs),
        tuple(map(label, straddling)),
        notes,
    )


def _build(
    model: ir.Model, hierarchy: Hierarchy, region: module_region.Region, flow: Flow, module: str, types: _InferredTypes
) -> ir.Model:
    """Return a model of copies of the nodes, which shares the tensors of the source."""
    nodes = [node for node in flow.nodes if node in region.inside or node in region.repeated]
    operands = dict.fromkeys(value for node in nodes for value in flow.reads[node])
    constants = [value for value in (*operands, *region.outputs) if value.is_initializer()]
    measured = dict.fromkeys(
        value for node in region.stand_ins for value in flow.reads[node] if value not in region.inputs
    )
    graph = ir.GraphView(
        (*region.inputs, *measured),  # values that only Shapes read are removed below
        region.outputs,
        nodes=nodes,
        initializers=list(dict.fromkeys(constants)),
        opset_imports=dict(model.opset_imports),
        name=".".join(filter(None, (model.graph.name, module))),
    ).clone()
    _redirect_shapes(dict(zip(nodes, graph, strict=True)), dict(zip(region.inputs, graph.inputs, strict=False)), region)
    del graph.inputs[len(region.inputs) :]
    _declare(zip((*region.inputs, *region.outputs), (*graph.inputs, *graph.outputs), strict=True), model, types)
    is_external = unmodeled_fields.meta(model.graph).get(unmodeled_fields.EXTERNAL)
    unmodeled_fields.meta(graph)[unmodeled_fields.EXTERNAL] = is_external
    extracted = ir.Model(
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
    write(extracted, hierarchy)
    return extracted


def _redirect_shapes(
    nodes: dict[ir.Node, ir.Node], inputs: dict[ir.Value, ir.Value], region: module_region.Region
) -> None:
    """Let the copies of Shape nodes read inputs of the extracted model instead of values outside of it."""
    for node, stand_in in region.stand_ins.items():
        nodes[node].replace_input_with(0, inputs[stand_in.value])
        nodes[node].attributes.clear()
        if stand_in.sliced:
            nodes[node].attributes.add(ir.AttrInt64("start", stand_in.start))
            nodes[node].attributes.add(ir.AttrInt64("end", stand_in.end))


def _declare(boundary: Iterable[tuple[ir.Value, ir.Value]], model: ir.Model, types: _InferredTypes) -> None:
    """Set the type and shape of every input and output of the extracted model."""
    declared = {*model.graph.inputs, *model.graph.outputs}
    for value, copy in boundary:
        if value in declared and value.shape is not None:
            continue
        if value.type is None or isinstance(value.type, ir.TensorType):
            dtype = types.facts.dtype(value)
            if dtype is None:
                raise ModelError(
                    f"the type of '{value.name}' is unknown, but it would be an input or output",
                    hint="extract a wider module, or declare the type in the file",
                )
            copy.type = ir.TensorType(dtype)
        shape = types.dims(value)
        copy.shape = None if shape is None else ir.Shape(shape)


def _functions(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """Return copies of the functions that these nodes call, directly or indirectly."""
    called: dict[ir.OperatorIdentifier, ir.Function] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        pending.extend(inner for _, body in bodies(node) for inner in body)
        function = model.functions.get(node.op_identifier())
        if function is not None and node.op_identifier() not in called:
            called[node.op_identifier()] = function
            pending.extend(function)
    return [function.clone() for key, function in model.functions.items() if key in called]
