"""Whether all of a model can be written in a newer operator set, and how.

Functions bring their own operator sets and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx_ir as ir

from sardonyx.ir.facts import Facts
from sardonyx.ir.opsets.adapter_base import CannotRaise, OpsetStep, Rewrite
from sardonyx.ir.opsets.adapters import ADAPTERS
from sardonyx.ir.opsets.history import NEWEST, OLDEST, exists, must_adapt, since
from sardonyx.ir.rules import Rule
from sardonyx.ir.scopes import label
from sardonyx.records.run import Accuracy

HIGHEST = NEWEST  # how far a model is raised where nobody says otherwise

_BARE_INITIALIZERS = 4  # the IR version since which an initializer that is an input may be overridden by callers


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What it takes to have a model in a newer operator set."""

    old: int
    new: int
    ir_version: int
    rewrites: tuple[tuple[ir.Node, Rewrite], ...]

    @property
    def name(self) -> str:
        """The stable key of the raise."""
        return f"opset {self.new}"


class RaiseOpset(Rule):
    """What the record calls it."""

    name: ClassVar[str] = "raise-opset"
    accuracy: ClassVar[Accuracy] = Accuracy.REASSOCIATES
    algebra: ClassVar[str] = "a node of an older opset  =>  the same in a newer one, for a fusion that needs it"
    about: ClassVar[str] = (
        "One raise is one rewrite: a model half in one opset and half in another is none. The function stays the same, "
        "but a runtime may have other code for a newer operator, which rounds otherwise."
    )


RAISE = RaiseOpset()


def plan(facts: Facts, nodes: Mapping[str, Iterable[ir.Node]], new: int) -> Plan:
    """How to raise a model; `nodes` are those of the standard operators in it, by operator.

    Raises:
        CannotRaise: where something in the model would not stay the same.
    """
    old = facts.scopes[facts.model.graph].opset
    if not OLDEST <= old < new <= NEWEST:
        raise CannotRaise(f"opset {old} is not raised")
    ir_version = max(facts.model.ir_version, _least_ir_version(new))
    _check_inputs(facts.model, ir_version)
    rewrites: list[tuple[ir.Node, Rewrite]] = []
    functions = bool(facts.model.functions)
    for op_type, users in nodes.items():
        outside = [node for node in users if not facts.scope(node).in_function] if functions else list(users)
        if not outside:
            continue
        if not exists(op_type, old):
            raise CannotRaise(f"{op_type} ({label(outside[0])}) is no operator of opset {old}")
        if must_adapt(op_type, old, new):
            rewrites.extend(_adapted(outside, facts, old, new))
    _check_functions(facts, new)
    return Plan(old, new, ir_version, tuple(rewrites))


def _adapted(nodes: Iterable[ir.Node], facts: Facts, old: int, new: int) -> Iterable[tuple[ir.Node, Rewrite]]:
    for node in nodes:
        try:
            rewrite = ADAPTERS[node.op_type](OpsetStep(node, facts, old, new))
        except CannotRaise as error:
            raise CannotRaise(f"{node.op_type} ({label(node)}) cannot be raised: {error}") from error
        if rewrite is not None:
            yield node, rewrite


def _check_inputs(model: ir.Model, ir_version: int) -> None:
    """Weights listed as inputs are constants to a runtime in old files, and would not be any longer."""
    if model.ir_version < _BARE_INITIALIZERS <= ir_version and any(
        value.is_graph_input() for value in model.graph.initializers.values()
    ):
        raise CannotRaise(f"weights that are inputs as well would no longer be constants above IR {model.ir_version}")


def _check_functions(facts: Facts, new: int) -> None:
    """A function may keep its operator set only where its operators are the same in the model's."""
    for function in facts.model.functions.values():
        own = function.opset_imports.get("", 0) or function.opset_imports.get("ai.onnx", 0)
        for node in function.all_nodes():
            if not node.domain and since(node.op_type, own) != since(node.op_type, new):
                raise CannotRaise(f"the function {function.name} uses {node.op_type} of opset {own}")


def _least_ir_version(opset: int) -> int:
    return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
