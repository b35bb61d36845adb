"""`sardonyx.adopt`: a file that another tool wrote, with every node's module written down the way we write it."""

from __future__ import annotations

import os
from collections import Counter

import onnx_ir as ir

from sardonyx.analysis.census import Census, coverage, root_nodes
from sardonyx.ir import attribute_tags, io, origins
from sardonyx.ir.result import HasModel
from sardonyx.ir.tagged_model import Source, tagged
from sardonyx.provenance import module_of
from sardonyx.records.inspection import Adoption


class Adopted(Adoption, HasModel, frozen=True):
    """An Adoption together with the tagged model."""

    model: ir.Model | None = None


def adopt(
    source: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    tag_attributes: bool = False,
    force: bool = False,
) -> Adopted:
    """Write the tags of a model that came without: from torch's metadata, scoped names, or attributes that came back.

    Args:
        source: a path, a ModelProto or an onnx-ir Model; never changed.
        output: where to write the result; nothing is written where None.
        tag_attributes: write the tags as node attributes too, for tools that drop metadata.
        force: overwrite an existing output.

    Returns:
        What was found, with the model as `.model`.
    """
    if output is not None:
        io.check_free(os.fspath(output), force=force)
    found = tagged(source)
    nodes = Census.of(found.model).nodes
    for node in nodes:
        if tag_attributes:
            attribute_tags.order(node)
    origins.write(found.model, found.hierarchy)
    if output is not None:
        io.save(found.model, output, force=force)
    told = Counter(kind for node in nodes if (kind := origins.evidence(node)) is not None)
    return Adopted(
        source=found.name,
        output=None if output is None else os.fspath(output),
        nodes=len(nodes),
        modules=len({module_of(origins.owner(node)) for node in nodes}),
        coverage=coverage(nodes),
        evidence={kind.value: count for kind, count in told.most_common()},
        root_nodes=root_nodes(nodes),
        attributes=any(map(attribute_tags.has_attribute_tags, nodes)),
        model=found.model,
    )
