"""The words passes and the driver share: a match, a refusal, and the two shapes a rule can have.

A rule proposes; the driver in `rewrite` alone changes the graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import onnx_ir as ir

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.records.run import Accuracy


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Nodes whose work a rewrite takes over, the last one being where the new nodes go.

    Matched nodes that something else still reads stay. `found` hands what the matcher learned to the rewriter.
    """

    nodes: tuple[ir.Node, ...]
    found: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: tuple[ir.Value, ...] | None = None  # the values replaced; the root's outputs where None
    heir: ir.Node | None = None  # an existing node that now does the work: it inherits the origins
    apart: frozenset[ir.Node] = frozenset()  # those whose work goes to what is built within `op.apart()`, and only that

    @property
    def root(self) -> ir.Node:
        """The node at whose place the new ones go."""
        return self.nodes[-1]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The values that get a replacement."""
        return tuple(self.root.outputs) if self.outputs is None else self.outputs


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A near miss: why the rewrite does not apply here."""

    reason: str
    nodes: tuple[ir.Node, ...]


Replacement = ir.Value | Sequence[ir.Value | None]


@dataclass(frozen=True, slots=True, eq=False)
class Drop:
    """An initializer nothing reads."""

    value: ir.Value


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Initializers that another one equals."""

    duplicates: tuple[ir.Value, ...]
    kept: ir.Value


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A match together with what it becomes, for rules that look at a whole model at once."""

    match: Match
    rewrite: Callable[[Builder], Replacement]


class Rule(ABC):
    """What every rule says of itself."""

    name: ClassVar[str]
    accuracy: ClassVar[Accuracy]


class NodeRule(Rule):
    """A rule that looks at one node and its surroundings."""

    roots: ClassVar[tuple[str, ...]]
    opset: ClassVar[int] = 1  # from which on it understands what it reads
    needs: ClassVar[int] = 1  # the opset that has what it writes; a graph below it is raised first, where it can be

    @abstractmethod
    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Whether the rule applies at this node; `Refused` for a near miss worth telling."""

    @abstractmethod
    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """What takes the place of the matched nodes' outputs."""


class ModelRule(Rule):
    """A rule that has to see the whole model."""

    @abstractmethod
    def propose(self, graph: Facts) -> Iterator[Proposal | Drop | Share | Refused]:
        """What to change; each proposal is carried out before the next is asked for."""
