"""Plan the conversion of a whole model to a newer operator set.

Functions have their own operator sets and are not changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import ClassVar

import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import RANDOM, REDUCES, SOFTMAXES
from sardonyx.ir.opset_adapters import ADAPTERS, CannotRaise, OpsetStep, Rewrite
from sardonyx.ir.rules import BARE_INITIALIZERS, Rule
from sardonyx.ir.scopes import label
from sardonyx.records.run import Accuracy

NEWEST = 23  # the last version whose changes are known here
OLDEST = 7  # before that, broadcasting was requested by an attribute
HIGHEST = NEWEST  # the default limit for raising a model

# The changes of operators that affect existing nodes, by version: a node of an older version may have to be rewritten
# (`opset_adapters`), or cannot be converted or run at all. All other versions only added types, an attribute whose
# default is the old meaning or an optional input, or improved the documentation. A test checks this table against every
# schema and the list of the runtime's kernels.
_AFFECTED: Mapping[int, frozenset[str]] = {
    9: frozenset({"BatchNormalization", "Scan", "Upsample"}),
    10: frozenset({"Dropout", "Slice", "TopK", "Upsample"}),
    11: frozenset({"Clip", "ConvTranspose", "OneHot", "Pad", "Resize", "Scatter"}),
    12: frozenset({"Dropout"}),
    13: SOFTMAXES | {"Erf", "MeanVarianceNormalization", "ReduceSum", "Resize", "Split", "Squeeze", "Unsqueeze"},
    14: frozenset({"BatchNormalization"}),
    16: frozenset({"RoiAlign"}),
    18: REDUCES - {"ReduceSum"} | {"Split"},
    19: frozenset({"AveragePool"}),
    20: frozenset({"DFT", "GridSample"}),
    21: frozenset({"GroupNormalization"}),
    22: RANDOM | {"AveragePool", "GlobalLpPool", "MaxPool", "MaxRoiPool", "RoiAlign"},
}


def affected(op_type: str, old: int, new: int) -> bool:
    """Return whether nodes of opset `old` may have to be rewritten for opset `new`."""
    return any(old < version <= new and op_type in names for version, names in _AFFECTED.items())


@functools.cache
def since(op_type: str, opset: int) -> int:
    """Return the version of the operator in an operator set, or 0 if it has none."""
    try:
        return onnx.defs.get_schema(op_type, opset, "").since_version
    except onnx.defs.SchemaError:
        return 0


class OpsetPlan(Struct, frozen=True, eq=False):
    """The changes that convert a model to a newer operator set."""

    old: int
    new: int
    ir_version: int
    rewrites: tuple[tuple[ir.Node, Rewrite], ...]

    @property
    def name(self) -> str:
        """Return the stable key of the conversion."""
        return f"opset {self.new}"


class RaiseOpset(Rule):
    """The rule under which a conversion is recorded."""

    name: str = "raise-opset"
    accuracy: ClassVar[Accuracy] = Accuracy.REASSOCIATES
    algebra: ClassVar[str] = "a node of an older opset  =>  the same in a newer one, for a fusion that needs it"
    about: ClassVar[str] = (
        "The whole model is raised in one rewrite, because a model has one opset. The function stays the same, "
        "but a runtime may have another kernel for a newer operator, which may round differently."
    )


RAISE = RaiseOpset()


def plan(facts: Facts, nodes: Mapping[str, Iterable[ir.Node]], new: int) -> OpsetPlan:
    """Return how to raise a model; `nodes` are its nodes of standard operators, by operator.

    Raises:
        CannotRaise: if something in the model would not stay the same.
    """
    old = facts.scopes[facts.model.graph].opset
    if not OLDEST <= old < new <= NEWEST:
        raise CannotRaise(f"opset {old} is not raised")
    ir_version = max(facts.model.ir_version, onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", new)]))
    _check_inputs(facts.model, ir_version)
    rewrites: list[tuple[ir.Node, Rewrite]] = []
    functions = bool(facts.model.functions)
    for op_type, users in nodes.items():
        outside = [node for node in users if not facts.scope(node).in_function] if functions else list(users)
        if not outside:
            continue
        if not since(op_type, old):
            raise CannotRaise(f"{op_type} ({label(outside[0])}) is not an operator of opset {old}")
        if affected(op_type, old, new):
            rewrites.extend(_adapted(outside, facts, old, new))
    _check_functions(facts, new)
    return OpsetPlan(old, new, ir_version, tuple(rewrites))


def _adapted(nodes: Iterable[ir.Node], facts: Facts, old: int, new: int) -> Iterable[tuple[ir.Node, Rewrite]]:
    for node in nodes:
        try:
            rewrite = ADAPTERS[node.op_type](OpsetStep(node, facts, old, new))
        except CannotRaise as error:
            raise CannotRaise(f"{node.op_type} ({label(node)}) cannot be raised: {error}") from error
        if rewrite is not None:
            yield node, rewrite


def _check_inputs(model: ir.Model, ir_version: int) -> None:
    """Refuse weights that are also inputs: they are constants in old files, but not in newer IR versions."""
    if model.ir_version < BARE_INITIALIZERS <= ir_version and any(
        value.is_graph_input() for value in model.graph.initializers.values()
    ):
        raise CannotRaise(
            f"weights that are also inputs would no longer be constants above IR version {model.ir_version}"
        )


def _check_functions(facts: Facts, new: int) -> None:
    """Refuse a function whose operators differ from those of the same name in the new operator set."""
    for function in facts.model.functions.values():
        own = function.opset_imports.get("", 0) or function.opset_imports.get("ai.onnx", 0)
        for node in function.all_nodes():
            if not node.domain and since(node.op_type, own) != since(node.op_type, new):
                raise CannotRaise(f"the function {function.name} uses {node.op_type} of opset {own}")
