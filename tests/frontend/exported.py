"""Exports of small modules: the owner of each node, and results equal to the module's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import TorchEngine, to_array
from sardonyx.frontend.tracing.prepare import prepared
from sardonyx.frontend.tracing.traced import Exporter, TagStyle
from sardonyx.ir import io, origins
from sardonyx.ir.scopes import scopes
from sardonyx.records import provenance as p
from sardonyx.runtime import Session


@dataclass(frozen=True)
class Exported:
    """An exported model whose outputs were equal to the module's."""

    model: ir.Model
    outputs: list[str]

    @property
    def nodes(self) -> list[ir.Node]:
        """All nodes, including those of bodies and functions."""
        return [node for scope in scopes(self.model) for node in scope.graph]

    def owners(self, *op_types: str) -> list[str]:
        """The paths of all nodes of these operators, in order."""
        return [origins.owner(node) for node in self.nodes if node.op_type in op_types]

    def tags(self) -> dict[str, set[str]]:
        """Path -> tags, as they are written."""
        tags: dict[str, set[str]] = defaultdict(set)
        for node in self.nodes:
            tags[node.metadata_props[p.MODULE_PATH]].add(node.metadata_props[p.SOURCE_MODULE])
        return tags


def exported(
    module: nn.Module,
    *args: object,
    exporter: Exporter,
    axes: Mapping[str, Mapping[int, str]] | None = None,
    style: TagStyle | None = None,
    others: Sequence[Sequence[torch.Tensor]] = (),
    **kwargs: object,
) -> Exported:
    """Export a module, and compare the result with the module on the example and on other inputs."""
    with prepared(module) as plain:
        call = ModuleCall(plain, args, kwargs)
        model, _ = traced.export(call, exporter, axes or {}, None, style or TagStyle())
        session = Session(io.to_proto(model))
        for tensors in (call.tensors, *others):
            feeds = {name: to_array(tensor) for name, tensor in zip(call.inputs, tensors, strict=True)}
            for expected, got in zip(TorchEngine(call).run(feeds), session.run(feeds), strict=True):
                assert isinstance(expected, np.ndarray)
                assert isinstance(got, np.ndarray)
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return Exported(model, list(call.outputs))
