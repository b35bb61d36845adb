"""An exported graph of half precision against its module, both computed in float32.

In float16 or bfloat16 two right programs differ by their roundings, and a wrong weight hides among them; ONNX Runtime
has no CPU kernel for most operators in bfloat16. So the graph with its narrow types turned into float32 is compared
with the module in float32, on the weights as they are stored. Beside that the graph itself is loaded, which finds
invalid types, and run where the runtime has kernels.
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
    other_exporter: str,
    seeds: Sequence[int],
    trials: int,
    threads: int | None,
    progress: Progress,
) -> Verdict:
    """Compare a graph with its module in float32, and say how the graph itself ran.

    Args:
        exported: The graph.
        wide: Its copy in float32, from `upcast(…, constants="widen")`.
        module: The module in float32.
        module_itself: The module in its own types.
        weights: Names of the module's parameters and buffers; the graph's other constants may be rounded.
        inputs: Example inputs; the graph itself is run on the first.
        other_exporter: Named in the hint if the graph is not valid.
        seeds: Of the generated inputs.
        trials: At most this many generated ones.
        threads: Of the runtime.
        progress: Told in one line what is being done.

    Raises:
        ModelError: The graph is not valid.
    """
    try:
        failures, note = _as_it_is(exported, module_itself, inputs[0], threads)
    except RuntimeFailure as refusal:
        raise ModelError(
            f"torch wrote a graph in half precision that is not valid: {refusal.message}",
            hint=f'`dtype="float32"`, or `exporter="{other_exporter}"`',
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


def _as_it_is(
    exported: Model, module: Engine, feeds: Mapping[str, Value], threads: int | None
) -> tuple[list[str], str]:
    """What is wrong with the graph in its own types, and a sentence on how it ran there.

    Raises:
        RuntimeFailure: The graph does not load.
    """
    try:
        engine = Subject(exported).session(threads=threads)
    except NoKernel as refusal:
        return [], f"ONNX Runtime has no CPU kernel for {refusal.operator} in the graph's own types, which were not run"
    with engine:
        try:
            expected, found = module.run(feeds), engine.run(feeds)
        except RuntimeFailure as refusal:
            return [], f"in its own types the graph was not run: {refusal.message}"
    return _compared(expected, found)


def _compared(expected: Sequence[Value], found: Sequence[Value]) -> tuple[list[str], str]:
    worst = 0.0
    for one, other in zip(expected, found, strict=True):
        if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray) or not is_float(one.dtype):
            continue
        lost = np.isfinite(one.astype(np.float64)) & ~np.isfinite(other.astype(np.float64))
        if lost.any():
            where = f"{int(lost.sum())} of {lost.size} elements"
            return [f"in {one.dtype.name} the graph overflows in {where} where the module does not"], "it overflows"
        worst = max(worst, float_difference(one, other).rms)
    return [], f"in its own types the graph is within {worst:.2g} of PyTorch on the example (root mean square)"
