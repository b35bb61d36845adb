"""What can be counted of a model without running it: nodes, bytes, operations, traffic."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.analysis.census import Census
from sardonyx.analysis.costs.onnx_program import program_of
from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.traffic import moved
from sardonyx.ir.shapes.expr import symbol, total, value_of
from sardonyx.ir.tagged_model import tagged

SIZES = {True: 1, False: 128}  # of an open dim: where some input begins with it, and elsewhere


def counted(source: Path | onnx.ModelProto | ir.Model) -> dict[str, int]:
    """Nodes and bytes of the graph; flops and bytes moved where open dims have their usual sizes."""
    model = tagged(source).model
    counts = Census.of(model).counts
    program = program_of(model)
    first = _firsts(model)
    sizes = {dim: SIZES[dim in first] for dim in program.symbols}
    working = (each.flops for each in program.operations if each.kind is not OpKind.VIEW)
    return {
        "nodes": counts.nodes,
        "bytes": counts.bytes,
        "flops": value_of(total(working), sizes),
        "traffic": value_of(total(each.bytes for each in moved(program)), sizes),
    }


def _firsts(model: ir.Model) -> set[str]:
    """The open dims that some input begins with, as the algebra of sizes writes them."""
    names: set[str] = set()
    for value in model.graph.inputs:
        first = value.shape[0] if value.shape else None
        if first is not None and not isinstance(first, int):
            names.add(repr(symbol(first.value or f"{value.name}_0")))
    return names
