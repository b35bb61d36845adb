"""The mutation score of the verifier: how many planted faults it finds, and which it does not and why.

    python benchmarks/mutants.py [--seed N] [--per-kind N] [--only MODEL]

A mutant counts when it still runs. One that passes is listed where a note of the verdict names what was not covered,
equal where it gives the same answers as its original in double precision on long, large and small inputs (a key's bias
shifts every score of a row alike, and softmax does not see it), below rounding where it moves them by less than eight
eps of single precision (an epsilon of 1e-12 or 1e-10), and silent otherwise. As a control, the original rewritten by
the runtime's own optimizer must pass. The bars: at least 99 % detected or listed, at most 0.3 % silent.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

import mutations
import subjects
from sardonyx.errors import RuntimeFailure
from sardonyx.runtime import Session
from sardonyx.verification import Oracle

# Length and scale of inputs, and whether they lie around one value.
HOSTILE = (
    (9, 2.0, False), (9, 2.0, False), (40, 2.0, False), (64, 1.0, False), (9, 300.0, False), (9, 30.0, False),
    (9, 30.0, False), (9, 1e-3, False), (9, 9.0, True), (9, 230.0, True), (9, -35.0, True),
)  # fmt: skip
SAME_IN_DOUBLE = 1e-11  # of the output's scale: seven digits below what single precision resolves
SAME_IN_SINGLE = 8 * 2.0**-23  # of the output's scale: another order of the same sums moves as much
RESULTS = ("detected", "listed", "silent", "rounding", "equal")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant."""

    model: str
    kind: str
    number: int
    result: str  # one of RESULTS
    moved: float  # how far the answers move in double precision, of the output's scale; nan if not asked


def mutants(
    model: onnx.ModelProto, kind: str, count: int, rng: np.random.Generator
) -> list[tuple[int, onnx.ModelProto]]:
    """Up to `count` mutants of one kind, at sites drawn without repetition."""
    total = sum(1 for _ in mutations.KINDS[kind](_copy(model), np.random.default_rng(0)))
    chosen = sorted(rng.permutation(total)[:count])
    made: list[tuple[int, onnx.ModelProto]] = []
    for number in chosen:
        mutant = _copy(model)
        plant = list(mutations.KINDS[kind](mutant, np.random.default_rng(number)))[number]
        plant()
        made.append((int(number), mutant))
    return made


def judge(name: str, model: onnx.ModelProto, per_kind: int, seed: int, kinds: list[str] | None = None) -> list[Outcome]:
    """Plant faults of every kind in one model and hold each mutant against the original."""
    rng = np.random.default_rng(seed)
    oracle = Oracle(model, threads=1)
    probe = subjects.feeds(model, np.random.default_rng(seed))
    outcomes: list[Outcome] = []
    for kind in kinds or list(mutations.KINDS):
        for number, mutant in mutants(model, kind, per_kind, rng):
            if not _runs(mutant, probe):
                continue
            verdict = oracle.check(mutant)
            if not verdict.passed:
                outcomes.append(Outcome(name, kind, number, "detected", float("nan")))
                continue
            moved = moved_in_double(model, mutant, seed)
            named = mutations.listed(kind, verdict.notes)
            below = "equal" if moved < SAME_IN_DOUBLE else "rounding" if moved < SAME_IN_SINGLE else None
            result = below or ("listed" if named else "silent")
            outcomes.append(Outcome(name, kind, number, result, moved))
    return outcomes


def moved_in_double(model: onnx.ModelProto, mutant: onnx.ModelProto, seed: int) -> float:
    """The largest move of any output in double precision, relative to the output's scale, over hostile inputs."""
    worst = 0.0
    before, after = ReferenceEvaluator(_in_double(model)), ReferenceEvaluator(_in_double(mutant))
    for number, (length, scale, shifted) in enumerate(HOSTILE):
        rng = np.random.default_rng(1000 + seed + number)
        feeds = subjects.feeds(model, rng, length=length, scale=scale, shifted=shifted)
        feeds = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in feeds.items()}
        try:
            with np.errstate(all="ignore"):
                pairs = list(zip(before.run(None, feeds), after.run(None, feeds), strict=True))
        except (ValueError, IndexError, RuntimeError):  # a length that the model does not take
            continue
        worst = max([worst, *(_move(np.asarray(a), np.asarray(b)) for a, b in pairs)])
    return worst


def _move(before: np.ndarray, after: np.ndarray) -> float:
    a, b = before.astype(np.float64), after.astype(np.float64)
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    a, b = a[np.isfinite(a) & np.isfinite(b)], b[np.isfinite(a) & np.isfinite(b)]
    return float(np.max(np.abs(a - b), initial=0.0) / (np.abs(a).mean() or 1.0)) if a.size else 0.0


def _in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with every float in double precision."""
    wide = _copy(model)
    single = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)

    def widen(tensor: TensorProto) -> None:
        if tensor.data_type in single:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    for graph in mutations.graphs(wide.graph):
        for tensor in graph.initializer:
            widen(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in single:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    widen(attribute.t)
                elif attribute.name == "to" and attribute.i in single:
                    attribute.i = TensorProto.DOUBLE
    return wide


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _runs(mutant: onnx.ModelProto, feeds: subjects.Feeds) -> bool:
    """A fault that stops the model is nobody's achievement to find."""
    try:
        Session(mutant, threads=1).run(feeds)
    except RuntimeFailure:
        return False
    return True


def control(model: onnx.ModelProto) -> bool:
    """Whether the model as the runtime itself rewrites it passes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        verdict = Oracle(model, threads=1).check(path)
    for line in verdict.failures:
        print("  control:", line)
    return verdict.passed


def main() -> int:
    """Make the mutants, judge them, print the score; the exit code says whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-kind", type=int, default=5)
    parser.add_argument("--only")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        models = subjects.handmade() | subjects.exported(Path(folder))
    outcomes: list[Outcome] = []
    for name, model in models.items():
        if options.only in (None, name):
            right = control(model)
            found = judge(name, model, options.per_kind, options.seed)
            outcomes += found
            print(
                f"{name:24s} {_score(found)}   rewritten by the runtime: {'passes' if right else 'FAILS'}", flush=True
            )
    return report(outcomes, time.perf_counter() - began)


def _score(outcomes: list[Outcome]) -> str:
    count = collections.Counter(o.result for o in outcomes)
    return ", ".join(f"{count[result]:4d} {result}" for result in RESULTS)


def report(outcomes: list[Outcome], seconds: float) -> int:
    """The table by kind, every mutant that was not detected, and the score; 0 where both bars hold."""
    print()
    for kind in mutations.KINDS:
        of_kind = [o for o in outcomes if o.kind == kind]
        if of_kind:
            print(f"{kind:24s} {_score(of_kind)}")
    print()
    for result in RESULTS[1:]:
        for o in (each for each in outcomes if each.result == result):
            print(f"{result:10s}  {o.model}: {o.kind} #{o.number}: moves the output by {o.moved:.2g} of its scale")
    real = max(sum(o.result in RESULTS[:3] for o in outcomes), 1)
    share = {result: sum(o.result == result for o in outcomes) / real for result in RESULTS}
    parts = (
        f"{share['detected']:.2%} detected, {share['listed']:.2%} listed as not covered, {share['silent']:.2%} silent"
    )
    print(f"\n{real} mutants that are faults: {parts}, in {seconds:.0f} s")
    return 0 if share["detected"] + share["listed"] >= 0.99 and share["silent"] <= 0.003 else 1


if __name__ == "__main__":
    sys.exit(main())
