"""What a pass is: a name, its algebra, an accuracy class, an example, and a rule for the driver.

A pass never changes the graph, verifies, measures or logs; it says what it found and what should stand there.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.facts import Facts
from sardonyx.graph.rules import Drop, Match, Proposal, Refused, Replacement, Share
from sardonyx.record import Accuracy

EVERYWHERE = ("portable", "ort")


@dataclass(frozen=True, slots=True)
class Example:
    """A pass shown at work, in ONNX text; the contract test runs it.

    `before` turns into `after`; `near_miss` stays as it is and is refused for a reason that contains `refusal`
    (empty where the pass simply does not see it).
    """

    before: str
    after: str
    near_miss: str
    refusal: str = ""


class Pass(ABC):
    """What all passes say of themselves."""

    name: ClassVar[str]
    accuracy: ClassVar[Accuracy]
    targets: ClassVar[tuple[str, ...]] = EVERYWHERE
    example: ClassVar[Example]

    @property
    def algebra(self) -> str:
        """The rewrite as a formula: the first line of the pass's file."""
        text = sys.modules[type(self).__module__].__doc__ or ""
        return text.strip().splitlines()[0].rstrip(".")


class NodePass(Pass):
    """A pass that looks at one node and its surroundings."""

    roots: ClassVar[tuple[str, ...]]
    opset: ClassVar[int] = 1

    @abstractmethod
    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Whether the pass applies at this node; `Refused` for a near miss worth telling."""

    @abstractmethod
    def rewrite(self, match: Match, op: Builder) -> Replacement:
        """What takes the place of the matched nodes' outputs."""


class ModelPass(Pass):
    """A pass that has to see the whole model."""

    @abstractmethod
    def propose(self, graph: Facts) -> Iterator[Proposal | Drop | Share | Refused]:
        """What to change; each proposal is carried out before the next is asked for."""
