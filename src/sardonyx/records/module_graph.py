"""The record of `dag`: a model as one graph for each of its modules."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import How

Scalar = int | float | str  # NaN and infinities are "nan", "inf", "-inf", since JSON has no such numbers


class TensorValue(msgspec.Struct, frozen=True, tag="tensor", tag_field="kind", omit_defaults=True):
    """A tensor attribute of an operation, with its elements if they are few."""

    dtype: str
    shape: tuple[int, ...]
    value: tuple[Scalar, ...] | None = None  # flat, in row-major order


class BodyValue(msgspec.Struct, frozen=True, tag="body", tag_field="kind"):
    """A graph attribute of an operation: the operations in it."""

    nodes: tuple[str, ...]


AttributeValue = Scalar | tuple[Scalar, ...] | TensorValue | BodyValue


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of the file, with a unique name."""

    op_type: str
    domain: str
    inputs: tuple[str, ...]  # names of values; "" for an omitted optional one
    outputs: tuple[str, ...]
    tags: tuple[str, ...]  # of the owning module, then of all other modules that it originates from
    module_path: str  # instance path of the owner
    how: How
    attributes: dict[str, AttributeValue] = {}
    call: str | None = None  # the path with the number of the call, if it is not the first call


class Initializer(msgspec.Struct, frozen=True):
    """An initializer of the file, usually a weight."""

    dtype: str
    shape: tuple[int, ...]
    tags: tuple[str, ...]  # of every module that reads it, also through a fused node
    users: tuple[str, ...]  # the operations that read it


class ModuleGraph(msgspec.Struct, frozen=True):
    """The operations of one module and of the modules below it, and the edges between them."""

    path: str
    kind: str | None = msgspec.field(name="class")  # the class, qualified if known; None if unknown
    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    children: tuple[str, ...]  # tags of the modules directly below
    inputs: tuple[str, ...]  # values produced outside, without initializers
    outputs: tuple[str, ...]  # values read outside, or outputs of the model


class HierarchyDag(Record, frozen=True, tag="dag"):
    """All modules of a model by tag, and all operations and initializers by name."""

    title = "a graph of modules"
    model: str
    modules: dict[str, ModuleGraph]
    operations: dict[str, Operation]
    initializers: dict[str, Initializer]
    types: dict[str, str] = msgspec.field(
        default_factory=dict[str, str]
    )  # of values: "float[batch,128]", if the rank is known

    def tops(self) -> list[str]:
        """Return the modules without a parent: the model, or the selected ones."""
        below = {child for module in self.modules.values() for child in module.children}
        return [tag for tag in self.modules if tag not in below]

    def producers(self) -> dict[str, tuple[str, int]]:
        """Return the operation that produces each value, and the index of its output."""
        return {
            value: (name, index)
            for name, operation in self.operations.items()
            for index, value in enumerate(operation.outputs)
            if value
        }

    def edges(self) -> list[tuple[str, str]]:
        """Return all edges, each once, also those between selected modules."""
        producers = self.producers()
        uses = ((value, name) for name, operation in self.operations.items() for value in operation.inputs)
        direct = ((producers[value][0], name) for value, name in uses if value in producers)
        return list(dict.fromkeys([*direct, *(edge for tag in self.tops() for edge in self.modules[tag].edges)]))

    def homes(self) -> dict[str, str]:
        """Return the module in which each operation is shown: its owner, or the deepest one if that is not selected."""
        deepest = {name: tag for tag, module in self.modules.items() for name in module.nodes}
        owners = {name: operation.tags[0] for name, operation in self.operations.items()}
        return {name: tag if tag in self.modules else deepest[name] for name, tag in owners.items()}
