"""A model as one graph for each of its modules, as plain frozen data: the answer of `dag`. Nothing here knows ONNX."""

from __future__ import annotations

import msgspec

from sardonyx.records.base import Record
from sardonyx.records.run import How

Scalar = int | float | str  # NaN and the infinities are written "nan", "inf", "-inf": JSON has no numbers for them


class TensorValue(msgspec.Struct, frozen=True, tag="tensor", tag_field="kind", omit_defaults=True):
    """A tensor inside an operation; its elements where they are few."""

    dtype: str
    shape: tuple[int, ...]
    value: tuple[Scalar, ...] | None = None  # flat, row by row


class BodyValue(msgspec.Struct, frozen=True, tag="body", tag_field="kind"):
    """A graph inside an operation: the operations in it."""

    nodes: tuple[str, ...]


AttributeValue = Scalar | tuple[Scalar, ...] | TensorValue | BodyValue


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of the file, under a name that no other has."""

    op_type: str
    domain: str
    inputs: tuple[str, ...]  # names of values; "" where an optional one is left out
    outputs: tuple[str, ...]
    tags: tuple[str, ...]  # of the module that owns it, then of all others that went into it
    module_path: str  # instance path of the owner
    how: How
    attributes: dict[str, AttributeValue] = {}
    call: str | None = None  # the path with the call that is meant, where it is not the first


class Initializer(msgspec.Struct, frozen=True):
    """A constant of the file that is no node: a weight, mostly."""

    dtype: str
    shape: tuple[int, ...]
    tags: tuple[str, ...]  # of every module that reads it, also through a node it shares with others
    users: tuple[str, ...]  # the operations that read it


class ModuleGraph(msgspec.Struct, frozen=True):
    """The operations inside one module, those of the modules below it included, and how they are connected."""

    path: str
    kind: str | None = msgspec.field(name="class")  # qualified where the file knows it; None where it knows nothing
    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    children: tuple[str, ...]  # tags of the modules directly below
    inputs: tuple[str, ...]  # values that come from elsewhere; initializers are listed apart
    outputs: tuple[str, ...]  # values that are read elsewhere, or that the model gives


class HierarchyDag(Record, frozen=True, tag="dag"):
    """All modules of a model by tag, all operations and initializers by name."""

    title = "a graph of modules"
    model: str
    modules: dict[str, ModuleGraph]
    operations: dict[str, Operation]
    initializers: dict[str, Initializer]

    def tops(self) -> list[str]:
        """The modules that lie in no other: the model, or those that were asked for."""
        below = {child for module in self.modules.values() for child in module.children}
        return [tag for tag in self.modules if tag not in below]

    def makers(self) -> dict[str, tuple[str, int]]:
        """Which operation makes a value, and as which of its outputs."""
        made = {name: operation.outputs for name, operation in self.operations.items()}
        return {value: (name, i) for name, values in made.items() for i, value in enumerate(values) if value}

    def edges(self) -> list[tuple[str, str]]:
        """All edges there are, each once: also those between modules that were asked for beside each other."""
        makers = self.makers()
        read = ((value, name) for name, operation in self.operations.items() for value in operation.inputs)
        direct = ((makers[value][0], name) for value, name in read if value in makers)
        return list(dict.fromkeys([*direct, *(edge for tag in self.tops() for edge in self.modules[tag].edges)]))

    def homes(self) -> dict[str, str]:
        """The module each operation is shown in: its owner, or where that is left out, the deepest that reads it."""
        deepest = {name: tag for tag, module in self.modules.items() for name in module.nodes}
        owners = {name: operation.tags[0] for name, operation in self.operations.items()}
        return {name: tag if tag in self.modules else deepest[name] for name, tag in owners.items()}
