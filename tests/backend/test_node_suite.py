"""onnx's own test cases through the optimizer: no crash, no wrong value, no invalid model, no changed interface.

1,884 node cases and 149 stored models, divided into shards so that test processes share them evenly. The default run
has a third of the node cases; `-m campaign` runs the others.
"""

from __future__ import annotations

import onnx
import pytest

import sardonyx
from backend.cases import Case, node_cases, shipped_cases
from backend.harness import examine
from sardonyx.ir import io

NODE_SHARDS = 38
EVERY = 3  # shard of these is in the default run
SHIPPED_SHARDS = 4


def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    optimized = sardonyx.optimize(model, verify="off").model
    assert optimized is not None
    return io.to_proto(optimized)


def check(cases: tuple[Case, ...], runnable_at_least: float) -> None:
    reports = [examine(case, optimize) for case in cases]
    failures = [failure for report in reports for failure in report.failures]
    assert not failures, f"{len(failures)} findings in {len(cases)} cases:\n" + "\n".join(failures)
    runnable = sum(report.runnable for report in reports)
    assert runnable >= runnable_at_least * len(cases), f"only {runnable} of {len(cases)} could be checked for values"


@pytest.mark.parametrize(
    "shard", [pytest.param(i, marks=pytest.mark.campaign if i % EVERY else ()) for i in range(NODE_SHARDS)]
)
def test_node_cases(shard: int) -> None:
    assert len(node_cases()) >= 1884
    check(node_cases()[shard::NODE_SHARDS], runnable_at_least=0.9)


@pytest.mark.parametrize("shard", range(SHIPPED_SHARDS))
def test_shipped_models(shard: int) -> None:
    assert len(shipped_cases()) >= 149
    check(shipped_cases()[shard::SHIPPED_SHARDS], runnable_at_least=0.9)
