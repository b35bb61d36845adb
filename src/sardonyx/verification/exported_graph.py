"""Compare an exported graph with what it was exported from: a half-precision module, or the program that torch wrote.

In float16 or bfloat16 two correct programs differ by rounding as much as a wrong weight would show, and ONNX Runtime
has no CPU kernel for most operators in bfloat16. A copy of the graph with its narrow types replaced by float32 is
therefore compared with the module in float32, on the weights as stored. The graph itself is also loaded, which finds
invalid types, and run if the runtime has kernels for it.

A float32 module may compute a part in half precision, by a cast or by autocast. Its graph must run where the module
does: if the runtime has no kernels for that part, it is computed in float32 and rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec.structs import replace

from sardonyx.errors import ModelError, RuntimeFailure, UsageError
from sardonyx.frontend.tracing.engine import TorchEngine, to_array
from sardonyx.frontend.tracing.traced import Program
from sardonyx.records.run import Accuracy, Verdict
from sardonyx.runtime import Array, Engine, Value
from sardonyx.runtime.library import NoKernel
from sardonyx.verification.compare import Oracle, seeds_from
from sardonyx.verification.reference import Progress
from sardonyx.verification.subject import Model, Subject
from sardonyx.verification.tolerance import ROUNDING_FACTOR, epsilon, float_difference, is_float
from sardonyx.verification.upcast import constants_cast, narrow_types, round_results


def round_without_kernels(model: ir.Model, exported: Model, *, threads: int | None) -> str | None:
    """Change the graph of a float32 module to one that the runtime loads, and return a note; None if it loads.

    The graph is also given as the file that was `exported`.
    """
    try:
        Subject(exported).session(threads=threads).close()
    except RuntimeFailure as refusal:  # Casts also correct types that the opset lacks, and mixed ones
        kinds = " and ".join(sorted(kind.numpy().name for kind in narrow_types(model)))
        round_results(model)
        operator = f" for {refusal.operator}" if isinstance(refusal, NoKernel) else ""
        missing = f"ONNX Runtime has no CPU kernel{operator} in {kinds}, which the module uses"
        return f"{missing}: computed in float32 and rounded to {kinds}"
    return None


def check_in_float32(
    exported: Model,
    wide: ir.Model,
    *,
    module: TorchEngine,
    module_itself: Engine,
    is_half: bool,
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
        is_half: Whether the module is in half precision, not only a part of it.
        weights: Names of the module's parameters and buffers; the graph's other constants may be rounded.
        inputs: Example inputs; the graph itself is run on the first.
        seeds, trials, threads, progress: As for `verify`.

    Raises:
        ModelError: The graph is not valid.
    """
    try:
        wide_outputs = None if is_half else module.run(inputs[0])
        failures, note = _run_in_own_types(exported, module_itself, inputs[0], threads, wide_outputs)
    except RuntimeFailure as refusal:
        raise ModelError(
            f"torch wrote a graph in half precision that is not valid: {refusal.message}", hint='use `dtype="float32"`'
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
    exported: Model,
    module: Engine,
    feeds: Mapping[str, Value],
    threads: int | None,
    wide_outputs: Sequence[Value] | None,
) -> tuple[list[str], str]:
    """Return the failures of the graph in its own types, and a note about that run.

    If the module's outputs in float32 are given, the graph may differ from the module by a multiple of what the
    module's own rounding amounts to.

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
    failures, note = _compare(expected, results)
    if wide_outputs is not None and not failures:
        eps = max(epsilon(kind.numpy()) for kind in narrow_types(Subject(exported).model))
        failures = _beyond_own_rounding(expected, results, wide_outputs, eps)
    return failures, note


def _beyond_own_rounding(
    expected: Sequence[Value], results: Sequence[Value], wide: Sequence[Value], eps: float
) -> list[str]:
    for a, b, c in zip(expected, results, wide, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or not isinstance(c, np.ndarray):
            continue
        if is_float(a.dtype):
            error, own = (float_difference(_single(a), _single(other)).rms for other in (b, c))
            allowed = ROUNDING_FACTOR * max(own, eps)
            if error > allowed:
                return [f"in its own types the graph differs by {error:.3g} (root mean square), allowed {allowed:.3g}"]
    return []


def _single(array: Array) -> Array:
    return array.astype(np.float32)


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
