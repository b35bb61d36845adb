"""What a pass is: a name, its algebra, an accuracy class, an example, and a rule for the driver.

A pass never changes the graph, verifies, measures or logs; it says what it found and what should stand there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from sardonyx.ir.rules import ModelRule, NodeRule, Rule

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


class Pass(Rule):
    """A rule with what people want to know of it."""

    targets: ClassVar[tuple[str, ...]] = EVERYWHERE
    slower: ClassVar[str] = ""  # what was measured, where it makes a graph smaller and not faster: runs on request only
    example: ClassVar[Example]

    @property
    def algebra(self) -> str:
        """The rewrite as a formula: the first line of the pass's file."""
        return _said(self)[0].rstrip(".")

    @property
    def about(self) -> str:
        """When it refuses and why it helps: the rest of what the pass's file says first, as one paragraph."""
        return " ".join(" ".join(_said(self)[1:]).split())


def _said(rule: Rule) -> list[str]:
    """What the file of a pass begins with, line by line; a pass that was typed in has only a class."""
    text = sys.modules[type(rule).__module__].__doc__ or type(rule).__doc__ or rule.name
    return text.strip().splitlines()


class NodePass(Pass, NodeRule):
    """A pass that looks at one node and its surroundings."""


class ModelPass(Pass, ModelRule):
    """A pass that has to see the whole model."""
