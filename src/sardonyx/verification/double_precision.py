"""Run a model in double precision: y₆₄ = f₆₄(x₃₂, w₃₂). The distance |y₃₂ - y₆₄| is its rounding error.

ONNX Runtime has no kernels for doubles for some operators (`support.NOT_IN_DOUBLE`). These compute in single precision
between casts; everything else adds up in double precision, so that the order of a long sum no longer shows.

Stored weights keep their values. If a rewrite or an exporter stored new ones in half precision, they are rounded,
which outputs in double precision show. Such weights w are therefore also rounded otherwise, by an error of a pseudo-
random part of half a unit in the last place: w + eps / 4 · sin(f · w + p) · w. The frequency f and the phase p are
inputs; 0 changes nothing. Of two phases, 0 and π / 2, one moves even a single number far.

Conv has no kernel for doubles either. It is written as products of its taps: y = Σ w[..., t] · x[..., t : t + n :
stride] over the taps t of the window, where x is padded: one Slice and one Einsum (a Mul if every channel is a group
of its own) for each tap.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.facts import element_types
from sardonyx.ir.ops import GELUS, RECURRENT
from sardonyx.ir.scopes import nested_graphs
from sardonyx.ir.support import NOT_IN_DOUBLE
from sardonyx.runtime import Value
from sardonyx.runtime.remote import RemoteSession
from sardonyx.verification.output_comparison import Outputs
from sardonyx.verification.subject import Subject
from sardonyx.verification.upcast import Constants, upcast

_ROUGH = GELUS | {"Erf"}  # whose doubles are not precise in `exact`
# How the runtime names an operator without kernel for doubles, and one that is not defined for them. Those beyond
# `NOT_IN_DOUBLE` are found by its refusals, of which each takes another copy.
_REFUSED = re.compile(r"implementation for (\w+)|of operator \((\w+)\)")


_FREQUENCY, _PHASE = "sardonyx.rounding.frequency", "sardonyx.rounding.phase"
_OTHER_ROUNDINGS = tuple((frequency, phase) for frequency in (1e7, 1e7 + 79190.0) for phase in (0.0, math.pi / 2))
_EPS: dict[ir.DataType | None, float] = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}


class DoublePrecision:
    """A model in double precision, opened when it is first run."""

    def __init__(
        self,
        model: ir.Model,
        *,
        constants: Constants = "keep",
        rounded: Collection[str] = (),
        threads: int | None = None,
    ) -> None:
        """Prepare a model.

        Args:
            model: The model; it is not changed.
            constants: As for `upcast`.
            rounded: Names of weights stored in half precision whose rounding counts as rounding.
            threads: Threads of the runtime.
        """
        self._model, self._rounded, self._threads = model, rounded, threads
        self._constants: Constants = constants
        self._session: RemoteSession | None = None
        self._runs = True

    def run(self, feeds: Mapping[str, Value], rounding: tuple[float, float] = (0.0, 0.0)) -> list[Value] | None:
        """Return the outputs, or None if the model does not run in double precision."""
        if not self._runs:
            return None
        operators = {node.op_type for node in self._model.graph.all_nodes()}
        if operators & RECURRENT and not operators & _ROUGH:  # whose kernels know no doubles, and approximate tanh
            from sardonyx.ir.exact.evaluate import doubles  # loaded where results differ

            result = doubles(io.to_proto(self._model), feeds)
            if result is not None:
                return result
        try:
            self._session = self._session or self._open()
            numbers = zip((_FREQUENCY, _PHASE), rounding, strict=True) if self._rounded else ()
            added = {name: np.asarray(number, np.float32) for name, number in numbers}
            return self._session.run({**feeds, **added})
        except RuntimeFailure:
            self._runs = False
            return None

    def outputs(self, feeds: Mapping[str, Value]) -> list[Value]:
        """Return the outputs.

        Raises:
            RuntimeFailure: If the model does not run in double precision.
        """
        if (outputs := self.run(feeds)) is None:
            raise RuntimeFailure("the model does not run in double precision")
        return outputs

    def roundings(self, feeds: Mapping[str, Value], outputs: Sequence[Value]) -> list[tuple[Outputs, Outputs]]:
        """Return pairs of the outputs and those with stored weights rounded otherwise."""
        runs = [self.run(feeds, rounding) for rounding in _OTHER_ROUNDINGS] if self._rounded else []
        return [(outputs, run) for run in runs if run is not None]

    def close(self) -> None:
        """Close the session; a further run opens it again."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self) -> RemoteSession:
        """Open a copy in which every operator with a kernel for doubles computes in double precision.

        Raises:
            RuntimeFailure: The runtime does not accept the copy.
        """
        model = upcast(self._model) or self._model  # operators without kernel for doubles have one for singles
        model = without_convolutions(model)
        if self._rounded:
            model = _rounding_otherwise(model, self._rounded)
        singles = {node.op_type for node in model.graph.all_nodes() if node.op_type in NOT_IN_DOUBLE}
        while True:
            copy = upcast(model, constants=self._constants, to=ir.DataType.DOUBLE, without_kernel=singles)
            try:
                return Subject(model if copy is None else copy).session(threads=self._threads)
            except RuntimeFailure as refusal:
                match = _REFUSED.search(refusal.message)
                refused = _with_operator(model, match[1] or match[2]) - singles if match else None
                if not refused:
                    raise
                singles |= refused


