"""onnx's own test cases in newer opsets: a case that ran and gave the expected values still does after raising.

A case is raised from the opset it is written for and, if the same nodes are valid and run in older versions of its
operators, from those opsets too. By default a small share of the cases runs; all of them run with

    SARDONYX_ALL_CASES=1 python -m pytest tests/backend/test_raised_cases.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import onnx
import pytest

from backend.cases import Case, node_cases, shipped_cases
from backend.harness import wrong_values
from raised import raised
from sardonyx import runtime
from sardonyx.ir.opset_raising import NEWEST, OLDEST, since

SHARDS = 80
SELECTED = range(SHARDS) if os.environ.get("SARDONYX_ALL_CASES") else (7,)


def opset_of(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def written_in(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = opset
    return copy


def older(case: Case) -> Iterator[onnx.ModelProto]:
    """The case in its own opset, and in the last opset before each change of its operators."""
    own, operators = opset_of(case.model), {node.op_type for node in case.model.graph.node if not node.domain}
    for opset in range(OLDEST, NEWEST):
        changed = any(since(each, opset) != since(each, opset + 1) for each in operators)
        if opset == own or (opset < own and changed):
            model = written_in(case.model, opset)
            if is_valid(model) and not wrong_values(case, model, in_runtime):
                yield model


def is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return False
    return True


def in_runtime(model: onnx.ModelProto) -> runtime.Engine:
    return runtime.Session(model, threads=1)


@pytest.mark.parametrize("shard", SELECTED)
def test_raised_cases_run_and_give_the_expected_values(shard: int) -> None:
    failures: list[str] = []
    good = refused = 0
    for case in (*node_cases(), *shipped_cases())[shard::SHARDS]:
        for model in older(case) if case.data else ():
            after, _ = raised(model, NEWEST)
            where = f"{case.name} from opset {opset_of(model)}"
            if after is None:
                refused += 1
            elif not is_valid(after):
                failures.append(f"{where}: invalid")
            elif wrong := wrong_values(case, after, in_runtime):
                failures.append(f"{where}: {wrong[0]}")
            else:
                good += 1
    assert not failures, "\n".join(failures)
    assert good > 10 * refused, f"{refused} refused, only {good} raised"
