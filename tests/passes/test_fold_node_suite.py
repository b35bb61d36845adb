"""onnx's own node cases with constant inputs: folded results equal the results of the engine bit for bit.

A part of the 1,884 cases that covers most operators and types; all of them take a minute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from backend.cases import Case, node_cases
from sardonyx import runtime
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes.folding.fold_constants import FoldConstants

STEP = 12


def frozen(case: Case) -> onnx.ModelProto | None:
    """The case's model with its inputs as initializers and an Identity before every output; None without tensors."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(model.ir_version, 8)
    given: dict[str, Any] = case.data[0][0]
    for info in model.graph.input:
        value = given.get(info.name)
        if not isinstance(value, np.ndarray) or not info.type.HasField("tensor_type"):
            return None
        model.graph.initializer.append(_tensor(info.name, value, info.type.tensor_type.elem_type))
    del model.graph.input[:]
    for output in model.graph.output:
        if not output.type.HasField("tensor_type"):
            return None
        model.graph.node.append(helper.make_node("Identity", [output.name], [f"{output.name}__out"]))
        output.name += "__out"
    return model


def _tensor(name: str, value: np.ndarray, kind: int) -> onnx.TensorProto:
    if value.dtype == object:
        texts = [text.encode() if isinstance(text, str) else text for text in value.reshape(-1)]
        return onnx.TensorProto(name=name, data_type=kind, dims=value.shape, string_data=texts)
    return ir.to_proto(ir.Tensor(value, dtype=ir.DataType(kind), name=name))


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    """A fixture, so that collecting the tests does not generate the cases."""
    return node_cases()[::STEP]


def folded(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model after constant folding; None if nothing folds."""
    model = io.from_proto(proto)
    log = Rewriter(Facts(model, evaluate=runtime.evaluate), [FoldConstants()]).run()
    return io.to_proto(model) if log.events else None


@pytest.mark.campaign
def test_folded_results_equal_the_results_of_the_engine(cases: tuple[Case, ...], subtests: pytest.Subtests) -> None:
    count = 0
    for case in cases:
        proto = frozen(case)
        if proto is None or not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
            continue  # no standard operator on tensors alone
        with subtests.test(case.name):
            result = folded(proto)
            if result is None:
                continue
            count += 1
            onnx.checker.check_model(result)
            for wanted, got in zip(runtime.evaluate(proto), runtime.evaluate(result), strict=True):
                assert (wanted.dtype, wanted.shape) == (got.dtype, got.shape)
                assert wanted.tolist() == got.tolist() if wanted.dtype == object else wanted.tobytes() == got.tobytes()
    assert count > 120, "a pass that folds nothing would pass every case above"
