"""Compare an exported half-precision graph with its module, both computed in float32.

In float16 or bfloat16 two correct programs differ by rounding as much as a wrong weight would show, and ONNX Runtime
has no CPU kernel for most operators in bfloat16. A copy of the graph with its narrow types replaced by float32 is
therefore compared with the module in float32, on the weights as stored. The graph itself is also loaded, which finds
invalid types, and run if the runtime has kernels for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec.structs import replace

from sardonyx.errors import ModelError, RuntimeFailure
from sardonyx.records.run import Accuracy, Verdict
from sardonyx.runtime import Engine, Value
from sardonyx.runtime.library import NoKernel
from sardonyx.verification.compare import Oracle
from sardonyx.verification.reference import Progress
from sardonyx.verification.rounding import LiveEngine
from sardonyx.verification.subject import Model, Subject
from sardonyx.verification.tolerance import float_difference, is_float
from sardonyx.verification.upcast import constants_cast


def check_in_float32(
    exported: Model,
    wide: ir.Model,
    *,
    module: LiveEngine,
    module_itself: Engine,
    weights: Collection[str],
    inputs: Sequence[Mapping[str, Value]],
    seeds: Sequence[int],
    trials: int,
    threads: int | None,
    progress: Progress,
) -> Verdict:
    """Compare a graph with its module in float32, and report how the graph itself ran.

    Args:
        exported: The graph.
        wide: Its copy in float32, from `upcast(…, constants="widen")`.
        module: The module in float32.
        module_itself: The module in its own types.
        weights: Names of the module's parameters and buffers; the graph's other constants may be rounded.
        inputs: Example inputs; the graph itself is run on the first.
        seeds: Seeds of the generated inputs.
        trials: The largest number of generated trials.
        threads: Threads of the runtime.
        progress: Called with one line about the current step.

    Raises:
        ModelError: The graph is not valid.
    """
    try:
        failures, note = _run_in_own_types(exported, module_itself, inputs[0], threads)
    except RuntimeFailure as refusal:
        raise ModelError(
            f"torch wrote a graph in half precision that is not valid: {refusal.message}",
            hint='use `dtype="float32"`',
        ) from refusal
    rounded = set(constants_cast(wide)) - set(weights) - set(inputs[0])
    oracle = Oracle(
        wide,
        inputs=inputs,
        seeds=seeds,
        trials=trials,
        threads=threads,
        progress=progress,
        engine=module,
        rounded=rounded,
    )
    verdict = oracle.check(wide, Accuracy.REASSOCIATES)
    return replace(
        verdict,
        passed=verdict.passed and not failures,
        failures=(*verdict.failures, *failures),
        notes=(f"both sides computed in float32 with the weights as stored; {note}", *verdict.notes),
        computed_in="float32",
    )


def _run_in_own_types(
    exported: Model, module: Engine, feeds: Mapping[str, Value], threads: int | None
) -> tuple[list[str], str]:
    """Return the failures of the graph in its own types, and a note about that run.

    Raises:
        RuntimeFailure: The graph does not load.
    """
    try:
        engine = Subject(exported).session(threads=threads)
    except NoKernel as refusal:
        missing = f"ONNX Runtime has no CPU kernel for {refusal.operator} in the graph's own types"
        return [], f"{missing}, so it was not run in them"
    with engine:
        try:
            expected, results = module.run(feeds), engine.run(feeds)
        except RuntimeFailure as refusal:
            return [], f"in its own types the graph was not run: {refusal.message}"
    return _compare(expected, results)


def _compare(expected: Sequence[Value], results: Sequence[Value]) -> tuple[list[str], str]:
    worst = 0.0
    for a, b in zip(expected, results, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or not is_float(a.dtype):
            continue
        overflowed = np.isfinite(a.astype(np.float64)) & ~np.isfinite(b.astype(np.float64))
        if overflowed.any():
            where = f"{int(overflowed.sum())} of {overflowed.size} elements"
            return [f"in {a.dtype.name} the graph overflows in {where} where the module does not"], "it overflows"
        worst = max(worst, float_difference(a, b).rms)
    return [], f"in its own types the graph is within {worst:.2g} of PyTorch on the example (root mean square)"
