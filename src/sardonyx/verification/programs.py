"""Compares a graph with the program that torch exported, run in PyTorch."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.errors import UsageError
from sardonyx.frontend.tracing.engine import TorchEngine, to_array
from sardonyx.frontend.tracing.programs import Program
from sardonyx.records.run import Accuracy, Verdict
from sardonyx.verification.compare import Oracle, seeds_from

_RANDOM_TRIALS = 3


def compare_with_program(
    program: Program,
    model: ir.Model,
    *,
    accuracy: Accuracy = Accuracy.REASSOCIATES,
    seed: int = 0,
    threads: int | None = None,
) -> Verdict:
    """Compare a graph that has the interface of a program with it, on its example and on random inputs.

    Raises:
        UsageError: If the program itself is not known.
    """
    call = program.call
    if call is None:
        hint = "leave verification out, or pass what `torch.onnx.export(…, dynamo=True)` returns"
        raise UsageError("this ONNXProgram has no exported program to compare with", hint=hint)
    ordered = any(node.op_type == "TopK" for node in model.graph.all_nodes())
    oracle = Oracle(
        program.model,
        inputs=[{name: to_array(tensor) for name, tensor in call.feeds.items()}],
        engine=TorchEngine(call, ordered=ordered),
        seeds=seeds_from(seed),
        trials=_RANDOM_TRIALS,
        threads=threads,
    )
    return oracle.check(model, accuracy)