def _rounding_otherwise(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a copy in which the results of Casts of these weights have another rounding error, chosen by an input."""
    copy = model.clone()
    frequency, phase = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([])) for name in (_FREQUENCY, _PHASE)
    )
    copy.graph.inputs.extend((frequency, phase))
    types = element_types(copy)
    for number, node in enumerate([n for graph in nested_graphs(copy.graph) for n in graph if n.op_type == "Cast"]):
        weight, graph = node.inputs[0], node.graph
        if weight is None or weight.name not in names or graph is None:
            continue
        tape, clean, uses = ir.tape.Tape(), node.outputs[0], list(node.outputs[0].uses())
        size = tape.op("Constant", [], {"value": ir.tensor(np.float32(_EPS.get(types.get(weight), 0.0) / 4))})
        wave = tape.op("Sin", [tape.op("Add", [tape.op("Mul", [clean, frequency]), phase])])
        moved = tape.op("Add", [tape.op("Mul", [tape.op("Mul", [wave, size]), clean]), clean])
        graph.insert_after(node, _named(tape, f"sardonyx.rounding.{number}"))
        for user, index in uses:
            user.replace_input_with(index, moved)
    return copy


def _named(tape: ir.tape.Tape, prefix: str) -> Sequence[ir.Node]:
    """Return the nodes of a tape with names of their own, which are those of their results."""
    for place, node in enumerate(tape.nodes):
        node.name = node.outputs[0].name = f"{prefix}.{place}"
    return tape.nodes


def _with_operator(model: ir.Model, operator: str) -> set[str]:
    """Return the operators of a model that are this one, or whose definition has it, which the runtime expands."""
    opset = model.opset_imports.get("", 1)
    kinds = {node.op_type: node for node in model.graph.all_nodes()}
    return {kind for kind, node in kinds.items() if kind == operator or operator in _definition(node, opset)}


def _definition(node: ir.Node, opset: int) -> set[str]:
    """Return the operators in the standard's definition of an operator as a function, if it has one."""
    if node.domain:
        return set()
    schema: Any = onnx.defs.get_schema(node.op_type, opset)  # its stub lacks some methods
    body = schema.function_body
    if schema.has_context_dependent_function:
        double = onnx.helper.make_tensor_type_proto(onnx.TensorProto.DOUBLE, None).SerializeToString()
        made = schema.get_context_dependent_function(ir.to_proto(node).SerializeToString(), [double] * len(node.inputs))
        body = onnx.FunctionProto.FromString(made)
    return {inner.op_type for inner in body.node}


_EINSUM_OPSET = 12  # of Einsum
_MOST_TAPS = 128  # of a window; more would be as many nodes
_TO_THE_END = np.iinfo(np.int64).max
_AXES = "xyz"


def without_convolutions(model: ir.Model) -> ir.Model:
    """Return a copy in which products of taps take the place of every Conv, as far as its form is covered."""
    copy = model.clone()
    if copy.opset_imports.get("", 1) < _EINSUM_OPSET:
        return copy
    for number, node in enumerate([n for graph in nested_graphs(copy.graph) for n in graph if n.op_type == "Conv"]):
        weight, graph, result = node.inputs[1], node.graph, node.outputs[0]
        shape = [dim for dim in (weight.shape or ()) if isinstance(dim, int)] if weight is not None else []
        nodes = _taps(node, shape, f"sardonyx.taps.{number}") if len(shape) > 2 else None
        if nodes is None or graph is None:
            continue
        graph.insert_before(node, nodes)
        name, total = result.name, nodes[-1].outputs[0]
        total.type, total.shape = result.type, result.shape
        result.replace_all_uses_with(total, replace_graph_outputs=True)
        graph.remove(node)
        total.name = name
    return copy


def _taps(node: ir.Node, weight_shape: Sequence[int], name: str) -> Sequence[ir.Node] | None:
    """Return nodes that compute what a Conv does, its result last; None if its form is not covered."""
    channels, per_group, *window = weight_shape
    group, rank = node.attributes.get_int("group", 1), len(window)
    if (group > 1 and (group != channels or per_group > 1)) or rank > len(_AXES):
        return None
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or np.prod(window) > _MOST_TAPS:
        return None
    pads = node.attributes.get_ints("pads") or (0,) * (2 * rank)
    strides = node.attributes.get_ints("strides") or (1,) * rank
    dilations = node.attributes.get_ints("dilations") or (1,) * rank
    tape = ir.tape.Tape()

    def constant(numbers: Sequence[int]) -> ir.Value:
        return tape.op("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})

    x, weight, *bias = (value for value in node.inputs if value is not None)
    if any(pads):
        x = tape.op("Pad", [x, constant((0, 0, *pads[:rank], 0, 0, *pads[rank:]))])
    axes = constant(range(2, 2 + rank))
    steps, ones, by_channel = constant(strides), constant((1,) * rank), constant((1, channels, *(1,) * rank))
    letters, terms = _AXES[:rank], list[ir.Value]()
    for tap in itertools.product(*map(range, window)):
        starts = [place * dilation for place, dilation in zip(tap, dilations, strict=True)]
        left = [(size - 1) * dilation - start for size, dilation, start in zip(window, dilations, starts, strict=True)]
        ends = constant([-rest if rest else _TO_THE_END for rest in left])
        part = tape.op("Slice", [x, constant(starts), ends, axes, steps])
        factor = tape.op("Slice", [weight, constant(tap), constant([place + 1 for place in tap]), axes, ones])
        if group > 1:
            terms.append(tape.op("Mul", [part, tape.op("Reshape", [factor, by_channel])]))
        else:
            factor = tape.op("Reshape", [factor, constant((channels, per_group))])
            terms.append(tape.op("Einsum", [part, factor], {"equation": f"nc{letters},mc->nm{letters}"}))
    if bias:
        terms.append(tape.op("Reshape", [bias[0], by_channel]))
    functools.reduce(lambda total, term: tape.op("Add", [total, term]), terms)
    return _named(tape, name)
