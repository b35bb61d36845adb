"""Compares everything that is inferred about a model with the results of running it.

Every inner value is made an output. A dim or element that is known must equal the observed number. One that depends on
unknowns must be consistent: an unknown has the same value wherever it appears in one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.facts import Facts
from sardonyx.ir.shapes import Expr, Size, expr
from sardonyx.runtime import ReferenceSession, Session


@dataclass
class Verdict:
    """How much was inferred, and which of it was wrong."""

    known: int = 0  # dims that are numbers or follow from the inputs' names
    vague: int = 0  # dims and ranks that are not known
    elements: int = 0  # known elements of small integer tensors
    types: int = 0  # known element types
    wrong: list[str] = field(default_factory=list[str])
    unknown: dict[str, str] = field(default_factory=dict[str, str])  # value -> operator, where something is vague

    @property
    def amounts(self) -> list[int]:
        """How much is known."""
        return [self.known, self.vague, self.elements, self.types]


def opened(model: onnx.ModelProto, facts: Facts) -> tuple[onnx.ModelProto, list[ir.Value]]:
    """The model with every inner tensor as an output, and those values in order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    del copy.graph.output[:]
    values: list[ir.Value] = []
    for node in facts.model.graph:
        for value in node.outputs:
            dtype = facts.dtype(value)
            if value.name and dtype is not None and isinstance(value.type or ir.TensorType(dtype), ir.TensorType):
                kind = onnx.helper.make_tensor_type_proto(dtype.value, None)
                copy.graph.output.append(onnx.helper.make_value_info(value.name, kind))
                values.append(value)
    return copy, values


def sizes_of(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The sizes of the named dims of the inputs in one run, by their names in the algebra."""
    sizes: dict[str, int] = {}
    for info in model.graph.input:
        if info.name in feeds:
            dims = info.type.tensor_type.shape.dim  # empty if the rank is not declared
            for dim, size in zip(dims, feeds[info.name].shape, strict=False):
                if dim.dim_param:
                    sizes[repr(expr.symbol(dim.dim_param))] = size
    return sizes


def check_inference(
    model: onnx.ModelProto, runs: Iterable[Mapping[str, np.ndarray]], facts: Facts | None = None
) -> Verdict:
    """Infer, run at several sizes, and compare. Runs that the engine rejects are skipped."""
    if facts is None:
        graph = ir.from_proto(model)
        graph.graph.sort()
        facts = Facts(graph)
    facts.infer()
    wide, values = opened(model, facts)
    try:
        engine: Session | ReferenceSession = Session(wide, threads=1)
    except RuntimeFailure:
        engine = ReferenceSession(wide)
    verdict = Verdict()
    for feeds in runs:
        try:
            results = engine.run(feeds)
        except RuntimeFailure:
            continue
        arrays = [result for result in results if isinstance(result, np.ndarray)]
        if len(arrays) == len(values):
            compare(facts, values, arrays, sizes_of(model, feeds), verdict)
    return verdict


def compare(
    facts: Facts, values: Sequence[ir.Value], arrays: Sequence[np.ndarray], sizes: dict[str, int], verdict: Verdict
) -> None:
    """Compare the results of one run with what was inferred, and bind unknowns to the observed sizes."""
    later: list[tuple[str, Size, int]] = []
    for value, array in zip(values, arrays, strict=True):
        shape, contents = facts.shape(value), facts.contents(value)
        verdict.types += facts.dtype(value) is not None
        producer = value.producer()
        label = f"{producer.op_type if producer is not None else 'input'} {value.name}"
        if shape is None:
            verdict.vague += 1
            verdict.unknown[label] = "rank"
        elif len(shape) != array.ndim:
            verdict.wrong.append(f"{label}: {shape} is {array.shape}")
        else:
            pairs = enumerate(zip(shape, array.shape, strict=True))
            later += [(f"{label}[{axis}]", dim, size) for axis, (dim, size) in pairs]
        if contents is None:
            continue
        elements = array.reshape(-1).tolist()
        if len(contents) != len(elements):
            verdict.wrong.append(f"{label}: holds {contents}, is {elements}")
            continue
        for index, (item, element) in enumerate(zip(contents, elements, strict=True)):
            if item is not None:
                verdict.elements += 1
                later.append((f"{label} element {index}", item, element))
    _check_sizes(later, sizes, verdict)


def _check_sizes(later: Sequence[tuple[str, Size, int]], sizes: dict[str, int], verdict: Verdict) -> None:
    for where, size, number in later:  # single unknowns first, since the others depend on them
        is_bare = isinstance(size, Expr) and repr(size).startswith("?") and repr(size)[1:].isdigit()
        if is_bare and sizes.setdefault(repr(size), number) != number:
            verdict.wrong.append(f"{where}: {size} is {number} here and {sizes[repr(size)]} there")
    for where, size, number in later:
        if isinstance(size, Expr) and size.is_vague:
            verdict.vague += 1
            verdict.unknown.setdefault(where, repr(size))
        else:
            verdict.known += 1
        try:
            inferred = expr.value_of(size, sizes)
        except KeyError:
            continue  # depends on an unknown whose value is not observable in this run
        if inferred != number:
            verdict.wrong.append(f"{where}: {size} = {inferred} is {number}")
