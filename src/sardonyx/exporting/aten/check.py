"""Check every operation of an exported program against the ONNX nodes it became."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sardonyx.exporting.aten.decide import decide
from sardonyx.frontend.tracing.translations import Operation
from sardonyx.records.export import OperatorChecks
from sardonyx.verification.exact_check import Claim, Decision

_SHOWN = 4  # nodes in a message


def check(operations: Sequence[Operation]) -> OperatorChecks:
    """Decide the operations; each occurs in as many places as it has modules."""
    known: dict[Any, Decision] = {}
    decisions = [(each, decide(each, known)) for each in operations]
    counts, undecided = Counter[Claim](), Counter[str]()
    for operation, decision in decisions:
        counts[decision.claim] += len(operation.modules)
        if decision.claim is Claim.UNDECIDED:
            undecided[f"{operation.name}: {decision.reason}"] += len(operation.modules)
    wrong = [_sentence(each, decision) for each, decision in decisions if decision.claim is Claim.UNEQUAL]
    return OperatorChecks(
        operators=counts.total(),
        distinct=len(operations),
        all_values=counts[Claim.ALL_VALUES],
        orders_tried=counts[Claim.ORDERS_TRIED],
        undecided=dict(undecided.most_common()),
        unequal=tuple(wrong),
    )


def _sentence(operation: Operation, decision: Decision) -> str:
    nodes = [node.op_type for node in operation.excerpt.graph.node] if operation.excerpt is not None else []
    shown = [name for name in nodes if name != "Constant"]
    became = ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else "") or "nothing"
    where = f" in module '{operation.modules[0]}'" if operation.modules[0] else ""
    return f"{operation.name}{where} became {became}, which differs in exact arithmetic: {decision.reason}"
