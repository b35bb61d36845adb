"""The fields of the record of an export that describe the module and the graph."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from torch import nn

from sardonyx.analysis import census
from sardonyx.frontend.models.weights import state_sha256
from sardonyx.frontend.tracing import dynamo
from sardonyx.ir.origins import owner
from sardonyx.provenance import module_of
from sardonyx.records.export import SourceModule
from sardonyx.records.run import Counts


def source_module(module: nn.Module, label: str, *, hashed: bool) -> SourceModule:
    """Return what the module is."""
    kind = type(module)
    return SourceModule(
        label=label,
        class_name=f"{kind.__module__}.{kind.__qualname__}",
        modules=sum(1 for _ in module.modules()),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        sha256=state_sha256(module) if hashed else None,
    )


def plain_torch(model: ir.Model) -> Counts | None:
    """Return the counts of what torch's exporter alone would write."""
    plain = dynamo.optimized_by_torch(model)
    return None if plain is None else census.Census.of(plain).counts


def census_fields(model: ir.Model) -> dict[str, Any]:
    """Return the record's fields that describe the exported, tagged graph."""
    graph_census = census.Census.of(model)
    return {
        "counts": graph_census.counts,
        "modules": len({module_of(owner(node)) for node in graph_census.nodes}),
        "coverage": census.coverage(graph_census.nodes),
        "root_nodes": census.root_nodes(graph_census.nodes),
        "tied": census.tied(graph_census.initializers),
    }
