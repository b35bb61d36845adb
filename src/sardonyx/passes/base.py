"""The base classes of passes: a name, the algebra, an accuracy class, an example, and a rule for the driver.

A pass does not change the graph, and does not verify, measure or log. It reports what it matched and what should
replace it. This module also offers the other names that passes are written with.
"""

from __future__ import annotations

import re
import sys
from abc import abstractmethod
from collections.abc import Container
from importlib import import_module
from typing import ClassVar

import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import force_setattr

from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Builder, Drop, Match, ModelRule, NodeRule, Proposal, Refused, Replacement, Rule, Share
from sardonyx.passes._matching import NoMatch, operand_producer, optional, require, required
from sardonyx.records.run import Accuracy

__all__ = [
    "ALL_TARGETS", "Accuracy", "Builder", "Drop", "Example", "Facts", "Match", "ModelPass", "NoMatch", "NodePass",
    "OperandPass", "PairPass", "Pass", "Proposal", "Refused", "Replacement", "Share", "optional", "require", "required",
]  # fmt: skip
ALL_TARGETS = ("portable", "ort")


class Example(Struct, frozen=True):
    """A rewrite in ONNX text; the contract test runs it.

    `before` becomes `after`. `near_miss` stays unchanged and is refused for a reason that contains `refusal`, which is
    empty if the pass does not report it. A text may leave out the header, which then imports the operators of `opset`
    (and those of com.microsoft if it has some), and the name of the graph: `(float[N] x) => (float[N] y) {…}`. The
    others may leave out inputs and outputs that are those of `before`, as in `<float two = {2}> {…}`, and its constants
    as well: `{…}`.
    """

    before: str
    after: str
    near_miss: str
    refusal: str = ""
    opset: int = 18

    def __post_init__(self) -> None:
        """Add what is left out."""
        head = re.search(r"(?s)(\([^()]*\)\s*=>\s*\([^()]*\))\s*(<.*?>)?\s*(?=\{)", self.before)
        interface, constants = (head[1], head[2] or "") if head else ("", "")
        for name in ("before", "after", "near_miss"):
            text = getattr(self, name).strip()
            if text.startswith("<ir_version"):
                continue
            text = f"{interface} {constants if text.startswith('{') else ''} {text}" if text[:1] in ("<", "{") else text
            graph = f"agraph {text}" if text.startswith("(") else text
            contrib = ', "com.microsoft" : 1' if "com.microsoft." in text else ""
            version = 11 if self.opset >= 23 else 10
            header = f'<ir_version: {version}, opset_import: ["" : {self.opset}{contrib}]>'
            force_setattr(self, name, f"{header} {graph}")


class Pass(Rule):
    """A rewrite rule with the texts and options that users see."""

    targets: ClassVar[tuple[str, ...]] = ALL_TARGETS  # for which it rewrites
    reports_missed: ClassVar[bool] = False  # also runs for other targets, where each match is a missed fusion
    slower: ClassVar[str] = ""  # what was measured if it makes graphs smaller but slower; then it runs on request only
    example: ClassVar[Example]

    def __init_subclass__(cls) -> None:
        """Name the pass after its file if it has no name."""
        file = cls.__module__.rpartition(".")[2]
        if not hasattr(cls, "name") and cls.__module__ != __name__ and not file.startswith("_"):
            cls.name = file.replace("_", "-")

    @property
    def algebra(self) -> str:
        """Return the rewrite as a formula: the first line of the module docstring."""
        return _docstring_lines(self)[0].rstrip(".")

    @property
    def about(self) -> str:
        """Return when the pass refuses and why it helps: the rest of the module docstring, as one paragraph."""
        return " ".join(" ".join(_docstring_lines(self)[1:]).split())


def _docstring_lines(rule: Rule) -> list[str]:
    """Return the docstring lines of the module of a pass, or of its class if the module has none."""
    text = sys.modules[type(rule).__module__].__doc__ or type(rule).__doc__ or rule.name
    return text.strip().splitlines()


class NodePass(Pass, NodeRule):
    """A pass that matches one node and its surroundings."""


class OperandPass(NodePass):
    """A pass that matches one operand of a node, whichever it is."""

    def match(self, node: ir.Node, graph: Facts) -> Match | Refused | None:
        """Return the match of the first operand that has one, otherwise the first refusal."""
        first: Refused | None = None
        for index in range(len(node.inputs)):
            result = self.outcome(self.match_operand, node, index, graph)
            if isinstance(result, Match):
                return result
            first = first or result
        return first

    @abstractmethod
    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        """Return what `match` returns, for one operand."""


class PairPass(OperandPass):
    """A pass that matches an operator and the producer of one of its operands, as in f(g(x)).

    What it raises as a refusal is about both, and comes second to the refusal for other readers of the operand.
    """

    inner: ClassVar[Container[str]]  # the operators that may produce the operand
    operand: ClassVar[int | None] = None  # its index; any one if None
    read_elsewhere: ClassVar[str] = ""  # why it refuses if another node reads the operand too; without, it does not

    def match_operand(self, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        """Return the match of the node with the producer of one operand."""
        inner = operand_producer(node, index, self.inner) if self.operand in (None, index) else None
        result = None if inner is None else self.outcome(self.match_pair, inner, node, index, graph)
        if inner is None or result is None:
            return None
        if self.read_elsewhere and graph.sole_consumer(inner.outputs[0]) is not node:
            return Refused(self.read_elsewhere, (inner, node))
        return result if isinstance(result, Match) or result.nodes else Refused(result.reason, (inner, node))

    @abstractmethod
    def match_pair(self, inner: ir.Node, node: ir.Node, index: int, graph: Facts) -> Match | Refused | None:
        """Return what `match` returns, for a node and the producer of its operand at this place."""


class ModelPass(Pass, ModelRule):
    """A pass that needs to see the whole model."""


def family(package: str, names: str) -> tuple[Pass, ...]:
    """Return the passes in some files of a package, in the order they run."""
    modules = [import_module(f"{package}.{name}") for name in names.split()]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    own = {module.__name__ for module in modules}
    return tuple(kind() for kind in kinds if issubclass(kind, Pass) and kind.__module__ in own)
