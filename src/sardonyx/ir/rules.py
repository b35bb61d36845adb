"""The interface between passes and the rewriter: a match, a refusal, and the two kinds of rules.

A rule proposes rewrites; only the rewriter changes the graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir
from msgspec import Struct, field

from sardonyx.ir.builder import Builder
from sardonyx.ir.facts import Facts
from sardonyx.records.run import Accuracy

Replacement = ir.Value | Sequence[ir.Value | None]


class Match(Struct, frozen=True, eq=False):
    """Nodes that a rewrite replaces; the new nodes are inserted at the last of them.

    Matched nodes that are still read elsewhere stay. `build` builds the replacements; a rule with a `rewrite` of its
    own passes data to it in `details` instead. If an existing node computes the result from now on, it is the
    `survivor` and inherits the origins of the matched nodes. The origins of the `separate` nodes are inherited only by
    nodes built within `op.separate()`.
    """

    nodes: tuple[ir.Node, ...]
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: tuple[ir.Value, ...] | None = None  # the values to replace; the outputs of the root if None
    survivor: ir.Node | None = None
    separate: frozenset[ir.Node] = frozenset()
    build: Callable[[Builder], Replacement] | None = None

    @property
    def root(self) -> ir.Node:
        """Return the node at whose position the new ones are inserted."""
        return self.nodes[-1]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """Return the values that get a replacement."""
        return tuple(self.root.outputs) if self.outputs is None else self.outputs


class Refused(Struct, frozen=True, eq=False):
    """A near miss, with the reason why the rewrite does not apply."""

    reason: str
    nodes: tuple[ir.Node, ...]


class Drop(Struct, frozen=True, eq=False):
    """An initializer that nothing reads."""

    value: ir.Value


class Share(Struct, frozen=True, eq=False):
    """Initializers that equal another one."""

    duplicates: tuple[ir.Value, ...]
    kept: ir.Value


class Proposal(Struct, frozen=True, eq=False):
    """A match with its rewrite, for rules that look at a whole model at once."""

    match: Match
    rewrite: Callable[[Builder], Replacement]


class Rule(ABC):
    """The common attributes of all rules."""

    name: str  # of a pass; passes of one run have different names
    accuracy: ClassVar[Accuracy]


class NodeRule(Rule):
    """A rule that looks at one node and its surroundings."""

    roots: ClassVar[tuple[str, ...]]
    opset: ClassVar[int] = 1  # the lowest opset that it can read
    needs: ClassVar[int] = 1  # the opset of the operators that it creates; the model is raised to it if possible

    @abstractmethod
    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Return a match if the rule applies at this node, `Refused` for a near miss to report, otherwise None."""

    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """Build and return the replacements of the matched outputs."""
        if match.build is None:
            raise NotImplementedError(f"{self.name} has no rewrite, and its match no build")
        return match.build(op)


class ModelRule(Rule):
    """A rule that has to see the whole model."""

    @abstractmethod
    def propose(self, graph: Facts) -> Iterator[Proposal | Drop | Share | Refused]:
        """Yield what to change; each proposal is performed before the next one is requested."""
