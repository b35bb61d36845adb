"""`sardonyx.adopt`: write our module tags into a model that another tool exported."""

from __future__ import annotations

import os

import onnx_ir as ir

from sardonyx.common.atomic_write import check_free
from sardonyx.errors import ModelError
from sardonyx.ir import io, origins
from sardonyx.ir import origins as attribute_tags
from sardonyx.ir.origins import HasModel, Source, tagged
from sardonyx.records.inspection import Adoption
from sardonyx.records.provenance import UNTAGGED, module_of
from sardonyx.verbs.analyze.census import Census, coverage, evidence, root_nodes


class Adopted(Adoption, HasModel, frozen=True):
    """An Adoption record together with the tagged model."""

    model: ir.Model | None = None


def adopt(
    source: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    tag_attributes: bool = False,
    force: bool = False,
) -> Adopted:
    """Tag every node with its module, from torch's metadata, scoped names, or tags in node attributes.

    Args:
        source: A path, a ModelProto or an onnx-ir Model. It is not changed.
        output: Where to write the result. If None, nothing is written.
        tag_attributes: Write the tags as node attributes too, for tools that drop metadata.
        force: Overwrite an existing output.

    Returns:
        The record of what was tagged and from which evidence, with the model as `.model`.

    Raises:
        ModelError: Nothing in the file names a module.
    """
    if output is not None:
        check_free(os.fspath(output), force=force)
    tagged_model = tagged(source)
    census = Census.of(tagged_model.model)
    if not origins.is_tagged(tagged_model.model):
        raise ModelError(f"{tagged_model.name} has nothing to adopt: {UNTAGGED}")
    if tag_attributes:
        for node in census.nodes:
            attribute_tags.request(node)
    origins.write(tagged_model.model, tagged_model.hierarchy)
    saved = io.save(tagged_model.model, output, force=force) if output is not None else io.Saved(None)
    nodes = [node for node in census.nodes if node not in census.constants]
    return Adopted(
        source=tagged_model.name,
        output=None if output is None else os.fspath(output),
        nodes=len(nodes),
        modules=len({module_of(origins.owner(node)) for node in nodes if origins.origins(node)}),
        coverage=coverage(nodes),
        evidence=evidence(nodes),
        root_nodes=root_nodes(nodes),
        attributes=any(map(attribute_tags.has_attribute_tags, nodes)),
        notes=saved.notes,
        model=tagged_model.model,
    )
