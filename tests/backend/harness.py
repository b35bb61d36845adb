"""Optimizes a test case, checks all requirements on the result, and reports every violation.

The reference is the expected output stored by onnx, not the original graph. The comparison is implemented here on
purpose, so that it does not share a mistake with the verifier that it tests.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from backend.cases import Case
from sardonyx import runtime
from sardonyx.errors import RuntimeFailure

Optimizer = Callable[[onnx.ModelProto], onnx.ModelProto]
Open = Callable[[onnx.ModelProto], runtime.Engine]
OWNER_KEYS = {"sardonyx.module_path", "sardonyx.source_module"}


@dataclass(frozen=True)
class Report:
    """Result for one case: whether its values could be checked, and the failures."""

    runnable: bool
    failures: tuple[str, ...]


def examine(case: Case, optimize: Optimizer) -> Report:
    """Optimize the case's model, with each node in a module of its own, and check every requirement on the result."""
    for index, node in enumerate(nodes_of(case.model)):
        node.name = f"/part.{index}/{node.op_type}"
    engine = _reproducing_engine(case)
    before = case.model.SerializeToString(deterministic=True)
    try:
        optimized = optimize(case.model)
        again = optimize(optimized)
    except Exception:  # any exception is a failure of the optimizer
        return Report(engine is not None, (f"{case.name}: crash: {traceback.format_exc(limit=-3)}",))
    failures = [
        *_violations(case.model, optimized),
        *([] if again == optimized else ["not idempotent"]),
        *([] if case.model.SerializeToString(deterministic=True) == before else ["the caller's model was changed"]),
        *([] if engine is None else wrong_values(case, optimized, engine)),
    ]
    return Report(engine is not None, tuple(f"{case.name}: {failure}" for failure in failures))


def _reproducing_engine(case: Case) -> Open | None:
    """Returns the first engine that gives the expected outputs for the original model, otherwise None."""
    engines: tuple[Open, ...] = (lambda model: runtime.Session(model, threads=1), runtime.ReferenceSession)
    return next((engine for engine in engines if case.data and not wrong_values(case, case.model, engine)), None)


def wrong_values(case: Case, model: onnx.ModelProto, engine: Open) -> list[str]:
    """Returns the differences between the outputs of a model and the expected outputs of a case."""
    try:
        opened = engine(model)
        results = [(opened.run(inputs), expected) for inputs, expected in case.data]
    except RuntimeFailure as failure:
        return [f"does not run: {failure}"]
    differences: list[str] = []
    for outputs, expected in results:
        if len(outputs) != len(expected):
            differences.append(f"{len(outputs)} outputs instead of {len(expected)}")
        for index, (got, wanted) in enumerate(zip(outputs, expected, strict=False)):
            if difference := _difference(got, wanted, case.rtol, case.atol):
                differences.append(f"wrong: output {index}: {difference}")
    return differences


def _difference(got: Any, expected: Any, rtol: float, atol: float) -> str | None:
    if isinstance(expected, list) or isinstance(got, list):
        if not (isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got)):
            return "not the same sequence"
        return next((why for a, b in zip(got, expected, strict=True) if (why := _difference(a, b, rtol, atol))), None)
    if got is None or expected is None:
        return None if got is expected else "present on one side only"
    got, expected = np.asarray(got), np.asarray(expected)
    texts = got.dtype.kind in "OUS" and expected.dtype.kind in "OUS"
    if got.shape != expected.shape or (got.dtype != expected.dtype and not texts):
        return f"{got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"
    if texts:
        return None if got.astype(str).tolist() == expected.astype(str).tolist() else "other strings"
    if expected.dtype == np.float16:
        # The expected value is rounded once and so is ours. Where the runtime's own kernels for half precision, as on
        # ARM, do not reproduce it, the evaluator runs the model, and rounds every step of an expanded attention.
        rtol = max(rtol, 4 * float(np.finfo(np.float16).eps))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    close = np.isclose(got.astype(wide), expected.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
    return None if close.all() else f"{np.count_nonzero(~close)} of {close.size} values differ"


def _violations(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[str]:
    for full in (False, True):
        if _valid(before, full=full) is None and (complaint := _valid(after, full=full)):
            yield f"invalid: {complaint}"
            break
    for role in ("input", "output"):
        was, now = getattr(before.graph, role), getattr(after.graph, role)
        if [(v.name, v.type) for v in was] != [(v.name, v.type) for v in now]:
            yield f"interface: {role}s changed from {[v.name for v in was]} to {[v.name for v in now]}, or their types"
    if (now_count := _compute_nodes(after)) > (was_count := _compute_nodes(before)):
        yield f"grew from {was_count} to {now_count} nodes"
    ownerless = [n.op_type for n in nodes_of(after) if not OWNER_KEYS & {p.key for p in n.metadata_props}]
    if ownerless:
        yield f"no owner: {', '.join(ownerless)}"


def _valid(model: onnx.ModelProto, *, full: bool) -> str | None:
    try:
        onnx.checker.check_model(model, full_check=full)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError, RuntimeError) as complaint:
        return " ".join(str(complaint).split())[:300]
    return None


def _compute_nodes(model: onnx.ModelProto) -> int:
    return sum(node.op_type != "Constant" for node in nodes_of(model))


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of the graph, of control-flow bodies and of functions."""
    stack = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                stack.extend(body.node)
